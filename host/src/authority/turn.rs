//! Turns: what maintainers dispatch on a chat, and how a turn ends.

use ahp_types::StateAction;
use ahp_types::actions::{
    ChatErrorAction, ChatPendingMessageRemovedAction, ChatToolCallConfirmedAction, ChatTurnCancelledAction,
    ChatTurnCompleteAction, ChatTurnStartedAction, ChatUsageAction,
};
use ahp_types::state::{
    ConfirmationOptionKind, ErrorInfo, ErrorResponsePart, Message, MessageKind, PendingMessageKind,
    ResponsePart, ToolCallCancellationReason, ToolCallConfirmationReason, ToolCallState, UsageInfo,
};
use axp_protocol::ProtocolError;
use axp_protocol::action::{Action, AxpAction};
use axp_protocol::channel::Channel;
use axp_protocol::limits::{MESSAGE_CHARS, QUEUED_MESSAGES};
use axp_protocol::principal::{Principal, Role};
use axp_protocol::scalar::Id;
use axp_protocol::shape::{Grant, SessionPhase, Usage, UsageSource};

use super::decide::{Decision, require_role};
use super::state::Session;
use crate::time::{parse_rfc3339, rfc3339};

type Events = Vec<(Channel, Action)>;

/// How a turn ends.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum End {
    /// The agent finished.
    Complete,
    /// Somebody stopped it.
    Cancelled,
    /// It failed.
    Error {
        /// Machine-readable kind.
        kind: &'static str,
        /// Sentence.
        message: String,
    },
}

impl End {
    pub(crate) fn error(kind: &'static str, message: impl Into<String>) -> Self {
        Self::Error { kind, message: message.into() }
    }
}

fn chat(session: &Session, action: StateAction) -> (Channel, Action) {
    (Channel::Chat(session.id.clone()), action.into())
}

/// Ends the active turn, charging nothing.
pub(crate) fn end_turn(session: &Session, end: &End, now: u64) -> Events {
    let Some(active) = &session.chat.active_turn else { return vec![] };
    let elapsed = now.saturating_sub(parse_rfc3339(&active.started_at));
    let duration = i64::try_from(elapsed).unwrap_or(i64::MAX);
    let turn_id = active.id.clone();
    let action = match end {
        End::Complete => {
            StateAction::ChatTurnComplete(ChatTurnCompleteAction { turn_id, duration, meta: None })
        }
        End::Cancelled => {
            StateAction::ChatTurnCancelled(ChatTurnCancelledAction { turn_id, duration, meta: None })
        }
        End::Error { kind, message } => StateAction::ChatError(ChatErrorAction {
            turn_id,
            duration,
            part: ErrorResponsePart {
                error: ErrorInfo {
                    error_type: (*kind).to_owned(),
                    message: message.clone(),
                    stack: None,
                    meta: None,
                },
                resumable: None,
            },
            meta: None,
        }),
    };
    vec![chat(session, action)]
}

/// Settles the reservation, at its ceiling when the usage is unknown, and ends its turn (section 7). Also returns
/// the grant as charged.
pub(crate) fn end_reserved(
    session: &Session,
    usage: Option<Usage>,
    end: &End,
    now: u64,
) -> (Events, Option<Grant>) {
    let Some(reservation) = &session.exchange.reservation else { return (vec![], None) };
    let mut events = vec![];
    let mut charged = None;
    let usage = usage.unwrap_or_else(|| Usage::of_reservation(&reservation.ceiling));
    if let Some(grant) = session.exchange.grants.get(&reservation.grant_id) {
        let grant = Grant { spent: grant.spent.plus(&usage.charge()), ..grant.clone() };
        charged = Some(grant.clone());
        let settled = AxpAction::Settled { turn_id: reservation.turn_id.clone(), grant, usage };
        events.push((Channel::Exchange(session.id.clone()), settled.into()));
    }
    if session.chat.active_turn.as_ref().is_some_and(|t| t.id == reservation.turn_id.as_str()) {
        if usage.source == UsageSource::Reported {
            let number = |n: u64| i64::try_from(n).ok();
            let info = UsageInfo {
                input_tokens: number(usage.input_tokens),
                output_tokens: number(usage.output_tokens),
                model: None,
                cache_read_tokens: number(usage.cache_read_tokens),
                meta: None,
            };
            let action =
                ChatUsageAction { turn_id: reservation.turn_id.to_string(), usage: info, meta: None };
            events.push(chat(session, StateAction::ChatUsage(action)));
        }
        events.extend(end_turn(session, end, now));
    }
    (events, charged)
}

