//! Durable state: the log of actions, receipts, blobs and a snapshot of each channel now and then.
//!
//! One writer, the authority thread, calls [`Store`] inside transactions it opens and commits; anyone may read
//! committed data through a [`Reader`] of their own.

mod sqlite;

use axp_protocol::channel::Channel;
use axp_protocol::scalar::{Digest, Id};
use serde_json::value::RawValue;

pub use sqlite::SqliteStore;

/// Why storage failed. Nothing of the transaction stays.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another live process holds the database.
    #[error("{path} is in use by another host process")]
    InUse {
        /// The database file.
        path: String,
    },
    /// The database was made for another repository.
    #[error("{path} belongs to repository {found:?}, not {wanted:?}")]
    OtherRepository {
        /// The database file.
        path: String,
        /// Name stored in it.
        found: String,
        /// Name asked for.
        wanted: String,
    },
    /// The file was written by a newer version.
    #[error("{path} has schema version {found}, this version reads up to {known}")]
    Newer {
        /// The database file.
        path: String,
        /// Version found.
        found: i64,
        /// Newest version this program knows.
        known: i64,
    },
    /// Stored data does not read back.
    #[error("stored data is damaged: {0}")]
    Damaged(String),
    /// SQLite said no: disk full, unwritable, corrupt.
    #[error("database: {0}")]
    Sqlite(#[source] rusqlite::Error),
    /// The file system said no.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// What it said.
        source: std::io::Error,
    },
}

/// A channel as it was stored: newest snapshot and the newer actions.
#[derive(Debug)]
pub struct StoredChannel {
    /// Which.
    pub channel: Channel,
    /// JSON of the newest snapshot, or of the seed.
    pub state: String,
    /// Sequence number that state includes.
    pub through_seq: u64,
    /// JSON of each newer action, with its sequence number, in order.
    pub actions: Vec<(u64, String)>,
}

/// Everything the authority needs at start.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Newest sequence number; 0 in a new database.
    pub seq: u64,
    /// All channels.
    pub channels: Vec<StoredChannel>,
    /// Client IDs: bound principal and highest clientSeq used.
    pub clients: Vec<(String, Id, u64)>,
    /// Catalogue times of sessions: ID, createdAt (ms).
    pub sessions: Vec<(Id, u64)>,
    /// Fingerprints of signing keys, and who first used each.
    pub keys: Vec<(Digest, Id)>,
    /// Bytes of all blobs together.
    pub blob_bytes: u64,
}

/// What identifies a mutation that may be repeated (section 7).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReceiptKey {
    /// A principal's operation ID.
    Operation {
        /// Principal.
        principal: Id,
        /// Operation.
        operation: Id,
    },
    /// A client's dispatch.
    Dispatch {
        /// Client.
        client: String,
        /// Its clientSeq.
        seq: u64,
    },
}

/// The stored outcome of a mutation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Method it was.
    pub method: String,
    /// Hash of its canonical params.
    pub input: String,
    /// JSON of its result.
    pub result: String,
}

/// A blob without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobMeta {
    /// Bytes.
    pub size: u64,
    /// MIME type this session knows it by.
    pub media_type: String,
}

/// A row of the log.
#[derive(Debug)]
pub struct LoggedAction {
    /// Place in the order.
    pub seq: u64,
    /// Channel name.
    pub channel: String,
    /// JSON of the action.
    pub action: Box<RawValue>,
    /// JSON of the origin, if a client dispatched it.
    pub origin: Option<Box<RawValue>>,
}

/// The writer. All methods but [`load`](Store::load) run inside a transaction that [`begin`](Store::begin) opened;
/// receipts and blobs written in it are visible to its own later reads.
pub trait Store: Send {
    /// Reads everything the authority needs at start.
    fn load(&mut self) -> Result<Loaded, StoreError>;
    /// Opens a transaction.
    fn begin(&mut self) -> Result<(), StoreError>;
    /// Makes it durable: when this returns, a power cut loses nothing of it.
    fn commit(&mut self) -> Result<(), StoreError>;
    /// Drops it. Never fails: a connection that cannot roll back has nothing open.
    fn rollback(&mut self);

    /// Adds a channel with its first state.
    fn create_channel(&mut self, channel: &Channel, seed: &str, seq: u64) -> Result<(), StoreError>;
    /// Adds a session to the catalogue. `created_at` in ms.
    fn create_session(&mut self, session: &Id, created_at: u64) -> Result<(), StoreError>;
    /// Adds an action to the log.
    fn append(
        &mut self,
        seq: u64,
        channel: &Channel,
        action: &str,
        origin: Option<&str>,
    ) -> Result<(), StoreError>;
    /// Replaces a channel's snapshot.
    fn put_snapshot(&mut self, channel: &Channel, through_seq: u64, state: &str) -> Result<(), StoreError>;

    /// Finds a receipt.
    fn receipt(&mut self, key: &ReceiptKey) -> Result<Option<Receipt>, StoreError>;
    /// Stores a receipt; also raises the client's highest clientSeq for a dispatch.
    fn put_receipt(&mut self, key: &ReceiptKey, receipt: &Receipt) -> Result<(), StoreError>;
    /// Binds a client ID to the principal that first used it.
    fn bind_client(&mut self, client: &str, principal: &Id) -> Result<(), StoreError>;
    /// Binds a signing key, by its fingerprint, to the principal that first used it.
    fn bind_key(&mut self, key: &Digest, principal: &Id) -> Result<(), StoreError>;

    /// Stores content once, whatever sessions it belongs to; true when it is new.
    fn put_blob(&mut self, digest: &Digest, data: &[u8]) -> Result<bool, StoreError>;
    /// Gives a session access to a stored blob; keeps the first media type.
    fn link_blob(&mut self, session: &Id, digest: &Digest, media_type: &str) -> Result<(), StoreError>;
    /// A blob as the session knows it.
    fn blob_meta(&mut self, session: &Id, digest: &Digest) -> Result<Option<BlobMeta>, StoreError>;

    /// A reader of committed data with a connection of its own.
    fn reader(&self) -> Result<Box<dyn Reader>, StoreError>;
}

/// Reads committed data, beside the writer.
pub trait Reader: Send {
    /// Content and media type of a session's blob.
    fn blob(&mut self, session: &Id, digest: &Digest) -> Result<Option<(Vec<u8>, String)>, StoreError>;
    /// Seeds of channels: name, JSON, sequence number it was made at.
    fn seeds(&mut self, channels: &[Channel]) -> Result<Vec<(String, String, u64)>, StoreError>;
    /// Visits the log of these channels after `after` up to and including `through`, in order; stops when `visit`
    /// returns false.
    fn actions(
        &mut self,
        channels: &[Channel],
        after: u64,
        through: u64,
        visit: &mut dyn FnMut(LoggedAction) -> bool,
    ) -> Result<(), StoreError>;
}
