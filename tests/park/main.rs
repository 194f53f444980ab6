//! The contribution from end to end: host, contributor and maintainers are processes, over real sockets, with real Git
//! repositories and SQLite files, and an agent that speaks real ACP.
#![cfg(target_os = "linux")]
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod budget;
mod ends;
mod holding;
mod knowledge;
mod real_agents;
mod recorder;
mod review;
mod support;
mod turns;
#[path = "../valid/mod.rs"]
mod valid;
#[path = "../wanted/mod.rs"]
mod wanted;
mod whole;
