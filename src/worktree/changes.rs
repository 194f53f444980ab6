//! What changed between two commits, file by file.

use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;

use serde::Serialize;

use super::error::{IoContext, Result, WorktreeError};
use super::git::Git;

/// The mode of a pointer to a commit of another repository.
pub(super) const GITLINK: &str = "160000";

/// How a file changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// Its bytes changed, and perhaps its mode.
    Modified,
    /// It is gone.
    Deleted,
    /// It has another path, and perhaps other bytes.
    Renamed,
    /// Only its mode changed, such as the executable bit.
    ModeChanged,
    /// It turned into something else, such as a file into a symbolic link.
    TypeChanged,
}

/// The bytes of a file, by reference. For a symbolic link they are its target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlobBytes {
    /// Git's id of the blob.
    pub id: String,
    /// The size in bytes.
    pub size: u64,
}

/// One file that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileChange {
    /// The path after the change (before it, for a deleted file), from the top of the repository.
    pub path: String,
    /// The path before a rename.
    pub old_path: Option<String>,
    /// How the file changed.
    pub kind: ChangeKind,
    /// Git's mode before, such as `100644`; nothing when the file is new.
    pub old_mode: Option<String>,
    /// Git's mode after; nothing when the file is gone.
    pub new_mode: Option<String>,
    /// The bytes before. Nothing when there were none, or for a submodule (mode `160000`).
    pub before: Option<BlobBytes>,
    /// The bytes after. Nothing when there are none, or for a submodule (mode `160000`).
    pub after: Option<BlobBytes>,
    /// Lines added; nothing for a binary file.
    pub added: Option<u64>,
    /// Lines removed; nothing for a binary file.
    pub removed: Option<u64>,
}

/// A change as git reports it, paths still as bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RawChange {
    pub(super) path: Vec<u8>,
    pub(super) old_path: Option<Vec<u8>>,
    status: u8,
    old_mode: String,
    new_mode: String,
    old_id: String,
    new_id: String,
    /// Lines added and removed; nothing for a binary file.
    pub(super) lines: Option<(u64, u64)>,
}

/// Flags that make a diff of trees independent of configuration. The plumbing command ignores `diff.*` preferences.
pub(super) const PLAIN_DIFF: &[&str] = &[
    "diff-tree",
    "-r",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--no-relative",
    "--ignore-submodules=none",
];

/// Lists what changed from `base` to `head`, both checked ids of commits that exist.
pub(super) fn raw_changes(git: &Git, base: &str, head: &str) -> Result<Vec<RawChange>> {
    let args = ["-z", "--raw", "--numstat", "--no-abbrev", "-M", "-l1000", base, head, "--"];
    let args: Vec<&str> = PLAIN_DIFF.iter().chain(&args).copied().collect();
    let output = git.call("compare commits", &args).bytes()?;
    parse(&output).ok_or_else(|| WorktreeError::Git {
        action: "compare commits",
        detail: "its list of changes could not be read".into(),
    })
}

/// Reads `--raw --numstat -z`: all raw entries, then the line counts in the same order.
fn parse(output: &[u8]) -> Option<Vec<RawChange>> {
    let mut fields = output.split(|&byte| byte == 0).peekable();
    let mut changes = Vec::new();
    while let Some(entry) = fields.next_if(|field| field.starts_with(b":")) {
        let text = std::str::from_utf8(entry).ok()?.strip_prefix(':')?;
        let [old_mode, new_mode, old_id, new_id, status] =
            <[&str; 5]>::try_from(text.split(' ').collect::<Vec<_>>()).ok()?;
        let first = fields.next()?.to_vec();
        let status = *status.as_bytes().first()?;
        let (path, old_path) =
            if status == b'R' { (fields.next()?.to_vec(), Some(first)) } else { (first, None) };
        changes.push(RawChange {
            path,
            old_path,
            status,
            old_mode: old_mode.into(),
            new_mode: new_mode.into(),
            old_id: old_id.into(),
            new_id: new_id.into(),
            lines: None,
        });
    }
    for change in &mut changes {
        let mut columns = fields.next()?.splitn(3, |&byte| byte == b'\t');
        let (added, removed, path) = (columns.next()?, columns.next()?, columns.next()?);
        if path.is_empty() {
            // A rename has its two paths in fields of their own.
            fields.next()?;
            fields.next()?;
        }
        let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse().ok();
        change.lines = number(added).zip(number(removed));
    }
    // Git lists renames where it found them.
    changes.sort_by(|a, b| a.path.cmp(&b.path));
    // What follows the last NUL is empty; anything else was misread.
    (fields.all(<[u8]>::is_empty)).then_some(changes)
}

/// The limits of a checkpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) max_files: usize,
    pub(super) max_blob: u64,
}

/// Lists what changed, with the sizes of all blobs, and refuses what a checkpoint cannot carry.
pub(super) fn file_changes(git: &Git, base: &str, head: &str, limits: Limits) -> Result<Vec<FileChange>> {
    let raw = raw_changes(git, base, head)?;
    if raw.len() > limits.max_files {
        return Err(WorktreeError::TooManyFiles { count: raw.len(), limit: limits.max_files });
    }
    refuse_embedded(git, head, &raw)?;
    let ids: Vec<&str> = raw.iter().flat_map(RawChange::blobs).flatten().collect();
    let mut sizes = blob_sizes(git, &ids)?.into_iter();
    raw.iter()
        .map(|change| {
            let mut blob = |id: Option<&str>| {
                id.and_then(|id| Some(BlobBytes { id: id.to_owned(), size: sizes.next()? }))
            };
            let [before, after] = change.blobs().map(&mut blob);
            change.resolve(before, after, limits.max_blob)
        })
        .collect()
}

