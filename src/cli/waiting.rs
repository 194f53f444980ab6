//! Tool calls that wait for a maintainer, and which option to choose.

use ahp_types::StateAction;
use ahp_types::actions::ChatToolCallConfirmedAction;
use ahp_types::common::StringOrMarkdown;
use ahp_types::state::{
    ChatState, ConfirmationOption, ConfirmationOptionKind, ResponsePart, ToolCallPendingConfirmationState,
    ToolCallState,
};

use super::error::CliError;
use super::sanitize::reveal_line;

/// A tool call that waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiting<'a> {
    /// The turn it belongs to.
    pub(crate) turn: &'a str,
    /// The call and what may be answered.
    pub(crate) call: &'a ToolCallPendingConfirmationState,
}

impl<'a> Waiting<'a> {
    /// What the tool is about to do, on one line, with nothing hidden.
    pub(crate) fn title(&self) -> String {
        let title = plain(&self.call.invocation_message);
        reveal_line(if title.trim().is_empty() { &self.call.display_name } else { title }, 200)
    }

    fn options(&self) -> &'a [ConfirmationOption] {
        self.call.options.as_deref().unwrap_or_default()
    }

    /// The action that answers it.
    pub(crate) fn answer(&self, approved: bool, option: Option<&ConfirmationOption>) -> StateAction {
        StateAction::ChatToolCallConfirmed(ChatToolCallConfirmedAction {
            turn_id: self.turn.to_owned(),
            tool_call_id: self.call.tool_call_id.clone(),
            meta: None,
            approved,
            confirmed: None,
            reason: None,
            edited_tool_input: None,
            user_suggestion: None,
            reason_message: None,
            selected_option_id: option.map(|o| o.id.clone()),
        })
    }

    /// The option to answer with: the one that was named, else the one that says least. A denial may need none.
    pub(crate) fn choose(
        &self,
        approve: bool,
        named: Option<&str>,
    ) -> Result<Option<&'a ConfirmationOption>, CliError> {
        let kind = if approve { ConfirmationOptionKind::Approve } else { ConfirmationOptionKind::Deny };
        let fitting: Vec<_> = self.options().iter().filter(|o| o.kind == kind).collect();
        if let Some(named) = named {
            return match fitting.iter().find(|o| o.id == named) {
                Some(option) => Ok(Some(option)),
                None => Err(CliError::usage(format!(
                    "{:?} is not an option that {} tool call {}",
                    named,
                    if approve { "allows" } else { "denies" },
                    reveal_line(&self.call.tool_call_id, 256)
                ))
                .hint(format!("it offers {}", offered(self.options())))),
            };
        }
        let once = fitting.iter().find(|o| says(o, "once"));
        let modest = fitting.iter().find(|o| !says(o, "always"));
        match once.or(modest) {
            Some(option) => Ok(Some(option)),
            None if !approve && fitting.is_empty() => Ok(None),
            None if fitting.is_empty() => Err(CliError::conflict(format!(
                "tool call {} offers nothing that allows it",
                reveal_line(&self.call.tool_call_id, 256)
            ))),
            None => Err(CliError::usage("only options that hold for longer than this call are offered")
                .hint(format!("name one with --option; it offers {}", offered(self.options())))),
        }
    }
}

fn says(option: &ConfirmationOption, word: &str) -> bool {
    option.id.to_lowercase().contains(word) || option.label.to_lowercase().contains(word)
}

/// The options of a question, on one line.
pub(crate) fn offered(options: &[ConfirmationOption]) -> String {
    let shown = options.iter().map(|o| format!("{} ({})", reveal_line(&o.id, 80), reveal_line(&o.label, 80)));
    shown.collect::<Vec<_>>().join(" · ")
}

/// The text, whatever it is marked up as.
pub(crate) fn plain(text: &StringOrMarkdown) -> &str {
    match text {
        StringOrMarkdown::Plain(text) | StringOrMarkdown::Markdown { markdown: text } => text,
    }
}

/// The tool calls of the running turn that wait, oldest first.
pub(crate) fn waiting(chat: &ChatState) -> Vec<Waiting<'_>> {
    let Some(turn) = &chat.active_turn else { return vec![] };
    let calls = turn.response_parts.iter().filter_map(|part| match part {
        ResponsePart::ToolCall(tool) => match &tool.tool_call {
            ToolCallState::PendingConfirmation(call) => Some(Waiting { turn: &turn.id, call }),
            _ => None,
        },
        _ => None,
    });
    calls.collect()
}

#[cfg(test)]
mod tests {
    use super::super::error::ExitCode;
    use super::*;
    use serde_json::json;

    fn call(options: &[(&str, &str, &str)]) -> ToolCallPendingConfirmationState {
        let options: Vec<_> =
            options.iter().map(|(id, label, kind)| json!({"id": id, "label": label, "kind": kind})).collect();
        serde_json::from_value(json!({
            "toolCallId": "t1", "toolName": "edit", "displayName": "Edit", "invocationMessage": "Edit add.sh",
            "options": options,
        }))
        .unwrap()
    }

    fn chosen(
        options: &[(&str, &str, &str)],
        approve: bool,
        named: Option<&str>,
    ) -> Result<Option<String>, ExitCode> {
        let call = call(options);
        let waiting = Waiting { turn: "turn", call: &call };
        waiting.choose(approve, named).map(|o| o.map(|o| o.id.clone())).map_err(|e| e.code)
    }

    #[test]
    fn the_option_that_says_least_is_chosen() {
        let usual = [
            ("always", "Always allow", "approve"),
            ("p1", "Allow once", "approve"),
            ("never", "Always reject", "deny"),
            ("no", "Reject", "deny"),
        ];
        assert_eq!(chosen(&usual, true, None), Ok(Some("p1".into())));
        assert_eq!(chosen(&usual, false, None), Ok(Some("no".into())));
        assert_eq!(chosen(&usual, true, Some("always")), Ok(Some("always".into())));
        assert_eq!(chosen(&usual, true, Some("no")), Err(ExitCode::Usage));
        assert_eq!(chosen(&usual, true, Some("nothing")), Err(ExitCode::Usage));
        let bare = [("ok", "OK", "approve")];
        assert_eq!(chosen(&bare, true, None), Ok(Some("ok".into())));
        assert_eq!(chosen(&bare, false, None), Ok(None));
        assert_eq!(chosen(&[("a", "Always", "approve")], true, None), Err(ExitCode::Usage));
        assert_eq!(chosen(&[("a", "No", "deny")], true, None), Err(ExitCode::Conflict));
    }
}
