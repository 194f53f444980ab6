use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use super::support::{Project, checkpoint, chmod, git, write};
use crate::worktree::{ChangeKind, FileChange, Worktree, WorktreeError, diffstat};

fn change<'a>(files: &'a [FileChange], path: &str) -> &'a FileChange {
    files.iter().find(|file| file.path == path).unwrap()
}

#[test]
fn each_kind_of_change_is_told_apart() {
    let project = Project::new();
    let root = project.root();
    let text: String = (0..50).map(|n| format!("line {n}\n")).collect();
    write(&root, "moved.txt", &text);
    write(&root, "gone.txt", "gone\n");
    write(&root, "typed", "a file\n");
    project.commit("more");
    let worktree = project.worktree("x");
    let at = worktree.path();
    write(at, "README.md", "hello\nthere\n");
    write(at, "data.bin", b"\0\x09");
    write(at, "added.bin", b"\0");
    fs::remove_file(at.join("gone.txt")).unwrap();
    fs::remove_file(at.join("moved.txt")).unwrap();
    write(at, "sub/moved.txt", format!("{text}one more\n"));
    chmod(&at.join("run.sh"), 0o755);
    fs::remove_file(at.join("typed")).unwrap();
    symlink("README.md", at.join("typed")).unwrap();
    let made = checkpoint(&worktree).unwrap();
    let files = &made.files;
    assert_eq!(files.len(), 7);
    let read = |file: &FileChange| {
        let bytes = |blob: &Option<crate::worktree::BlobBytes>| {
            blob.as_ref().map(|blob| {
                let bytes = made.read_blob(&blob.id).unwrap();
                assert_eq!(bytes.len() as u64, blob.size);
                bytes
            })
        };
        (bytes(&file.before), bytes(&file.after))
    };

    let modified = change(files, "README.md");
    assert_eq!((modified.kind, modified.added, modified.removed), (ChangeKind::Modified, Some(1), Some(1)));
    assert_eq!(read(modified), (Some(b"hello\nworld\n".to_vec()), Some(b"hello\nthere\n".to_vec())));
    let binary = change(files, "data.bin");
    assert_eq!((binary.kind, binary.added, binary.removed), (ChangeKind::Modified, None, None));
    let added = change(files, "added.bin");
    assert_eq!((added.kind, &added.old_mode), (ChangeKind::Added, &None));
    assert_eq!(read(added), (None, Some(b"\0".to_vec())));
    let deleted = change(files, "gone.txt");
    assert_eq!((deleted.kind, &deleted.new_mode), (ChangeKind::Deleted, &None));
    assert_eq!(read(deleted), (Some(b"gone\n".to_vec()), None));
    let renamed = change(files, "sub/moved.txt");
    assert_eq!((renamed.kind, renamed.old_path.as_deref()), (ChangeKind::Renamed, Some("moved.txt")));
    assert_eq!((renamed.added, renamed.removed), (Some(1), Some(0)));
    let mode = change(files, "run.sh");
    assert_eq!(mode.kind, ChangeKind::ModeChanged);
    assert_eq!((mode.old_mode.as_deref(), mode.new_mode.as_deref()), (Some("100644"), Some("100755")));
    let typed = change(files, "typed");
    assert_eq!((typed.kind, typed.new_mode.as_deref()), (ChangeKind::TypeChanged, Some("120000")));
    assert_eq!(read(typed), (Some(b"a file\n".to_vec()), Some(b"README.md".to_vec())));

    let stat = diffstat(&project.repository(), &made.base, &made.head).unwrap();
    assert_eq!(stat, made.stat);
    assert!(stat.to_string().contains("moved.txt => sub/moved.txt |   1 +\n"), "{stat}");
    assert!(stat.to_string().contains("7 files changed"), "{stat}");
}

#[test]
fn names_people_use_survive() {
    let project = Project::new();
    let worktree = project.worktree("x");
    let deep = format!("{}/file", ["deep"; 40].join("/"));
    let names = [
        "with space",
        " lead",
        "trail ",
        "-dash",
        "--help",
        "ünï/cödé",
        "日本語.txt",
        "e\u{301}",
        "'single'",
        "\"double\"",
        "back\\slash",
        "new\nline",
        "tab\there",
        "*",
        "?",
        "[a]",
        ":colon",
        ":(top)x",
        "#hash",
        "!bang",
        "~tilde",
        "$HOME",
        "a => b",
        "\u{1b}[31m",
        &deep,
    ];
    for name in names {
        write(worktree.path(), name, name);
    }
    let made = checkpoint(&worktree).unwrap();
    let mut expected: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    expected.sort();
    let mut found: Vec<_> = made.files.iter().map(|file| file.path.clone()).collect();
    found.sort();
    assert_eq!(found, expected);
    for file in &made.files {
        assert_eq!(made.read_blob(&file.after.as_ref().unwrap().id).unwrap(), file.path.as_bytes());
    }
    assert!(!made.stat.to_string().contains('\u{1b}'));
}

#[test]
fn a_name_that_is_not_utf8_is_told() {
    let project = Project::new();
    let worktree = project.worktree("x");
    if fs::write(worktree.path().join(OsStr::from_bytes(b"caf\xe9.txt")), "x").is_err() {
        return; // Some file systems refuse such names.
    }
    let error = checkpoint(&worktree).unwrap_err();
    assert!(matches!(&error, WorktreeError::NonUtf8Path { path } if path.starts_with("caf")), "{error}");
}

/// Applies the patch of a checkpoint to a clean copy of its base, and compares the trees.
fn patch_rebuilds(project: &Project, worktree: &Worktree) {
    let made = checkpoint(worktree).unwrap();
    let copy = project.clone_to("patched");
    git(copy.root(), &["apply", "--index", "--whitespace=nowarn", made.patch.path.to_str().unwrap()]);
    let tree = git(worktree.path(), &["rev-parse", &format!("{}^{{tree}}", made.head)]);
    assert_eq!(git(copy.root(), &["write-tree"]), tree);
}

#[test]
fn the_patch_alone_rebuilds_the_tree() {
    let project = Project::new();
    for (name, value) in [
        ("diff.mnemonicPrefix", "true"),
        ("color.ui", "always"),
        ("diff.renames", "copies"),
        ("diff.context", "0"),
        ("diff.shout.textconv", "echo"),
        ("diff.shout.command", "echo"),
        ("diff.ignoreSubmodules", "all"),
        ("diff.suppressBlankEmpty", "true"),
    ] {
        project.git(&["config", name, value]);
    }
    let worktree = project.worktree("x");
    let at = worktree.path();
    write(at, ".gitattributes", "*.md diff=shout\n");
    fs::rename(at.join("src"), at.join("lib")).unwrap();
    write(at, "README.md", "hello\n\nno newline at end");
    write(at, "data.bin", b"\xff\0\x01");
    write(at, "new\nline", b"\0");
    fs::remove_file(at.join("link")).unwrap();
    write(at, "link", "now a file\n");
    chmod(&at.join("run.sh"), 0o755);
    patch_rebuilds(&project, &worktree);
}
