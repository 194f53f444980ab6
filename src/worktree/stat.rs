//! Lines added and removed, file by file, and the picture of them that `git diff --stat` draws.

use std::fmt::{self, Display, Formatter, Write};

use serde::Serialize;

use super::changes::{FileChange, raw_changes};
use super::error::{Result, WorktreeError};
use super::names::parse_commit_id;
use super::repository::{Repository, has_commit};

/// The columns of a terminal nobody measured.
const WIDTH: usize = 80;

/// The most columns a file name may take.
const NAME_WIDTH: usize = 50;

/// How much of one file changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileStat {
    /// The path, `OLD => NEW` for a rename; bytes that are not UTF-8 are replaced.
    pub path: String,
    /// Lines added.
    pub added: u64,
    /// Lines removed.
    pub removed: u64,
    /// Whether the file is binary, so that lines do not count.
    pub binary: bool,
}

/// How much changed between two commits. Its [`Display`] looks like `git diff --stat` and is safe for a terminal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiffStat {
    /// The files that changed, ordered by path.
    pub files: Vec<FileStat>,
    /// Lines added in all files.
    pub added: u64,
    /// Lines removed in all files.
    pub removed: u64,
}

/// Counts what changed from commit `base` to commit `head`.
pub fn diffstat(repository: &Repository, base: &str, head: &str) -> Result<DiffStat> {
    let git = repository.git();
    let (base, head) = (parse_commit_id(base)?, parse_commit_id(head)?);
    for id in [&base, &head] {
        if !has_commit(&git, id)? {
            return Err(WorktreeError::CommitMissing { id: id.clone() });
        }
    }
    let changes = raw_changes(&git, &base, &head)?;
    Ok(DiffStat::collect(changes.into_iter().map(|change| {
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        FileStat::new(&text(&change.path), change.old_path.as_deref().map(text).as_deref(), change.lines)
    })))
}

impl FileStat {
    fn new(path: &str, old_path: Option<&str>, lines: Option<(u64, u64)>) -> Self {
        let path = old_path.map_or_else(|| path.to_owned(), |old| format!("{old} => {path}"));
        let (added, removed) = lines.unwrap_or_default();
        Self { path, added, removed, binary: lines.is_none() }
    }
}

impl DiffStat {
    pub(super) fn of(files: &[FileChange]) -> Self {
        Self::collect(
            files.iter().map(|file| {
                FileStat::new(&file.path, file.old_path.as_deref(), file.added.zip(file.removed))
            }),
        )
    }

    fn collect(files: impl Iterator<Item = FileStat>) -> Self {
        let files: Vec<_> = files.collect();
        let added = files.iter().map(|file| file.added).sum();
        let removed = files.iter().map(|file| file.removed).sum();
        Self { files, added, removed }
    }
}

impl Display for DiffStat {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.files.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = self.files.iter().map(|file| fitted(&file.path)).collect();
        let name_width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let most = self.files.iter().map(|file| file.added + file.removed).max().unwrap_or(0);
        let any_binary = self.files.iter().any(|file| file.binary);
        let count_width = most.to_string().len().max(if any_binary { 3 } else { 1 });
        // ` NAME | COUNT GRAPH`
        let graph_width = WIDTH.saturating_sub(name_width + count_width + 5).max(10) as u64;
        for (file, name) in self.files.iter().zip(&names) {
            let padding = name_width - name.chars().count();
            write!(f, " {name}{:padding$} | ", "")?;
            if file.binary {
                writeln!(f, "{:>count_width$}", "Bin")?;
                continue;
            }
            write!(f, "{:>count_width$}", file.added + file.removed)?;
            let (plus, minus) = scaled(file.added, file.removed, most, graph_width);
            if plus + minus > 0 {
                f.write_char(' ')?;
            }
            writeln!(f, "{}{}", "+".repeat(plus as usize), "-".repeat(minus as usize))?;
        }
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        let files = self.files.len() as u64;
        write!(f, " {files} file{} changed", plural(files))?;
        if self.added > 0 || self.removed == 0 {
            write!(f, ", {} insertion{}(+)", self.added, plural(self.added))?;
        }
        if self.removed > 0 || self.added == 0 {
            write!(f, ", {} deletion{}(-)", self.removed, plural(self.removed))?;
        }
        writeln!(f)
    }
}

/// The lengths of the plus and minus bars: exact where they fit, else in proportion, never nothing for something.
fn scaled(added: u64, removed: u64, most: u64, width: u64) -> (u64, u64) {
    if most <= width {
        return (added, removed);
    }
    let scale = |count: u64, room: u64| {
        let length = (u128::from(count) * u128::from(room) / u128::from(most)) as u64;
        if count > 0 { length.max(1) } else { 0 }
    };
    (scale(added, width - 1), scale(removed, width - 1))
}

/// A name made safe, and cut at its front when it is too long.
fn fitted(name: &str) -> String {
    let safe = printable(name);
    let length = safe.chars().count();
    if length <= NAME_WIDTH {
        return safe;
    }
    let tail: String = safe.chars().skip(length - (NAME_WIDTH - 3)).collect();
    format!("...{tail}")
}

/// Writes characters that steer a terminal, or reorder text around them, as escapes.
fn printable(name: &str) -> String {
    let mut safe = String::with_capacity(name.len());
    for c in name.chars() {
        let reorders =
            matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if c.is_control() || reorders {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(files: &[(&str, Option<(u64, u64)>)]) -> DiffStat {
        DiffStat::collect(files.iter().map(|(path, lines)| FileStat::new(path, None, *lines)))
    }

    #[test]
    fn looks_like_git() {
        let stat = stat(&[("README.md", Some((2, 1))), ("logo.png", None), ("src/a.rs", Some((1, 0)))]);
        assert_eq!(
            stat.to_string(),
            " README.md |   3 ++-\n logo.png  | Bin\n src/a.rs  |   1 +\n 3 files changed, 3 insertions(+), 1 deletion(-)\n"
        );
    }

    #[test]
    fn nothing_changed_is_nothing_to_show() {
        assert_eq!(DiffStat::default().to_string(), "");
        assert_eq!(
            stat(&[("mode", Some((0, 0)))]).to_string(),
            " mode | 0\n 1 file changed, 0 insertions(+), 0 deletions(-)\n"
        );
    }

    #[test]
    fn lines_fit_a_terminal_however_much_changed() {
        let long = "d/".repeat(80);
        let text = stat(&[(long.as_str(), Some((900_000, 1))), ("b", Some((0, 70)))]).to_string();
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.lines().next().is_some_and(|line| line.ends_with("+-")), "{text}");
    }

    #[test]
    fn names_cannot_steer_the_terminal() {
        let text = stat(&[("a\x1b[2J\n\u{202e}b\u{7f}é", Some((1, 0)))]).to_string();
        assert!(text.starts_with(" a\\u{1b}[2J\\n\\u{202e}b\\u{7f}é | 1 +\n"), "{text}");
    }
}
