//! SQLite, embedded.
/// SQLite, embedded.
pub struct SqliteStore;
