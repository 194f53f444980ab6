//! `axp memory`: what a project has learnt.

use axp_protocol::channel::{Channel, MEMORY};
use axp_protocol::codes;
use axp_protocol::method::{LessonVerdict, params};
use axp_protocol::scalar::{Int, Text, Uint};
use axp_protocol::shape::{LessonOutcome, LessonStatus, Memory, MemoryState};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::Context;
use super::error::CliError;
use super::money::{count, counted};
use super::output::{Style, table};
use super::profile::Need;
use super::sanitize::{one_line, strip};
use super::session::Host;
use crate::client::{operation_id, text};

const EXAMPLES: &str = "EXAMPLES
  axp memory search \"parser overflow\"
  axp memory propose parser-fix --title \"Parse with a depth limit\" --trigger \"changing the parser\" \\
      --lesson \"Recursion without a limit overflowed the stack\" --outcome failure
  axp memory list --status proposed
  axp memory accept 3f9c";

const SEARCH_EXAMPLES: &str = "EXAMPLES
  axp memory search \"parser overflow\"
  axp memory search parser --limit 20 --json | jq '.items[].lesson'";

const PROPOSE_EXAMPLES: &str = "EXAMPLES
  axp memory propose parser-fix --title \"Parse with a depth limit\" --trigger \"changing the parser\" \\
      --lesson \"Recursion without a limit overflowed the stack\" --outcome failure";

const ACCEPT_EXAMPLES: &str = "EXAMPLES
  axp memory accept 3f9c
  axp memory accept 3f9c…64 digits --revision 2      without the right to list all";

const RETIRE_EXAMPLES: &str = "EXAMPLES
  axp memory retire 3f9c";

const LIST_EXAMPLES: &str = "EXAMPLES
  axp memory list
  axp memory list --status proposed
  axp memory list --json | jq '.items | length'";

/// Find, propose and review the lessons of a project
///
/// A lesson that a maintainer accepted is told to every agent whose task it fits.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
#[command(disable_help_subcommand = true)]
pub(crate) struct MemoryArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Search(SearchArgs),
    Propose(ProposeArgs),
    Accept(AcceptArgs),
    Retire(RetireArgs),
    List(ListArgs),
}

/// Find accepted lessons, best match first
#[derive(Debug, Args)]
#[command(after_help = SEARCH_EXAMPLES)]
struct SearchArgs {
    /// Words to look for; none finds all
    #[arg(default_value = "")]
    query: String,
    /// The most to show, 1 to 20
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=20))]
    limit: u64,
}

/// Propose a lesson that a session has taught (contributors and maintainers)
///
/// The same lesson from another session adds its evidence to the one that is there.
#[derive(Debug, Args)]
#[command(after_help = PROPOSE_EXAMPLES)]
struct ProposeArgs {
    /// The session it comes from [default: the only open one]
    session: Option<String>,
    /// A line that names it, at most 160 characters
    #[arg(long, value_name = "TEXT")]
    title: String,
    /// When it applies, at most 1,000 characters
    #[arg(long, value_name = "TEXT")]
    trigger: String,
    /// What to do or to leave, at most 4,000 characters
    #[arg(long, value_name = "TEXT")]
    lesson: String,
    /// Whether it tells of what worked or of what did not
    #[arg(long, value_enum)]
    outcome: Outcome,
    /// First action of the session that shows it [default: its first]
    #[arg(long, value_name = "SEQ")]
    from: Option<u64>,
    /// Last action that shows it [default: its newest]
    #[arg(long, value_name = "SEQ")]
    to: Option<u64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Outcome {
    Success,
    Failure,
}

/// Accept a lesson: agents are told of it from now on (maintainers)
#[derive(Debug, Args)]
#[command(after_help = ACCEPT_EXAMPLES)]
struct AcceptArgs {
    #[command(flatten)]
    which: Which,
}

/// Retire a lesson: agents are no longer told of it (maintainers)
///
/// It stays retired, whatever evidence is added to it, until it is accepted again.
#[derive(Debug, Args)]
#[command(after_help = RETIRE_EXAMPLES)]
struct RetireArgs {
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, Args)]
struct Which {
    /// The lesson's ID, or the first digits of it
    #[arg(value_name = "ID")]
    id: String,
    /// The revision that was read; needs the whole ID
    #[arg(long, value_name = "N")]
    revision: Option<u64>,
}

