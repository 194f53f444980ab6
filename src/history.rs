//! An exported history, checked without a host: whoever has the file can audit a contribution.

use std::collections::BTreeMap;

use axp_protocol::action::Envelope;
use axp_protocol::canonical::hash;
use axp_protocol::channel::Channel;
use axp_protocol::method::History;
use axp_protocol::scalar::Id;
use axp_protocol::shape::{ExchangeState, Review};
use axp_protocol::signature::{fingerprint, verify};
use axp_protocol::state::{ChannelState, replay};
use serde::Serialize;
use serde_json::Value;

/// Something that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What.
    pub what: String,
    /// Whether it holds.
    pub holds: bool,
    /// What was found, in a few words.
    pub found: String,
}

/// Why a history cannot be checked at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// An action or a state cannot be read, or the order is broken.
    #[error("{0}")]
    Unreadable(String),
    /// It does not hold exactly one session.
    #[error("it holds no session, or more than one")]
    Session,
    /// It was made by another version.
    #[error("it was written by AXP {0}, this program reads {expected}", expected = axp_protocol::AXP_VERSION)]
    Version(String),
}

/// The session that a history is of.
///
/// # Errors
/// When there is none, or more than one.
pub fn session_of(history: &History) -> Result<Id, HistoryError> {
    let ids = history.snapshots.iter().filter_map(|s| match Channel::parse(&s.resource) {
        Ok(Channel::Exchange(id)) => Some(id),
        _ => None,
    });
    match ids.collect::<Vec<_>>().as_slice() {
        [id] => Ok(id.clone()),
        _ => Err(HistoryError::Session),
    }
}

/// The hash of a session's recorded actions through a sequence number: those of its chat, exchange and session
/// channels (protocol, section 8).
///
/// # Errors
/// When the actions cannot be written as JSON.
pub fn trace_hash(actions: &[Value], session: &Id, through: u64) -> Result<String, HistoryError> {
    let channels = [
        Channel::Chat(session.clone()).to_string(),
        Channel::Exchange(session.clone()).to_string(),
        Channel::Session(session.clone()).to_string(),
    ];
    let within = |action: &&Value| {
        let channel = action.get("channel").and_then(Value::as_str);
        let seq = action.get("serverSeq").and_then(Value::as_u64);
        channel.is_some_and(|c| channels.iter().any(|known| known == c)) && seq.is_some_and(|s| s <= through)
    };
    hash(&actions.iter().filter(within).collect::<Vec<_>>())
        .map_err(|e| HistoryError::Unreadable(e.to_string()))
}

/// Recomputes what a history says from its beginnings, and checks the signatures in it.
///
/// # Errors
/// When it cannot be read as a history of one session.
pub fn audit(history: &History) -> Result<Vec<Check>, HistoryError> {
    if history.version != axp_protocol::AXP_VERSION {
        return Err(HistoryError::Version(history.version.clone()));
    }
    let session = session_of(history)?;
    let envelopes = envelopes(history)?;
    let seeds: BTreeMap<_, _> = history.seeds.iter().map(|s| (s.resource.clone(), s.state.clone())).collect();
    let states = replay(&seeds, &envelopes).map_err(|e| HistoryError::Unreadable(e.message))?;
    let mut checks = vec![within(history, &envelopes), states_check(history, &states)?];
    let exchange = Channel::Exchange(session.clone()).to_string();
    if let Some(ChannelState::Exchange(exchange)) = states.get(&exchange) {
        checks.push(Check {
            what: "repository".into(),
            holds: exchange.repository == history.repository,
            found: exchange.repository.clone(),
        });
        checks.push(budgets(exchange));
        if let Some(review) = &exchange.review {
            checks.extend(review_checks(history, &session, exchange, review)?);
        }
    }
    Ok(checks)
}

/// The actions of a history.
///
/// # Errors
/// When one cannot be read.
pub fn envelopes(history: &History) -> Result<Vec<Envelope>, HistoryError> {
    let read = |(n, action): (usize, &Value)| {
        serde_json::from_value(action.clone())
            .map_err(|e| HistoryError::Unreadable(format!("action {}: {e}", n + 1)))
    };
    history.actions.iter().enumerate().map(read).collect()
}

