//! The JSON-RPC messages that the host sends, put together from JSON that is written already.

use axp_protocol::ProtocolError;
use axp_protocol::channel::Channel;
use serde_json::json;

use crate::outbox::Frame;
use crate::rpc::RequestId;

/// A notification frame.
pub(super) fn notification(method: &str, params: &serde_json::Value) -> Frame {
    json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string().into()
}

/// An `action` notification, put together from JSON that is written already.
pub(super) fn action_frame(
    channel: &Channel,
    action: &str,
    seq: u64,
    origin: Option<&str>,
    rejection: Option<&str>,
) -> Frame {
    let envelope = crate::reads::envelope(&channel.to_string(), action, seq, origin, rejection);
    format!(r#"{{"jsonrpc":"2.0","method":"action","params":{envelope}}}"#).into()
}

/// A reply with a result that is JSON already.
pub(crate) fn result_frame(id: &RequestId, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

/// A reply with an error; `id` is `null` when it could not be read.
pub(crate) fn error_frame(id: Option<&RequestId>, error: &ProtocolError) -> String {
    let mut body = json!({ "code": error.code, "message": error.message });
    if let Some(data) = &error.data {
        body["data"] = data.clone();
    }
    let id = id.map_or_else(|| "null".to_owned(), ToString::to_string);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{body}}}"#)
}
