//! One thread that owns all state. Commands arrive on a channel; those that wait at the same moment share a
//! transaction; replies and broadcasts go out after its commit (section 7).

mod artifacts;
mod catalogue;
mod context;
mod deadlines;
mod decide;
mod delivery;
mod emit;
mod engine;
mod frames;
mod grants;
mod hello;
mod knowledge;
mod lease;
mod load;
mod lookup;
mod review;
mod state;
mod turn;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::Duration;

use axp_protocol::limits;
use axp_protocol::principal::Principal;
use tokio::sync::OwnedSemaphorePermit;

use crate::outbox::Outbox;
use crate::rpc::{Request, RequestId};
use crate::store::{Store, StoreError};

pub(crate) use artifacts::Upload;
pub(crate) use decide::Trace;
use engine::Engine;
pub(crate) use frames::{error_frame, result_frame};

/// Reads the wall clock, ms since the Unix epoch.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What the authority is told at start.
#[derive(Clone)]
pub struct Settings {
    /// Repository name; a database belongs to one.
    pub repository: String,
    /// Actions that a `reconnect` replays at most.
    pub replay_actions: usize,
    /// Bytes of all blobs together at most.
    pub blob_total_bytes: u64,
    /// Bytes of log after which a channel gets a new snapshot, at least.
    pub snapshot_bytes: usize,
    /// Wall clock.
    pub clock: Clock,
}

impl Settings {
    /// The defaults of the protocol, with the system's clock.
    pub fn new(repository: impl Into<String>) -> Self {
        Self {
            repository: repository.into(),
            replay_actions: limits::REPLAY_ACTIONS,
            blob_total_bytes: limits::BLOB_TOTAL_BYTES,
            snapshot_bytes: 256 * 1024,
            clock: Arc::new(crate::time::now_ms),
        }
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("repository", &self.repository).finish_non_exhaustive()
    }
}

/// Names a connection within this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ConnectionId(u64);

/// A request of a connection.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) connection: ConnectionId,
    /// `None` for a notification.
    pub(crate) id: Option<RequestId>,
    pub(crate) request: Request,
    /// Given back when the answer is queued.
    pub(crate) permit: OwnedSemaphorePermit,
}

pub(crate) enum Input {
    Open { connection: ConnectionId, principal: Arc<Principal>, outbox: Outbox, greeted: Arc<AtomicBool> },
    Request(Box<Incoming>),
    Closed { connection: ConnectionId },
    Stop,
}

/// Sends commands to the authority. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    inputs: Sender<Input>,
    next_connection: Arc<AtomicU64>,
}

impl Handle {
    /// Asks the authority to finish its transaction, answer what waits, and end. Returns at once; join the thread.
    pub fn stop(&self) {
        // A thread that has ended needs no stopping.
        let _ = self.inputs.send(Input::Stop);
    }

    pub(crate) fn open(
        &self,
        principal: Arc<Principal>,
        outbox: Outbox,
        greeted: Arc<AtomicBool>,
    ) -> ConnectionId {
        let connection = ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed));
        let _ = self.inputs.send(Input::Open { connection, principal, outbox, greeted });
        connection
    }

    /// Passes a request on; false when the authority has ended.
    pub(crate) fn request(&self, incoming: Incoming) -> bool {
        self.inputs.send(Input::Request(Box::new(incoming))).is_ok()
    }

    pub(crate) fn closed(&self, connection: ConnectionId) {
        let _ = self.inputs.send(Input::Closed { connection });
    }
}

/// Commands that share one transaction at most.
const BATCH: usize = 256;

/// Loads the store, ends what a previous process left running, and starts the thread.
///
/// # Errors
/// When stored data cannot be read.
pub fn spawn(
    store: Box<dyn Store>,
    settings: Settings,
) -> Result<(Handle, std::thread::JoinHandle<()>), StoreError> {
    let (sender, receiver) = channel();
    let mut engine = Engine::load(store, settings)?;
    engine.start_up()?;
    let thread = std::thread::Builder::new()
        .name("authority".into())
        .spawn(move || run(&mut engine, &receiver))
        .map_err(|source| StoreError::Io { path: "authority thread".into(), source })?;
    Ok((Handle { inputs: sender, next_connection: Arc::new(AtomicU64::new(1)) }, thread))
}

fn run(engine: &mut Engine, inputs: &Receiver<Input>) {
    loop {
        let first = match engine.until_deadline() {
            None => inputs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(wait) => inputs.recv_timeout(wait.min(Duration::from_secs(3600))),
        };
        let mut stop = false;
        match first {
            Ok(Input::Stop) | Err(RecvTimeoutError::Disconnected) => stop = true,
            Ok(input) => engine.handle(input),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let mut handled = 1;
        while !stop && handled < BATCH {
            match inputs.try_recv() {
                Ok(Input::Stop) | Err(TryRecvError::Disconnected) => stop = true,
                Ok(input) => engine.handle(input),
                Err(TryRecvError::Empty) => break,
            }
            handled += 1;
        }
        engine.expire();
        engine.flush();
        if stop {
            return;
        }
    }
}
