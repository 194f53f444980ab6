//! Who stands behind a checkpoint: comments, signatures and independent verification (section 6).

use axp_protocol::ProtocolError;
use axp_protocol::action::AxpAction;
use axp_protocol::canonical::hash;
use axp_protocol::method::params;
use axp_protocol::principal::{Principal, Role};
use axp_protocol::scalar::Digest;
use axp_protocol::shape::{DiscussionComment, Review, Signature, Verification};
use axp_protocol::signature::{SignatureError, fingerprint, verify as verify_signature};

use super::artifacts::check_blob;
use super::decide::{Decision, Effect, Lookup, Refusal, exchange, require_open, require_role};
use super::state::{Session, State};

/// Decides `_axp/comment`.
pub(super) fn comment(
    session: &Session,
    actor: &Principal,
    p: &params::Comment,
    now: u64,
) -> Result<Decision, ProtocolError> {
    require_role(actor, &[Role::Maintainer, Role::Contributor, Role::Verifier], "comment")?;
    require_open(session)?;
    if p.body.trim().is_empty() {
        return Err(ProtocolError::invalid_params("body: it is empty")
            .with_data(serde_json::json!({ "path": "body" })));
    }
    let current = session.exchange.checkpoint.as_ref().map(|c| &c.head_commit);
    if let Some(named) = &p.checkpoint
        && Some(named) != current
    {
        return Err(ProtocolError::conflict(format!(
            "{named} is not the current checkpoint of session {}",
            session.id
        )));
    }
    if let Some(path) = &p.path {
        if p.checkpoint.is_none() {
            return Err(ProtocolError::invalid_params(
                "checkpoint: a file is spoken of at the current checkpoint",
            )
            .with_data(serde_json::json!({ "path": "checkpoint" })));
        }
        if !is_relative_file(path) {
            return Err(ProtocolError::invalid_params("path: not a path inside the repository")
                .with_data(serde_json::json!({ "path": "path" })));
        }
    }
    let comment = DiscussionComment {
        id: p.operation_id.clone(),
        author: actor.id.to_string(),
        body: p.body.to_string(),
        created_at: now,
        checkpoint: p.checkpoint.clone(),
        path: p.path.as_ref().map(ToString::to_string),
    };
    Decision::new(vec![exchange(session, AxpAction::CommentAdded { comment: comment.clone() })], &comment)
}

