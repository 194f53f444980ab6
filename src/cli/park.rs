//! `axp park`: an agent of this machine at a session.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axp_protocol::scalar::Id;
use clap::Args;

use axp_protocol::method::{LeaseMs, TurnOutcome};
use axp_protocol::shape::{Allowance, Enforcement};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Context;
use super::error::{CliError, ExitCode};
use super::money::{Usd, allowance, count, duration, parse_duration, parse_some, usd};
use super::paths::ledgers;
use super::profile::Need;
use super::sanitize::{one_line, strip};
use crate::acp::AgentSpec;
use crate::client::Credentials;
use crate::reconnect::{AgentCommand, ParkError, ParkEvent, ParkSpec, StopReason, park};

const EXAMPLES: &str = "EXAMPLES
  axp park parser-fix --cost 1.00 -- AGENT --acp
  axp park parser-fix --profile contributor.json --directory ~/clone --cost 2.00 --turns 10 -- AGENT
  axp park --tokens 50000 --lease 1m --agent-env API_KEY -- AGENT";

/// Park your agent at a session, within a budget (contributors)
///
/// The agent works in a Git worktree of its own and speaks ACP on stdio. Your checkout is never touched. Ctrl-C takes
/// the agent away; `axp revoke` does the same from elsewhere.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ParkArgs {
    /// The session [default: the only open one]
    pub(crate) session: Option<String>,
    /// Git repository to work in
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) directory: PathBuf,
    /// A provider-side limit is set up for the agent's key; recorded as your word, not checked
    #[arg(long)]
    pub(crate) provider_limit: bool,
    /// Stop when the connection is lost, instead of trying again
    #[arg(long)]
    pub(crate) no_reconnect: bool,
    /// Longest wait between attempts to connect
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) max_backoff: Duration,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

/// The agent to run.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Agent")]
pub(crate) struct AgentArgs {
    /// Sign in to the agent by this of its methods
    #[arg(long, value_name = "ID")]
    pub(crate) auth_method: Option<String>,
    /// Pass this environment variable on to the agent; can be given again
    #[arg(long, value_name = "NAME")]
    pub(crate) agent_env: Vec<String>,
    /// Time the agent has to start [default: 15s, 60s for npx and the like]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) start_timeout: Option<Duration>,
    /// The agent's command line
    #[arg(last = true, required = true, value_name = "AGENT")]
    pub(crate) command: Vec<std::ffi::OsString>,
}

impl AgentArgs {
    /// The command to park.
    pub(crate) fn command(&self) -> Result<AgentCommand, CliError> {
        let [program, args @ ..] = self.command.as_slice() else {
            return Err(CliError::usage("the agent's command line is missing").hint("put it after --"));
        };
        let usual = AgentSpec::new(program.clone(), vec![], "/").start_timeout;
        Ok(AgentCommand {
            program: program.clone(),
            args: args.to_vec(),
            env: self.agent_env.clone(),
            auth_method: self.auth_method.clone(),
            start_timeout: self.start_timeout.unwrap_or(usual),
        })
    }
}

/// What an agent may spend.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Tokens in all, read and written
    #[arg(long, value_name = "N", default_value = "100000", value_parser = parse_some)]
    pub(crate) tokens: u64,
    /// USD in all, such as 1.50
    #[arg(long, value_name = "USD", default_value = "1.00")]
    pub(crate) cost: Usd,
    /// Turns in all
    #[arg(long, value_name = "N", default_value = "10", value_parser = parse_some)]
    pub(crate) turns: u64,
    /// Tokens of one turn
    #[arg(long, value_name = "N", default_value = "10000", value_parser = parse_some)]
    pub(crate) turn_tokens: u64,
    /// USD of one turn
    #[arg(long, value_name = "USD", default_value = "0.10")]
    pub(crate) turn_cost: Usd,
    /// Time after which the session is free for others when this machine is silent, 3s to 5m
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_lease)]
    pub(crate) lease: Duration,
}

fn parse_lease(text: &str) -> Result<Duration, String> {
    let lease = parse_duration(text)?;
    let allowed = axp_protocol::limits::LEASE_MS;
    let ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
    if allowed.contains(&ms) { Ok(lease) } else { Err("a lease lasts 3s to 5m".into()) }
}

