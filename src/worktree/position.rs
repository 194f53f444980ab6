//! Where an agent left HEAD and the worktree's branch, and whether a checkpoint can go on from there.

use std::path::PathBuf;

use super::error::{Result, WorktreeError};
use super::git::{Git, output_path};
use super::handle::Worktree;
use super::names::branch_ref;
use super::repository::{has_commit, is_ancestor, resolve};

/// HEAD of a worktree, known to descend from the base.
#[derive(Debug)]
pub(super) struct Position {
    /// The commit that is checked out.
    pub(super) head: String,
    /// Where the worktree's branch points; the agent may have deleted or renamed it.
    pub(super) tip: Option<String>,
    /// What HEAD was when it was not on the worktree's branch.
    pub(super) strayed: Option<Strayed>,
}

/// HEAD away from the worktree's branch, as it has to be put back when a checkpoint fails.
#[derive(Debug)]
pub(super) enum Strayed {
    /// On another branch, by its full name.
    Branch(String),
    /// On a commit.
    Detached,
}

impl Position {
    /// Reads the position and refuses those from which a checkpoint would lose commits or break other work.
    pub(super) fn read(worktree: &Worktree, git: &Git, base: &str) -> Result<Self> {
        if !has_commit(git, base)? {
            return Err(WorktreeError::CommitMissing { id: base.to_owned() });
        }
        let head = resolve(git, "HEAD")?
            .ok_or_else(|| WorktreeError::UnbornHead { branch: worktree.branch.clone() })?;
        if !is_ancestor(git, base, &head)? {
            return Err(WorktreeError::NotDescendant { head, base: base.to_owned() });
        }
        let own = branch_ref(&worktree.branch);
        let symbolic = git.call("read HEAD", &["symbolic-ref", "--quiet", "HEAD"]).outcome()?;
        let on = symbolic
            .status
            .success()
            .then(|| String::from_utf8_lossy(&symbolic.stdout).trim_end_matches('\n').to_owned());
        if on.as_deref() == Some(&own) {
            return Ok(Self { tip: Some(head.clone()), head, strayed: None });
        }
        let strayed = on.map_or(Strayed::Detached, Strayed::Branch);
        let rebasing =
            ["rebase-merge", "rebase-apply"].iter().any(|name| worktree.git_dir.join(name).exists());
        if rebasing && matches!(strayed, Strayed::Detached) {
            return Err(WorktreeError::RebaseInProgress);
        }
        let tip = resolve(git, &own)?;
        if let Some(tip) = &tip
            && !is_ancestor(git, tip, &head)?
        {
            return Err(WorktreeError::BranchDiverged {
                branch: worktree.branch.clone(),
                tip: tip.clone(),
                head,
            });
        }
        if let Some(path) = checkout_of(git, &own)? {
            return Err(WorktreeError::BranchInUse { branch: worktree.branch.clone(), path });
        }
        Ok(Self { head, tip, strayed: Some(strayed) })
    }
}

/// The checkout that has `branch`, if one has. Moving the branch would make all its files look changed.
fn checkout_of(git: &Git, branch: &str) -> Result<Option<PathBuf>> {
    let list = git.call("list worktrees", &["worktree", "list", "--porcelain"]).bytes()?;
    let wanted = format!("branch {branch}");
    let mut path = PathBuf::new();
    for line in list.split(|&byte| byte == b'\n') {
        if let Some(found) = line.strip_prefix(b"worktree ") {
            path = output_path(found.to_owned());
        } else if line == wanted.as_bytes() {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Moves the worktree's branch, and HEAD onto it; takes both back unless [`Advance::keep`] is called.
///
/// A bundle can only be made of a branch that already points at its head, so the branch moves before the checkpoint
/// is known to succeed. Refs are never followed: a branch that the agent made an alias of a user's branch must not move
/// that one.
pub(super) struct Advance<'a> {
    git: &'a Git,
    position: &'a Position,
    branch: String,
    to: String,
    moved_branch: bool,
    moved_head: bool,
}

impl<'a> Advance<'a> {
    /// Moves the branch to `to`; fails if somebody moved it since the position was read.
    pub(super) fn branch(
        git: &'a Git,
        worktree: &Worktree,
        position: &'a Position,
        to: &str,
    ) -> Result<Self> {
        let branch = branch_ref(&worktree.branch);
        let moved_branch = position.tip.as_deref() != Some(to);
        if moved_branch {
            let none = "0".repeat(to.len());
            let old = position.tip.as_deref().unwrap_or(&none);
            git.call(
                "move the branch",
                &["update-ref", "--no-deref", "-m", "axp: checkpoint", "--", &branch, to, old],
            )
            .bytes()?;
        }
        Ok(Self { git, position, branch, to: to.to_owned(), moved_branch, moved_head: false })
    }

    /// Puts HEAD back on the branch if the agent left it.
    pub(super) fn head(&mut self) -> Result<()> {
        if self.position.strayed.is_some() {
            self.git
                .call("move HEAD", &["symbolic-ref", "-m", "axp: checkpoint", "HEAD", &self.branch])
                .bytes()?;
            self.moved_head = true;
        }
        Ok(())
    }

    /// Makes the moves final.
    pub(super) fn keep(mut self) {
        self.moved_branch = false;
        self.moved_head = false;
    }
}

impl Drop for Advance<'_> {
    fn drop(&mut self) {
        // The error that brought us here is the one to report.
        if self.moved_head {
            let _ = match &self.position.strayed {
                Some(Strayed::Branch(name)) => {
                    self.git.call("put HEAD back", &["symbolic-ref", "HEAD", name]).bytes()
                }
                _ => {
                    let args = ["update-ref", "--no-deref", "--", "HEAD", &self.position.head];
                    self.git.call("put HEAD back", &args).bytes()
                }
            };
        }
        if self.moved_branch {
            let _ = match &self.position.tip {
                Some(tip) => {
                    let args = ["update-ref", "--no-deref", "--", &self.branch, tip, &self.to];
                    self.git.call("put the branch back", &args).bytes()
                }
                None => {
                    let args = ["update-ref", "--no-deref", "-d", "--", &self.branch, &self.to];
                    self.git.call("put the branch back", &args).bytes()
                }
            };
        }
    }
}