/// List all lessons (maintainers of every session)
#[derive(Debug, Args)]
#[command(after_help = LIST_EXAMPLES)]
struct ListArgs {
    /// Only those that stand so
    #[arg(long, value_enum, value_name = "STATUS")]
    status: Option<Status>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Status {
    Proposed,
    Accepted,
    Retired,
}

impl Status {
    fn is(self, status: LessonStatus) -> bool {
        matches!(
            (self, status),
            (Self::Proposed, LessonStatus::Proposed)
                | (Self::Accepted, LessonStatus::Accepted)
                | (Self::Retired, LessonStatus::Retired)
        )
    }
}

/// Runs `axp memory`.
pub(crate) async fn run(args: MemoryArgs, ctx: &Context) -> Result<(), CliError> {
    match args.what {
        What::Search(args) => search(args, ctx).await,
        What::Propose(args) => propose(args, ctx).await,
        What::Accept(args) => review(args.which, LessonVerdict::Accepted, ctx).await,
        What::Retire(args) => review(args.which, LessonVerdict::Retired, ctx).await,
        What::List(args) => list(args, ctx).await,
    }
}

async fn search(args: SearchArgs, ctx: &Context) -> Result<(), CliError> {
    let query = Text::new(args.query).map_err(|why| CliError::usage(format!("the query: {why}")))?;
    let mut host = ctx.host(Need::Read).await?;
    let search = params::MemorySearch { channel: text(MEMORY)?, query, limit: Int::clamped(args.limit) };
    let hits = host.call::<params::MemorySearch>(&search).await?;
    ctx.out.json(&hits)?;
    if hits.items.is_empty() {
        ctx.out.note("no accepted lesson fits");
        return Ok(());
    }
    let shown: Vec<_> = hits.items.iter().map(|lesson| told(ctx.out.style(), lesson)).collect();
    ctx.out.line(&shown.join("\n\n"))?;
    let more = hits.total.saturating_sub(hits.items.len() as u64);
    if more > 0 {
        ctx.out.note(&format!("{} more fit; --limit shows up to 20", count(more)));
    }
    Ok(())
}

async fn propose(args: ProposeArgs, ctx: &Context) -> Result<(), CliError> {
    let usage = |what: &str, why: String| CliError::usage(format!("--{what}: {why}"));
    let title = Text::new(args.title.trim()).map_err(|why| usage("title", why))?;
    let trigger = Text::new(args.trigger.trim()).map_err(|why| usage("trigger", why))?;
    let lesson = Text::new(args.lesson.trim()).map_err(|why| usage("lesson", why))?;
    let mut host = ctx.host(Need::Propose).await?;
    let session = host.session(args.session.as_deref()).await?;
    let channel = Channel::Exchange(session.clone());
    let newest = host.seq(&channel).await?;
    let propose = params::MemoryPropose {
        channel: text(&channel.to_string())?,
        operation_id: operation_id(),
        title,
        trigger,
        lesson,
        outcome: match args.outcome {
            Outcome::Success => LessonOutcome::Success,
            Outcome::Failure => LessonOutcome::Failure,
        },
        from_seq: Uint::clamped(args.from.unwrap_or(1)),
        to_seq: Uint::clamped(args.to.unwrap_or(newest)),
    };
    let memory = host.call::<params::MemoryPropose>(&propose).await?;
    ctx.out.json(&memory)?;
    let known = memory.revision > 1;
    let id = short(&memory);
    let text = match (known, memory.status) {
        (false, _) => format!("Proposed lesson {id}."),
        (true, status) => format!(
            "Lesson {id} is known already and {}; it has {} now.",
            status_word(status),
            counted(memory.evidence.len() as u64, "place of evidence", "places of evidence")
        ),
    };
    ctx.out.done(&text)?;
    if memory.status == LessonStatus::Proposed {
        ctx.out.note(&format!("A maintainer takes it: axp memory accept {id}"));
    }
    Ok(())
}

async fn review(which: Which, status: LessonVerdict, ctx: &Context) -> Result<(), CliError> {
    let mut host = ctx.host(Need::Maintain).await?;
    let (memory_id, revision) = match which.revision {
        Some(revision) => {
            let id = axp_protocol::scalar::Digest::new(which.id.to_ascii_lowercase())
                .map_err(|_| CliError::usage("with --revision the ID has all its 64 digits"))?;
            (id, revision)
        }
        None => {
            let found = find(&lessons(&mut host).await?, &which.id)?;
            (found.id, found.revision)
        }
    };
    let review = params::MemoryReview {
        channel: text(MEMORY)?,
        operation_id: operation_id(),
        memory_id,
        revision: Uint::clamped(revision),
        status,
    };
    let memory = host.call::<params::MemoryReview>(&review).await?;
    ctx.out.json(&memory)?;
    let word = if status == LessonVerdict::Accepted { "Accepted" } else { "Retired" };
    ctx.out.done(&format!("{word} lesson {}: {}", short(&memory), one_line(&memory.title, 160)))
}

async fn list(args: ListArgs, ctx: &Context) -> Result<(), CliError> {
    let mut host = ctx.host(Need::Maintain).await?;
    let mut all = lessons(&mut host).await?;
    all.retain(|lesson| args.status.is_none_or(|status| status.is(lesson.status)));
    ctx.out.json(&json!({ "items": all }))?;
    if all.is_empty() {
        ctx.out.note("no lessons; axp memory propose adds one");
        return Ok(());
    }
    let rows: Vec<_> = all
        .iter()
        .map(|lesson| {
            vec![
                short(lesson).to_owned(),
                status_word(lesson.status).to_owned(),
                lesson.evidence.len().to_string(),
                one_line(&lesson.title, 100),
            ]
        })
        .collect();
    ctx.out.line(&table(ctx.out.style(), &["LESSON", "STATUS", "SEEN", "TITLE"], &rows))
}

/// All lessons, in the order of their IDs.
async fn lessons(host: &mut Host) -> Result<Vec<Memory>, CliError> {
    let state: MemoryState = host.snapshot(&Channel::Memory).await.map_err(|error| {
        let denied = error.code() == Some(codes::NOT_PERMITTED);
        let error = CliError::from(error);
        if denied {
            error.hint(
                "only a maintainer of every session reads all lessons; `axp memory search` finds the accepted ones",
            )
        } else {
            error
        }
    })?;
    Ok(state.entries.into_values().collect())
}

fn find(lessons: &[Memory], digits: &str) -> Result<Memory, CliError> {
    let digits = digits.to_ascii_lowercase();
    if digits.is_empty() {
        return Err(CliError::usage("the ID is empty"));
    }
    let found: Vec<_> = lessons.iter().filter(|lesson| lesson.id.starts_with(&digits)).collect();
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        [] => Err(CliError::failed(format!("no lesson {digits:?}")).hint("`axp memory list` lists them")),
        several => {
            Err(CliError::usage(format!("{} lessons begin with {digits}; give more digits", several.len())))
        }
    }
}

