//! The processes an agent has started, as far as its process group goes: there is no `/proc` here.

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};

/// A process and its process group.
#[derive(Debug)]
pub(super) struct Tree {
    root: Option<Pid>,
    keep_root: bool,
}

/// Orphans cannot be adopted here.
pub(super) fn adopt_orphans() {}

impl Tree {
    /// The group of a child of ours that leads it. With `keep_root` the root is only signalled by
    /// [`signal_root`](Self::signal_root), and its agent, which leads another group, is left to it.
    pub(super) fn of_child(root: u32, keep_root: bool) -> Self {
        Self { root: i32::try_from(root).ok().and_then(Pid::from_raw), keep_root }
    }

    /// The tree a guard keeps: the group of its agent.
    pub(super) fn under_guard(agent: u32) -> Self {
        Self::of_child(agent, false)
    }

    /// Whether the group still has a member, as its leader's ID.
    pub(super) fn living(&mut self) -> Vec<i32> {
        let group = self.root.filter(|root| !self.keep_root && test_kill_process_group(*root).is_ok());
        group.map(|pid| pid.as_raw_nonzero().get()).into_iter().collect()
    }

    /// Asks everything to end; returns whether anything was there.
    pub(super) fn terminate(&mut self) -> bool {
        self.signal(Signal::TERM)
    }

    /// Kills everything; returns whether anything was there.
    pub(super) fn kill(&mut self) -> bool {
        self.signal(Signal::KILL)
    }

    /// Signals the root, even one that is kept.
    pub(super) fn signal_root(&self, signal: Signal) {
        if let Some(root) = self.root {
            let _ = kill_process(root, signal);
        }
    }

    fn signal(&mut self, signal: Signal) -> bool {
        let there = !self.living().is_empty();
        if let Some(root) = self.root.filter(|_| there) {
            let _ = kill_process_group(root, signal);
        }
        there
    }
}
