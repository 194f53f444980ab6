//! The AXP host: an Agent Host Protocol server with leases, budgets, checkpoints and review.

pub mod authority;
pub mod outbox;
mod reads;
pub mod rpc;
pub mod store;
pub mod time;
