//! What each command may do, and what it does: pure decisions over the state (section 7). Nothing here writes.

use axp_protocol::ProtocolError;
use axp_protocol::action::{Action, AxpAction};
use axp_protocol::channel::Channel;
use axp_protocol::method::Call;
use axp_protocol::principal::{Principal, Role};
use axp_protocol::scalar::{Digest, Id};
use axp_protocol::shape::SessionPhase;
use serde::Serialize;

use super::state::{Session, State};
use super::{artifacts, context, emit, grants, knowledge, lease, review, turn};
use crate::store::{BlobMeta, StoreError};

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
    let article = if actor.role == Role::Observer { "an" } else { "a" };
    Err(ProtocolError::not_permitted(format!("{article} {} may not {what}", actor.role.as_str())))
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
        Call::Register(p) => return Ok(grants::register(state, actor, p, now)?),
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
        Call::Grant(p) => grants::grant(session, actor, p)?,
        Call::Revoke(p) => grants::revoke(session, actor, p, now)?,
        Call::Claim(p) => lease::claim(state, session, actor, p, now)?,
        Call::Renew(p) => lease::renew(session, actor, p.epoch.get(), now)?,
        Call::Release(p) => lease::release(session, actor, p.epoch.get(), now)?,
        Call::Reserve(p) => lease::reserve(session, actor, p, now)?,
        Call::Emit(p) => emit::emit(session, lookup, actor, p, now)?,
        Call::Settle(p) => lease::settle(session, actor, p, now)?,
        Call::Checkpoint(p) => artifacts::checkpoint(session, lookup, actor, p, now)?,
        Call::Close(_) => lease::close(session, actor, now)?,
        Call::BlobGet(p) => artifacts::blob_get(session, lookup, &p.digest)?,
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

/// An action on the exchange channel.
pub(super) fn exchange(session: &Session, action: AxpAction) -> (Channel, Action) {
    (Channel::Exchange(session.id.clone()), action.into())
}
