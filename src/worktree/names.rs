//! Names of worktrees, branches and commits: what is accepted, and which one is tried next.

use super::error::{Result, WorktreeError};

/// The longest name a caller may ask for; a suffix such as `-12` still fits a file name.
const MAX_NAME: usize = 101;

/// How many names are tried before giving up: `NAME`, `NAME-2`, … `NAME-999`.
const MAX_ATTEMPTS: u32 = 999;

/// Checks that `name` can become a folder and the last part of a branch name.
///
/// A name starts with an ASCII letter or digit, goes on with those and `.`, `_`, `-`, is at most 101 characters long,
/// holds no `..` and does not end in `.` or `.lock`.
pub fn check_name(name: &str) -> Result<()> {
    let invalid = |reason| Err(WorktreeError::InvalidName { name: name.to_owned(), reason });
    if name.is_empty() {
        return invalid("it is empty");
    }
    if name.len() > MAX_NAME {
        return invalid("it is longer than 101 characters");
    }
    if !name.starts_with(|first: char| first.is_ascii_alphanumeric()) {
        return invalid("it must start with a letter or a digit");
    }
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')) {
        return invalid("only letters, digits, `.`, `_` and `-` may be used");
    }
    if name.contains("..") || name.ends_with('.') || name.to_ascii_lowercase().ends_with(".lock") {
        return invalid("it may not contain `..` or end in `.` or `.lock`");
    }
    match git2::Branch::name_is_valid(&format!("axp/{name}")) {
        Ok(true) => Ok(()),
        _ => invalid("Git does not accept it as part of a branch name"),
    }
}

/// Checks that `id` is a full commit id and returns it in lower case.
///
/// Nothing else reaches git's command line as a commit, so an id can never be read as an option or a revision
/// expression.
pub fn parse_commit_id(id: &str) -> Result<String> {
    if matches!(id.len(), 40 | 64) && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        Ok(id.to_ascii_lowercase())
    } else {
        Err(WorktreeError::InvalidCommitId { id: id.chars().take(80).collect() })
    }
}

/// The names to try for `name`, the plain one first.
pub(super) fn candidates(name: &str) -> impl Iterator<Item = String> + '_ {
    (1..=MAX_ATTEMPTS).map(move |n| if n == 1 { name.to_owned() } else { format!("{name}-{n}") })
}

/// The branch of a worktree. Git stores branches as files, so `axp/NAME` cannot exist beside a branch `axp`.
pub(super) fn branch(name: &str, axp_is_a_branch: bool) -> String {
    if axp_is_a_branch { format!("axp-{name}") } else { format!("axp/{name}") }
}

/// The full name of a branch.
pub(super) fn branch_ref(branch: &str) -> String {
    format!("refs/heads/{branch}")
}
