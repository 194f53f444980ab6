//! `axp export`: the whole history of a session in a file, and a look at such a file without a host.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use axp_protocol::scalar::Id;
use clap::Args;
use serde_json::json;
use tempfile::NamedTempFile;

use super::Context;
use super::error::CliError;
use super::money::{bytes, counted};
use super::output::{Output, Spinner, write_stdout};
use super::profile::Need;
use super::sanitize::{escape_json, one_line};
use crate::client::Credentials;
use crate::history::{Archive, Check, DownloadError, HistoryError, audit, download, fetch, open, pieces};

const EXAMPLES: &str = "EXAMPLES
  axp export parser-fix --out parser-fix.json
  axp export parser-fix --out - | jq '.actions | length'
  axp export --verify parser-fix.json               needs no host and no profile";

/// Write the whole history of a session to a file, or check such a file
///
/// The file holds the first states, every action, and the newest states: enough to replay the session. It appears
/// whole or not at all, readable by you only.
///
/// With --verify nothing is asked of a host: the newest states are recomputed from the first ones and the actions,
/// what each grant has spent is added up, and the hashes and signatures of the review are checked. The exit code is 1
/// when something does not hold.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExportArgs {
    /// The session [default: the only open one]
    #[arg(conflicts_with = "verify")]
    session: Option<String>,
    /// Where to; `-` is stdout
    #[arg(long, short, value_name = "FILE", required_unless_present = "verify", conflicts_with = "verify")]
    out: Option<PathBuf>,
    /// Overwrite a file that is there
    #[arg(long, conflicts_with = "verify")]
    force: bool,
    /// Check a file that `axp export` wrote
    #[arg(long, value_name = "FILE")]
    verify: Option<PathBuf>,
}

/// Runs `axp export`.
pub(crate) async fn run(args: ExportArgs, ctx: &Context) -> Result<(), CliError> {
    if let Some(path) = args.verify {
        return check(path, ctx).await;
    }
    let out = args.out.unwrap_or_else(|| PathBuf::from("-"));
    let to_stdout = out == Path::new("-");
    if !to_stdout {
        may_write(&out, args.force)?;
    }
    let mut host = ctx.host(Need::Read).await?;
    let session = host.session(args.session.as_deref()).await?;
    let credentials = host.credentials().clone();
    drop(host);
    if to_stdout {
        let archive = history(&credentials, &session, &ctx.out).await?;
        return print(archive).await;
    }
    // In the same folder: only within one file system is a rename a single step.
    let file = beside(&out)?;
    let unwritable = |e: std::io::Error| CliError::io("write", &out, &e);
    let (spinner, mut progress) = progress(&session, &ctx.out);
    let fetched = download(&credentials, &session, file.as_file(), &mut progress).await;
    fetched.map_err(|error| said(error, &session))?;
    let archive = open(file.reopen().map_err(unwritable)?).await.map_err(|error| said(error, &session))?;
    drop(spinner);
    let size = finish(file, &out, args.force)?;
    let actions = archive.head().count;
    ctx.out.json(&json!({ "session": session, "out": out, "actions": actions, "bytes": size }))?;
    ctx.out.done(&format!(
        "Wrote {} with {} of session {session}, {}.",
        out.display(),
        counted(actions, "action", "actions"),
        bytes(size)
    ))
}

/// The history of a session, fetched for a look at it.
pub(crate) async fn history(
    credentials: &Credentials,
    session: &Id,
    out: &Output,
) -> Result<Archive, CliError> {
    let (_spinner, mut progress) = progress(session, out);
    fetch(credentials, session, &mut progress).await.map_err(|error| said(error, session))
}

fn progress(session: &Id, out: &Output) -> (Spinner, impl FnMut(u64) + Send + use<>) {
    let text = format!("reading the history of {session}");
    let spinner = out.spinner(&text);
    let shown = spinner.clone();
    (spinner, move |so_far| shown.say(format!("{text}: {}", bytes(so_far))))
}

fn said(error: DownloadError, session: &Id) -> CliError {
    match error {
        DownloadError::Client(error) => error.into(),
        other => CliError::failed(format!("the history of session {session}: {other}")),
    }
}

async fn print(archive: Archive) -> Result<(), CliError> {
    let print = move || {
        let mut file = archive.into_file();
        pieces(&mut file, |piece| {
            // A line break can only stand between values.
            let piece = piece.replace(['\n', '\r', '\t'], " ");
            write_stdout(escape_json(&piece).as_bytes())
        })?;
        write_stdout(b"\n")
    };
    let printed = tokio::task::spawn_blocking(print).await;
    printed.map_err(|e| CliError::failed(format!("printing ended early: {e}")))?
}

impl From<HistoryError> for CliError {
    fn from(error: HistoryError) -> Self {
        Self::failed(format!("the history cannot be used: {error}"))
    }
}

