//! `axp log`: an exported history, shown as it happened.

use std::path::PathBuf;

use axp_protocol::channel::Channel;
use clap::Args;
use serde::de::DeserializeOwned;

use super::Context;
use super::error::CliError;
use super::export::read;
use super::follow::View;
use super::render::Renderer;
use crate::history::{Head, HistoryError};

const EXAMPLES: &str = "EXAMPLES
  axp export parser-fix --out parser-fix.json
  axp log parser-fix.json | less -R
  axp log parser-fix.json --json | jq -r .action.type | sort | uniq -c";

/// Show an exported history as it happened
///
/// It needs no host. With --json every action is one line.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LogArgs {
    /// The file that `axp export` wrote
    file: PathBuf,
}

/// Runs `axp log`.
pub(crate) fn run(args: &LogArgs, ctx: &Context) -> Result<(), CliError> {
    let mut archive = read(&args.file)?;
    if ctx.out.is_json() {
        // As the host recorded it.
        return archive.actions(|action| ctx.out.json(&action));
    }
    let session = archive.session().clone();
    let head = archive.head();
    let mut view = View {
        chat: seed(head, &Channel::Chat(session.clone()))?,
        exchange: seed(head, &Channel::Exchange(session.clone()))?,
        changeset: seed(head, &Channel::Changeset(session.clone()))?,
    };
    let mut renderer = Renderer::new(ctx.out.style(), session.clone(), None);
    ctx.out.print(&renderer.attach(&view))?;
    archive.envelopes(|envelope| {
        view.apply(&session, &envelope);
        ctx.out.print(&renderer.update(&view))
    })?;
    ctx.out.print(&renderer.finish())
}

fn seed<T: DeserializeOwned>(head: &Head, channel: &Channel) -> Result<T, HistoryError> {
    let name = channel.to_string();
    let seed = head.seeds.iter().find(|seed| seed.resource == name);
    let state = seed.map(|seed| seed.state.clone()).unwrap_or_default();
    serde_json::from_value(state)
        .map_err(|e| HistoryError::Unreadable(format!("the first state of {name}: {e}")))
}
