//! Tables of the database and how an older file becomes a current one.

use rusqlite::{Connection, OptionalExtension};

use crate::store::StoreError;

/// Marks a SQLite file as one of ours ("AXP1").
const APPLICATION_ID: i64 = 0x4158_5031;

/// One script a schema version. Append only: a released script never changes, because files that ran it exist.
const MIGRATIONS: &[&str] = &[
    "
CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE channels (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    seed TEXT NOT NULL,
    seed_seq INTEGER NOT NULL
) STRICT;

CREATE TABLE snapshots (
    channel INTEGER PRIMARY KEY REFERENCES channels(id),
    through_seq INTEGER NOT NULL,
    state TEXT NOT NULL
) STRICT;

CREATE TABLE log (
    seq INTEGER PRIMARY KEY,
    channel INTEGER NOT NULL REFERENCES channels(id),
    action TEXT NOT NULL,
    origin TEXT
) STRICT;

CREATE UNIQUE INDEX log_by_channel ON log(channel, seq);

CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE clients (
    id TEXT PRIMARY KEY,
    principal TEXT NOT NULL,
    last_seq INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE operations (
    principal TEXT NOT NULL,
    operation TEXT NOT NULL,
    method TEXT NOT NULL,
    input TEXT NOT NULL,
    result TEXT NOT NULL,
    PRIMARY KEY (principal, operation)
) STRICT, WITHOUT ROWID;

CREATE TABLE dispatches (
    client TEXT NOT NULL REFERENCES clients(id),
    seq INTEGER NOT NULL,
    method TEXT NOT NULL,
    input TEXT NOT NULL,
    result TEXT NOT NULL,
    PRIMARY KEY (client, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE blobs (
    id INTEGER PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    size INTEGER NOT NULL,
    data BLOB NOT NULL
) STRICT;

CREATE TABLE blob_access (
    session TEXT NOT NULL REFERENCES sessions(id),
    blob INTEGER NOT NULL REFERENCES blobs(id),
    media_type TEXT NOT NULL,
    PRIMARY KEY (session, blob)
) STRICT, WITHOUT ROWID;
",
    "
CREATE TABLE keys (
    fingerprint TEXT PRIMARY KEY,
    principal TEXT NOT NULL
) STRICT, WITHOUT ROWID;
",
];

/// Newest schema version this program knows.
pub(super) fn known_version() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// Checks that the file is ours and not newer than this program, then brings it up to date. Writes nothing to a file
/// it refuses.
pub(super) fn prepare(connection: &mut Connection, path: &str) -> Result<(), StoreError> {
    let application: i64 = connection.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let objects: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let empty = application == 0 && version == 0 && objects == 0;
    if application != APPLICATION_ID && !empty {
        return Err(StoreError::Damaged("a SQLite file of another program".into()));
    }
    if version > known_version() {
        return Err(StoreError::Newer { path: path.to_owned(), found: version, known: known_version() });
    }

    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(StoreError::Damaged(format!(
            "its file system does not support write-ahead logging (journal mode {mode})"
        )));
    }
    connection.execute_batch(
        "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF;
         PRAGMA journal_size_limit = 67108864;",
    )?;

    let done = usize::try_from(version).unwrap_or_default();
    for (script, version) in MIGRATIONS.iter().zip(1i64..).skip(done) {
        // Script and version number become durable together, so that a crash never repeats half of one.
        let transaction = connection.transaction()?;
        transaction.execute_batch(script)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", version)?;
        transaction.commit()?;
    }
    Ok(())
}

/// Binds a new file to a repository name, or checks the name of an existing one.
pub(super) fn bind_repository(
    connection: &Connection,
    path: &str,
    repository: &str,
) -> Result<(), StoreError> {
    let found: Option<String> = connection
        .query_row("SELECT value FROM meta WHERE key = 'repository'", [], |row| row.get(0))
        .optional()?;
    match found {
        Some(found) if found == repository => Ok(()),
        Some(found) => {
            Err(StoreError::OtherRepository { path: path.to_owned(), found, wanted: repository.to_owned() })
        }
        None => {
            connection.execute("INSERT INTO meta (key, value) VALUES ('repository', ?1)", [repository])?;
            Ok(())
        }
    }
}
