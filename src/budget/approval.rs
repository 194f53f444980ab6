//! A limit that the donor approved on this machine while a park holds the ledger.
//!
//! The ledger belongs to the process that parks. Whoever changes a grant from another terminal leaves the new limit
//! here; the park takes it up when the host tells it that the grant changed. A host alone can lower what is spent,
//! never raise it.

use std::io::Write;
use std::path::{Path, PathBuf};

use axp_protocol::shape::Allowance;

use super::ledger::{Account, LedgerError, create_private_folder};

fn path(folder: &Path, account: &Account) -> PathBuf {
    folder.join(account.file_name()).with_extension("limit")
}

/// Leaves a limit for the park that holds this account's ledger.
///
/// # Errors
/// When it cannot be written.
pub fn approve_limit(folder: &Path, account: &Account, limit: Allowance) -> Result<(), LedgerError> {
    let path = path(folder, account);
    let io = |source| LedgerError::Io { path: path.clone(), source };
    create_private_folder(folder).map_err(io)?;
    // Named temporary files are private, and a rename is all or nothing.
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(io)?;
    let json = serde_json::to_vec(&limit).map_err(|e| io(e.into()))?;
    file.write_all(&json).and_then(|()| file.as_file().sync_all()).map_err(io)?;
    file.persist(&path).map_err(|e| io(e.error))?;
    Ok(())
}

/// The limit the donor left, if any that reads back.
pub fn approved_limit(folder: &Path, account: &Account) -> Option<Allowance> {
    serde_json::from_slice(&std::fs::read(path(folder, account)).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_found_by_its_account_only() {
        let folder = tempfile::tempdir().unwrap();
        let account = |grant: &str| Account {
            host: "wss://h/axp".into(),
            repository: "o/r".into(),
            session: "s".into(),
            grant: grant.into(),
        };
        let limit = Allowance { tokens: 1, cost_micros: 2, turns: 3 };
        assert_eq!(approved_limit(folder.path(), &account("a")), None);
        approve_limit(folder.path(), &account("a"), limit).unwrap();
        assert_eq!(approved_limit(folder.path(), &account("a")), Some(limit));
        assert_eq!(approved_limit(folder.path(), &account("b")), None);
    }
}
