//! `axp comment`: a word in a session's discussion.

use ahp_types::state::ChangesetState;
use axp_protocol::channel::Channel;
use axp_protocol::method::params;
use axp_protocol::scalar::Text;
use axp_protocol::shape::{Checkpoint, ExchangeState};
use clap::Args;

use super::Context;
use super::error::CliError;
use super::profile::Need;
use super::render::short;
use super::sanitize::one_line;
use super::turn::{not_a_session, read_text};
use crate::client::{operation_id, text};
use crate::worktree::Repository;

const EXAMPLES: &str = "EXAMPLES
  axp comment parser-fix \"Looks right to me\"
  axp comment parser-fix \"This can overflow\" --path src/parser.rs
  axp comment parser-fix - < review.md";

/// Say something in a session's discussion (all but observers)
///
/// The agent does not see it; everybody who follows the session does. With --path it is about a file as it is in the
/// current checkpoint.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = "axp comment [OPTIONS] [SESSION] <TEXT>")]
pub(crate) struct CommentArgs {
    /// The session; may be left out when exactly one is open
    #[arg(value_name = "SESSION")]
    first: String,
    /// What is said, at most 8,000 characters; `-` reads it from stdin
    #[arg(value_name = "TEXT")]
    second: Option<String>,
    /// The file it is about, from the top of the repository
    #[arg(long, value_name = "FILE")]
    path: Option<String>,
}

/// Runs `axp comment`.
pub(crate) async fn run(args: CommentArgs, ctx: &Context) -> Result<(), CliError> {
    let (named, word) = match &args.second {
        Some(text) => (Some(args.first.as_str()), text),
        None => (None, &args.first),
    };
    let body = read_text(word).await?;
    let body = Text::new(body.trim_end()).map_err(|why| CliError::usage(format!("the text: {why}")))?;
    let path = args.path.map(|path| Text::new(path.strip_prefix("./").unwrap_or(&path)));
    let path = path.transpose().map_err(|why| CliError::usage(format!("--path: {why}")))?;
    let mut host = ctx.host(Need::Discuss).await?;
    if named.is_none() {
        not_a_session(&mut host, word, "comment").await?;
    }
    let session = host.session(named).await?;
    let channel = Channel::Exchange(session.clone());
    let mut checkpoint = None;
    if let Some(path) = &path {
        let state: ExchangeState = host.snapshot(&channel).await?;
        let Some(current) = state.checkpoint else {
            return Err(CliError::conflict(format!(
                "session {session} has no checkpoint yet, so there is no file to speak of"
            )));
        };
        let changes: ChangesetState = host.snapshot(&Channel::Changeset(session.clone())).await?;
        if !changes.files.iter().any(|file| file.id == **path) {
            unchanged(path, &current, ctx)?;
        }
        checkpoint = Some(current.head_commit);
    }
    let channel = text(&channel.to_string())?;
    let comment = params::Comment { channel, operation_id: operation_id(), body, checkpoint, path };
    let comment = host.call::<params::Comment>(&comment).await?;
    ctx.out.json(&comment)?;
    ctx.out.done(&format!("Said in session {session}."))
}

/// Looks for a file that the checkpoint did not change: the host has no tree to look in, but a clone here may.
fn unchanged(path: &str, checkpoint: &Checkpoint, ctx: &Context) -> Result<(), CliError> {
    let shown = one_line(path, 200);
    let in_base = Repository::discover(&ctx.here()?).and_then(|r| r.has_path(&checkpoint.base_commit, path));
    match in_base.ok().flatten() {
        Some(true) => {}
        Some(false) => {
            return Err(CliError::usage(format!(
                "there is no {shown} at checkpoint {}",
                short(&checkpoint.head_commit)
            ))
            .hint("--path is from the top of the repository; `axp inspect` lists the changed files"));
        }
        None => ctx.out.note(&format!(
            "{shown} is not among the changed files; whether it is there at all cannot be seen here"
        )),
    }
    Ok(())
}
