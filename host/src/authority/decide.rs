//! What each command may do, and what it does: pure decisions over the state (section 7). Nothing here writes.

use axp_protocol::ProtocolError;
use axp_protocol::action::{Action, AxpAction};
use axp_protocol::channel::{self, Channel};
use axp_protocol::method::{Call, TurnOutcome, params};
use axp_protocol::scalar::{Digest, Id};
use axp_protocol::shape::{
    BlobRef, ExecutorInfo, Grant, Lease, Principal, Reservation, Role, SessionPhase, Usage,
};
use serde::Serialize;

use super::state::{Session, State};
use super::{context, emit, knowledge, review, turn};
use crate::store::{BlobMeta, StoreError};

/// Grants of one session; more is a mistake or an attack.
const GRANTS: usize = 256;
/// Registered executors of a host.
const EXECUTORS: usize = 4096;

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// The rules say no.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// Storage failed while deciding.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Looks stored things up while deciding.
pub(crate) trait Lookup {
    /// A blob as the session knows it.
    fn meta(&mut self, session: &Id, digest: &Digest) -> Result<Option<BlobMeta>, StoreError>;
    /// Whether anything of the session is in this part of the log.
    fn has_events(&mut self, session: &Id, from: u64, to: u64) -> Result<bool, StoreError>;
    /// What a review signs of the log.
    fn trace(&mut self, session: &Id, through: u64) -> Result<Trace, StoreError>;
}

/// The recorded actions of a session's chat, exchange and session channels (section 8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trace {
    /// Hash of their canonical list.
    pub(crate) hash: String,
    /// Whether the newest checkpoint of the session is among them.
    pub(crate) has_checkpoint: bool,
}

/// What answers a request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    /// JSON of the result.
    Json(String),
    /// Content of a blob, read from the store.
    Blob { session: Id, digest: Digest },
    /// The same, as an AHP resource; as text where it is asked for and is text.
    Resource { session: Id, digest: Digest, text: bool },
    /// History of a session, read from the store.
    Export { session: Id },
}

/// A change beside the actions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Effect {
    /// Gives a session access to a blob, storing its content if it is new.
    PutBlob { session: Id, digest: Digest, media_type: String, data: Vec<u8> },
    /// Binds a key to the principal that first uses it.
    BindKey { key: Digest, principal: Id },
}

/// What a command does.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Decision {
    pub(crate) events: Vec<(Channel, Action)>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) answer: Answer,
}

impl Decision {
    pub(crate) fn new<T: Serialize>(
        events: Vec<(Channel, Action)>,
        result: &T,
    ) -> Result<Self, ProtocolError> {
        Ok(Self { events, effects: vec![], answer: Answer::Json(json(result)?) })
    }
}

pub(crate) fn json<T: Serialize>(value: &T) -> Result<String, ProtocolError> {
    serde_json::to_string(value)
        .map_err(|e| ProtocolError::internal(format!("a result cannot be written: {e}")))
}

/// The session a command is addressed to, if this principal may read it. A session out of scope looks like none.
pub(crate) fn readable<'a>(
    state: &'a State,
    actor: &Principal,
    channel: &Channel,
) -> Result<&'a Session, ProtocolError> {
    let id = channel
        .session()
        .ok_or_else(|| ProtocolError::invalid_params("this command needs the channel of a session"))?;
    state
        .sessions
        .get(id)
        .filter(|_| actor.reads(id))
        .ok_or_else(|| ProtocolError::session_not_found(format!("no session {id} here that you may read")))
}

pub(crate) fn require_role(actor: &Principal, roles: &[Role], what: &str) -> Result<(), ProtocolError> {
    if roles.contains(&actor.role) {
        return Ok(());
    }
    Err(ProtocolError::not_permitted(format!("a {} may not {what}", actor.role.as_str())))
}

pub(crate) fn require_open(session: &Session) -> Result<(), ProtocolError> {
    if session.exchange.status == SessionPhase::Closed {
        return Err(ProtocolError::conflict(format!("session {} is closed", session.id)));
    }
    Ok(())
}

