//! Channel names (section 4): parsing and spelling of the URIs that address state.

use std::fmt;

use crate::error::ProtocolError;
use crate::scalar::{Digest, Id};

/// The root channel of AHP.
pub const ROOT: &str = "ahp-root://";
/// The registry of executors.
pub const EXECUTORS: &str = "axp-executors://";
/// The lessons of the repository.
pub const MEMORY: &str = "axp-memory://";

/// A channel that state or commands can be addressed to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Channel {
    /// `ahp-root://`
    Root,
    /// `axp-executors://`
    Executors,
    /// `axp-memory://`
    Memory,
    /// `ahp-session:/ID`
    Session(Id),
    /// `ahp-chat:/ID`
    Chat(Id),
    /// `ahp-changeset:/ID`
    Changeset(Id),
    /// `axp-session:/ID`
    Exchange(Id),
}

impl Channel {
    /// Reads a channel name.
    ///
    /// # Errors
    /// −32602 when it names no kind of channel.
    pub fn parse(text: &str) -> Result<Self, ProtocolError> {
        match text {
            ROOT => return Ok(Self::Root),
            EXECUTORS => return Ok(Self::Executors),
            MEMORY => return Ok(Self::Memory),
            _ => {}
        }
        if let Some((scheme, id)) = text.split_once(":/") {
            let kind: Option<fn(Id) -> Self> = match scheme {
                "ahp-session" => Some(Self::Session),
                "ahp-chat" => Some(Self::Chat),
                "ahp-changeset" => Some(Self::Changeset),
                "axp-session" => Some(Self::Exchange),
                _ => None,
            };
            if let Some(kind) = kind {
                return Id::new(id)
                    .map(kind)
                    .map_err(|why| ProtocolError::invalid_params(format!("channel: {why}")));
            }
        }
        Err(ProtocolError::invalid_params("not a channel of this host")
            .with_data(serde_json::json!({ "path": "channel" })))
    }

    /// The session this channel belongs to, if it belongs to one.
    pub fn session(&self) -> Option<&Id> {
        match self {
            Self::Session(id) | Self::Chat(id) | Self::Changeset(id) | Self::Exchange(id) => Some(id),
            Self::Root | Self::Executors | Self::Memory => None,
        }
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str(ROOT),
            Self::Executors => f.write_str(EXECUTORS),
            Self::Memory => f.write_str(MEMORY),
            Self::Session(id) => write!(f, "ahp-session:/{id}"),
            Self::Chat(id) => write!(f, "ahp-chat:/{id}"),
            Self::Changeset(id) => write!(f, "ahp-changeset:/{id}"),
            Self::Exchange(id) => write!(f, "axp-session:/{id}"),
        }
    }
}

/// The part of a blob URI before its digest: `axp-blob:/CHANNEL/`, CHANNEL percent-encoded (section 5).
pub fn blob_base(session: &Id) -> String {
    format!("axp-blob:/axp-session%3A%2F{session}/")
}

/// URI of a blob of a session.
pub fn blob_uri(session: &Id, digest: &str) -> String {
    format!("{}{digest}", blob_base(session))
}

/// Reads a blob URI into its session and digest.
pub fn parse_blob_uri(uri: &str) -> Option<(Id, Digest)> {
    let (channel, digest) = uri.strip_prefix("axp-blob:/")?.split_once('/')?;
    let channel =
        channel.strip_prefix("axp-session%3A%2F").or_else(|| channel.strip_prefix("axp-session%3a%2f"))?;
    Some((Id::new(channel).ok()?, Digest::new(digest).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_round_trip() {
        for text in [
            ROOT,
            EXECUTORS,
            MEMORY,
            "ahp-session:/a.b",
            "ahp-chat:/a",
            "ahp-changeset:/a",
            "axp-session:/x-1",
        ] {
            assert_eq!(Channel::parse(text).unwrap().to_string(), text);
        }
        for text in
            ["", "ahp-session:/", "ahp-session:/a/b", "axp-session:/-", "ahp-terminal:/a", "AHP-ROOT://"]
        {
            assert!(Channel::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn blob_uris_name_session_and_digest() {
        let id = Id::new("fix-1").unwrap();
        let digest = "ab".repeat(32);
        let uri = blob_uri(&id, &digest);
        assert_eq!(uri, format!("axp-blob:/axp-session%3A%2Ffix-1/{digest}"));
        assert_eq!(parse_blob_uri(&uri).unwrap(), (id, Digest::new(digest).unwrap()));
        assert!(parse_blob_uri("axp-blob:/axp-session%3A%2Ffix-1/xyz").is_none());
        assert!(parse_blob_uri("file:///etc/passwd").is_none());
    }
}
