//! `axp park`: an agent of this machine at a session.

use std::path::PathBuf;
use std::time::Duration;

use axp_protocol::scalar::Id;
use clap::Args;

use super::Context;
use super::error::CliError;
use super::money::{Usd, parse_count, parse_duration};

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
    /// ID of the grant [default: a fresh one]
    #[arg(long, value_name = "ID")]
    pub(crate) grant: Option<Id>,
    /// Name this machine shows to the project [default: the agent's program]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Sign in to the agent by this of its methods
    #[arg(long, value_name = "ID")]
    pub(crate) auth_method: Option<String>,
    /// Pass this environment variable on to the agent; can be given again
    #[arg(long, value_name = "NAME")]
    pub(crate) agent_env: Vec<String>,
    /// Time the agent has to start
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) start_timeout: Option<Duration>,
    /// The agent's command line
    #[arg(last = true, required = true, value_name = "AGENT")]
    pub(crate) agent: Vec<String>,
    // Last: its heading would hold for what comes after it.
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

/// What an agent may spend.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Tokens in all, read and written
    #[arg(long, value_name = "N", default_value = "100000", value_parser = parse_count)]
    pub(crate) tokens: u64,
    /// USD in all, such as 1.50
    #[arg(long, value_name = "USD", default_value = "1.00")]
    pub(crate) cost: Usd,
    /// Turns in all
    #[arg(long, value_name = "N", default_value = "10", value_parser = parse_count)]
    pub(crate) turns: u64,
    /// Tokens of one turn
    #[arg(long, value_name = "N", default_value = "10000", value_parser = parse_count)]
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

/// Runs `axp park`.
pub(crate) async fn run(_args: ParkArgs, _ctx: &Context) -> Result<(), CliError> {
    Err(CliError::failed("not wired yet"))
}