/// Decides a call of the method table.
pub(crate) fn decide(
    state: &State,
    lookup: &mut dyn Lookup,
    actor: &Principal,
    call: &Call,
    now: u64,
) -> Result<Decision, Refusal> {
    let channel = Channel::parse(call.channel())?;
    match call {
        Call::Register(p) => return Ok(register(state, actor, p, now)?),
        Call::MemoryReview(p) => return Ok(knowledge::review(state, actor, p)?),
        Call::MemorySearch(p) => {
            let hits = knowledge::search(&state.memory, actor, &p.query, p.limit.get());
            return Ok(Decision::new(vec![], &hits)?);
        }
        _ => {}
    }
    let session = readable(state, actor, &channel)?;
    Ok(match call {
        Call::Dispatch(p) => turn::dispatch(session, actor, &channel, &p.action.0, now)?,
        Call::Grant(p) => grant(session, actor, p)?,
        Call::Revoke(p) => revoke(session, actor, p, now)?,
        Call::Claim(p) => claim(state, session, actor, p, now)?,
        Call::Renew(p) => renew(session, actor, p.epoch.get(), now)?,
        Call::Release(p) => release(session, actor, p.epoch.get(), now)?,
        Call::Reserve(p) => reserve(session, actor, p, now)?,
        Call::Emit(p) => emit::emit(session, lookup, actor, p, now)?,
        Call::Settle(p) => settle(session, actor, p, now)?,
        Call::Checkpoint(p) => checkpoint(session, lookup, actor, p, now)?,
        Call::Close(_) => close(session, actor, now)?,
        Call::BlobGet(p) => blob_get(session, lookup, &p.digest)?,
        Call::Context(p) => {
            Decision::new(vec![], &context::compose(state, session, actor, p.max_chars.get())?)?
        }
        Call::Export(_) => Decision {
            events: vec![],
            effects: vec![],
            answer: Answer::Export { session: session.id.clone() },
        },
        Call::Comment(p) => review::comment(session, actor, p, now)?,
        Call::Compact(p) => knowledge::compact(state, session, actor, p)?,
        Call::AcceptCompaction(p) => knowledge::accept(session, actor, p)?,
        Call::MemoryPropose(p) => knowledge::propose(state, session, lookup, actor, p)?,
        Call::Review(p) => review::review(state, session, lookup, actor, p)?,
        Call::ApproveReview(p) => review::approve(state, session, actor, p)?,
        Call::Verify(p) => review::verify(session, lookup, actor, p, now)?,
        // Decided above or, with its content, by `put_blob`.
        Call::Register(_) | Call::MemoryReview(_) | Call::MemorySearch(_) | Call::BlobPut(_) => {
            return Err(ProtocolError::internal("a call that is decided elsewhere").into());
        }
    })
}

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

fn register(
    state: &State,
    actor: &Principal,
    p: &params::Register,
    now: u64,
) -> Result<Decision, ProtocolError> {
    require_role(actor, &[Role::Contributor, Role::Maintainer], "register an executor")?;
    match state.executors.entries.get(&p.executor_id) {
        Some(known) if known.owner != actor.id.as_str() => {
            return Err(ProtocolError::not_permitted(format!(
                "executor {} belongs to somebody else",
                p.executor_id
            )));
        }
        None if state.executors.entries.len() >= EXECUTORS => {
            return Err(ProtocolError::limit(format!("this host keeps at most {EXECUTORS} executors")));
        }
        _ => {}
    }
    let executor = ExecutorInfo {
        id: p.executor_id.clone(),
        owner: actor.id.to_string(),
        name: p.name.to_string(),
        placement: p.placement,
        capabilities: p.capabilities.iter().map(ToString::to_string).collect(),
        expires_at: now + p.ttl_ms.get(),
        online: true,
    };
    let action = AxpAction::ExecutorChanged { executor: executor.clone() };
    Decision::new(vec![(Channel::Executors, action.into())], &executor)
}

/// The action that marks an executor whose registration ran out.
pub(crate) fn executor_offline(executor: &ExecutorInfo) -> (Channel, Action) {
    let executor = ExecutorInfo { online: false, ..executor.clone() };
    (Channel::Executors, AxpAction::ExecutorChanged { executor }.into())
}

fn exchange(session: &Session, action: AxpAction) -> (Channel, Action) {
    (Channel::Exchange(session.id.clone()), action.into())
}

