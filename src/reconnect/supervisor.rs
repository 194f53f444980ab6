//! Attempts to hold the session, one after the other, until the park is over.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ahp_types::state::ChatState;
use axp_protocol::codes;
use axp_protocol::method::{LeaseMs, params};
use axp_protocol::scalar::{Id, Uint};
use axp_protocol::shape::{Allowance, Enforcement, ExchangeState, Lease, Placement, SessionPhase};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::backoff::Backoff;
use super::checkpoint::CheckpointError;
use super::donation::Donation;
use super::event::{ParkEvent, StopReason};
use super::heartbeat::Held;
use super::journal::Settlement;
use super::runner::{Again, Runner};
use crate::acp::{Agent, AgentError, AgentSpec};
use crate::budget::{LeaseClock, LedgerError};
use crate::client::{AxpClient, ClientError, ConnectOptions, Credentials, Events, operation_id, text};
use crate::worktree::WorktreeError;

/// The agent to park.
#[derive(Debug, Clone)]
pub struct AgentCommand {
    /// Program.
    pub program: OsString,
    /// Arguments.
    pub args: Vec<OsString>,
    /// Names of further environment variables it gets.
    pub env: Vec<String>,
    /// ACP authentication method to call.
    pub auth_method: Option<String>,
    /// How long it may take to start.
    pub start_timeout: Duration,
}

/// What to park, where, and with what limits.
#[derive(Debug, Clone)]
pub struct ParkSpec {
    /// Host.
    pub credentials: Credentials,
    /// Session.
    pub session: Id,
    /// A folder in the contributor's clone.
    pub directory: PathBuf,
    /// Agent.
    pub agent: AgentCommand,
    /// The most that may be spent in all.
    pub limit: Allowance,
    /// The most that one turn may use.
    pub per_turn: Allowance,
    /// Who enforces the limit.
    pub enforcement: Enforcement,
    /// Length of a lease, ms.
    pub lease: LeaseMs,
    /// Whether a lost connection is taken up again.
    pub reconnect: bool,
    /// Longest wait between attempts.
    pub max_backoff: Duration,
    /// Folder of the ledgers.
    pub state_folder: PathBuf,
    /// The `axp` program, which guards the agent's processes.
    pub guard: Option<PathBuf>,
}

/// Why a park ended as it should not.
#[derive(Debug, thiserror::Error)]
pub enum ParkError {
    /// The host could not be reached, or refused.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The agent failed.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// Git failed.
    #[error(transparent)]
    Worktree(#[from] WorktreeError),
    /// The ledger failed.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The budget is spent.
    #[error("{0}")]
    Budget(String),
    /// Somebody else runs the session now.
    #[error("{0}")]
    Taken(String),
    /// Something on this machine.
    #[error("{0}")]
    Local(String),
}

impl From<CheckpointError> for ParkError {
    fn from(error: CheckpointError) -> Self {
        match error {
            CheckpointError::Worktree(error) => Self::Worktree(error),
            CheckpointError::Client(error) => Self::Client(error),
            CheckpointError::Io(why) => Self::Local(why),
        }
    }
}

impl ParkError {
    fn is_transient(&self) -> bool {
        matches!(self, Self::Client(error) if error.is_transient())
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Client(ClientError::Http { retry_after, .. }) => retry_after.map(Duration::from_secs),
            _ => None,
        }
    }
}

/// How an attempt ended when it did not end the park.
enum Attempt {
    Over(StopReason),
    Again(Again),
}

/// Parks an agent until it is told to stop, the grant is revoked or spent, or the session is closed.
///
/// # Errors
/// When something fails that another attempt will not mend. Everything the agent did is in its worktree.
pub async fn park(
    spec: ParkSpec,
    out: mpsc::UnboundedSender<ParkEvent>,
    stop: CancellationToken,
) -> Result<StopReason, ParkError> {
    let mut donation = None;
    let mut backoff = Backoff::new(spec.max_backoff);
    loop {
        let _ = out.send(ParkEvent::Connecting);
        let attempt = attempt(&spec, &mut donation, &mut backoff, &out, &stop).await;
        let (reason, asked) = match attempt {
            Ok(Attempt::Over(reason)) => return Ok(reason),
            Ok(Attempt::Again(Again::FreshAgent)) => ("the agent is started anew".into(), None),
            Ok(Attempt::Again(Again::Lost(reason))) if spec.reconnect => (reason, None),
            Ok(Attempt::Again(Again::Lost(_))) => return Err(ClientError::Lost.into()),
            Err(error) if error.is_transient() && spec.reconnect => (error.to_string(), error.retry_after()),
            Err(error) => return Err(error),
        };
        let wait = backoff.next(Instant::now(), asked);
        let _ = out.send(ParkEvent::Reconnecting { reason, wait });
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop.cancelled() => return Ok(StopReason::Asked),
        }
    }
}

