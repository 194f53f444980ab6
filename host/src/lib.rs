//! The AXP host: an Agent Host Protocol server with leases, budgets, checkpoints and review.

pub mod authority;
pub mod config;
pub mod outbox;
mod reads;
pub mod rpc;
pub mod run;
pub mod server;
pub mod store;
pub mod time;

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::config::Credentials;
use crate::server::{Server, ServerSettings};
use crate::store::{Store, StoreError};

/// For the authority to finish its transaction and end.
const AUTHORITY_STOP: Duration = Duration::from_secs(10);

/// How a host behaves.
#[derive(Debug, Clone)]
pub struct HostSettings {
    /// What the authority is told.
    pub authority: authority::Settings,
    /// How connections are treated.
    pub server: ServerSettings,
}

/// Why a host did not start or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Stored data cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The network or a thread failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The authority thread ended although nobody asked it to; the log says why.
    #[error("the authority ended unexpectedly; its last transaction was not answered")]
    AuthorityEnded,
    /// The authority thread did not end in time.
    #[error("the authority did not finish within {} s", AUTHORITY_STOP.as_secs())]
    AuthorityStuck,
}

/// How the authority thread ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Not,
    Normally,
    Panicked,
}

/// A host that serves until it is stopped. Dropping it drops the connections and asks the authority to end.
#[derive(Debug)]
pub struct RunningHost {
    /// Address that clients connect to.
    pub address: SocketAddr,
    server: Option<Server>,
    authority: authority::Handle,
    ended: watch::Receiver<Ended>,
}

impl RunningHost {
    /// Loads the store, starts the authority, and accepts connections on `listener`.
    ///
    /// # Errors
    /// [`HostError::Store`] when stored data cannot be read, [`HostError::Io`] when the system refuses.
    pub async fn start(
        settings: HostSettings,
        credentials: Credentials,
        store: Box<dyn Store>,
        listener: TcpListener,
    ) -> Result<Self, HostError> {
        let io = |what| move |source| HostError::Io { what, source };
        // A long log takes a while to load.
        let (authority, thread) =
            tokio::task::spawn_blocking(move || authority::spawn(store, settings.authority))
                .await
                .map_err(|error| HostError::Io { what: "start of the authority", source: error.into() })??;
        let ended = watch_end(thread).map_err(io("thread"))?;
        let server = Server::start(settings.server, credentials, authority.clone(), listener)
            .inspect_err(|_| authority.stop())
            .map_err(io("listen"))?;
        Ok(Self { address: server.address(), server: Some(server), authority, ended })
    }

    /// Resolves when the authority ends by itself, which it does only when it cannot go on.
    pub async fn failed(&self) {
        // An error means that the watching thread is gone, and with it the authority.
        let _ = self.ended.clone().wait_for(|ended| *ended != Ended::Not).await;
    }

    /// Stops accepting, closes the connections with 1001, and lets the authority finish its transaction.
    ///
    /// # Errors
    /// [`HostError::AuthorityEnded`] when it had failed, [`HostError::AuthorityStuck`] when it does not end in time.
    pub async fn stop(mut self) -> Result<(), HostError> {
        if let Some(server) = self.server.take() {
            server.stop().await;
        }
        self.authority.stop();
        let ended = timeout(AUTHORITY_STOP, self.ended.wait_for(|ended| *ended != Ended::Not)).await;
        match ended.map(|ended| ended.map(|ended| *ended)) {
            Ok(Ok(Ended::Normally | Ended::Not)) => Ok(()),
            Ok(Ok(Ended::Panicked) | Err(_)) => Err(HostError::AuthorityEnded),
            Err(_) => Err(HostError::AuthorityStuck),
        }
    }
}

impl Drop for RunningHost {
    fn drop(&mut self) {
        self.authority.stop();
    }
}

/// Joins the authority's thread from another, so that async code can wait for it.
fn watch_end(thread: thread::JoinHandle<()>) -> io::Result<watch::Receiver<Ended>> {
    let (sender, receiver) = watch::channel(Ended::Not);
    thread::Builder::new().name("axp-authority-end".into()).spawn(move || {
        let ended = if thread.join().is_ok() { Ended::Normally } else { Ended::Panicked };
        // Nobody waits any more once the host was dropped.
        let _ = sender.send(ended);
    })?;
    Ok(receiver)
}

#[cfg(test)]
mod tests;
