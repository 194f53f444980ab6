//! The user's repository: where it is, and questions about its history.

use std::path::{Path, PathBuf};

use super::error::{IoContext, Result, WorktreeError};
use super::git::{Git, check_version, output_path};
use super::layout::enclosing_root;
use super::names::parse_commit_id;

/// The repository somebody works in, with a checkout of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository {
    root: PathBuf,
    git_dir: PathBuf,
    common_dir: PathBuf,
}

impl Repository {
    /// Finds the repository that `dir` is in; any folder of a checkout will do.
    ///
    /// In a linked worktree, [`Repository::root`] is the main checkout, so that worktrees of agents are all in one
    /// place, while [`Repository::head`] is what is checked out where `dir` is. Where the main repository is bare,
    /// the root is the linked worktree itself. A worktree that AXP made belongs to the checkout around it.
    pub fn discover(dir: &Path) -> Result<Self> {
        let dir = dir.canonicalize().at("open", dir)?;
        check_version(&dir)?;
        let git = Git::discovering(&dir);
        let inside = git.call("find the repository", &["rev-parse", "--is-inside-work-tree"]).outcome()?;
        if !inside.status.success() {
            let said = String::from_utf8_lossy(&inside.stderr);
            return Err(if said.contains("not a git repository") {
                WorktreeError::NotARepository { path: dir }
            } else {
                WorktreeError::Git { action: "open the repository", detail: said.trim().to_owned() }
            });
        }
        let ask = |question: &str| -> Result<PathBuf> {
            let call = git.call("find the repository", &["rev-parse", "--path-format=absolute", question]);
            let path = output_path(call.bytes()?);
            path.canonicalize().at("open", &path)
        };
        let git_dir = ask("--git-dir")?;
        if inside.stdout.trim_ascii() != b"true" {
            // A user who stands in the .git folder means the checkout next to it.
            return match git_dir.parent() {
                Some(parent) if git_dir.ends_with(".git") && !is_bare(&git_dir)? => Self::discover(parent),
                _ => Err(WorktreeError::BareRepository { path: git_dir }),
            };
        }
        let top = ask("--show-toplevel")?;
        let common_dir = ask("--git-common-dir")?;
        if let Some(root) = enclosing_root(&top)
            && git_dir != common_dir
        {
            return Self::discover(root);
        }
        let root = match main_checkout(&common_dir) {
            Some(main) if git_dir != common_dir => main,
            _ => top,
        };
        let found = Self { root, git_dir, common_dir };
        found.head()?;
        Ok(found)
    }

    /// The top folder of the checkout; worktrees live below its `.axp`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The commit that is checked out.
    pub fn head(&self) -> Result<String> {
        resolve(&Git::on(&self.root, &self.git_dir), "HEAD")?
            .ok_or_else(|| WorktreeError::NoCommits { root: self.root.clone() })
    }

    /// Whether the commit `id` is in this repository.
    pub fn has_commit(&self, id: &str) -> Result<bool> {
        has_commit(&self.git(), &parse_commit_id(id)?)
    }

    /// Whether there is a file or folder at `path`, from the top, in the commit `id`; `None` when the commit is not in
    /// this repository.
    pub fn has_path(&self, id: &str, path: &str) -> Result<Option<bool>> {
        let (git, id) = (self.git(), parse_commit_id(id)?);
        if !has_commit(&git, &id)? {
            return Ok(None);
        }
        git.call("look up a file", &["cat-file", "-e"])
            .arg(format!("{id}:{path}"))
            .outcome()
            .map(|o| Some(o.status.success()))
    }

    /// Git on what all checkouts share: objects, branches and the list of worktrees.
    pub(super) fn git(&self) -> Git {
        Git::on(&self.root, &self.common_dir)
    }

    /// The folder with objects, branches and the list of worktrees.
    pub(super) fn common_dir(&self) -> &Path {
        &self.common_dir
    }
}

/// The main checkout of a common dir, when there is one.
fn main_checkout(common_dir: &Path) -> Option<PathBuf> {
    let parent = common_dir.parent().filter(|_| common_dir.ends_with(".git"))?;
    (!is_bare(common_dir).ok()?).then(|| parent.to_owned())
}

fn is_bare(git_dir: &Path) -> Result<bool> {
    let git = Git::on(git_dir, git_dir);
    let output = git.call("read its settings", &["config", "--type=bool", "core.bare"]).outcome()?;
    Ok(output.stdout.trim_ascii() == b"true")
}

/// The commit a revision names, if it names one. `revision` is ours or a checked id, never text from outside.
pub(super) fn resolve(git: &Git, revision: &str) -> Result<Option<String>> {
    let revision = format!("{revision}^{{commit}}");
    let output = git
        .call("look up a commit", &["rev-parse", "--verify", "--quiet", "--end-of-options"])
        .arg(revision)
        .outcome()?;
    if !output.status.success() {
        return Ok(None);
    }
    parse_commit_id(String::from_utf8_lossy(&output.stdout).trim()).map(Some)
}

pub(super) fn has_commit(git: &Git, id: &str) -> Result<bool> {
    Ok(resolve(git, id)?.is_some())
}

/// Whether `ancestor` is `commit` or in its history. Both must be checked ids of commits that exist.
pub(super) fn is_ancestor(git: &Git, ancestor: &str, commit: &str) -> Result<bool> {
    git.call("compare commits", &["merge-base", "--is-ancestor", ancestor, commit]).yes()
}

/// The bytes of a blob. libgit2 answers without a process; where it cannot open the repository, git does.
pub(super) fn read_blob(common_dir: &Path, id: &str) -> Result<Vec<u8>> {
    let id = parse_commit_id(id)?;
    if let Ok(bytes) = read_with_libgit2(common_dir, &id) {
        return Ok(bytes);
    }
    Git::on(common_dir, common_dir).call("read a file", &["cat-file", "blob", &id]).bytes()
}

fn read_with_libgit2(common_dir: &Path, id: &str) -> Result<Vec<u8>, git2::Error> {
    let repository = git2::Repository::open(common_dir)?;
    let blob = repository.find_blob(git2::Oid::from_str(id)?)?;
    Ok(blob.content().to_vec())
}
