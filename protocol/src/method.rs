//! The AXP method table (section 6). Host dispatch, the client's typed call and the JSON Schemas all come from here.

use ahp_types::actions::StateAction;
use ahp_types::state::ChangesetFile;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

use crate::error::ProtocolError;
use crate::limits::{BLOB_FRAME_BYTES, CHECKPOINT_FRAME_BYTES, COMPACT_FRAME_BYTES, FRAME_BYTES};
use crate::scalar::{Digest, Id, Int, List, Sha, Text, Uint};
use crate::shape::{self, *};

/// A lease or registration time, ms.
pub type LeaseMs = Int<3_000, 300_000>;

/// An AHP action of a known type.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct AhpAction(pub Box<StateAction>);

impl<'de> Deserialize<'de> for AhpAction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::action::parse_ahp_action(Value::deserialize(deserializer)?)
            .map(|action| Self(Box::new(action)))
            .map_err(|e| D::Error::custom(e.message))
    }
}

impl JsonSchema for AhpAction {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "AhpAction".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "An action of AHP 0.9.0.",
            "properties": { "type": { "type": "string" } },
            "required": ["type"]
        })
    }
}

/// A file of an AHP changeset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChangedFile(pub ChangesetFile);

impl JsonSchema for ChangedFile {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ChangedFile".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "A changeset file of AHP 0.9.0.",
            "properties": { "id": { "type": "string" }, "edit": { "type": "object" } },
            "required": ["id", "edit"]
        })
    }
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TurnOutcome {
    /// The agent finished.
    Complete,
    /// Somebody stopped it.
    Cancelled,
    /// It failed.
    Error,
}

impl TurnOutcome {
    /// The word for it, as on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Cancelled => "cancelled",
            Self::Error => "error",
        }
    }
}

/// A verdict on a lesson.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LessonVerdict {
    /// Found by search from now on.
    Accepted,
    /// No longer found.
    Retired,
}

/// A stored blob's content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlobData {
    /// Base64.
    pub data: String,
    /// MIME type given at upload.
    pub media_type: String,
}

/// What a new agent is told (section 8).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextAnswer {
    /// The text.
    pub text: String,
    /// Hash of `{text}`.
    pub prefix_hash: String,
    /// Context revision.
    pub revision: u64,
    /// Turns the summary stands for.
    pub through_turn: u64,
    /// Accepted lessons that match the task.
    pub memory_total: u64,
    /// Lessons in the text.
    pub memory_included: u64,
}

/// Accepted lessons that match a query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemoryHits {
    /// Best first.
    pub items: Vec<Memory>,
    /// How many match in all.
    pub total: u64,
}

/// State of a channel at a place in the order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChannelSnapshot {
    /// Channel.
    pub resource: String,
    /// Its state.
    pub state: Value,
    /// Newest action in it, or in the whole host, whichever is later: the next action after it has a higher number.
    pub from_seq: u64,
}

/// Whole history of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct History {
    /// AXP version.
    pub version: String,
    /// Repository name.
    pub repository: String,
    /// Newest sequence number of the host when it was made.
    pub server_seq: u64,
    /// First state of each channel.
    pub seeds: Vec<ChannelSnapshot>,
    /// Envelopes in order.
    pub actions: Vec<Value>,
    /// Newest state of each channel.
    pub snapshots: Vec<ChannelSnapshot>,
}

/// A method of the table.
pub trait Method {
    /// Name on the wire.
    const NAME: &'static str;
    /// Its parameters.
    type Params: Serialize + DeserializeOwned + JsonSchema;
    /// Its result.
    type Output: Serialize + DeserializeOwned + JsonSchema;
}

/// What the table says of a method.
#[derive(Debug, Clone, Copy)]
pub struct MethodInfo {
    /// Name on the wire.
    pub name: &'static str,
    /// Largest frame, bytes.
    pub frame_bytes: usize,
    /// Whether it carries an operation ID.
    pub mutates: bool,
    /// One line on what it is for.
    pub about: &'static str,
    /// Schemas of its params and its result.
    pub schemas: fn() -> (Schema, Schema),
}

fn draft_2020_12<T: JsonSchema>() -> Schema {
    schemars::generate::SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>()
}

