//! Following one turn to its end.

use std::collections::HashSet;

use ahp_types::state::{ChatState, ConfirmationOptionKind, TurnState};
use axp_protocol::method::TurnOutcome;
use axp_protocol::scalar::Id;
use axp_protocol::shape::{Allowance, ExchangeState, SessionPhase, Usage};
use axp_protocol::{ProtocolError, codes};
use serde::Serialize;
use tokio::sync::mpsc;

use super::Context;
use super::error::{CliError, ExitCode};
use super::follow::{Follower, View};
use super::output::Style;
use super::render::{Renderer, error_of};
use super::session::Host;
use super::turn::dispatch;
use super::waiting::{Waiting, waiting};
use super::watch::report;
use crate::client::ClientError;

/// How a turn ended, what it used, and what its grant has spent in all.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Outcome {
    /// How it ended.
    pub(crate) outcome: TurnOutcome,
    /// What it used; `null` when it was not begun.
    pub(crate) usage: Option<Usage>,
    /// What the grant that paid has spent, this turn with it.
    pub(crate) spent: Option<Allowance>,
    /// Kind and sentence of an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<TurnError>,
}

/// Why a turn failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct TurnError {
    /// Machine-readable kind.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Sentence.
    pub(crate) message: String,
}

impl Outcome {
    /// The exit code and sentence of a turn that did not complete.
    pub(crate) fn result(&self, session: &Id) -> Result<(), CliError> {
        match (self.outcome, &self.error) {
            (TurnOutcome::Complete, _) => Ok(()),
            (TurnOutcome::Cancelled, _) => {
                Err(CliError::failed(format!("the turn in session {session} was cancelled")))
            }
            (TurnOutcome::Error, Some(error)) if error.kind == "budget" => Err(CliError::new(
                ExitCode::Budget,
                format!("the turn in session {session} was not run: {}", error.message),
            )
            .hint(format!("its contributor raises the budget: axp grant {session} --cost … --turns …"))),
            (TurnOutcome::Error, error) => {
                let why = error.as_ref().map_or("it does not say why", |e| &e.message);
                Err(CliError::failed(format!("the turn in session {session} failed: {why}")))
            }
        }
    }
}

/// How the turn that message `id` is has ended, when it has. `begun` says whether the message was seen waiting or
/// running before: one that is neither any more was taken back.
pub(crate) fn outcome(view: &View, id: &str, begun: bool) -> Option<Outcome> {
    if let Some(turn) = view.chat.turns.iter().rev().find(|turn| turn.id == id) {
        let settled = view.exchange.usage.iter().rev().find(|u| u.turn_id.as_str() == turn.id);
        return Some(Outcome {
            outcome: match turn.state {
                TurnState::Complete => TurnOutcome::Complete,
                TurnState::Cancelled => TurnOutcome::Cancelled,
                TurnState::Error => TurnOutcome::Error,
            },
            usage: settled.map(|s| s.usage),
            spent: settled.and_then(|s| view.exchange.grants.get(&s.grant_id)).map(|g| g.spent),
            error: error_of(turn)
                .map(|e| TurnError { kind: e.error_type.clone(), message: e.message.clone() }),
        });
    }
    let never = !pending(&view.chat, id) && (begun || view.exchange.status == SessionPhase::Closed);
    never.then_some(Outcome { outcome: TurnOutcome::Cancelled, usage: None, spent: None, error: None })
}

/// Whether the turn runs, or its message waits.
fn pending(chat: &ChatState, id: &str) -> bool {
    chat.active_turn.as_ref().is_some_and(|t| t.id == id)
        || chat.steering_message.as_ref().is_some_and(|m| m.id == id)
        || chat.queued_messages.iter().flatten().any(|m| m.id == id)
}

/// What stands in the way of a turn that was just started, if anything does.
fn obstacle(exchange: &ExchangeState, session: &Id) -> Option<String> {
    exchange.lease.is_none().then(|| {
        format!(
            "no agent is parked at session {session}; the turn waits for one: axp park {session} -- AGENT ARGS"
        )
    })
}

/// How the questions of a turn are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answers {
    /// By somebody else: the commands to do so are shown.
    Elsewhere,
    /// Allowed, once each.
    Allow,
    /// Denied, once each.
    Deny,
    /// By the person at this terminal.
    Ask,
}

/// How a turn is followed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Following {
    /// How its questions are answered.
    pub(crate) answers: Answers,
    /// Whether `--json` prints the envelopes and the outcome.
    pub(crate) json: bool,
}

/// A turn that was followed to its end.
#[derive(Debug)]
pub(crate) struct Followed {
    /// How it ended.
    pub(crate) outcome: Outcome,
    /// What was answered here: tool and option.
    pub(crate) answered: Vec<Answered>,
    /// The session at its end.
    pub(crate) view: View,
}

/// An answer that was given here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Answered {
    /// What the tool was about to do.
    pub(crate) tool: String,
    /// ID of the option; none for a denial that needs none.
    pub(crate) option: Option<String>,
}

