//! Publishes a state of the work: bundle, patch and the bytes of each changed file.

use std::collections::HashMap;
use std::path::Path;

use ahp_types::state::{ChangesetFile, FileEdit};
use axp_protocol::method::{ChangedFile, params};
use axp_protocol::scalar::{List, Sha, Uint};
use axp_protocol::shape::{BlobRef, Checkpoint};
use axp_protocol::{ProtocolError, limits};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::emitter::Emitter;
use super::event::ParkEvent;
use super::journal::Journal;
use crate::client::{ClientError, operation_id, text};
use crate::worktree::{
    BlobBytes, CheckpointArtifacts, CheckpointOptions, FileChange, Phase, Worktree, WorktreeError,
};

/// Why a state of the work was not published. The work itself is in the worktree.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckpointError {
    #[error(transparent)]
    Worktree(#[from] WorktreeError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("{0}")]
    Io(String),
}

/// Commits what the agent did and publishes it, unless nothing changed since `published`. Returns the head commit
/// and how many files differ from the base.
pub(super) async fn publish(
    emitter: &Emitter,
    journal: &Journal,
    worktree: &Worktree,
    published: Option<&str>,
    message: String,
    out: &mpsc::UnboundedSender<ParkEvent>,
) -> Result<Option<(String, usize)>, CheckpointError> {
    let options = CheckpointOptions {
        max_blob: limits::BLOB_BYTES as u64,
        ..CheckpointOptions::new(worktree.base_commit(), message)
    };
    let tree = worktree.clone();
    let progress = out.clone();
    let artifacts = blocking(move || tree.checkpoint(&options, &mut reporter(progress))).await?;
    let Some(bundle) = &artifacts.bundle else { return Ok(None) };
    if published == Some(artifacts.head.as_str()) {
        return Ok(None);
    }
    let mut uploads = Uploads { emitter, known: HashMap::new(), done: 0, total: 0, out };
    uploads.total =
        2 + artifacts.files.iter().map(|f| f.before.iter().count() + f.after.iter().count()).sum::<usize>();
    let bundle = uploads.file(&bundle.path, "application/x-git-bundle").await?;
    let patch = uploads.file(&artifacts.patch.path, "text/x-patch").await?;
    let mut files = Vec::with_capacity(artifacts.files.len());
    for file in &artifacts.files {
        let before_path = file.old_path.as_deref().unwrap_or(&file.path);
        let before = uploads.side(&artifacts, before_path, file.before.as_ref()).await?;
        let after = uploads.side(&artifacts, &file.path, file.after.as_ref()).await?;
        files.push(ChangedFile(changed_file(file, before, after)));
    }
    let invalid = |why: String| ClientError::Refused(ProtocolError::invalid_params(why));
    let count = files.len();
    let checkpoint = Checkpoint {
        base_commit: Sha::new(artifacts.base.clone()).map_err(invalid)?,
        head_commit: Sha::new(artifacts.head.clone()).map_err(invalid)?,
        branch: text(&artifacts.branch)?,
        bundle,
        patch,
        created_at: axp_host::time::now_ms(),
    };
    let params = params::Checkpoint {
        channel: text(&format!("axp-session:/{}", emitter.session))?,
        operation_id: operation_id(),
        epoch: Uint::clamped(emitter.epoch),
        checkpoint,
        files: List::new(files).map_err(invalid)?,
    };
    journal.call::<params::Checkpoint>(&emitter.client, &params, None).await?;
    Ok(Some((artifacts.head.clone(), count)))
}

/// Runs Git work off the async threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, WorktreeError> + Send + 'static,
) -> Result<T, CheckpointError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => Ok(result?),
        Err(error) => Err(CheckpointError::Io(format!("the Git work ended early: {error}"))),
    }
}

/// Passes Git's progress on.
pub(super) fn reporter(out: mpsc::UnboundedSender<ParkEvent>) -> impl FnMut(crate::worktree::Progress) {
    move |progress| {
        let what = match progress.phase {
            Phase::Checkout => "checking files out",
            Phase::Stage => "staging changes",
            Phase::Bundle => "bundling commits",
            Phase::Restore => "restoring the checkpoint",
            Phase::Push => "pushing the checkpoint",
        };
        // Nobody watching is fine.
        let _ = out.send(ParkEvent::Progress { what, done: progress.done, total: progress.total });
    }
}

struct Uploads<'a> {
    emitter: &'a Emitter,
    /// References of Git blobs that were uploaded for this checkpoint, by object ID.
    known: HashMap<String, BlobRef>,
    done: usize,
    total: usize,
    out: &'a mpsc::UnboundedSender<ParkEvent>,
}

impl Uploads<'_> {
    fn step(&mut self) {
        self.done += 1;
        let event = ParkEvent::Progress {
            what: "uploading the checkpoint",
            done: self.done as u64,
            total: Some(self.total as u64),
        };
        let _ = self.out.send(event);
    }

    async fn file(&mut self, path: &Path, media_type: &str) -> Result<BlobRef, CheckpointError> {
        let data = tokio::fs::read(path)
            .await
            .map_err(|e| CheckpointError::Io(format!("cannot read {}: {e}", path.display())))?;
        let reference = self.emitter.upload(&data, media_type).await?;
        self.step();
        Ok(reference)
    }

    /// One side of a file as AHP describes it.
    async fn side(
        &mut self,
        artifacts: &CheckpointArtifacts,
        path: &str,
        bytes: Option<&BlobBytes>,
    ) -> Result<Option<Value>, CheckpointError> {
        let Some(bytes) = bytes else { return Ok(None) };
        let reference = match self.known.get(&bytes.id) {
            Some(reference) => reference.clone(),
            None => {
                let data = artifacts.read_blob(&bytes.id)?;
                let media_type = if std::str::from_utf8(&data).is_ok() && !data.contains(&0) {
                    "text/plain; charset=utf-8"
                } else {
                    "application/octet-stream"
                };
                let reference = self.emitter.upload(&data, media_type).await?;
                self.known.insert(bytes.id.clone(), reference.clone());
                reference
            }
        };
        self.step();
        Ok(Some(json!({
            "uri": file_uri(path),
            "content": { "uri": &*reference.uri, "sizeHint": reference.size, "contentType": &*reference.media_type },
        })))
    }
}

fn changed_file(file: &FileChange, before: Option<Value>, after: Option<Value>) -> ChangesetFile {
    let diff = match (file.added, file.removed) {
        (Some(added), Some(removed)) => Some(json!({ "added": added, "removed": removed })),
        _ => None,
    };
    ChangesetFile {
        id: file.path.clone(),
        edit: FileEdit { before, after, diff },
        reviewed: None,
        meta: None,
    }
}

/// `file:///PATH` with PATH relative to the root of the repository, so that nothing of the contributor's machine
/// shows in it.
fn file_uri(path: &str) -> String {
    let mut uri = String::from("file:///");
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'-' | b'_' | b'~') {
            uri.push(char::from(byte));
        } else {
            uri.push_str(&format!("%{byte:02X}"));
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    #[test]
    fn file_uris_are_encoded_and_relative() {
        assert_eq!(super::file_uri("src/a b/ü.rs"), "file:///src/a%20b/%C3%BC.rs");
    }
}
