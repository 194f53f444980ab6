//! A connection that reads what is committed, beside the writer.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::path::Path;

use axp_protocol::channel::Channel;
use axp_protocol::scalar::{Digest, Id};
use rusqlite::{Connection, OpenFlags, OptionalExtension, Rows, params};
use serde_json::value::RawValue;

use super::{number, unsigned};
use crate::store::{LoggedAction, Reader, StoreError};

/// Reader over its own read-only connection.
pub(super) struct SqliteReader {
    connection: Connection,
}

impl SqliteReader {
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.execute_batch("PRAGMA trusted_schema = OFF;")?;
        // One statement a channel is open while a log is read.
        connection.set_prepared_statement_cache_capacity(64);
        Ok(Self { connection })
    }

    fn channel_id(&self, name: &str) -> Result<Option<i64>, StoreError> {
        let mut statement = self.connection.prepare_cached("SELECT id FROM channels WHERE name = ?1")?;
        Ok(statement.query_row([name], |row| row.get(0)).optional()?)
    }
}

impl Reader for SqliteReader {
    fn blob(&mut self, session: &Id, digest: &Digest) -> Result<Option<(Vec<u8>, String)>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT b.data, a.media_type FROM blobs b JOIN blob_access a ON a.blob = b.id
             WHERE b.digest = ?1 AND a.session = ?2",
        )?;
        Ok(statement
            .query_row([digest.as_str(), session.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?)
    }

    fn seeds(&mut self, channels: &[Channel]) -> Result<Vec<(String, String, u64)>, StoreError> {
        let mut statement =
            self.connection.prepare_cached("SELECT seed, seed_seq FROM channels WHERE name = ?1")?;
        let mut seeds = Vec::with_capacity(channels.len());
        for channel in channels {
            let name = channel.to_string();
            let row: Option<(String, i64)> =
                statement.query_row([&name], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
            if let Some((seed, seq)) = row {
                seeds.push((name, seed, unsigned(seq)?));
            }
        }
        Ok(seeds)
    }

    /// Merges one ordered cursor a channel, so that memory holds one row a channel however long the log is, and
    /// channels nobody asked for cost nothing.
    fn actions(
        &mut self,
        channels: &[Channel],
        after: u64,
        through: u64,
        visit: &mut dyn FnMut(LoggedAction) -> bool,
    ) -> Result<(), StoreError> {
        let mut sources = Vec::new();
        for name in channels.iter().map(Channel::to_string).collect::<BTreeSet<_>>() {
            if let Some(id) = self.channel_id(&name)? {
                let statement = self.connection.prepare_cached(
                    "SELECT seq, action, origin FROM log WHERE channel = ?1 AND seq > ?2 AND seq <= ?3
                     ORDER BY seq",
                )?;
                sources.push((name, id, statement));
            }
        }
        let mut cursors: Vec<(&str, Rows<'_>)> = Vec::with_capacity(sources.len());
        for (name, id, statement) in &mut sources {
            cursors.push((name, statement.query(params![*id, number(after), number(through)])?));
        }
        // The next row of each cursor, and a heap that knows which of them comes first.
        let mut waiting = Vec::with_capacity(cursors.len());
        let mut order = BinaryHeap::with_capacity(cursors.len());
        for (index, (name, rows)) in cursors.iter_mut().enumerate() {
            let row = next(name, rows)?;
            order.extend(row.as_ref().map(|row| Reverse((row.seq, index))));
            waiting.push(row);
        }
        while let Some(Reverse((_, index))) = order.pop() {
            let (Some((name, rows)), Some(slot)) = (cursors.get_mut(index), waiting.get_mut(index)) else {
                break;
            };
            if let Some(row) = slot.take()
                && !visit(row)
            {
                break;
            }
            *slot = next(name, rows)?;
            order.extend(slot.as_ref().map(|row| Reverse((row.seq, index))));
        }
        Ok(())
    }
}

fn next(channel: &str, rows: &mut Rows<'_>) -> Result<Option<LoggedAction>, StoreError> {
    let Some(row) = rows.next()? else { return Ok(None) };
    let seq = unsigned(row.get(0)?)?;
    let raw = |json: String| {
        RawValue::from_string(json).map_err(|why| StoreError::Damaged(format!("action {seq}: {why}")))
    };
    let origin: Option<String> = row.get(2)?;
    Ok(Some(LoggedAction {
        seq,
        channel: channel.to_owned(),
        action: raw(row.get(1)?)?,
        origin: origin.map(raw).transpose()?,
    }))
}
