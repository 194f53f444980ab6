//! Typed AXP calls over the unmodified AHP client.

use std::time::Duration;

use ahp::{ClientConfig, SubscriptionEvent};
use ahp_types::StateAction;
use ahp_types::actions::ActionEnvelope;
use ahp_types::notifications::SessionSummaryChangedParams;
use ahp_types::state::SessionSummary;
use axp_protocol::action::{Action, AxpAction, Envelope};
use axp_protocol::channel::ROOT;
use axp_protocol::method::{ChannelSnapshot, Method};
use axp_protocol::principal::Role;
use axp_protocol::scalar::{Id, Text};
use axp_protocol::{AHP_VERSION, AXP_VERSION, CAPABILITY, ProtocolError, codes};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::{
    HeaderValue, StatusCode, header::AUTHORIZATION, header::RETRY_AFTER,
};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Error as WsError};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};
use url::Url;

/// Time for the TCP and TLS handshakes and the upgrade.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Largest message taken from a host, bytes: an export can be long.
const MESSAGE_BYTES: usize = 512 * 1024 * 1024;
/// Events the AHP client may hold before its pump has taken them.
const EVENT_BUFFER: usize = 8192;

/// Where a host is and how to be let in. Never printed whole.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    /// `ws://` (loopback only) or `wss://` URL.
    pub url: String,
    /// Bearer token.
    pub token: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Why a host could not be asked, or what it answered.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL cannot be used.
    #[error("{0}")]
    Url(String),
    /// No connection: refused, reset, timed out, name not found.
    #[error("cannot reach {url}: {why}")]
    Unreachable {
        /// Host.
        url: String,
        /// What the system said.
        why: String,
    },
    /// TLS or WebSocket trouble that another attempt will not mend.
    #[error("{url} does not speak AXP: {why}")]
    Handshake {
        /// Host.
        url: String,
        /// What went wrong.
        why: String,
    },
    /// The host or something before it answered the upgrade with this status.
    #[error("{url} answered HTTP {status}{}", http_hint(*status))]
    Http {
        /// Host.
        url: String,
        /// HTTP status.
        status: u16,
        /// Seconds from `Retry-After`, if it was sent.
        retry_after: Option<u64>,
    },
    /// The connection ended while it was needed.
    #[error("the connection to the host was lost")]
    Lost,
    /// No answer in time.
    #[error("the host did not answer {method} in {seconds} s")]
    Timeout {
        /// Method asked.
        method: String,
        /// Seconds waited.
        seconds: u64,
    },
    /// The host refused.
    #[error("{0}")]
    Refused(#[from] ProtocolError),
    /// The host answered something that does not fit.
    #[error("the host answered {method} with something that does not fit: {why}")]
    Answer {
        /// Method asked.
        method: String,
        /// What does not fit.
        why: String,
    },
}

fn http_hint(status: u16) -> &'static str {
    match status {
        401 => ": the token is not known there",
        403 => ": not allowed there",
        404 => ": no AXP host at that path",
        407 => ": the proxy wants a name and password",
        _ => "",
    }
}

impl ClientError {
    /// Whether another attempt may succeed (lost, refused, reset and timed-out connections, and the HTTP statuses
    /// that say so).
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Lost | Self::Timeout { .. } => true,
            Self::Http { status, .. } => matches!(status, 408 | 429 | 502 | 503 | 504),
            Self::Refused(error) => error.code == codes::INTERNAL,
            Self::Url(_) | Self::Handshake { .. } | Self::Answer { .. } => false,
        }
    }

    /// The wire code of a refusal.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Refused(error) => Some(error.code),
            _ => None,
        }
    }
}

/// What the host said of itself and of us.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostInfo {
    /// AXP version.
    pub version: String,
    /// AXP methods it serves.
    pub methods: Vec<String>,
    /// Our principal ID.
    pub principal: Id,
    /// Our role.
    pub role: Role,
    /// Repository name.
    pub repository: String,
    /// Highest clientSeq that our client ID has used.
    pub last_client_seq: u64,
}

