//! What decisions look up beyond the state in memory.

use axp_protocol::scalar::{Digest, Id};

use super::decide::{Lookup, Trace};
use super::state::Session;
use crate::store::{BlobMeta, Reader, Store, StoreError};

/// Looks up what is stored: blobs through the writer, which sees its own open transaction; the log through the
/// reader, for which the batch has been made durable first.
pub(super) struct Stored<'a> {
    pub(super) store: &'a mut dyn Store,
    pub(super) reader: &'a mut dyn Reader,
}

impl Lookup for Stored<'_> {
    fn meta(&mut self, session: &Id, digest: &Digest) -> Result<Option<BlobMeta>, StoreError> {
        self.store.blob_meta(session, digest)
    }

    fn has_events(&mut self, session: &Id, from: u64, to: u64) -> Result<bool, StoreError> {
        let mut found = false;
        self.reader.actions(&Session::channels(session), from.saturating_sub(1), to, &mut |_| {
            found = true;
            false
        })?;
        Ok(found)
    }

    fn trace(&mut self, session: &Id, through: u64) -> Result<Trace, StoreError> {
        crate::reads::trace(self.reader, session, through)
    }
}
