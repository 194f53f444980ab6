//! Builds a worktree from somebody's checkpoint.

use std::path::Path;

use super::create::place;
use super::error::{Result, WorktreeError};
use super::handle::Worktree;
use super::import::{self, Incoming};
use super::names::{check_name, parse_commit_id};
use super::progress::Progress;
use super::repository::{Repository, has_commit};

/// A bundle with the digest its author recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BundleFile<'a> {
    /// The file.
    pub path: &'a Path,
    /// The SHA-256 of its bytes in hexadecimal.
    pub sha256: &'a str,
}

/// A checkpoint to restore, and the name of the worktree it goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoreRequest<'a> {
    /// The bundle; a checkpoint that changed nothing has none.
    pub bundle: Option<BundleFile<'a>>,
    /// The commit the checkpoint builds on.
    pub base: &'a str,
    /// The commit of the checkpoint.
    pub head: &'a str,
    /// The name of the worktree, taken as in [`Worktree::create`].
    pub into: &'a str,
}

/// Restores a checkpoint into a new worktree on a new branch, with the checkpoint's base as its base.
///
/// Before anything is created, the bundle has the recorded digest, advertises exactly the head, builds on commits
/// this repository has, passes Git's object checks, and its head descends from the base. A failed restore leaves no
/// branch and no folder behind.
pub fn restore(
    repository: &Repository,
    request: &RestoreRequest<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Worktree> {
    check_name(request.into)?;
    let base = parse_commit_id(request.base)?;
    let head = parse_commit_id(request.head)?;
    match request.bundle {
        Some(BundleFile { path, sha256 }) => {
            let incoming = Incoming { path, sha256: Some(sha256), base: &base, head: &head };
            import::import(repository, &incoming, progress)?;
        }
        None if head != base => return Err(WorktreeError::BundleMissing { head }),
        None if !has_commit(&repository.git(), &base)? => return Err(WorktreeError::BaseMissing { base }),
        None => {}
    }
    place(repository, request.into, &base, &head, progress)
}