impl HostInfo {
    /// What the result of `initialize` says.
    ///
    /// # Errors
    /// When it is no AXP host, or one of another version.
    pub(crate) fn of(result: &Value) -> Result<Self, ClientError> {
        let answer = |why: String| ClientError::Answer { method: "initialize".into(), why };
        let meta = result.get("_meta").and_then(|m| m.get(CAPABILITY)).cloned();
        let info: Self = serde_json::from_value(meta.ok_or_else(|| answer("it is no AXP host".into()))?)
            .map_err(|e| answer(e.to_string()))?;
        if info.version != AXP_VERSION {
            return Err(answer(format!("it speaks AXP {}, this program {AXP_VERSION}", info.version)));
        }
        Ok(info)
    }
}

/// The parameters of `initialize`.
pub(crate) fn hello(client_id: &str) -> Value {
    json!({
        "channel": ROOT,
        "protocolVersions": [AHP_VERSION],
        "clientId": client_id,
        "clientInfo": { "name": "axp", "version": env!("CARGO_PKG_VERSION") },
        "_meta": { CAPABILITY: { "version": AXP_VERSION } },
    })
}

/// Something the host sent on its own.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// An action on a subscribed channel.
    Action(Box<Envelope>),
    /// A new session in the catalogue.
    SessionAdded(Box<SessionSummary>),
    /// A changed catalogue entry.
    SessionChanged(Box<SessionSummaryChangedParams>),
}

/// Events in order; ends with the connection.
#[derive(Debug)]
pub struct Events {
    queue: mpsc::UnboundedReceiver<Event>,
    pump: JoinHandle<()>,
}

impl Events {
    /// The next event; `None` when the connection is over.
    pub async fn next(&mut self) -> Option<Event> {
        self.queue.recv().await
    }

    /// The next event that has arrived already.
    pub fn try_next(&mut self) -> Option<Event> {
        self.queue.try_recv().ok()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

/// A connection to a host, greeted. Cheap to clone.
#[derive(Clone)]
pub struct AxpClient {
    ahp: ahp::Client,
    client_id: String,
    info: HostInfo,
    timeout: Duration,
}

impl std::fmt::Debug for AxpClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AxpClient").field("client_id", &self.client_id).finish_non_exhaustive()
    }
}

/// How to connect.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// Client ID; a fresh one when `None`.
    pub client_id: Option<String>,
    /// How long an answer may take.
    pub timeout: Duration,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { client_id: None, timeout: Duration::from_secs(30) }
    }
}

impl AxpClient {
    /// Connects and initialises. Also returns the event stream: events of channels subscribed later arrive there.
    ///
    /// # Errors
    /// When the host cannot be reached, does not let us in, or speaks other versions.
    pub async fn connect(
        credentials: &Credentials,
        options: ConnectOptions,
    ) -> Result<(Self, Events), ClientError> {
        let stream = upgrade(credentials).await?;
        let transport = ahp_ws::WebSocketTransport::from_stream(stream);
        let config = ClientConfig {
            default_request_timeout: Some(options.timeout),
            subscription_buffer: EVENT_BUFFER,
        };
        let ahp = ahp::Client::connect(transport, config).await.map_err(|_| ClientError::Lost)?;
        let events = pump(&ahp);
        let client_id = options.client_id.unwrap_or_else(|| format!("axp-{}", random_id()));
        let result: Value = request(&ahp, "initialize", &hello(&client_id), options.timeout).await?;
        let info = HostInfo::of(&result)?;
        Ok((Self { ahp, client_id, info, timeout: options.timeout }, events))
    }

    /// What the host said of itself and of us.
    pub fn info(&self) -> &HostInfo {
        &self.info
    }

    /// Our client ID.
    pub fn client_id(&self) -> &str {
        &self.client_id
    }

    /// A method of the AXP table.
    ///
    /// # Errors
    /// When the connection is lost, the answer is late, or the host refuses.
    pub async fn call<M: Method>(&self, params: &M::Params) -> Result<M::Output, ClientError> {
        self.request(M::NAME, params).await
    }

