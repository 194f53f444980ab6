//! The git program, run with an environment and a configuration that do not depend on who calls.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use super::error::{IoContext, Result, WorktreeError};
use super::progress::{Phase, Progress, StderrReader};

/// The oldest git this module works with (`git add --sparse` is the newest feature it needs).
pub const MINIMUM_GIT: (u32, u32) = (2, 34);

/// Who the commits of a checkpoint are by; also what reflogs name, so that a user without an identity can work.
const NAME: &str = "AXP Contributor";
const EMAIL: &str = "axp@localhost";

/// Settings that would run code, ask questions, or change bytes and refs behind our back. Filters stay as configured.
const CONFIG: &[&str] = &[
    "core.hooksPath=/dev/null",
    "core.fsmonitor=",
    // A half-finished split index would depend on a shared file that another process may expire.
    "core.splitIndex=false",
    "core.safecrlf=false",
    "core.quotePath=true",
    "add.ignoreErrors=false",
    "advice.addEmbeddedRepo=false",
    "color.ui=false",
    "commit.gpgSign=false",
    "tag.gpgSign=false",
    "credential.interactive=false",
    "diff.suppressBlankEmpty=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "i18n.commitEncoding=UTF-8",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    // Relative links would switch on a repository extension, which is a write to the user's configuration.
    "worktree.useRelativePaths=false",
];

/// A place to run git in.
#[derive(Debug, Clone)]
pub(super) struct Git {
    dir: PathBuf,
    env: Vec<(&'static str, OsString)>,
}

impl Git {
    /// Runs git in `dir` and lets it look for the repository there.
    pub(super) fn discovering(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), env: Vec::new() }
    }

    /// Runs git in `dir`, on the repository `git_dir` whatever lies in or around `dir`.
    pub(super) fn on(dir: &Path, git_dir: &Path) -> Self {
        Self::discovering(dir).env("GIT_DIR", git_dir)
    }

    /// Sets a variable for every call.
    pub(super) fn env(mut self, name: &'static str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name, value.as_ref().to_owned()));
        self
    }

    /// Starts a call; `action` completes the sentence "git could not …".
    pub(super) fn call(&self, action: &'static str, args: &[&str]) -> Call<'_> {
        let mut command = Command::new("git");
        isolate(&mut command, std::env::vars_os().map(|(name, _)| name));
        command.current_dir(&self.dir);
        for (name, value) in &self.env {
            command.env(name, value);
        }
        for setting in CONFIG {
            command.args(["-c", setting]);
        }
        command.args(args).stdin(Stdio::null());
        Call { dir: &self.dir, action, command, stdout: None }
    }
}

/// Takes away every `GIT_*` variable of `inherited`, and sets the few that keep git quiet and predictable.
pub(super) fn isolate(command: &mut Command, inherited: impl IntoIterator<Item = OsString>) {
    for name in inherited {
        if name.as_encoded_bytes().to_ascii_uppercase().starts_with(b"GIT_") {
            command.env_remove(name);
        }
    }
    command
        .env("GIT_TERMINAL_PROMPT", "0")
        // Programs that would ask for a password answer "no" instead of waiting for one.
        .env("GIT_ASKPASS", "false")
        .env("SSH_ASKPASS", "false")
        .env("SSH_ASKPASS_REQUIRE", "force")
        .env("GIT_EDITOR", "false")
        .env("GIT_PAGER", "cat")
        // Reading must not rewrite the user's index as a side effect.
        .env("GIT_OPTIONAL_LOCKS", "0")
        // libgit2 ignores replacement objects; both must see the same bytes.
        .env("GIT_NO_REPLACE_OBJECTS", "1")
        .env("GIT_PROGRESS_DELAY", "0")
        .env("GIT_AUTHOR_NAME", NAME)
        .env("GIT_AUTHOR_EMAIL", EMAIL)
        .env("GIT_COMMITTER_NAME", NAME)
        .env("GIT_COMMITTER_EMAIL", EMAIL)
        // Some messages are parsed, so they must not be translated; filters may still need UTF-8.
        .env("LC_ALL", "C.UTF-8")
        .env_remove("LANGUAGE");
}

