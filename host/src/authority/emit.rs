//! What an executor may add to its turn (section 7, `emit`).

use std::collections::HashMap;

use ahp_types::StateAction;
use ahp_types::state::{ConfirmationOption, ResponsePart, ToolCallConfirmationReason, ToolCallState};
use axp_protocol::ProtocolError;
use axp_protocol::channel::{Channel, parse_blob_uri};
use axp_protocol::method::params;
use axp_protocol::principal::Principal;
use serde_json::Value;

use super::decide::{Decision, Lookup, Refusal};
use super::lease::fenced;
use super::state::Session;

/// What an ID in the turn stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Markdown,
    Reasoning,
    Tool(Tool),
}

/// How far a tool call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    Streaming,
    Pending,
    Running,
    Over,
}

/// The turn's parts with what this call has added so far.
struct View<'a> {
    parts: &'a [ResponsePart],
    changed: HashMap<&'a str, Part>,
}

impl<'a> View<'a> {
    fn get(&self, id: &str) -> Option<Part> {
        // The newest parts are the ones that grow.
        self.changed.get(id).copied().or_else(|| self.parts.iter().rev().find_map(|part| known(part, id)))
    }

    fn tool(&self, id: &str) -> Result<Tool, ProtocolError> {
        match self.get(id) {
            Some(Part::Tool(tool)) => Ok(tool),
            _ => Err(ProtocolError::conflict(format!("no tool call {id:?} in this turn"))),
        }
    }

    fn add(&mut self, id: &'a str, part: Part) -> Result<(), ProtocolError> {
        if id.is_empty() || id.len() > 256 {
            return Err(ProtocolError::invalid_params("the ID of a part has 1 to 256 bytes"));
        }
        if self.get(id).is_some() {
            return Err(ProtocolError::conflict(format!("part {id:?} is in this turn already")));
        }
        self.changed.insert(id, part);
        Ok(())
    }
}

fn known(part: &ResponsePart, id: &str) -> Option<Part> {
    match part {
        ResponsePart::Markdown(p) if p.id == id => Some(Part::Markdown),
        ResponsePart::Reasoning(p) if p.id == id => Some(Part::Reasoning),
        ResponsePart::ToolCall(call) => {
            let (found, tool) = match &call.tool_call {
                ToolCallState::Streaming(t) => (&t.tool_call_id, Tool::Streaming),
                ToolCallState::PendingConfirmation(t) => (&t.tool_call_id, Tool::Pending),
                ToolCallState::Running(t) => (&t.tool_call_id, Tool::Running),
                ToolCallState::AuthRequired(t) => (&t.tool_call_id, Tool::Over),
                ToolCallState::PendingResultConfirmation(t) => (&t.tool_call_id, Tool::Over),
                ToolCallState::Completed(t) => (&t.tool_call_id, Tool::Over),
                ToolCallState::Cancelled(t) => (&t.tool_call_id, Tool::Over),
                ToolCallState::Unknown(_) => return None,
            };
            (found == id).then_some(Part::Tool(tool))
        }
        _ => None,
    }
}

/// Decides `_axp/emit`.
pub(crate) fn emit(
    session: &Session,
    lookup: &mut dyn Lookup,
    actor: &Principal,
    p: &params::Emit,
    now: u64,
) -> Result<Decision, Refusal> {
    let lease = fenced(session, actor, p.epoch.get(), now)?;
    let reservation = session.exchange.reservation.as_ref().filter(|r| r.epoch == lease.epoch);
    let Some(reservation) = reservation else {
        return Err(ProtocolError::budget("nothing is reserved for a turn").into());
    };
    let Some(turn) = session.chat.active_turn.as_ref().filter(|t| t.id == reservation.turn_id.as_str())
    else {
        return Err(ProtocolError::budget("the reserved turn is over").into());
    };
    let mut view = View { parts: &turn.response_parts, changed: HashMap::new() };
    for action in p.actions.iter() {
        check(&mut view, session, lookup, &turn.id, &action.0)?;
    }
    let channel = Channel::Chat(session.id.clone());
    let events = p.actions.iter().map(|a| (channel.clone(), (*a.0).clone().into())).collect();
    Ok(Decision::new(events, &())?)
}

