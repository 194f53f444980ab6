//! Actions of the AXP channels, and the union with AHP's that travels in envelopes (section 6).

use ahp_types::actions::{ActionOrigin, StateAction};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

use crate::error::ProtocolError;
use crate::scalar::Id;
use crate::shape::*;

/// An action on an AXP channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
#[expect(missing_docs, reason = "the variants are named and described by the wire reference")]
pub enum AxpAction {
    #[serde(rename = "_axp/commentAdded")]
    CommentAdded { comment: DiscussionComment },
    #[serde(rename = "_axp/leaseChanged")]
    LeaseChanged { lease: Option<Lease>, epoch: u64, status: SessionPhase },
    #[serde(rename = "_axp/grantChanged")]
    GrantChanged { grant: Grant },
    #[serde(rename = "_axp/reserved")]
    Reserved { reservation: Reservation },
    #[serde(rename = "_axp/settled")]
    Settled { turn_id: Id, grant: Grant, usage: Usage },
    #[serde(rename = "_axp/checkpointChanged")]
    CheckpointChanged { checkpoint: Checkpoint },
    #[serde(rename = "_axp/compactionProposed")]
    CompactionProposed { proposal: CompactionProposal },
    #[serde(rename = "_axp/contextChanged")]
    ContextChanged { context: Context },
    #[serde(rename = "_axp/reviewChanged")]
    ReviewChanged { review: Review },
    #[serde(rename = "_axp/verificationChanged")]
    VerificationChanged { verification: Verification },
    #[serde(rename = "_axp/memoryChanged")]
    MemoryChanged { memory: Memory },
    #[serde(rename = "_axp/executorChanged")]
    ExecutorChanged { executor: ExecutorInfo },
}

/// Any action that an envelope can carry.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Action {
    /// On an AXP channel.
    Axp(Box<AxpAction>),
    /// On an AHP channel; unknown ones are kept as they came.
    Ahp(Box<StateAction>),
}

impl From<AxpAction> for Action {
    fn from(action: AxpAction) -> Self {
        Self::Axp(Box::new(action))
    }
}

impl From<StateAction> for Action {
    fn from(action: StateAction) -> Self {
        Self::Ahp(Box::new(action))
    }
}

impl<'de> Deserialize<'de> for Action {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let ours = value.get("type").and_then(Value::as_str).is_some_and(|t| t.starts_with("_axp/"));
        if ours {
            // A type from a later version stays an unknown action, which leaves the state as it is.
            if let Ok(action) = AxpAction::deserialize(&value) {
                return Ok(action.into());
            }
        }
        StateAction::deserialize(value).map(Self::from).map_err(D::Error::custom)
    }
}

/// An action with its place in the order of all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope {
    /// Channel whose state it changes.
    pub channel: String,
    /// What changes.
    pub action: Action,
    /// Place in the order; unique within a host, without gaps.
    pub server_seq: u64,
    /// Client that dispatched it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<ActionOrigin>,
    /// Why it was refused; such an envelope changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejection_reason: Option<String>,
}

/// Reads an AHP action that a client sent. Keys that AHP 0.9.0 does not know are dropped.
///
/// # Errors
/// −32602 when it has no known type or does not fit its type.
pub fn parse_ahp_action(value: Value) -> Result<StateAction, ProtocolError> {
    let kind = value.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    match serde_json::from_value(value) {
        Ok(StateAction::Unknown(_)) | Err(_) => Err(ProtocolError::invalid_params(format!(
            "not a valid action: {}",
            if kind.is_empty() { "it has no type" } else { &kind }
        ))
        .with_data(serde_json::json!({ "path": "action" }))),
        Ok(action) => Ok(action),
    }
}
