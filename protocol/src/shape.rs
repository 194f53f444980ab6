//! The shapes that AXP state and params are made of (section 6). Times are ms since the Unix epoch, money is USD
//! millionths.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scalar::{Digest, Id, List, Sha, Text, Uint, uint};

/// How much a grant allows, or has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Allowance {
    /// Input plus output tokens; cache reads are part of input.
    #[serde(deserialize_with = "uint")]
    #[schemars(with = "Uint")]
    pub tokens: u64,
    /// USD millionths.
    #[serde(deserialize_with = "uint")]
    #[schemars(with = "Uint")]
    pub cost_micros: u64,
    /// Prompts.
    #[serde(deserialize_with = "uint")]
    #[schemars(with = "Uint")]
    pub turns: u64,
}

impl Allowance {
    /// Whether all three fields are at most those of `limit` (section 7).
    pub fn within(&self, limit: &Self) -> bool {
        self.tokens <= limit.tokens && self.cost_micros <= limit.cost_micros && self.turns <= limit.turns
    }

    /// The sum, held at the largest exact integer.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let add = |a: u64, b: u64| a.saturating_add(b).min(crate::limits::MAX_SAFE_INTEGER);
        Self {
            tokens: add(self.tokens, other.tokens),
            cost_micros: add(self.cost_micros, other.cost_micros),
            turns: add(self.turns, other.turns),
        }
    }

    /// The larger of each field: of two accounts of one thing, the one that is never too little.
    #[must_use]
    pub fn dearer(&self, other: &Self) -> Self {
        Self {
            tokens: self.tokens.max(other.tokens),
            cost_micros: self.cost_micros.max(other.cost_micros),
            turns: self.turns.max(other.turns),
        }
    }

    /// What is left of this limit after `spent`, never below zero.
    #[must_use]
    pub fn left(&self, spent: &Self) -> Self {
        Self {
            tokens: self.tokens.saturating_sub(spent.tokens),
            cost_micros: self.cost_micros.saturating_sub(spent.cost_micros),
            turns: self.turns.saturating_sub(spent.turns),
        }
    }
}

/// Who enforces a grant's limit (section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    /// The donor states that a provider-side limit is configured.
    Provider,
    /// AXP counts.
    Accounting,
}

/// A donor's budget for one session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// Chosen by the donor.
    pub id: Id,
    /// Principal ID of the donor.
    pub owner: String,
    /// What may be spent.
    pub limit: Allowance,
    /// What is spent.
    pub spent: Allowance,
    /// Whether the donor withdrew it.
    pub revoked: bool,
    /// Who enforces the limit.
    pub enforcement: Enforcement,
}

/// Where a figure of [`Usage`] comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UsageSource {
    /// The agent reported it.
    Reported,
    /// The turn's reservation was charged.
    Reservation,
}

/// What a turn used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Usage {
    /// Tokens read, cache reads among them.
    #[serde(deserialize_with = "uint")]
    #[schemars(with = "Uint")]
    pub input_tokens: u64,
    /// Tokens written.
    #[serde(deserialize_with = "uint")]
    #[schemars(with = "Uint")]
    pub output_tokens: u64,
    /// Tokens read from a cache; at most `input_tokens`.
    #[serde(deserialize_with = "uint")]
    #[schemars(with = "Uint")]
    pub cache_read_tokens: u64,
    /// USD millionths.
    #[serde(deserialize_with = "uint")]
    #[schemars(with = "Uint")]
    pub cost_micros: u64,
    /// Origin of the token counts.
    pub source: UsageSource,
    /// Origin of the cost, where it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_source: Option<UsageSource>,
}

impl Usage {
    /// What settling this usage charges: tokens in and out, cost, one turn (section 7).
    pub fn charge(&self) -> Allowance {
        Allowance {
            tokens: self.input_tokens.saturating_add(self.output_tokens).min(crate::limits::MAX_SAFE_INTEGER),
            cost_micros: self.cost_micros,
            turns: 1,
        }
    }

    /// The usage that stands for a reservation charged in full.
    pub fn of_reservation(ceiling: &Allowance) -> Self {
        Self {
            input_tokens: ceiling.tokens,
            output_tokens: 0,
            cache_read_tokens: 0,
            cost_micros: ceiling.cost_micros,
            source: UsageSource::Reservation,
            cost_source: Some(UsageSource::Reservation),
        }
    }
}

