//! `axp host`: runs the project's host.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use axp_host::config::DEFAULT_PORT;
use axp_host::run::{Overrides, run_from_config, stop_signal};
use clap::Args;
use serde_json::json;

use super::Context;
use super::error::{CliError, ExitCode};
use super::init::{joining, origin_name, set_up, work_tree};
use super::profile::FOLDER;

const EXAMPLES: &str = "EXAMPLES
  axp host                            in the project; sets it up first if need be
  axp host --listen 127.0.0.1:9000
  axp host --config /etc/axp/host.json";

/// Run the host of the project, until Ctrl-C or SIGTERM
///
/// In a Git repository that is not set up yet, it is set up first, as `axp init` does.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HostArgs {
    /// Configuration to run [default: .axp/host.json here or in a folder above]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address to listen on, instead of the configured one
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

/// Runs `axp host`.
pub(crate) async fn run(args: HostArgs, ctx: &Context) -> Result<(), CliError> {
    let config = match args.config {
        Some(config) => config,
        None => find_or_make(ctx, args.listen)?,
    };
    let stop = stop_signal().map_err(|e| CliError::failed(format!("cannot listen for signals: {e}")))?;
    let shown = config.clone();
    let out = ctx.out;
    let ready = move |address: SocketAddr| {
        let url = format!("ws://{address}/axp");
        // A closed stdout is no reason to stop a host.
        let _ = out.json(&json!({ "state": "ready", "url": url, "config": shown }));
        let _ = out.line(&format!("Ready at {url}; Ctrl-C stops it."));
    };
    run_from_config(&config, Overrides { listen: args.listen }, stop, ready).await.map_err(|error| {
        let code = if error.exit_code() == 2 { ExitCode::Usage } else { ExitCode::Failed };
        CliError::new(code, error.to_string())
    })
}

fn find_or_make(ctx: &Context, listen: Option<SocketAddr>) -> Result<PathBuf, CliError> {
    let here = ctx.here()?;
    let configured = here.ancestors().map(|folder| folder.join(FOLDER).join("host.json"));
    if let Some(config) = configured.into_iter().find(|path| path.is_file()) {
        return Ok(config);
    }
    let Some(top) = work_tree(&here)? else {
        return Err(CliError::usage(
            "there is no .axp/host.json here or above, and this is no Git repository",
        )
        .hint("run `axp init --repo OWNER/NAME`, or name a configuration with --config FILE"));
    };
    let repository = origin_name(&top).unwrap_or_else(|| local_name(&top));
    let port = listen.map(|address| address.port()).filter(|port| *port != 0).unwrap_or(DEFAULT_PORT);
    let made = set_up(&top, &repository, port)?;
    ctx.out.note(&format!(
        "Set up {} for {repository}.\n\nNext, in another terminal:\n{}\n",
        top.join(FOLDER).display(),
        joining(&made)
    ));
    Ok(made.config)
}

/// A name for a repository that has no remote.
pub(crate) fn local_name(top: &Path) -> String {
    let folder = top.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name: String =
        folder.chars().map(|c| if c.is_whitespace() || c.is_control() { '-' } else { c }).collect();
    format!("local/{}", if name.is_empty() { "project" } else { &name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_without_a_remote_has_a_name() {
        assert_eq!(local_name(Path::new("/src/my project")), "local/my-project");
        assert_eq!(local_name(Path::new("/")), "local/project");
    }
}
