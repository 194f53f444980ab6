//! The agent's process: how it is started, and how it ends with everything it has started.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::env::{find_program, for_agent};
use super::error::AgentError;
use super::guard::{TERM_GRACE, guard_args};
use super::stderr::Tail;
use super::tree::{Tree, adopt_orphans};

/// How long a guard has to end its tree after that tree had its own time.
const GUARD_GRACE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);
const STDERR_GRACE: Duration = Duration::from_millis(500);
/// How often a tree without a guard is looked at, so that its processes are known before they lose their parents.
const WATCH: Duration = Duration::from_millis(500);

/// How an agent is started.
#[derive(Clone, Debug)]
pub struct AgentSpec {
    /// The program: a path, or a name to be found on PATH.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its working folder, and that of its session. Must be absolute.
    pub cwd: PathBuf,
    /// Names of environment variables it gets beside the usual ones.
    pub agent_env: Vec<String>,
    /// The authentication method to call before the session starts.
    pub auth_method: Option<String>,
    /// How long it may take to answer `initialize`.
    pub start_timeout: Duration,
    /// The axp program, to be run as the agent's guard (see [`guard_main`](super::guard_main)). Without one an agent
    /// survives an axp that is killed, and a daemon it has started may survive the agent.
    pub guard: Option<PathBuf>,
}

impl AgentSpec {
    /// The usual time for the answer to `initialize`.
    pub const START_TIMEOUT: Duration = Duration::from_secs(15);
    /// The time for agents that a package runner may have to download first.
    pub const RUNNER_START_TIMEOUT: Duration = Duration::from_secs(60);

    /// An agent with the usual settings; one that is started by `npx` or the like gets more time.
    pub fn new(program: impl Into<OsString>, args: Vec<OsString>, cwd: impl Into<PathBuf>) -> Self {
        let program = program.into();
        let name = PathBuf::from(&program);
        let runner = name.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let start_timeout = match runner {
            "npx" | "npm" | "pnpm" | "pnpx" | "yarn" | "bunx" | "bun" | "uvx" | "uv" | "pipx" | "deno" => {
                Self::RUNNER_START_TIMEOUT
            }
            _ => Self::START_TIMEOUT,
        };
        Self {
            program,
            args,
            cwd: cwd.into(),
            agent_env: Vec::new(),
            auth_method: None,
            start_timeout,
            guard: None,
        }
    }
}

/// A running process tree. Dropping it kills it.
pub(super) struct Process {
    tree: Mutex<Tree>,
    guarded: bool,
    exit: watch::Receiver<Option<ExitStatus>>,
    tail: Tail,
    tasks: Vec<JoinHandle<()>>,
}

/// A program from outside, to be run under a guard, with an environment that is built from nothing: what every program
/// needs, and the variables of this process that `env` names. Without a guard, this process is the one to end its tree.
///
/// # Errors
/// When there is no such program, or a name in `env` is not to be passed on.
pub fn contained(program: &OsStr, env: &[String], guard: Option<&Path>) -> Result<Command, AgentError> {
    let environment = for_agent(std::env::vars_os(), env)?;
    let program = find_program(program, std::env::var_os("PATH").as_deref())?;
    let mut command = match guard {
        Some(guard) => {
            let mut command = Command::new(guard);
            command.args(guard_args()).arg(&program);
            command
        }
        None => {
            adopt_orphans();
            Command::new(&program)
        }
    };
    command.env_clear().envs(environment);
    Ok(command)
}

