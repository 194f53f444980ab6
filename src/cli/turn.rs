//! `axp prompt`, `queue`, `steer`, `cancel` and `close`: what a maintainer tells a session.

use std::path::Path;

use ahp_types::StateAction;
use ahp_types::actions::{ChatPendingMessageSetAction, ChatTurnCancelledAction, ChatTurnStartedAction};
use ahp_types::state::{ChatState, Message, MessageKind, MessageOrigin, PendingMessageKind};
use axp_protocol::channel::Channel;
use axp_protocol::limits::FRAME_BYTES;
use axp_protocol::method::{AhpAction, params};
use axp_protocol::scalar::Id;
use clap::Args;
use serde_json::json;

use super::Context;
use super::error::CliError;
use super::follow::Follower;
use super::profile::Need;
use super::session::{Host, id_of, parse};
use super::wait::{Answers, Following, wait};
use crate::client::{ClientError, operation_id, random_id, text};

const PROMPT_EXAMPLES: &str = "EXAMPLES
  axp prompt parser-fix \"Fix the parser\"     start a turn
  axp prompt \"Fix the parser\" --wait         in the only open session; follow it to its end
  axp prompt parser-fix - < task.md          the text from stdin
  axp prompt parser-fix \"Go\" --wait --json | tail -1";

const QUEUE_EXAMPLES: &str = "EXAMPLES
  axp queue parser-fix \"Then add a test\"
  axp queue parser-fix \"Then add a test\" --wait";

const STEER_EXAMPLES: &str = "EXAMPLES
  axp steer parser-fix \"Stop, use the other branch\"
  axp steer parser-fix \"Keep the old API\" --wait";

const CANCEL_EXAMPLES: &str = "EXAMPLES
  axp cancel
  axp cancel parser-fix";

const CLOSE_EXAMPLES: &str = "EXAMPLES
  axp close parser-fix";

/// Start a turn: give the parked agent something to do (maintainers)
///
/// With --wait the turn is followed, and the exit code is its outcome: 0 complete, 1 failed or cancelled, 5 when the
/// budget does not cover it. Ctrl-C stops the following, not the turn.
#[derive(Debug, Args)]
#[command(after_help = PROMPT_EXAMPLES, override_usage = "axp prompt [OPTIONS] [SESSION] <TEXT>")]
pub(crate) struct PromptArgs {
    #[command(flatten)]
    message: MessageArgs,
}

impl PromptArgs {
    /// Whether the turn is followed.
    pub(crate) fn waits(&self) -> bool {
        self.message.wait
    }
}

/// Send a message that waits its turn (maintainers)
///
/// It starts by itself when the turns before it have ended.
#[derive(Debug, Args)]
#[command(after_help = QUEUE_EXAMPLES, override_usage = "axp queue [OPTIONS] [SESSION] <TEXT>")]
pub(crate) struct QueueArgs {
    #[command(flatten)]
    message: MessageArgs,
}

impl QueueArgs {
    /// Whether the turn is followed.
    pub(crate) fn waits(&self) -> bool {
        self.message.wait
    }
}

/// Stop the running turn and go on with this instead (maintainers)
///
/// The turn that is stopped is charged as reserved.
#[derive(Debug, Args)]
#[command(after_help = STEER_EXAMPLES, override_usage = "axp steer [OPTIONS] [SESSION] <TEXT>")]
pub(crate) struct SteerArgs {
    #[command(flatten)]
    message: MessageArgs,
}

impl SteerArgs {
    /// Whether the turn is followed.
    pub(crate) fn waits(&self) -> bool {
        self.message.wait
    }
}

#[derive(Debug, Args)]
struct MessageArgs {
    /// The session; may be left out when exactly one is open
    #[arg(value_name = "SESSION")]
    first: String,
    /// What the agent is told; `-` reads it from stdin
    #[arg(value_name = "TEXT")]
    second: Option<String>,
    /// Follow the turn to its end; the exit code is its outcome
    #[arg(long)]
    wait: bool,
    /// With --wait: allow, once each, what the agent asks permission for
    #[arg(long, requires = "wait")]
    yes: bool,
}

/// Stop the running turn (maintainers)
///
/// The turn is charged as reserved. Messages that wait start after it.
#[derive(Debug, Args)]
#[command(after_help = CANCEL_EXAMPLES)]
pub(crate) struct CancelArgs {
    /// The session [default: the only open one]
    session: Option<String>,
}

/// End a session (maintainers)
///
/// Running work is cancelled, the parked agent is let go, and the task is free for another session. The history stays.
#[derive(Debug, Args)]
#[command(after_help = CLOSE_EXAMPLES)]
pub(crate) struct CloseArgs {
    /// The session [default: the only open one]
    session: Option<String>,
}

/// How a message gets into the chat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Now,
    Queued,
    Steering,
}

impl Way {
    fn command(self) -> &'static str {
        match self {
            Self::Now => "prompt",
            Self::Queued => "queue",
            Self::Steering => "steer",
        }
    }
}

/// Runs `axp prompt`.
pub(crate) async fn prompt(args: PromptArgs, ctx: &Context) -> Result<(), CliError> {
    send(args.message, Way::Now, ctx).await
}

/// Runs `axp queue`.
pub(crate) async fn queue(args: QueueArgs, ctx: &Context) -> Result<(), CliError> {
    send(args.message, Way::Queued, ctx).await
}

