//! Turns the state of a worktree into a commit, a bundle, a patch and a list of changes.

use std::fs::File;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::bundle;
use super::changes::{FileChange, Limits, PLAIN_DIFF, file_changes};
use super::error::{IoContext, Result, WorktreeError};
use super::git::Git;
use super::handle::Worktree;
use super::names::parse_commit_id;
use super::position::{Advance, Position};
use super::progress::{Phase, Progress};
use super::repository::{read_blob, resolve};
use super::stage::Staged;
use super::stat::DiffStat;

/// What a checkpoint is made from, and how large it may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// The commit the work builds on; usually [`Worktree::base_commit`].
    pub base: String,
    /// The message of the commit.
    pub message: String,
    /// How many files may have changed since the base.
    pub max_files: usize,
    /// How large a file, the bundle and the patch may each be, in bytes.
    pub max_blob: u64,
}

impl CheckpointOptions {
    /// Options with the limits of the protocol: 2000 files, 16 MB for each.
    pub fn new(base: impl Into<String>, message: impl Into<String>) -> Self {
        Self { base: base.into(), message: message.into(), max_files: 2000, max_blob: 16_000_000 }
    }
}

/// A file that a checkpoint made. It is deleted with the [`CheckpointArtifacts`] it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// Where it is.
    pub path: PathBuf,
    /// The SHA-256 of its bytes, in lower-case hexadecimal.
    pub sha256: String,
    /// Its size in bytes.
    pub size: u64,
}

/// The result of a checkpoint. Its files are deleted when it is dropped.
#[derive(Debug)]
pub struct CheckpointArtifacts {
    /// The commit the work builds on.
    pub base: String,
    /// The commit that holds the work. Equal to the base when the agent changed nothing.
    pub head: String,
    /// The branch that points at the head.
    pub branch: String,
    /// The commits from base to head. Git makes no empty bundles, so there is none when head is base.
    pub bundle: Option<Artifact>,
    /// The change from base to head as a binary patch without renames; empty when the files are the same.
    pub patch: Artifact,
    /// The files that changed, ordered by path. Empty when the commits changed none.
    pub files: Vec<FileChange>,
    /// Lines added and removed.
    pub stat: DiffStat,
    common_dir: PathBuf,
    _folder: TempDir,
}

impl CheckpointArtifacts {
    /// Reads the bytes of a file before or after its change. Symbolic links are not followed: their bytes are the
    /// name they point to.
    pub fn read_blob(&self, id: &str) -> Result<Vec<u8>> {
        read_blob(&self.common_dir, id)
    }
}

impl Worktree {
    /// Commits everything that is not ignored and makes what a host needs to review and restore it.
    ///
    /// Nothing is committed when nothing changed. Commits the agent made are kept. If it left the worktree's branch
    /// for another one or for a detached HEAD, the branch follows and HEAD returns to it, as long as no commit gets
    /// lost and no other checkout is on that branch; the other branch stays where the agent left it.
    ///
    /// A submodule counts as a change without bytes. Uncommitted changes inside one, and repositories that are no
    /// registered submodules, are errors, because neither a bundle nor a patch would carry their files.
    ///
    /// After an error, the files, index, HEAD and branch are as they were.
    pub fn checkpoint(
        &self,
        options: &CheckpointOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<CheckpointArtifacts> {
        let base = parse_commit_id(&options.base)?;
        let git = self.git();
        let position = Position::read(self, &git, &base)?;

        progress(Progress::start(Phase::Stage));
        let staged = Staged::build(self)?;
        let unchanged =
            git.call("read the commit", &["rev-parse", "--verify", "HEAD^{tree}"]).line()? == staged.tree;
        let head = if unchanged {
            position.head.clone()
        } else {
            staged.commit(&git, &position.head, &options.message)?
        };
        let limits = Limits { max_files: options.max_files, max_blob: options.max_blob };
        let files = file_changes(&git, &base, &head, limits)?;
        let count = files.len() as u64;
        progress(Progress { phase: Phase::Stage, done: count, total: Some(count) });

        let folder = tempfile::Builder::new()
            .prefix("axp-checkpoint-")
            .tempdir()
            .at("create a folder in", &std::env::temp_dir())?;
        let patch = write_patch(&git, &base, &head, &folder.path().join("checkpoint.patch"))?;
        patch.within("patch", options.max_blob)?;

        let mut advance = Advance::branch(&git, self, &position, &head)?;
        let bundle = if head == base {
            None
        } else {
            let path = folder.path().join("checkpoint.bundle");
            bundle::write(&git, &base, &self.branch, &path, progress)?;
            let bundle = Artifact::of(path)?;
            bundle.within("bundle", options.max_blob)?;
            Some(bundle)
        };
        advance.head()?;
        // HEAD may have moved under us only if another process works here; its commit must not be left out.
        if resolve(&git, "HEAD")?.as_deref() != Some(&head) {
            return Err(WorktreeError::Git {
                action: "finish the checkpoint",
                detail: "HEAD moved meanwhile; end other Git work in this worktree, then try again".into(),
            });
        }
        staged.install()?;
        advance.keep();

        Ok(CheckpointArtifacts {
            stat: DiffStat::of(&files),
            branch: self.branch.clone(),
            common_dir: self.common_dir.clone(),
            base,
            head,
            bundle,
            patch,
            files,
            _folder: folder,
        })
    }
}

impl Artifact {
    fn of(path: PathBuf) -> Result<Self> {
        let mut file = File::open(&path).at("read", &path)?;
        let (sha256, size) = bundle::hash_into(&mut file, &mut std::io::sink()).at("read", &path)?;
        Ok(Self { path, sha256, size })
    }

    fn within(&self, what: &'static str, limit: u64) -> Result<()> {
        if self.size > limit {
            return Err(WorktreeError::ArtifactTooLarge { what, size: self.size, limit });
        }
        Ok(())
    }
}

/// Renames are written as a deletion and an addition, which every tool applies the same way.
fn write_patch(git: &Git, base: &str, head: &str, path: &Path) -> Result<Artifact> {
    let flags = ["-p", "--binary", "--full-index", "--no-renames", "--submodule=short"];
    let rest = ["--src-prefix=a/", "--dst-prefix=b/", base, head, "--"];
    let args: Vec<&str> = PLAIN_DIFF.iter().chain(&flags).chain(&rest).copied().collect();
    let file = File::create(path).at("create", path)?;
    git.call("write the patch", &args).stdout(file).watched(Phase::Stage, &mut |_| {})?;
    Artifact::of(path.to_owned())
}
