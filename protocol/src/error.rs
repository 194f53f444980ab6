//! The error every layer of the protocol speaks: a JSON-RPC code, one sentence and optional data.

use serde_json::Value;

/// Error codes that can appear on the wire (JSON-RPC, AHP and AXP ranges; protocol section 6).
pub mod codes {
    /// The frame was not JSON.
    pub const PARSE: i32 = -32700;
    /// The frame was JSON but not a JSON-RPC 2.0 request or notification.
    pub const INVALID_REQUEST: i32 = -32600;
    /// No such method.
    pub const METHOD_NOT_FOUND: i32 = -32601;
    /// The params do not fit the method; `data.path` names the place.
    pub const INVALID_PARAMS: i32 = -32602;
    /// The host failed; the request had no effect.
    pub const INTERNAL: i32 = -32603;
    /// The session does not exist, or may not be read by this principal.
    pub const SESSION_NOT_FOUND: i32 = -32001;
    /// A session with that channel exists.
    pub const SESSION_EXISTS: i32 = -32003;
    /// A turn is already active.
    pub const TURN_IN_PROGRESS: i32 = -32004;
    /// None of the offered protocol versions is spoken here.
    pub const UNSUPPORTED_VERSION: i32 = -32005;
    /// The named thing does not exist.
    pub const NOT_FOUND: i32 = -32008;
    /// The principal may not do this.
    pub const NOT_PERMITTED: i32 = -32009;
    /// The state changed meanwhile, or an identifier is taken.
    pub const CONFLICT: i32 = -32011;
    /// The lease ended or another epoch runs the session.
    pub const STALE_LEASE: i32 = -32040;
    /// The grant is spent, revoked, or missing a reservation.
    pub const BUDGET: i32 = -32041;
    /// The context does not fit the requested size.
    pub const CONTEXT: i32 = -32042;
    /// A size or count limit was passed.
    pub const LIMIT: i32 = -32043;
}

/// A refusal or failure with its wire code.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message} ({code})")]
pub struct ProtocolError {
    /// One of [`codes`].
    pub code: i32,
    /// One sentence for a person: what happened, to which thing.
    pub message: String,
    /// Machine-readable detail.
    pub data: Option<Value>,
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $code:ident),+ $(,)?) => {
        impl ProtocolError {
            $($(#[$doc])* pub fn $name(message: impl Into<String>) -> Self {
                Self::new(codes::$code, message)
            })+
        }
    };
}

impl ProtocolError {
    /// An error with this code and sentence.
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// The same error with machine-readable detail.
    #[must_use]
    pub fn with_data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }
}

constructors! {
    /// −32600.
    invalid_request => INVALID_REQUEST,
    /// −32601.
    method_not_found => METHOD_NOT_FOUND,
    /// −32602.
    invalid_params => INVALID_PARAMS,
    /// −32603.
    internal => INTERNAL,
    /// −32001.
    session_not_found => SESSION_NOT_FOUND,
    /// −32003.
    session_exists => SESSION_EXISTS,
    /// −32004.
    turn_in_progress => TURN_IN_PROGRESS,
    /// −32008.
    not_found => NOT_FOUND,
    /// −32009.
    not_permitted => NOT_PERMITTED,
    /// −32011.
    conflict => CONFLICT,
    /// −32040.
    stale_lease => STALE_LEASE,
    /// −32041.
    budget => BUDGET,
    /// −32042.
    context => CONTEXT,
    /// −32043.
    limit => LIMIT,
}