/// Who may run the session, until when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// Principal ID of the holder.
    pub owner: String,
    /// The holder's executor.
    pub executor_id: Id,
    /// Fencing number; grows with each claim.
    pub epoch: u64,
    /// ms since the Unix epoch, by the host's clock.
    pub expires_at: u64,
    /// How often to renew, ms: a third of the lease.
    pub heartbeat_ms: u64,
    /// The grant that pays.
    pub grant_id: Id,
}

/// Budget set aside for the turn that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// The turn.
    pub turn_id: Id,
    /// The grant that pays.
    pub grant_id: Id,
    /// Epoch that reserved.
    pub epoch: u64,
    /// The most the turn may use; charged in full when its usage stays unknown.
    pub ceiling: Allowance,
    /// ms since the Unix epoch.
    pub started_at: u64,
}

/// A stored blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BlobRef {
    /// `axp-blob:/CHANNEL/DIGEST`.
    pub uri: Text<1, 512>,
    /// Digest of the content.
    pub sha256: Digest,
    /// Bytes.
    #[serde(deserialize_with = "uint")]
    #[schemars(with = "Uint")]
    pub size: u64,
    /// MIME type given at upload.
    pub media_type: Text<1, 128>,
}

/// A state of the work, as Git objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Checkpoint {
    /// Commit the session started from; never changes.
    pub base_commit: Sha,
    /// Commit that holds the work.
    pub head_commit: Sha,
    /// Branch name in the contributor's repository.
    pub branch: Text<1, 256>,
    /// Git bundle from base to head.
    pub bundle: BlobRef,
    /// Binary patch from base to head.
    pub patch: BlobRef,
    /// ms since the Unix epoch.
    #[serde(deserialize_with = "uint")]
    #[schemars(with = "Uint")]
    pub created_at: u64,
}

/// What the next agent is told about the work so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Context {
    /// Grows with each accepted compaction.
    pub revision: u64,
    /// Turns that the summary stands for.
    pub through_turn: u64,
    /// Summary of those turns.
    pub summary: String,
    /// Decisions to keep to.
    pub decisions: Vec<String>,
    /// Files in work.
    pub active_files: Vec<String>,
    /// Commit of the checkpoint the summary was written for.
    pub git_head: Option<Sha>,
    /// Hash of the canonical context without this field (section 8).
    pub prefix_hash: String,
}

/// A span of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SeqRange {
    /// First sequence number.
    pub from_seq: u64,
    /// Last sequence number.
    pub to_seq: u64,
}

/// A proposed replacement of the context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompactionProposal {
    /// Proposal ID.
    pub id: Id,
    /// Principal ID.
    pub author: String,
    /// Context revision it was made against.
    pub expected_revision: u64,
    /// The context it would set.
    pub context: Context,
    /// The part of the log it covers.
    pub evidence: SeqRange,
}

/// How a lesson was learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LessonOutcome {
    /// It worked.
    Success,
    /// It did not.
    Failure,
}

/// Where a lesson stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LessonStatus {
    /// Waits for a maintainer.
    Proposed,
    /// Found by search.
    Accepted,
    /// Kept, but no longer found.
    Retired,
}

/// Where a lesson was learned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    /// `axp-session:/ID`.
    pub session: String,
    /// First sequence number.
    pub from_seq: u64,
    /// Last sequence number.
    pub to_seq: u64,
    /// Commit of the checkpoint at that time.
    pub git_head: Option<Sha>,
}

/// A lesson of the repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    /// Hash of what it says (section 8).
    pub id: Digest,
    /// Grows with each change.
    pub revision: u64,
    /// Repository name.
    pub scope: String,
    /// A line.
    pub title: String,
    /// When it applies.
    pub trigger: String,
    /// What to do.
    pub lesson: String,
    /// How it was learned.
    pub outcome: LessonOutcome,
    /// Where it was learned.
    pub evidence: Vec<Evidence>,
    /// Where it stands.
    pub status: LessonStatus,
    /// Principal ID of who proposed it first.
    pub author: String,
}

/// What a review signs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest {
    /// Always 1.
    pub version: crate::scalar::Int<1, 1>,
    /// Repository name.
    pub repository: Text<1, 256>,
    /// `axp-session:/ID`.
    pub session: Text<1, 256>,
    /// Base of the checkpoint.
    pub base_commit: Sha,
    /// Head of the checkpoint.
    pub head_commit: Sha,
    /// Model the contributor names.
    pub model: Text<1, 256>,
    /// Hash of the context text.
    pub prompt_hash: Digest,
    /// Hash of the exported actions.
    pub trace_hash: Digest,
    /// Last sequence number in the trace.
    #[serde(deserialize_with = "uint")]
    #[schemars(with = "Uint")]
    pub trace_through_seq: u64,
    /// Hash of the checkpoint.
    pub checkpoint_digest: Digest,
}