/// Opens a file that `axp export` wrote.
pub(crate) fn read(path: &Path) -> Result<Archive, CliError> {
    let file = File::open(path).map_err(|e| CliError::io("open", path, &e))?;
    Archive::open(file).map_err(|error| {
        let hint = matches!(error, HistoryError::Format(_));
        let error = unusable(path, &error);
        if hint { error.hint("`axp export SESSION --out FILE` writes one") } else { error }
    })
}

/// Says what is wrong with such a file.
pub(crate) fn unusable(path: &Path, error: &HistoryError) -> CliError {
    CliError::failed(format!("{} cannot be used: {error}", path.display()))
}

async fn check(path: PathBuf, ctx: &Context) -> Result<(), CliError> {
    let spinner = ctx.out.spinner(&format!("checking {}", path.display()));
    let look = {
        let path = path.clone();
        move || {
            let mut archive = read(&path)?;
            let checks = audit(&mut archive).map_err(|e| unusable(&path, &e))?;
            Ok::<_, CliError>((archive.session().clone(), checks))
        }
    };
    let looked = tokio::task::spawn_blocking(look).await;
    let (session, checks) = looked.map_err(|e| CliError::failed(format!("the check ended early: {e}")))??;
    drop(spinner);
    let holds = checks.iter().all(|check| check.holds);
    ctx.out.json(&json!({ "session": session, "holds": holds, "checks": checks }))?;
    ctx.out.print(&shown(&checks, ctx))?;
    if holds {
        return ctx.out.done(&format!("{} holds together: session {session}.", path.display()));
    }
    let failed = checks.iter().filter(|check| !check.holds).count() as u64;
    Err(CliError::failed(format!(
        "{} does not hold together: {} failed",
        path.display(),
        counted(failed, "check", "checks")
    )))
}

fn shown(checks: &[Check], ctx: &Context) -> String {
    let style = ctx.out.style();
    let width = checks.iter().map(|check| check.what.len()).max().unwrap_or_default();
    let line = |check: &Check| {
        let mark = if check.holds { style.good("ok  ") } else { style.bad("FAIL") };
        format!("  {mark}  {:width$}  {}\n", check.what, one_line(&check.found, 400))
    };
    checks.iter().map(line).collect()
}

/// A device or a folder is never replaced, a file only when that was said.
fn may_write(path: &Path, force: bool) -> Result<(), CliError> {
    match path.metadata() {
        Ok(there) if !there.is_file() => {
            Err(CliError::usage(format!("{} is not a file", path.display())).hint("`--out -` is stdout"))
        }
        _ if !force && path.symlink_metadata().is_ok() => Err(exists(path)),
        _ => Ok(()),
    }
}

fn exists(path: &Path) -> CliError {
    CliError::conflict(format!("{} is there already", path.display())).hint("--force overwrites it")
}

/// A temporary file that can become `path`.
fn beside(path: &Path) -> Result<NamedTempFile, CliError> {
    let made = tempfile::Builder::new().prefix(".axp-export-").tempfile_in(folder(path));
    made.map_err(|e| CliError::io("write", path, &e))
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Puts a written file in its place, so that it is there whole or not at all, even when the machine stops. Returns its
/// size, bytes.
fn finish(mut file: NamedTempFile, path: &Path, force: bool) -> Result<u64, CliError> {
    let io = |error: std::io::Error| CliError::io("write", path, &error);
    let mut end = || {
        file.as_file_mut().seek(SeekFrom::End(0))?;
        file.write_all(b"\n")?;
        file.as_file().sync_all()?;
        file.as_file().metadata().map(|metadata| metadata.len())
    };
    let size = end().map_err(io)?;
    if force {
        file.persist(path).map_err(|e| io(e.error))?;
    } else {
        file.persist_noclobber(path).map_err(|e| match e.error.kind() {
            std::io::ErrorKind::AlreadyExists => exists(path),
            _ => io(e.error),
        })?;
    }
    #[cfg(unix)]
    File::open(folder(path)).and_then(|folder| folder.sync_all()).map_err(io)?;
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_overwritten_only_by_force() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("h.json");
        let write = |text: &str, force| {
            let mut file = beside(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            finish(file, &path, force)
        };
        assert_eq!(write("one", false).unwrap(), 4);
        let error = write("two", false).unwrap_err();
        assert_eq!(error.code, super::super::error::ExitCode::Conflict);
        assert_eq!(std::fs::read(&path).unwrap(), b"one\n");
        write("two", true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two\n");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
        assert!(beside(&dir.path().join("none/h.json")).is_err());
        assert_eq!(may_write(&path, false).unwrap_err().code, super::super::error::ExitCode::Conflict);
        may_write(&path, true).unwrap();
        for not_a_file in [Path::new("/dev/null"), dir.path()] {
            let error = may_write(not_a_file, true).unwrap_err();
            assert_eq!(error.code, super::super::error::ExitCode::Usage, "{}", not_a_file.display());
        }
    }
}
