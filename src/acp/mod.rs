//! Spawn an ACP agent, speak ACP v1 with it, translate its updates into AHP actions.

mod agent;
mod connection;
mod content;
mod cost;
mod emission;
mod env;
mod error;
mod guard;
mod inbound;
mod lines;
mod permission;
mod process;
mod stderr;
#[cfg(test)]
mod test_host;
mod text;
mod tools;
mod translate;
#[cfg_attr(target_os = "linux", path = "tree_linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "tree_other.rs")]
mod tree;
mod turn;
mod usage;

pub use agent::{Agent, AgentInfo, AgentKiller};
pub use emission::{BlobOut, Emission, INLINE_LIMIT, TurnContext};
pub use error::AgentError;
pub use guard::{GUARD_COMMAND, guard_main};
pub use lines::{MAX_LINE, MAX_NOISE, Noise};
pub use permission::{DecideError, Decision, PermissionBook};
pub use process::{AgentSpec, contained};
pub use translate::{LONGEST_DELTA, Translator};
pub use turn::{Outcome, TurnEnd, TurnEvent};
pub use usage::TurnUsage;
