//! The network side: accepts connections, checks who they are, and carries frames (section 2).

mod connection;
mod http;
#[cfg(test)]
mod tests;
mod writer;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axp_protocol::limits::{BLOB_FRAME_BYTES, HELLO_MS, QUEUE_BYTES};
use axp_protocol::principal::Principal;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::connection::Queue;
use self::http::{Answer, Decision, Head, HeadError};
use crate::authority::Handle;
use crate::config::{Credentials, MAX_CONNECTIONS};
use crate::outbox::{Outbox, outbox};
use crate::rpc;

/// Bytes read at once; each connection keeps a buffer of this size.
const READ_BYTES: usize = 4 * 1024;
/// Connections that are told at one time that the host is full; more are only dropped.
const TURNED_AWAY: usize = 64;
/// Pause after the system refuses to accept, when it is out of file descriptors above all.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How connections are treated. Tests shorten the times.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// Values of `Origin` that may connect; clients that send none always may.
    pub allowed_origins: Vec<String>,
    /// Connections open at once; more are answered 503.
    pub max_connections: usize,
    /// Outbound queue of one connection, bytes.
    pub queue_bytes: usize,
    /// Largest frame that is read, bytes.
    pub frame_bytes: usize,
    /// For the request head to arrive.
    pub head: Duration,
    /// For `initialize` or `reconnect` after the upgrade.
    pub hello: Duration,
    /// A socket that is silent this long is sent a ping.
    pub ping: Duration,
    /// A socket that is silent this long is dropped.
    pub silence: Duration,
    /// For one chunk (64 KiB) to leave.
    pub write: Duration,
    /// For the end of a connection: what is queued, the close frame, and the client's answer to it.
    pub close: Duration,
    /// For all connections to end when the server stops.
    pub stop: Duration,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            allowed_origins: Vec::new(),
            max_connections: MAX_CONNECTIONS,
            queue_bytes: QUEUE_BYTES,
            frame_bytes: BLOB_FRAME_BYTES,
            head: Duration::from_secs(10),
            hello: Duration::from_millis(HELLO_MS),
            ping: Duration::from_secs(30),
            silence: Duration::from_secs(90),
            write: Duration::from_secs(30),
            close: Duration::from_secs(2),
            stop: Duration::from_secs(5),
        }
    }
}

/// A server that accepts connections until it is stopped or dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    tasks: TaskTracker,
    stop: CancellationToken,
    kill: CancellationToken,
    patience: Duration,
}

impl Server {
    /// Starts to accept on `listener`.
    ///
    /// # Errors
    /// When the listener has no address.
    pub fn start(
        settings: ServerSettings,
        credentials: Credentials,
        authority: Handle,
        listener: TcpListener,
    ) -> io::Result<Self> {
        Self::start_with(settings, credentials, listener, move |principal, outbox| {
            rpc::Peer::open(&authority, principal, outbox)
        })
    }

    fn start_with<P: connection::Peer + 'static>(
        settings: ServerSettings,
        credentials: Credentials,
        listener: TcpListener,
        open: impl Fn(Arc<Principal>, Outbox) -> P + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let server = Self {
            address: listener.local_addr()?,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            kill: CancellationToken::new(),
            patience: settings.stop,
        };
        let acceptor = Arc::new(Acceptor {
            slots: Arc::new(Semaphore::new(settings.max_connections.min(Semaphore::MAX_PERMITS))),
            refusals: Arc::new(Semaphore::new(TURNED_AWAY)),
            settings,
            credentials,
            open,
            tasks: server.tasks.clone(),
            stop: server.stop.clone(),
            kill: server.kill.clone(),
        });
        server.tasks.spawn(acceptor.run(listener));
        Ok(server)
    }

    /// Address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting, closes every connection with 1001, and waits for their end; what is left after the stop
    /// time is dropped.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        if timeout(self.patience, self.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = self.tasks.len(), "connections did not end in time and are dropped");
            self.kill.cancel();
            self.tasks.wait().await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill.cancel();
    }
}

/// What every connection shares.
struct Acceptor<F> {
    settings: ServerSettings,
    credentials: Credentials,
    open: F,
    slots: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
    kill: CancellationToken,
}

impl<P, F> Acceptor<F>
where
    P: connection::Peer + 'static,
    F: Fn(Arc<Principal>, Outbox) -> P + Send + Sync + 'static,
{
    async fn run(self: Arc<Self>, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = self.kill.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, from)) => self.clone().admit(stream, from),
                Err(error) => {
                    tracing::warn!(%error, "no connection could be accepted");
                    // The client's own failures do not concern the next one; the system's would spin.
                    if !matches!(
                        error.kind(),
                        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
                    ) {
                        self.stop.run_until_cancelled(sleep(ACCEPT_PAUSE)).await;
                    }
                }
            }
        }
    }

    /// Gives the connection a task of its own, or turns it away.
    fn admit(self: Arc<Self>, stream: TcpStream, from: SocketAddr) {
        let tasks = self.tasks.clone();
        if let Ok(slot) = self.slots.clone().try_acquire_owned() {
            tasks.spawn(async move {
                let kill = self.kill.clone();
                kill.run_until_cancelled_owned(self.handle(stream, from)).await;
                drop(slot);
            });
        } else if let Ok(slot) = self.refusals.clone().try_acquire_owned() {
            tracing::warn!(%from, "connection refused: the host is full");
            tasks.spawn(async move {
                let kill = self.kill.clone();
                let answer = Answer::Full.send(stream, self.settings.close, &self.stop);
                kill.run_until_cancelled_owned(answer).await;
                drop(slot);
            });
        }
    }

    async fn handle(&self, mut stream: TcpStream, from: SocketAddr) {
        // Frames leave when they are flushed; without this a small one could wait for the last one's answer.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%from, %error, "the socket keeps its delay");
        }
        let head = tokio::select! {
            biased;
            () = self.stop.cancelled() => return,
            head = http::read_head(&mut stream, self.settings.head) => head,
        };
        let decision = match &head {
            Ok(head) => head.decide(&self.credentials, &self.settings.allowed_origins),
            Err(HeadError::Malformed) => Decision::Answer(Answer::Malformed),
            Err(HeadError::Gone) => return tracing::debug!(%from, "no request came"),
        };
        match decision {
            Decision::Upgrade { principal, accept } => {
                if http::switch_protocols(&mut stream, &accept, self.settings.close).await.is_ok() {
                    let rest = head.map(Head::into_rest).unwrap_or_default();
                    self.converse(stream, rest, principal, from).await;
                }
            }
            Decision::Answer(answer) => {
                if answer != Answer::Health {
                    tracing::info!(%from, ?answer, "request refused");
                }
                answer.send(stream, self.settings.close, &self.stop).await;
            }
        }
    }

    async fn converse(&self, stream: TcpStream, rest: Vec<u8>, principal: Arc<Principal>, from: SocketAddr) {
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BYTES)
            .write_buffer_size(writer::CHUNK)
            .max_message_size(Some(self.settings.frame_bytes))
            .max_frame_size(Some(self.settings.frame_bytes));
        let socket = WebSocketStream::from_partially_read(stream, rest, Role::Server, Some(config)).await;
        tracing::info!(principal = %principal.id, %from, "connection opened");
        let (outbox, outlet) = outbox(self.settings.queue_bytes);
        let peer = (self.open)(principal.clone(), outbox.clone());
        let queue = Queue { outbox, outlet };
        let reason = connection::serve(socket, peer, queue, &self.settings, &self.tasks, &self.stop).await;
        tracing::info!(principal = %principal.id, %from, reason, "connection closed");
    }
}
