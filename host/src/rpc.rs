//! JSON-RPC over a connection: frames to typed calls, replies to frames.

use std::sync::Arc;

use axp_protocol::shape::Principal;

use crate::authority::Handle;
use crate::outbox::Outbox;

/// The protocol side of one connection. Dropping it disconnects.
#[derive(Debug)]
pub struct Peer {
    greeted: bool,
    outbox: Outbox,
}

impl Peer {
    /// A connection of `principal`, before `initialize`.
    pub fn open(_authority: &Handle, _principal: Arc<Principal>, outbox: Outbox) -> Self {
        Self { greeted: false, outbox }
    }

    /// Handles one text frame; replies go to the outbox. Returns when the next frame may be read: with too many
    /// requests in flight, that is when some have been answered.
    pub async fn frame(&mut self, text: &str) {
        self.greeted = true;
        self.outbox.reply(format!("{{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{{\"code\":-32601,\"message\":\"{}\"}}}}", text.len()));
    }

    /// Answers a frame that passed the hard limit and was not read (−32043, `id: null`).
    pub fn too_large(&mut self) {}

    /// Whether `initialize` or `reconnect` has succeeded.
    pub fn greeted(&self) -> bool {
        self.greeted
    }
}
