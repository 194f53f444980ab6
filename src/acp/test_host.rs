//! A host that objects, for the translator's tests.

use std::collections::HashSet;

use ahp::reducers::{ReduceOutcome, apply_action_to_chat};
use ahp_types::actions::{ChatToolCallConfirmedAction, StateAction};
use ahp_types::state::{ChatState, ResponsePart, ToolCallConfirmationReason, ToolCallState};
use serde_json::{Value, json};

use super::emission::Emission;
use super::translate::LONGEST_DELTA;

pub(super) const BASE: &str = "axp-blob:/ahp-session%3A%2Fs/";

/// A host that applies what it is given, and objects to whatever a real one would refuse.
pub(super) struct Host {
    state: ChatState,
    blobs: HashSet<String>,
    pub(super) ids: HashSet<String>,
}

impl Host {
    pub(super) fn new() -> Self {
        let state = json!({"resource": "ahp-chat:/s", "title": "", "status": 0, "turns": [],
            "modifiedAt": "2026-01-01T00:00:00.000Z"});
        let mut host = Self {
            state: serde_json::from_value(state).unwrap(),
            blobs: HashSet::new(),
            ids: HashSet::new(),
        };
        host.start("t1");
        host
    }

    pub(super) fn start(&mut self, turn_id: &str) {
        let started = json!({"type": "chat/turnStarted", "turnId": turn_id, "startedAt": "2026-01-01T00:00:00.000Z",
            "message": {"text": "do", "origin": {"kind": "user"}}});
        self.apply(&serde_json::from_value(started).unwrap());
    }

    fn apply(&mut self, action: &StateAction) {
        assert_eq!(apply_action_to_chat(&mut self.state, action), ReduceOutcome::Applied, "{action:?}");
    }

    pub(super) fn accept(&mut self, emission: Emission) -> usize {
        for blob in &emission.blobs {
            assert_eq!(blob.uri, format!("{BASE}{}", blob.digest));
            self.blobs.insert(blob.uri.clone());
        }
        for action in &emission.actions {
            self.check(action);
            self.apply(action);
        }
        emission.actions.len()
    }

    fn check(&mut self, action: &StateAction) {
        let json = serde_json::to_value(action).unwrap();
        assert!(json.to_string().len() < 48 * 1024, "an action has to fit into a frame");
        self.check_uris(&json);
        match action {
            StateAction::ChatResponsePart(a) => match &a.part {
                ResponsePart::Markdown(part) => assert!(self.ids.insert(part.id.clone())),
                ResponsePart::Reasoning(part) => assert!(self.ids.insert(part.id.clone())),
                ResponsePart::ContentRef(_) => {}
                other => panic!("no such part may be emitted: {other:?}"),
            },
            StateAction::ChatDelta(a) => {
                assert!(self.has(|p| matches!(p, ResponsePart::Markdown(m) if m.id == a.part_id)));
                assert!(!a.content.is_empty() && a.content.chars().count() <= LONGEST_DELTA);
            }
            StateAction::ChatReasoning(a) => {
                assert!(self.has(|p| matches!(p, ResponsePart::Reasoning(m) if m.id == a.part_id)));
                assert!(!a.content.is_empty() && a.content.chars().count() <= LONGEST_DELTA);
            }
            StateAction::ChatToolCallStart(a) => assert!(self.ids.insert(a.tool_call_id.clone())),
            StateAction::ChatToolCallReady(a) => {
                assert!(!matches!(
                    self.tool(&a.tool_call_id),
                    ToolCallState::Completed(_) | ToolCallState::Cancelled(_)
                ));
                assert_eq!(a.options.is_none(), a.confirmed == Some(ToolCallConfirmationReason::NotNeeded));
            }
            StateAction::ChatToolCallContentChanged(a) => {
                assert!(matches!(self.tool(&a.tool_call_id), ToolCallState::Running(_)));
            }
            StateAction::ChatToolCallComplete(a) => {
                assert!(matches!(self.tool(&a.tool_call_id), ToolCallState::Running(_)));
            }
            other => panic!("no such action may be emitted: {other:?}"),
        }
    }

    fn check_uris(&self, value: &Value) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                if name == "uri" {
                    assert!(self.blobs.contains(value.as_str().unwrap()), "{value}");
                }
                self.check_uris(value);
            }),
            Value::Array(items) => items.iter().for_each(|item| self.check_uris(item)),
            _ => {}
        }
    }

    pub(super) fn parts(&self) -> &[ResponsePart] {
        &self.state.active_turn.as_ref().unwrap().response_parts
    }

    fn has(&self, wanted: impl Fn(&ResponsePart) -> bool) -> bool {
        self.parts().iter().any(wanted)
    }

    pub(super) fn tool(&self, id: &str) -> &ToolCallState {
        self.parts()
            .iter()
            .find_map(|part| match part {
                ResponsePart::ToolCall(call) if tool_id(&call.tool_call) == id => Some(&call.tool_call),
                _ => None,
            })
            .unwrap()
    }

    pub(super) fn decide(&mut self, id: &str, approved: bool) {
        assert!(matches!(self.tool(id), ToolCallState::PendingConfirmation(_)));
        let action = StateAction::ChatToolCallConfirmed(ChatToolCallConfirmedAction {
            turn_id: self.state.active_turn.as_ref().unwrap().id.clone(),
            tool_call_id: id.to_owned(),
            meta: None,
            approved,
            confirmed: approved.then_some(ToolCallConfirmationReason::UserAction),
            reason: None,
            edited_tool_input: None,
            user_suggestion: None,
            reason_message: None,
            selected_option_id: None,
        });
        self.apply(&action);
    }

    pub(super) fn text(&self) -> String {
        let texts = self.parts().iter().filter_map(|part| match part {
            ResponsePart::Markdown(part) => Some(part.content.as_str()),
            _ => None,
        });
        texts.collect()
    }
}

fn tool_id(call: &ToolCallState) -> &str {
    match call {
        ToolCallState::Streaming(call) => &call.tool_call_id,
        ToolCallState::PendingConfirmation(call) => &call.tool_call_id,
        ToolCallState::Running(call) => &call.tool_call_id,
        ToolCallState::Completed(call) => &call.tool_call_id,
        ToolCallState::Cancelled(call) => &call.tool_call_id,
        other => panic!("{other:?}"),
    }
}
