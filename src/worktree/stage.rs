//! Stages a whole worktree in an index of its own, so that a failed checkpoint leaves the real index alone.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::changes::GITLINK;
use super::error::{IoContext, Result, WorktreeError};
use super::git::Git;
use super::handle::Worktree;

/// Everything in the worktree that is not ignored, as a tree.
pub(super) struct Staged {
    /// The id of the tree.
    pub(super) tree: String,
    folder: TempDir,
    index: PathBuf,
    lock: PathBuf,
}

impl Staged {
    /// Adds every file that is not ignored to a copy of the index and writes the tree.
    pub(super) fn build(worktree: &Worktree) -> Result<Self> {
        let real = worktree.git_dir.join("index");
        let lock = worktree.git_dir.join("index.lock");
        if fs::symlink_metadata(&lock).is_ok() {
            return Err(WorktreeError::IndexLocked { path: lock });
        }
        // In Git's folder for the worktree: a rename puts the new index in place later.
        let folder = tempfile::Builder::new()
            .prefix("axp-")
            .tempdir_in(&worktree.git_dir)
            .at("create a folder in", &worktree.git_dir)?;
        let index = folder.path().join("index");
        copy_index(&real, &index)?;
        let git = worktree.git().env("GIT_INDEX_FILE", &index);
        add_all(&git)?;
        refuse_dirty_submodules(&git)?;
        let tree = git.call("write the tree", &["write-tree"]).line()?;
        Ok(Self { tree, folder, index, lock })
    }

    /// Commits the tree on top of `parent`. No branch moves.
    pub(super) fn commit(&self, git: &Git, parent: &str, message: &str) -> Result<String> {
        let path = self.folder.path().join("message");
        let clean: String = message.chars().filter(|&c| c != '\0').collect();
        let text = if clean.trim().is_empty() { "AXP checkpoint" } else { clean.trim_end() };
        File::create(&path)
            .and_then(|mut file| file.write_all(format!("{text}\n").as_bytes()))
            .at("write", &path)?;
        git.call("commit", &["commit-tree", "-p", parent, "-F"]).arg(&path).arg(&self.tree).line()
    }

    /// Makes the copy the index of the worktree, under Git's own lock.
    pub(super) fn install(self) -> Result<()> {
        match File::options().write(true).create_new(true).open(&self.lock) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return Err(WorktreeError::IndexLocked { path: self.lock });
            }
            other => drop(other.at("lock", &self.lock)?),
        }
        let real = self.lock.with_file_name("index");
        // A rename keeps the time of the file, which Git compares with those of the files it lists.
        let result = fs::rename(&self.index, &real).at("replace", &real);
        let _ = fs::remove_file(&self.lock);
        result
    }
}

/// Copies an index with its modification time: Git reads every file that changed no earlier than its index, and a
/// younger copy would make it trust entries that only look unchanged.
fn copy_index(from: &Path, to: &Path) -> Result<()> {
    match fs::copy(from, to) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).at("copy", from),
        Ok(_) => {
            let modified = fs::metadata(from).and_then(|metadata| metadata.modified()).at("inspect", from)?;
            File::options().write(true).open(to).and_then(|file| file.set_modified(modified)).at("write", to)
        }
    }
}

fn add_all(git: &Git) -> Result<()> {
    // Without --sparse, a file the agent made outside of a sparse checkout would be refused.
    git.call("stage the files", &["add", "--all", "--sparse", "--", "."]).bytes().map(drop).map_err(|error| {
        match &error {
            WorktreeError::Git { detail, .. } => match repository_without_commit(detail) {
                Some(path) => WorktreeError::EmbeddedRepository { path },
                None => error,
            },
            _ => error,
        }
    })
}

/// The path in `error: 'sub/' does not have a commit checked out`.
fn repository_without_commit(detail: &str) -> Option<String> {
    let line = detail.lines().find_map(|line| line.strip_suffix("' does not have a commit checked out"))?;
    Some(line.strip_prefix("error: '")?.trim_end_matches('/').to_owned())
}

/// Git stages which commit a submodule is at, never the files inside it.
fn refuse_dirty_submodules(git: &Git) -> Result<()> {
    let call = git.call("compare submodules", &["diff-files", "--raw", "-z", "--ignore-submodules=none"]);
    let output = call.bytes()?;
    let mut fields = output.split(|&byte| byte == 0);
    while let (Some(entry), Some(path)) = (fields.next(), fields.next()) {
        let modes: Vec<_> = entry.split(|&byte| byte == b' ').take(2).collect();
        if matches!(modes[..], [_, new] if new == GITLINK.as_bytes()) {
            return Err(WorktreeError::SubmoduleChanges { path: String::from_utf8_lossy(path).into_owned() });
        }
    }
    Ok(())
}