fn check<'a>(
    view: &mut View<'a>,
    session: &Session,
    lookup: &mut dyn Lookup,
    turn_id: &str,
    action: &'a StateAction,
) -> Result<(), Refusal> {
    let this_turn = |id: &str| {
        if id == turn_id {
            Ok(())
        } else {
            Err(ProtocolError::conflict(format!("turn {turn_id} is active, not {id:?}")))
        }
    };
    let grows = |view: &View<'_>, id: &str, part: Part| {
        if view.get(id) == Some(part) {
            Ok(())
        } else {
            Err(ProtocolError::conflict(format!("no part {id:?} of that kind in this turn")))
        }
    };
    match action {
        StateAction::ChatDelta(a) => {
            this_turn(&a.turn_id)?;
            grows(view, &a.part_id, Part::Markdown)?;
            return Ok(());
        }
        StateAction::ChatReasoning(a) => {
            this_turn(&a.turn_id)?;
            grows(view, &a.part_id, Part::Reasoning)?;
            return Ok(());
        }
        StateAction::ChatResponsePart(a) => {
            this_turn(&a.turn_id)?;
            match &a.part {
                ResponsePart::Markdown(part) => view.add(&part.id, Part::Markdown)?,
                ResponsePart::Reasoning(part) => view.add(&part.id, Part::Reasoning)?,
                ResponsePart::ContentRef(_) => {}
                _ => return Err(ProtocolError::not_permitted("a part of this kind cannot be emitted").into()),
            }
        }
        StateAction::ChatToolCallStart(a) => {
            this_turn(&a.turn_id)?;
            view.add(&a.tool_call_id, Part::Tool(Tool::Streaming))?;
        }
        StateAction::ChatToolCallDelta(a) => {
            this_turn(&a.turn_id)?;
            if view.tool(&a.tool_call_id)? != Tool::Streaming {
                return Err(
                    ProtocolError::conflict(format!("tool call {:?} is ready", a.tool_call_id)).into()
                );
            }
        }
        StateAction::ChatToolCallReady(a) => {
            this_turn(&a.turn_id)?;
            if view.tool(&a.tool_call_id)? == Tool::Over {
                return Err(ProtocolError::conflict(format!("tool call {:?} is over", a.tool_call_id)).into());
            }
            let options: &[ConfirmationOption] = a.options.as_deref().unwrap_or_default();
            let next = match &a.confirmed {
                Some(ToolCallConfirmationReason::NotNeeded) if options.is_empty() => Tool::Running,
                None if !options.is_empty() => Tool::Pending,
                _ => {
                    return Err(ProtocolError::not_permitted(
                        "a tool call is ready without need of confirmation, or with options to confirm it",
                    )
                    .into());
                }
            };
            let ids: std::collections::HashSet<_> = options.iter().map(|o| &o.id).collect();
            if ids.len() != options.len() {
                return Err(ProtocolError::invalid_params("two options have the same ID").into());
            }
            if a.editable == Some(true) {
                return Err(ProtocolError::not_permitted("a tool's input cannot be edited here").into());
            }
            view.changed.insert(&a.tool_call_id, Part::Tool(next));
        }
        StateAction::ChatToolCallContentChanged(a) => {
            this_turn(&a.turn_id)?;
            running(view, &a.tool_call_id)?;
        }
        StateAction::ChatToolCallComplete(a) => {
            this_turn(&a.turn_id)?;
            running(view, &a.tool_call_id)?;
            if a.requires_result_confirmation == Some(true) {
                return Err(ProtocolError::not_permitted("results need no confirmation here").into());
            }
            view.changed.insert(&a.tool_call_id, Part::Tool(Tool::Over));
        }
        _ => return Err(ProtocolError::not_permitted("this action cannot be emitted").into()),
    }
    let value = serde_json::to_value(action)
        .map_err(|e| ProtocolError::internal(format!("an action cannot be written: {e}")))?;
    require_blob_uris(session, lookup, &value)
}

fn running(view: &View<'_>, id: &str) -> Result<(), ProtocolError> {
    match view.tool(id)? {
        Tool::Running => Ok(()),
        _ => Err(ProtocolError::conflict(format!("tool call {id:?} is not running"))),
    }
}

/// Every `uri` inside must be a blob of this session.
pub(crate) fn require_blob_uris(
    session: &Session,
    lookup: &mut dyn Lookup,
    value: &Value,
) -> Result<(), Refusal> {
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| require_blob_uris(session, lookup, item)),
        Value::Object(map) => {
            for (key, item) in map {
                if key == "uri"
                    && let Value::String(uri) = item
                {
                    let blob = parse_blob_uri(uri).filter(|(id, _)| *id == session.id);
                    let Some((_, digest)) = blob else {
                        return Err(
                            ProtocolError::not_permitted("a URI that is no blob of this session").into()
                        );
                    };
                    if lookup.meta(&session.id, &digest)?.is_none() {
                        return Err(ProtocolError::not_found(format!(
                            "no blob {digest} in session {}",
                            session.id
                        ))
                        .into());
                    }
                } else {
                    require_blob_uris(session, lookup, item)?;
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}
