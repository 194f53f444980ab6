//! JSON-RPC over a connection: frames to typed requests, within their limits.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ahp_types::StateAction;
use ahp_types::commands::{ContentEncoding, InitializeParams, ListSessionsParams, ReconnectParams};
use axp_protocol::ProtocolError;
use axp_protocol::canonical::sha256_hex;
use axp_protocol::channel::{Channel, parse_blob_uri};
use axp_protocol::limits::{BLOB_BYTES, FRAME_BYTES, MAX_SAFE_INTEGER};
use axp_protocol::method::{self, Call, parse_params};
use axp_protocol::principal::Principal;
use axp_protocol::scalar::{Digest, Id, Text};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use crate::authority::{ConnectionId, Handle, Incoming, Upload, error_frame};
use crate::outbox::Outbox;

/// Requests of one connection that may be in flight.
const IN_FLIGHT: usize = 64;

/// A JSON-RPC request ID, as the client spelled it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestId(String);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A request with its params checked.
#[derive(Debug)]
pub(crate) enum Request {
    Initialize(Box<InitializeParams>),
    Reconnect(ReconnectParams),
    Subscribe { channel: Channel },
    Unsubscribe { channel: Channel },
    ListSessions(ListSessionsParams),
    CreateSession(NewSession),
    DispatchAction(Box<ActionDispatch>),
    ResourceRead { session: Id, digest: Digest, text: bool },
    Axp(Call),
    BlobPut { operation: Id, channel: Channel, upload: Upload },
}

/// Params of `createSession`, with defaults filled in.
#[derive(Debug)]
pub(crate) struct NewSession {
    pub(crate) id: Id,
    pub(crate) title: String,
    pub(crate) task: String,
}

/// Params of `dispatchAction`.
#[derive(Debug)]
pub(crate) struct ActionDispatch {
    pub(crate) channel: Channel,
    pub(crate) client_seq: u64,
    pub(crate) action: StateAction,
}

/// The protocol side of one connection. Dropping it disconnects.
#[derive(Debug)]
pub struct Peer {
    connection: ConnectionId,
    authority: Handle,
    outbox: Outbox,
    greeted: Arc<AtomicBool>,
    in_flight: Arc<Semaphore>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.authority.closed(self.connection);
    }
}

impl Peer {
    /// A connection of `principal`, before `initialize`.
    pub fn open(authority: &Handle, principal: Arc<Principal>, outbox: Outbox) -> Self {
        let greeted = Arc::new(AtomicBool::new(false));
        let connection = authority.open(principal, outbox.clone(), greeted.clone());
        let in_flight = Arc::new(Semaphore::new(IN_FLIGHT));
        Self { connection, authority: authority.clone(), outbox, greeted, in_flight }
    }

    /// Handles one text frame; replies go to the outbox. Returns when the next frame may be read: with too many
    /// requests in flight, that is when some have been answered.
    pub async fn frame(&mut self, text: &str) {
        let parsed = parse(text);
        let (id, method, params) = match parsed {
            Parsed::Call { id, method, params } => (id, method, params),
            Parsed::Ignored => return,
            Parsed::Bad { id, error } => {
                self.outbox.reply(error_frame(id.as_ref(), &error));
                return;
            }
        };
        if method == "ping" {
            if let Some(id) = id {
                self.outbox.reply(crate::authority::result_frame(&id, "null"));
            }
            return;
        }
        let request = match request(&method, params, text.len()) {
            Ok(request) => request,
            Err(error) => {
                // A notification has no answer.
                if let Some(id) = id {
                    self.outbox.reply(error_frame(Some(&id), &error));
                }
                return;
            }
        };
        // A read can put a whole blob into the queue: one at a time, with nothing beside it.
        let heavy = matches!(
            &request,
            Request::ResourceRead { .. } | Request::Axp(Call::BlobGet(_) | Call::Export(_))
        );
        let permits = if heavy { IN_FLIGHT } else { 1 };
        let permit = self.in_flight.clone().acquire_many_owned(u32::try_from(permits).unwrap_or(1)).await;
        self.outbox.room().await;
        // The semaphore is never closed.
        let Ok(permit) = permit else { return };
        let incoming = Incoming { connection: self.connection, id: id.clone(), request, permit };
        if !self.authority.request(incoming)
            && let Some(id) = id
        {
            self.outbox.reply(error_frame(Some(&id), &ProtocolError::internal("the host is stopping")));
        }
    }

    /// Answers a frame that passed the hard limit and was not read (−32043, `id: null`).
    pub fn too_large(&mut self) {
        self.outbox.reply(error_frame(None, &ProtocolError::limit("a frame over the limit of every method")));
    }

    /// Whether `initialize` or `reconnect` has succeeded.
    pub fn greeted(&self) -> bool {
        self.greeted.load(Ordering::Acquire)
    }
}

enum Parsed<'a> {
    Call { id: Option<RequestId>, method: Cow<'a, str>, params: &'a str },
    Bad { id: Option<RequestId>, error: ProtocolError },
    Ignored,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: Option<Cow<'a, str>>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

