//! Git's own folders for linked worktrees, and the record AXP keeps in them.
//!
//! The record lies beside Git's files for the worktree (`.git/worktrees/ID/axp.json`), where the agent does not work
//! and where it disappears together with the registration.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::{IoContext, Result, WorktreeError};
use super::git::output_path;

const RECORD: &str = "axp.json";

/// What has to be known to reopen a worktree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    pub(super) version: u32,
    pub(super) name: String,
    pub(super) branch: String,
    pub(super) base_commit: String,
}

/// Git's folder for one linked worktree.
#[derive(Debug)]
pub(super) struct Admin {
    pub(super) git_dir: PathBuf,
    /// Where Git believes the worktree is.
    pub(super) checkout: Option<PathBuf>,
    /// Ours, when AXP made the worktree.
    pub(super) record: Option<Record>,
}

/// All linked worktrees of a repository. Folders that cannot be read are left out: they are not ours.
pub(super) fn all(common_dir: &Path) -> Result<Vec<Admin>> {
    let folder = common_dir.join("worktrees");
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.at("read", &folder)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let git_dir = entry.at("read", &folder)?.path();
        let checkout = fs::read(git_dir.join("gitdir")).ok().and_then(|link| {
            let link = output_path(link);
            git_dir.join(link).parent().map(Path::to_owned)
        });
        let record = fs::read(git_dir.join(RECORD)).ok().and_then(|json| serde_json::from_slice(&json).ok());
        found.push(Admin { git_dir, checkout, record });
    }
    found.sort_by(|a, b| a.git_dir.cmp(&b.git_dir));
    Ok(found)
}

/// Writes the record of a new worktree.
pub(super) fn write_record(git_dir: &Path, record: &Record) -> Result<()> {
    let path = git_dir.join(RECORD);
    let json = serde_json::to_vec(record).map_err(|error| WorktreeError::Io {
        action: "write",
        path: path.clone(),
        source: error.into(),
    })?;
    let mut file = tempfile::NamedTempFile::new_in(git_dir).at("write", &path)?;
    file.write_all(&json).at("write", &path)?;
    file.as_file().sync_all().at("write", &path)?;
    file.persist(&path).map_err(|error| error.error).at("write", &path)?;
    Ok(())
}
