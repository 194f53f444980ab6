//! The host's configuration file and the credentials in it (section 3).

use std::collections::HashSet;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axp_protocol::canonical::hex;
use axp_protocol::limits::{QUEUE_BYTES, TOKEN_CHARS};
use axp_protocol::principal::{AllSessions, Principal, Role, SessionScope};
use axp_protocol::scalar::{Digest, Id, Text};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// Port a host listens on when none is named.
pub const DEFAULT_PORT: u16 = 7331;
/// Connections a host keeps open at once when its configuration names no other number.
pub const MAX_CONNECTIONS: usize = 10_000;

/// Why a configuration is not used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the file system said.
        source: std::io::Error,
    },
    /// Others on this machine may read or change the file.
    #[error("{} has mode {mode:03o}; run: chmod 600 {}", path.display(), path.display())]
    TooOpen {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file is not the JSON it should be.
    #[error("{}: {source}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A value does not make sense.
    #[error("{}: {why}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Which value and why.
        why: Invalid,
    },
}

/// A value that does not make sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Nobody could connect.
    #[error("credentials: at least one is needed")]
    NoCredentials,
    /// Two credentials have one ID.
    #[error("credentials: {0} appears twice; one principal has one token")]
    DuplicatePrincipal(Id),
    /// Two credentials have one token.
    #[error("credentials: {0} and {1} have the same token")]
    DuplicateToken(Id, Id),
    /// An entry of a credential's `sessions` names no session.
    #[error("credentials: {0}: sessions: {1:?} is not axp-session:/ID")]
    NotASession(Id, String),
    /// An allowed origin that no browser would send.
    #[error("allowedOrigins: {0:?} is not an origin such as https://example.org")]
    NotAnOrigin(String),
    /// A limit of zero.
    #[error("limits: {0} must be more than 0")]
    ZeroLimit(&'static str),
}

/// The configuration file of a host, JSON, readable by its owner only.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostFile {
    /// Repository name; the database is bound to it.
    pub repository: Text<1, 256>,
    /// Address to listen on.
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// Database file, relative to the folder of this file.
    pub database: PathBuf,
    /// Values of `Origin` that browsers may connect with.
    #[serde(default)]
    pub allowed_origins: Vec<String>,
    /// Who may connect.
    pub credentials: Vec<Credential>,
    /// Limits that differ from the defaults.
    #[serde(default)]
    pub limits: HostLimits,
}

/// Limits of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HostLimits {
    /// Connections open at once.
    pub max_connections: usize,
    /// Outbound queue of one connection, bytes.
    pub queue_bytes: usize,
}

impl Default for HostLimits {
    fn default() -> Self {
        Self { max_connections: MAX_CONNECTIONS, queue_bytes: QUEUE_BYTES }
    }
}

/// SHA-256 of a token; in JSON 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenDigest([u8; 32]);

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A digest is no token, but a weak token could be guessed from it.
        f.write_str("TokenDigest(..)")
    }
}

impl Serialize for TokenDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for TokenDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The text is not repeated in the error: somebody may have put the token itself here.
        let text = String::deserialize(deserializer)?;
        Digest::new(text)
            .map(|digest| {
                let mut bytes = [0; 32];
                for (byte, pair) in bytes.iter_mut().zip(digest.as_bytes().chunks_exact(2)) {
                    *byte = pair.iter().fold(0, |sum, digit| sum << 4 | nibble(*digit));
                }
                Self(bytes)
            })
            .map_err(|_| D::Error::custom("tokenSha256: must be 64 lower-case hex digits"))
    }
}

/// Value of a lower-case hex digit.
fn nibble(digit: u8) -> u8 {
    if digit.is_ascii_digit() { digit - b'0' } else { digit - b'a' + 10 }
}

/// A token's digest and whom it stands for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Credential {
    /// Name of the principal in the stream.
    pub id: Id,
    /// What it may do.
    pub role: Role,
    /// Where it may do it: `"*"` or a list of `axp-session:/ID`.
    #[serde(deserialize_with = "scope")]
    pub sessions: SessionScope,
    /// SHA-256 of the token; see [`token_digest`].
    pub token_sha256: TokenDigest,
}

fn default_listen() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT))
}

fn scope<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SessionScope, D::Error> {
    // Through a value, so that the error says what is allowed and not that no variant matched.
    match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::String(all) if all == "*" => Ok(SessionScope::All(AllSessions::All)),
        serde_json::Value::Array(list) => list
            .into_iter()
            .map(|entry| match entry {
                serde_json::Value::String(entry) => Ok(entry),
                _ => Err(D::Error::custom("sessions: a list may hold only axp-session:/ID")),
            })
            .collect::<Result<_, _>>()
            .map(SessionScope::Only),
        _ => Err(D::Error::custom("sessions: must be \"*\" or a list of axp-session:/ID")),
    }
}

