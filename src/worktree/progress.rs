//! Progress of long Git operations, read from what git prints on stderr.

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// Files are written into a new worktree.
    Checkout,
    /// The worktree is read and its changes are recorded.
    Stage,
    /// Objects are packed into a bundle.
    Bundle,
    /// Objects of a bundle are checked and taken in.
    Restore,
    /// Commits go to a remote.
    Push,
}

/// One step of progress. A phase begins with `done` 0; git may count several kinds of items in one phase, each with a
/// total of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Progress {
    /// What is being done.
    pub phase: Phase,
    /// How many items are finished.
    pub done: u64,
    /// How many there are, when that is known.
    pub total: Option<u64>,
}

impl Progress {
    pub(super) fn start(phase: Phase) -> Self {
        Self { phase, done: 0, total: None }
    }
}

/// The counts in a line such as `Updating files:  50% (4/8)`.
pub(super) fn parse_counts(line: &str) -> Option<(u64, u64)> {
    let (_, counts) = line.split_once("% (")?;
    let (counts, _) = counts.split_once(')')?;
    let (done, total) = counts.split_once('/')?;
    Some((done.parse().ok()?, total.parse().ok()?))
}

/// Splits what git writes to stderr into progress and messages, and keeps the last messages.
pub(super) struct StderrReader {
    line: Vec<u8>,
    messages: String,
}

/// Enough for git's own words; a filter that floods stderr must not fill memory.
const KEEP_LINE: usize = 4 * 1024;
const KEEP_MESSAGES: usize = 8 * 1024;

impl StderrReader {
    pub(super) fn new() -> Self {
        Self { line: Vec::new(), messages: String::new() }
    }

    /// Takes the next bytes and reports the counts of each finished progress line.
    pub(super) fn feed(&mut self, bytes: &[u8], mut report: impl FnMut(u64, u64)) {
        for &byte in bytes {
            if byte == b'\r' || byte == b'\n' {
                self.end_line(&mut report);
            } else if self.line.len() < KEEP_LINE {
                self.line.push(byte);
            }
        }
    }

    /// The messages so far, without progress lines.
    pub(super) fn finish(mut self) -> String {
        self.end_line(&mut |_, _| {});
        self.messages
    }

    fn end_line(&mut self, report: &mut impl FnMut(u64, u64)) {
        let line = String::from_utf8_lossy(&self.line);
        if let Some((done, total)) = parse_counts(&line) {
            report(done, total);
        } else if !line.trim().is_empty() {
            self.messages.push_str(line.trim_end());
            self.messages.push('\n');
            if self.messages.len() > KEEP_MESSAGES {
                // MSRV is below `str::ceil_char_boundary`.
                let excess = self.messages.len() - KEEP_MESSAGES;
                let cut = (excess..).find(|&at| self.messages.is_char_boundary(at)).unwrap_or(excess);
                self.messages.drain(..cut);
            }
        }
        self.line.clear();
    }
}
