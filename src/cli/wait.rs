//! Following one turn to its end.

use std::collections::HashSet;

use ahp_types::state::{ChatState, TurnState};
use axp_protocol::method::TurnOutcome;
use axp_protocol::scalar::Id;
use axp_protocol::shape::{Allowance, ExchangeState, SessionPhase, Usage};
use axp_protocol::{ProtocolError, codes};
use serde::Serialize;

use super::Context;
use super::error::{CliError, ExitCode};
use super::follow::{Follower, View};
use super::output::Style;
use super::render::{Renderer, error_of};
use super::session::Host;
use super::turn::dispatch;
use super::waiting::waiting;
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

/// Shows the turn that `id` is the message of until it has ended; its outcome is the result.
pub(crate) async fn wait(
    mut follower: Follower,
    mut host: Host,
    session: &Id,
    id: &Id,
    yes: bool,
    ctx: &Context,
) -> Result<(), CliError> {
    let asks = (!yes).then(|| ctx.invocation());
    let mut renderer = Renderer::new(ctx.out.style(), session.clone(), asks);
    renderer.skip(follower.view());
    if let Some(obstacle) = obstacle(&follower.view().exchange, session) {
        ctx.out.note(&obstacle);
    }
    let interrupt = tokio::signal::ctrl_c();
    tokio::pin!(interrupt);
    let mut begun = false;
    let mut answered = HashSet::new();
    loop {
        let shown = renderer.update(follower.view());
        // Somebody who stops reading has not learnt how the turn ended.
        ctx.out.print(&shown).map_err(cut_short)?;
        let view = follower.view();
        begun |= pending(&view.chat, id);
        if let Some(outcome) = outcome(view, id, begun) {
            ctx.out.json(&outcome).map_err(cut_short)?;
            return outcome.result(session);
        }
        if yes {
            allow(view, &mut host, session, id, &mut answered, ctx).await?;
        }
        let update = tokio::select! {
            update = follower.next() => update?,
            _ = &mut interrupt => {
                let axp = ctx.invocation();
                return Err(CliError::new(
                    ExitCode::Interrupted,
                    format!("no longer following; the turn goes on in session {session}"),
                )
                .hint(format!("cancel it: {axp} cancel {session}; follow it again: {axp} watch {session}")));
            }
        };
        report(ctx, &update).map_err(cut_short)?;
    }
}

/// Allows what the turn asks permission for, each call once.
async fn allow(
    view: &View,
    host: &mut Host,
    session: &Id,
    turn: &Id,
    answered: &mut HashSet<String>,
    ctx: &Context,
) -> Result<(), CliError> {
    for call in waiting(&view.chat).iter().filter(|call| call.turn == turn.as_str()) {
        if !answered.insert(call.call.tool_call_id.clone()) {
            continue;
        }
        let option = match call.choose(true, None) {
            Ok(option) => option,
            // What --yes does not cover is left to a person.
            Err(error) => {
                ctx.out.note(&error.render(Style::default()));
                continue;
            }
        };
        match dispatch(host, session, call.answer(true, option)).await {
            // Somebody else was faster.
            Ok(()) | Err(ClientError::Refused(ProtocolError { code: codes::CONFLICT, .. })) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn cut_short(error: CliError) -> CliError {
    match error {
        CliError { code: ExitCode::Done, .. } => CliError::new(ExitCode::Failed, ""),
        error => error,
    }
}