/// Cancels the active turn; a reserved one is charged in full.
pub(crate) fn cancel(session: &Session, now: u64) -> Events {
    match &session.exchange.reservation {
        Some(_) => end_reserved(session, None, &End::Cancelled, now).0,
        None => end_turn(session, &End::Cancelled, now),
    }
}

/// Removes the messages that wait.
pub(crate) fn clear_pending(session: &Session) -> Events {
    let steering = session.chat.steering_message.iter().map(|m| (PendingMessageKind::Steering, &m.id));
    let queued = session.chat.queued_messages.iter().flatten().map(|m| (PendingMessageKind::Queued, &m.id));
    steering
        .chain(queued)
        .map(|(kind, id)| {
            let removed = ChatPendingMessageRemovedAction { kind, id: id.clone() };
            chat(session, StateAction::ChatPendingMessageRemoved(removed))
        })
        .collect()
}

/// Decides an action that a maintainer dispatches on a chat (section 5).
pub(crate) fn dispatch(
    session: &Session,
    actor: &Principal,
    channel: &Channel,
    action: &StateAction,
    now: u64,
) -> Result<Decision, ProtocolError> {
    require_role(actor, &[Role::Maintainer], "steer a session")?;
    if !matches!(channel, Channel::Chat(_)) {
        return Err(ProtocolError::not_permitted("actions can be dispatched on a chat only"));
    }
    if session.exchange.status == SessionPhase::Closed {
        return Err(ProtocolError::conflict(format!("session {} is closed", session.id)));
    }
    let events = match action {
        StateAction::ChatTurnStarted(a) => start(session, a, now)?,
        StateAction::ChatPendingMessageSet(a) => {
            check_id("id", &a.id)?;
            check_message(&a.message)?;
            let queued = session.chat.queued_messages.as_deref().unwrap_or_default();
            let known = queued.iter().any(|m| m.id == a.id);
            if a.kind == PendingMessageKind::Queued && !known && queued.len() >= QUEUED_MESSAGES {
                return Err(ProtocolError::limit(format!(
                    "at most {QUEUED_MESSAGES} messages can be queued"
                )));
            }
            let mut events = vec![chat(session, action.clone())];
            if a.kind == PendingMessageKind::Steering && session.chat.active_turn.is_some() {
                // The message becomes the next turn as soon as the chat is free.
                events.extend(cancel(session, now));
            }
            events
        }
        StateAction::ChatPendingMessageRemoved(a) => {
            let waits = match a.kind {
                PendingMessageKind::Steering => session.chat.steering_message.iter().any(|m| m.id == a.id),
                PendingMessageKind::Queued => {
                    session.chat.queued_messages.iter().flatten().any(|m| m.id == a.id)
                }
            };
            if !waits {
                return Err(ProtocolError::not_found(format!("no message {:?} waits", a.id)));
            }
            vec![chat(session, action.clone())]
        }
        StateAction::ChatTurnCancelled(a) => match &session.chat.active_turn {
            Some(active) if active.id == a.turn_id => cancel(session, now),
            Some(active) => {
                return Err(ProtocolError::conflict(format!(
                    "turn {} is active, not {:?}",
                    active.id, a.turn_id
                )));
            }
            None => return Err(ProtocolError::conflict("no turn is active")),
        },
        StateAction::ChatToolCallConfirmed(a) => vec![confirm(session, actor, a)?],
        _ => return Err(ProtocolError::not_permitted("this action cannot be dispatched here")),
    };
    Decision::new(events, &())
}