fn grant(session: &Session, actor: &Principal, p: &params::Grant) -> Result<Decision, ProtocolError> {
    require_role(actor, &[Role::Contributor, Role::Maintainer], "grant a budget")?;
    require_open(session)?;
    let grants = &session.exchange.grants;
    let spent = match grants.get(&p.grant_id) {
        None if grants.len() >= GRANTS => {
            return Err(ProtocolError::limit(format!("a session takes at most {GRANTS} grants")));
        }
        None => Default::default(),
        Some(known) => {
            if known.owner != actor.id.as_str() {
                return Err(ProtocolError::not_permitted(format!(
                    "grant {} belongs to somebody else",
                    p.grant_id
                )));
            }
            if known.revoked {
                return Err(ProtocolError::budget(format!("grant {} is revoked", p.grant_id)));
            }
            if session.exchange.reservation.as_ref().is_some_and(|r| r.grant_id == p.grant_id) {
                return Err(ProtocolError::conflict(format!(
                    "grant {} has a turn reserved; change it when the turn has ended",
                    p.grant_id
                )));
            }
            if !known.spent.within(&p.limit) {
                return Err(ProtocolError::budget(format!(
                    "the limit of grant {} cannot go below what is spent: {} tokens, {} USD millionths, {} turns",
                    p.grant_id, known.spent.tokens, known.spent.cost_micros, known.spent.turns
                )));
            }
            known.spent
        }
    };
    let grant = Grant {
        id: p.grant_id.clone(),
        owner: actor.id.to_string(),
        limit: p.limit,
        spent,
        revoked: false,
        enforcement: p.enforcement,
    };
    Decision::new(vec![exchange(session, AxpAction::GrantChanged { grant: grant.clone() })], &grant)
}

fn revoke(
    session: &Session,
    actor: &Principal,
    p: &params::Revoke,
    now: u64,
) -> Result<Decision, ProtocolError> {
    let Some(known) = session.exchange.grants.get(&p.grant_id) else {
        return Err(ProtocolError::not_found(format!("no grant {} in session {}", p.grant_id, session.id)));
    };
    if known.owner != actor.id.as_str() {
        return Err(ProtocolError::not_permitted(format!("grant {} belongs to somebody else", p.grant_id)));
    }
    if known.revoked {
        return Decision::new(vec![], &());
    }
    let uses = |grant: &Id| *grant == p.grant_id;
    let mut events = vec![];
    let mut revoked = known.clone();
    if session.exchange.reservation.as_ref().is_some_and(|r| uses(&r.grant_id)) {
        let end = turn::End::error("revoked", "the contributor revoked the grant while the turn ran");
        let (ended, grant) = turn::end_reserved(session, None, &end, now);
        events.extend(ended);
        revoked = grant.unwrap_or(revoked);
    }
    revoked.revoked = true;
    events.push(exchange(session, AxpAction::GrantChanged { grant: revoked }));
    if session.exchange.lease.as_ref().is_some_and(|l| uses(&l.grant_id)) {
        events.push(lease_changed(session, None, SessionPhase::Orphaned));
    }
    Decision::new(events, &())
}

fn lease_changed(session: &Session, lease: Option<Lease>, status: SessionPhase) -> (Channel, Action) {
    let epoch = lease.as_ref().map_or(session.exchange.epoch, |l| l.epoch);
    exchange(session, AxpAction::LeaseChanged { lease, epoch, status })
}

