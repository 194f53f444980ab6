//! Tool calls: a line for what is done, a question where one waits, and the end of what came out.

use ahp_types::state::{
    ConfirmationOption, ToolCallCancellationReason, ToolCallPendingConfirmationState, ToolCallState,
    ToolInput, ToolResultContent,
};
use axp_protocol::scalar::Id;

use super::Page;
use crate::cli::money::{bytes, count};
use crate::cli::output::Style;
use crate::cli::profile::quoted;
use crate::cli::sanitize::{one_line, reveal, reveal_line, strip};
use crate::cli::waiting::{offered, plain};

/// Lines of output that are shown of a tool.
const TAIL: usize = 6;
/// Lines of input that are shown with a question.
const INPUT: usize = 12;
/// Longest line of either, characters.
const WIDTH: usize = 160;

/// How far a tool call has been shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    #[default]
    Unseen,
    Asked,
    Running,
    Over,
}

/// What has been shown of a tool call.
#[derive(Debug, Default)]
pub(super) struct ToolShown {
    phase: Phase,
    titled: bool,
    asked: bool,
    /// Whether the question, if there was one, has been shown with its answer.
    answered: bool,
}

/// How a question is put.
#[derive(Debug)]
pub(super) struct Questions<'a> {
    pub(super) session: &'a Id,
    pub(super) invocation: Option<&'a str>,
    /// Whether more than one waits, so that each must be named.
    pub(super) several: bool,
}

/// Whether a tool call waits for permission.
pub(super) fn waits(call: &ToolCallState) -> bool {
    matches!(call, ToolCallState::PendingConfirmation(_))
}

impl ToolShown {
    /// Shows what is new of the call.
    pub(super) fn update(
        &mut self,
        style: Style,
        part: usize,
        call: &ToolCallState,
        questions: &Questions<'_>,
        page: &mut Page,
    ) {
        let phase = match call {
            ToolCallState::Streaming(_) | ToolCallState::Unknown(_) => Phase::Unseen,
            ToolCallState::PendingConfirmation(_) => Phase::Asked,
            ToolCallState::Running(_)
            | ToolCallState::AuthRequired(_)
            | ToolCallState::PendingResultConfirmation(_) => Phase::Running,
            ToolCallState::Completed(_) | ToolCallState::Cancelled(_) => Phase::Over,
        };
        if phase == self.phase {
            return;
        }
        self.phase = phase;
        let title = title(call);
        if !self.titled {
            page.line(&format!("{} {title}", style.accent("●")));
            page.last_tool = Some(part);
            self.titled = true;
        }
        match call {
            ToolCallState::PendingConfirmation(call) => {
                question(style, call, questions, page);
                self.asked = true;
                self.answered = false;
            }
            ToolCallState::Running(call) => {
                self.answered(style, call.selected_option.as_ref(), true, page);
            }
            ToolCallState::Completed(call) => {
                self.answered(style, call.selected_option.as_ref(), true, page);
                let said = reveal_line(plain(&call.past_tense_message), 200);
                // The line above says already what was done.
                let said = match (said.is_empty() || said == title, page.last_tool == Some(part)) {
                    (true, true) if call.success => "done".to_owned(),
                    (true, true) => "failed".to_owned(),
                    (true, false) => title,
                    (false, _) => said,
                };
                let mark = if call.success { style.good("✓") } else { style.bad("✗") };
                page.line(&format!("  {mark} {said}"));
                output(style, call.content.as_deref().unwrap_or_default(), page);
            }
            ToolCallState::Cancelled(call) => {
                self.answered(style, call.selected_option.as_ref(), false, page);
                if call.reason == ToolCallCancellationReason::Skipped {
                    page.line(&format!("  {}", style.dim("– not done")));
                }
            }
            _ => {}
        }
    }

