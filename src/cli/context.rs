//! `axp context` and `axp compact`: what the next agent is told of the work so far.

use std::path::PathBuf;

use axp_protocol::channel::Channel;
use axp_protocol::limits::COMPACT_FRAME_BYTES;
use axp_protocol::method::params;
use axp_protocol::scalar::{Id, Int, List, Text, Uint};
use axp_protocol::shape::{CompactionProposal, ExchangeState};
use clap::{Args, Subcommand};

use super::Context;
use super::confirm::confirm;
use super::error::CliError;
use super::input::read_text;
use super::money::{count, counted};
use super::profile::Need;
use super::render::short;
use super::sanitize::{one_line, reveal, strip};
use super::session::Host;
use crate::client::{operation_id, text};

const CONTEXT_EXAMPLES: &str = "EXAMPLES
  axp context parser-fix
  axp context parser-fix --max-chars 200000 | wc -m
  axp context parser-fix --json | jq .revision";

const COMPACT_EXAMPLES: &str = "EXAMPLES
  axp compact propose parser-fix --through 12 --summary-file summary.md
  axp compact accept parser-fix";

const PROPOSE_EXAMPLES: &str = "EXAMPLES
  axp compact propose parser-fix --through 12 --summary-file summary.md \\
      --decision \"The old API stays\" --file src/parser.rs
  axp compact propose --summary-file - < summary.md      in the only open session, for all its turns";

const ACCEPT_EXAMPLES: &str = "EXAMPLES
  axp compact accept parser-fix
  axp compact accept parser-fix --yes";

/// Show what the next agent at a session is told of the work so far
///
/// The summary that was accepted last, lessons that fit the task, and the turns since the summary. It is never cut:
/// when it is too long, a summary has to be proposed and accepted.
#[derive(Debug, Args)]
#[command(after_help = CONTEXT_EXAMPLES)]
pub(crate) struct ContextArgs {
    /// The session [default: the only open one]
    session: Option<String>,
    /// The most characters it may have, 1024 to 200000
    #[arg(long, value_name = "N", default_value_t = 64_000, value_parser = clap::value_parser!(u64).range(1024..=200_000))]
    max_chars: u64,
}

/// Replace older turns by a summary in what the next agent is told
///
/// Somebody proposes a summary, a maintainer accepts it. The parked agent then starts afresh with it before its next
/// turn. The turns themselves stay in the history.
#[derive(Debug, Args)]
#[command(after_help = COMPACT_EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
#[command(disable_help_subcommand = true)]
pub(crate) struct CompactArgs {
    #[command(subcommand)]
    what: Compact,
}

#[derive(Debug, Subcommand)]
enum Compact {
    Propose(ProposeArgs),
    Accept(AcceptArgs),
}

/// Propose a summary for the first turns of a session (contributors and maintainers)
///
/// It needs a checkpoint, and no turn may run. A new proposal replaces one that was not accepted.
#[derive(Debug, Args)]
#[command(after_help = PROPOSE_EXAMPLES)]
struct ProposeArgs {
    /// The session [default: the only open one]
    session: Option<String>,
    /// How many turns the summary stands for [default: all that have ended]
    #[arg(long, value_name = "N")]
    through: Option<u64>,
    /// File with the summary, at most 24,000 characters; `-` is stdin
    #[arg(long, value_name = "FILE")]
    summary_file: PathBuf,
    /// A decision to keep to; may be repeated, at most 32 times
    #[arg(long = "decision", value_name = "TEXT")]
    decisions: Vec<String>,
    /// A file in work; may be repeated, at most 64 times
    #[arg(long = "file", value_name = "FILE")]
    files: Vec<String>,
}

/// Show the proposed summary, and take it (maintainers)
#[derive(Debug, Args)]
#[command(after_help = ACCEPT_EXAMPLES)]
struct AcceptArgs {
    /// The session [default: the only open one]
    session: Option<String>,
    /// The proposal, when it must be this one
    #[arg(long, value_name = "ID")]
    proposal: Option<Id>,
    /// Take it without asking
    #[arg(long)]
    yes: bool,
}

/// Runs `axp context`.
pub(crate) async fn context(args: ContextArgs, ctx: &Context) -> Result<(), CliError> {
    let mut host = ctx.host(Need::Read).await?;
    let session = host.session(args.session.as_deref()).await?;
    let channel = text(&Channel::Exchange(session.clone()).to_string())?;
    let get = params::Context { channel, max_chars: Int::clamped(args.max_chars) };
    let answer = host.call::<params::Context>(&get).await.map_err(|error| {
        let too_long = error.code() == Some(axp_protocol::codes::CONTEXT);
        let error = CliError::from(error);
        if too_long { error.hint(too_long_hint(&session)) } else { error }
    })?;
    ctx.out.json(&answer)?;
    let text = strip(&answer.text);
    ctx.out.line(text.trim_end_matches('\n'))?;
    ctx.out.note(&ctx.out.style().dim(&format!(
        "{} characters · revision {} · summary of {} · {} of {} fitting lessons",
        count(answer.text.chars().count() as u64),
        answer.revision,
        counted(answer.through_turn, "turn", "turns"),
        answer.memory_included,
        answer.memory_total
    )));
    Ok(())
}

