//! One machine, no set-up: an embedded host on a free loopback port, and an agent parked at it. The same code as with
//! a host elsewhere, over the socket.

use std::path::Path;

use axp_host::config::{Credential, Credentials as HostCredentials, new_token, token_digest};
use axp_host::server::ServerSettings;
use axp_host::store::SqliteStore;
use axp_host::{HostSettings, RunningHost, authority};
use axp_protocol::channel::Channel;
use axp_protocol::principal::{AllSessions, Role, SessionScope};
use axp_protocol::scalar::Id;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Context;
use super::error::CliError;
use super::follow::Follower;
use super::session::Host;
use super::turn::{Way, action, dispatch};
use super::wait::{Followed, Following, wait};
use crate::client::{ConnectOptions, Credentials, random_id};
use crate::reconnect::{ParkError, ParkEvent, ParkSpec, StopReason, park};

/// An embedded host.
pub(crate) struct LocalHost {
    running: RunningHost,
    tokens: Vec<(Role, String)>,
}

impl LocalHost {
    /// Starts one with its database in `folder`.
    pub(crate) async fn start(folder: &Path, repository: &str) -> Result<Self, CliError> {
        let failed =
            |e: &dyn std::fmt::Display| CliError::failed(format!("the embedded host did not start: {e}"));
        let store = SqliteStore::open(&folder.join("axp.db"), repository).map_err(|e| failed(&e))?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(|e| failed(&e))?;
        let tokens: Vec<_> =
            [Role::Maintainer, Role::Contributor, Role::Verifier].map(|role| (role, new_token())).to_vec();
        let credentials = tokens
            .iter()
            .map(|(role, token)| {
                Ok(Credential {
                    id: Id::new(role.as_str())?,
                    role: *role,
                    sessions: SessionScope::All(AllSessions::All),
                    token_sha256: token_digest(token),
                })
            })
            .collect::<Result<Vec<_>, String>>()
            .map_err(|e| failed(&e))?;
        let credentials = HostCredentials::new(&credentials).map_err(|e| failed(&e))?;
        let settings = HostSettings {
            authority: authority::Settings::new(repository),
            server: ServerSettings::default(),
        };
        let running = RunningHost::start(settings, credentials, Box::new(store), listener)
            .await
            .map_err(|e| failed(&e))?;
        Ok(Self { running, tokens })
    }

    /// What opens it for a role.
    pub(crate) fn credentials(&self, role: Role) -> Credentials {
        let token = self.tokens.iter().find(|(r, _)| *r == role).map(|(_, token)| token.clone());
        Credentials { url: format!("ws://{}/axp", self.running.address), token: token.unwrap_or_default() }
    }

    /// A connection of a role.
    pub(crate) async fn connect(&self, role: Role) -> Result<Host, CliError> {
        Ok(Host::connect(self.credentials(role), ConnectOptions::default()).await?)
    }

    /// Opens a session.
    pub(crate) async fn create(&self, session: &Id, title: &str, task: &str) -> Result<(), CliError> {
        let mut host = self.connect(Role::Maintainer).await?;
        let title: String = title.chars().take(256).collect();
        let config = json!({ "title": title, "task": task });
        let params = json!({ "channel": Channel::Session(session.clone()).to_string(), "config": config });
        host.once::<_, Value>("createSession", &params).await?;
        Ok(())
    }

    /// Ends it.
    pub(crate) async fn stop(self) -> Result<(), CliError> {
        self.running
            .stop()
            .await
            .map_err(|e| CliError::failed(format!("the embedded host did not end well: {e}")))
    }
}

/// An agent that is parked beside this command.
pub(crate) struct Parked {
    task: JoinHandle<Result<StopReason, ParkError>>,
    stop: CancellationToken,
    /// Where it works.
    pub(crate) worktree: std::path::PathBuf,
    /// What it calls itself.
    pub(crate) agent: String,
}

impl Parked {
    /// Parks an agent and waits until it is there.
    pub(crate) async fn start(spec: ParkSpec, ctx: &Context) -> Result<Self, CliError> {
        let stop = CancellationToken::new();
        let (sender, mut events) = mpsc::unbounded_channel();
        let task = tokio::spawn(park(spec, sender, stop.clone()));
        let spinner = ctx.out.spinner("parking the agent");
        while let Some(event) = events.recv().await {
            if let ParkEvent::Parked { worktree, agent, .. } = event {
                drop(spinner);
                // Whatever comes later is seen on the session itself.
                tokio::spawn(async move { while events.recv().await.is_some() {} });
                return Ok(Self { task, stop, worktree, agent });
            }
        }
        match task.await {
            Ok(Err(error)) => Err(error.into()),
            Ok(Ok(reason)) => Err(CliError::failed(format!("the agent was not parked: {}", reason.as_str()))),
            Err(error) => Err(CliError::failed(format!("parking ended early: {error}"))),
        }
    }

    /// Takes it away.
    pub(crate) async fn stop(self) -> Result<(), CliError> {
        self.stop.cancel();
        match self.task.await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error.into()),
            Err(error) => Err(CliError::failed(format!("parking ended early: {error}"))),
        }
    }
}

/// Prompts the session as its maintainer and follows the turn to its end.
pub(crate) async fn prompt(
    host: &LocalHost,
    session: &Id,
    text: String,
    following: Following,
    ctx: &Context,
) -> Result<(Id, Followed), CliError> {
    let mut maintainer = host.connect(Role::Maintainer).await?;
    let follower = Follower::open(
        maintainer.credentials().clone(),
        session.clone(),
        following.json && ctx.out.is_json(),
    )
    .await?;
    let turn = random_id();
    dispatch(&mut maintainer, session, action(Way::Now, &turn, text)).await?;
    let followed = wait(follower, maintainer, session, &turn, following, ctx).await?;
    Ok((turn, followed))
}
