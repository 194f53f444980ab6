//! What a new agent is told about the work so far (section 8).

use ahp_types::state::{ResponsePart, ToolCallState, ToolResultContent};
use axp_protocol::ProtocolError;
use axp_protocol::canonical::hash;
use axp_protocol::method::ContextAnswer;
use axp_protocol::principal::Principal;
use axp_protocol::shape::LessonOutcome;
use serde_json::json;

use super::knowledge;
use super::state::{Session, State};

/// Lessons in a context at most.
const LESSONS: u64 = 5;

/// Composes the context text; never cut, an error says how far over it is.
pub(crate) fn compose(
    state: &State,
    session: &Session,
    actor: &Principal,
    max_chars: u64,
) -> Result<ContextAnswer, ProtocolError> {
    let context = &session.exchange.context;
    let header = json!({
        "summary": context.summary,
        "decisions": context.decisions,
        "activeFiles": context.active_files,
        "gitHead": context.git_head,
    });
    let mut text = format!(
        "AXP session {} of {}, task {}. The work so far:\n{header}\n",
        session.id, session.exchange.repository, session.exchange.task
    );
    let lessons = knowledge::search(&state.memory, actor, &session.exchange.task, LESSONS);
    if !lessons.items.is_empty() {
        text.push_str("\nLessons of this repository that may apply:\n");
        for memory in &lessons.items {
            let mark = match memory.outcome {
                LessonOutcome::Success => "worked",
                LessonOutcome::Failure => "failed",
            };
            text.push_str(&format!(
                "- {} ({mark}; when: {}): {}\n",
                memory.title, memory.trigger, memory.lesson
            ));
        }
    }
    let skip = usize::try_from(context.through_turn).unwrap_or(usize::MAX);
    for turn in session.chat.turns.iter().skip(skip) {
        text.push_str("\n[user]\n");
        text.push_str(&turn.message.text);
        text.push('\n');
        for part in &turn.response_parts {
            write_part(part, &mut text);
        }
    }
    let chars = text.chars().count() as u64;
    if chars > max_chars {
        return Err(ProtocolError::context(format!(
            "the context has {chars} characters, {} more than the {max_chars} asked for; ask for more with maxChars \
             (up to 200000) or shorten it: _axp/compact proposes a summary, _axp/acceptCompaction takes it",
            chars - max_chars
        ))
        .with_data(json!({ "chars": chars, "maxChars": max_chars, "over": chars - max_chars })));
    }
    let prefix_hash = hash(&json!({ "text": text }))
        .map_err(|e| ProtocolError::internal(format!("the context cannot be hashed: {e}")))?;
    Ok(ContextAnswer {
        text,
        prefix_hash,
        revision: context.revision,
        through_turn: context.through_turn,
        memory_total: lessons.total,
        memory_included: lessons.items.len() as u64,
    })
}

fn write_part(part: &ResponsePart, text: &mut String) {
    match part {
        ResponsePart::Markdown(part) if !part.content.is_empty() => {
            text.push_str("[assistant]\n");
            text.push_str(&part.content);
            text.push('\n');
        }
        ResponsePart::ToolCall(call) => {
            if let ToolCallState::Completed(tool) = &call.tool_call {
                let outcome = if tool.success { "done" } else { "failed" };
                text.push_str(&format!("[tool {}: {outcome}]\n", tool.display_name));
                for content in tool.content.iter().flatten() {
                    if let ToolResultContent::Text(content) = content {
                        text.push_str(&content.text);
                        text.push('\n');
                    }
                }
            }
        }
        _ => {}
    }
}