impl RawChange {
    /// The ids of the blobs before and after.
    fn blobs(&self) -> [Option<&str>; 2] {
        let blob = |mode: &str, id| (mode != "000000" && mode != GITLINK).then_some(id);
        [blob(&self.old_mode, self.old_id.as_str()), blob(&self.new_mode, self.new_id.as_str())]
    }

    fn kind(&self) -> ChangeKind {
        match self.status {
            b'A' => ChangeKind::Added,
            b'D' => ChangeKind::Deleted,
            b'R' => ChangeKind::Renamed,
            b'T' => ChangeKind::TypeChanged,
            _ if self.old_id == self.new_id => ChangeKind::ModeChanged,
            _ => ChangeKind::Modified,
        }
    }

    fn resolve(&self, before: Option<BlobBytes>, after: Option<BlobBytes>, limit: u64) -> Result<FileChange> {
        let path = utf8(&self.path)?;
        if let Some(blob) = after.iter().chain(&before).find(|blob| blob.size > limit) {
            return Err(WorktreeError::FileTooLarge { path, size: blob.size, limit });
        }
        let mode = |mode: &str| (mode != "000000").then(|| mode.to_owned());
        Ok(FileChange {
            path,
            old_path: self.old_path.as_deref().map(utf8).transpose()?,
            kind: self.kind(),
            old_mode: mode(&self.old_mode),
            new_mode: mode(&self.new_mode),
            before,
            after,
            added: self.lines.map(|(added, _)| added),
            removed: self.lines.map(|(_, removed)| removed),
        })
    }
}

fn utf8(path: &[u8]) -> Result<String> {
    String::from_utf8(path.to_vec())
        .map_err(|_| WorktreeError::NonUtf8Path { path: String::from_utf8_lossy(path).into_owned() })
}

/// A new pointer to another repository is fine when `.gitmodules` says where that repository is. Otherwise it is a
/// repository the agent made in the worktree, whose files would be lost.
fn refuse_embedded(git: &Git, head: &str, changes: &[RawChange]) -> Result<()> {
    let mut new = changes.iter().filter(|c| c.new_mode == GITLINK && c.old_mode != GITLINK).peekable();
    if new.peek().is_none() {
        return Ok(());
    }
    let blob = format!("--blob={head}:.gitmodules");
    let args = ["config", &blob, "-z", "--get-regexp", r"^submodule\..*\.path$"];
    let registered = git.call("read .gitmodules", &args).outcome()?.stdout;
    let registered: Vec<&[u8]> = registered
        .split(|&byte| byte == 0)
        .filter_map(|entry| entry.splitn(2, |&byte| byte == b'\n').nth(1))
        .collect();
    match new.find(|change| !registered.contains(&change.path.as_slice())) {
        Some(change) => Err(WorktreeError::EmbeddedRepository {
            path: String::from_utf8_lossy(&change.path).into_owned(),
        }),
        None => Ok(()),
    }
}

/// The sizes of blobs, in order, from one process.
fn blob_sizes(git: &Git, ids: &[&str]) -> Result<Vec<u64>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let output = git
        .call("measure files", &["cat-file", "--batch-check=%(objectsize)"])
        .stdin(input_file(&ids.join("\n"))?)
        .bytes()?;
    let sizes: Vec<u64> =
        String::from_utf8_lossy(&output).lines().map_while(|line| line.parse().ok()).collect();
    if sizes.len() == ids.len() {
        return Ok(sizes);
    }
    Err(WorktreeError::Git { action: "measure files", detail: "a file of the commit is missing".into() })
}

/// Text for git's stdin. A file cannot deadlock the way a pipe can when git answers before it has read all.
fn input_file(text: &str) -> Result<File> {
    let folder = std::env::temp_dir();
    let fill = || {
        let mut file = tempfile::tempfile()?;
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        file.rewind()?;
        Ok(file)
    };
    fill().at("write to", Path::new(&folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renames_have_two_paths_in_both_lists() {
        let a = "a".repeat(40);
        let output = format!(
            ":100644 100644 {a} {a} R100\0old\tname\0new\0:100644 100755 {a} {a} M\0m\0\
             0\t0\t\0old\tname\0new\0-\t-\tm\0"
        );
        let changes = parse(output.as_bytes()).unwrap();
        assert_eq!(changes[1].old_path.as_deref(), Some(&b"old\tname"[..]));
        assert_eq!(changes[1].path, b"new");
        assert_eq!(changes[1].lines, Some((0, 0)));
        assert_eq!(changes[0].kind(), ChangeKind::ModeChanged);
        assert_eq!(changes[0].lines, None);
    }

    #[test]
    fn lists_that_do_not_match_are_refused() {
        let a = "a".repeat(40);
        assert_eq!(parse(b"").unwrap(), []);
        assert!(parse(format!(":100644 100644 {a} {a} M\0m\0").as_bytes()).is_none());
        assert!(parse(b"1\t2\tstray\0").is_none());
    }
}