/// Runs `axp steer`.
pub(crate) async fn steer(args: SteerArgs, ctx: &Context) -> Result<(), CliError> {
    send(args.message, Way::Steering, ctx).await
}

async fn send(args: MessageArgs, way: Way, ctx: &Context) -> Result<(), CliError> {
    let (named, word) = match &args.second {
        Some(text) => (Some(args.first.as_str()), text),
        None => (None, &args.first),
    };
    let text = read_text(word).await?;
    let mut host = ctx.host(Need::Maintain).await?;
    if named.is_none() {
        not_a_session(&mut host, word, way.command()).await?;
    }
    let session = host.session(named).await?;
    // Before the turn starts, so that nothing of it is missed.
    let follower = match args.wait {
        true => {
            let credentials = host.credentials().clone();
            Some(Follower::open(credentials, session.clone(), ctx.out.is_json()).await?)
        }
        false => None,
    };
    let id = random_id();
    dispatch(&mut host, &session, action(way, &id, text)).await?;
    if let Some(follower) = follower {
        let answers = if args.yes { Answers::Allow } else { Answers::Elsewhere };
        let following = Following { answers, json: true };
        return wait(follower, host, &session, &id, following, ctx).await?.outcome.result(&session);
    }
    ctx.out.json(&json!({ "session": session, "turn": id }))?;
    let axp = ctx.invocation();
    match way {
        Way::Now => ctx.out.done(&format!("Started turn {id} in session {session}."))?,
        Way::Queued => ctx.out.done(&format!("Queued in session {session} as {id}."))?,
        Way::Steering => ctx.out.done(&format!("Session {session} goes on with {id}."))?,
    }
    ctx.out.note(&format!("Follow it: {axp} watch {session}"));
    Ok(())
}

/// Refuses a session where a text is wanted: it would be taken for what is said.
pub(crate) async fn not_a_session(host: &mut Host, word: &str, command: &str) -> Result<(), CliError> {
    let Ok(id) = parse(word) else { return Ok(()) };
    let known = host.sessions().await?.iter().any(|s| id_of(s) == id.as_str());
    if known || word.contains("-session:/") {
        return Err(CliError::usage(format!("{word} is a session; the text is missing"))
            .hint(format!("axp {command} {word} \"…\"")));
    }
    Ok(())
}

pub(crate) async fn read_text(word: &str) -> Result<String, CliError> {
    if word != "-" {
        return if word.trim().is_empty() {
            Err(CliError::usage("the text is empty"))
        } else {
            Ok(word.to_owned())
        };
    }
    let text = super::input::read_text(Path::new("-"), FRAME_BYTES, "a host takes").await?;
    if text.trim().is_empty() {
        return Err(CliError::usage("there is no text on stdin"));
    }
    Ok(text)
}

pub(crate) fn action(way: Way, id: &Id, text: String) -> StateAction {
    let message = Message {
        text,
        origin: MessageOrigin { kind: MessageKind::User },
        attachments: None,
        model: None,
        agent: None,
        meta: None,
    };
    let waiting = |kind| {
        let message = message.clone();
        StateAction::ChatPendingMessageSet(ChatPendingMessageSetAction { kind, id: id.to_string(), message })
    };
    match way {
        Way::Queued => waiting(PendingMessageKind::Queued),
        Way::Steering => waiting(PendingMessageKind::Steering),
        Way::Now => StateAction::ChatTurnStarted(ChatTurnStartedAction {
            turn_id: id.to_string(),
            // The host puts its own time in.
            started_at: "1970-01-01T00:00:00.000Z".into(),
            message,
            queued_message_id: None,
            meta: None,
        }),
    }
}

/// Dispatches an action on a session's chat.
pub(crate) async fn dispatch(host: &mut Host, session: &Id, action: StateAction) -> Result<(), ClientError> {
    let params = params::Dispatch {
        channel: text(&Channel::Chat(session.clone()).to_string())?,
        operation_id: operation_id(),
        action: AhpAction(Box::new(action)),
    };
    host.call::<params::Dispatch>(&params).await
}

/// Runs `axp cancel`.
pub(crate) async fn cancel(args: CancelArgs, ctx: &Context) -> Result<(), CliError> {
    let mut host = ctx.host(Need::Maintain).await?;
    let session = host.session(args.session.as_deref()).await?;
    let chat: ChatState = host.snapshot(&Channel::Chat(session.clone())).await?;
    let Some(turn) = chat.active_turn else {
        return Err(CliError::conflict(format!("no turn is running in session {session}")));
    };
    let action = ChatTurnCancelledAction { turn_id: turn.id.clone(), duration: 0, meta: None };
    dispatch(&mut host, &session, StateAction::ChatTurnCancelled(action)).await?;
    ctx.out.json(&json!({ "session": session, "turn": turn.id }))?;
    ctx.out
        .line(&format!("Cancelled turn {} in session {session}.", super::sanitize::one_line(&turn.id, 128)))
}

/// Runs `axp close`.
pub(crate) async fn close(args: CloseArgs, ctx: &Context) -> Result<(), CliError> {
    let mut host = ctx.host(Need::Maintain).await?;
    let session = host.session(args.session.as_deref()).await?;
    let channel = text(&Channel::Exchange(session.clone()).to_string())?;
    host.call::<params::Close>(&params::Close { channel, operation_id: operation_id() }).await?;
    ctx.out.json(&json!({ "session": session }))?;
    ctx.out.done(&format!("Closed session {session}."))
}
