//! Spawn an ACP agent, speak ACP v1 with it, translate its updates into AHP actions.

mod content;
mod emission;
mod env;
mod error;
mod lines;
mod text;
mod tools;
mod translate;

pub use emission::{BlobOut, Emission, INLINE_LIMIT, TurnContext};
pub use error::AgentError;
pub use lines::{MAX_LINE, MAX_NOISE, Noise};
pub use translate::{LONGEST_DELTA, Translator};
