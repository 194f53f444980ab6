//! `axp sessions`, `executors` and `inspect`: how things stand.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ahp_types::state::{ChangesetState, ChatState, SessionStatus, SessionSummary};
use axp_protocol::channel::Channel;
use axp_protocol::scalar::Id;
use axp_protocol::shape::{ExchangeState, ExecutorInfo, ExecutorRegistry};
use clap::Args;
use serde_json::{Value, json};

use super::Context;
use super::error::CliError;
use super::follow::View;
use super::money::{allowance, duration};
use super::output::table;
use super::profile::Need;
use super::render::Renderer;
use super::sanitize::one_line;
use super::session::{id_of, is_open};

const SESSIONS_EXAMPLES: &str = "EXAMPLES
  axp sessions
  axp sessions --open
  axp sessions --json | jq '.items[].resource'";

const EXECUTORS_EXAMPLES: &str = "EXAMPLES
  axp executors
  axp executors --json | jq '.entries'";

const INSPECT_EXAMPLES: &str = "EXAMPLES
  axp inspect parser-fix
  axp inspect parser-fix --json | jq .exchange.checkpoint.headCommit";

/// List the sessions you may read, newest first
#[derive(Debug, Args)]
#[command(after_help = SESSIONS_EXAMPLES)]
pub(crate) struct SessionsArgs {
    /// Only those that are not closed
    #[arg(long)]
    open: bool,
}

/// List the machines that have agents parked, or had
#[derive(Debug, Args)]
#[command(after_help = EXECUTORS_EXAMPLES)]
pub(crate) struct ExecutorsArgs {}

/// Show how a session stands: who runs it, its budgets, its newest turn, its checkpoint
///
/// With --json the state of its four channels: {exchange, chat, session, changeset}.
#[derive(Debug, Args)]
#[command(after_help = INSPECT_EXAMPLES)]
pub(crate) struct InspectArgs {
    /// The session [default: the only open one]
    session: Option<String>,
}

/// Runs `axp sessions`.
pub(crate) async fn sessions(args: SessionsArgs, ctx: &Context) -> Result<(), CliError> {
    let mut host = ctx.host(Need::Read).await?;
    let mut sessions = host.sessions().await?;
    sessions.retain(|s| !args.open || is_open(s));
    ctx.out.json(&json!({ "items": sessions }))?;
    if sessions.is_empty() {
        ctx.out.note("no sessions; a maintainer opens one: axp create --task TASK");
        return Ok(());
    }
    let rows: Vec<_> = sessions
        .iter()
        .map(|s| {
            vec![
                one_line(id_of(s), 128),
                activity(s).to_owned(),
                minute(&s.modified_at),
                one_line(&s.title, 72),
            ]
        })
        .collect();
    ctx.out.line(&table(ctx.out.style(), &["SESSION", "STATE", "CHANGED (UTC)", "TITLE"], &rows))
}

/// The date and the minute of an RFC 3339 text.
fn minute(time: &str) -> String {
    one_line(time.get(..16).unwrap_or(time), 16).replace('T', " ")
}

fn activity(summary: &SessionSummary) -> &'static str {
    let has = |status: SessionStatus| summary.status & status.bits() == status.bits();
    if !is_open(summary) {
        "closed"
    } else if has(SessionStatus::InputNeeded) {
        "asks permission"
    } else if has(SessionStatus::InProgress) {
        "running"
    } else if has(SessionStatus::Error) {
        "last turn failed"
    } else {
        "idle"
    }
}

/// Runs `axp executors`.
pub(crate) async fn executors(_: ExecutorsArgs, ctx: &Context) -> Result<(), CliError> {
    let mut host = ctx.host(Need::Read).await?;
    let registry: ExecutorRegistry = host.snapshot(&Channel::Executors).await?;
    ctx.out.json(&registry)?;
    if registry.entries.is_empty() {
        ctx.out.note("no executors yet; axp park registers one");
        return Ok(());
    }
    let now = now_ms();
    let rows: Vec<_> = registry
        .entries
        .values()
        .map(|e| {
            vec![
                e.id.to_string(),
                one_line(&e.owner, 40),
                seen(e, now),
                one_line(&e.name, 60),
                one_line(&e.capabilities.join(" "), 60),
            ]
        })
        .collect();
    ctx.out.line(&table(ctx.out.style(), &["EXECUTOR", "OWNER", "STATE", "NAME", "CAN"], &rows))
}

fn seen(executor: &ExecutorInfo, now: u64) -> String {
    if executor.online && executor.expires_at > now {
        return "online".into();
    }
    let since = Duration::from_millis(now.saturating_sub(executor.expires_at));
    format!("offline for {}", duration(since))
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Runs `axp inspect`.
pub(crate) async fn inspect(args: InspectArgs, ctx: &Context) -> Result<(), CliError> {
    let mut host = ctx.host(Need::Read).await?;
    let id = host.session(args.session.as_deref()).await?;
    if ctx.out.is_json() {
        // As the host says it, with whatever a later version adds.
        let exchange: Value = host.snapshot(&Channel::Exchange(id.clone())).await?;
        let chat: Value = host.snapshot(&Channel::Chat(id.clone())).await?;
        let session: Value = host.snapshot(&Channel::Session(id.clone())).await?;
        let changeset: Value = host.snapshot(&Channel::Changeset(id.clone())).await?;
        return ctx.out.json(&json!({
            "exchange": exchange, "chat": chat, "session": session, "changeset": changeset,
        }));
    }
    let exchange: ExchangeState = host.snapshot(&Channel::Exchange(id.clone())).await?;
    let chat: ChatState = host.snapshot(&Channel::Chat(id.clone())).await?;
    let changeset: ChangesetState = host.snapshot(&Channel::Changeset(id.clone())).await?;
    ctx.out.print(&summary(ctx, id, View { chat, exchange, changeset }))
}

/// Title, task and budgets, then the last turn and whatever waits, then the files.
fn summary(ctx: &Context, id: Id, mut view: View) -> String {
    let style = ctx.out.style();
    let mut renderer = Renderer::new(style, id, Some(ctx.invocation()));
    // The last turn is shown as if it had just come in, the others are counted.
    let last = if view.chat.active_turn.is_none() { view.chat.turns.pop() } else { None };
    let queued = view.chat.queued_messages.take();
    let mut text = renderer.attach(&view);
    let before = |line: String| format!("{}\n", style.dim(&line));
    let task = one_line(&view.exchange.task, 200);
    text.push_str(&before(format!("task {task} in {}", one_line(&view.exchange.repository, 200))));
    for grant in view.exchange.grants.values().filter(|g| g.revoked) {
        text.push_str(&before(format!("grant {}: revoked, spent {}", grant.id, allowance(&grant.spent))));
    }
    for file in view.changeset.files.iter().take(50) {
        text.push_str(&format!("  {}\n", one_line(&file.id, 200)));
    }
    let more = view.changeset.files.len().saturating_sub(50);
    if more > 0 {
        text.push_str(&before(format!("  … and {more} more files")));
    }
    if last.is_some() || view.chat.active_turn.is_some() {
        text.push('\n');
    }
    view.chat.turns.extend(last);
    view.chat.queued_messages = queued;
    text.push_str(&renderer.update(&view));
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}
