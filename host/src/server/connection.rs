//! One WebSocket: this task reads, a second one it owns writes (section 2).

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::SplitStream;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::ServerSettings;
use super::http::linger;
use super::writer::{Sink, Times, Writer, WriterEnd};
use crate::outbox::{Outbox, Outlet};
use crate::rpc;

/// The protocol side of a connection, as this layer needs it.
pub(super) trait Peer: Send {
    /// Handles one text frame; returns when the next may be read.
    fn frame(&mut self, text: &str) -> impl Future<Output = ()> + Send;
    /// Answers a frame that was too large to be read.
    fn too_large(&mut self);
    /// Whether the client has introduced itself.
    fn greeted(&self) -> bool;
}

impl Peer for rpc::Peer {
    fn frame(&mut self, text: &str) -> impl Future<Output = ()> + Send {
        rpc::Peer::frame(self, text)
    }

    fn too_large(&mut self) {
        rpc::Peer::too_large(self);
    }

    fn greeted(&self) -> bool {
        rpc::Peer::greeted(self)
    }
}

/// Why a connection ended.
#[derive(Debug)]
enum End {
    /// The client closed it, or went away.
    Client,
    /// The socket failed, or what came was no WebSocket.
    Failed(WsError),
    /// We close it, with this code.
    Ours(u16, &'static str),
    /// Nothing came for too long; there is nobody to send a close frame to.
    Silent,
    /// The writer task ended first.
    Writer(Option<(Sink, WriterEnd)>),
}

/// The two ends of a connection's queue.
pub(super) struct Queue {
    pub(super) outbox: Outbox,
    pub(super) outlet: Outlet,
}

/// Serves a WebSocket until it ends; returns why, for the log. Everything of it is over on return, and also soon
/// after this future is dropped.
pub(super) async fn serve(
    socket: WebSocketStream<TcpStream>,
    mut peer: impl Peer,
    queue: Queue,
    settings: &ServerSettings,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> String {
    let (sink, mut stream) = socket.split();
    let ping = Arc::new(Notify::new());
    let times = Times { write: settings.write, close: settings.close };
    let writer = Writer { sink, outlet: queue.outlet, ping: ping.clone(), times };
    let mut writer = AbortOnDropHandle::new(tasks.spawn(writer.run()));

    let end = tokio::select! {
        biased;
        () = stop.cancelled() => End::Ours(1001, "the host stops"),
        done = &mut writer => End::Writer(done.ok()),
        end = read(&mut stream, &mut peer, settings, &ping) => end,
    };
    // From here on the authority sends nothing more.
    drop(peer);

    let (sink, reason) = match end {
        End::Writer(done) => {
            done.map_or((None, "writer failed".to_owned()), |(sink, end)| describe_writer(sink, end))
        }
        End::Silent => return "silent for too long".into(),
        other => {
            let (code, text, reason) = farewell(&other);
            queue.outbox.close(code, text);
            drop(queue.outbox);
            // Queued frames come before the close frame, so both have the time of one.
            let sink = match timeout(settings.close, &mut writer).await {
                // A client that has closed sends nothing more, so there is nothing to wait for.
                Ok(Ok((sink, end))) if !matches!(other, End::Client) => describe_writer(sink, end).0,
                _ => None,
            };
            (sink, reason)
        }
    };
    if let Some(socket) = sink.and_then(|sink| stream.reunite(sink).ok()) {
        linger(socket.into_inner(), settings.close).await;
    }
    reason
}

/// Reads until there is a reason to end.
async fn read(
    stream: &mut SplitStream<WebSocketStream<TcpStream>>,
    peer: &mut impl Peer,
    settings: &ServerSettings,
    ping: &Notify,
) -> End {
    let opened = Instant::now();
    let mut heard = opened;
    // One timer for all deadlines, set anew only when it fires: a frame costs no timer operation.
    let timer = tokio::time::sleep_until(opened + settings.hello.min(settings.ping));
    tokio::pin!(timer);
    loop {
        let message = tokio::select! {
            // The clock first: a client that never pauses must not put its deadlines off.
            biased;
            () = &mut timer => {
                match check(opened, heard, peer.greeted(), settings) {
                    Check::End(end) => return end,
                    Check::Ping(next) => {
                        ping.notify_one();
                        timer.as_mut().reset(next);
                    }
                    Check::Wait(next) => timer.as_mut().reset(next),
                }
                continue;
            }
            message = stream.next() => message,
        };
        match message {
            Some(Ok(Message::Text(text))) => peer.frame(&text).await,
            Some(Ok(Message::Binary(_))) => return End::Ours(1003, "text frames only"),
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
            Some(Ok(Message::Close(_))) | None => return End::Client,
            Some(Err(WsError::Capacity(_))) => {
                peer.too_large();
                return End::Ours(1009, "frame too large");
            }
            Some(Err(error)) => return End::Failed(error),
        }
        // A client that waits for us has not been silent.
        heard = Instant::now();
    }
}

enum Check {
    End(End),
    Ping(Instant),
    Wait(Instant),
}

/// What the clock asks for now.
fn check(opened: Instant, heard: Instant, greeted: bool, settings: &ServerSettings) -> Check {
    let now = Instant::now();
    let hello = opened + settings.hello;
    if !greeted && now >= hello {
        return Check::End(End::Ours(1008, "no initialize in time"));
    }
    let dead = heard + settings.silence;
    if now >= dead {
        return Check::End(End::Silent);
    }
    let soonest = |next: Instant| if greeted { next.min(dead) } else { next.min(dead).min(hello) };
    if now >= heard + settings.ping {
        Check::Ping(soonest(now + settings.ping.max(Duration::from_millis(1))))
    } else {
        Check::Wait(soonest(heard + settings.ping))
    }
}

/// Close code and text to send, and the reason to log.
fn farewell(end: &End) -> (u16, &'static str, String) {
    match end {
        End::Ours(code, text) => (*code, text, (*text).to_owned()),
        End::Failed(WsError::Utf8(_)) => (1007, "not UTF-8", "a frame that is not UTF-8".into()),
        // Programs that end leave without a goodbye; that is no fault.
        End::Failed(WsError::Protocol(ProtocolError::ResetWithoutClosingHandshake)) => {
            (1000, "", "left by the client".into())
        }
        End::Failed(error @ WsError::Protocol(_)) => (1002, "protocol error", error.to_string()),
        End::Failed(error) => (1002, "failed", error.to_string()),
        End::Client | End::Silent | End::Writer(_) => (1000, "", "closed by the client".into()),
    }
}

/// The socket, if it can still carry something, and the reason to log.
fn describe_writer(sink: Sink, end: WriterEnd) -> (Option<Sink>, String) {
    match end {
        WriterEnd::Closed(reason) => (Some(sink), reason.to_owned()),
        WriterEnd::Overflowed => (Some(sink), "read too slowly, queue full".into()),
        // The client's close frame came first, and has been answered.
        WriterEnd::Failed(error @ WsError::Protocol(_)) => (Some(sink), error.to_string()),
        WriterEnd::Unfinished => (None, "an answer broke off".into()),
        WriterEnd::Stuck => (None, "took nothing for too long".into()),
        WriterEnd::Failed(error) => (None, error.to_string()),
    }
}
