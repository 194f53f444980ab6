//! Profiles: which host, and the token that opens it. They are private files, and nothing of a token is ever shown.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use axp_protocol::principal::Role;

use super::error::CliError;
use crate::client::Credentials;

/// Folder of AXP's own files in a repository.
pub(crate) const FOLDER: &str = ".axp";
/// Longest profile that is read, bytes.
const LONGEST: u64 = 64 * 1024;

/// What a command is about to do, which decides whose profile it takes when none is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Direct the work.
    Maintain,
    /// Give a budget, run an agent.
    Contribute,
    /// Speak of the work, and propose.
    Discuss,
    /// Propose summaries and lessons.
    Propose,
    /// Verify a checkpoint.
    Verify,
    /// Look at sessions.
    Read,
    /// Look at budgets.
    ReadGrants,
}

impl Need {
    /// Roles that can, best first.
    fn roles(self) -> &'static [Role] {
        use Role::{Contributor, Maintainer, Observer, Verifier};
        match self {
            Self::Maintain => &[Maintainer],
            Self::Contribute => &[Contributor],
            Self::Discuss => &[Maintainer, Contributor, Verifier],
            Self::Propose => &[Contributor, Maintainer],
            Self::Verify => &[Verifier],
            Self::Read => &[Maintainer, Contributor, Observer, Verifier],
            Self::ReadGrants => &[Contributor, Maintainer, Observer, Verifier],
        }
    }
}

/// `AXP_URL` and `AXP_TOKEN`.
#[derive(Clone, Default)]
pub(crate) struct Environment {
    url: Option<String>,
    token: Option<String>,
}

impl Environment {
    /// As this process was started. An empty variable counts as none.
    pub(crate) fn read() -> Self {
        let get = |name| std::env::var(name).ok().filter(|v| !v.is_empty());
        Self { url: get("AXP_URL"), token: get("AXP_TOKEN") }
    }

    fn credentials(&self) -> Result<Option<Credentials>, CliError> {
        match (&self.url, &self.token) {
            (Some(url), Some(token)) => Ok(Some(Credentials { url: url.clone(), token: token.clone() })),
            (None, None) => Ok(None),
            (Some(_), None) => Err(one_alone("AXP_URL", "AXP_TOKEN")),
            (None, Some(_)) => Err(one_alone("AXP_TOKEN", "AXP_URL")),
        }
    }
}

fn one_alone(set: &str, missing: &str) -> CliError {
    CliError::usage(format!("{set} is set, but {missing} is not"))
        .hint("set both, or neither to use the profiles in .axp/")
}

/// Finds the credentials for a command: the profile that was named, else the environment, else the first fitting
/// profile of `.axp/` in `start` or a folder above it.
pub(crate) fn resolve(
    named: Option<&Path>,
    environment: &Environment,
    start: &Path,
    need: Need,
) -> Result<Credentials, CliError> {
    if let Some(path) = named {
        return read(path);
    }
    if let Some(credentials) = environment.credentials()? {
        return Ok(credentials);
    }
    for folder in start.ancestors() {
        for role in need.roles() {
            match read_file(&path_of(folder, *role)) {
                Err(Unread::Missing) => {}
                Err(Unread::Bad(error)) => return Err(error),
                Ok(credentials) => return Ok(credentials),
            }
        }
    }
    Err(none(start, need))
}

/// Where a role's profile is, in a repository.
pub(crate) fn path_of(repository: &Path, role: Role) -> PathBuf {
    repository.join(FOLDER).join(format!("{}.json", role.as_str()))
}

/// Reads a profile.
pub(crate) fn read(path: &Path) -> Result<Credentials, CliError> {
    read_file(path).map_err(|error| match error {
        Unread::Missing => CliError::usage(format!("there is no profile {}", path.display()))
            .hint("`axp init` makes profiles; a contributor gets one from the project"),
        Unread::Bad(error) => error,
    })
}

enum Unread {
    Missing,
    Bad(CliError),
}

fn read_file(path: &Path) -> Result<Credentials, Unread> {
    let shown = path.display();
    let io = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => Unread::Missing,
        _ => Unread::Bad(CliError::usage(format!("cannot read the profile {shown}: {error}"))),
    };
    let file = File::open(path).map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    if !meta.is_file() {
        return Err(Unread::Bad(CliError::usage(format!("the profile {shown} is not a file"))));
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // Asked of the open file: the name may mean another one by now.
        let mode = meta.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            let error = CliError::usage(format!(
                "the profile {shown} can be used by others on this machine (mode {mode:03o})"
            ));
            return Err(Unread::Bad(error.hint(format!("run: chmod 600 {}", quoted(&shown.to_string())))));
        }
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).map_err(io)?;
    // The parser's own words could quote the token.
    serde_json::from_str(&text).map_err(|e| {
        Unread::Bad(
            CliError::usage(format!("the profile {shown} is not valid (line {})", e.line()))
                .hint(r#"it holds {"url": "wss://HOST/axp", "token": "…"} and nothing else"#),
        )
    })
}