    /// Any method, by name.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn request<P: Serialize, R: DeserializeOwned>(
        &self,
        method: &str,
        params: &P,
    ) -> Result<R, ClientError> {
        request(&self.ahp, method, params, self.timeout).await
    }

    /// Subscribes to a channel; its events arrive in the event stream after the snapshot.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn subscribe(&self, channel: &str) -> Result<ChannelSnapshot, ClientError> {
        #[derive(Deserialize)]
        struct Answer {
            snapshot: ChannelSnapshot,
        }
        Ok(self.request::<_, Answer>("subscribe", &json!({ "channel": channel })).await?.snapshot)
    }

    /// Dispatches an action on a chat with a receipt of its own.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn dispatch(&self, channel: &str, action: StateAction) -> Result<(), ClientError> {
        let params = axp_protocol::method::params::Dispatch {
            channel: text(channel)?,
            operation_id: operation_id(),
            action: axp_protocol::method::AhpAction(Box::new(action)),
        };
        self.call::<axp_protocol::method::params::Dispatch>(&params).await
    }

    /// The same connection with another time limit for answers.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// Says goodbye.
    pub async fn close(&self) {
        self.ahp.shutdown().await;
    }
}

/// A channel name as a parameter.
///
/// # Errors
/// When it is too long to be one.
pub fn text<const MIN: usize, const MAX: usize>(value: &str) -> Result<Text<MIN, MAX>, ClientError> {
    Text::new(value).map_err(|why| ProtocolError::invalid_params(why).into())
}

/// A fresh operation ID.
pub fn operation_id() -> Id {
    random_id()
}

/// A fresh identifier.
pub fn random_id() -> Id {
    let id = format!("{:032x}", rand::random::<u128>());
    // 32 hex digits are an identifier; the fallback cannot be reached.
    Id::new(id).unwrap_or_else(|_| random_id())
}

/// The envelope with AXP's own actions recognised.
pub fn envelope(ahp: ActionEnvelope) -> Envelope {
    let action = match ahp.action {
        StateAction::Unknown(value) => match serde_json::from_value::<AxpAction>(value.clone()) {
            Ok(action) => action.into(),
            Err(_) => StateAction::Unknown(value).into(),
        },
        action => Action::from(action),
    };
    Envelope {
        channel: ahp.channel,
        action,
        server_seq: ahp.server_seq,
        origin: ahp.origin,
        rejection_reason: ahp.rejection_reason,
    }
}

fn pump(ahp: &ahp::Client) -> Events {
    // Nothing here waits for anybody, so the AHP client's ring never overruns in practice.
    let mut stream = ahp.events();
    let (sender, queue) = mpsc::unbounded_channel();
    let pump = tokio::spawn(async move {
        while let Some(event) = stream.recv().await {
            let event = match event.event {
                SubscriptionEvent::Action(action) => Event::Action(Box::new(envelope(action))),
                SubscriptionEvent::SessionAdded(p) => Event::SessionAdded(Box::new(p.summary)),
                SubscriptionEvent::SessionSummaryChanged(p) => Event::SessionChanged(Box::new(p)),
                _ => continue,
            };
            if sender.send(event).is_err() {
                return;
            }
        }
    });
    Events { queue, pump }
}

async fn request<P: Serialize, R: DeserializeOwned>(
    ahp: &ahp::Client,
    method: &str,
    params: &P,
    timeout: Duration,
) -> Result<R, ClientError> {
    let late = || ClientError::Timeout { method: method.to_owned(), seconds: timeout.as_secs() };
    let answer = tokio::time::timeout(timeout, ahp.request(method, params)).await.map_err(|_| late())?;
    let value: Value = answer.map_err(|error| match error {
        ahp::ClientError::Rpc(e) if e.code == -32000 => ClientError::Lost,
        ahp::ClientError::Rpc(e) => {
            ClientError::Refused(ProtocolError { code: e.code, message: e.message, data: e.data })
        }
        ahp::ClientError::Cancelled => late(),
        ahp::ClientError::Deserialization(e) => {
            ClientError::Answer { method: method.to_owned(), why: e.to_string() }
        }
        _ => ClientError::Lost,
    })?;
    serde_json::from_value(value)
        .map_err(|e| ClientError::Answer { method: method.to_owned(), why: e.to_string() })
}

