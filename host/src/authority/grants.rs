//! Executors and budgets (sections 6 and 7).

use axp_protocol::ProtocolError;
use axp_protocol::action::{Action, AxpAction};
use axp_protocol::channel::Channel;
use axp_protocol::method::params;
use axp_protocol::principal::{Principal, Role};
use axp_protocol::scalar::Id;
use axp_protocol::shape::{ExecutorInfo, Grant, SessionPhase};

use super::decide::{Decision, exchange, require_open, require_role};
use super::lease::lease_changed;
use super::state::{Session, State};
use super::turn;

/// Grants of one session; more is a mistake or an attack.
const GRANTS: usize = 256;
/// Registered executors of a host.
const EXECUTORS: usize = 4096;

pub(super) fn register(
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

pub(super) fn grant(
    session: &Session,
    actor: &Principal,
    p: &params::Grant,
) -> Result<Decision, ProtocolError> {
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

pub(super) fn revoke(
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