/// One run of git.
pub(super) struct Call<'a> {
    dir: &'a Path,
    action: &'static str,
    command: Command,
    stdout: Option<File>,
}

impl Call<'_> {
    pub(super) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub(super) fn stdin(mut self, file: File) -> Self {
        self.command.stdin(file);
        self
    }

    /// Where stdout goes; for [`Call::watched`] only.
    pub(super) fn stdout(mut self, file: File) -> Self {
        self.stdout = Some(file);
        self
    }

    /// Runs to the end and returns whatever happened.
    pub(super) fn outcome(mut self) -> Result<Output> {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.spawn()?;
        child.wait_with_output().at("run git in", self.dir)
    }

    /// Runs to the end and returns stdout; failure is an error.
    pub(super) fn bytes(self) -> Result<Vec<u8>> {
        let action = self.action;
        let output = self.outcome()?;
        if output.status.success() { Ok(output.stdout) } else { Err(failure(action, &output.stderr)) }
    }

    /// As [`Call::bytes`], for output that is one line of text.
    pub(super) fn line(self) -> Result<String> {
        let bytes = self.bytes()?;
        Ok(String::from_utf8_lossy(&bytes).trim_end_matches('\n').to_owned())
    }

    /// Runs a call that answers with its exit code: 0 is yes, 1 is no, anything else is an error.
    pub(super) fn yes(self) -> Result<bool> {
        let action = self.action;
        let output = self.outcome()?;
        match output.status.code() {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            _ => Err(failure(action, &output.stderr)),
        }
    }

    /// Runs to the end while progress is reported; stdout goes where [`Call::stdout`] said, else nowhere.
    pub(super) fn watched(mut self, phase: Phase, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        self.command.stdout(self.stdout.take().map_or_else(Stdio::null, Stdio::from)).stderr(Stdio::piped());
        let mut child = self.spawn()?;
        let mut reader = StderrReader::new();
        if let Some(mut stderr) = child.stderr.take() {
            let mut buffer = [0; 4096];
            loop {
                match stderr.read(&mut buffer) {
                    Ok(0) | Err(_) => break,
                    Ok(read) => reader.feed(&buffer[..read], |done, total| {
                        progress(Progress { phase, done, total: Some(total) });
                    }),
                }
            }
        }
        let status = child.wait().at("run git in", self.dir)?;
        if status.success() { Ok(()) } else { Err(failure(self.action, reader.finish().as_bytes())) }
    }

    fn spawn(&mut self) -> Result<Child> {
        match self.command.spawn() {
            // The same error stands for a missing program and for a missing working directory.
            Err(error) if error.kind() == ErrorKind::NotFound && self.dir.is_dir() => {
                Err(WorktreeError::GitMissing { needed: minimum() })
            }
            other => other.at("run git in", self.dir),
        }
    }
}

fn failure(action: &'static str, stderr: &[u8]) -> WorktreeError {
    let text = String::from_utf8_lossy(stderr);
    let skipped = text.trim().chars().count().saturating_sub(2000);
    let detail: String = text.trim().chars().skip(skipped).collect();
    WorktreeError::Git { action, detail: if detail.is_empty() { "it gave no reason".into() } else { detail } }
}

fn minimum() -> String {
    format!("{}.{}", MINIMUM_GIT.0, MINIMUM_GIT.1)
}

/// Fails with a clear error when git is missing or too old.
pub(super) fn check_version(dir: &Path) -> Result<()> {
    let report = Git::discovering(dir).call("tell its version", &["version"]).line()?;
    check_report(&report)
}

/// Judges a line such as `git version 2.39.5 (Apple Git-154)`.
pub(super) fn check_report(report: &str) -> Result<()> {
    let found = report.strip_prefix("git version ").unwrap_or(report);
    let mut numbers = found.split(['.', ' ', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < MINIMUM_GIT {
        return Err(WorktreeError::GitTooOld { found: found.to_owned(), needed: minimum() });
    }
    Ok(())
}

/// Turns git's output into a path; only the newline git added is taken off.
pub(super) fn output_path(mut output: Vec<u8>) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    if output.last() == Some(&b'\n') {
        output.pop();
    }
    PathBuf::from(OsString::from_vec(output))
}
