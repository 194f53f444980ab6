//! The lock that keeps a second host process away from a database.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::store::StoreError;

/// A held lock. The operating system frees it when the file closes, also by a crash; the file itself stays, because
/// deleting it would let two processes hold locks on two files of the same name.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A process that is just being started has the file open too, until it runs its own program: closing ours
        // would not free the lock yet.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl Lock {
    /// Takes the lock of the database at `path`.
    ///
    /// # Errors
    /// [`StoreError::InUse`] when another open store holds it, [`StoreError::Io`] when the file cannot be opened.
    pub(super) fn acquire(path: &Path) -> Result<Self, StoreError> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let lock_path = PathBuf::from(name);
        let file = open_private(&lock_path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { file }),
            Err(Errno::WOULDBLOCK) => Err(StoreError::InUse { path: path.display().to_string() }),
            Err(errno) => Err(io_error(&lock_path, errno.into())),
        }
    }
}

/// Opens a file for reading and writing; one that does not exist yet is created for its owner only.
pub(super) fn open_private(path: &Path) -> Result<File, StoreError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map_err(|source| io_error(path, source))
}

/// An I/O error that names its file.
pub(super) fn io_error(path: &Path, source: std::io::Error) -> StoreError {
    StoreError::Io { path: path.display().to_string(), source }
}
