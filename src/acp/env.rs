//! The environment an agent gets: what it needs to run, and what its owner names.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::error::AgentError;

/// Passed on when set. Everything else an agent needs is named by its owner.
const ALWAYS: [&str; 15] = [
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "TMPDIR",
    "TERM",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
];

/// Chooses from `all` what the agent may see.
///
/// `AXP_*` holds the host's address and token, so such a name is refused rather than ignored: a user who asks for it
/// has misunderstood something worth hearing about.
pub(super) fn for_agent(
    all: impl IntoIterator<Item = (OsString, OsString)>,
    named: &[String],
) -> Result<Vec<(OsString, OsString)>, AgentError> {
    for name in named {
        check_name(name)?;
    }
    Ok(all.into_iter().filter(|(name, _)| name.to_str().is_some_and(|name| is_passed(name, named))).collect())
}

fn is_passed(name: &str, named: &[String]) -> bool {
    ALWAYS.contains(&name) || name.starts_with("LC_") || named.iter().any(|wanted| wanted == name)
}

fn check_name(name: &str) -> Result<(), AgentError> {
    let refuse = |reason| Err(AgentError::Environment { name: name.to_owned(), reason });
    if name.to_ascii_uppercase().starts_with("AXP_") {
        return refuse("AXP_ variables hold axp's own credentials");
    }
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !starts_well || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return refuse("it is not the name of an environment variable");
    }
    Ok(())
}

/// Finds the program as a shell would, so that a missing one is told before anything is started.
///
/// A path is taken from the current directory of this process, not from the agent's working folder: it is the path
/// the user typed.
pub(super) fn find_program(program: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, AgentError> {
    let missing = || AgentError::NotFound { program: program.to_string_lossy().into_owned() };
    if program.is_empty() {
        return Err(missing());
    }
    if Path::new(program).components().count() > 1 || program.to_string_lossy().contains('/') {
        let given = std::path::absolute(program).map_err(|_| missing())?;
        return if given.is_file() { Ok(given) } else { Err(missing()) };
    }
    std::env::split_paths(path.unwrap_or_default())
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(program))
        .find(|candidate| is_executable(candidate))
        .ok_or_else(missing)
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vars(names: &[&str]) -> Vec<(OsString, OsString)> {
        names.iter().map(|name| (OsString::from(name), OsString::from("value"))).collect()
    }

    fn names(passed: &[(OsString, OsString)]) -> Vec<&str> {
        passed.iter().filter_map(|(name, _)| name.to_str()).collect()
    }

    #[test]
    fn only_the_listed_and_the_named_pass() {
        let all = vars(&[
            "PATH",
            "HOME",
            "LC_ALL",
            "LC_TIME",
            "TERM",
            "https_proxy",
            "NO_PROXY",
            "SSL_CERT_FILE",
            "AXP_TOKEN",
            "AXP_URL",
            "GITHUB_TOKEN",
            "MY_KEY",
            "LD_PRELOAD",
            "SHELL",
        ]);
        let passed = for_agent(all, &["MY_KEY".to_owned(), "UNSET".to_owned()]).unwrap();
        assert_eq!(
            names(&passed),
            [
                "PATH",
                "HOME",
                "LC_ALL",
                "LC_TIME",
                "TERM",
                "https_proxy",
                "NO_PROXY",
                "SSL_CERT_FILE",
                "MY_KEY"
            ]
        );
    }

    #[test]
    fn axp_variables_are_refused() {
        for name in ["AXP_TOKEN", "axp_token", "Axp_X", "", "1X", "A=B", "A B", "Ä"] {
            let refused = for_agent(vars(&[name]), &[name.to_owned()]);
            assert!(matches!(refused, Err(AgentError::Environment { .. })), "{name:?}");
        }
    }

    #[test]
    fn programs_are_found_on_path_or_at_their_path() {
        let path = OsStr::new("relative:/nowhere:/usr/bin:/bin");
        assert!(find_program(OsStr::new("sh"), Some(path)).unwrap().is_absolute());
        assert!(find_program(OsStr::new("/bin/sh"), None).is_ok());
        for missing in ["no-such-agent", "/bin/no-such-agent", "./no-such-agent", ""] {
            let refused = find_program(OsStr::new(missing), Some(path));
            assert_eq!(refused, Err(AgentError::NotFound { program: missing.to_owned() }));
        }
    }
}
