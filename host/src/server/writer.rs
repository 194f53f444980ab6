//! The writer task of a connection: takes frames from its queue and writes them, many at a time.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::SplitSink;
use futures_util::{FutureExt, SinkExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

use crate::outbox::{Outgoing, Outlet, Piece};

/// Bytes that are written before the socket is flushed, and the most one WebSocket frame carries: the library's
/// buffer keeps the size of the largest frame for the life of the connection.
pub(super) const CHUNK: usize = 64 * 1024;

pub(super) type Sink = SplitSink<WebSocketStream<TcpStream>, Message>;

/// Why a writer ended.
#[derive(Debug)]
pub(super) enum WriterEnd {
    /// Everything was written and a close frame sent.
    Closed(&'static str),
    /// The client did not read as fast as events came.
    Overflowed,
    /// The client read nothing for the whole write time.
    Stuck,
    /// A streamed answer broke off.
    Unfinished,
    /// The socket failed.
    Failed(WsError),
}

/// What a writer needs to know.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// For one chunk to leave.
    pub(super) write: Duration,
    /// For the close frame to leave.
    pub(super) close: Duration,
}

/// Writes until the connection ends; gives the socket back for its last moments.
pub(super) struct Writer {
    pub(super) sink: Sink,
    pub(super) outlet: Outlet,
    /// Asks for a WebSocket ping.
    pub(super) ping: Arc<Notify>,
    pub(super) times: Times,
}

enum Step {
    Continue,
    Close(u16, &'static str),
}

impl Writer {
    pub(super) async fn run(mut self) -> (Sink, WriterEnd) {
        let end = loop {
            match self.batch().await {
                Ok(Step::Continue) => {}
                Ok(Step::Close(code, reason)) => {
                    self.close(code, reason).await;
                    break WriterEnd::Closed(reason);
                }
                Err(end) => {
                    if matches!(end, WriterEnd::Overflowed | WriterEnd::Failed(WsError::Protocol(_))) {
                        self.close(1013, "too slow").await;
                    }
                    break end;
                }
            }
        };
        (self.sink, end)
    }

    /// Waits for one thing to send, sends it with what else is ready, and flushes once.
    async fn batch(&mut self) -> Result<Step, WriterEnd> {
        let first = tokio::select! {
            biased;
            item = self.outlet.next() => item,
            () = self.ping.notified() => {
                self.feed(Message::Ping(Default::default())).await?;
                self.flush().await?;
                return Ok(Step::Continue);
            }
        };
        let mut item = Some(first);
        let mut fed = 0;
        while let Some(next) = item {
            match next {
                Some(Outgoing::Event(text)) => fed += self.text(&text).await?,
                Some(Outgoing::Reply(text)) => fed += self.text(&text).await?,
                Some(Outgoing::Stream(pieces)) => fed += self.stream(pieces).await?,
                Some(Outgoing::Close(code, reason)) => return Ok(Step::Close(code, reason)),
                None if self.outlet.overflowed() => return Err(WriterEnd::Overflowed),
                None => return Ok(Step::Close(1000, "done")),
            }
            item = if fed < CHUNK { self.outlet.next().now_or_never() } else { None };
        }
        self.flush().await?;
        Ok(Step::Continue)
    }

    /// Feeds one message, in several frames when it is long; returns its size.
    async fn text(&mut self, text: &str) -> Result<usize, WriterEnd> {
        if text.len() <= CHUNK {
            self.feed(Message::text(text)).await?;
            return Ok(text.len());
        }
        let mut kind = Data::Text;
        let mut chunks = text.as_bytes().chunks(CHUNK).peekable();
        while let Some(chunk) = chunks.next() {
            let last = chunks.peek().is_none();
            let frame = Frame::message(chunk.to_vec(), OpCode::Data(kind), last);
            self.feed(Message::Frame(frame)).await?;
            self.flush().await?;
            kind = Data::Continue;
        }
        Ok(text.len())
    }

    /// Feeds one message as its pieces come; returns its size.
    async fn stream(&mut self, mut pieces: mpsc::Receiver<Piece>) -> Result<usize, WriterEnd> {
        let mut kind = Data::Text;
        let mut size = 0;
        loop {
            // Who produces it may be slow, and meanwhile the queue behind it may overflow.
            let piece = tokio::select! {
                biased;
                piece = pieces.recv() => piece,
                () = self.outlet.overflow() => return Err(WriterEnd::Overflowed),
            };
            let (bytes, last) = match piece {
                Some(Piece::Part(bytes)) => (bytes, false),
                Some(Piece::Last(bytes)) => (bytes, true),
                // Half a message cannot be taken back.
                None => return Err(WriterEnd::Unfinished),
            };
            size += bytes.len();
            self.feed(Message::Frame(Frame::message(bytes, OpCode::Data(kind), last))).await?;
            self.flush().await?;
            if last {
                return Ok(size);
            }
            kind = Data::Continue;
        }
    }

    async fn feed(&mut self, message: Message) -> Result<(), WriterEnd> {
        guarded(&self.outlet, self.times.write, self.sink.feed(message)).await
    }

    async fn flush(&mut self) -> Result<(), WriterEnd> {
        guarded(&self.outlet, self.times.write, self.sink.flush()).await
    }

    /// Sends a close frame, or the answer to the client's, if the socket takes it in time.
    async fn close(&mut self, code: u16, reason: &'static str) {
        let frame = CloseFrame { code: code.into(), reason: reason.into() };
        let sent = async {
            // After the client's own close frame ours is refused, and a second flush sends the answer to it.
            let _ = self.sink.feed(Message::Close(Some(frame))).await;
            let _ = self.sink.flush().await;
            self.sink.flush().await
        };
        if !matches!(timeout(self.times.close, sent).await, Ok(Ok(()))) {
            tracing::debug!("the close frame was not sent");
        }
    }
}

/// A write that gives up when the queue overflows behind it, or when nothing moves for too long.
async fn guarded(
    outlet: &Outlet,
    limit: Duration,
    write: impl Future<Output = Result<(), WsError>>,
) -> Result<(), WriterEnd> {
    tokio::select! {
        biased;
        done = write => done.map_err(WriterEnd::Failed),
        () = outlet.overflow() => Err(WriterEnd::Overflowed),
        () = tokio::time::sleep(limit) => Err(WriterEnd::Stuck),
    }
}
