//! `axp verify`: a command run on the exact commit of a checkpoint, by somebody who did not make it.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use axp_protocol::channel::Channel;
use axp_protocol::method::params;
use axp_protocol::scalar::{Id, List, Text, Uint};
use axp_protocol::shape::{Checkpoint, ExchangeState};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::Context;
use super::error::{CliError, ExitCode};
use super::money::{bytes, duration, parse_duration};
use super::profile::Need;
use super::render::short;
use super::review::{current, fetch};
use super::sanitize::Stripper;
use crate::acp::contained;
use crate::client::{operation_id, text};
use crate::worktree::{BranchFate, BundleFile, Repository, RestoreRequest, Worktree, restore};

const EXAMPLES: &str = "EXAMPLES
  axp verify parser-fix --directory ~/clone -- cargo test
  axp verify parser-fix --timeout 30m --env CARGO_HOME -- make check
  axp verify parser-fix --keep -- sh -c 'make && ./smoke.sh'";

/// Bytes of output that are kept from its beginning, and as many from its end.
const KEPT: usize = 1 << 20;
/// Exit code of a command that took too long, as that of timeout(1).
const TOO_LONG: u8 = 124;

/// Run a command on a session's checkpoint and record how it ended (verifiers)
///
/// The exact commit is restored from the host's bundle into a fresh worktree of your clone, which is removed again.
/// The command sees a minimal environment, none of AXP's own; whatever it starts ends with it. It runs code that an
/// agent wrote, with your rights. The exit code is the command's; 124 when it took too long.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct VerifyArgs {
    /// The session [default: the only open one]
    session: Option<String>,
    /// A clone of the project
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// The longest it may take
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_duration)]
    timeout: Duration,
    /// Pass this environment variable on to the command; can be given again
    #[arg(long, value_name = "NAME")]
    env: Vec<String>,
    /// Keep the worktree
    #[arg(long)]
    keep: bool,
    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs `axp verify`.
pub(crate) async fn run(args: VerifyArgs, ctx: &Context) -> Result<(), CliError> {
    let command =
        args.command.iter().map(|word| Text::new(word.to_string_lossy())).collect::<Result<Vec<_>, _>>();
    let command =
        command.and_then(List::new).map_err(|why| CliError::usage(format!("the command: {why}")))?;
    let mut host = ctx.host(Need::Verify).await?;
    let session = host.session(args.session.as_deref()).await?;
    let exchange: ExchangeState = host.snapshot(&Channel::Exchange(session.clone())).await?;
    let checkpoint = current(&exchange, &session)?.clone();

    let spinner = ctx.out.spinner(&format!("restoring {}", short(&checkpoint.head_commit)));
    let bundle = fetch(&mut host, &session, &checkpoint).await?;
    let worktree = restored(args.directory.clone(), checkpoint.clone(), bundle, &session).await?;
    drop(spinner);
    ctx.out.note(&format!("on {} in {}", short(&checkpoint.head_commit), worktree.path().display()));

    let ran = execute(&args, &worktree, ctx).await;
    if args.keep {
        ctx.out.note(&format!("kept {}", worktree.path().display()));
    } else {
        let removed = tokio::task::spawn_blocking(move || worktree.remove(BranchFate::Delete)).await;
        if let Ok(Err(error)) = removed {
            ctx.out.note(&format!("the worktree could not be removed: {error}"));
        }
    }
    let ran = ran?;

    let put = params::BlobPut {
        channel: text(&Channel::Exchange(session.clone()).to_string())?,
        operation_id: operation_id(),
        data: text(&STANDARD.encode(ran.output.whole()))?,
        media_type: text("text/plain; charset=utf-8")?,
    };
    let output = host.call::<params::BlobPut>(&put).await?;
    let verify = params::Verify {
        channel: text(&Channel::Exchange(session.clone()).to_string())?,
        operation_id: operation_id(),
        head_commit: checkpoint.head_commit.clone(),
        command,
        exit_code: Uint::clamped(u64::from(ran.code)),
        output: output.clone(),
    };
    host.call::<params::Verify>(&verify).await?;
    ctx.out.json(&json!({
        "session": session,
        "headCommit": checkpoint.head_commit,
        "exitCode": ran.code,
        "timedOut": ran.timed_out,
        "output": output,
    }))?;
    let head = short(&checkpoint.head_commit);
    let style = ctx.out.style();
    let word =
        if ran.code == 0 { style.good("passes") } else { style.bad(&format!("exit code {}", ran.code)) };
    ctx.out.done(&format!("{word} on {head}, recorded in session {session}"))?;
    match ran.code {
        0 => Ok(()),
        code => {
            let why = if ran.timed_out {
                format!("the command took longer than {}", duration(args.timeout))
            } else {
                String::new()
            };
            Err(CliError::failed(why).exit(code))
        }
    }
}