impl Process {
    /// Starts the agent in a process group of its own, with an environment that is built from nothing.
    pub(super) fn spawn(spec: &AgentSpec) -> Result<(Self, ChildStdin, ChildStdout), AgentError> {
        let failed = |reason: String| AgentError::Spawn {
            program: spec.program.to_string_lossy().into_owned(),
            reason,
        };
        if !spec.cwd.is_dir() {
            return Err(failed(format!("its working folder {} does not exist", spec.cwd.display())));
        }
        let mut command = contained(&spec.program, &spec.agent_env, spec.guard.as_deref())?;
        let mut child = command
            .args(&spec.args)
            .current_dir(&spec.cwd)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            // A guard ends by itself, with its tree; killed, it could not.
            .kill_on_drop(spec.guard.is_none())
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let (Some(stdin), Some(stdout), Some(stderr), Some(pid)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take(), child.id())
        else {
            return Err(failed("it has no standard streams".to_owned()));
        };
        let tree = Tree::of_child(pid, spec.guard.is_some());
        let tail = Tail::default();
        let (told, exit) = watch::channel(None);
        let waiter = tokio::spawn(async move {
            if let Ok(status) = child.wait().await {
                let _ = told.send(Some(status));
            }
        });
        let tasks = vec![waiter, tokio::spawn(tail.clone().drain(stderr))];
        Ok((Self { tree: Mutex::new(tree), guarded: spec.guard.is_some(), exit, tail, tasks }, stdin, stdout))
    }

    /// Keeps an eye on a tree without a guard. Runs until it is dropped.
    pub(super) async fn watch(&self) {
        if self.guarded {
            return std::future::pending().await;
        }
        loop {
            self.with_tree(|tree| tree.living());
            sleep(WATCH).await;
        }
    }

    pub(super) fn exit(&self) -> Exit {
        Exit { status: self.exit.clone(), tail: self.tail.clone() }
    }

    pub(super) fn stderr(&self) -> String {
        self.tail.text()
    }

    /// Ends the whole tree: SIGTERM, 1.5 s, SIGKILL. Returns when nothing of it is left.
    pub(super) async fn end(&self) {
        let mut gone = self.exit.clone();
        if self.guarded {
            self.with_tree(|tree| tree.signal_root(Signal::TERM));
            let _ = timeout(TERM_GRACE + GUARD_GRACE, gone.wait_for(Option::is_some)).await;
        } else if self.with_tree(Tree::terminate) {
            let deadline = Instant::now() + TERM_GRACE;
            while !self.with_tree(|tree| tree.living()).is_empty() && Instant::now() < deadline {
                sleep(LOOK).await;
            }
        }
        while self.with_tree(Tree::kill) {
            sleep(LOOK).await;
        }
        self.with_tree(|tree| tree.signal_root(Signal::KILL));
        let _ = timeout(GUARD_GRACE, gone.wait_for(Option::is_some)).await;
    }

    /// Kills the whole tree without waiting for it.
    pub(super) fn kill_now(&self) {
        // Whatever is being started while we look is there the next time.
        for _ in 0..3 {
            if !self.with_tree(Tree::kill) {
                break;
            }
        }
        // A guard that has nothing to guard any more, or sees to what we have missed.
        self.with_tree(|tree| tree.signal_root(Signal::TERM));
    }

    fn with_tree<T>(&self, act: impl FnOnce(&mut Tree) -> T) -> T {
        act(&mut self.tree.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.exit.borrow().is_none() || !self.with_tree(|tree| tree.living()).is_empty() {
            self.kill_now();
        }
        if self.exit.borrow().is_some() || !self.guarded {
            self.tasks.iter().for_each(JoinHandle::abort);
        }
    }
}

/// Tells how the process ended. Clones are cheap and need no process to be around.
#[derive(Clone)]
pub(super) struct Exit {
    status: watch::Receiver<Option<ExitStatus>>,
    tail: Tail,
}

impl Exit {
    /// Waits for the end of the process.
    pub(super) async fn ended(mut self) -> AgentError {
        let status = self.status.wait_for(Option::is_some).await.ok().and_then(|status| *status);
        let status = status.map_or_else(|| "was stopped".to_owned(), describe);
        // What it said last may still be in the pipe, which a child of its may hold open for ever.
        let _ = timeout(STDERR_GRACE, self.tail.complete()).await;
        AgentError::Exited { status, stderr: self.tail.text() }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}
