//! What a project learns: shorter contexts and lessons (sections 6 and 8).

use std::collections::BTreeSet;

use axp_protocol::ProtocolError;
use axp_protocol::action::AxpAction;
use axp_protocol::canonical::hash;
use axp_protocol::channel::Channel;
use axp_protocol::method::{LessonVerdict, MemoryHits, params};
use axp_protocol::principal::{Principal, Role};
use axp_protocol::scalar::{Digest, Id};
use axp_protocol::shape::{
    CompactionProposal, Context, Evidence, LessonStatus, Memory, MemoryState, SeqRange,
};
use serde_json::json;

use super::decide::{Decision, Lookup, Refusal, exchange, require_open, require_role};
use super::state::{Session, State, context_hash};

/// Places of evidence that a lesson keeps.
const EVIDENCE: usize = 256;
/// Lessons that a repository keeps.
const LESSONS: usize = 100_000;

/// Decides `_axp/compact`: a shorter context, proposed.
pub(super) fn compact(
    state: &State,
    session: &Session,
    actor: &Principal,
    p: &params::Compact,
) -> Result<Decision, ProtocolError> {
    require_role(actor, &[Role::Contributor, Role::Maintainer], "propose a context")?;
    require_open(session)?;
    quiet(session)?;
    let current = &session.exchange;
    let Some(checkpoint) = &current.checkpoint else {
        return Err(ProtocolError::conflict(format!("session {} has no checkpoint to stand on", session.id)));
    };
    if p.expected_revision.get() != current.context.revision {
        return Err(ProtocolError::conflict(format!(
            "the context is at revision {}, not {}",
            current.context.revision,
            p.expected_revision.get()
        )));
    }
    let turns = session.chat.turns.len() as u64;
    let through = p.through_turn.get();
    if through <= current.context.through_turn || through > turns {
        return Err(ProtocolError::invalid_params(format!(
            "throughTurn: {through}, where more than {} and at most {turns} is allowed",
            current.context.through_turn
        ))
        .with_data(json!({ "path": "throughTurn" })));
    }
    let mut context = Context {
        revision: current.context.revision + 1,
        through_turn: through,
        summary: p.summary.to_string(),
        decisions: p.decisions.iter().map(ToString::to_string).collect(),
        active_files: p.active_files.iter().map(ToString::to_string).collect(),
        git_head: Some(checkpoint.head_commit.clone()),
        prefix_hash: String::new(),
    };
    context.prefix_hash = context_hash(&context)
        .map_err(|e| ProtocolError::internal(format!("the context cannot be hashed: {e}")))?;
    let proposal = CompactionProposal {
        id: p.operation_id.clone(),
        author: actor.id.to_string(),
        expected_revision: current.context.revision,
        context,
        evidence: SeqRange { from_seq: 1, to_seq: state.seq },
    };
    let action = AxpAction::CompactionProposed { proposal: proposal.clone() };
    Decision::new(vec![exchange(session, action)], &proposal)
}

/// Decides `_axp/acceptCompaction`.
pub(super) fn accept(
    session: &Session,
    actor: &Principal,
    p: &params::AcceptCompaction,
) -> Result<Decision, ProtocolError> {
    require_role(actor, &[Role::Maintainer], "accept a context")?;
    require_open(session)?;
    let current = &session.exchange;
    let Some(proposal) = current.compaction.as_ref().filter(|known| known.id == p.proposal_id) else {
        return Err(ProtocolError::not_found(format!(
            "no proposal {} in session {}",
            p.proposal_id, session.id
        )));
    };
    if proposal.expected_revision != current.context.revision {
        return Err(ProtocolError::conflict("the context has changed since this was proposed"));
    }
    if current.checkpoint.as_ref().map(|c| &c.head_commit) != proposal.context.git_head.as_ref() {
        return Err(ProtocolError::conflict("the checkpoint has changed since this was proposed"));
    }
    let context = proposal.context.clone();
    let action = AxpAction::ContextChanged { context: context.clone() };
    Decision::new(vec![exchange(session, action)], &context)
}

fn quiet(session: &Session) -> Result<(), ProtocolError> {
    match &session.chat.active_turn {
        None => Ok(()),
        Some(turn) => Err(ProtocolError::turn_in_progress(format!("turn {} is active", turn.id))),
    }
}

