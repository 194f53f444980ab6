//! Pushes a reviewed checkpoint to a remote the user has configured.

use super::error::{Result, WorktreeError};
use super::import::{self, Incoming};
use super::names::{check_name, parse_commit_id};
use super::progress::{Phase, Progress};
use super::repository::{Repository, has_commit};
use super::restore::BundleFile;

/// A checkpoint to push, and where to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishRequest<'a> {
    /// The bundle, for a repository that lacks the commit.
    pub bundle: Option<BundleFile<'a>>,
    /// The commit the checkpoint builds on.
    pub base: &'a str,
    /// The commit of the checkpoint.
    pub head: &'a str,
    /// Name of a remote in the repository's own configuration.
    pub remote: &'a str,
    /// The branch becomes `axp/NAME`.
    pub name: &'a str,
}

/// Pushes the checkpoint's commit as branch `axp/NAME` and returns the branch. Nothing is forced: a branch of that
/// name with other commits stays as it is. The checkout, the local branches and the configuration are not touched.
pub fn publish(
    repository: &Repository,
    request: &PublishRequest<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<String> {
    check_name(request.name)?;
    let base = parse_commit_id(request.base)?;
    let head = parse_commit_id(request.head)?;
    check_remote(repository, request.remote)?;
    let git = repository.git();
    if !has_commit(&git, &head)? {
        let Some(BundleFile { path, sha256 }) = request.bundle else {
            return Err(WorktreeError::BundleMissing { head });
        };
        let incoming = Incoming { path, sha256: Some(sha256), base: &base, head: &head };
        import::import(repository, &incoming, progress)?;
    }
    progress(Progress::start(Phase::Push));
    let branch = format!("axp/{}", request.name);
    let refspec = format!("{head}:refs/heads/{branch}");
    // A mirror would push, and delete, every other ref as well.
    let no_mirror = format!("remote.{}.mirror=false", request.remote);
    let push =
        ["-c", &no_mirror, "push", "--progress", "--no-verify", "--no-follow-tags", "--no-signed", "--"];
    git.call("push the checkpoint", &push).arg(request.remote).arg(refspec).watched(Phase::Push, progress)?;
    Ok(branch)
}

/// Only a name from this repository's own configuration will do: never a URL, never a path.
fn check_remote(repository: &Repository, remote: &str) -> Result<()> {
    let git = repository.git();
    let known = git.call("list the remotes", &["config", "--local", "--get-regexp", r"^remote\..*\.url$"]);
    let output = known.outcome()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text.lines().filter_map(|line| {
        line.split_once(' ').map_or(line, |(key, _)| key).strip_prefix("remote.")?.strip_suffix(".url")
    });
    let names: Vec<_> = names.collect();
    if names.contains(&remote) && !remote.starts_with('-') {
        return Ok(());
    }
    Err(WorktreeError::UnknownRemote { remote: remote.to_owned(), known: names.join(", ") })
}