/// The commands that help when a context is too long.
fn too_long_hint(session: &Id) -> String {
    format!(
        "--max-chars allows up to 200000; shorter: axp compact propose {session} --summary-file FILE, then axp \
         compact accept {session}"
    )
}

/// Runs `axp compact`.
pub(crate) async fn compact(args: CompactArgs, ctx: &Context) -> Result<(), CliError> {
    match args.what {
        Compact::Propose(args) => propose(args, ctx).await,
        Compact::Accept(args) => accept(args, ctx).await,
    }
}

async fn propose(args: ProposeArgs, ctx: &Context) -> Result<(), CliError> {
    let usage = |what: &str, why: String| CliError::usage(format!("{what}: {why}"));
    let summary = read_text(&args.summary_file, COMPACT_FRAME_BYTES, "a summary may be").await?;
    let summary = Text::new(summary.trim()).map_err(|why| usage("the summary", why))?;
    if summary.is_empty() {
        return Err(CliError::usage("the summary is empty"));
    }
    let decisions = args.decisions.into_iter().map(Text::new).collect::<Result<Vec<_>, _>>();
    let decisions = decisions.and_then(List::new).map_err(|why| usage("--decision", why))?;
    let files = args.files.into_iter().map(Text::new).collect::<Result<Vec<_>, _>>();
    let active_files = files.and_then(List::new).map_err(|why| usage("--file", why))?;
    let mut host = ctx.host(Need::Propose).await?;
    let session = host.session(args.session.as_deref()).await?;
    let exchange: ExchangeState = host.snapshot(&Channel::Exchange(session.clone())).await?;
    let through = match args.through {
        Some(through) => through,
        None => {
            let chat: ahp_types::state::ChatState = host.snapshot(&Channel::Chat(session.clone())).await?;
            chat.turns.len() as u64
        }
    };
    let compact = params::Compact {
        channel: text(&Channel::Exchange(session.clone()).to_string())?,
        operation_id: operation_id(),
        expected_revision: Uint::clamped(exchange.context.revision),
        through_turn: Uint::clamped(through),
        summary,
        decisions,
        active_files,
    };
    let proposal = host.call::<params::Compact>(&compact).await?;
    ctx.out.json(&proposal)?;
    ctx.out.done(&format!(
        "Proposed {} for the first {} of session {session}.",
        proposal.id,
        counted(through, "turn", "turns")
    ))?;
    ctx.out.note(&format!("A maintainer takes it: axp compact accept {session}"));
    Ok(())
}

async fn accept(args: AcceptArgs, ctx: &Context) -> Result<(), CliError> {
    let mut host = ctx.host(Need::Maintain).await?;
    let session = host.session(args.session.as_deref()).await?;
    let proposal = proposed(&mut host, &session).await?;
    if let Some(named) = args.proposal.filter(|named| *named != proposal.id) {
        return Err(CliError::conflict(format!(
            "session {session} has another proposal now, {}, not {named}",
            proposal.id
        )));
    }
    ctx.out.print(&shown(&proposal))?;
    confirm(ctx, args.yes, "take this summary?").await?;
    let accept = params::AcceptCompaction {
        channel: text(&Channel::Exchange(session.clone()).to_string())?,
        operation_id: operation_id(),
        proposal_id: proposal.id,
    };
    let context = host.call::<params::AcceptCompaction>(&accept).await?;
    ctx.out.json(&context)?;
    ctx.out.done(&format!(
        "Session {session} is at context revision {}; its agent starts afresh before the next turn.",
        context.revision
    ))
}

async fn proposed(host: &mut Host, session: &Id) -> Result<CompactionProposal, CliError> {
    let exchange: ExchangeState = host.snapshot(&Channel::Exchange(session.clone())).await?;
    exchange.compaction.ok_or_else(|| {
        CliError::conflict(format!("no summary is proposed in session {session}"))
            .hint(format!("propose one: axp compact propose {session} --summary-file FILE"))
    })
}

/// All of a proposal, since it is about to be decided on.
fn shown(proposal: &CompactionProposal) -> String {
    let context = &proposal.context;
    let mut text = format!(
        "proposal {} of {}, for the first {}\n\n{}\n",
        proposal.id,
        one_line(&proposal.author, 80),
        counted(context.through_turn, "turn", "turns"),
        reveal(&context.summary)
    );
    let mut list = |head: &str, items: &[String]| {
        if !items.is_empty() {
            text.push_str(&format!("\n{head}:\n"));
        }
        for item in items {
            text.push_str(&format!("  - {}\n", reveal(item).replace('\n', "\n    ")));
        }
    };
    list("decisions", &context.decisions);
    list("files in work", &context.active_files);
    if let Some(head) = &context.git_head {
        text.push_str(&format!("\nat checkpoint {}\n", short(head)));
    }
    text
}