impl LimitArgs {
    /// The budget in all.
    pub(crate) fn limit(&self) -> Allowance {
        Allowance { tokens: self.tokens, cost_micros: self.cost.0, turns: self.turns }
    }

    /// The most that one turn may use.
    pub(crate) fn per_turn(&self) -> Allowance {
        Allowance { tokens: self.turn_tokens, cost_micros: self.turn_cost.0, turns: 1 }
    }

    /// Length of a lease.
    pub(crate) fn lease(&self) -> LeaseMs {
        LeaseMs::clamped(u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX))
    }
}

/// What to park, from the options that `axp park` and `axp run` share.
pub(crate) fn spec(
    credentials: Credentials,
    session: Id,
    directory: &Path,
    limits: &LimitArgs,
    agent: AgentCommand,
) -> Result<ParkSpec, CliError> {
    Ok(ParkSpec {
        credentials,
        session,
        directory: directory.to_owned(),
        agent,
        limit: limits.limit(),
        per_turn: limits.per_turn(),
        enforcement: Enforcement::Accounting,
        lease: limits.lease(),
        reconnect: true,
        max_backoff: Duration::from_secs(30),
        state_folder: ledgers()?,
        guard: std::env::current_exe().ok(),
    })
}

/// Runs `axp park`.
pub(crate) async fn run(args: ParkArgs, ctx: &Context) -> Result<(), CliError> {
    let agent = args.agent.command()?;
    let mut host = ctx.host(Need::Contribute).await?;
    let session = host.session(args.session.as_deref()).await?;
    let credentials = host.credentials().clone();
    drop(host);
    let directory = ctx.here()?.join(&args.directory);
    let mut spec = spec(credentials, session.clone(), &directory, &args.limits, agent)?;
    if args.provider_limit {
        spec.enforcement = Enforcement::Provider;
    }
    spec.reconnect = !args.no_reconnect;
    spec.max_backoff = args.max_backoff;

    let stop = CancellationToken::new();
    let (sender, mut events) = mpsc::unbounded_channel();
    let parked = tokio::spawn(park(spec, sender, stop.clone()));
    let mut signals = Signals::listen()?;
    let mut shown = Shown::new(ctx, session);
    loop {
        tokio::select! {
            event = events.recv() => match event {
                Some(event) => shown.event(event)?,
                None => break,
            },
            interrupted = signals.next() => {
                if stop.is_cancelled() {
                    // Asked twice: at once. Its guard ends the agent.
                    return Err(CliError::interrupted());
                }
                shown.stopping(interrupted);
                stop.cancel();
            }
        }
    }
    let result = parked.await.map_err(|e| CliError::failed(format!("parking ended early: {e}")))?;
    shown.over(&result)?;
    match result {
        Ok(StopReason::Asked) if signals.interrupted => Err(CliError::interrupted()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    /// Whether it was the keyboard.
    interrupted: bool,
}

impl Signals {
    fn listen() -> Result<Self, CliError> {
        use tokio::signal::unix::{SignalKind, signal};
        let failed = |e| CliError::failed(format!("cannot listen for signals: {e}"));
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            interrupted: false,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => {
                self.interrupted = true;
                "Ctrl-C"
            }
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

impl From<ParkError> for CliError {
    fn from(error: ParkError) -> Self {
        let message = error.to_string();
        match error {
            ParkError::Client(error) => error.into(),
            ParkError::Budget(_) => Self::new(ExitCode::Budget, message)
                .hint("park again with a new budget: --cost, --tokens, --turns"),
            ParkError::Taken(_) => Self::conflict(message).hint("`axp watch` shows who runs it"),
            ParkError::Ledger(_) => Self::failed(message)
                .hint("the ledger is what keeps spending within your limit; park with a new grant to start a new one"),
            ParkError::Agent(_) | ParkError::Worktree(_) | ParkError::Local(_) => Self::failed(message),
        }
    }
}

/// What is shown of a park.
struct Shown<'a> {
    ctx: &'a Context,
    session: Id,
    bar: Option<ProgressBar>,
    /// The last parked state, for the words at the end.
    worktree: Option<PathBuf>,
}

impl<'a> Shown<'a> {
    fn new(ctx: &'a Context, session: Id) -> Self {
        Self { ctx, session, bar: None, worktree: None }
    }

    fn event(&mut self, event: ParkEvent) -> Result<(), CliError> {
        let out = &self.ctx.out;
        let style = out.style();
        if !matches!(event, ParkEvent::Progress { .. })
            && let Some(bar) = self.bar.take()
        {
            bar.finish_and_clear();
        }
        match event {
            ParkEvent::Connecting => out.json(&json!({ "state": "connecting" }))?,
            ParkEvent::Progress { what, done, total } => self.progress(what, done, total),
            ParkEvent::StartingAgent => out.note(&style.dim("starting the agent …")),
            ParkEvent::Parked { epoch, worktree, agent, grant } => {
                out.json(
                    &json!({ "state": "parked", "epoch": epoch, "worktree": worktree, "grant": grant }),
                )?;
                out.line(&format!(
                    "{} {} at session {} (epoch {epoch}, grant {grant})",
                    style.good("parked:"),
                    one_line(&agent, 100),
                    self.session
                ))?;
                if self.worktree.is_none() {
                    out.line(&format!("  works in {}", worktree.display()))?;
                    out.note(&style.dim("  Ctrl-C takes it away"));
                }
                self.worktree = Some(worktree);
            }
            ParkEvent::TurnStarted { text, .. } => {
                out.line(&format!("{} {}", style.accent("›"), style.strong(&one_line(&text, 200))))?;
            }
            ParkEvent::PermissionAsked { tool } => {
                out.line(&format!("{} a maintainer is asked: {}", style.ask("?"), one_line(&tool, 200)))?;
            }
            ParkEvent::Checkpoint { head, files } => {
                let files = super::money::counted(files as u64, "file", "files");
                let short: String = head.chars().take(10).collect();
                out.line(&format!(
                    "{} checkpoint {short} ({files} changed since the base)",
                    style.accent("◆")
                ))?;
            }
            ParkEvent::TurnEnded { outcome, error, usage, spent, limit, .. } => {
                let word = match outcome {
                    TurnOutcome::Complete => style.good("✓ done"),
                    TurnOutcome::Cancelled => style.ask("■ cancelled"),
                    TurnOutcome::Error => style.bad("✗ failed"),
                };
                let why = error.map(|e| format!(": {}", one_line(&e, 400))).unwrap_or_default();
                let charge = usage.charge();
                out.line(&format!(
                    "{word}{why} · {} tokens, {} · left: {}",
                    count(charge.tokens),
                    usd(charge.cost_micros),
                    allowance(&limit.left(&spent))
                ))?;
            }
            ParkEvent::LimitChanged { limit } => {
                out.line(&format!("limit is now {}", allowance(&limit)))?;
            }
            ParkEvent::Reconnecting { reason, wait } => {
                out.json(&json!({ "state": "reconnecting", "reason": reason }))?;
                out.line(&format!(
                    "{} {}; trying again in {}",
                    style.ask("reconnecting:"),
                    one_line(&reason, 300),
                    duration(wait)
                ))?;
            }
            ParkEvent::Note(text) => out.note(&strip(&text)),
        }
        Ok(())
    }

    fn progress(&mut self, what: &'static str, done: u64, total: Option<u64>) {
        if self.ctx.out.is_json() || !std::io::stderr().is_terminal() {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {pos}/{len}") {
                bar.set_style(style);
            }
            bar
        });
        bar.set_message(what);
        if let Some(total) = total {
            bar.set_length(total);
        }
        bar.set_position(done);
    }

    fn stopping(&self, signal: &str) {
        self.ctx
            .out
            .note(&format!("{signal}: stopping the agent and publishing its work; again to stop at once"));
    }

    fn over(&mut self, result: &Result<StopReason, ParkError>) -> Result<(), CliError> {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let out = &self.ctx.out;
        let reason = match result {
            Ok(reason) => reason.as_str().to_owned(),
            Err(error) => error.to_string(),
        };
        out.json(&json!({ "state": "stopped", "reason": reason }))?;
        if let Ok(reason) = result {
            out.line(&format!("stopped: {}", reason.as_str()))?;
        }
        if let Some(worktree) = &self.worktree {
            out.note(&format!("the agent's work is in {}", worktree.display()));
        }
        Ok(())
    }
}
