//! What can go wrong with an agent.

use std::time::Duration;

use super::text::{clip, label};

/// Why an agent cannot be used, or can no longer be used.
///
/// A turn that merely ends badly (a refusal, an error answer) is not an error here: the agent lives on, and
/// [`TurnEnd`](super::TurnEnd) says what happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// No such program, neither at the given path nor on PATH.
    #[error("program `{program}` was not found; give its full path, or install it and check PATH")]
    NotFound {
        /// The program as it was given.
        program: String,
    },
    /// The program exists and could not be started.
    #[error("program `{program}` could not be started: {reason}")]
    Spawn {
        /// The program as it was given.
        program: String,
        /// The operating system's reason.
        reason: String,
    },
    /// A variable that must never be handed to an agent, or no variable name at all.
    #[error("`{name}` cannot be passed on: {reason}")]
    Environment {
        /// The name as it was given.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A step of the start had no answer in time.
    #[error("the agent did not answer `{method}` within {} s; --start-timeout gives it longer{}", seconds(.timeout), tail(.stderr))]
    StartTimeout {
        /// The ACP method that was called.
        method: &'static str,
        /// How long it was given.
        timeout: Duration,
        /// The end of what the agent wrote to stderr.
        stderr: String,
    },
    /// The agent speaks another version of ACP.
    #[error("the agent answered with ACP version {offered}; axp speaks version 1")]
    ProtocolVersion {
        /// The version the agent chose, as it wrote it.
        offered: String,
    },
    /// The requested authentication method is not one the agent lists.
    #[error("the agent has no authentication method `{asked}`; {}", listed(.offered))]
    AuthMethod {
        /// The method that was asked for.
        asked: String,
        /// The IDs the agent lists.
        offered: Vec<String>,
    },
    /// The agent wants the user to log in first.
    #[error("the agent needs authentication: {message}; log in with the agent's own command, or pass --auth-method; {}", listed(.offered))]
    AuthRequired {
        /// What the agent said.
        message: String,
        /// The IDs the agent lists.
        offered: Vec<String>,
    },
    /// A step of the start was answered with an error.
    #[error("the agent refused `{method}`: {message} ({code})")]
    Refused {
        /// The ACP method that was called.
        method: &'static str,
        /// The JSON-RPC error code.
        code: i32,
        /// The agent's message.
        message: String,
    },
    /// A step of the start was answered with something that is not ACP.
    #[error("the agent's answer to `{method}` is not ACP version 1: {reason}")]
    BadAnswer {
        /// The ACP method that was called.
        method: &'static str,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The agent writes something else than ACP to its standard output.
    #[error(
        "the agent wrote {lines} lines that are not JSON-RPC and no message between them; is it started in its ACP mode? First line: {first}"
    )]
    Noise {
        /// How many lines in a row.
        lines: u64,
        /// The first of all skipped lines.
        first: String,
    },
    /// A line of the agent's output went over the limit.
    #[error("the agent wrote a line of more than {limit} bytes, which is the limit for one message")]
    LineTooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// The agent's process ended.
    #[error("the agent {status}{}", tail(.stderr))]
    Exited {
        /// How it ended, for example `exited with status 3`.
        status: String,
        /// The end of what it wrote to stderr, without control sequences.
        stderr: String,
    },
    /// The agent closed its standard output and lives on.
    #[error("the agent closed its standard output{}", tail(.stderr))]
    OutputClosed {
        /// The end of what it wrote to stderr, without control sequences.
        stderr: String,
    },
    /// The last turn was never answered, so another cannot start.
    #[error("the agent never answered its last prompt; it must be stopped")]
    Busy,
}

impl AgentError {
    /// Keeps an agent's message to one short line.
    pub(super) fn refused(method: &'static str, error: &agent_client_protocol::Error) -> Self {
        Self::Refused { method, code: i32::from(error.code), message: describe(error) }
    }
}

/// An error object's message, with its data where that says more.
pub(super) fn describe(error: &agent_client_protocol::Error) -> String {
    let message = label(&error.message, 500);
    let detail = match &error.data {
        Some(serde_json::Value::String(text)) => text.clone(),
        Some(serde_json::Value::Object(fields)) => ["details", "message", "error"]
            .iter()
            .find_map(|name| fields.get(*name).and_then(|value| value.as_str()))
            .unwrap_or_default()
            .to_owned(),
        _ => String::new(),
    };
    if detail.is_empty() { message } else { format!("{message}: {}", label(&detail, 500)) }
}

fn seconds(timeout: &Duration) -> String {
    format!("{}", timeout.as_secs_f64())
}

fn tail(stderr: &str) -> String {
    let stderr = stderr.trim();
    if stderr.is_empty() { String::new() } else { format!("; its last words:\n{stderr}") }
}

fn listed(offered: &[String]) -> String {
    if offered.is_empty() {
        return "it lists none".to_owned();
    }
    clip(&format!("it lists: {}", offered.join(", ")), 500)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_way_out() {
        let error = AgentError::StartTimeout {
            method: "initialize",
            timeout: Duration::from_millis(1500),
            stderr: "\nloading\n".into(),
        };
        let text = error.to_string();
        assert!(text.contains("`initialize` within 1.5 s"), "{text}");
        assert!(text.contains("--start-timeout") && text.ends_with("loading"), "{text}");

        let error = AgentError::AuthMethod { asked: "x".into(), offered: vec!["a".into(), "b".into()] };
        assert!(error.to_string().ends_with("it lists: a, b"));
        let error = AgentError::AuthMethod { asked: "x".into(), offered: vec![] };
        assert!(error.to_string().ends_with("it lists none"));
    }

    #[test]
    fn error_data_is_told() {
        let error = agent_client_protocol::Error::internal_error()
            .data(serde_json::json!({"details": "\u{1b}[31mno model"}));
        assert!(describe(&error).ends_with(": no model"));
    }
}
