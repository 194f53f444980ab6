//! `axp demo`: the whole loop on one machine, with nothing set up, through the same code as the real commands.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use axp_protocol::principal::Role;
use axp_protocol::scalar::Id;
use axp_protocol::shape::{Allowance, Checkpoint, Enforcement};
use clap::Args;
use serde_json::{Value, json};

use super::Context;
use super::error::CliError;
use super::local::{LocalHost, Parked, prompt};
use super::money::{allowance, counted};
use super::sanitize::strip;
use super::wait::{Answers, Followed, Following};
use crate::client::{AxpClient, ConnectOptions};
use crate::reconnect::{AgentCommand, ParkSpec, download};
use crate::worktree::{BundleFile, Repository, RestoreRequest, diffstat, restore};

const EXAMPLES: &str = "EXAMPLES
  axp demo                     asks you for the permission
  axp demo --yes               answers for you
  axp demo --keep ~/axp-demo   keeps everything to look at
  axp demo --yes --json        one JSON document";

const PROMPT: &str = "The test fails. Find the bug and fix it.";

/// Show the whole loop on this machine, with nothing set up
///
/// Makes a scratch repository with a failing test and an embedded host, parks a sample agent with a budget, prompts
/// it, asks you for the permission it needs, and proves the result: the test is run on the restored checkpoint.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DemoArgs {
    /// Allow what the agent asks permission for; so does a stdin that is no terminal
    #[arg(long, short)]
    yes: bool,
    /// Keep everything in this folder, which must be empty or new
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// Where the demo happens.
struct Stage {
    folder: PathBuf,
    /// Removes the folder at the end, unless it is kept.
    _scratch: Option<tempfile::TempDir>,
}

