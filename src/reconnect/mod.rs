//! The supervisor of a parked agent: connection, backoff, resume, one runner a lease.
//!
//! One grant and one worktree for the whole life of a park; a fresh agent process for each connection that claims
//! the session. Before another attempt everything of the last one has ended.

mod backoff;
mod checkpoint;
mod donation;
mod emitter;
mod event;
mod heartbeat;
mod journal;
mod runner;
mod supervisor;
mod turn;

pub use donation::{download, download_with};
pub use event::{ParkEvent, StopReason};
pub use supervisor::{AgentCommand, ParkError, ParkSpec, park};
pub use turn::USAGE_REPORT;