/// Decides `_axp/memoryPropose`. The same wording joins its evidence to the lesson that is there, whatever became of
/// that: new evidence never revives a retired one.
pub(super) fn propose(
    state: &State,
    session: &Session,
    lookup: &mut dyn Lookup,
    actor: &Principal,
    p: &params::MemoryPropose,
) -> Result<Decision, Refusal> {
    require_role(actor, &[Role::Contributor, Role::Maintainer], "propose a lesson")?;
    let (from_seq, to_seq) = (p.from_seq.get(), p.to_seq.get());
    if from_seq > to_seq || to_seq > state.seq || !lookup.has_events(&session.id, from_seq, to_seq)? {
        return Err(ProtocolError::invalid_params(format!(
            "fromSeq, toSeq: nothing of session {} lies between {from_seq} and {to_seq}",
            session.id
        ))
        .with_data(json!({ "path": "fromSeq" }))
        .into());
    }
    let trimmed = |what: &str, text: &str| {
        let text = text.trim().to_owned();
        if text.is_empty() {
            Err(ProtocolError::invalid_params(format!("{what}: it is empty"))
                .with_data(json!({ "path": what })))
        } else {
            Ok(text)
        }
    };
    let (title, trigger, lesson) =
        (trimmed("title", &p.title)?, trimmed("trigger", &p.trigger)?, trimmed("lesson", &p.lesson)?);
    let scope = state.repository.clone();
    let id = hash(&json!({
        "scope": scope, "title": title, "trigger": trigger, "lesson": lesson, "outcome": p.outcome
    }))
    .map_err(|e| ProtocolError::internal(format!("the lesson cannot be hashed: {e}")))?;
    let id = Digest::new(id).map_err(ProtocolError::internal)?;
    let evidence = Evidence {
        session: session.exchange.resource.clone(),
        from_seq,
        to_seq,
        git_head: session.exchange.checkpoint.as_ref().map(|c| c.head_commit.clone()),
    };
    let memory = match state.memory.entries.get(&id) {
        Some(known) if known.evidence.contains(&evidence) => {
            return Ok(Decision::new(vec![], &visible(known, actor).unwrap_or_else(|| known.clone()))?);
        }
        Some(known) if known.evidence.len() >= EVIDENCE => {
            return Err(ProtocolError::limit(format!(
                "a lesson keeps at most {EVIDENCE} places of evidence"
            ))
            .into());
        }
        Some(known) => {
            let mut memory = known.clone();
            memory.revision += 1;
            memory.evidence.push(evidence);
            memory
        }
        None if state.memory.entries.len() >= LESSONS => {
            return Err(ProtocolError::limit(format!("a repository keeps at most {LESSONS} lessons")).into());
        }
        None => Memory {
            id,
            revision: 1,
            scope,
            title,
            trigger,
            lesson,
            outcome: p.outcome,
            evidence: vec![evidence],
            status: LessonStatus::Proposed,
            author: actor.id.to_string(),
        },
    };
    let answer = visible(&memory, actor).unwrap_or_else(|| memory.clone());
    Ok(Decision::new(vec![(Channel::Memory, AxpAction::MemoryChanged { memory }.into())], &answer)?)
}

/// Decides `_axp/memoryReview`.
pub(super) fn review(
    state: &State,
    actor: &Principal,
    p: &params::MemoryReview,
) -> Result<Decision, ProtocolError> {
    require_role(actor, &[Role::Maintainer], "review a lesson")?;
    let known = state
        .memory
        .entries
        .get(&p.memory_id)
        .ok_or_else(|| ProtocolError::not_found(format!("no lesson {}", p.memory_id)))?;
    if !known.evidence.iter().all(|e| reads(actor, e)) {
        return Err(ProtocolError::not_permitted(
            "some of the evidence for this lesson is outside your scope",
        ));
    }
    if p.revision.get() != known.revision {
        return Err(ProtocolError::conflict(format!(
            "lesson {} is at revision {}, not {}",
            p.memory_id,
            known.revision,
            p.revision.get()
        )));
    }
    let status = match p.status {
        LessonVerdict::Accepted => LessonStatus::Accepted,
        LessonVerdict::Retired => LessonStatus::Retired,
    };
    let memory = Memory { revision: known.revision + 1, status, ..known.clone() };
    Decision::new(
        vec![(Channel::Memory, AxpAction::MemoryChanged { memory: memory.clone() }.into())],
        &memory,
    )
}

fn reads(actor: &Principal, evidence: &Evidence) -> bool {
    evidence
        .session
        .strip_prefix("axp-session:/")
        .and_then(|id| Id::new(id).ok())
        .is_some_and(|id| actor.reads(&id))
}

/// The lesson with the evidence this principal may read; `None` when it may read none.
fn visible(memory: &Memory, actor: &Principal) -> Option<Memory> {
    let evidence: Vec<_> = memory.evidence.iter().filter(|e| reads(actor, e)).cloned().collect();
    if evidence.is_empty() {
        return None;
    }
    Some(Memory { evidence, ..memory.clone() })
}

