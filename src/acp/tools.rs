//! Tool calls: from ACP's loose reports to AHP's strict life cycle.
//!
//! A host takes a result only for a running tool, and a tool's ID only once. Agents report results without a start,
//! ask for permission before they announce anything, and go on talking about tools that were denied. What the host
//! would refuse is held back or dropped here.

use std::collections::{HashMap, HashSet};

use ahp_types::actions::{
    ChatToolCallCompleteAction, ChatToolCallContentChangedAction, ChatToolCallReadyAction,
    ChatToolCallStartAction, StateAction,
};
use ahp_types::common::StringOrMarkdown;
use ahp_types::state::{ConfirmationOption, ToolCallConfirmationReason, ToolCallResult, ToolResultContent};
use serde_json::{Value, json};

use super::content::Store;
use super::emission::{Emission, hex_digest};
use super::text::{label, strip_controls};

const LONGEST_TITLE: usize = 256;
const LONGEST_NAME: usize = 64;
const LONGEST_ID: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Announced; it may still turn out to need a permission.
    Announced,
    /// Waits for a decision. What the agent reports meanwhile is kept until then.
    Asked,
    Running,
    /// Completed, failed or denied.
    Over,
}

#[derive(Debug)]
struct Tool {
    id: String,
    phase: Phase,
    title: String,
    input: Option<Value>,
    content: Option<Vec<Value>>,
    output: Option<Value>,
    /// Content that has not been emitted.
    fresh: bool,
    /// The final status, once reported.
    end: Option<bool>,
    waiting: Vec<Vec<ConfirmationOption>>,
}

/// The tool calls of one turn.
#[derive(Debug)]
pub(super) struct Tools {
    turn_id: String,
    store: Store,
    calls: HashMap<String, Tool>,
    /// AHP IDs that are taken, in this turn and in earlier ones of the same agent.
    taken: HashSet<String>,
    pub(super) dropped: u64,
}

impl Tools {
    pub(super) fn new(turn_id: String, store: Store, taken: HashSet<String>) -> Self {
        Self { turn_id, store, calls: HashMap::new(), taken, dropped: 0 }
    }

    /// The IDs that are taken, for the next turn.
    pub(super) fn into_taken(self) -> HashSet<String> {
        self.taken
    }

    /// Applies a `tool_call` or `tool_call_update`; returns whether it opened a tool call.
    pub(super) fn report(&mut self, fields: &Value, out: &mut Emission) -> bool {
        let Some(acp_id) = fields["toolCallId"].as_str() else {
            self.dropped += 1;
            return false;
        };
        if self.calls.get(acp_id).is_some_and(|tool| tool.phase == Phase::Over) {
            self.dropped += 1;
            return false;
        }
        let opened = self.open(acp_id, fields, out);
        let status = fields["status"].as_str().unwrap_or_default();
        if let Some(tool) = self.calls.get_mut(acp_id) {
            tool.merge(fields);
            tool.end = match status {
                "completed" => Some(true),
                "failed" => Some(false),
                _ => tool.end,
            };
            if tool.phase == Phase::Announced && (status == "in_progress" || tool.end.is_some()) {
                let ready = tool.ready(&self.turn_id, &self.store, Need::Nothing, out);
                out.actions.push(ready);
                tool.phase = Phase::Running;
            }
            tool.proceed(&self.turn_id, &self.store, out);
        }
        opened
    }

    /// Asks for a permission; returns the AHP ID a decision will name, and whether it opened a tool call.
    ///
    /// A request for a tool that is over starts a new call: its ID is spent, and the maintainer has to be asked.
    pub(super) fn ask(
        &mut self,
        fields: &Value,
        options: Vec<ConfirmationOption>,
        out: &mut Emission,
    ) -> (String, bool) {
        let acp_id = fields["toolCallId"].as_str().unwrap_or("permission");
        if self.calls.get(acp_id).is_some_and(|tool| tool.phase == Phase::Over) {
            self.calls.remove(acp_id);
        }
        let opened = self.open(acp_id, fields, out);
        let Some(tool) = self.calls.get_mut(acp_id) else {
            return (acp_id.to_owned(), opened);
        };
        tool.merge(fields);
        if tool.phase == Phase::Asked {
            tool.waiting.push(options);
        } else {
            let ready = tool.ready(&self.turn_id, &self.store, Need::Choice(options), out);
            out.actions.push(ready);
            tool.phase = Phase::Asked;
            // Asking in the middle of a run clears what the host shows of the tool.
            tool.fresh |= tool.content.as_ref().is_some_and(|items| !items.is_empty());
        }
        (tool.id.clone(), opened)
    }

    /// Follows the host, where a decision has set the tool running or ended it.
    pub(super) fn decided(&mut self, id: &str, approved: bool, out: &mut Emission) {
        let Some(tool) = self.calls.values_mut().find(|tool| tool.id == id && tool.phase == Phase::Asked)
        else {
            return;
        };
        if !approved {
            tool.phase = Phase::Over;
        } else if tool.waiting.is_empty() {
            tool.phase = Phase::Running;
            tool.proceed(&self.turn_id, &self.store, out);
        } else {
            let options = tool.waiting.remove(0);
            let ready = tool.ready(&self.turn_id, &self.store, Need::Choice(options), out);
            out.actions.push(ready);
        }
    }

