//! What a command ends with when it does not end well: a sentence, what to do next, and an exit code.

use std::fmt::Write as _;
use std::io::Write as _;

use axp_protocol::codes;

use super::output::{Color, Style};
use super::sanitize::strip;
use crate::client::ClientError;

/// The exit codes of `axp`, which scripts may rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// Done.
    Done = 0,
    /// Failed; a turn that ended in an error, too.
    Failed = 1,
    /// Used wrongly: arguments, profile or set-up.
    Usage = 2,
    /// This profile may not do that.
    NotPermitted = 3,
    /// Something is there already, or has changed meanwhile.
    Conflict = 4,
    /// The grant does not cover it.
    Budget = 5,
    /// The host cannot be reached.
    Unreachable = 6,
    /// Interrupted from the keyboard.
    Interrupted = 130,
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code as u8)
    }
}

/// Why a command failed, said for a person.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CliError {
    /// What happened, to which thing. Empty when nothing is to be said.
    pub message: String,
    /// What to do next.
    pub hint: Option<String>,
    /// How the process ends.
    pub code: ExitCode,
    /// The exit code of a command that was run for somebody, which is passed on.
    pub passed_on: Option<u8>,
}

impl CliError {
    /// An error with this code and sentence.
    pub(crate) fn new(code: ExitCode, message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, code, passed_on: None }
    }

    /// [`ExitCode::Failed`].
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(ExitCode::Failed, message)
    }

    /// [`ExitCode::Usage`].
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(ExitCode::Usage, message)
    }

    /// [`ExitCode::Conflict`].
    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(ExitCode::Conflict, message)
    }

    /// Ends without a word: whoever interrupted knows.
    pub(crate) fn interrupted() -> Self {
        Self::new(ExitCode::Interrupted, "")
    }

    /// Ends without a word: whoever read our output has seen enough.
    pub(crate) fn closed_pipe() -> Self {
        Self::new(ExitCode::Done, "")
    }

    /// The same error with what to do next.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same error with the exit code of another command.
    #[must_use]
    pub(crate) fn exit(mut self, code: u8) -> Self {
        self.passed_on = Some(code);
        self
    }

    /// How the process ends.
    pub fn exit_code(&self) -> std::process::ExitCode {
        self.passed_on.map_or_else(|| self.code.into(), Into::into)
    }

    /// Something that the file system refused.
    pub(crate) fn io(what: &str, path: &std::path::Path, error: &std::io::Error) -> Self {
        Self::failed(format!("cannot {what} {}: {error}", path.display()))
    }

    /// Says it on stderr.
    pub fn report(&self, color: Color) {
        // When stderr is gone there is nobody to tell.
        let _ = std::io::stderr().lock().write_all(self.render(color.stderr()).as_bytes());
    }

    /// The lines for stderr, without control sequences but our own.
    pub(crate) fn render(&self, style: Style) -> String {
        let mut text = String::new();
        if !self.message.is_empty() {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{} {}", style.bad("error:"), strip(&self.message));
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(text, "{} {}", style.strong("hint:"), strip(hint));
        }
        text
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        use ExitCode::{Budget, Conflict, Failed, NotPermitted, Unreachable, Usage};
        let (code, hint) = match &error {
            ClientError::Url(_) => (Usage, Some("the URL comes from the profile, or from AXP_URL")),
            ClientError::Unreachable { .. } => (
                Unreachable,
                Some("is the host running? `axp host` starts it; the URL comes from the profile"),
            ),
            ClientError::Handshake { .. } => (Unreachable, Some("check the URL in the profile")),
            ClientError::Lost | ClientError::Timeout { .. } => {
                (Unreachable, Some("try again; `axp inspect` shows whether it took effect"))
            }
            ClientError::Http { status: 401 | 403, .. } => {
                (NotPermitted, Some("use the profile that this host was set up with: --profile FILE"))
            }
            ClientError::Http { .. } => (Unreachable, Some("check the URL in the profile")),
            ClientError::Answer { .. } => (Failed, None),
            ClientError::Refused(refusal) => match refusal.code {
                codes::NOT_PERMITTED => (NotPermitted, Some("--profile FILE chooses another role")),
                codes::CONFLICT => (Conflict, Some("`axp inspect` shows how things stand")),
                codes::STALE_LEASE => (Conflict, Some("`axp inspect` shows who runs the session")),
                codes::SESSION_EXISTS => (Conflict, Some("choose another ID with --id")),
                codes::TURN_IN_PROGRESS => {
                    (Conflict, Some("`axp queue` sends it after the running turn, `axp steer` instead of it"))
                }
                codes::BUDGET => (
                    Budget,
                    Some("`axp grant` shows what is left; its owner raises it with `axp grant --cost …`"),
                ),
                codes::SESSION_NOT_FOUND => (Failed, Some("`axp sessions` lists the sessions you may read")),
                _ => (Failed, None),
            },
        };
        let message = match error {
            // The number is for programs.
            ClientError::Refused(refusal) => refusal.message,
            other => other.to_string(),
        };
        Self { message, hint: hint.map(str::to_owned), code, passed_on: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axp_protocol::ProtocolError;

    #[test]
    fn every_refusal_has_its_exit_code() {
        let exit = |code| CliError::from(ClientError::Refused(ProtocolError::new(code, "no"))).code as u8;
        for (code, expected) in [
            (codes::NOT_PERMITTED, 3),
            (codes::CONFLICT, 4),
            (codes::SESSION_EXISTS, 4),
            (codes::TURN_IN_PROGRESS, 4),
            (codes::STALE_LEASE, 4),
            (codes::BUDGET, 5),
            (codes::SESSION_NOT_FOUND, 1),
            (codes::INVALID_PARAMS, 1),
            (codes::INTERNAL, 1),
        ] {
            assert_eq!(exit(code), expected, "{code}");
        }
        let http =
            |status| CliError::from(ClientError::Http { url: "u".into(), status, retry_after: None }).code;
        assert_eq!(http(401), ExitCode::NotPermitted);
        assert_eq!(http(403), ExitCode::NotPermitted);
        assert_eq!(http(503), ExitCode::Unreachable);
        assert_eq!(CliError::from(ClientError::Lost).code, ExitCode::Unreachable);
    }

    #[test]
    fn an_error_says_what_and_what_next() {
        let error = CliError::conflict("session a is \u{1b}[31mclosed").hint("open another");
        assert_eq!(error.render(Style::plain()), "error: session a is closed\nhint: open another\n");
        assert_eq!(CliError::interrupted().render(Style::plain()), "");
    }
}
