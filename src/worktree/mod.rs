//! Git worktrees, checkpoints, bundles and restore.
//!
//! An agent works in a [`Worktree`] of the user's [`Repository`], on a branch of its own. A checkpoint turns what it
//! did into a commit, a bundle and a patch; [`restore`] builds a worktree from such a bundle somewhere else. The
//! user's own checkout, index, stash, branches and configuration are never touched.
//!
//! The `git` program decides everything here, because libgit2 opens neither partial clones nor repositories with
//! reftables or SHA-256 ids, runs no filter processes and writes no bundles. libgit2 reads blobs and judges branch
//! names, where it saves a process for each question.

mod admin;
mod bundle;
mod changes;
mod checkpoint;
mod create;
mod error;
mod git;
mod handle;
mod import;
mod layout;
mod names;
mod position;
mod progress;
mod publish;
mod repository;
mod restore;
mod stage;
mod stat;

#[cfg(test)]
mod tests;

pub use changes::{BlobBytes, ChangeKind, FileChange};
pub use checkpoint::{Artifact, CheckpointArtifacts, CheckpointOptions};
pub use create::Start;
pub use error::WorktreeError;
pub use git::MINIMUM_GIT;
pub use handle::{BranchFate, Worktree};
pub use names::{check_name, parse_commit_id};
pub use progress::{Phase, Progress};
pub use publish::{PublishRequest, publish};
pub use repository::Repository;
pub use restore::{BundleFile, RestoreRequest, restore};
pub use stat::{DiffStat, FileStat, diffstat};