/// Accepted lessons whose evidence this principal may read, best first; an empty query finds them all.
pub(super) fn search(memory: &MemoryState, actor: &Principal, query: &str, limit: u64) -> MemoryHits {
    let words = words(query);
    let mut hits: Vec<(u64, Memory)> = memory
        .entries
        .values()
        .filter(|m| m.status == LessonStatus::Accepted)
        .filter_map(|m| Some((score(m, &words), visible(m, actor)?)))
        .filter(|(score, _)| *score > 0 || words.is_empty())
        .collect();
    // Entries come in the order of their IDs, and the sort keeps it among equals.
    hits.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
    let total = hits.len() as u64;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    MemoryHits { items: hits.into_iter().take(limit).map(|(_, m)| m).collect(), total }
}

/// How well a lesson fits: each word of the query counts once, by the best place it is found in.
fn score(memory: &Memory, query: &BTreeSet<String>) -> u64 {
    let places = [(words(&memory.title), 4), (words(&memory.trigger), 2), (words(&memory.lesson), 1)];
    query
        .iter()
        .filter_map(|word| {
            places.iter().filter(|(found, _)| found.contains(word)).map(|(_, weight)| weight).max()
        })
        .sum()
}

/// The distinct words of a text, in lower case.
fn words(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).map(str::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axp_protocol::principal::{AllSessions, SessionScope};
    use axp_protocol::shape::LessonOutcome;

    fn lesson(
        n: u8,
        title: &str,
        trigger: &str,
        lesson: &str,
        status: LessonStatus,
        sessions: &[&str],
    ) -> Memory {
        Memory {
            id: Digest::new(format!("{n:02x}").repeat(32)).unwrap(),
            revision: 1,
            scope: "o/r".into(),
            title: title.into(),
            trigger: trigger.into(),
            lesson: lesson.into(),
            outcome: LessonOutcome::Success,
            evidence: sessions
                .iter()
                .map(|s| Evidence {
                    session: format!("axp-session:/{s}"),
                    from_seq: 1,
                    to_seq: 2,
                    git_head: None,
                })
                .collect(),
            status,
            author: "a".into(),
        }
    }

    fn actor(sessions: Option<&[&str]>) -> Principal {
        let sessions = match sessions {
            None => SessionScope::All(AllSessions::All),
            Some(list) => SessionScope::Only(list.iter().map(|s| format!("axp-session:/{s}")).collect()),
        };
        Principal { id: Id::new("x").unwrap(), role: Role::Observer, sessions }
    }

    fn memory(lessons: Vec<Memory>) -> MemoryState {
        let entries = lessons.into_iter().map(|m| (m.id.clone(), m)).collect();
        MemoryState { resource: "axp-memory://".into(), entries }
    }

    fn titles(hits: &MemoryHits) -> Vec<&str> {
        hits.items.iter().map(|m| m.title.as_str()).collect()
    }

    #[test]
    fn the_best_comes_first_and_order_is_stable() {
        use LessonStatus::{Accepted, Proposed, Retired};
        let memory = memory(vec![
            lesson(3, "Größe prüfen", "parser", "x", Accepted, &["a"]),
            lesson(1, "Other", "parser edits", "größe", Accepted, &["a"]),
            lesson(2, "Third", "parser edits", "größe", Accepted, &["a"]),
            lesson(4, "Größe", "parser", "parser", Proposed, &["a"]),
            lesson(5, "Größe", "parser", "parser", Retired, &["a"]),
            lesson(6, "Nothing", "else", "here", Accepted, &["a"]),
        ]);
        let hits = search(&memory, &actor(None), "GRÖSSE größe, Parser!", 5);
        assert_eq!((titles(&hits), hits.total), (vec!["Größe prüfen", "Other", "Third"], 3));
        let hits = search(&memory, &actor(None), "parser", 1);
        assert_eq!((titles(&hits), hits.total), (vec!["Other"], 3));
        assert_eq!(search(&memory, &actor(None), " ", 20).total, 4);
        assert_eq!(search(&memory, &actor(None), "parse", 20).total, 0, "whole words");
    }

    #[test]
    fn only_readable_evidence_counts_and_shows() {
        let memory = memory(vec![
            lesson(1, "Shared", "t", "l", LessonStatus::Accepted, &["a", "b"]),
            lesson(2, "Hidden", "t", "l", LessonStatus::Accepted, &["b"]),
        ]);
        let hits = search(&memory, &actor(Some(&["a"])), "t", 5);
        assert_eq!((titles(&hits), hits.items[0].evidence.len(), hits.total), (vec!["Shared"], 1, 1));
    }
}