async fn attempt(
    spec: &ParkSpec,
    kept: &mut Option<Donation>,
    backoff: &mut Backoff,
    out: &mpsc::UnboundedSender<ParkEvent>,
    stop: &CancellationToken,
) -> Result<Attempt, ParkError> {
    let connected = tokio::select! {
        connected = AxpClient::connect(&spec.credentials, ConnectOptions::default()) => connected?,
        () = stop.cancelled() => return Ok(Attempt::Over(StopReason::Asked)),
    };
    let (client, events) = connected;
    let result = held(spec, kept, backoff, out, stop, &client, events).await;
    client.close().await;
    result
}

async fn held(
    spec: &ParkSpec,
    kept: &mut Option<Donation>,
    backoff: &mut Backoff,
    out: &mpsc::UnboundedSender<ParkEvent>,
    stop: &CancellationToken,
    client: &AxpClient,
    mut events: Events,
) -> Result<Attempt, ParkError> {
    let (exchange, _) = snapshot::<ExchangeState>(client, &format!("axp-session:/{}", spec.session)).await?;
    if exchange.status == SessionPhase::Closed {
        if kept.is_some() {
            return Ok(Attempt::Over(StopReason::Closed));
        }
        return Err(ParkError::Local(format!("session {} is closed", spec.session)));
    }
    let donation = match kept {
        Some(donation) => donation,
        None => {
            // Whoever holds the session now is known before anything is made for it.
            if let Some(lease) = &exchange.lease {
                return Err(ParkError::Taken(format!(
                    "{} has an agent parked at session {} already",
                    lease.owner, spec.session
                )));
            }
            kept.insert(Donation::prepare(spec, client, &exchange, out).await?)
        }
    };
    let replayed = donation.journal.replay(client).await?;
    if !replayed.is_empty() {
        let (exchange, _) =
            snapshot::<ExchangeState>(client, &format!("axp-session:/{}", spec.session)).await?;
        for Settlement { turn, charge } in replayed {
            // A turn that the host has ended itself is charged in full there.
            let hosts = exchange.usage.iter().find(|u| u.turn_id.as_str() == turn);
            let charge = hosts.map_or(charge, |hosts| charge.dearer(&hosts.usage.charge()));
            donation.ledger.write(move |ledger| ledger.settle(&turn, charge)).await?;
        }
    }

    let _ = out.send(ParkEvent::StartingAgent);
    let agent_spec = AgentSpec {
        program: spec.agent.program.clone(),
        args: spec.agent.args.clone(),
        cwd: donation.worktree.path().to_owned(),
        agent_env: spec.agent.env.clone(),
        auth_method: spec.agent.auth_method.clone(),
        start_timeout: spec.agent.start_timeout,
        guard: spec.guard.clone(),
    };
    let agent = tokio::select! {
        agent = Agent::start(&agent_spec) => agent?,
        () = stop.cancelled() => return Ok(Attempt::Over(StopReason::Asked)),
    };

    let claimed = async {
        let registration = registration(spec, donation, &agent_name(&agent))?;
        client.call::<params::Register>(&registration).await?;
        grant(spec, client, donation).await?;
        let (lease, sent) = claim(spec, client, donation).await?;
        Ok::<_, ParkError>((lease, sent, registration))
    };
    let (lease, sent, registration) = match claimed.await {
        Ok(claimed) => claimed,
        Err(error) => {
            agent.stop().await;
            return Err(error);
        }
    };
    backoff.healthy(Instant::now());
    // Subscribed again after the claim: the states from which events go on.
    let exchange = snapshot::<ExchangeState>(client, &format!("axp-session:/{}", spec.session)).await;
    let chat = snapshot::<ChatState>(client, &format!("ahp-chat:/{}", spec.session)).await;
    let (exchange, chat) = match (exchange, chat) {
        (Ok(exchange), Ok(chat)) => (exchange, chat),
        (Err(error), _) | (_, Err(error)) => {
            agent.stop().await;
            return Err(error);
        }
    };
    let _ = out.send(ParkEvent::Parked {
        epoch: lease.epoch,
        worktree: donation.worktree.path().to_owned(),
        agent: agent_name(&agent),
        grant: donation.grant.to_string(),
    });
    let runner =
        Runner::new(spec, client, donation, Held { lease, sent, registration }, exchange, chat, out, stop);
    match runner.run(agent, &mut events).await? {
        Ok(reason) => Ok(Attempt::Over(reason)),
        Err(again) => Ok(Attempt::Again(again)),
    }
}

