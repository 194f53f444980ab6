//! `axp log`: an exported history, shown as it happened.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use axp_protocol::channel::Channel;
use axp_protocol::method::History;
use clap::Args;
use serde::de::DeserializeOwned;

use super::Context;
use super::error::CliError;
use super::follow::View;
use super::render::Renderer;
use crate::history::{HistoryError, envelopes, session_of};

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
    let history = read(&args.file)?;
    if ctx.out.is_json() {
        // As the host recorded it.
        return history.actions.iter().try_for_each(|action| ctx.out.json(action));
    }
    let session = session_of(&history).map_err(|e| unusable(&args.file, &e))?;
    let envelopes = envelopes(&history).map_err(|e| unusable(&args.file, &e))?;
    let mut view = View {
        chat: seed(&history, &Channel::Chat(session.clone()), &args.file)?,
        exchange: seed(&history, &Channel::Exchange(session.clone()), &args.file)?,
        changeset: seed(&history, &Channel::Changeset(session.clone()), &args.file)?,
    };
    let mut renderer = Renderer::new(ctx.out.style(), session.clone(), None);
    ctx.out.print(&renderer.attach(&view))?;
    for envelope in &envelopes {
        view.apply(&session, envelope);
        ctx.out.print(&renderer.update(&view))?;
    }
    ctx.out.print(&renderer.finish())
}

/// Reads a file that `axp export` wrote.
pub(crate) fn read(path: &Path) -> Result<History, CliError> {
    let file = File::open(path).map_err(|e| CliError::io("open", path, &e))?;
    serde_json::from_reader(BufReader::new(file)).map_err(|error| {
        if error.is_io() {
            return CliError::failed(format!("cannot read {}: {error}", path.display()));
        }
        CliError::failed(format!("{} is no exported history: {error}", path.display()))
            .hint("`axp export SESSION --out FILE` writes one")
    })
}

/// Says what is wrong with such a file.
pub(crate) fn unusable(path: &Path, error: &HistoryError) -> CliError {
    CliError::failed(format!("{} cannot be used: {error}", path.display()))
}

fn seed<T: DeserializeOwned>(history: &History, channel: &Channel, path: &Path) -> Result<T, CliError> {
    let name = channel.to_string();
    let seed = history.seeds.iter().find(|seed| seed.resource == name);
    let state = seed.map(|seed| seed.state.clone()).unwrap_or_default();
    serde_json::from_value(state)
        .map_err(|e| unusable(path, &HistoryError::Unreadable(format!("the first state of {name}: {e}"))))
}