/// Shows the turn that `id` is the message of until it has ended.
pub(crate) async fn wait(
    mut follower: Follower,
    mut host: Host,
    session: &Id,
    id: &Id,
    following: Following,
    ctx: &Context,
) -> Result<Followed, CliError> {
    let elsewhere = following.answers == Answers::Elsewhere;
    let mut renderer = Renderer::new(ctx.out.style(), session.clone(), elsewhere.then(|| ctx.invocation()));
    renderer.skip(follower.view());
    if let Some(obstacle) = obstacle(&follower.view().exchange, session) {
        ctx.out.note(&obstacle);
    }
    let interrupt = tokio::signal::ctrl_c();
    tokio::pin!(interrupt);
    let mut begun = false;
    let mut answers = Answering::new(following.answers);
    loop {
        let shown = renderer.update(follower.view());
        // Somebody who stops reading has not learnt how the turn ended.
        ctx.out.print(&shown).map_err(cut_short)?;
        let view = follower.view();
        begun |= pending(&view.chat, id);
        if let Some(outcome) = outcome(view, id, begun) {
            if following.json {
                ctx.out.json(&outcome).map_err(cut_short)?;
            }
            return Ok(Followed { outcome, answered: answers.given, view: view.clone() });
        }
        answers.look(view, &mut host, session, id, ctx).await?;
        let update = tokio::select! {
            update = follower.next() => update?,
            line = answers.line() => {
                answers.take(&line, follower.view(), &mut host, session, ctx).await?;
                continue;
            }
            _ = &mut interrupt => {
                let axp = ctx.invocation();
                return Err(CliError::new(
                    ExitCode::Interrupted,
                    format!("no longer following; the turn goes on in session {session}"),
                )
                .hint(format!("cancel it: {axp} cancel {session}; follow it again: {axp} watch {session}")));
            }
        };
        if following.json {
            report(ctx, &update).map_err(cut_short)?;
        }
    }
}

/// Answers questions, each once.
struct Answering {
    how: Answers,
    seen: HashSet<String>,
    given: Vec<Answered>,
    /// The call that the person at the terminal is asked about.
    asked: Option<String>,
    lines: Option<mpsc::Receiver<String>>,
}

impl Answering {
    fn new(how: Answers) -> Self {
        Self { how, seen: HashSet::new(), given: vec![], asked: None, lines: None }
    }

    /// Looks for calls that wait, and answers or asks.
    async fn look(
        &mut self,
        view: &View,
        host: &mut Host,
        session: &Id,
        turn: &Id,
        ctx: &Context,
    ) -> Result<(), CliError> {
        if self.how == Answers::Elsewhere {
            return Ok(());
        }
        let waiting = waiting(&view.chat);
        if self.asked.as_ref().is_some_and(|id| !waiting.iter().any(|w| w.call.tool_call_id == *id)) {
            // Somebody else was faster.
            self.asked = None;
        }
        for call in waiting.iter().filter(|call| call.turn == turn.as_str()) {
            let id = &call.call.tool_call_id;
            if self.asked.is_some() || !self.seen.insert(id.clone()) {
                continue;
            }
            match self.how {
                Answers::Allow => self.answer(call, true, None, host, session, ctx).await?,
                Answers::Deny => self.answer(call, false, None, host, session, ctx).await?,
                Answers::Ask => {
                    self.asked = Some(id.clone());
                    let style = ctx.out.style();
                    ctx.out.print(&format!("  {} ", style.ask("allow it? [y/N, or the ID of an option]")))?;
                }
                Answers::Elsewhere => {}
            }
        }
        Ok(())
    }

    /// A line from the person who is asked; never when nobody is.
    async fn line(&mut self) -> String {
        if self.asked.is_none() {
            return std::future::pending().await;
        }
        let lines = self.lines.get_or_insert_with(stdin_lines);
        // At the end of input nobody is there any more, which denies.
        lines.recv().await.unwrap_or_default()
    }

    async fn take(
        &mut self,
        line: &str,
        view: &View,
        host: &mut Host,
        session: &Id,
        ctx: &Context,
    ) -> Result<(), CliError> {
        let Some(asked) = self.asked.take() else { return Ok(()) };
        let waiting = waiting(&view.chat);
        let Some(call) = waiting.iter().find(|w| w.call.tool_call_id == asked) else { return Ok(()) };
        let word = line.trim();
        let named = call.call.options.iter().flatten().find(|o| o.id == word);
        let allow = match named {
            Some(option) => option.kind == ConfirmationOptionKind::Approve,
            None => matches!(word.to_lowercase().as_str(), "y" | "yes"),
        };
        self.answer(call, allow, named.map(|o| o.id.as_str()), host, session, ctx).await
    }

    async fn answer(
        &mut self,
        call: &Waiting<'_>,
        allow: bool,
        named: Option<&str>,
        host: &mut Host,
        session: &Id,
        ctx: &Context,
    ) -> Result<(), CliError> {
        let option = match call.choose(allow, named) {
            Ok(option) => option,
            // What is not covered is left to somebody else.
            Err(error) => {
                ctx.out.note(&error.render(Style::default()));
                return Ok(());
            }
        };
        match dispatch(host, session, call.answer(allow, option)).await {
            Ok(()) => {
                let option = option.map(|o| o.id.clone());
                self.given.push(Answered { tool: call.title(), option });
                Ok(())
            }
            // Somebody else was faster.
            Err(ClientError::Refused(ProtocolError { code: codes::CONFLICT, .. })) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Lines from the terminal. Reading cannot be called off, so it has a thread of its own.
fn stdin_lines() -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            let Ok(line) = line else { return };
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}

fn cut_short(error: CliError) -> CliError {
    match error {
        CliError { code: ExitCode::Done, .. } => CliError::new(ExitCode::Failed, ""),
        error => error,
    }
}