fn short(lesson: &Memory) -> &str {
    lesson.id.get(..12).unwrap_or(&lesson.id)
}

fn status_word(status: LessonStatus) -> &'static str {
    match status {
        LessonStatus::Proposed => "proposed",
        LessonStatus::Accepted => "accepted",
        LessonStatus::Retired => "retired",
    }
}

fn told(style: Style, lesson: &Memory) -> String {
    let mark = match lesson.outcome {
        LessonOutcome::Success => style.good("worked"),
        LessonOutcome::Failure => style.bad("failed"),
    };
    format!(
        "{}  {}  {mark}\n  when: {}\n  {}",
        style.dim(short(lesson)),
        style.strong(&one_line(&lesson.title, 160)),
        one_line(&lesson.trigger, 1000),
        strip(&lesson.lesson).replace('\n', "\n  ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lesson(id: &str) -> Memory {
        serde_json::from_value(json!({
            "id": id, "revision": 3, "scope": "o/r", "title": "T", "trigger": "when", "lesson": "a\nb",
            "outcome": "failure", "evidence": [], "status": "accepted", "author": "a",
        }))
        .unwrap()
    }

    #[test]
    fn the_first_digits_name_a_lesson() {
        let all = [lesson(&"ab".repeat(32)), lesson(&"ac".repeat(32))];
        assert_eq!(find(&all, "AB").unwrap().id, all[0].id);
        assert_eq!(find(&all, "a").unwrap_err().code, super::super::error::ExitCode::Usage);
        assert!(find(&all, "b").is_err() && find(&all, "").is_err());
    }

    #[test]
    fn a_lesson_is_told_in_three_lines() {
        let text = told(Style::plain(), &lesson(&"ab".repeat(32)));
        assert_eq!(text, "abababababab  T  failed\n  when: when\n  a\n  b");
    }
}
