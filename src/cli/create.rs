//! `axp create`: opens a session for a task.

use axp_protocol::channel::Channel;
use axp_protocol::scalar::{Id, Text};
use clap::Args;
use serde_json::{Value, json};

use super::Context;
use super::error::CliError;
use super::profile::Need;

const EXAMPLES: &str = "EXAMPLES
  axp create --task issue-42 --title \"Fix the parser\"
  axp create --task issue-42 --id parser-fix
  S=$(axp create -q --task issue-42)      only the ID on stdout";

/// Open a session for a task (maintainers)
///
/// A task has one open session at a time.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CreateArgs {
    /// What the work is for: an issue, a ticket, a word
    #[arg(long, value_parser = parse_text::<1, 512>)]
    task: String,
    /// A line that says what is to be done [default: the task]
    #[arg(long, value_parser = parse_text::<1, 256>)]
    title: Option<String>,
    /// ID of the session [default: the task and a few random letters]
    #[arg(long)]
    id: Option<Id>,
}

fn parse_text<const MIN: usize, const MAX: usize>(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("it is empty".into());
    }
    Text::<MIN, MAX>::new(text).map(Text::into_string)
}

/// Runs `axp create`.
pub(crate) async fn run(args: CreateArgs, ctx: &Context) -> Result<(), CliError> {
    let id = match args.id {
        Some(id) => id,
        None => fresh_id(&args.task)?,
    };
    let mut host = ctx.host(Need::Maintain).await?;
    let mut config = json!({ "task": args.task });
    if let Some(title) = &args.title {
        config["title"] = json!(title);
    }
    let channel = Channel::Session(id.clone()).to_string();
    let params = json!({ "channel": channel, "provider": "axp", "config": config });
    let _: Value = host.once("createSession", &params).await.map_err(|error| {
        let conflict = error.code() == Some(axp_protocol::codes::CONFLICT);
        let error = CliError::from(error);
        if conflict { error.hint("`axp sessions` lists the open ones; `axp close` ends one") } else { error }
    })?;
    let session = Channel::Exchange(id.clone()).to_string();
    ctx.out.json(&json!({ "id": id, "session": session, "task": args.task }))?;
    ctx.out.line(&id)?;
    ctx.out.note(&format!(
        "\nNext, a contributor parks an agent at it:\n  axp park {id} --cost 1.00 -- AGENT ARGS"
    ));
    Ok(())
}

/// An ID that says what the task is, and is not taken.
fn fresh_id(task: &str) -> Result<Id, CliError> {
    let suffix = format!("{:04x}", rand::random::<u16>());
    Id::new(format!("{}-{suffix}", slug(task))).map_err(CliError::failed)
}

fn slug(task: &str) -> String {
    let mut slug = String::new();
    for c in task.chars().flat_map(char::to_lowercase) {
        if c.is_ascii_alphanumeric() {
            slug.push(c);
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
        if slug.len() >= 40 {
            break;
        }
    }
    let slug = slug.trim_end_matches('-');
    if slug.is_empty() { "session".into() } else { slug.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_id_reads_like_its_task() {
        assert_eq!(slug("Fix the Parser: #42!"), "fix-the-parser-42");
        assert_eq!(slug("漢字"), "session");
        assert_eq!(slug("--a--"), "a");
        assert!(slug(&"long ".repeat(50)).len() <= 40);
    }

    proptest! {
        #[test]
        fn every_task_has_an_id(task in "\\PC{0,60}") {
            let id = fresh_id(&task);
            prop_assert!(id.is_ok(), "{id:?}");
        }
    }
}
