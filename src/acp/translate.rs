//! ACP session updates as AHP actions. Pure: no I/O, no clock.

use std::collections::HashSet;
use std::path::PathBuf;

use ahp_types::actions::{ChatDeltaAction, ChatReasoningAction, ChatResponsePartAction, StateAction};
use ahp_types::state::{ConfirmationOption, MarkdownResponsePart, ReasoningResponsePart, ResponsePart};
use serde_json::Value;

use super::content::{Store, text_of};
use super::emission::{Emission, TurnContext};
use super::text::pieces;
use super::tools::Tools;

/// The most characters in one delta.
pub const LONGEST_DELTA: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Voice {
    Message,
    Thought,
}

/// Translates one turn.
///
/// It follows the agent leniently: updates are read as JSON, so that one an agent invented, or a field it got wrong,
/// never costs the rest.
#[derive(Debug)]
pub struct Translator {
    turn_id: String,
    store: Store,
    tools: Tools,
    /// The part that further text of the same voice is appended to.
    open: Option<(Voice, String)>,
    parts: u64,
    visible_bytes: u64,
    ignored: u64,
    late: u64,
    finished: bool,
}

impl Translator {
    /// Starts a turn. `cwd` is the agent's working folder; `taken` are the tool call IDs that earlier turns used.
    #[must_use]
    pub fn new(context: &TurnContext, cwd: PathBuf, taken: HashSet<String>) -> Self {
        let store = Store { blob_base: context.blob_base.clone(), cwd };
        Self {
            turn_id: context.turn_id.clone(),
            tools: Tools::new(context.turn_id.clone(), store.clone(), taken),
            store,
            open: None,
            parts: 0,
            visible_bytes: 0,
            ignored: 0,
            late: 0,
            finished: false,
        }
    }

    /// Translates the `update` member of a `session/update`.
    pub fn update(&mut self, update: &Value) -> Emission {
        let mut out = Emission::default();
        if self.finished {
            self.late += 1;
            return out;
        }
        match update["sessionUpdate"].as_str().unwrap_or_default() {
            "agent_message_chunk" => self.chunk(Voice::Message, &update["content"], &mut out),
            "agent_thought_chunk" => self.chunk(Voice::Thought, &update["content"], &mut out),
            "tool_call" | "tool_call_update" => {
                if self.tools.report(update, &mut out) {
                    self.open = None;
                }
            }
            "plan" => {
                self.open = None;
                self.store.json_part(&self.turn_id, update, &mut out);
            }
            "usage_update" => {}
            "user_message_chunk"
            | "available_commands_update"
            | "current_mode_update"
            | "config_option_update"
            | "session_info_update" => self.ignored += 1,
            _ => {
                self.open = None;
                self.store.json_part(&self.turn_id, update, &mut out);
            }
        }
        out
    }

    /// Translates a permission request for the tool call `fields`; returns the ID a decision will name.
    pub fn permission(&mut self, fields: &Value, options: Vec<ConfirmationOption>) -> (Emission, String) {
        let mut out = Emission::default();
        let (id, opened) = self.tools.ask(fields, options, &mut out);
        if opened {
            self.open = None;
        }
        (out, id)
    }

    /// Follows a decision about a tool call: what the agent reported meanwhile is told now.
    pub fn decided(&mut self, tool_call_id: &str, approved: bool) -> Emission {
        let mut out = Emission::default();
        if !self.finished {
            self.tools.decided(tool_call_id, approved, &mut out);
        }
        out
    }

    /// Ends the turn: whatever comes now is dropped and counted. Open tool calls are the host's to end.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// Updates that were dropped: for tools that are over, or after the end.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.tools.dropped + self.late
    }

    /// Updates that say nothing a transcript holds, such as the list of commands.
    #[must_use]
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Bytes of text the agent has written, thoughts included.
    #[must_use]
    pub fn visible_bytes(&self) -> u64 {
        self.visible_bytes
    }

    /// The tool call IDs that are taken, for the next turn.
    #[must_use]
    pub fn into_taken(self) -> HashSet<String> {
        self.tools.into_taken()
    }

    fn chunk(&mut self, voice: Voice, block: &Value, out: &mut Emission) {
        let Some(text) = text_of(block) else {
            self.open = None;
            self.store.content_part(&self.turn_id, block, out);
            return;
        };
        if text.is_empty() {
            return;
        }
        self.visible_bytes += text.len() as u64;
        let part_id = match &self.open {
            Some((open, id)) if *open == voice => id.clone(),
            _ => self.open_part(voice, out),
        };
        for piece in pieces(text, LONGEST_DELTA) {
            let (turn_id, part_id, content) = (self.turn_id.clone(), part_id.clone(), piece.to_owned());
            out.actions.push(match voice {
                Voice::Message => {
                    StateAction::ChatDelta(ChatDeltaAction { turn_id, part_id, content, meta: None })
                }
                Voice::Thought => {
                    StateAction::ChatReasoning(ChatReasoningAction { turn_id, part_id, content, meta: None })
                }
            });
        }
    }

    fn open_part(&mut self, voice: Voice, out: &mut Emission) -> String {
        self.parts += 1;
        let id = format!("{}.part-{}", self.turn_id, self.parts);
        let content = String::new();
        let part = match voice {
            Voice::Message => ResponsePart::Markdown(MarkdownResponsePart { id: id.clone(), content }),
            Voice::Thought => ResponsePart::Reasoning(ReasoningResponsePart { id: id.clone(), content }),
        };
        out.actions.push(StateAction::ChatResponsePart(ChatResponsePartAction {
            turn_id: self.turn_id.clone(),
            part,
            meta: None,
        }));
        self.open = Some((voice, id.clone()));
        id
    }
}

#[cfg(test)]
#[path = "translate_tests.rs"]
mod tests;
