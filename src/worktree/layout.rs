//! The `.axp` folder in the user's checkout, and the line that keeps Git from seeing it.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::error::{IoContext, Result, WorktreeError};
use super::repository::Repository;

const FOLDER: &str = ".axp";
const WORKTREES: &str = "worktrees";
const EXCLUDE_LINE: &str = "/.axp/";

/// The folder of all worktrees of a checkout.
pub(super) fn worktrees_dir(root: &Path) -> PathBuf {
    root.join(FOLDER).join(WORKTREES)
}

/// The checkout that a worktree of ours at `path` belongs to, judged by its place alone.
pub(super) fn enclosing_root(path: &Path) -> Option<&Path> {
    let worktrees = path.parent()?;
    let folder = worktrees.parent()?;
    (worktrees.ends_with(WORKTREES) && folder.ends_with(FOLDER)).then(|| folder.parent()).flatten()
}

/// Makes the folder for worktrees, private to the user, and hides it from Git. Returns the folder.
pub(super) fn prepare(repository: &Repository) -> Result<PathBuf> {
    let worktrees = worktrees_dir(repository.root());
    exclude(repository)?;
    create_private(&repository.root().join(FOLDER))?;
    create_private(&worktrees)?;
    Ok(worktrees)
}

/// A symbolic link here would let files land outside of the project, so only real folders will do.
fn create_private(path: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let metadata = fs::symlink_metadata(path).at("inspect", path)?;
            if metadata.is_dir() {
                Ok(())
            } else {
                Err(WorktreeError::UnsafeFolder { path: path.to_owned() })
            }
        }
        other => other.at("create", path),
    }
}

fn exclude(repository: &Repository) -> Result<()> {
    let info = repository.common_dir().join("info");
    let path = info.join("exclude");
    let present = match fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        other => other.at("read", &path)?,
    };
    if present.split(|&byte| byte == b'\n').any(|line| line.trim_ascii() == EXCLUDE_LINE.as_bytes()) {
        return Ok(());
    }
    fs::create_dir_all(&info).at("create", &info)?;
    let separator = if present.is_empty() || present.ends_with(b"\n") { "" } else { "\n" };
    let mut file = OpenOptions::new().create(true).append(true).open(&path).at("open", &path)?;
    // One write, so that two processes at once repeat the line at worst.
    file.write_all(format!("{separator}{EXCLUDE_LINE}\n").as_bytes()).at("write", &path)
}