impl HostFile {
    /// Reads and checks a configuration file.
    ///
    /// # Errors
    /// [`ConfigError`]; on Unix also when the mode lets anybody but the owner at it.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let io = |source| ConfigError::Io { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(io)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // Asked of the open file: the name may point elsewhere by now.
            let mode = file.metadata().map_err(io)?.permissions().mode() & 0o777;
            if mode & 0o077 != 0 {
                return Err(ConfigError::TooOpen { path: path.to_owned(), mode });
            }
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(io)?;
        let parsed: Self = serde_json::from_str(&text)
            .map_err(|source| ConfigError::Syntax { path: path.to_owned(), source })?;
        parsed.check().map_err(|why| ConfigError::Invalid { path: path.to_owned(), why })?;
        Ok(parsed)
    }

    /// Writes a new configuration file that only its owner may read. Overwrites nothing.
    ///
    /// # Errors
    /// [`ConfigError::Io`] with kind `AlreadyExists` when there is one, [`ConfigError::Invalid`] when
    /// [`load`](Self::load) would refuse it.
    pub fn create(&self, path: &Path) -> Result<(), ConfigError> {
        self.check().map_err(|why| ConfigError::Invalid { path: path.to_owned(), why })?;
        let io = |source| ConfigError::Io { path: path.to_owned(), source };
        let mut text = serde_json::to_string_pretty(self).map_err(|why| io(why.into()))?;
        text.push('\n');
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path).map_err(io)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io)
    }

    /// The database file, for a configuration that was read from `config`.
    pub fn database_path(&self, config: &Path) -> PathBuf {
        config.parent().map_or_else(|| self.database.clone(), |folder| folder.join(&self.database))
    }

    /// The credentials, for looking up tokens.
    ///
    /// # Errors
    /// As [`Credentials::new`].
    pub fn credentials(&self) -> Result<Credentials, Invalid> {
        Credentials::new(&self.credentials)
    }

    fn check(&self) -> Result<(), Invalid> {
        self.credentials()?;
        if let Some(wrong) = self.allowed_origins.iter().find(|origin| !is_origin(origin)) {
            return Err(Invalid::NotAnOrigin(wrong.clone()));
        }
        for (name, value) in
            [("maxConnections", self.limits.max_connections), ("queueBytes", self.limits.queue_bytes)]
        {
            if value == 0 {
                return Err(Invalid::ZeroLimit(name));
            }
        }
        Ok(())
    }
}

/// `scheme://host[:port]` as browsers spell it: a trailing slash or an upper-case letter would never match.
fn is_origin(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, host)| {
        scheme
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.'))
            && !scheme.is_empty()
            && !host.is_empty()
            && host
                .bytes()
                .all(|b| b.is_ascii_graphic() && !b.is_ascii_uppercase() && !b"/?#@\\*".contains(&b))
    })
}

/// Whom each token stands for. Cheap to clone.
#[derive(Clone)]
pub struct Credentials {
    entries: Arc<[([u8; 32], Arc<Principal>)]>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries.iter().map(|(_, principal)| principal)).finish()
    }
}

impl Credentials {
    /// Checks the list: somebody in it, each principal and each token once, sessions that can exist.
    ///
    /// # Errors
    /// [`Invalid`] names the first entry that fails.
    pub fn new(list: &[Credential]) -> Result<Self, Invalid> {
        let mut ids = HashSet::new();
        let mut entries: Vec<([u8; 32], Arc<Principal>)> = Vec::with_capacity(list.len());
        for Credential { id, role, sessions, token_sha256 } in list {
            if !ids.insert(id) {
                return Err(Invalid::DuplicatePrincipal(id.clone()));
            }
            let digest = token_sha256.0;
            if let Some((_, other)) = entries.iter().find(|(known, _)| *known == digest) {
                return Err(Invalid::DuplicateToken(other.id.clone(), id.clone()));
            }
            if let SessionScope::Only(names) = sessions
                && let Some(wrong) = names.iter().find(|name| !names_session(name))
            {
                return Err(Invalid::NotASession(id.clone(), wrong.clone()));
            }
            let principal = Principal { id: id.clone(), role: *role, sessions: sessions.clone() };
            entries.push((digest, Arc::new(principal)));
        }
        if entries.is_empty() {
            return Err(Invalid::NoCredentials);
        }
        Ok(Self { entries: entries.into() })
    }

    /// Whom `token` stands for. Takes the same time whichever entry matches, or none. A token shorter than 24
    /// characters never matches.
    pub fn find(&self, token: &str) -> Option<Arc<Principal>> {
        if token.chars().count() < TOKEN_CHARS {
            return None;
        }
        let digest = token_digest(token).0;
        // One past the end means nobody; no comparison is skipped once one has matched.
        let mut found = u64::MAX;
        for (index, (known, _)) in (0u64..).zip(self.entries.iter()) {
            let same: Choice = known.ct_eq(&digest);
            found.conditional_assign(&index, same);
        }
        let (_, principal) = self.entries.get(usize::try_from(found).ok()?)?;
        Some(principal.clone())
    }
}

fn names_session(name: &str) -> bool {
    name.strip_prefix("axp-session:/")
        .or_else(|| name.strip_prefix("ahp-session:/"))
        .is_some_and(|id| Id::new(id).is_ok())
}

/// A new bearer token: 32 random bytes from a generator the operating system seeds, in base64url.
pub fn new_token() -> String {
    BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
}

/// SHA-256 of a token, as a configuration file keeps it.
pub fn token_digest(token: &str) -> TokenDigest {
    TokenDigest(Sha256::digest(token.as_bytes()).into())
}

#[cfg(test)]
mod tests;
