//! Makes a worktree on a branch of its own, under a name nobody has yet.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::admin::{self, Record};
use super::error::{IoContext, Result, WorktreeError};
use super::git::{Git, output_path};
use super::handle::{BranchFate, Worktree};
use super::import::{self, Incoming};
use super::layout;
use super::names::{branch, branch_ref, candidates, check_name, parse_commit_id};
use super::progress::{Phase, Progress};
use super::repository::{Repository, has_commit};

/// Where the work starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// At the commit that is checked out.
    Head,
    /// At this commit, which the repository has.
    Commit(String),
    /// At the head of a bundle, so that the work of an earlier checkpoint goes on.
    Bundle {
        /// The bundle file.
        path: PathBuf,
        /// The commit the bundle builds on; it stays the base of the worktree.
        base: String,
        /// The commit the bundle must hold.
        head: String,
    },
}

impl Worktree {
    /// Makes a worktree at `.axp/worktrees/NAME` on the new branch `axp/NAME`.
    ///
    /// The branch is `axp-NAME` where a branch `axp` stands in the way. If the folder or the branch is taken, the
    /// name becomes `NAME-2`, `NAME-3` and so on; ask [`Worktree::name`]. After an error, neither is left behind.
    pub fn create(
        repository: &Repository,
        name: &str,
        start: Start,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        check_name(name)?;
        match start {
            Start::Head => {
                let head = repository.head()?;
                place(repository, name, &head, &head, progress)
            }
            Start::Commit(id) => {
                let commit = parse_commit_id(&id)?;
                if !has_commit(&repository.git(), &commit)? {
                    return Err(WorktreeError::CommitMissing { id: commit });
                }
                place(repository, name, &commit, &commit, progress)
            }
            Start::Bundle { path, base, head } => {
                let incoming = Incoming {
                    path: &path,
                    sha256: None,
                    base: &parse_commit_id(&base)?,
                    head: &parse_commit_id(&head)?,
                };
                import::import(repository, &incoming, progress)?;
                place(repository, name, incoming.base, incoming.head, progress)
            }
        }
    }
}

/// Makes the worktree at `head`, a commit the repository has, under the first free name.
pub(super) fn place(
    repository: &Repository,
    name: &str,
    base: &str,
    head: &str,
    progress: &mut dyn FnMut(Progress),
) -> Result<Worktree> {
    let git = repository.git();
    let folder = layout::prepare(repository)?;
    let axp_is_a_branch =
        git.call("look for a branch", &["show-ref", "--verify", "--quiet", &branch_ref("axp")]).yes()?;
    for name in candidates(name) {
        let branch = branch(&name, axp_is_a_branch);
        let path = folder.join(&name);
        if is_taken(repository, &git, &branch, &path)? {
            continue;
        }
        // Making the folder claims the name; git accepts an empty one.
        match fs::create_dir(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            other => other.at("create", &path)?,
        }
        if let Err(error) = add(&git, &branch, &path, head) {
            // Only an empty folder goes; a race for the branch moves on to the next name.
            let _ = fs::remove_dir(&path);
            if is_taken(repository, &git, &branch, &path)? {
                continue;
            }
            return Err(error);
        }
        return fill(repository, Record { version: 1, name, branch, base_commit: base.to_owned() }, progress);
    }
    Err(WorktreeError::NoFreeName { name: name.to_owned() })
}

/// Whether somebody has the branch (or branches below it), or Git still lists the folder.
fn is_taken(repository: &Repository, git: &Git, branch: &str, path: &Path) -> Result<bool> {
    let pattern = branch_ref(branch);
    let call =
        git.call("list branches", &["for-each-ref", "--count=1", "--format=%(refname)", "--", &pattern]);
    if !call.bytes()?.is_empty() {
        return Ok(true);
    }
    Ok(admin::all(repository.common_dir())?.iter().any(|admin| admin.checkout.as_deref() == Some(path)))
}

fn add(git: &Git, branch: &str, path: &Path, head: &str) -> Result<()> {
    let args = ["worktree", "add", "--quiet", "--no-checkout", "--no-track", "-b", branch, "--"];
    git.call("add the worktree", &args).arg(path).arg(head).bytes().map(drop)
}

/// Writes the files of a worktree that was just added. It has our branch and folder, so failure takes both away.
fn fill(repository: &Repository, record: Record, progress: &mut dyn FnMut(Progress)) -> Result<Worktree> {
    let path = layout::worktrees_dir(repository.root()).join(&record.name);
    let git_dir =
        Git::discovering(&path).call("open the worktree", &["rev-parse", "--absolute-git-dir"]).bytes()?;
    let worktree = Worktree::assemble(repository, output_path(git_dir), record.clone())?;
    progress(Progress::start(Phase::Checkout));
    let filled = worktree
        .git()
        .call("check out the files", &["reset", "--hard", "--no-recurse-submodules"])
        .watched(Phase::Checkout, progress)
        .and_then(|()| admin::write_record(&worktree.git_dir, &record));
    match filled {
        Ok(()) => Ok(worktree),
        Err(error) => {
            // The first error says what is wrong; the clean-up is best effort.
            let _ = worktree.remove(BranchFate::Delete);
            Err(error)
        }
    }
}
