//! The AXP host: an Agent Host Protocol server with leases, budgets, checkpoints and review.

pub mod authority;
pub mod config;
pub mod outbox;
pub mod rpc;
pub mod server;
pub mod store;