async fn restored(
    directory: PathBuf,
    checkpoint: Checkpoint,
    bundle: tempfile::NamedTempFile,
    session: &Id,
) -> Result<Worktree, CliError> {
    let session: String = session.chars().take(60).collect();
    let into = format!("verify-{session}");
    let work = tokio::task::spawn_blocking(move || {
        let repository = Repository::discover(&directory)?;
        let request = RestoreRequest {
            bundle: Some(BundleFile { path: bundle.path(), sha256: &checkpoint.bundle.sha256 }),
            base: &checkpoint.base_commit,
            head: &checkpoint.head_commit,
            into: into.trim_end_matches('.'),
        };
        restore(&repository, &request, &mut |_| {})
    });
    work.await
        .map_err(|e| CliError::failed(format!("the restore ended early: {e}")))?
        .map_err(|e| CliError::failed(e.to_string()))
}

/// How a command ended.
struct Ran {
    code: u8,
    timed_out: bool,
    output: Kept,
}

async fn execute(args: &VerifyArgs, worktree: &Worktree, ctx: &Context) -> Result<Ran, CliError> {
    let [program, rest @ ..] = args.command.as_slice() else {
        return Err(CliError::usage("the command is missing"));
    };
    let guard = std::env::current_exe()
        .map_err(|e| CliError::failed(format!("this program does not know where it is: {e}")))?;
    let mut command: Command =
        contained(program, &args.env, Some(&guard)).map_err(|e| CliError::usage(e.to_string()))?;
    command.args(rest).current_dir(worktree.path()).stdin(Stdio::null()).process_group(0);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let shown = program.to_string_lossy();
    let mut child = command.spawn().map_err(|e| CliError::failed(format!("{shown} cannot be run: {e}")))?;
    let (sender, mut chunks) = mpsc::channel(16);
    if let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) {
        tokio::spawn(pass_on(stdout, sender.clone()));
        tokio::spawn(pass_on(stderr, sender));
    }
    let mut output = Kept::default();
    let mut stripper = Stripper::default();
    let mut show = |chunk: &[u8]| {
        let mut shown = String::new();
        stripper.push(&String::from_utf8_lossy(chunk), &mut shown);
        ctx.out.print(&shown)
    };
    let deadline = tokio::time::sleep(args.timeout);
    let interrupt = tokio::signal::ctrl_c();
    tokio::pin!(deadline, interrupt);
    let (mut timed_out, mut status) = (false, None);
    // The guard ends whatever the command has started, so its pipes close with it.
    loop {
        tokio::select! {
            chunk = chunks.recv() => match chunk {
                Some(chunk) => {
                    output.push(&chunk);
                    show(&chunk)?;
                }
                None => break,
            },
            ended = child.wait(), if status.is_none() => {
                status = Some(ended.map_err(|e| CliError::failed(format!("{shown} is lost: {e}")))?);
            }
            () = &mut deadline, if !timed_out => {
                timed_out = true;
                end(&child);
            }
            _ = &mut interrupt => {
                end(&child);
                let _ = child.wait().await;
                return Err(CliError::new(ExitCode::Interrupted, "interrupted; nothing was recorded"));
            }
        }
    }
    let status = match status {
        Some(status) => status,
        None => child.wait().await.map_err(|e| CliError::failed(format!("{shown} is lost: {e}")))?,
    };
    let code = if timed_out { TOO_LONG } else { code_of(status) };
    Ok(Ran { code, timed_out, output })
}

/// Asks the guard to end everything.
fn end(child: &Child) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // One that is gone needs no ending.
        let _ = kill_process(pid, Signal::TERM);
    }
}

/// The exit code as a shell would tell it.
fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    u8::try_from(code).unwrap_or(1)
}

async fn pass_on(mut from: impl AsyncRead + Unpin, to: mpsc::Sender<Vec<u8>>) {
    let mut buffer = vec![0; 8192];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if to.send(buffer.get(..read).unwrap_or_default().to_vec()).await.is_err() {
            return;
        }
    }
}

/// The beginning and the end of an output of any length.
#[derive(Debug, Default)]
struct Kept {
    head: Vec<u8>,
    tail: std::collections::VecDeque<u8>,
    left_out: u64,
}

impl Kept {
    fn push(&mut self, chunk: &[u8]) {
        let room = KEPT.saturating_sub(self.head.len()).min(chunk.len());
        let (head, rest) = chunk.split_at(room);
        self.head.extend_from_slice(head);
        self.tail.extend(rest);
        let surplus = self.tail.len().saturating_sub(KEPT);
        self.tail.drain(..surplus);
        self.left_out += surplus as u64;
    }

    /// What is uploaded; it says so where something was left out.
    fn whole(mut self) -> Vec<u8> {
        if self.left_out > 0 {
            let note = format!("\n[… {} left out here …]\n", bytes(self.left_out));
            self.head.extend_from_slice(note.as_bytes());
        }
        self.head.extend(self.tail);
        self.head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_output_keeps_both_ends() {
        let mut short = Kept::default();
        short.push(b"all ");
        short.push(b"of it");
        assert_eq!(short.whole(), b"all of it");
        let mut long = Kept::default();
        for n in 0u32..1_000_000 {
            long.push(format!("line {n:07}\n").as_bytes());
        }
        let text = String::from_utf8(long.whole()).unwrap();
        assert!(text.starts_with("line 0000000\n") && text.ends_with("line 0999999\n"));
        assert!(text.contains("left out here") && text.len() < 2 * KEPT + 100);
    }
}
