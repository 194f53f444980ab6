//! What a park tells whoever watches it.

use std::path::PathBuf;
use std::time::Duration;

use axp_protocol::method::TurnOutcome;
use axp_protocol::shape::{Allowance, Usage};

/// Why a park ended as it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// The contributor asked.
    Asked,
    /// The contributor revoked the grant.
    Revoked,
    /// A maintainer closed the session.
    Closed,
}

impl StopReason {
    /// A sentence.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Asked => "stopped by you",
            Self::Revoked => "the grant was revoked",
            Self::Closed => "the session was closed by a maintainer",
        }
    }
}

/// Something that happened to a parked agent.
#[derive(Debug, Clone, PartialEq)]
pub enum ParkEvent {
    /// An attempt to reach the host begins.
    Connecting,
    /// Work on the local repository goes on.
    Progress {
        /// What is being done.
        what: &'static str,
        /// Steps done.
        done: u64,
        /// Steps in all, if known.
        total: Option<u64>,
    },
    /// The agent starts.
    StartingAgent,
    /// The session is held and the agent waits for prompts.
    Parked {
        /// Fencing epoch.
        epoch: u64,
        /// Where the agent works.
        worktree: PathBuf,
        /// The agent's own name and version.
        agent: String,
        /// The grant that pays.
        grant: String,
    },
    /// A prompt arrived.
    TurnStarted {
        /// Turn ID.
        turn: String,
        /// The prompt.
        text: String,
    },
    /// The agent asks; a maintainer must answer.
    PermissionAsked {
        /// Tool.
        tool: String,
    },
    /// A state of the work was published.
    Checkpoint {
        /// Commit.
        head: String,
        /// Files changed since the base.
        files: usize,
    },
    /// A turn ended.
    TurnEnded {
        /// Turn ID.
        turn: String,
        /// How.
        outcome: TurnOutcome,
        /// Why, if it failed.
        error: Option<String>,
        /// What was charged for it.
        usage: Usage,
        /// What is spent by the donor's own ledger.
        spent: Allowance,
        /// The donor's limit.
        limit: Allowance,
    },
    /// The donor's limit changed.
    LimitChanged {
        /// The limit that counts here now.
        limit: Allowance,
    },
    /// The connection or lease was lost; another attempt follows.
    Reconnecting {
        /// Why.
        reason: String,
        /// When.
        wait: Duration,
    },
    /// Something the contributor should know.
    Note(String),
}