fn claim(
    state: &State,
    session: &Session,
    actor: &Principal,
    p: &params::Claim,
    now: u64,
) -> Result<Decision, ProtocolError> {
    require_role(actor, &[Role::Contributor, Role::Maintainer], "run a session")?;
    require_open(session)?;
    let Some(grant) = session.exchange.grants.get(&p.grant_id) else {
        return Err(ProtocolError::not_found(format!("no grant {} in session {}", p.grant_id, session.id)));
    };
    if grant.owner != actor.id.as_str() {
        return Err(ProtocolError::not_permitted(format!("grant {} belongs to somebody else", p.grant_id)));
    }
    if grant.revoked {
        return Err(ProtocolError::budget(format!("grant {} is revoked", p.grant_id)));
    }
    if state.executors.entries.get(&p.executor_id).is_some_and(|e| e.owner != actor.id.as_str()) {
        return Err(ProtocolError::not_permitted(format!(
            "executor {} belongs to somebody else",
            p.executor_id
        )));
    }
    let mut events = vec![];
    if let Some(resume) = p.resume_epoch
        && resume.get() != session.exchange.epoch
    {
        return Err(ProtocolError::stale_lease(format!(
            "session {} moved on to epoch {}; epoch {} cannot be resumed",
            session.id,
            session.exchange.epoch,
            resume.get()
        )));
    }
    if let Some(lease) = &session.exchange.lease {
        let same = lease.owner == actor.id.as_str()
            && lease.executor_id == p.executor_id
            && lease.grant_id == p.grant_id;
        if p.resume_epoch.is_none() || !same {
            return Err(ProtocolError::conflict(format!(
                "{} runs session {} (epoch {})",
                lease.owner, session.id, lease.epoch
            )));
        }
    }
    if session.exchange.reservation.is_some() {
        let end = turn::End::error("lease", "the contributor's connection was lost while the turn ran");
        events.extend(turn::end_reserved(session, None, &end, now).0);
    }
    let lease = Lease {
        owner: actor.id.to_string(),
        executor_id: p.executor_id.clone(),
        epoch: session.exchange.epoch + 1,
        expires_at: now + p.lease_ms.get(),
        heartbeat_ms: p.lease_ms.get() / 3,
        grant_id: p.grant_id.clone(),
    };
    events.push(lease_changed(session, Some(lease.clone()), SessionPhase::Open));
    Decision::new(events, &lease)
}

/// The lease that this executor mutation is made under, if it holds (section 7).
pub(crate) fn fenced<'a>(
    session: &'a Session,
    actor: &Principal,
    epoch: u64,
    now: u64,
) -> Result<&'a Lease, ProtocolError> {
    let stale = |why: String| ProtocolError::stale_lease(why);
    let Some(lease) = &session.exchange.lease else {
        return Err(stale(format!("nobody holds session {}", session.id)));
    };
    if lease.owner != actor.id.as_str() || lease.epoch != epoch {
        return Err(stale(format!(
            "epoch {epoch} does not hold session {}; epoch {} does",
            session.id, lease.epoch
        )));
    }
    if lease.expires_at <= now {
        return Err(stale(format!("the lease of epoch {epoch} on session {} has expired", session.id)));
    }
    if session.exchange.status != SessionPhase::Open {
        return Err(stale(format!("session {} is not open", session.id)));
    }
    if session.exchange.grants.get(&lease.grant_id).is_none_or(|g| g.revoked) {
        return Err(ProtocolError::budget(format!("grant {} is revoked", lease.grant_id)));
    }
    Ok(lease)
}

fn renew(session: &Session, actor: &Principal, epoch: u64, now: u64) -> Result<Decision, ProtocolError> {
    let lease = fenced(session, actor, epoch, now)?;
    // The length is a third per heartbeat; a clock that went back must not shorten what was promised.
    let expires_at = (now + lease.heartbeat_ms * 3).max(lease.expires_at);
    let lease = Lease { expires_at, ..lease.clone() };
    Decision::new(vec![lease_changed(session, Some(lease.clone()), SessionPhase::Open)], &lease)
}

fn release(session: &Session, actor: &Principal, epoch: u64, now: u64) -> Result<Decision, ProtocolError> {
    fenced(session, actor, epoch, now)?;
    let mut events = vec![];
    if session.exchange.reservation.is_some() {
        let end = turn::End::error("lease", "the contributor released the session while the turn ran");
        events.extend(turn::end_reserved(session, None, &end, now).0);
    }
    events.push(lease_changed(session, None, SessionPhase::Open));
    Decision::new(events, &())
}

/// The actions that orphan a session whose lease is over: the reserved turn is charged in full and ends as an
/// error, and it can be claimed again (section 7).
pub(crate) fn orphan(session: &Session, why: &str, now: u64) -> Vec<(Channel, Action)> {
    let mut events = vec![];
    if session.exchange.reservation.is_some() {
        events.extend(turn::end_reserved(session, None, &turn::End::error("lease", why), now).0);
    }
    events.push(lease_changed(session, None, SessionPhase::Orphaned));
    events
}