macro_rules! op_of {
    (op, $p:expr) => {
        Some(&$p.operation_id)
    };
    (read, $p:expr) => {{
        let _ = $p;
        None
    }};
}

macro_rules! is_op {
    (op) => {
        true
    };
    (read) => {
        false
    };
}

macro_rules! methods {
    ($($name:literal $variant:ident $op:ident $frame:ident => $output:ty, $about:literal {
        $($(#[$attr:meta])* $field:ident : $type:ty),* $(,)?
    })+) => {
        /// Parameters of each method.
        pub mod params {
            use super::*;
            $(
                #[doc = concat!("Parameters of `", $name, "`: ", $about)]
                #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
                #[serde(rename_all = "camelCase", deny_unknown_fields)]
                #[expect(missing_docs, reason = "the fields are named and described by the wire reference")]
                pub struct $variant {
                    pub channel: Text<0, 256>,
                    $($(#[$attr])* pub $field: $type,)*
                }

                impl Method for $variant {
                    const NAME: &'static str = $name;
                    type Params = Self;
                    type Output = $output;
                }
            )+
        }

        /// A parsed call of any method.
        #[derive(Debug, Clone, PartialEq)]
        #[expect(missing_docs, reason = "one variant a method")]
        pub enum Call {
            $($variant(Box<params::$variant>),)+
        }

        impl Call {
            /// Parses the params of `method`; `None` when the table has no such method.
            ///
            /// # Errors
            /// −32602 with `data.path` when the params do not fit.
            pub fn parse(method: &str, params: &str) -> Option<Result<Self, ProtocolError>> {
                match method {
                    $($name => Some(parse_params(params).map(|p| Self::$variant(Box::new(p)))),)+
                    _ => None,
                }
            }

            /// Name on the wire.
            pub fn method(&self) -> &'static str {
                match self { $(Self::$variant(_) => $name,)+ }
            }

            /// The channel it is addressed to.
            pub fn channel(&self) -> &str {
                match self { $(Self::$variant(p) => &p.channel,)+ }
            }

            /// The operation ID, if the method has one.
            pub fn operation_id(&self) -> Option<&Id> {
                match self { $(Self::$variant(p) => op_of!($op, p),)+ }
            }

            /// The params as JSON.
            ///
            /// # Errors
            /// Never for parsed params; the signature keeps the caller honest.
            pub fn params(&self) -> Result<Value, serde_json::Error> {
                match self { $(Self::$variant(p) => serde_json::to_value(p),)+ }
            }
        }

        /// All methods, in the order of the wire reference.
        pub const METHODS: &[MethodInfo] = &[
            $(MethodInfo {
                name: $name,
                frame_bytes: $frame,
                mutates: is_op!($op),
                about: $about,
                schemas: || (draft_2020_12::<params::$variant>(), draft_2020_12::<$output>()),
            },)+
        ];
    };
}

methods! {
    "_axp/register" Register op FRAME_BYTES => ExecutorInfo, "Registers or refreshes an executor." {
        operation_id: Id,
        executor_id: Id,
        name: Text<1, 128>,
        placement: Placement,
        capabilities: Texts<32, 128>,
        ttl_ms: LeaseMs,
    }
    "_axp/dispatch" Dispatch op FRAME_BYTES => (), "Dispatches a maintainer's action with a receipt." {
        operation_id: Id,
        action: AhpAction,
    }
    "_axp/comment" Comment op FRAME_BYTES => DiscussionComment, "Adds a comment to the discussion." {
        operation_id: Id,
        body: Text<1, 8000>,
        #[serde(default)] checkpoint: Option<Sha>,
        #[serde(default)] path: Option<Text<1, 512>>,
    }
    "_axp/grant" Grant op FRAME_BYTES => shape::Grant, "Gives a session a budget, or changes one's own." {
        operation_id: Id,
        grant_id: Id,
        limit: Allowance,
        enforcement: Enforcement,
    }
    "_axp/revoke" Revoke op FRAME_BYTES => (), "Withdraws a grant and ends the lease that uses it." {
        operation_id: Id,
        grant_id: Id,
    }
    "_axp/claim" Claim op FRAME_BYTES => Lease, "Takes the session for an executor." {
        operation_id: Id,
        executor_id: Id,
        grant_id: Id,
        lease_ms: LeaseMs,
        #[serde(default, skip_serializing_if = "Option::is_none")] resume_epoch: Option<Uint>,
    }
    "_axp/renew" Renew op FRAME_BYTES => Lease, "Prolongs the lease by its own length." {
        operation_id: Id,
        epoch: Uint,
    }
    "_axp/release" Release op FRAME_BYTES => (), "Gives the session back." {
        operation_id: Id,
        epoch: Uint,
    }
    "_axp/reserve" Reserve op FRAME_BYTES => (), "Sets budget aside for the active turn." {
        operation_id: Id,
        epoch: Uint,
        turn_id: Id,
        ceiling: Allowance,
    }
    "_axp/emit" Emit op FRAME_BYTES => (), "Adds output to the active turn." {
        operation_id: Id,
        epoch: Uint,
        actions: List<AhpAction, 1, 64>,
    }
    "_axp/settle" Settle op FRAME_BYTES => (), "Ends the turn and charges what it used." {
        operation_id: Id,
        epoch: Uint,
        turn_id: Id,
        usage: Option<Usage>,
        outcome: TurnOutcome,
        #[serde(default, skip_serializing_if = "Option::is_none")] error: Option<Text<0, 4096>>,
    }
    "_axp/checkpoint" Checkpoint op CHECKPOINT_FRAME_BYTES => (), "Publishes a state of the work." {
        operation_id: Id,
        epoch: Uint,
        checkpoint: shape::Checkpoint,
        files: List<ChangedFile, 0, 2000>,
    }
    "_axp/compact" Compact op COMPACT_FRAME_BYTES => CompactionProposal, "Proposes a shorter context." {
        operation_id: Id,
        expected_revision: Uint,
        through_turn: Uint,
        summary: Text<0, 24000>,
        decisions: Texts<32, 2000>,
        active_files: Texts<64, 512>,
    }
    "_axp/acceptCompaction" AcceptCompaction op FRAME_BYTES => shape::Context, "Accepts a proposed context." {
        operation_id: Id,
        proposal_id: Id,
    }
    "_axp/memoryPropose" MemoryPropose op FRAME_BYTES => Memory, "Proposes a lesson." {
        operation_id: Id,
        title: Text<1, 160>,
        trigger: Text<1, 1000>,
        lesson: Text<1, 4000>,
        outcome: LessonOutcome,
        from_seq: Uint,
        to_seq: Uint,
    }
    "_axp/memoryReview" MemoryReview op FRAME_BYTES => Memory, "Accepts or retires a lesson." {
        operation_id: Id,
        memory_id: Digest,
        revision: Uint,
        status: LessonVerdict,
    }
    "_axp/memorySearch" MemorySearch read FRAME_BYTES => MemoryHits, "Finds accepted lessons." {
        query: Text<0, 4096>,
        #[serde(default = "five")] limit: Int<1, 20>,
    }
    "_axp/review" Review op FRAME_BYTES => shape::Review, "Signs the checkpoint as its contributor." {
        operation_id: Id,
        manifest: Manifest,
        contributor: Signature,
    }
    "_axp/approveReview" ApproveReview op FRAME_BYTES => shape::Review, "Signs the checkpoint as a maintainer." {
        operation_id: Id,
        signature: Signature,
    }
    "_axp/verify" Verify op FRAME_BYTES => (), "Records an independent verification." {
        operation_id: Id,
        head_commit: Sha,
        command: List<Text<0, 1024>, 1, 64>,
        exit_code: Uint,
        output: BlobRef,
    }
    "_axp/close" Close op FRAME_BYTES => (), "Ends the session." {
        operation_id: Id,
    }
    "_axp/blobPut" BlobPut op BLOB_FRAME_BYTES => BlobRef, "Stores content for the session." {
        operation_id: Id,
        data: Text<0, BLOB_FRAME_BYTES>,
        media_type: Text<1, 128>,
    }
    "_axp/blobGet" BlobGet read FRAME_BYTES => BlobData, "Reads stored content of the session." {
        digest: Digest,
    }
    "_axp/context" Context read FRAME_BYTES => ContextAnswer, "Composes what a new agent is told." {
        #[serde(default = "context_chars")] max_chars: Int<1024, 200_000>,
    }
    "_axp/export" Export read FRAME_BYTES => History, "Reads the whole history of the session." {
    }
}

fn five() -> Int<1, 20> {
    Int::clamped(5)
}

fn context_chars() -> Int<1024, 200_000> {
    Int::clamped(64_000)
}

/// Looks a method up by name.
pub fn info(name: &str) -> Option<&'static MethodInfo> {
    METHODS.iter().find(|m| m.name == name)
}

/// Parses params strictly.
///
/// # Errors
/// −32602 whose `data.path` names the field that is unknown, missing or out of its limits.
pub fn parse_params<T: DeserializeOwned>(json: &str) -> Result<T, ProtocolError> {
    let mut deserializer = serde_json::Deserializer::from_str(json);
    serde_path_to_error::deserialize(&mut deserializer).map_err(|e| {
        let path = match e.path().to_string() {
            root if root == "." => "params".to_owned(),
            path => path,
        };
        // Positions in the frame help nobody who wrote an object.
        let why = e.inner().to_string();
        let why = why.rsplit_once(" at line ").map_or(why.as_str(), |(text, _)| text).to_owned();
        ProtocolError::invalid_params(format!("{path}: {why}")).with_data(serde_json::json!({ "path": path }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(method: &str, params: &str) -> ProtocolError {
        Call::parse(method, params).expect("a known method").expect_err("must be refused")
    }

    #[test]
    fn there_are_25_methods_with_distinct_names() {
        let names: std::collections::BTreeSet<_> = METHODS.iter().map(|m| m.name).collect();
        assert_eq!((METHODS.len(), names.len()), (25, 25));
        assert!(Call::parse("_axp/nothing", "{}").is_none());
    }

    #[test]
    fn unknown_fields_are_named() {
        let e =
            refusal("_axp/renew", r#"{"channel":"axp-session:/a","operationId":"o","epoch":1,"extra":2}"#);
        assert_eq!((e.code, e.data), (-32602, Some(serde_json::json!({"path": "extra"}))));
        let nested = r#"{"channel":"c","operationId":"o","grantId":"g","enforcement":"accounting",
            "limit":{"tokens":1,"costMicros":2,"turns":3,"free":true}}"#;
        let e = refusal("_axp/grant", nested);
        assert_eq!(e.data, Some(serde_json::json!({"path": "limit.free"})));
    }

    #[test]
    fn limits_are_named_with_their_path() {
        let e = refusal(
            "_axp/claim",
            r#"{"channel":"c","operationId":"o","executorId":"e","grantId":"g","leaseMs":2999}"#,
        );
        assert_eq!(e.message, "leaseMs: 2999 where 3000 to 300000 is allowed");
        let e = refusal("_axp/renew", r#"{"channel":"c","operationId":"bad id","epoch":1}"#);
        assert!(e.message.starts_with("operationId: not an identifier"), "{e}");
        let e = refusal("_axp/renew", r#"{"channel":"c","operationId":"o"}"#);
        assert!(e.message.contains("missing field `epoch`"), "{e}");
    }

    #[test]
    fn emitted_actions_must_be_known() {
        let e = refusal(
            "_axp/emit",
            r#"{"channel":"c","operationId":"o","epoch":1,"actions":[{"type":"chat/delta","turnId":"t"}]}"#,
        );
        assert!(e.message.starts_with("actions[0]: not a valid action: chat/delta"), "{e}");
    }

    #[test]
    fn optional_fields_have_their_defaults() {
        let Some(Ok(Call::MemorySearch(p))) =
            Call::parse("_axp/memorySearch", r#"{"channel":"c","query":"x"}"#)
        else {
            panic!("must parse");
        };
        assert_eq!(p.limit.get(), 5);
        let Some(Ok(Call::Context(p))) = Call::parse("_axp/context", r#"{"channel":"c"}"#) else {
            panic!("must parse");
        };
        assert_eq!(p.max_chars.get(), 64_000);
    }
}
