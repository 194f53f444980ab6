//! The store in one SQLite file.

mod lock;
mod reader;
mod schema;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axp_protocol::channel::Channel;
use axp_protocol::scalar::{Digest, Id};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Row, params};

use self::lock::Lock;
use self::reader::SqliteReader;
use super::{BlobMeta, Loaded, Reader, Receipt, ReceiptKey, Store, StoreError, StoredChannel};

/// More than the statements used here, so that each is compiled once.
const STATEMENTS: usize = 32;
/// How long a write waits for a reader's checkpoint lock before it fails.
const BUSY: Duration = Duration::from_secs(10);

/// A database file held by this process.
#[derive(Debug)]
pub struct SqliteStore {
    // Closed before the lock is let go: fields drop in this order.
    connection: Connection,
    path: PathBuf,
    channels: HashMap<Channel, i64>,
    _lock: Lock,
}

impl SqliteStore {
    /// Opens the database at `path`, or creates it for `repository`, readable by its owner only. The folder must
    /// exist.
    ///
    /// # Errors
    /// [`StoreError::InUse`] while another store holds the file, [`StoreError::OtherRepository`] and
    /// [`StoreError::Newer`] as they say, [`StoreError::Damaged`] when the file is no database of this program,
    /// [`StoreError::Io`] when it cannot be opened.
    pub fn open(path: &Path, repository: &str) -> Result<Self, StoreError> {
        let path = resolve(path)?;
        let lock = Lock::acquire(&path)?;
        // SQLite would create it with the umask's mode; its -wal and -shm files take the mode of this one.
        drop(lock::open_private(&path)?);
        let connection = connect(&path, repository).map_err(|why| match why {
            StoreError::Damaged(what) => StoreError::Damaged(format!("{}: {what}", path.display())),
            other => other,
        })?;
        Ok(Self { connection, path, channels: HashMap::new(), _lock: lock })
    }

    /// Interned ID of a channel.
    fn channel_id(&mut self, channel: &Channel) -> Result<i64, StoreError> {
        if let Some(id) = self.channels.get(channel) {
            return Ok(*id);
        }
        let name = channel.to_string();
        let id = self
            .connection
            .prepare_cached("SELECT id FROM channels WHERE name = ?1")?
            .query_row([&name], |row| row.get(0))
            .optional()?
            .ok_or_else(|| StoreError::Damaged(format!("channel {name} was never created")))?;
        self.channels.insert(channel.clone(), id);
        Ok(id)
    }

    fn blob_id(&self, digest: &Digest) -> Result<Option<i64>, StoreError> {
        let mut statement = self.connection.prepare_cached("SELECT id FROM blobs WHERE digest = ?1")?;
        Ok(statement.query_row([digest.as_str()], |row| row.get(0)).optional()?)
    }

    /// Runs a query of one unsigned number.
    fn count(&self, sql: &str) -> Result<u64, StoreError> {
        unsigned(self.connection.query_row(sql, [], |row| row.get(0))?)
    }
}