fn reserve(
    session: &Session,
    actor: &Principal,
    p: &params::Reserve,
    now: u64,
) -> Result<Decision, ProtocolError> {
    let lease = fenced(session, actor, p.epoch.get(), now)?;
    if p.ceiling.turns != 1 || p.ceiling.tokens == 0 {
        return Err(ProtocolError::invalid_params(
            "ceiling: a reservation is for one turn and at least one token",
        )
        .with_data(serde_json::json!({ "path": "ceiling" })));
    }
    if session.chat.active_turn.as_ref().is_none_or(|t| t.id != p.turn_id.as_str()) {
        return Err(ProtocolError::conflict(format!("turn {} is not active", p.turn_id)));
    }
    if let Some(reservation) = &session.exchange.reservation {
        return Err(ProtocolError::conflict(format!("turn {} is reserved already", reservation.turn_id)));
    }
    let grant = &session.exchange.grants[&lease.grant_id];
    if !grant.spent.plus(&p.ceiling).within(&grant.limit) {
        let left = grant.limit.left(&grant.spent);
        return Err(ProtocolError::budget(format!(
            "grant {} has {} tokens, {} USD millionths and {} turns left",
            grant.id, left.tokens, left.cost_micros, left.turns
        )));
    }
    let reservation = Reservation {
        turn_id: p.turn_id.clone(),
        grant_id: lease.grant_id.clone(),
        epoch: lease.epoch,
        ceiling: p.ceiling,
        started_at: now,
    };
    Decision::new(vec![exchange(session, AxpAction::Reserved { reservation })], &())
}

fn settle(
    session: &Session,
    actor: &Principal,
    p: &params::Settle,
    now: u64,
) -> Result<Decision, ProtocolError> {
    fenced(session, actor, p.epoch.get(), now)?;
    let ended = session.exchange.usage.iter().any(|u| u.turn_id == p.turn_id)
        || session.chat.turns.iter().any(|t| t.id == p.turn_id.as_str());
    if ended {
        return Decision::new(vec![], &());
    }
    let error = p.error.as_deref().filter(|e| !e.is_empty());
    let reserved = session
        .exchange
        .reservation
        .as_ref()
        .is_some_and(|r| r.turn_id == p.turn_id && r.epoch == p.epoch.get());
    if !reserved {
        // A holder that cannot pay for the active turn may end it, so that whoever waits for it learns why.
        let active = session.chat.active_turn.as_ref().is_some_and(|t| t.id == p.turn_id.as_str());
        if active
            && session.exchange.reservation.is_none()
            && p.usage.is_none()
            && p.outcome == TurnOutcome::Error
        {
            let end = turn::End::error("budget", error.unwrap_or("the turn was not begun"));
            return Decision::new(turn::end_turn(session, &end, now), &());
        }
        return Err(ProtocolError::stale_lease(format!("turn {} is not reserved by this epoch", p.turn_id)));
    }
    if let Some(usage) = &p.usage
        && usage.cache_read_tokens > usage.input_tokens
    {
        return Err(ProtocolError::invalid_params(
            "usage.cacheReadTokens: more than inputTokens, of which it is a part",
        )
        .with_data(serde_json::json!({ "path": "usage.cacheReadTokens" })));
    }
    let end = match p.outcome {
        TurnOutcome::Complete => turn::End::Complete,
        TurnOutcome::Cancelled => turn::End::Cancelled,
        TurnOutcome::Error => turn::End::error("agent", error.unwrap_or("the agent failed")),
    };
    let usage: Option<Usage> = p.usage;
    let (events, _) = turn::end_reserved(session, usage, &end, now);
    Decision::new(events, &())
}

fn close(session: &Session, actor: &Principal, now: u64) -> Result<Decision, ProtocolError> {
    require_role(actor, &[Role::Maintainer], "close a session")?;
    require_open(session)?;
    let mut events = turn::clear_pending(session);
    if session.chat.active_turn.is_some() {
        events.extend(turn::cancel(session, now));
    }
    events.push(lease_changed(session, None, SessionPhase::Closed));
    events.push((
        Channel::Session(session.id.clone()),
        ahp_types::StateAction::SessionIsArchivedChanged(
            ahp_types::actions::SessionIsArchivedChangedAction { is_archived: true },
        )
        .into(),
    ));
    Decision::new(events, &())
}

fn blob_get(session: &Session, lookup: &mut dyn Lookup, digest: &Digest) -> Result<Decision, Refusal> {
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

fn checkpoint(
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
