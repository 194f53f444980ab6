//! Where `axp` keeps its own state on this machine.

use std::path::PathBuf;

use directories::ProjectDirs;

use super::error::CliError;

/// Folder of the ledgers: `ledgers` in the user's state folder.
///
/// # Errors
/// When the user has no home.
pub(crate) fn ledgers() -> Result<PathBuf, CliError> {
    let dirs = ProjectDirs::from("", "", "axp").ok_or_else(|| {
        CliError::failed("there is no home folder to keep the ledger in").hint("set HOME, or XDG_STATE_HOME")
    })?;
    Ok(dirs.state_dir().unwrap_or_else(|| dirs.data_local_dir()).join("ledgers"))
}
