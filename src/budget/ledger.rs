//! The donor's own account of a grant: append-only, checksummed, synced before a turn is prompted.
//!
//! A line is `CHECKSUM JSON`. A torn last line is what a crash leaves and is cut off; any other damage stops, since
//! guessing low would spend the donor's money.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use axp_protocol::canonical::sha256_hex;
use axp_protocol::shape::Allowance;
use serde::{Deserialize, Serialize};

/// Largest ledger read, bytes: far beyond any honest one.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// Why a ledger cannot be used. No turn may be prompted then.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The file system said no.
    #[error("ledger {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// A line that is not the last one does not read back.
    #[error("ledger {path} is damaged at line {line}; what was spent cannot be known from it")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Counted from one.
        line: usize,
    },
    /// Another process uses it.
    #[error("ledger {path} is in use by another axp process")]
    InUse {
        /// The file.
        path: PathBuf,
    },
}

/// What a ledger is the account of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Account {
    /// Host URL.
    pub host: String,
    /// Repository name.
    pub repository: String,
    /// Session ID.
    pub session: String,
    /// Grant ID.
    pub grant: String,
}

impl Account {
    /// File name: the account's hash, so that nothing in it can lead out of the folder.
    pub(super) fn file_name(&self) -> String {
        let parts =
            [&self.host, &self.repository, &self.session, &self.grant].map(|s| format!("{}:{s}", s.len()));
        format!("{}.ledger", &sha256_hex(parts.concat().as_bytes())[..32])
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
enum Record {
    Opened {
        account: Account,
        limit: Allowance,
    },
    Limit {
        limit: Allowance,
    },
    Reserved {
        turn: String,
        ceiling: Allowance,
    },
    Settled {
        turn: String,
        charge: Allowance,
    },
    /// The turn was never prompted.
    Withdrawn {
        turn: String,
    },
}

/// What the ledger adds up to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spending {
    /// The donor's limit.
    pub limit: Allowance,
    /// Settled turns, and in full those of unknown outcome.
    pub spent: Allowance,
    /// Turns without a known outcome.
    pub open: BTreeMap<String, Allowance>,
}

/// A ledger as somebody finds it who does not hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// What it is the account of.
    pub account: Account,
    /// What it adds up to.
    pub spending: Spending,
    /// Whether a park holds it now.
    pub in_use: bool,
    /// When it was last written.
    pub changed: std::time::SystemTime,
}

/// An open ledger, held by one process.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    file: File,
    settled: Allowance,
    limit: Allowance,
    open: BTreeMap<String, Allowance>,
    closed: std::collections::BTreeSet<String>,
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // A process that is just being started has the file open too, until it runs its own program: closing ours
        // would not free the lock yet.
        let _ = self.file.unlock();
    }
}

