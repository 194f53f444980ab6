//! `axp run`: one prompt for one's own agent, held to a budget, with no host to set up.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use axp_protocol::principal::Role;
use axp_protocol::scalar::Id;
use clap::Args;

use super::Context;
use super::error::CliError;
use super::host::local_name;
use super::init::origin_name;
use super::local::{LocalHost, Parked, prompt};
use super::money::allowance;
use super::park::{AgentArgs, LimitArgs, spec};
use super::wait::{Answers, Following};
use crate::worktree::{Repository, diffstat};

const EXAMPLES: &str = "EXAMPLES
  axp run \"Fix the parser\" --cost 0.50 -- AGENT ARGS
  axp run \"Add a test for empty input\" --yes --directory ~/project -- AGENT ARGS";

/// Let your own agent do one thing here, within a budget; nothing to set up
///
/// A host is embedded for as long as it takes. The agent works in a Git worktree of its own; the branch it leaves is
/// yours to look at and merge. Without a terminal, and without --yes, what it asks permission for is denied.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// What is to be done
    text: String,
    /// Git repository to work in
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Allow what the agent asks permission for, once each
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Runs `axp run`.
pub(crate) async fn run(args: RunArgs, ctx: &Context) -> Result<(), CliError> {
    let directory = ctx.here()?.join(&args.directory);
    let agent = args.agent.command()?;
    let (repository, root) = {
        let repository = Repository::discover(&directory).map_err(|e| CliError::failed(e.to_string()))?;
        let root = repository.root().to_owned();
        (repository, root)
    };
    let scratch =
        tempfile::tempdir().map_err(|e| CliError::failed(format!("there is no room for a host: {e}")))?;
    let name = origin_name(&root).unwrap_or_else(|| local_name(&root));
    let host = LocalHost::start(scratch.path(), &name).await?;
    let session = Id::new(format!("run-{:08x}", rand::random::<u32>())).map_err(CliError::failed)?;
    host.create(&session, &args.text, session.as_str()).await?;
    let spec = spec(host.credentials(Role::Contributor), session.clone(), &directory, &args.limits, agent)?;
    let parked = Parked::start(spec, ctx).await?;
    let style = ctx.out.style();
    ctx.out.note(&style.dim(&format!(
        "{} works in {} with at most {}",
        super::sanitize::one_line(&parked.agent, 100),
        parked.worktree.display(),
        allowance(&args.limits.limit())
    )));
    let answers = match (args.yes, std::io::stdin().is_terminal() && !ctx.out.is_json()) {
        (true, _) => Answers::Allow,
        (false, true) => Answers::Ask,
        (false, false) => Answers::Deny,
    };
    let followed = prompt(&host, &session, args.text, Following { answers, json: true }, ctx).await;
    let worktree = parked.worktree.clone();
    // Its own end says nothing that the turn's does not; the worktree stays.
    let parking = parked.stop().await;
    host.stop().await?;
    let (_, followed) = followed?;
    if let Some(checkpoint) = &followed.view.exchange.checkpoint {
        let stat = diffstat(&repository, &checkpoint.base_commit, &checkpoint.head_commit)
            .map_err(|e| CliError::failed(e.to_string()))?;
        ctx.out.line(&format!("\n{}", stat.to_string().trim_end()))?;
        let branch = &checkpoint.branch;
        ctx.out.line(&format!("Left on branch {branch}, worktree {}", worktree.display()))?;
        ctx.out.note(&format!("Look at it: git diff HEAD...{branch}; take it: git merge {branch}"));
    } else {
        ctx.out.line(&format!("Nothing was changed; the worktree is {}", worktree.display()))?;
    }
    followed.outcome.result(&session)?;
    parking
}
