//! A small project in a temporary folder, and what the tests ask about it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::worktree::error::Result;
use crate::worktree::git::isolate;
use crate::worktree::{CheckpointArtifacts, CheckpointOptions, Progress, Repository, Start, Worktree};

/// Runs git and expects it to succeed.
pub(super) fn git(dir: &Path, args: &[&str]) -> String {
    let (ok, text) = try_git(dir, args);
    assert!(ok, "git {args:?}: {text}");
    text
}

/// Runs git; returns whether it succeeded, and its output.
pub(super) fn try_git(dir: &Path, args: &[&str]) -> (bool, String) {
    let mut command = Command::new("git");
    isolate(&mut command, std::env::vars_os().map(|(name, _)| name));
    let output = command
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_EDITOR", "true")
        .args(args)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).trim_end().to_owned())
}

pub(super) fn quiet(_: Progress) {}

/// The user's repository, with two commits.
pub(super) struct Project {
    pub(super) folder: TempDir,
}

impl Project {
    pub(super) fn new() -> Self {
        Self::with_init(&[])
    }

    pub(super) fn with_init(flags: &[&str]) -> Self {
        let project = Self { folder: tempfile::tempdir().unwrap() };
        let root = project.root();
        fs::create_dir(&root).unwrap();
        git(&root, &[&["init", "--quiet", "-b", "main"], flags].concat());
        git(&root, &["config", "user.name", "User"]);
        git(&root, &["config", "user.email", "user@example.com"]);
        write(&root, "README.md", "first\n");
        project.commit("first");
        write(&root, "README.md", "hello\nworld\n");
        write(&root, "src/lib.rs", "// one\n// two\n// three\n");
        write(&root, "run.sh", "#!/bin/sh\n");
        write(&root, "data.bin", b"\0\x01\x02\xff");
        write(&root, ".gitignore", "*.log\n/target/\n");
        symlink("README.md", root.join("link")).unwrap();
        project.commit("second");
        project
    }

    pub(super) fn root(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join("project")
    }

    pub(super) fn git(&self, args: &[&str]) -> String {
        git(&self.root(), args)
    }

    pub(super) fn commit(&self, message: &str) -> String {
        self.git(&["add", "-A"]);
        self.git(&["commit", "--quiet", "-m", message]);
        self.head()
    }

    pub(super) fn head(&self) -> String {
        self.git(&["rev-parse", "HEAD"])
    }

    pub(super) fn repository(&self) -> Repository {
        Repository::discover(&self.root()).unwrap()
    }

    pub(super) fn worktree(&self, name: &str) -> Worktree {
        Worktree::create(&self.repository(), name, Start::Head, &mut quiet).unwrap()
    }

    /// A clone that shares nothing with the original.
    pub(super) fn clone_to(&self, name: &str) -> Repository {
        let target = self.folder.path().join(name);
        self.git(&["clone", "--quiet", "--no-hardlinks", "-b", "main", ".", target.to_str().unwrap()]);
        Repository::discover(&target).unwrap()
    }

    /// All that belongs to the user: files, index, HEAD, configuration, refs outside of ours, the stash, reflogs.
    pub(super) fn belongings(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let root = self.root();
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&root).unwrap().map(Result::unwrap) {
            if entry.file_name() != ".axp" && entry.file_name() != ".git" {
                read_all(&entry.path(), &mut found);
            }
        }
        let git_dir = root.join(".git");
        for name in ["index", "HEAD", "config", "packed-refs", "logs/HEAD", "refs", "logs/refs", "hooks"] {
            read_all(&git_dir.join(name), &mut found);
        }
        found.retain(|path, _| !path.to_string_lossy().contains("/heads/axp"));
        found
    }
}

/// Reads a file, or all files in a folder; symbolic links as what they say.
fn read_all(path: &Path, into: &mut BTreeMap<PathBuf, Vec<u8>>) {
    let Ok(metadata) = fs::symlink_metadata(path) else { return };
    if metadata.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            read_all(&entry.unwrap().path(), into);
        }
    } else if metadata.is_symlink() {
        into.insert(path.to_owned(), fs::read_link(path).unwrap().into_os_string().into_encoded_bytes());
    } else {
        into.insert(path.to_owned(), fs::read(path).unwrap());
    }
}

pub(super) fn write(dir: &Path, name: &str, content: impl AsRef<[u8]>) {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

pub(super) fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

pub(super) fn checkpoint(worktree: &Worktree) -> Result<CheckpointArtifacts> {
    let options = CheckpointOptions::new(worktree.base_commit(), "work");
    worktree.checkpoint(&options, &mut quiet)
}

/// What must not change when a checkpoint fails: index, HEAD, refs, and that no lock or scratch folder stays.
pub(super) fn state(worktree: &Worktree) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    read_all(&worktree.git_dir, &mut found);
    read_all(&worktree.common_dir.join("refs"), &mut found);
    read_all(&worktree.common_dir.join("packed-refs"), &mut found);
    // What was tried may be read in the reflog.
    found.retain(|path, _| !path.to_string_lossy().contains("/logs/"));
    found
}

/// The refs and worktree folders that exist, to show that nothing was left behind.
pub(super) fn traces(repository: &Repository) -> (String, Vec<String>, Vec<String>) {
    let names = |path: PathBuf| {
        let mut names: Vec<_> = fs::read_dir(path)
            .map(|entries| entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect())
            .unwrap_or_default();
        names.sort();
        names
    };
    (
        git(repository.root(), &["for-each-ref"]),
        names(repository.root().join(".axp/worktrees")),
        names(repository.root().join(".git/worktrees")),
    )
}
