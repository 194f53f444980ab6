//! AXP: park your own coding agent at someone's project, with a budget, and stay in control of every token.

pub mod acp;
pub mod budget;
pub mod cli;
pub mod client;
pub mod history;
pub mod reconnect;
pub mod sample;
pub mod worktree;
