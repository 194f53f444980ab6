//! An exported history, checked without a host: whoever has the file can audit a contribution.

use std::collections::BTreeMap;

use axp_protocol::canonical::{ListHash, hash};
use axp_protocol::channel::Channel;
use axp_protocol::method::ChannelSnapshot;
use axp_protocol::scalar::Id;
use axp_protocol::shape::{ExchangeState, Review};
use axp_protocol::signature::{fingerprint, verify};
use axp_protocol::state::{ChannelState, Replay};
use serde::Serialize;
use serde_json::Value;

use super::archive::{Archive, Head, HistoryError, understood};

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

/// The hash of a session's recorded actions through a sequence number: those of its chat, exchange and session
/// channels (protocol, section 8).
#[derive(Debug)]
pub struct Trace {
    channels: [String; 3],
    through: u64,
    list: ListHash,
}

impl Trace {
    /// Begins.
    pub fn new(session: &Id, through: u64) -> Self {
        let channels = [
            Channel::Chat(session.clone()).to_string(),
            Channel::Exchange(session.clone()).to_string(),
            Channel::Session(session.clone()).to_string(),
        ];
        Self { channels, through, list: ListHash::default() }
    }

    /// Takes the next action, if it belongs to it.
    pub fn push(&mut self, action: &Value) {
        let channel = action.get("channel").and_then(Value::as_str);
        let seq = action.get("serverSeq").and_then(Value::as_u64);
        if channel.is_some_and(|c| self.channels.iter().any(|known| known == c))
            && seq.is_some_and(|s| s <= self.through)
        {
            self.list.push(action);
        }
    }

    /// Lower-case hex SHA-256.
    pub fn finish(self) -> String {
        self.list.finish()
    }
}

/// Recomputes what a history says from its beginnings, and checks the signatures in it.
///
/// # Errors
/// When it cannot be read, or its actions cannot be understood.
pub fn audit(archive: &mut Archive) -> Result<Vec<Check>, HistoryError> {
    let session = archive.session().clone();
    let head = archive.head().clone();
    let exchange_name = Channel::Exchange(session.clone()).to_string();
    // What the host tells of it is compared with what comes out below.
    let told = head.snapshots.iter().find(|s| s.resource == exchange_name);
    let review: Option<Review> = told
        .and_then(|told| told.state.get("review"))
        .map(|review| serde_json::from_value(review.clone()))
        .transpose()
        .map_err(|e| HistoryError::Unreadable(format!("the review: {e}")))?
        .flatten();
    let through = review.as_ref().map_or(0, |review| review.manifest.trace_through_seq);
    let mut trace = Trace::new(&session, through);
    let unreadable = |e: axp_protocol::ProtocolError| HistoryError::Unreadable(e.message);
    let seeds = head.seeds.iter().map(|seed| (seed.resource.as_str(), seed.state.clone()));
    let mut replay = Replay::new(seeds).map_err(unreadable)?;
    let mut n = 0;
    archive.actions(|action| {
        n += 1;
        trace.push(&action);
        replay.apply(&understood(action, n)?).map_err(unreadable)
    })?;

    let mut checks = vec![
        Check {
            what: "order of the actions".into(),
            holds: replay.last() <= head.server_seq,
            found: format!("{n} actions up to {}, of {}", replay.last(), head.server_seq),
        },
        states_check(&head.snapshots, replay.states())?,
    ];
    if let Some(ChannelState::Exchange(exchange)) = replay.states().get(&exchange_name) {
        checks.push(repository(&head, exchange));
        checks.push(budgets(exchange));
        if let Some(review) = &review {
            checks.extend(review_checks(exchange, review, trace.finish()));
        }
    }
    Ok(checks)
}

fn repository(head: &Head, exchange: &ExchangeState) -> Check {
    Check {
        what: "repository".into(),
        holds: exchange.repository == head.repository,
        found: exchange.repository.clone(),
    }
}

fn states_check(
    told: &[ChannelSnapshot],
    states: &BTreeMap<String, ChannelState>,
) -> Result<Check, HistoryError> {
    let mut wrong = vec![];
    for (name, state) in states {
        let computed = serde_json::to_value(state).map_err(|e| HistoryError::Unreadable(e.to_string()))?;
        let told = told.iter().find(|s| s.resource == *name);
        if told.is_none_or(|told| told.state != computed) {
            wrong.push(name.clone());
        }
    }
    let unseeded = told.iter().filter(|s| !states.contains_key(&s.resource));
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

fn review_checks(exchange: &ExchangeState, review: &Review, trace: String) -> Vec<Check> {
    let manifest = &review.manifest;
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
    checks
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