/// An Ed25519 signature over a canonical manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Signature {
    /// SPKI PEM.
    pub public_key: Text<1, 1024>,
    /// Base64 of 64 bytes.
    pub signature: Text<1, 256>,
}

/// Who stands behind a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Review {
    /// What was signed.
    pub manifest: Manifest,
    /// By the contributor.
    pub contributor: Signature,
    /// By a maintainer.
    pub maintainer: Option<Signature>,
}

/// Outcome of a command that an independent verifier ran on a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Verification {
    /// Commit it ran on.
    pub head_commit: Sha,
    /// Principal ID.
    pub verifier: String,
    /// Command line.
    pub command: Vec<String>,
    /// Exit code.
    pub exit_code: u64,
    /// What it printed.
    pub output: BlobRef,
    /// ms since the Unix epoch.
    pub verified_at: u64,
}

/// A comment on the work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiscussionComment {
    /// The operation that posted it.
    pub id: Id,
    /// Principal ID.
    pub author: String,
    /// Text.
    pub body: String,
    /// ms since the Unix epoch.
    pub created_at: u64,
    /// Checkpoint it speaks of.
    pub checkpoint: Option<Sha>,
    /// File it speaks of.
    pub path: Option<String>,
}

/// Where an executor runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// On a contributor's machine.
    Satellite,
    /// Beside the host.
    Hosted,
}

/// A registered executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecutorInfo {
    /// Chosen by its owner.
    pub id: Id,
    /// Principal ID.
    pub owner: String,
    /// A line.
    pub name: String,
    /// Where it runs.
    pub placement: Placement,
    /// What it can do.
    pub capabilities: Vec<String>,
    /// ms since the Unix epoch.
    pub expires_at: u64,
    /// Whether the registration is alive.
    pub online: bool,
}

/// Where a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SessionPhase {
    /// Takes claims and work.
    Open,
    /// Its executor went away; can be claimed again.
    Orphaned,
    /// Ended.
    Closed,
}

/// Usage of one settled turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SettledUsage {
    /// The turn.
    pub turn_id: Id,
    /// The grant that paid.
    pub grant_id: Id,
    /// What it used.
    pub usage: Usage,
}

/// State of `axp-session:/ID`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExchangeState {
    /// `axp-session:/ID`.
    pub resource: String,
    /// `ahp-session:/ID`.
    pub session: String,
    /// `ahp-chat:/ID`.
    pub chat: String,
    /// Repository name.
    pub repository: String,
    /// The task; one open session a task.
    pub task: String,
    /// Where it stands.
    pub status: SessionPhase,
    /// Newest epoch issued; 0 before the first claim.
    pub epoch: u64,
    /// Who runs it.
    pub lease: Option<Lease>,
    /// Budgets by ID.
    pub grants: BTreeMap<Id, Grant>,
    /// Budget of the turn that runs.
    pub reservation: Option<Reservation>,
    /// Settled turns, oldest first.
    pub usage: Vec<SettledUsage>,
    /// Newest state of the work.
    pub checkpoint: Option<Checkpoint>,
    /// What the next agent is told.
    pub context: Context,
    /// Proposed replacement of the context.
    pub compaction: Option<CompactionProposal>,
    /// Signatures.
    pub review: Option<Review>,
    /// Independent verification.
    pub verification: Option<Verification>,
    /// Comments; absent in sessions stored before there were any.
    #[serde(default)]
    pub discussion: Vec<DiscussionComment>,
}

/// State of `axp-executors://`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecutorRegistry {
    /// `axp-executors://`.
    pub resource: String,
    /// Executors by ID.
    pub entries: BTreeMap<Id, ExecutorInfo>,
}

/// State of `axp-memory://`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemoryState {
    /// `axp-memory://`.
    pub resource: String,
    /// Lessons by ID.
    pub entries: BTreeMap<Digest, Memory>,
}

/// A list of at most `N` texts of at most `L` characters.
pub type Texts<const N: usize, const L: usize> = List<Text<0, L>, 0, N>;
