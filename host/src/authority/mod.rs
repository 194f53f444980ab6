//! One thread that owns all state.

use crate::store::{Store, StoreError};

/// What the authority is told at start.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Repository name; a database belongs to one.
    pub repository: String,
}

/// Sends commands to the authority. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle;

impl Handle {
    /// Asks the authority to finish its transaction, answer what waits, and end. Returns at once; join the thread.
    pub fn stop(&self) {}
}

/// Loads the store, ends what a previous process left running, and starts the thread.
///
/// # Errors
/// When stored data cannot be read.
pub fn spawn(
    _store: Box<dyn Store>,
    _settings: Settings,
) -> Result<(Handle, std::thread::JoinHandle<()>), StoreError> {
    Ok((Handle, std::thread::spawn(|| {})))
}
