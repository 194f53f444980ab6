//! Who may run a session, until when, and what its turns are charged (section 7).

use axp_protocol::ProtocolError;
use axp_protocol::action::{Action, AxpAction};
use axp_protocol::channel::Channel;
use axp_protocol::method::{TurnOutcome, params};
use axp_protocol::principal::{Principal, Role};
use axp_protocol::shape::{Lease, Reservation, SessionPhase, Usage};

use super::decide::{Decision, exchange, require_open, require_role};
use super::state::{Session, State};
use super::turn;

pub(super) fn lease_changed(
    session: &Session,
    lease: Option<Lease>,
    status: SessionPhase,
) -> (Channel, Action) {
    let epoch = lease.as_ref().map_or(session.exchange.epoch, |l| l.epoch);
    exchange(session, AxpAction::LeaseChanged { lease, epoch, status })
}

pub(super) fn claim(
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

pub(super) fn renew(
    session: &Session,
    actor: &Principal,
    epoch: u64,
    now: u64,
) -> Result<Decision, ProtocolError> {
    let lease = fenced(session, actor, epoch, now)?;
    // The length is a third per heartbeat; a clock that went back must not shorten what was promised.
    let expires_at = (now + lease.heartbeat_ms * 3).max(lease.expires_at);
    let lease = Lease { expires_at, ..lease.clone() };
    Decision::new(vec![lease_changed(session, Some(lease.clone()), SessionPhase::Open)], &lease)
}

pub(super) fn release(
    session: &Session,
    actor: &Principal,
    epoch: u64,
    now: u64,
) -> Result<Decision, ProtocolError> {
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

pub(super) fn reserve(
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

pub(super) fn settle(
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

pub(super) fn close(session: &Session, actor: &Principal, now: u64) -> Result<Decision, ProtocolError> {
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