impl Ledger {
    /// Opens the account's ledger in `folder`, making it when there is none, with `limit` from now on.
    ///
    /// # Errors
    /// When it is damaged, in use, or cannot be written.
    pub fn open(folder: &Path, account: &Account, limit: Allowance) -> Result<Self, LedgerError> {
        let path = folder.join(account.file_name());
        let io = |source| LedgerError::Io { path: path.clone(), source };
        create_private_folder(folder).map_err(io)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(LedgerError::InUse { path }),
            Err(std::fs::TryLockError::Error(e)) => return Err(io(e)),
        }
        let mut text = Vec::new();
        (&file).take(MAX_BYTES).read_to_end(&mut text).map_err(io)?;
        let (records, whole) =
            parse(&text).map_err(|line| LedgerError::Damaged { path: path.clone(), line })?;
        file.set_len(whole as u64).map_err(io)?;
        file.seek(SeekFrom::End(0)).map_err(io)?;
        let mut ledger = Self::empty(&path, file);
        let fresh = records.is_empty();
        for record in records {
            ledger.apply(record);
        }
        if fresh {
            ledger.append(Record::Opened { account: account.clone(), limit })?;
            // The file's own name must survive a crash too.
            File::open(folder).and_then(|f| f.sync_all()).map_err(io)?;
        } else if ledger.limit != limit {
            ledger.append(Record::Limit { limit })?;
        }
        Ok(ledger)
    }

    /// Reads every ledger of a folder without changing any. Those that cannot be read are named with why.
    ///
    /// # Errors
    /// When the folder cannot be read; one that is not there has none.
    pub fn list(folder: &Path) -> Result<Vec<Result<Summary, LedgerError>>, LedgerError> {
        let io = |source| LedgerError::Io { path: folder.to_owned(), source };
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
            Err(error) => return Err(io(error)),
        };
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.map_err(io)?.path();
            if path.extension().is_some_and(|e| e == "ledger") {
                paths.push(path);
            }
        }
        paths.sort();
        Ok(paths.iter().map(|path| Self::summary(path)).collect())
    }

    fn summary(path: &Path) -> Result<Summary, LedgerError> {
        let io = |source| LedgerError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        let changed = file.metadata().and_then(|m| m.modified()).map_err(io)?;
        // A park holds its ledger for as long as it lives. A lock taken here is in nobody's way.
        let in_use = matches!(file.try_lock_shared(), Err(std::fs::TryLockError::WouldBlock));
        let _ = file.unlock();
        let mut ledger = Self::empty(path, file);
        let mut text = Vec::new();
        (&ledger.file).take(MAX_BYTES).read_to_end(&mut text).map_err(io)?;
        let (records, _) =
            parse(&text).map_err(|line| LedgerError::Damaged { path: path.to_owned(), line })?;
        let Some(Record::Opened { account, .. }) = records.first().cloned() else {
            return Err(LedgerError::Damaged { path: path.to_owned(), line: 1 });
        };
        for record in records {
            ledger.apply(record);
        }
        Ok(Summary { account, spending: ledger.spending(), in_use, changed })
    }

    fn empty(path: &Path, file: File) -> Self {
        Self {
            path: path.to_owned(),
            file,
            settled: Allowance::default(),
            limit: Allowance::default(),
            open: BTreeMap::new(),
            closed: Default::default(),
        }
    }

    /// What it adds up to.
    pub fn spending(&self) -> Spending {
        let spent = self.open.values().fold(self.settled, |sum, ceiling| sum.plus(ceiling));
        Spending { limit: self.limit, spent, open: self.open.clone() }
    }

    /// Changes the donor's limit.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn set_limit(&mut self, limit: Allowance) -> Result<(), LedgerError> {
        if limit == self.limit {
            return Ok(());
        }
        self.append(Record::Limit { limit })
    }

    /// Writes a turn down before it is prompted; when this returns, a crash leaves it counted in full.
    ///
    /// # Errors
    /// When it cannot be written: the turn must not be prompted then.
    pub fn reserve(&mut self, turn: &str, ceiling: Allowance) -> Result<(), LedgerError> {
        self.append(Record::Reserved { turn: turn.to_owned(), ceiling })
    }

    /// Writes down what a turn used. Again, or for a turn that was not reserved, it changes nothing.
    ///
    /// # Errors
    /// When it cannot be written; the turn then counts in full.
    pub fn settle(&mut self, turn: &str, charge: Allowance) -> Result<(), LedgerError> {
        if !self.open.contains_key(turn) {
            return Ok(());
        }
        self.append(Record::Settled { turn: turn.to_owned(), charge })
    }

    /// Takes back a reservation whose turn was never prompted.
    ///
    /// # Errors
    /// When it cannot be written; the turn then counts in full.
    pub fn withdraw(&mut self, turn: &str) -> Result<(), LedgerError> {
        if !self.open.contains_key(turn) {
            return Ok(());
        }
        self.append(Record::Withdrawn { turn: turn.to_owned() })
    }

    fn append(&mut self, record: Record) -> Result<(), LedgerError> {
        let io = |source| LedgerError::Io { path: self.path.clone(), source };
        let json = serde_json::to_string(&record).map_err(|e| io(e.into()))?;
        let line = format!("{} {json}\n", checksum(&json));
        self.file.write_all(line.as_bytes()).map_err(io)?;
        self.file.sync_data().map_err(io)?;
        self.apply(record);
        Ok(())
    }

    fn apply(&mut self, record: Record) {
        match record {
            Record::Opened { limit, .. } | Record::Limit { limit } => self.limit = limit,
            Record::Reserved { turn, ceiling } => {
                // A turn is prompted once; a second reservation of it is the same money.
                if !self.closed.contains(&turn) {
                    self.open.insert(turn, ceiling);
                }
            }
            Record::Settled { turn, charge } => {
                if self.open.remove(&turn).is_some() {
                    self.settled = self.settled.plus(&charge);
                    self.closed.insert(turn);
                }
            }
            Record::Withdrawn { turn } => {
                self.open.remove(&turn);
            }
        }
    }
}

