//! The AXP host: an Agent Host Protocol server with leases, budgets, checkpoints and review.

pub mod outbox;
pub mod store;
