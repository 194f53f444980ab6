//! When something expires: a heap by deadline, so that waiting costs nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use axp_protocol::scalar::Id;

/// What expires.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Expiry {
    /// The lease of this session.
    Lease(Id),
    /// The registration of this executor.
    Executor(Id),
}

/// Deadlines in ms since the Unix epoch. An entry that was put off stays in the heap until its first time and is
/// then found not due.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    heap: BinaryHeap<Reverse<(u64, Expiry)>>,
}

impl Deadlines {
    pub(crate) fn push(&mut self, at: u64, what: Expiry) {
        self.heap.push(Reverse((at, what)));
    }

    /// The next deadline.
    pub(crate) fn next(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes the next entry that is due at `now`.
    pub(crate) fn due(&mut self, now: u64) -> Option<Expiry> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, what))| what)
    }
}