/// Checks a host URL: `wss://`, or `ws://` to this machine only.
///
/// # Errors
/// A sentence that says what is wrong with it.
pub fn check_url(url: &str) -> Result<Url, ClientError> {
    let parsed = Url::parse(url).map_err(|e| ClientError::Url(format!("{url:?} is not a URL: {e}")))?;
    let loopback = match parsed.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
        Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
        None => return Err(ClientError::Url(format!("{url:?} names no host"))),
    };
    match parsed.scheme() {
        "wss" => Ok(parsed),
        "ws" if loopback => Ok(parsed),
        "ws" => Err(ClientError::Url(format!(
            "{url} would send the token in the clear; use wss://, or ws:// to this machine only"
        ))),
        other => Err(ClientError::Url(format!("{url}: {other}:// is not a WebSocket scheme; use wss://"))),
    }
}

/// Connects and upgrades; nothing has been said yet.
pub(crate) async fn upgrade(
    credentials: &Credentials,
) -> Result<WebSocketStream<MaybeTlsStream<TcpStream>>, ClientError> {
    let url = check_url(&credentials.url)?;
    let shown = url.to_string();
    let mut request = url.as_str().into_client_request().map_err(|e| ClientError::Url(e.to_string()))?;
    let mut bearer = HeaderValue::from_str(&format!("Bearer {}", credentials.token))
        .map_err(|_| ClientError::Url("the token has characters that no token has".into()))?;
    bearer.set_sensitive(true);
    request.headers_mut().insert(AUTHORIZATION, bearer);
    let config =
        WebSocketConfig::default().max_message_size(Some(MESSAGE_BYTES)).max_frame_size(Some(MESSAGE_BYTES));
    let connecting = tokio_tungstenite::connect_async_with_config(request, Some(config), true);
    match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(Ok((stream, _))) => Ok(stream),
        Ok(Err(error)) => Err(upgrade_error(shown, error)),
        Err(_) => Err(ClientError::Unreachable { url: shown, why: "no answer in time".into() }),
    }
}

fn upgrade_error(url: String, error: WsError) -> ClientError {
    match error {
        WsError::Http(response) => {
            let status: StatusCode = response.status();
            let retry_after = response.headers().get(RETRY_AFTER).and_then(|v| v.to_str().ok()?.parse().ok());
            ClientError::Http { url, status: status.as_u16(), retry_after }
        }
        WsError::Io(e) => ClientError::Unreachable { url, why: e.to_string() },
        WsError::ConnectionClosed | WsError::AlreadyClosed => {
            ClientError::Unreachable { url, why: "the connection was closed".into() }
        }
        // Cut off in mid-handshake.
        WsError::Protocol(tungstenite::error::ProtocolError::HandshakeIncomplete) => {
            ClientError::Unreachable { url, why: "the connection was closed".into() }
        }
        other => ClientError::Handshake { url, why: other.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_travel_encrypted_or_not_at_all() {
        for good in
            ["wss://example.org/axp", "ws://127.0.0.1:7331/axp", "ws://[::1]:1/axp", "ws://localhost/axp"]
        {
            assert!(check_url(good).is_ok(), "{good}");
        }
        for bad in [
            "ws://example.org/axp",
            "http://127.0.0.1/",
            "ws://10.0.0.1/axp",
            "nonsense",
            "ws://localhost.evil.org/",
        ] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn transient_errors_are_told_from_final_ones() {
        let http = |status| ClientError::Http { url: String::new(), status, retry_after: None };
        for status in [408, 429, 502, 503, 504] {
            assert!(http(status).is_transient(), "{status}");
        }
        for status in [400, 401, 403, 404, 407, 500] {
            assert!(!http(status).is_transient(), "{status}");
        }
        assert!(ClientError::Lost.is_transient());
        assert!(!ClientError::Refused(ProtocolError::budget("spent")).is_transient());
    }

    #[test]
    fn credentials_keep_their_token_to_themselves() {
        let credentials = Credentials { url: "wss://h/axp".into(), token: "secret-secret-secret".into() };
        assert!(!format!("{credentials:?}").contains("secret"));
    }
}