fn is_relative_file(path: &str) -> bool {
    !path.starts_with('/')
        && !path.contains('\0')
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

fn signature_error(error: SignatureError) -> ProtocolError {
    ProtocolError::invalid_params(format!("signature: {error}"))
}

/// Binds a key to the principal that first uses it (section 8).
fn bind_key(state: &State, key: &Digest, actor: &Principal) -> Result<Vec<Effect>, ProtocolError> {
    match state.keys.get(key) {
        Some(owner) if *owner == actor.id => Ok(vec![]),
        Some(_) => Err(ProtocolError::not_permitted("this key belongs to another principal")),
        None => Ok(vec![Effect::BindKey { key: key.clone(), principal: actor.id.clone() }]),
    }
}

/// Decides `_axp/review`: the contributor signs.
pub(super) fn review(
    state: &State,
    session: &Session,
    lookup: &mut dyn Lookup,
    actor: &Principal,
    p: &params::Review,
) -> Result<Decision, Refusal> {
    require_role(actor, &[Role::Contributor, Role::Maintainer], "submit for review")?;
    require_open(session)?;
    let state_now = &session.exchange;
    if state_now.lease.as_ref().is_none_or(|l| l.owner != actor.id.as_str()) {
        return Err(ProtocolError::not_permitted(
            "only whoever runs the session now can submit it for review",
        )
        .into());
    }
    if state_now.reservation.is_some() {
        return Err(ProtocolError::turn_in_progress("a turn is reserved; submit when it has ended").into());
    }
    let Some(checkpoint) = &state_now.checkpoint else {
        return Err(
            ProtocolError::conflict(format!("session {} has no checkpoint to review", session.id)).into()
        );
    };
    let m = &p.manifest;
    let names_current = *m.repository == *state_now.repository
        && *m.session == *state_now.session
        && m.base_commit == checkpoint.base_commit
        && m.head_commit == checkpoint.head_commit;
    if !names_current {
        return Err(ProtocolError::conflict(
            "the manifest does not name the current checkpoint of this session",
        )
        .into());
    }
    let digest = hash(checkpoint)
        .map_err(|e| ProtocolError::internal(format!("the checkpoint cannot be hashed: {e}")))?;
    if digest != m.checkpoint_digest.as_str() {
        return Err(
            ProtocolError::conflict("the manifest's checkpointDigest is not that of the checkpoint").into()
        );
    }
    if m.trace_through_seq > state.seq {
        return Err(ProtocolError::invalid_params("manifest.traceThroughSeq: it is in the future").into());
    }
    let trace = lookup.trace(&session.id, m.trace_through_seq)?;
    if !trace.has_checkpoint {
        return Err(ProtocolError::conflict("the manifest's trace ends before its checkpoint").into());
    }
    if trace.hash != m.trace_hash.as_str() {
        return Err(
            ProtocolError::conflict("the manifest's traceHash is not that of the recorded actions").into()
        );
    }
    verify_signature(m, &p.contributor).map_err(signature_error)?;
    let key = fingerprint(&p.contributor.public_key).map_err(signature_error)?;
    let effects = bind_key(state, &key, actor)?;
    let review = Review { manifest: m.clone(), contributor: p.contributor.clone(), maintainer: None };
    let action = AxpAction::ReviewChanged { review: review.clone() };
    Ok(Decision { effects, ..Decision::new(vec![exchange(session, action)], &review)? })
}

/// Decides `_axp/approveReview`: a maintainer signs the same manifest with a key of their own.
pub(super) fn approve(
    state: &State,
    session: &Session,
    actor: &Principal,
    p: &params::ApproveReview,
) -> Result<Decision, ProtocolError> {
    require_role(actor, &[Role::Maintainer], "approve a review")?;
    require_open(session)?;
    let Some(review) = &session.exchange.review else {
        return Err(ProtocolError::not_found(format!(
            "nothing is submitted for review in session {}",
            session.id
        )));
    };
    let runs_it = session.exchange.lease.as_ref().is_some_and(|l| l.owner == actor.id.as_str());
    let contributor = fingerprint(&review.contributor.public_key).map_err(signature_error)?;
    let submitted_it = state.keys.get(&contributor) == Some(&actor.id);
    if runs_it || submitted_it {
        return Err(ProtocolError::not_permitted("whoever contributed the work cannot approve it"));
    }
    check_maintainer_key(&p.signature, &contributor)?;
    verify_signature(&review.manifest, &p.signature).map_err(|error| match error {
        SignatureError::Mismatch => {
            ProtocolError::conflict("the signature is not over the manifest under review")
        }
        other => signature_error(other),
    })?;
    let key = fingerprint(&p.signature.public_key).map_err(signature_error)?;
    let effects = bind_key(state, &key, actor)?;
    let review = Review { maintainer: Some(p.signature.clone()), ..review.clone() };
    let action = AxpAction::ReviewChanged { review: review.clone() };
    Ok(Decision { effects, ..Decision::new(vec![exchange(session, action)], &review)? })
}

fn check_maintainer_key(signature: &Signature, contributor: &Digest) -> Result<(), ProtocolError> {
    let key = fingerprint(&signature.public_key).map_err(signature_error)?;
    if key == *contributor {
        return Err(ProtocolError::not_permitted(
            "the maintainer must sign with another key than the contributor",
        ));
    }
    Ok(())
}

/// Decides `_axp/verify`.
pub(super) fn verify(
    session: &Session,
    lookup: &mut dyn Lookup,
    actor: &Principal,
    p: &params::Verify,
    now: u64,
) -> Result<Decision, Refusal> {
    require_role(actor, &[Role::Verifier], "verify")?;
    require_open(session)?;
    if session.exchange.checkpoint.as_ref().is_none_or(|c| c.head_commit != p.head_commit) {
        return Err(ProtocolError::conflict(format!(
            "{} is not the current checkpoint of session {}",
            p.head_commit, session.id
        ))
        .into());
    }
    check_blob(session, lookup, &p.output, "output")?;
    let verification = Verification {
        head_commit: p.head_commit.clone(),
        verifier: actor.id.to_string(),
        command: p.command.iter().map(ToString::to_string).collect(),
        exit_code: p.exit_code.get(),
        output: p.output.clone(),
        verified_at: now,
    };
    Ok(Decision::new(vec![exchange(session, AxpAction::VerificationChanged { verification })], &())?)
}

#[cfg(test)]
mod tests {
    use super::is_relative_file;

    #[test]
    fn paths_stay_inside_the_repository() {
        for good in ["a", "src/lib.rs", "with space/ü", "..hidden/x"] {
            assert!(is_relative_file(good), "{good}");
        }
        for bad in ["/etc/passwd", "../x", "a/../b", "a//b", "./a", "a/", "a\0b"] {
            assert!(!is_relative_file(bad), "{bad}");
        }
    }
}