    fn open(&mut self, acp_id: &str, fields: &Value, out: &mut Emission) -> bool {
        if self.calls.contains_key(acp_id) {
            return false;
        }
        let id = self.free_id(acp_id);
        let kind = fields["kind"].as_str().filter(|kind| *kind != "other");
        let name = fields["name"].as_str().or(kind).or(fields["title"].as_str()).unwrap_or("tool");
        let title = fields["title"].as_str().map(|title| label(title, LONGEST_TITLE)).unwrap_or_default();
        let title = if title.is_empty() { label(name, LONGEST_TITLE) } else { title };
        out.actions.push(StateAction::ChatToolCallStart(ChatToolCallStartAction {
            turn_id: self.turn_id.clone(),
            tool_call_id: id.clone(),
            meta: None,
            tool_name: label(name, LONGEST_NAME),
            display_name: title.clone(),
            intention: None,
            contributor: None,
        }));
        let tool = Tool {
            id,
            phase: Phase::Announced,
            title,
            input: None,
            content: None,
            output: None,
            fresh: false,
            end: None,
            waiting: Vec::new(),
        };
        self.calls.insert(acp_id.to_owned(), tool);
        true
    }

    /// The agent's own ID where possible. Some agents count from one in every turn, and an ID is taken only once.
    fn free_id(&mut self, acp_id: &str) -> String {
        let plain = !acp_id.is_empty() && acp_id.len() <= LONGEST_ID && strip_controls(acp_id) == acp_id;
        let base =
            if plain { acp_id.to_owned() } else { format!("tool-{}", &hex_digest(acp_id.as_bytes())[..16]) };
        let mut id = base.clone();
        let mut count = 1u64;
        while !self.taken.insert(id.clone()) {
            count += 1;
            id = format!("{base}~{count}");
        }
        id
    }
}

enum Need {
    Nothing,
    Choice(Vec<ConfirmationOption>),
}

impl Tool {
    fn merge(&mut self, fields: &Value) {
        if let Some(title) = fields["title"].as_str() {
            let title = label(title, LONGEST_TITLE);
            if !title.is_empty() {
                self.title = title;
            }
        }
        if !fields["rawInput"].is_null() {
            self.input = Some(fields["rawInput"].clone());
        }
        if let Some(items) = fields["content"].as_array() {
            let changed = self.content.as_ref() != Some(items);
            self.fresh |= changed && !(items.is_empty() && self.content.is_none());
            self.content = Some(items.clone());
        }
        if !fields["rawOutput"].is_null() {
            self.output = Some(fields["rawOutput"].clone());
        }
    }

    /// Emits what a running tool has to tell.
    fn proceed(&mut self, turn_id: &str, store: &Store, out: &mut Emission) {
        if self.phase != Phase::Running {
            return;
        }
        if let Some(success) = self.end {
            let content = self.result_content(store, out);
            let error = (!success).then(|| json!({ "message": failure(content.as_deref()) }));
            out.actions.push(StateAction::ChatToolCallComplete(ChatToolCallCompleteAction {
                turn_id: turn_id.to_owned(),
                tool_call_id: self.id.clone(),
                meta: None,
                result: ToolCallResult {
                    success,
                    past_tense_message: StringOrMarkdown::Plain(self.title.clone()),
                    content,
                    structured_content: None,
                    error,
                },
                requires_result_confirmation: None,
            }));
            self.phase = Phase::Over;
        } else if self.fresh {
            self.fresh = false;
            let content = store.tool_content(self.content.as_deref().unwrap_or_default(), out);
            out.actions.push(StateAction::ChatToolCallContentChanged(ChatToolCallContentChangedAction {
                turn_id: turn_id.to_owned(),
                tool_call_id: self.id.clone(),
                meta: None,
                content,
            }));
        }
    }

    fn result_content(&self, store: &Store, out: &mut Emission) -> Option<Vec<ToolResultContent>> {
        match (&self.content, &self.output) {
            (Some(items), _) if !items.is_empty() => Some(store.tool_content(items, out)),
            (_, Some(output)) => Some(vec![store.raw_output(output, out)]),
            _ => None,
        }
    }

    fn ready(&self, turn_id: &str, store: &Store, need: Need, out: &mut Emission) -> StateAction {
        let title = StringOrMarkdown::Plain(self.title.clone());
        let (confirmed, options) = match need {
            Need::Nothing => (Some(ToolCallConfirmationReason::NotNeeded), None),
            Need::Choice(options) => (None, Some(options)),
        };
        let asks = options.is_some();
        let items = self.content.as_deref().unwrap_or_default();
        StateAction::ChatToolCallReady(ChatToolCallReadyAction {
            turn_id: turn_id.to_owned(),
            tool_call_id: self.id.clone(),
            meta: None,
            contributor: None,
            intention: None,
            invocation_message: title.clone(),
            tool_input: self.input.as_ref().map(|input| store.tool_input(input, out)),
            confirmation_title: asks.then_some(title),
            risk_assessment: None,
            edits: if asks { store.previews(items, out) } else { None },
            editable: None,
            confirmed,
            options,
        })
    }
}

fn failure(content: Option<&[ToolResultContent]>) -> String {
    let text = content.unwrap_or_default().iter().find_map(|item| match item {
        ToolResultContent::Text(text) => Some(label(&text.text, 500)),
        _ => None,
    });
    text.filter(|text| !text.is_empty()).unwrap_or_else(|| "the tool call failed".to_owned())
}
