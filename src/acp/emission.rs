//! What a translated update becomes: blobs to upload, then actions to emit.

use std::fmt;

use ahp_types::actions::StateAction;
use sha2::{Digest, Sha256};

/// Content at most this long stays in an action; anything longer becomes a blob.
pub const INLINE_LIMIT: usize = 4096;

/// The turn that is translated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnContext {
    /// The AHP turn the actions belong to.
    pub turn_id: String,
    /// Where the session's blobs live: `axp-blob:/<percent-encoded channel>/`.
    pub blob_base: String,
    /// What the turn may cost, in USD millionths; more is told through [`TurnEvent::Cost`](super::TurnEvent::Cost).
    pub ceiling_micros: u64,
}

/// One step of a turn. The caller uploads `blobs` first and emits `actions` in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Emission {
    /// Content the actions refer to.
    pub blobs: Vec<BlobOut>,
    /// AHP actions for the session's chat channel.
    pub actions: Vec<StateAction>,
}

impl Emission {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blobs.is_empty() && self.actions.is_empty()
    }
}

/// Content to be stored. Its address follows from its digest, so it is known before the upload.
#[derive(Clone, PartialEq, Eq)]
pub struct BlobOut {
    /// Lower-case hex SHA-256 of `data`.
    pub digest: String,
    /// `blob_base` followed by the digest.
    pub uri: String,
    /// The media type, at most 128 characters.
    pub media_type: String,
    /// The content.
    pub data: Vec<u8>,
}

impl fmt::Debug for BlobOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlobOut")
            .field("uri", &self.uri)
            .field("media_type", &self.media_type)
            .field("size", &self.data.len())
            .finish()
    }
}

/// A stored blob as actions refer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BlobLink {
    pub(super) uri: String,
    pub(super) size: i64,
    pub(super) media_type: String,
}

impl Emission {
    /// Adds a blob, once for the same content, and returns its address.
    pub(super) fn blob(&mut self, base: &str, media_type: &str, data: Vec<u8>) -> BlobLink {
        let digest = hex_digest(&data);
        let media_type = media_type_or_binary(media_type);
        let link = BlobLink {
            uri: format!("{base}{digest}"),
            size: i64::try_from(data.len()).unwrap_or(i64::MAX),
            media_type: media_type.clone(),
        };
        if !self.blobs.iter().any(|blob| blob.digest == digest) {
            self.blobs.push(BlobOut { digest, uri: link.uri.clone(), media_type, data });
        }
        link
    }
}

pub(super) fn hex_digest(data: &[u8]) -> String {
    Sha256::digest(data).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An agent's media type is passed on only if it could be one.
fn media_type_or_binary(media_type: &str) -> String {
    let allowed = |c: char| c.is_ascii_graphic() || c == ' ';
    let plausible = media_type.contains('/') && media_type.len() <= 128 && media_type.chars().all(allowed);
    if plausible { media_type.to_owned() } else { "application/octet-stream".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_is_stored_once_under_its_digest() {
        let mut emission = Emission::default();
        let first = emission.blob("axp-blob:/c/", "text/plain", b"abc".to_vec());
        let again = emission.blob("axp-blob:/c/", "text/plain", b"abc".to_vec());
        assert_eq!(first, again);
        assert_eq!(emission.blobs.len(), 1);
        assert_eq!(first.uri, "axp-blob:/c/ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(first.size, 3);
        assert_eq!(emission.blob("b/", "no type\u{7}", vec![1]).media_type, "application/octet-stream");
    }
}