impl Stage {
    fn new(keep: Option<&Path>) -> Result<Self, CliError> {
        let Some(keep) = keep else {
            let scratch = tempfile::Builder::new()
                .prefix("axp-demo-")
                .tempdir()
                .map_err(|e| CliError::failed(format!("there is no room for the demo: {e}")))?;
            return Ok(Self { folder: scratch.path().to_owned(), _scratch: Some(scratch) });
        };
        std::fs::create_dir_all(keep).map_err(|e| CliError::io("create", keep, &e))?;
        let mut entries = std::fs::read_dir(keep).map_err(|e| CliError::io("read", keep, &e))?;
        if entries.next().is_some() {
            return Err(CliError::conflict(format!("{} is not empty", keep.display())));
        }
        let folder = keep.canonicalize().map_err(|e| CliError::io("find", keep, &e))?;
        Ok(Self { folder, _scratch: None })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// Runs `axp demo`.
pub(crate) async fn run(args: DemoArgs, ctx: &Context) -> Result<(), CliError> {
    let began = Instant::now();
    let stage = Stage::new(args.keep.as_deref())?;
    let style = ctx.out.style();
    let step = |text: &str| ctx.out.line(&format!("\n{}", style.strong(text)));

    let project = stage.at("project");
    make_project(&project)?;
    step("1. A project with a failing test")?;
    let (before, _) = run_test(&project)?;
    ctx.out.line(&format!("  {} · its test exits with {before}", project.display()))?;

    step("2. A host for it, a session, and an agent parked with a budget")?;
    let host = LocalHost::start(&stage.folder, "demo/project").await?;
    let session =
        Id::new(format!("demo-{:06x}", rand::random::<u32>() & 0xff_ffff)).map_err(CliError::failed)?;
    host.create(&session, "Fix the failing test", "demo").await?;
    let spec = park_spec(&stage, &project, &host, &session)?;
    let limit = spec.limit;
    let parked = Parked::start(spec, ctx).await?;
    ctx.out.line(&format!("  session {session} · {} · at most {}", parked.agent, allowance(&limit)))?;

    step("3. The maintainer prompts, the agent works")?;
    let answers = if args.yes || !std::io::stdin().is_terminal() { Answers::Allow } else { Answers::Ask };
    let following = Following { answers, json: false };
    let followed = prompt(&host, &session, PROMPT.to_owned(), following, ctx).await;
    let worktree = parked.worktree.clone();
    let parking = parked.stop().await;
    let (turn, followed) = followed?;
    parking?;

    step("4. What is left of it")?;
    let grant = followed.view.exchange.grants.values().next().cloned();
    let spent = grant.as_ref().map(|g| g.spent).unwrap_or_default();
    ctx.out.line(&format!("  spent {} of {}", allowance(&spent), allowance(&limit)))?;
    let mut verification = Value::Null;
    let mut exit_code = None;
    let mut shown_checkpoint = Value::Null;
    let verify_at = stage.at("verification");
    if let Some(checkpoint) = &followed.view.exchange.checkpoint {
        shown_checkpoint = json!({
            "baseCommit": checkpoint.base_commit,
            "headCommit": checkpoint.head_commit,
            "files": followed.view.changeset.files.len(),
        });
        show_checkpoint(&project, checkpoint, ctx)?;
        let (code, restored, output) = verify(&host, &session, checkpoint, &project, &verify_at).await?;
        verification = json!({ "command": ["sh", "test.sh"], "exitCode": code });
        exit_code = Some(code);
        let word = if code == 0 { style.good("passes") } else { style.bad("fails") };
        ctx.out.line(&format!("  the test {word} on the restored checkpoint in {}", restored.display()))?;
        for line in strip(&output).lines().take(5) {
            ctx.out.line(&style.dim(&format!("    {line}")))?;
        }
    } else {
        ctx.out.line("  no checkpoint: the agent changed nothing")?;
    }
    host.stop().await?;
    let kept = args.keep.is_some();
    if kept {
        ctx.out.line(&format!("  everything is in {}", stage.folder.display()))?;
    } else {
        ctx.out.note(&style.dim("  all of it is removed now; --keep DIR keeps it"));
    }
    ctx.out.note(
        "\nThe real thing: axp init, axp host, axp create, axp park, axp prompt; `axp --help` shows them.",
    );
    ctx.out.json(&document(
        &session,
        &turn,
        &followed,
        shown_checkpoint,
        verification,
        began.elapsed(),
        &json!({
            "kept": kept,
            "folder": stage.folder,
            "repository": project,
            "worktree": worktree,
            "verification": verify_at,
            "database": stage.at("axp.db"),
        }),
    ))?;
    followed.outcome.result(&session)?;
    match exit_code {
        // Nothing to verify: the person said no.
        None | Some(0) => Ok(()),
        Some(code) => {
            Err(CliError::failed(format!("the test still fails on the checkpoint, with exit code {code}")))
        }
    }
}

fn document(
    session: &Id,
    turn: &Id,
    followed: &Followed,
    checkpoint: Value,
    verification: Value,
    elapsed: Duration,
    paths: &Value,
) -> Value {
    let grant = followed.view.exchange.grants.values().next();
    json!({
        "session": session,
        "turn": { "id": turn, "outcome": followed.outcome.outcome },
        "permissions": followed.answered,
        "grant": grant.map(|g| json!({ "id": g.id, "limit": g.limit, "spent": g.spent })),
        "checkpoint": checkpoint,
        "verification": verification,
        "paths": paths,
        "elapsedMs": u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
    })
}

fn park_spec(stage: &Stage, project: &Path, host: &LocalHost, session: &Id) -> Result<ParkSpec, CliError> {
    let axp = std::env::current_exe()
        .map_err(|e| CliError::failed(format!("this program does not know where it is: {e}")))?;
    Ok(ParkSpec {
        credentials: host.credentials(Role::Contributor),
        session: session.clone(),
        directory: project.to_owned(),
        agent: AgentCommand {
            program: axp.clone().into(),
            args: vec![crate::sample::SAMPLE_COMMAND.into()],
            env: vec![],
            auth_method: None,
            start_timeout: Duration::from_secs(15),
        },
        limit: Allowance { tokens: 20_000, cost_micros: 500_000, turns: 3 },
        per_turn: Allowance { tokens: 10_000, cost_micros: 100_000, turns: 1 },
        enforcement: Enforcement::Accounting,
        lease: axp_protocol::method::LeaseMs::clamped(30_000),
        reconnect: true,
        max_backoff: Duration::from_secs(30),
        state_folder: stage.at("state"),
        guard: Some(axp),
    })
}

/// Writes the sample project and commits it.
fn make_project(folder: &Path) -> Result<(), CliError> {
    std::fs::create_dir_all(folder).map_err(|e| CliError::io("create", folder, &e))?;
    for (path, contents, executable) in crate::sample::scratch_project() {
        let path = folder.join(path);
        let written =
            std::fs::File::create_new(&path).and_then(|mut file| file.write_all(contents.as_bytes()));
        written.map_err(|e| CliError::io("write", &path, &e))?;
        #[cfg(unix)]
        if *executable {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(&path, mode).map_err(|e| CliError::io("make executable", &path, &e))?;
        }
    }
    git(folder, &["init", "--quiet", "--initial-branch=main"])?;
    git(folder, &["add", "--all"])?;
    let identity = ["-c", "user.name=Demo", "-c", "user.email=demo@localhost", "-c", "commit.gpgsign=false"];
    git(folder, &[&identity[..], &["commit", "--quiet", "--message=A project with a bug"]].concat())
}

/// A command that no Git variable of this environment leads elsewhere.
fn command(program: &str, folder: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GIT_")) {
        command.env_remove(name);
    }
    command.current_dir(folder).stdin(Stdio::null());
    command
}

fn git(folder: &Path, args: &[&str]) -> Result<(), CliError> {
    let output = command("git", folder)
        .args(["-c", "core.hooksPath=/dev/null"])
        .args(args)
        .output()
        .map_err(|e| CliError::failed(format!("git cannot be run: {e}")).hint("install Git"))?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(CliError::failed(format!("git {} failed: {why}", args.first().unwrap_or(&""))))
}

/// Runs the project's test: exit code and what it printed.
fn run_test(folder: &Path) -> Result<(i32, String), CliError> {
    let output = command("sh", folder)
        .arg("test.sh")
        .output()
        .map_err(|e| CliError::failed(format!("sh cannot be run: {e}")))?;
    let printed = [output.stdout, output.stderr].concat();
    Ok((output.status.code().unwrap_or(1), String::from_utf8_lossy(&printed).into_owned()))
}

fn show_checkpoint(project: &Path, checkpoint: &Checkpoint, ctx: &Context) -> Result<(), CliError> {
    let failed = |e: crate::worktree::WorktreeError| CliError::failed(e.to_string());
    let repository = Repository::discover(project).map_err(failed)?;
    let stat = diffstat(&repository, &checkpoint.base_commit, &checkpoint.head_commit).map_err(failed)?;
    let short: String = checkpoint.head_commit.chars().take(10).collect();
    let files = counted(stat.files.len() as u64, "file", "files");
    ctx.out.line(&format!("  checkpoint {short} on {}, {files}:", &*checkpoint.branch))?;
    for line in stat.to_string().lines() {
        ctx.out.line(&format!("    {}", line.trim_start()))?;
    }
    Ok(())
}

/// Restores the checkpoint in another clone, from what the host gives, and runs the test there.
async fn verify(
    host: &LocalHost,
    session: &Id,
    checkpoint: &Checkpoint,
    project: &Path,
    clone: &Path,
) -> Result<(i32, PathBuf, String), CliError> {
    let parent = clone.parent().unwrap_or(clone).to_owned();
    let from = project.display().to_string();
    git(&parent, &["clone", "--quiet", "--no-hardlinks", "--", &from, &clone.display().to_string()])?;
    let credentials = host.credentials(Role::Verifier);
    let (client, _events) = AxpClient::connect(&credentials, ConnectOptions::default()).await?;
    let bundle = download(&client, session, checkpoint).await?;
    client.close().await;
    let (checkpoint, clone) = (checkpoint.clone(), clone.to_owned());
    let restored = tokio::task::spawn_blocking(move || {
        let repository = Repository::discover(&clone)?;
        let request = RestoreRequest {
            bundle: Some(BundleFile { path: bundle.path(), sha256: &checkpoint.bundle.sha256 }),
            base: &checkpoint.base_commit,
            head: &checkpoint.head_commit,
            into: "verify",
        };
        restore(&repository, &request, &mut |_| {})
    });
    let restored = restored
        .await
        .map_err(|e| CliError::failed(format!("the restore ended early: {e}")))?
        .map_err(|e| CliError::failed(e.to_string()))?;
    let (code, output) = run_test(restored.path())?;
    Ok((code, restored.path().to_owned(), output))
}
