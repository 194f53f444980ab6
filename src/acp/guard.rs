//! The guard: a small process between axp and an agent, so that no agent outlives its axp.
//!
//! It is the subreaper of the agent's tree, so nothing the agent starts escapes it by losing its parent or by calling
//! `setsid`. It ends the whole tree when the agent ends, when axp is gone for whatever reason, and on SIGTERM. Its
//! standard streams are the agent's own.

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, WaitOptions, getpid, getppid, kill_process, wait};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep, timeout};

use super::tree::{Tree, adopt_orphans};

/// How long a process has between SIGTERM and SIGKILL.
pub(super) const TERM_GRACE: Duration = Duration::from_millis(1500);
const LOOK: Duration = Duration::from_millis(20);
/// How often to look for the parent where its end is not told.
const LOOK_FOR_PARENT: Duration = Duration::from_millis(250);

/// The hidden subcommand that runs a guard.
pub const GUARD_COMMAND: &str = "__agent-guard";

/// The guard's arguments in front of the agent's program: the subcommand, who its parent is, and `--`.
pub(super) fn guard_args() -> [OsString; 3] {
    [GUARD_COMMAND.into(), getpid().as_raw_nonzero().get().to_string().into(), "--".into()]
}

/// Runs the guard with what follows the subcommand: `PARENT-PID -- PROGRAM [ARGUMENT…]`.
///
/// Exits as the agent did: with its status, or by the same signal, and with 127 if it could not be started.
pub fn guard_main(args: &[OsString]) -> ExitCode {
    let [parent, dashes, program, rest @ ..] = args else { return refuse("it is started by axp only") };
    let parent = parent.to_str().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    let (Some(parent), true) = (parent, dashes == "--") else { return refuse("it is started by axp only") };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return refuse("no event loop");
    };
    runtime.block_on(async {
        match Guard::start(parent, Path::new(program), rest) {
            Ok(guard) => exit_like(guard.run().await),
            Err(error) => refuse(&format!("cannot start {}: {error}", Path::new(program).display())),
        }
    })
}

fn refuse(reason: &str) -> ExitCode {
    eprintln!("agent guard: {reason}");
    ExitCode::from(127)
}

struct Guard {
    parent: Pid,
    agent: Pid,
    status: Option<ExitStatus>,
    tree: Tree,
    child_ended: Signal,
    asked_to_end: [Signal; 3],
}

impl Guard {
    fn start(parent: Pid, program: &Path, args: &[OsString]) -> std::io::Result<Self> {
        if getppid() != Some(parent) {
            return Err(std::io::Error::other("its axp is gone"));
        }
        adopt_orphans();
        // Listening begins before the agent, so that none of its signals is missed.
        let child_ended = signal(SignalKind::child())?;
        let asked_to_end = [
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        ];
        // Its own group: an agent that signals its group means its own processes.
        let child = Command::new(program).args(args).process_group(0).spawn()?;
        let agent = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let agent = agent.ok_or_else(|| std::io::Error::other("no process ID"))?;
        let tree = Tree::under_guard(child.id());
        Ok(Self { parent, agent, status: None, tree, child_ended, asked_to_end })
    }

    /// Waits until there is a reason to end, ends the tree, and returns how the agent ended.
    async fn run(mut self) -> Option<ExitStatus> {
        let parent = self.parent;
        let mut orphaned = std::pin::pin!(parent_gone(parent));
        loop {
            self.reap();
            if self.status.is_some() {
                break;
            }
            let [term, int, hup] = &mut self.asked_to_end;
            tokio::select! {
                _ = self.child_ended.recv() => {}
                _ = term.recv() => break,
                _ = int.recv() => break,
                _ = hup.recv() => break,
                () = &mut orphaned => break,
            }
        }
        self.end_tree().await;
        self.status
    }

    async fn end_tree(&mut self) {
        if self.tree.terminate() {
            let deadline = Instant::now() + TERM_GRACE;
            while !self.tree.living().is_empty() && Instant::now() < deadline {
                self.wait_a_little().await;
            }
        }
        while self.tree.kill() {
            self.wait_a_little().await;
        }
        self.reap();
    }

    /// Until a child has ended, at most the time between two looks.
    async fn wait_a_little(&mut self) {
        let _ = timeout(LOOK, self.child_ended.recv()).await;
        self.reap();
    }

    /// Takes leave of every child that has ended: the agent's status is kept, adopted orphans have no one else.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == self.agent {
                self.status = Some(ExitStatus::from_raw(status.as_raw()));
            }
        }
    }
}

/// Ends when `parent` is no longer our parent. The kernel's signal says when to look (it also comes when a mere thread
/// of the parent ends); the clock does where there is no such signal.
async fn parent_gone(parent: Pid) {
    let told = signal(SignalKind::user_defined1());
    #[cfg(target_os = "linux")]
    if told.is_ok() {
        let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::USR1));
    }
    let mut told = told.ok();
    while getppid() == Some(parent) {
        match &mut told {
            Some(told) => drop(timeout(LOOK_FOR_PARENT, told.recv()).await),
            None => sleep(LOOK_FOR_PARENT).await,
        }
    }
}

fn exit_like(status: Option<ExitStatus>) -> ExitCode {
    let Some(status) = status else { return ExitCode::from(1) };
    if let Some(signal) = status.signal() {
        // Dying the same way tells axp more than a number would. Signals we listen to do not end us.
        if let Some(signal) = rustix::process::Signal::from_named_raw(signal) {
            let _ = kill_process(getpid(), signal);
        }
        return ExitCode::from(u8::try_from(128 + signal).unwrap_or(1));
    }
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
