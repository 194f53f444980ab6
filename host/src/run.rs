//! Running a host from its configuration file: what the `axp-host` program and the `axp host` command share.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use tokio::net::TcpListener;

use crate::config::{ConfigError, HostFile, Invalid};
use crate::server::ServerSettings;
use crate::store::{SqliteStore, StoreError};
use crate::{HostError, HostSettings, RunningHost, authority};

/// What the command line says differently from the file.
#[derive(Debug, Clone, Copy, Default)]
pub struct Overrides {
    /// Address to listen on.
    pub listen: Option<SocketAddr>,
}

/// Why a host did not run, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The database cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The host failed.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl RunError {
    /// Exit code of a program that ends with this error: 2 when the user has to change the configuration, else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) => 2,
            Self::Store(_) | Self::Listen { .. } | Self::Host(_) => 1,
        }
    }
}

/// Runs the host of the configuration file at `config` until `stop` resolves, then stops it in order. `ready` is
/// called with the address once clients can connect.
///
/// # Errors
/// [`RunError`]; the host is not running any more when this returns.
pub async fn run_from_config(
    config: &Path,
    overrides: Overrides,
    stop: impl Future<Output = ()>,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), RunError> {
    let file = HostFile::load(config)?;
    let invalid = |why: Invalid| ConfigError::Invalid { path: config.to_owned(), why };
    let credentials = file.credentials().map_err(invalid)?;
    let address = overrides.listen.unwrap_or(file.listen);
    let repository = file.repository.as_str();

    raise_file_limit();
    let store = SqliteStore::open(&file.database_path(config), repository)?;
    let listener = TcpListener::bind(address).await.map_err(|source| RunError::Listen { address, source })?;
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "not a loopback address: put TLS in front, tokens would travel in the clear");
    }
    let settings = HostSettings {
        authority: authority::Settings::new(repository),
        server: ServerSettings {
            allowed_origins: file.allowed_origins,
            max_connections: file.limits.max_connections,
            queue_bytes: file.limits.queue_bytes,
            ..ServerSettings::default()
        },
    };
    let host = RunningHost::start(settings, credentials, Box::new(store), listener).await?;
    tracing::info!(address = %host.address, repository, "ready");
    ready(host.address);

    let failed = tokio::select! {
        biased;
        () = stop => false,
        () = host.failed() => true,
    };
    tracing::info!("stopping");
    let ended = host.stop().await;
    if failed {
        return Err(HostError::AuthorityEnded.into());
    }
    Ok(ended?)
}

/// Starts to listen for the signals that ask the process to end, SIGINT and on Unix SIGTERM, and returns what
/// resolves at the first one. From the call on they do not kill the process. Call it inside a Tokio runtime.
///
/// # Errors
/// When the system does not let the process listen for signals.
pub fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        })
    }
    #[cfg(not(unix))]
    Ok(async {
        if let Err(error) = tokio::signal::ctrl_c().await {
            tracing::error!(%error, "no signals can be received; stopping");
        }
    })
}

/// Asks for as many open files as the system allows: each connection is one, and the usual soft limit is 1024.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::debug!(%error, "the limit of open files stays as it was");
        }
    }
}
