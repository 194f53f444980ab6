//! Stored content and checkpoints (section 6).

use axp_protocol::ProtocolError;
use axp_protocol::action::AxpAction;
use axp_protocol::channel::{self, Channel};
use axp_protocol::method::params;
use axp_protocol::principal::{Principal, Role};
use axp_protocol::scalar::Digest;
use axp_protocol::shape::BlobRef;

use super::decide::{
    Answer, Decision, Effect, Lookup, Refusal, exchange, json, readable, require_open, require_role,
};
use super::emit;
use super::lease::fenced;
use super::state::{Session, State};

/// Decides an upload whose content has been decoded and hashed already.
pub(crate) fn put_blob(
    state: &State,
    actor: &Principal,
    channel: &Channel,
    upload: Upload,
    limit_total: u64,
) -> Result<Decision, ProtocolError> {
    let session = readable(state, actor, channel)?;
    require_role(actor, &[Role::Contributor, Role::Maintainer, Role::Verifier], "upload")?;
    require_open(session)?;
    let size = upload.data.len() as u64;
    if state.blob_bytes.saturating_add(size) > limit_total {
        return Err(ProtocolError::limit(format!(
            "this host keeps at most {limit_total} bytes of blobs in all"
        )));
    }
    let reference = BlobRef {
        uri: axp_protocol::scalar::Text::new(channel::blob_uri(&session.id, &upload.digest))
            .map_err(ProtocolError::internal)?,
        sha256: upload.digest.clone(),
        size,
        media_type: axp_protocol::scalar::Text::new(upload.media_type.clone())
            .map_err(ProtocolError::invalid_params)?,
    };
    let effect = Effect::PutBlob {
        session: session.id.clone(),
        digest: upload.digest,
        media_type: upload.media_type,
        data: upload.data,
    };
    Ok(Decision { events: vec![], effects: vec![effect], answer: Answer::Json(json(&reference)?) })
}

/// A decoded upload.
#[derive(Debug, Clone)]
pub(crate) struct Upload {
    pub(crate) data: Vec<u8>,
    pub(crate) digest: Digest,
    pub(crate) media_type: String,
}

pub(super) fn blob_get(
    session: &Session,
    lookup: &mut dyn Lookup,
    digest: &Digest,
) -> Result<Decision, Refusal> {
    if lookup.meta(&session.id, digest)?.is_none() {
        return Err(ProtocolError::not_found(format!("no blob {digest} in session {}", session.id)).into());
    }
    let answer = Answer::Blob { session: session.id.clone(), digest: digest.clone() };
    Ok(Decision { events: vec![], effects: vec![], answer })
}

/// A blob reference that is exactly what the session has stored.
pub(crate) fn check_blob(
    session: &Session,
    lookup: &mut dyn Lookup,
    blob: &BlobRef,
    what: &str,
) -> Result<(), Refusal> {
    let meta = lookup.meta(&session.id, &blob.sha256)?;
    let uri = channel::blob_uri(&session.id, &blob.sha256);
    match meta {
        Some(meta) if meta.size == blob.size && *blob.uri == *uri => Ok(()),
        Some(_) => Err(ProtocolError::invalid_params(format!(
            "{what}: its size or URI is not that of the stored blob"
        ))
        .into()),
        None => {
            Err(ProtocolError::not_found(format!("{what}: no such blob in session {}", session.id)).into())
        }
    }
}

pub(super) fn checkpoint(
    session: &Session,
    lookup: &mut dyn Lookup,
    actor: &Principal,
    p: &params::Checkpoint,
    now: u64,
) -> Result<Decision, Refusal> {
    fenced(session, actor, p.epoch.get(), now)?;
    let checkpoint = &p.checkpoint;
    if let Some(known) = &session.exchange.checkpoint
        && known.base_commit != checkpoint.base_commit
    {
        return Err(ProtocolError::conflict(format!(
            "the base of session {} is {} and never changes",
            session.id, known.base_commit
        ))
        .into());
    }
    check_blob(session, lookup, &checkpoint.bundle, "checkpoint.bundle")?;
    check_blob(session, lookup, &checkpoint.patch, "checkpoint.patch")?;
    let mut ids = std::collections::HashSet::new();
    for (i, file) in p.files.iter().enumerate() {
        if !ids.insert(file.0.id.as_str()) {
            return Err(
                ProtocolError::invalid_params(format!("files[{i}]: {:?} is there twice", file.0.id)).into()
            );
        }
        for side in [&file.0.edit.before, &file.0.edit.after].into_iter().flatten() {
            if let Some(content) = side.get("content") {
                emit::require_blob_uris(session, lookup, content)?;
            }
        }
    }
    let files = p.files.iter().map(|f| f.0.clone()).collect();
    let changed = ahp_types::actions::ChangesetContentChangedAction { files, operations: None };
    let events = vec![
        (
            Channel::Changeset(session.id.clone()),
            ahp_types::StateAction::ChangesetContentChanged(Box::new(changed)).into(),
        ),
        exchange(session, AxpAction::CheckpointChanged { checkpoint: checkpoint.clone() }),
    ];
    Ok(Decision::new(events, &())?)
}
