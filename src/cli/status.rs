//! `axp status`: what this machine has parked, what that has spent, and where the work is.

use clap::Args;
use serde_json::json;

use super::Context;
use super::error::CliError;
use super::money::{allowance, count, usd};
use super::output::table;
use super::paths::ledgers;
use super::sanitize::one_line;
use crate::budget::Ledger;
use crate::worktree::{Repository, Worktree};

const EXAMPLES: &str = "EXAMPLES
  axp status              budgets of this machine, and the worktrees of this repository
  axp status --all        those that are spent or over, too
  axp status --json";

/// Show what this machine has parked and spent, by its own ledgers
///
/// The ledgers are what your limits are held by, whatever a host says. In a Git repository, the worktrees that agents
/// have worked in are listed too.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatusArgs {
    /// Also grants that nothing holds any more
    #[arg(long, short)]
    all: bool,
}

/// Runs `axp status`.
pub(crate) fn run(args: &StatusArgs, ctx: &Context) -> Result<(), CliError> {
    let folder = ledgers()?;
    let mut found = Vec::new();
    for summary in Ledger::list(&folder).map_err(|e| CliError::failed(e.to_string()))? {
        match summary {
            Ok(summary) => found.push(summary),
            Err(error) => ctx.out.note(&error.to_string()),
        }
    }
    found.sort_by_key(|s| (!s.in_use, std::cmp::Reverse(s.changed)));
    let hidden = found.iter().filter(|s| !s.in_use).count();
    let shown: Vec<_> = found.iter().filter(|s| args.all || ctx.out.is_json() || s.in_use).collect();
    let worktrees = Repository::discover(&ctx.here()?).and_then(|r| Worktree::list(&r)).unwrap_or_default();
    ctx.out.json(&json!({
        "ledgers": shown.iter().map(|s| json!({
            "host": s.account.host,
            "repository": s.account.repository,
            "session": s.account.session,
            "grant": s.account.grant,
            "parked": s.in_use,
            "limit": s.spending.limit,
            "spent": s.spending.spent,
            "left": s.spending.limit.left(&s.spending.spent),
            "unsettled": s.spending.open.keys().collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "worktrees": worktrees.iter().map(|w| json!({
            "name": w.name(), "path": w.path(), "branch": w.branch(), "baseCommit": w.base_commit(),
        })).collect::<Vec<_>>(),
    }))?;
    if shown.is_empty() {
        let more = if hidden > 0 { format!("; {hidden} earlier with --all") } else { String::new() };
        ctx.out.line(&format!("Nothing is parked on this machine{more}."))?;
    } else {
        let rows: Vec<_> = shown
            .iter()
            .map(|s| {
                let (spent, limit) = (&s.spending.spent, &s.spending.limit);
                vec![
                    one_line(&s.account.session, 40),
                    one_line(&s.account.repository, 40),
                    if s.in_use { "parked".into() } else { "over".into() },
                    format!("{} of {}", count(spent.tokens), count(limit.tokens)),
                    format!("{} of {}", usd(spent.cost_micros), usd(limit.cost_micros)),
                    format!("{} of {}", spent.turns, limit.turns),
                    one_line(&s.account.grant, 40),
                ]
            })
            .collect();
        let head = ["SESSION", "REPOSITORY", "STATE", "TOKENS", "COST", "TURNS", "GRANT"];
        ctx.out.line(&table(ctx.out.style(), &head, &rows))?;
        for summary in shown.iter().filter(|s| !s.in_use && !s.spending.open.is_empty()) {
            let open = summary
                .spending
                .open
                .values()
                .fold(Default::default(), |sum: axp_protocol::shape::Allowance, a| sum.plus(a));
            ctx.out.note(&format!(
                "session {}: {} of it for turns whose outcome is not known",
                one_line(&summary.account.session, 40),
                allowance(&open)
            ));
        }
    }
    if !worktrees.is_empty() {
        let rows: Vec<_> = worktrees
            .iter()
            .map(|w| vec![w.name().to_owned(), w.branch().to_owned(), w.path().display().to_string()])
            .collect();
        ctx.out.line(&format!("\n{}", table(ctx.out.style(), &["WORKTREE", "BRANCH", "FOLDER"], &rows)))?;
    }
    Ok(())
}
