//! A sample ACP agent: real protocol, real edits, no model. It makes the demo work without an account and drives tests.
//!
//! Where the working folder holds the [`scratch_project`], a prompt makes it fix the bug in `add.sh` (after asking) and
//! run the tests. Anywhere else it appends a line to `NOTES.md` (after asking). What it says is the same every time.
//!
//! Words in the prompt change what it does:
//!
//! | word | effect |
//! | --- | --- |
//! | `APPEND WORD` | append WORD to `NOTES.md`, in any folder, after asking |
//! | `ASK2` | append two lines, asking for each |
//! | `NOPERM` | only talk: no tool, no question |
//! | `NOUSAGE` | report neither tokens nor cost |
//! | `RECALL` | only say how many prompts this ACP session has had, and what came before the message |
//! | `SLOW` | talk slowly, for up to a minute, until cancelled |
//! | `CRASH` | say something, write to stderr, exit with status 3 in the middle of the turn |
//!
//! A turn reports consistent tokens in its response, and a session cost that grows by [`TURN_MICROS`] USD millionths.

mod agent;
mod project;
mod turn;

pub use agent::run;
pub use project::scratch_project;

/// What a turn costs, in USD millionths.
pub const TURN_MICROS: u64 = 2_000;

/// The hidden subcommand that runs the sample agent.
pub const SAMPLE_COMMAND: &str = "__sample-agent";
