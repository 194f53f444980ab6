use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::Command;

use crate::worktree::WorktreeError;
use crate::worktree::git::{check_report, isolate};
use crate::worktree::progress::{StderrReader, parse_counts};

fn isolated(names: &[&str]) -> BTreeMap<String, Option<String>> {
    let mut command = Command::new("git");
    isolate(&mut command, names.iter().map(OsString::from));
    let text = |value: &std::ffi::OsStr| value.to_str().unwrap().to_owned();
    command.get_envs().map(|(name, value)| (text(name), value.map(text))).collect()
}

#[test]
fn nothing_of_git_is_inherited() {
    let names = [
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_CONFIG_COUNT",
        "GIT_SSH_COMMAND",
        "git_dir",
        "PATH",
    ];
    let env = isolated(&names);
    for name in &names[..6] {
        assert_eq!(env.get(*name), Some(&None), "{name}");
    }
    assert_eq!(env.get("PATH"), None, "left as it is");
}

#[test]
fn our_own_settings_win_over_inherited_ones() {
    let env = isolated(&["GIT_TERMINAL_PROMPT", "GIT_COMMITTER_NAME"]);
    assert_eq!(env["GIT_TERMINAL_PROMPT"].as_deref(), Some("0"));
    assert_eq!(env["GIT_COMMITTER_NAME"].as_deref(), Some("AXP Contributor"));
    assert_eq!(env["GIT_AUTHOR_EMAIL"].as_deref(), Some("axp@localhost"));
}

#[test]
fn old_versions_are_refused() {
    for report in [
        "git version 2.34.0",
        "git version 2.47.3",
        "git version 2.39.5 (Apple Git-154)",
        "git version 3.0.0-rc1",
    ] {
        assert!(check_report(report).is_ok(), "{report}");
    }
    for report in ["git version 2.33.8", "git version 1.9", "git version 2", "nonsense", ""] {
        let error = check_report(report).unwrap_err();
        assert!(matches!(error, WorktreeError::GitTooOld { .. }), "{report}");
    }
}

#[test]
fn progress_is_read_between_messages() {
    assert_eq!(parse_counts("Updating files:  50% (4/8)"), Some((4, 8)));
    assert_eq!(parse_counts("Writing objects: 100% (2/2), 200 bytes | 200.00 KiB/s, done."), Some((2, 2)));
    assert_eq!(parse_counts("Enumerating objects: 3, done."), None);
    assert_eq!(parse_counts("50% (many/8)"), None);

    let mut seen = Vec::new();
    let mut reader = StderrReader::new();
    for part in ["Updating files:  5", "0% (1/2)\rUpdating files: 100% (2/2), done.\nfatal: no", " space\n"] {
        reader.feed(part.as_bytes(), |done, total| seen.push((done, total)));
    }
    assert_eq!(seen, [(1, 2), (2, 2)]);
    assert_eq!(reader.finish(), "fatal: no space\n");
}

#[test]
fn a_flood_of_messages_keeps_the_end() {
    let mut reader = StderrReader::new();
    for _ in 0..2000 {
        reader.feed("wärning\n".as_bytes(), |_, _| {});
    }
    reader.feed(&vec![b'x'; 1 << 20], |_, _| {});
    reader.feed(b"\nfatal: the end", |_, _| {});
    let text = reader.finish();
    assert!(text.len() <= 9000 && text.ends_with("fatal: the end\n"));
}