fn check_id(what: &str, id: &str) -> Result<(), ProtocolError> {
    Id::new(id).map(|_| ()).map_err(|why| {
        ProtocolError::invalid_params(format!("action.{what}: {why}"))
            .with_data(serde_json::json!({ "path": format!("action.{what}") }))
    })
}

fn check_message(message: &Message) -> Result<(), ProtocolError> {
    if message.origin.kind != MessageKind::User {
        return Err(ProtocolError::not_permitted("only messages of a user can be sent"));
    }
    let invalid = |what: &str| {
        ProtocolError::invalid_params(what.to_owned())
            .with_data(serde_json::json!({ "path": "action.message" }))
    };
    if message.text.trim().is_empty() {
        return Err(invalid("action.message: its text is empty"));
    }
    if message.attachments.as_ref().is_some_and(|a| !a.is_empty()) {
        return Err(invalid("action.message: attachments cannot be passed to a parked agent"));
    }
    if message.text.len() > MESSAGE_CHARS && message.text.chars().count() > MESSAGE_CHARS {
        return Err(ProtocolError::limit(format!("a message has at most {MESSAGE_CHARS} characters")));
    }
    Ok(())
}

fn start(session: &Session, a: &ChatTurnStartedAction, now: u64) -> Result<Events, ProtocolError> {
    check_id("turnId", &a.turn_id)?;
    check_message(&a.message)?;
    if session.turn_ids.contains(&a.turn_id) {
        return Err(ProtocolError::conflict(format!("turn ID {} was used before", a.turn_id)));
    }
    if let Some(active) = &session.chat.active_turn {
        return Err(ProtocolError::turn_in_progress(format!("turn {} is active", active.id)));
    }
    let started = ChatTurnStartedAction {
        started_at: rfc3339(now),
        // Queued messages are started by the host.
        queued_message_id: None,
        ..a.clone()
    };
    Ok(vec![chat(session, StateAction::ChatTurnStarted(started))])
}

fn confirm(
    session: &Session,
    actor: &Principal,
    a: &ChatToolCallConfirmedAction,
) -> Result<(Channel, Action), ProtocolError> {
    if session.exchange.lease.as_ref().is_some_and(|l| l.owner == actor.id.as_str()) {
        return Err(ProtocolError::not_permitted("whoever runs the agent cannot confirm its tool calls"));
    }
    if a.edited_tool_input.is_some() {
        return Err(ProtocolError::not_permitted("a tool's input cannot be edited here"));
    }
    let conflict =
        || ProtocolError::conflict(format!("tool call {:?} does not wait for confirmation", a.tool_call_id));
    let turn = session.chat.active_turn.as_ref().filter(|t| t.id == a.turn_id).ok_or_else(conflict)?;
    let pending = turn.response_parts.iter().find_map(|part| match part {
        ResponsePart::ToolCall(tool) => match &tool.tool_call {
            ToolCallState::PendingConfirmation(p) if p.tool_call_id == a.tool_call_id => Some(p),
            _ => None,
        },
        _ => None,
    });
    let pending = pending.ok_or_else(conflict)?;
    let offered = pending.options.as_deref().unwrap_or_default();
    let wanted = if a.approved { ConfirmationOptionKind::Approve } else { ConfirmationOptionKind::Deny };
    match &a.selected_option_id {
        Some(id) => match offered.iter().find(|o| o.id == *id) {
            Some(option) if option.kind == wanted => {}
            Some(_) => {
                return Err(ProtocolError::not_permitted(format!(
                    "option {id:?} does not say what `approved` says"
                )));
            }
            None => return Err(ProtocolError::not_permitted(format!("option {id:?} was not offered"))),
        },
        // A denial needs no option: the agent may have offered none.
        None if !a.approved => {}
        None => return Err(ProtocolError::not_permitted("an approval must name one of the offered options")),
    }
    let confirmed = ChatToolCallConfirmedAction {
        confirmed: a.approved.then_some(ToolCallConfirmationReason::UserAction),
        reason: (!a.approved).then_some(ToolCallCancellationReason::Denied),
        ..a.clone()
    };
    Ok(chat(session, StateAction::ChatToolCallConfirmed(confirmed)))
}
