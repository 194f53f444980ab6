//! Who somebody is at a host: a role, and the sessions it holds for (section 3).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scalar::Id;

/// Role of a principal (section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Creates, prompts, steers, approves, closes.
    Maintainer,
    /// Parks an agent and pays for it.
    Contributor,
    /// Reads.
    Observer,
    /// Runs independent verification.
    Verifier,
}

impl Role {
    /// The word for it, as on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Maintainer => "maintainer",
            Self::Contributor => "contributor",
            Self::Observer => "observer",
            Self::Verifier => "verifier",
        }
    }
}

/// Sessions a principal may see: `"*"` or a list of `axp-session:/ID`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SessionScope {
    /// The string `*`.
    All(AllSessions),
    /// Named sessions, as `axp-session:/ID` or `ahp-session:/ID`.
    Only(Vec<String>),
}

/// The string `*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AllSessions {
    /// `*`
    #[serde(rename = "*")]
    All,
}

/// Who a credential stands for (section 3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Principal {
    /// Name in the stream.
    pub id: Id,
    /// What it may do.
    pub role: Role,
    /// Where it may do it.
    pub sessions: SessionScope,
}

impl Principal {
    /// Whether the scope covers every session.
    pub fn reads_all(&self) -> bool {
        matches!(self.sessions, SessionScope::All(_))
    }

    /// Whether the scope covers this session.
    pub fn reads(&self, session: &Id) -> bool {
        match &self.sessions {
            SessionScope::All(_) => true,
            SessionScope::Only(list) => list.iter().any(|entry| {
                entry
                    .strip_prefix("axp-session:/")
                    .or_else(|| entry.strip_prefix("ahp-session:/"))
                    .is_some_and(|id| id == session.as_str())
            }),
        }
    }
}
