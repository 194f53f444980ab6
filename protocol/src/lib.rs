//! The AXP 0.2.0 wire protocol: types with their limits, the method table, channel reducers, canonical JSON and
//! schemas. Nothing here does I/O or reads a clock.

pub mod action;
pub mod canonical;
pub mod channel;
pub mod error;
pub mod limits;
pub mod method;
pub mod principal;
pub mod scalar;
pub mod schema;
pub mod shape;
pub mod signature;
pub mod state;

pub use error::{ProtocolError, codes};

/// AXP version spoken here; both sides must have exactly this one.
pub const AXP_VERSION: &str = "0.2.0";
/// AHP version spoken here.
pub const AHP_VERSION: &str = "0.9.0";
/// Key of AXP's own data in AHP `_meta` objects.
pub const CAPABILITY: &str = "org.axp.exchange";