fn parse(text: &str) -> Parsed<'_> {
    let envelope: Envelope<'_> = match serde_json::from_str(text) {
        Ok(envelope) => envelope,
        Err(_) => {
            let error = match serde_json::from_str::<serde::de::IgnoredAny>(text) {
                Ok(_) => ProtocolError::invalid_request("not a JSON-RPC 2.0 request"),
                Err(_) => ProtocolError::new(axp_protocol::codes::PARSE, "not JSON"),
            };
            return Parsed::Bad { id: None, error };
        }
    };
    let id = envelope.id.map(|raw| raw.get()).filter(|raw| *raw != "null");
    let valid_id =
        id.is_none_or(|raw| raw.len() <= 256 && (raw.starts_with('"') || raw.parse::<f64>().is_ok()));
    let id = id.filter(|_| valid_id).map(|raw| RequestId(raw.to_owned()));
    let bad = |why: &str| Parsed::Bad { id: id.clone(), error: ProtocolError::invalid_request(why) };
    if envelope.jsonrpc.as_deref() != Some("2.0") {
        return bad("jsonrpc must be \"2.0\"");
    }
    if !valid_id {
        return bad("id must be a string or a number of at most 256 characters");
    }
    let Some(method) = envelope.method else {
        // This host asks nothing, so no answer is expected.
        return if envelope.result.is_some() || envelope.error.is_some() {
            Parsed::Ignored
        } else {
            bad("no method")
        };
    };
    let Ok(method) = serde_json::from_str::<String>(method.get()) else {
        return bad("method must be a string");
    };
    Parsed::Call { id, method: method.into(), params: envelope.params.map_or("{}", RawValue::get) }
}

fn request(method: &str, params: &str, frame: usize) -> Result<Request, ProtocolError> {
    let limit = method::info(method).map_or(FRAME_BYTES, |m| m.frame_bytes);
    if frame > limit {
        return Err(ProtocolError::limit(format!("a frame of {frame} bytes; {method} may have {limit}")));
    }
    #[derive(Deserialize)]
    struct Addressed {
        channel: String,
    }
    Ok(match method {
        "initialize" => Request::Initialize(Box::new(parse_params(params)?)),
        "reconnect" => Request::Reconnect(parse_params(params)?),
        "subscribe" => {
            Request::Subscribe { channel: Channel::parse(&parse_params::<Addressed>(params)?.channel)? }
        }
        "unsubscribe" => {
            Request::Unsubscribe { channel: Channel::parse(&parse_params::<Addressed>(params)?.channel)? }
        }
        "listSessions" => Request::ListSessions(parse_params(params)?),
        "createSession" => Request::CreateSession(new_session(params)?),
        "dispatchAction" => Request::DispatchAction(Box::new(action_dispatch(params)?)),
        "resourceRead" => resource_read(params)?,
        _ => match Call::parse(method, params) {
            Some(call) => axp(call?)?,
            None => return Err(ProtocolError::method_not_found(format!("no method {method:?} here"))),
        },
    })
}

fn axp(call: Call) -> Result<Request, ProtocolError> {
    let Call::BlobPut(p) = call else { return Ok(Request::Axp(call)) };
    let data = STANDARD.decode(p.data.as_bytes()).map_err(|_| {
        ProtocolError::invalid_params("data: not base64").with_data(serde_json::json!({ "path": "data" }))
    })?;
    if data.len() > BLOB_BYTES {
        return Err(ProtocolError::limit(format!(
            "a blob of {} bytes; at most {BLOB_BYTES} are allowed",
            data.len()
        )));
    }
    let digest = Digest::new(sha256_hex(&data)).map_err(ProtocolError::internal)?;
    let upload = Upload { data, digest, media_type: p.media_type.to_string() };
    Ok(Request::BlobPut { operation: p.operation_id, channel: Channel::parse(&p.channel)?, upload })
}

fn new_session(params: &str) -> Result<NewSession, ProtocolError> {
    #[derive(Deserialize)]
    struct Params {
        channel: String,
        provider: Option<String>,
        config: Option<Config>,
    }
    #[derive(Deserialize, Default)]
    #[serde(deny_unknown_fields)]
    struct Config {
        title: Option<Text<0, 256>>,
        task: Option<Text<0, 512>>,
    }
    let p: Params = parse_params(params)?;
    let Channel::Session(id) = Channel::parse(&p.channel)? else {
        return Err(ProtocolError::invalid_params("channel: a new session is named by ahp-session:/ID"));
    };
    if p.provider.as_deref().is_some_and(|provider| provider != "axp") {
        return Err(ProtocolError::invalid_params("provider: this host has only \"axp\"")
            .with_data(serde_json::json!({ "path": "provider" })));
    }
    let config = p.config.unwrap_or_default();
    let filled = |text: Option<String>| text.filter(|t| !t.trim().is_empty());
    let task = filled(config.task.map(Text::into_string)).unwrap_or_else(|| id.to_string());
    let title =
        filled(config.title.map(Text::into_string)).unwrap_or_else(|| task.chars().take(256).collect());
    Ok(NewSession { id, title, task })
}

fn action_dispatch(params: &str) -> Result<ActionDispatch, ProtocolError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Params {
        channel: String,
        client_seq: axp_protocol::scalar::Int<1, MAX_SAFE_INTEGER>,
        action: Value,
    }
    let p: Params = parse_params(params)?;
    Ok(ActionDispatch {
        channel: Channel::parse(&p.channel)?,
        client_seq: p.client_seq.get(),
        action: axp_protocol::action::parse_ahp_action(p.action)?,
    })
}

fn resource_read(params: &str) -> Result<Request, ProtocolError> {
    #[derive(Deserialize)]
    struct Params {
        #[serde(rename = "channel")]
        _channel: String,
        uri: String,
        encoding: Option<ContentEncoding>,
    }
    let p: Params = parse_params(params)?;
    let (session, digest) = parse_blob_uri(&p.uri)
        .ok_or_else(|| ProtocolError::not_found("only axp-blob:/CHANNEL/DIGEST can be read here"))?;
    Ok(Request::ResourceRead { session, digest, text: p.encoding == Some(ContentEncoding::Utf8) })
}