fn checksum(json: &str) -> String {
    sha256_hex(json.as_bytes())[..16].to_owned()
}

/// Records, and how many bytes of the text are whole; the number of a damaged line otherwise.
fn parse(text: &[u8]) -> Result<(Vec<Record>, usize), usize> {
    let mut records = Vec::new();
    let mut whole = 0;
    let mut lines = text.split_inclusive(|b| *b == b'\n').enumerate().peekable();
    while let Some((i, line)) = lines.next() {
        let record = line.strip_suffix(b"\n").and_then(|line| {
            let (sum, json) = std::str::from_utf8(line).ok()?.split_once(' ')?;
            (sum == checksum(json)).then(|| serde_json::from_str(json).ok()).flatten()
        });
        match record {
            Some(record) => {
                records.push(record);
                whole += line.len();
            }
            // A write that a crash cut short is last, and has no end of line.
            None if lines.peek().is_none() && !line.ends_with(b"\n") => break,
            None => return Err(i + 1),
        }
    }
    Ok((records, whole))
}

/// Makes a folder that nobody else may enter.
pub(super) fn create_private_folder(folder: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn account() -> Account {
        Account {
            host: "wss://h/axp".into(),
            repository: "o/r".into(),
            session: "s".into(),
            grant: "g".into(),
        }
    }

    fn amount(tokens: u64) -> Allowance {
        Allowance { tokens, cost_micros: tokens * 10, turns: 1 }
    }

    fn only_file(folder: &Path) -> PathBuf {
        std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path()
    }

    #[test]
    fn a_turn_of_unknown_outcome_counts_in_full() {
        let folder = tempfile::tempdir().unwrap();
        {
            let mut ledger = Ledger::open(folder.path(), &account(), amount(100)).unwrap();
            ledger.reserve("t1", amount(30)).unwrap();
            ledger.settle("t1", amount(12)).unwrap();
            ledger.settle("t1", amount(99)).unwrap();
            ledger.reserve("t2", amount(40)).unwrap();
            ledger.reserve("t3", amount(7)).unwrap();
            ledger.withdraw("t3").unwrap();
        }
        let ledger = Ledger::open(folder.path(), &account(), amount(100)).unwrap();
        let spending = ledger.spending();
        assert_eq!(spending.spent, Allowance { tokens: 52, cost_micros: 520, turns: 2 });
        assert_eq!(spending.open.keys().collect::<Vec<_>>(), ["t2"]);
    }

    #[test]
    fn a_torn_last_record_is_cut_off_and_other_damage_stops() {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(folder.path(), &account(), amount(100)).unwrap();
        ledger.reserve("t1", amount(30)).unwrap();
        ledger.settle("t1", amount(12)).unwrap();
        drop(ledger);
        let path = only_file(folder.path());
        let whole = std::fs::read(&path).unwrap();

        std::fs::write(&path, &whole[..whole.len() - 5]).unwrap();
        let mut ledger = Ledger::open(folder.path(), &account(), amount(100)).unwrap();
        assert_eq!(
            ledger.spending().spent,
            amount(30),
            "the settlement was torn, so the turn counts in full"
        );
        ledger.settle("t1", amount(12)).unwrap();
        drop(ledger);
        assert_eq!(std::fs::read(&path).unwrap(), whole);

        let mut damaged = whole.clone();
        damaged[20] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        let error = Ledger::open(folder.path(), &account(), amount(100)).unwrap_err();
        assert!(matches!(error, LedgerError::Damaged { line: 1, .. }), "{error}");
    }

    #[test]
    fn all_are_listed_with_who_holds_them() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Ledger::list(&folder.path().join("none")).unwrap().len(), 0);
        let mut held = Ledger::open(folder.path(), &account(), amount(9)).unwrap();
        held.reserve("t", amount(3)).unwrap();
        drop(
            Ledger::open(folder.path(), &Account { grant: "other".into(), ..account() }, amount(1)).unwrap(),
        );
        std::fs::write(folder.path().join("bad.ledger"), "nonsense\n").unwrap();
        let all = Ledger::list(folder.path()).unwrap();
        assert_eq!(all.len(), 3);
        let good: Vec<_> = all.iter().filter_map(|summary| summary.as_ref().ok()).collect();
        let ours = good.iter().find(|s| s.account == account()).unwrap();
        assert_eq!((ours.in_use, ours.spending.spent), (true, amount(3)));
        assert!(good.iter().any(|s| s.account.grant == "other" && !s.in_use));
        assert_eq!(good.len(), 2, "the damaged one is named with why");
        // Looking at it took nothing from its holder.
        held.settle("t", amount(1)).unwrap();
    }

    #[test]
    fn one_process_holds_it() {
        let folder = tempfile::tempdir().unwrap();
        let held = Ledger::open(folder.path(), &account(), amount(1)).unwrap();
        assert!(matches!(Ledger::open(folder.path(), &account(), amount(1)), Err(LedgerError::InUse { .. })));
        drop(held);
        assert!(Ledger::open(folder.path(), &account(), amount(2)).is_ok());
    }

    #[test]
    fn it_is_free_once_it_is_dropped_whoever_else_has_the_file_open() {
        let folder = tempfile::tempdir().unwrap();
        let held = Ledger::open(folder.path(), &account(), amount(1)).unwrap();
        // As a process does that is being started.
        let _copy = held.file.try_clone().unwrap();
        drop(held);
        assert!(Ledger::open(folder.path(), &account(), amount(2)).is_ok());
    }

    #[test]
    #[cfg(unix)]
    fn nobody_else_reads_it() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        drop(Ledger::open(folder.path(), &account(), amount(1)).unwrap());
        let mode = std::fs::metadata(only_file(folder.path())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    proptest! {
        /// Cut anywhere, a ledger reads as one of its own earlier states, and never as less than what was open then.
        #[test]
        fn any_cut_is_an_earlier_state(cut in 0usize..400) {
            let folder = tempfile::tempdir().unwrap();
            let mut ledger = Ledger::open(folder.path(), &account(), amount(100)).unwrap();
            let mut states = vec![Allowance::default(), ledger.spending().spent];
            for (turn, charge) in [("a", 1), ("b", 2)] {
                ledger.reserve(turn, amount(9)).unwrap();
                states.push(ledger.spending().spent);
                ledger.settle(turn, amount(charge)).unwrap();
                states.push(ledger.spending().spent);
            }
            drop(ledger);
            let path = only_file(folder.path());
            let whole = std::fs::read(&path).unwrap();
            std::fs::write(&path, &whole[..cut.min(whole.len())]).unwrap();
            let ledger = Ledger::open(folder.path(), &account(), amount(100)).unwrap();
            prop_assert!(states.contains(&ledger.spending().spent));
        }
    }
}
