//! The outbound side of a connection: a byte-limited queue that ends the connection rather than drop an event
//! (section 2).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::{Notify, mpsc};

/// A frame to send, shared by all its readers.
pub type Frame = Arc<str>;

/// A piece of a streamed answer.
#[derive(Debug)]
pub enum Piece {
    /// More follows.
    Part(Vec<u8>),
    /// The end.
    Last(Vec<u8>),
}

/// Pieces of a streamed answer that may wait for the socket.
const PIECES: usize = 4;

/// What the writer task takes from the queue.
#[derive(Debug)]
pub enum Outgoing {
    /// An event, counted against the limit.
    Event(Frame),
    /// The answer to a request of this connection; the reader's own in-flight limit bounds these.
    Reply(String),
    /// A long answer that is produced while it is sent. When it ends without its last piece, so must the connection.
    Stream(mpsc::Receiver<Piece>),
    /// Close with this WebSocket code and reason, after what was queued before.
    Close(u16, &'static str),
}

#[derive(Debug, Default)]
struct Shared {
    queued: AtomicUsize,
    replies: AtomicUsize,
    drained: Notify,
    overflowed: AtomicBool,
    overflow: Notify,
}

/// The sending half, held by the authority and by request handlers. Never blocks.
#[derive(Debug, Clone)]
pub struct Outbox {
    queue: mpsc::UnboundedSender<Outgoing>,
    shared: Arc<Shared>,
    limit: usize,
}

/// The receiving half, owned by the connection's writer task.
#[derive(Debug)]
pub struct Outlet {
    queue: mpsc::UnboundedReceiver<Outgoing>,
    shared: Arc<Shared>,
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.queue.close();
        self.shared.drained.notify_waiters();
    }
}

/// A queue that holds at most `limit` bytes of events.
pub fn outbox(limit: usize) -> (Outbox, Outlet) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared::default());
    (Outbox { queue: sender, shared: shared.clone(), limit }, Outlet { queue: receiver, shared })
}

impl Outbox {
    /// Queues an event; false when the connection is over, or is now because its queue is full.
    pub fn event(&self, frame: &Frame) -> bool {
        if self.shared.overflowed.load(Ordering::Relaxed) {
            return false;
        }
        let before = self.shared.queued.fetch_add(frame.len(), Ordering::Relaxed);
        // A single frame over the limit passes an empty queue, so that it can be delivered at all.
        if before > 0 && before + frame.len() > self.limit {
            self.shared.overflowed.store(true, Ordering::Relaxed);
            self.shared.overflow.notify_one();
            return false;
        }
        self.queue.send(Outgoing::Event(frame.clone())).is_ok()
    }

    /// Queues the answer to a request.
    pub fn reply(&self, frame: String) -> bool {
        self.shared.replies.fetch_add(frame.len(), Ordering::Relaxed);
        self.queue.send(Outgoing::Reply(frame)).is_ok()
    }

    /// Queues an answer that is produced while it is sent; gives the end to produce it at.
    pub fn stream(&self) -> Option<mpsc::Sender<Piece>> {
        let (sender, pieces) = mpsc::channel(PIECES);
        self.queue.send(Outgoing::Stream(pieces)).ok().map(|()| sender)
    }

    /// Waits until the answers that wait to be sent are within the limit, or the connection is over.
    pub async fn room(&self) {
        loop {
            // Registered before the look, so that a change after it is not missed.
            let drained = self.shared.drained.notified();
            if self.shared.replies.load(Ordering::Relaxed) <= self.limit || self.queue.is_closed() {
                return;
            }
            drained.await;
        }
    }

    /// Queues the end of the connection.
    pub fn close(&self, code: u16, reason: &'static str) {
        // A connection that is over needs no closing.
        let _ = self.queue.send(Outgoing::Close(code, reason));
    }
}

impl Outlet {
    /// The next frame; `None` when every sender is gone or the queue overflowed.
    pub async fn next(&mut self) -> Option<Outgoing> {
        if self.shared.overflowed.load(Ordering::Relaxed) {
            return None;
        }
        tokio::select! {
            biased;
            () = self.shared.overflow.notified() => None,
            item = self.queue.recv() => {
                match &item {
                    Some(Outgoing::Event(frame)) => {
                        self.shared.queued.fetch_sub(frame.len(), Ordering::Relaxed);
                    }
                    Some(Outgoing::Reply(frame)) => {
                        self.shared.replies.fetch_sub(frame.len(), Ordering::Relaxed);
                        self.shared.drained.notify_waiters();
                    }
                    _ => {}
                }
                item
            }
        }
    }

    /// Whether the queue overflowed.
    pub fn overflowed(&self) -> bool {
        self.shared.overflowed.load(Ordering::Relaxed)
    }

    /// Resolves when the queue overflows; lets a writer that is stuck in the socket give up.
    pub async fn overflow(&self) {
        if !self.overflowed() {
            self.shared.overflow.notified().await;
        }
    }
}
