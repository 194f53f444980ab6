//! A worktree that exists: what it is, how it is found again, and how it goes.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::admin::{self, Admin, Record};
use super::error::{IoContext, Result, WorktreeError};
use super::git::Git;
use super::layout::{enclosing_root, worktrees_dir};
use super::names::parse_commit_id;
use super::repository::Repository;

/// A worktree that AXP made, on a branch of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Worktree {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) branch: String,
    pub(super) base_commit: String,
    #[serde(skip)]
    pub(super) git_dir: PathBuf,
    #[serde(skip)]
    pub(super) common_dir: PathBuf,
}

/// What becomes of the branch when its worktree is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BranchFate {
    /// The branch stays, with all that was committed.
    Keep,
    /// The branch is deleted, unless another checkout is on it (then that is an error, after the folder is gone).
    Delete,
}

impl Worktree {
    /// Opens the worktree at `path` again, for instance after a restart.
    ///
    /// The registration in the repository decides, not the `.git` file in the folder: the agent may have damaged it.
    pub fn open(path: &Path) -> Result<Self> {
        let unknown = || WorktreeError::NotAWorktree { path: path.to_owned() };
        let path = match path.canonicalize() {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(unknown()),
            other => other.at("open", path)?,
        };
        let root = enclosing_root(&path).ok_or_else(unknown)?;
        let repository = Repository::discover(root)?;
        if repository.root() != root {
            return Err(unknown());
        }
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(unknown)?;
        let mut named: Vec<_> = admin::all(repository.common_dir())?
            .into_iter()
            .filter(|admin| admin.record.as_ref().is_some_and(|record| record.name == name))
            .collect();
        // Git's link is stale after the whole project was moved; the name is enough when it is the only one.
        if let Some(linked) = named.iter().position(|admin| admin.checkout.as_deref() == Some(&path)) {
            named = vec![named.swap_remove(linked)];
        }
        match <[Admin; 1]>::try_from(named) {
            Ok([Admin { git_dir, record: Some(record), .. }]) => Self::assemble(&repository, git_dir, record),
            _ => Err(unknown()),
        }
    }

    /// All worktrees of AXP in this checkout whose folder still exists.
    pub fn list(repository: &Repository) -> Result<Vec<Self>> {
        let folder = worktrees_dir(repository.root());
        let mut found = Vec::new();
        for admin in admin::all(repository.common_dir())? {
            if let (Some(record), Some(checkout)) = (admin.record, admin.checkout)
                && checkout == folder.join(&record.name)
                && checkout.is_dir()
            {
                found.push(Self::assemble(repository, admin.git_dir, record)?);
            }
        }
        Ok(found)
    }

    pub(super) fn assemble(repository: &Repository, git_dir: PathBuf, record: Record) -> Result<Self> {
        Ok(Self {
            path: worktrees_dir(repository.root()).join(&record.name),
            name: record.name,
            branch: record.branch,
            base_commit: parse_commit_id(&record.base_commit)?,
            git_dir,
            common_dir: repository.common_dir().to_owned(),
        })
    }

    /// The name, which is also the folder's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder the agent works in.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The branch, such as `axp/NAME`.
    pub fn branch(&self) -> &str {
        &self.branch
    }

    /// The commit the work builds on.
    pub fn base_commit(&self) -> &str {
        &self.base_commit
    }

    /// Deletes the folder and its registration, with whatever is not committed.
    pub fn remove(self, branch: BranchFate) -> Result<()> {
        remove_folder(&self.path)?;
        remove_folder(&self.git_dir)?;
        if branch == BranchFate::Delete {
            let shared = Git::on(&self.common_dir, &self.common_dir);
            shared.call("delete the branch", &["branch", "-D", "--quiet", "--", &self.branch]).bytes()?;
        }
        Ok(())
    }

    /// Git on this worktree, even when the `.git` file in the folder is gone: without this, git would find the user's
    /// repository around the folder and work there.
    pub(super) fn git(&self) -> Git {
        Git::on(&self.path, &self.git_dir).env("GIT_WORK_TREE", &self.path)
    }
}

/// Deletes a folder; build tools leave folders that even their owner may not write to.
fn remove_folder(path: &Path) -> Result<()> {
    let result = match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            unlock(path).and_then(|()| fs::remove_dir_all(path))
        }
        other => other,
    };
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other.at("delete", path),
    }
}

fn unlock(folder: &Path) -> std::io::Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // The type of the entry itself: links are never followed.
        if entry.file_type()?.is_dir() {
            unlock(&entry.path())?;
        }
    }
    Ok(())
}
