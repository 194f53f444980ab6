//! Real agent processes: the sample agent, and shell scripts that misbehave on purpose.
#![cfg(target_os = "linux")]
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod agents;
mod processes;
mod start;
mod turns;
#[path = "../wanted/mod.rs"]
mod wanted;