/// The agent's name, with its version where it tells one.
fn agent_name(agent: &Agent) -> String {
    let info = agent.info();
    match &info.version {
        Some(version) => format!("{} {version}", info.name),
        None => info.name.clone(),
    }
}

/// A channel's state, and the place in the order that it has reached.
async fn snapshot<T: DeserializeOwned>(client: &AxpClient, channel: &str) -> Result<(T, u64), ParkError> {
    let snapshot = client.subscribe(channel).await?;
    let state = serde_json::from_value(snapshot.state)
        .map_err(|e| ClientError::Answer { method: "subscribe".into(), why: e.to_string() })?;
    Ok((state, snapshot.from_seq))
}

fn registration(spec: &ParkSpec, donation: &Donation, agent: &str) -> Result<params::Register, ParkError> {
    let name: String = agent.chars().take(128).collect();
    let capabilities = ["acp/v1", "git/bundle", "isolation/worktree"];
    let capabilities = capabilities.iter().map(|c| text(c)).collect::<Result<Vec<_>, _>>()?;
    Ok(params::Register {
        channel: text(axp_protocol::channel::EXECUTORS)?,
        operation_id: operation_id(),
        executor_id: donation.executor.clone(),
        name: text(if name.is_empty() { "agent" } else { &name })?,
        placement: Placement::Satellite,
        capabilities: axp_protocol::scalar::List::new(capabilities).map_err(ParkError::Local)?,
        ttl_ms: LeaseMs::clamped(spec.lease.get().max(60_000)),
    })
}

async fn grant(spec: &ParkSpec, client: &AxpClient, donation: &mut Donation) -> Result<(), ParkError> {
    if donation.granted {
        return Ok(());
    }
    // The grant's own ID serves as operation ID, so that a lost answer is asked for again.
    let grant = params::Grant {
        channel: text(&format!("axp-session:/{}", spec.session))?,
        operation_id: donation.grant.clone(),
        grant_id: donation.grant.clone(),
        limit: spec.limit,
        enforcement: spec.enforcement,
    };
    client.call::<params::Grant>(&grant).await?;
    donation.granted = true;
    Ok(())
}

/// Claims the session, after asking for the answer of a claim that was lost. Returns the lease and when its claim,
/// or its first renewal, was sent.
async fn claim(
    spec: &ParkSpec,
    client: &AxpClient,
    donation: &mut Donation,
) -> Result<(Lease, Duration), ParkError> {
    let channel = text(&format!("axp-session:/{}", spec.session))?;
    if let Some(lost) = donation.claim.clone() {
        let sent = LeaseClock::now();
        match client.call::<params::Claim>(&lost).await {
            Ok(lease) => {
                donation.claim = None;
                donation.epoch = Some(lease.epoch);
                // The receipt may be older than the lease was long: only a renewal shows that it still holds.
                let epoch = Uint::clamped(lease.epoch);
                let renew = params::Renew { channel: channel.clone(), operation_id: operation_id(), epoch };
                match client.call::<params::Renew>(&renew).await {
                    Ok(lease) => return Ok((lease, sent)),
                    Err(error) if error.code() == Some(codes::STALE_LEASE) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) if error.is_transient() => return Err(error.into()),
            Err(_) => donation.claim = None,
        }
    }
    let claim = params::Claim {
        channel,
        operation_id: operation_id(),
        executor_id: donation.executor.clone(),
        grant_id: donation.grant.clone(),
        lease_ms: spec.lease,
        resume_epoch: donation.epoch.map(Uint::clamped),
    };
    donation.claim = Some(claim.clone());
    let sent = LeaseClock::now();
    match client.call::<params::Claim>(&claim).await {
        Ok(lease) => {
            donation.claim = None;
            donation.epoch = Some(lease.epoch);
            Ok((lease, sent))
        }
        Err(error) if error.is_transient() => Err(error.into()),
        Err(error) => {
            donation.claim = None;
            match error.code() {
                Some(codes::CONFLICT | codes::STALE_LEASE) => Err(ParkError::Taken(error.to_string())),
                Some(codes::BUDGET) => Err(ParkError::Budget(error.to_string())),
                _ => Err(error.into()),
            }
        }
    }
}
