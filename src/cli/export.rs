//! `axp export`: the whole history of a session in a file.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axp_protocol::channel::Channel;
use axp_protocol::method::{Method, params};
use clap::Args;
use serde_json::{Value, json};

use super::Context;
use super::error::CliError;
use super::money::bytes;
use super::output::write_stdout;
use super::profile::Need;
use super::sanitize::escape_json;
use crate::client::text;

const EXAMPLES: &str = "EXAMPLES
  axp export parser-fix --out parser-fix.json
  axp export parser-fix --out - | jq '.actions | length'";

/// Time for a long history.
const PATIENCE: Duration = Duration::from_secs(300);

/// Write the whole history of a session to a file
///
/// The file holds the first states, every action, and the newest states: enough to replay the session. It appears
/// whole or not at all, readable by you only.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExportArgs {
    /// The session [default: the only open one]
    session: Option<String>,
    /// Where to; `-` is stdout
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,
    /// Overwrite a file that is there
    #[arg(long)]
    force: bool,
}

/// Runs `axp export`.
pub(crate) async fn run(args: ExportArgs, ctx: &Context) -> Result<(), CliError> {
    let to_stdout = args.out == Path::new("-");
    if !to_stdout && !args.force && args.out.symlink_metadata().is_ok() {
        return Err(exists(&args.out));
    }
    let mut host = ctx.host_with(Need::Read, PATIENCE).await?;
    let session = host.session(args.session.as_deref()).await?;
    let spinner = ctx.out.spinner(&format!("reading the history of {session}"));
    let channel = text(&Channel::Exchange(session.clone()).to_string())?;
    // As the host says it, with whatever a later version adds.
    let history: Value = host.request(params::Export::NAME, &params::Export { channel }).await?;
    let mut json = serde_json::to_string(&history)
        .map_err(|e| CliError::failed(format!("the history cannot be written as JSON: {e}")))?;
    json.push('\n');
    if to_stdout {
        drop(spinner);
        return write_stdout(escape_json_lines(&json).as_bytes());
    }
    write_whole(&args.out, json.as_bytes(), args.force)?;
    drop(spinner);
    let actions = history.get("actions").and_then(Value::as_array).map_or(0, Vec::len);
    ctx.out.json(&json!({ "session": session, "out": args.out, "actions": actions, "bytes": json.len() }))?;
    ctx.out.done(&format!(
        "Wrote {} with {actions} actions of session {session}, {}.",
        args.out.display(),
        bytes(json.len() as u64)
    ))
}

/// The one line break at the end is ours.
fn escape_json_lines(json: &str) -> String {
    format!("{}\n", escape_json(json.trim_end_matches('\n')))
}

fn exists(path: &Path) -> CliError {
    CliError::conflict(format!("{} is there already", path.display())).hint("--force overwrites it")
}

/// Writes a file so that it is there whole or not at all, even when the machine stops.
fn write_whole(path: &Path, bytes: &[u8], force: bool) -> Result<(), CliError> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let io = |error: std::io::Error| CliError::io("write", path, &error);
    // In the same folder: only within one file system is a rename a single step.
    let mut file = tempfile::Builder::new().prefix(".axp-export-").tempfile_in(folder).map_err(io)?;
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).map_err(io)?;
    if force {
        file.persist(path).map_err(|e| io(e.error))?;
    } else {
        file.persist_noclobber(path).map_err(|e| match e.error.kind() {
            std::io::ErrorKind::AlreadyExists => exists(path),
            _ => io(e.error),
        })?;
    }
    #[cfg(unix)]
    std::fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(io)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_overwritten_only_by_force() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("h.json");
        write_whole(&path, b"one", false).unwrap();
        let error = write_whole(&path, b"two", false).unwrap_err();
        assert_eq!(error.code, super::super::error::ExitCode::Conflict);
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        write_whole(&path, b"two", true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
        assert!(write_whole(&dir.path().join("none/h.json"), b"x", false).is_err());
    }
}
