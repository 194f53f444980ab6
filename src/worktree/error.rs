//! Everything that can go wrong with a worktree, told with the thing it happened to and what to do next.

use std::path::{Path, PathBuf};

/// The result of every fallible call of this module.
pub(super) type Result<T, E = WorktreeError> = std::result::Result<T, E>;

/// Why a worktree, a checkpoint or a restore did not succeed.
///
/// File names from a repository are printed escaped, so that a message never carries control characters.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorktreeError {
    /// There is no `git` program.
    #[error("the git program was not found on PATH; install Git {needed} or newer")]
    GitMissing {
        /// The oldest version that works.
        needed: String,
    },
    /// The `git` program lacks features this module relies on.
    #[error("git {found} is too old; install Git {needed} or newer")]
    GitTooOld {
        /// What `git version` reported.
        found: String,
        /// The oldest version that works.
        needed: String,
    },
    /// The folder is in no repository.
    #[error(
        "{path:?} is not inside a Git repository; run this in a clone of the project, or run `git init` first"
    )]
    NotARepository {
        /// The folder that was asked about.
        path: PathBuf,
    },
    /// The repository has no checkout.
    #[error("{path:?} is a bare Git repository; use a clone with a checkout (`git clone {path:?}`)")]
    BareRepository {
        /// The bare repository.
        path: PathBuf,
    },
    /// The repository has no commit to start from.
    #[error("the repository at {root:?} has no commit yet; make a first commit, then try again")]
    NoCommits {
        /// The top folder of the repository.
        root: PathBuf,
    },
    /// A worktree name that cannot become a folder and a branch.
    #[error("{name:?} cannot name a worktree: {reason}")]
    InvalidName {
        /// The name that was asked for.
        name: String,
        /// The rule it breaks.
        reason: &'static str,
    },
    /// Something that should be a full commit id is not.
    #[error("{id:?} is not a full commit id (40 or 64 hexadecimal digits)")]
    InvalidCommitId {
        /// The text that was given.
        id: String,
    },
    /// The commit is not in this repository.
    #[error("commit {id} is not in this repository; fetch the branch that has it, then try again")]
    CommitMissing {
        /// The missing commit.
        id: String,
    },
    /// A remote that the repository's own configuration does not name.
    #[error("{remote:?} is no remote of this repository (it has: {known}); `git remote add` adds one")]
    UnknownRemote {
        /// The name that was asked for.
        remote: String,
        /// Those it has.
        known: String,
    },
    /// A folder of ours is something else, such as a symbolic link that leads elsewhere.
    #[error("{path:?} is not a plain folder; move it away, AXP creates its own")]
    UnsafeFolder {
        /// The path in question.
        path: PathBuf,
    },
    /// Every name that was tried is taken.
    #[error("no free worktree name like {name:?}; remove worktrees that are no longer needed")]
    NoFreeName {
        /// The name that was asked for.
        name: String,
    },
    /// The folder is not a worktree that AXP made.
    #[error("{path:?} is not a worktree made by AXP, or its registration in the repository is gone")]
    NotAWorktree {
        /// The folder that was asked about.
        path: PathBuf,
    },
    /// Another Git process holds the worktree's index, or died holding it.
    #[error(
        "{path:?} exists: another Git process works in this worktree, or one crashed; if none runs, delete that file"
    )]
    IndexLocked {
        /// The lock file.
        path: PathBuf,
    },
    /// HEAD of the worktree names a branch without commits.
    #[error("HEAD of the worktree is on a branch without commits; switch back to {branch:?}")]
    UnbornHead {
        /// The branch of the worktree.
        branch: String,
    },
    /// History was replaced: the work no longer builds on the base.
    #[error(
        "commit {head} does not descend from the base {base}; rebase the work onto the base, then try again"
    )]
    NotDescendant {
        /// The commit the work is at.
        head: String,
        /// The commit it should build on.
        base: String,
    },
    /// HEAD left the worktree's branch, and moving the branch there would drop commits.
    #[error(
        "HEAD is at {head}, away from branch {branch:?} whose tip {tip} it does not contain; switch back to {branch:?} or merge it"
    )]
    BranchDiverged {
        /// The branch of the worktree.
        branch: String,
        /// The commit the branch points at.
        tip: String,
        /// The commit HEAD points at.
        head: String,
    },
    /// HEAD left the worktree's branch, and another checkout uses that branch now.
    #[error("branch {branch:?} is checked out at {path:?}; switch that checkout to another branch")]
    BranchInUse {
        /// The branch of the worktree.
        branch: String,
        /// The other checkout.
        path: PathBuf,
    },
    /// A rebase was left half done.
    #[error(
        "a rebase is in progress in the worktree; finish it (`git rebase --continue`) or drop it (`git rebase --abort`)"
    )]
    RebaseInProgress,
    /// A repository inside the worktree that is no registered submodule; Git would keep a pointer, not the files.
    #[error(
        "{path:?} is a Git repository of its own, so its files would be lost; delete its .git folder, or ignore it"
    )]
    EmbeddedRepository {
        /// The nested repository, relative to the worktree.
        path: String,
    },
    /// A submodule has changes that are not committed inside it, so the checkpoint would lose them.
    #[error(
        "submodule {path:?} has uncommitted changes that a checkpoint cannot carry; commit or undo them inside it"
    )]
    SubmoduleChanges {
        /// The submodule, relative to the worktree.
        path: String,
    },
    /// A file name that is not UTF-8, which the protocol cannot carry.
    #[error("the file name {path:?} is not valid UTF-8 and cannot be part of a checkpoint; rename the file")]
    NonUtf8Path {
        /// The name, with replacement characters where it is not UTF-8.
        path: String,
    },
    /// More files changed than a checkpoint may carry.
    #[error(
        "{count} files changed, more than the {limit} a checkpoint may carry; ignore generated files in .gitignore"
    )]
    TooManyFiles {
        /// How many changed.
        count: usize,
        /// How many may change.
        limit: usize,
    },
    /// A file, before or after the change, is larger than a blob may be.
    #[error(
        "{path:?} has {size} bytes, more than the {limit} a checkpoint may carry; ignore it, or keep it out of Git"
    )]
    FileTooLarge {
        /// The file, relative to the worktree.
        path: String,
        /// Its size in bytes.
        size: u64,
        /// The largest size allowed.
        limit: u64,
    },
    /// The bundle or the patch is larger than a blob may be.
    #[error(
        "the {what} of this checkpoint has {size} bytes, more than the {limit} allowed; split the work into smaller steps"
    )]
    ArtifactTooLarge {
        /// `bundle` or `patch`.
        what: &'static str,
        /// Its size in bytes.
        size: u64,
        /// The largest size allowed.
        limit: u64,
    },
    /// The bundle file is not the one that was recorded.
    #[error(
        "the bundle does not match its recorded digest (expected {expected}, found {found}); download it again"
    )]
    BundleDigest {
        /// The recorded SHA-256.
        expected: String,
        /// The SHA-256 of the file.
        found: String,
    },
    /// There is work to restore, but no bundle that holds it.
    #[error("the checkpoint at {head} has no bundle; ask its author to make the checkpoint again")]
    BundleMissing {
        /// The commit that was to be restored.
        head: String,
    },
    /// The bundle is not something Git wrote, or uses a feature that is not accepted.
    #[error("the bundle cannot be used: {reason}")]
    BundleMalformed {
        /// What is wrong with it.
        reason: String,
    },
    /// The bundle advertises another commit than the checkpoint.
    #[error("the bundle holds {found}, not the commit {expected} of the checkpoint")]
    BundleHead {
        /// The commit of the checkpoint.
        expected: String,
        /// What the bundle advertises.
        found: String,
    },
    /// The commit a bundle builds on is not in this repository.
    #[error(
        "the bundle builds on commit {base}, which this repository lacks; run `git fetch` for the branch that has it"
    )]
    BaseMissing {
        /// The missing commit.
        base: String,
    },
    /// The objects in the bundle are broken, incomplete or dangerous.
    #[error("git refused the objects in the bundle: {detail}")]
    BundleObjects {
        /// What git said.
        detail: String,
    },
    /// The git program failed in a way that has no variant of its own.
    #[error("git could not {action}: {detail}")]
    Git {
        /// What was being done.
        action: &'static str,
        /// What git said.
        detail: String,
    },
    /// A file operation failed.
    #[error("could not {action} {path:?}: {source}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

/// Adapts an I/O result with what was attempted, on which path.
pub(super) trait IoContext<T> {
    /// Names the action and the path in the error.
    fn at(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for std::io::Result<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| WorktreeError::Io { action, path: path.to_owned(), source })
    }
}