impl Store for SqliteStore {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        let seq = self.count(
            "SELECT max(coalesce((SELECT max(seq) FROM log), 0), coalesce((SELECT max(seed_seq) FROM channels), 0),
                        coalesce((SELECT max(through_seq) FROM snapshots), 0))",
        )?;
        let blob_bytes = self.count("SELECT coalesce(sum(size), 0) FROM blobs")?;

        let mut channels = Vec::new();
        let mut newest = self.connection.prepare(
            "SELECT c.id, c.name, coalesce(s.state, c.seed), coalesce(s.through_seq, c.seed_seq)
             FROM channels c LEFT JOIN snapshots s ON s.channel = c.id ORDER BY c.id",
        )?;
        let mut newer = self
            .connection
            .prepare("SELECT seq, action FROM log WHERE channel = ?1 AND seq > ?2 ORDER BY seq")?;
        let mut rows = newest.query([])?;
        while let Some(row) = rows.next()? {
            let id: i64 = row.get(0)?;
            let name: String = row.get(1)?;
            let through: i64 = row.get(3)?;
            let channel =
                Channel::parse(&name).map_err(|_| StoreError::Damaged(format!("channel name {name:?}")))?;
            let mut actions = Vec::new();
            let mut log = newer.query([id, through])?;
            while let Some(row) = log.next()? {
                actions.push((unsigned(row.get(0)?)?, row.get(1)?));
            }
            channels.push(StoredChannel {
                channel,
                state: row.get(2)?,
                through_seq: unsigned(through)?,
                actions,
            });
        }

        let mut clients = Vec::new();
        let mut statement = self.connection.prepare("SELECT id, principal, last_seq FROM clients")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            clients.push((row.get(0)?, id(row, 1)?, unsigned(row.get(2)?)?));
        }

        let mut sessions = Vec::new();
        let mut statement = self.connection.prepare("SELECT id, created_at FROM sessions")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            sessions.push((id(row, 0)?, unsigned(row.get(1)?)?));
        }

        let mut keys = Vec::new();
        let mut statement = self.connection.prepare("SELECT fingerprint, principal FROM keys")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let fingerprint: String = row.get(0)?;
            let fingerprint = Digest::new(fingerprint)
                .map_err(|why| StoreError::Damaged(format!("fingerprint of a key: {why}")))?;
            keys.push((fingerprint, id(row, 1)?));
        }
        Ok(Loaded { seq, channels, clients, sessions, keys, blob_bytes })
    }

    fn begin(&mut self) -> Result<(), StoreError> {
        Ok(self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(drop)?)
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        let done = self.connection.prepare_cached("COMMIT")?.execute([]).map(drop);
        if done.is_err() {
            // A commit that failed may leave the transaction open; the contract is that nothing of it stays.
            self.rollback();
        }
        Ok(done?)
    }

    fn rollback(&mut self) {
        // Channels created in the transaction have lost their IDs.
        self.channels.clear();
        if !self.connection.is_autocommit()
            && let Err(why) = self.connection.execute_batch("ROLLBACK")
        {
            tracing::error!(error = %why, "the database did not roll back");
        }
    }

    fn create_channel(&mut self, channel: &Channel, seed: &str, seq: u64) -> Result<(), StoreError> {
        let id = self
            .connection
            .prepare_cached("INSERT INTO channels (name, seed, seed_seq) VALUES (?1, ?2, ?3)")?
            .insert(params![channel.to_string(), seed, number(seq)])?;
        self.channels.insert(channel.clone(), id);
        Ok(())
    }

    fn create_session(&mut self, session: &Id, created_at: u64) -> Result<(), StoreError> {
        self.connection
            .prepare_cached("INSERT INTO sessions (id, created_at) VALUES (?1, ?2)")?
            .execute(params![session.as_str(), number(created_at)])?;
        Ok(())
    }

    fn append(
        &mut self,
        seq: u64,
        channel: &Channel,
        action: &str,
        origin: Option<&str>,
    ) -> Result<(), StoreError> {
        let channel = self.channel_id(channel)?;
        self.connection
            .prepare_cached("INSERT INTO log (seq, channel, action, origin) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![number(seq), channel, action, origin])?;
        Ok(())
    }

    fn put_snapshot(&mut self, channel: &Channel, through_seq: u64, state: &str) -> Result<(), StoreError> {
        let channel = self.channel_id(channel)?;
        self.connection
            .prepare_cached(
                "INSERT INTO snapshots (channel, through_seq, state) VALUES (?1, ?2, ?3)
                 ON CONFLICT (channel) DO UPDATE SET through_seq = excluded.through_seq, state = excluded.state",
            )?
            .execute(params![channel, number(through_seq), state])?;
        Ok(())
    }

    fn receipt(&mut self, key: &ReceiptKey) -> Result<Option<Receipt>, StoreError> {
        let read =
            |row: &Row<'_>| Ok(Receipt { method: row.get(0)?, input: row.get(1)?, result: row.get(2)? });
        let found = match key {
            ReceiptKey::Operation { principal, operation } => self
                .connection
                .prepare_cached(
                    "SELECT method, input, result FROM operations WHERE principal = ?1 AND operation = ?2",
                )?
                .query_row([principal.as_str(), operation.as_str()], read),
            ReceiptKey::Dispatch { client, seq } => self
                .connection
                .prepare_cached(
                    "SELECT method, input, result FROM dispatches WHERE client = ?1 AND seq = ?2",
                )?
                .query_row(params![client, number(*seq)], read),
        };
        Ok(found.optional()?)
    }

    fn put_receipt(&mut self, key: &ReceiptKey, receipt: &Receipt) -> Result<(), StoreError> {
        let Receipt { method, input, result } = receipt;
        match key {
            ReceiptKey::Operation { principal, operation } => {
                self.connection
                    .prepare_cached(
                        "INSERT INTO operations (principal, operation, method, input, result)
                         VALUES (?1, ?2, ?3, ?4, ?5)",
                    )?
                    .execute([principal.as_str(), operation.as_str(), method, input, result])?;
            }
            ReceiptKey::Dispatch { client, seq } => {
                self.connection
                    .prepare_cached(
                        "INSERT INTO dispatches (client, seq, method, input, result) VALUES (?1, ?2, ?3, ?4, ?5)",
                    )?
                    .execute(params![client, number(*seq), method, input, result])?;
                self.connection
                    .prepare_cached("UPDATE clients SET last_seq = max(last_seq, ?2) WHERE id = ?1")?
                    .execute(params![client, number(*seq)])?;
            }
        }
        Ok(())
    }

    fn bind_key(&mut self, key: &Digest, principal: &Id) -> Result<(), StoreError> {
        self.connection
            .prepare_cached(
                "INSERT INTO keys (fingerprint, principal) VALUES (?1, ?2) ON CONFLICT (fingerprint) DO NOTHING",
            )?
            .execute([key.as_str(), principal.as_str()])?;
        Ok(())
    }

    fn bind_client(&mut self, client: &str, principal: &Id) -> Result<(), StoreError> {
        self.connection
            .prepare_cached(
                "INSERT INTO clients (id, principal) VALUES (?1, ?2) ON CONFLICT (id) DO NOTHING",
            )?
            .execute([client, principal.as_str()])?;
        Ok(())
    }

    fn put_blob(&mut self, digest: &Digest, data: &[u8]) -> Result<bool, StoreError> {
        // Looked up first, because binding the content copies it.
        if self.blob_id(digest)?.is_some() {
            return Ok(false);
        }
        let size = i64::try_from(data.len()).unwrap_or(i64::MAX);
        self.connection
            .prepare_cached("INSERT INTO blobs (digest, size, data) VALUES (?1, ?2, ?3)")?
            .execute(params![digest.as_str(), size, data])?;
        Ok(true)
    }

    fn link_blob(&mut self, session: &Id, digest: &Digest, media_type: &str) -> Result<(), StoreError> {
        let blob = self
            .blob_id(digest)?
            .ok_or_else(|| StoreError::Damaged(format!("blob {digest} was never stored")))?;
        self.connection
            .prepare_cached(
                "INSERT INTO blob_access (session, blob, media_type) VALUES (?1, ?2, ?3)
                 ON CONFLICT (session, blob) DO NOTHING",
            )?
            .execute(params![session.as_str(), blob, media_type])?;
        Ok(())
    }

    fn blob_meta(&mut self, session: &Id, digest: &Digest) -> Result<Option<BlobMeta>, StoreError> {
        let found: Option<(i64, String)> = self
            .connection
            .prepare_cached(
                "SELECT b.size, a.media_type FROM blobs b JOIN blob_access a ON a.blob = b.id
                 WHERE b.digest = ?1 AND a.session = ?2",
            )?
            .query_row([digest.as_str(), session.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        found.map(|(size, media_type)| Ok(BlobMeta { size: unsigned(size)?, media_type })).transpose()
    }

    fn reader(&self) -> Result<Box<dyn Reader>, StoreError> {
        Ok(Box::new(SqliteReader::open(&self.path)?))
    }
}

fn connect(path: &Path, repository: &str) -> Result<Connection, StoreError> {
    // No URI flag: a path is a path, whatever it looks like.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    let name = path.display().to_string();
    schema::prepare(&mut connection, &name)?;
    schema::bind_repository(&connection, &name, repository)?;
    Ok(connection)
}

/// The one name of the file, so that two paths to it meet at one lock.
fn resolve(path: &Path) -> Result<PathBuf, StoreError> {
    if let Ok(whole) = path.canonicalize() {
        if whole.is_dir() {
            return Err(lock::io_error(path, std::io::ErrorKind::IsADirectory.into()));
        }
        return Ok(whole);
    }
    let name = path.file_name().ok_or_else(|| {
        lock::io_error(path, std::io::Error::new(std::io::ErrorKind::InvalidInput, "not the name of a file"))
    })?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = folder.canonicalize().map_err(|source| lock::io_error(folder, source))?;
    Ok(folder.join(name))
}

/// As SQLite keeps it. The protocol's integers end at 2^53 − 1; an open end (`u64::MAX`) stays one.
fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn unsigned(value: i64) -> Result<u64, StoreError> {
    u64::try_from(value).map_err(|_| StoreError::Damaged(format!("{value} where nothing negative can be")))
}

fn id(row: &Row<'_>, column: usize) -> Result<Id, StoreError> {
    Id::new(row.get::<_, String>(column)?).map_err(StoreError::Damaged)
}

impl From<rusqlite::Error> for StoreError {
    /// Tells a file that is broken, which no retry helps, from a failure such as a full disk.
    fn from(error: rusqlite::Error) -> Self {
        let broken = match &error {
            rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::Utf8Error(..) => true,
            other => matches!(
                other.sqlite_error_code(),
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
            ),
        };
        if broken { Self::Damaged(error.to_string()) } else { Self::Sqlite(error) }
    }
}
