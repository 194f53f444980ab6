//! The processes an agent has started, found through `/proc`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};

/// The roots of all trees in this process, so that none takes another's processes for its own.
static ROOTS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

#[derive(Clone, Copy, Debug)]
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    /// With the pid it names a process for good; a pid alone may have been given to another one.
    started: u64,
    zombie: bool,
}

/// A process, its descendants, and what is left of them when those in between are gone.
///
/// Orphans come to us because we are their subreaper. One is known by having been seen before, or by its process
/// group; under a guard (see [`guard_main`](super::guard_main)) there are none, because the guard keeps them.
#[derive(Debug)]
pub(super) struct Tree {
    root: i32,
    keep_root: bool,
    reaps: bool,
    seen: HashMap<i32, u64>,
    groups: HashSet<i32>,
}

/// Makes orphaned descendants ours instead of init's. Cheap, and the same each time.
pub(super) fn adopt_orphans() {
    if let Err(error) = set_child_subreaper(Some(getpid())) {
        tracing::debug!(%error, "orphans of the agent will not come to us");
    }
}

impl Tree {
    /// The tree of a child of ours that leads its own process group. With `keep_root` the root is only signalled by
    /// [`signal_root`](Self::signal_root).
    pub(super) fn of_child(root: u32, keep_root: bool) -> Self {
        let root = i32::try_from(root).unwrap_or_default();
        lock_roots().insert(root);
        Self::new(root, keep_root, true)
    }

    /// The tree a guard keeps: everything below itself. It waits for its children on its own.
    pub(super) fn under_guard(_agent: u32) -> Self {
        Self::new(getpid().as_raw_nonzero().get(), true, false)
    }

    fn new(root: i32, keep_root: bool, reaps: bool) -> Self {
        let started = find(root).map_or(0, |process| process.started);
        Self { root, keep_root, reaps, seen: HashMap::from([(root, started)]), groups: HashSet::from([root]) }
    }

    /// Looks who is there; returns the living ones that may be signalled.
    pub(super) fn living(&mut self) -> Vec<i32> {
        let all = processes();
        let own = getpid().as_raw_nonzero().get();
        let others = lock_roots().clone();
        let mut members: HashMap<i32, Process> = HashMap::new();
        let mut queue: Vec<Process> = all
            .iter()
            .filter(|p| {
                let known = self.seen.get(&p.pid) == Some(&p.started);
                let adopted = self.reaps
                    && p.parent == own
                    && self.groups.contains(&p.group)
                    && !others.contains(&p.pid);
                known || adopted
            })
            .copied()
            .collect();
        while let Some(next) = queue.pop() {
            if members.insert(next.pid, next).is_none() {
                queue.extend(all.iter().filter(|p| p.parent == next.pid));
            }
        }
        members.remove(&own);
        for member in members.values().filter(|p| p.pid != self.root) {
            self.seen.insert(member.pid, member.started);
            self.groups.insert(member.group);
            if self.reaps && member.zombie && member.parent == own {
                // An adopted one: nobody else waits for it.
                reap(member.pid);
            }
        }
        self.groups.remove(&all.iter().find(|p| p.pid == own).map_or(0, |p| p.group));
        members
            .values()
            .filter(|p| !p.zombie && (p.pid != self.root || !self.keep_root))
            .map(|p| p.pid)
            .collect()
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
        if find(self.root).is_some_and(|process| self.seen.get(&self.root) == Some(&process.started)) {
            send(self.root, signal);
        }
    }

    fn signal(&mut self, signal: Signal) -> bool {
        let living = self.living();
        living.iter().for_each(|pid| send(*pid, signal));
        !living.is_empty()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        lock_roots().remove(&self.root);
    }
}

fn lock_roots() -> std::sync::MutexGuard<'static, BTreeSet<i32>> {
    ROOTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

fn reap(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

fn processes() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(find)
        .collect()
}

fn find(pid: i32) -> Option<Process> {
    parse_stat(pid, &std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads `/proc/PID/stat`. The name in parentheses may hold anything, so the fields are counted from its end.
fn parse_stat(pid: i32, stat: &[u8]) -> Option<Process> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields: Vec<&str> =
        std::str::from_utf8(&stat[name_end + 1..]).ok()?.split_ascii_whitespace().collect();
    Some(Process {
        pid,
        zombie: matches!(*fields.first()?, "Z" | "X"),
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let stat = b"7 (a) Z 1 (b)) S 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23";
        let process = parse_stat(7, stat).unwrap();
        assert_eq!((process.parent, process.group, process.started, process.zombie), (3, 4, 21, false));
        assert!(parse_stat(7, b"7 (short) Z 1").is_none());
        assert!(parse_stat(7, b"").is_none());
    }

    #[test]
    fn we_find_ourselves() {
        let own = getpid().as_raw_nonzero().get();
        assert!(processes().iter().any(|process| process.pid == own && !process.zombie));
    }
}