fn none(start: &Path, need: Need) -> CliError {
    let found = [Role::Maintainer, Role::Contributor, Role::Observer, Role::Verifier]
        .into_iter()
        .flat_map(|role| start.ancestors().map(move |folder| path_of(folder, role)))
        .find(|path| path.is_file());
    let who = match need {
        Need::Maintain => "a maintainer's profile",
        Need::Contribute => "a contributor's profile",
        Need::Verify => "a verifier's profile",
        Need::Discuss | Need::Propose => "a maintainer's or contributor's profile",
        Need::Read | Need::ReadGrants => "a profile",
    };
    let error = match found {
        None => CliError::usage(format!("this needs {who}, and there is none in .axp/ here or above")),
        Some(path) => CliError::usage(format!("this needs {who}; here is only {}", path.display())),
    };
    error.hint(match need {
        Need::Contribute => "pass the one you got from the project with --profile FILE, or run `axp init`",
        _ => "run `axp init --repo OWNER/NAME` in the project, or pass one with --profile FILE",
    })
}

/// A word as a shell takes it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./:=@%+,".contains(&b);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::ExitCode;
    use super::*;
    use std::fs;

    fn write(path: &Path, text: &str, mode: u32) {
        use std::os::unix::fs::PermissionsExt;
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn profile(url: &str) -> String {
        format!(r#"{{"url":"{url}","token":"secret-secret-secret-secret"}}"#)
    }

    fn env(url: Option<&str>, token: Option<&str>) -> Environment {
        Environment { url: url.map(Into::into), token: token.map(Into::into) }
    }

    #[test]
    fn named_beats_environment_beats_folder() {
        let dir = tempfile::tempdir().unwrap();
        let named = dir.path().join("mine.json");
        write(&named, &profile("ws://localhost:1/axp"), 0o600);
        write(&path_of(dir.path(), Role::Maintainer), &profile("ws://localhost:3/axp"), 0o600);
        let both = env(Some("ws://localhost:2/axp"), Some("t"));
        let none = Environment::default();
        let url = |r: Result<Credentials, CliError>| r.unwrap().url;
        assert_eq!(url(resolve(Some(&named), &both, dir.path(), Need::Maintain)), "ws://localhost:1/axp");
        assert_eq!(url(resolve(None, &both, dir.path(), Need::Maintain)), "ws://localhost:2/axp");
        let below = dir.path().join("a/b");
        assert_eq!(url(resolve(None, &none, &below, Need::Maintain)), "ws://localhost:3/axp");
        for half in [env(Some("x"), None), env(None, Some("x"))] {
            let error = resolve(None, &half, dir.path(), Need::Maintain).unwrap_err();
            assert_eq!(error.code, ExitCode::Usage);
        }
    }

    #[test]
    fn commands_take_the_role_they_need() {
        let dir = tempfile::tempdir().unwrap();
        write(&path_of(dir.path(), Role::Contributor), &profile("ws://localhost:1/c"), 0o600);
        let none = Environment::default();
        let take = |need| resolve(None, &none, dir.path(), need);
        assert!(take(Need::Contribute).is_ok() && take(Need::Read).is_ok());
        let error = take(Need::Maintain).unwrap_err();
        assert!(
            error.message.contains("maintainer") && error.message.contains("contributor.json"),
            "{error}"
        );
        assert!(error.hint.unwrap().contains("axp init"));
        write(&path_of(dir.path(), Role::Maintainer), &profile("ws://localhost:1/m"), 0o600);
        assert!(take(Need::Read).unwrap().url.ends_with("/m"));
        assert!(take(Need::ReadGrants).unwrap().url.ends_with("/c"));
    }

    #[test]
    fn a_loose_mode_is_refused_with_the_cure() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("it's.json");
        write(&path, &profile("ws://localhost:1/axp"), 0o640);
        let error = read(&path).unwrap_err();
        assert!(error.hint.as_ref().unwrap().starts_with("run: chmod 600 '"), "{error:?}");
        assert!(error.message.contains("640"));
    }

    #[test]
    fn a_bad_profile_does_not_leak_its_token() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.json");
        for text in [
            r#""secret-secret-secret-secret""#,
            r#"{"url":"u","token":"secret-secret-secret-secret","x":1}"#,
            "secret-secret-secret-secret",
            r#"{"url":["secret-secret-secret-secret"]}"#,
        ] {
            write(&path, text, 0o600);
            let error = read(&path).unwrap_err();
            assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        }
        assert!(read(&dir.path().join("none.json")).unwrap_err().message.contains("no profile"));
    }

    #[test]
    fn words_are_quoted_for_the_shell() {
        assert_eq!(quoted("call_1"), "call_1");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