    /// Says how a question was answered, once.
    fn answered(
        &mut self,
        style: Style,
        option: Option<&ConfirmationOption>,
        allowed: bool,
        page: &mut Page,
    ) {
        if self.answered || !self.asked && option.is_none() {
            return;
        }
        self.answered = true;
        let label = option.map(|o| format!(" ({})", one_line(&o.label, 80))).unwrap_or_default();
        let line = if allowed { style.good("allowed") } else { style.bad("not allowed") };
        page.line(&format!("  {line}{label}"));
    }
}

fn title(call: &ToolCallState) -> String {
    let (message, name) = match call {
        ToolCallState::Streaming(c) => (c.invocation_message.as_ref(), &c.display_name),
        ToolCallState::PendingConfirmation(c) => (Some(&c.invocation_message), &c.display_name),
        ToolCallState::Running(c) => (Some(&c.invocation_message), &c.display_name),
        ToolCallState::AuthRequired(c) => (Some(&c.invocation_message), &c.display_name),
        ToolCallState::PendingResultConfirmation(c) => (Some(&c.invocation_message), &c.display_name),
        ToolCallState::Completed(c) => (Some(&c.invocation_message), &c.display_name),
        ToolCallState::Cancelled(c) => (Some(&c.invocation_message), &c.display_name),
        ToolCallState::Unknown(_) => return "a tool".into(),
    };
    let message = message.map(plain).filter(|m| !m.trim().is_empty());
    reveal_line(message.unwrap_or(name), 200)
}

fn question(
    style: Style,
    call: &ToolCallPendingConfirmationState,
    questions: &Questions<'_>,
    page: &mut Page,
) {
    let asks = call.confirmation_title.as_ref().map(|t| reveal_line(plain(t), 200)).filter(|t| !t.is_empty());
    page.line(&format!("  {}", style.ask(&format!("? {}", asks.as_deref().unwrap_or("may it?")))));
    match &call.tool_input {
        Some(ToolInput::Inline(input)) => {
            let input = reveal(input.trim_end());
            let lines: Vec<_> = input.lines().collect();
            for line in lines.iter().take(INPUT) {
                page.line(&style.dim(&format!("  │ {}", wide(line))));
            }
            if lines.len() > INPUT {
                let more = count((lines.len() - INPUT) as u64);
                page.line(&style.dim(&format!("  │ … {more} more lines")));
            }
        }
        Some(ToolInput::ContentRef(input)) => {
            let size = input.size_hint.and_then(|n| u64::try_from(n).ok()).map(bytes).unwrap_or_default();
            page.line(&style.dim(&format!("  │ a long input, {size}")));
        }
        None => {}
    }
    page.line(&format!("  {}", offered(call.options.as_deref().unwrap_or_default())));
    if let Some(axp) = questions.invocation {
        let session = questions.session;
        let tool = if questions.several {
            format!(" --tool {}", reveal(&quoted(&call.tool_call_id)))
        } else {
            String::new()
        };
        page.line(&format!("  {axp} approve {session}{tool}"));
        page.line(&format!("  {axp} deny {session}{tool}"));
    }
}

/// The last lines of what a tool gave out.
fn output(style: Style, content: &[ToolResultContent], page: &mut Page) {
    let mut lines: Vec<String> = vec![];
    for item in content {
        match item {
            ToolResultContent::Text(t) => {
                lines.extend(strip(t.text.trim_end()).lines().map(|line| format!("│ {}", wide(line))));
            }
            ToolResultContent::Resource(r) => {
                let kind = one_line(r.content_type.as_deref().unwrap_or("content"), 80);
                let size = r.size_hint.and_then(|n| u64::try_from(n).ok()).map(bytes).unwrap_or_default();
                lines.push(format!("▪ {kind}, {size}"));
            }
            _ => {}
        }
    }
    let cut = lines.len().saturating_sub(TAIL);
    if cut > 0 {
        page.line(&style.dim(&format!("  │ … {} lines before", count(cut as u64))));
    }
    for line in lines.iter().skip(cut) {
        page.line(&style.dim(&format!("  {line}")));
    }
}

fn wide(line: &str) -> String {
    if line.chars().count() <= WIDTH {
        return line.to_owned();
    }
    line.chars().take(WIDTH - 1).chain(['…']).collect()
}