fn within(history: &History, envelopes: &[Envelope]) -> Check {
    let last = envelopes.last().map_or(0, |e| e.server_seq);
    Check {
        what: "order of the actions".into(),
        holds: last <= history.server_seq,
        found: format!("{} actions up to {last}", envelopes.len()),
    }
}

fn states_check(history: &History, states: &BTreeMap<String, ChannelState>) -> Result<Check, HistoryError> {
    let mut wrong = vec![];
    for (name, state) in states {
        let computed = serde_json::to_value(state).map_err(|e| HistoryError::Unreadable(e.to_string()))?;
        let told = history.snapshots.iter().find(|s| s.resource == *name);
        if told.is_none_or(|told| told.state != computed) {
            wrong.push(name.clone());
        }
    }
    let unseeded = history.snapshots.iter().filter(|s| !states.contains_key(&s.resource));
    wrong.extend(unseeded.map(|s| s.resource.clone()));
    Ok(Check {
        what: "states recomputed from the actions".into(),
        holds: wrong.is_empty(),
        found: if wrong.is_empty() {
            format!("{} as the host told them", states.len())
        } else {
            format!("not as the host told them: {}", wrong.join(", "))
        },
    })
}

/// What each grant has spent is what its turns were settled at.
fn budgets(exchange: &ExchangeState) -> Check {
    let off: Vec<_> = exchange
        .grants
        .values()
        .filter(|grant| {
            let turns = exchange.usage.iter().filter(|settled| settled.grant_id == grant.id);
            let (mut tokens, mut cost, mut count) = (0u64, 0u64, 0u64);
            for charge in turns.map(|settled| settled.usage.charge()) {
                tokens = tokens.saturating_add(charge.tokens);
                cost = cost.saturating_add(charge.cost_micros);
                count += 1;
            }
            (grant.spent.tokens, grant.spent.cost_micros, grant.spent.turns) != (tokens, cost, count)
        })
        .map(|grant| grant.id.to_string())
        .collect();
    Check {
        what: "spending".into(),
        holds: off.is_empty(),
        found: match off.as_slice() {
            [] => format!("{} settled turns add up", exchange.usage.len()),
            some => format!("does not add up for {}", some.join(", ")),
        },
    }
}

fn review_checks(
    history: &History,
    session: &Id,
    exchange: &ExchangeState,
    review: &Review,
) -> Result<Vec<Check>, HistoryError> {
    let manifest = &review.manifest;
    let trace = trace_hash(&history.actions, session, manifest.trace_through_seq)?;
    let check = |what: &str, holds: bool, found: String| Check { what: what.into(), holds, found };
    let mut checks = vec![
        check("manifest", manifest_fits(exchange, review), format!("of {}", &*manifest.head_commit)),
        check("trace hash", trace == *manifest.trace_hash, trace),
        signature("contributor's signature", review, &review.contributor),
    ];
    if let Some(maintainer) = &review.maintainer {
        checks.push(signature("maintainer's signature", review, maintainer));
        let keys = (fingerprint(&review.contributor.public_key), fingerprint(&maintainer.public_key));
        let differ = matches!(&keys, (Ok(a), Ok(b)) if a != b);
        checks.push(check("two keys", differ, if differ { "they differ" } else { "the same" }.into()));
    }
    Ok(checks)
}

/// Whether a review speaks of the checkpoint that is there.
pub fn manifest_fits(exchange: &ExchangeState, review: &Review) -> bool {
    let manifest = &review.manifest;
    exchange.checkpoint.as_ref().is_some_and(|checkpoint| {
        *manifest.repository == *exchange.repository
            && *manifest.session == *exchange.session
            && manifest.base_commit == checkpoint.base_commit
            && manifest.head_commit == checkpoint.head_commit
            && hash(checkpoint).is_ok_and(|digest| digest == *manifest.checkpoint_digest)
    })
}

fn signature(what: &str, review: &Review, signature: &axp_protocol::shape::Signature) -> Check {
    let result = verify(&review.manifest, signature);
    let key = fingerprint(&signature.public_key).map(|key| key.to_string());
    Check {
        what: what.into(),
        holds: result.is_ok(),
        found: match (result, key) {
            (Ok(()), Ok(key)) => format!("by key {key}"),
            (Err(error), _) | (_, Err(error)) => error.to_string(),
        },
    }
}
