//! The session catalogue: entries for `listSessions` and what changed in them (section 4).

use ahp_types::notifications::PartialSessionSummary;
use ahp_types::state::{SessionStatus, SessionSummary};
use axp_protocol::ProtocolError;
use axp_protocol::channel::Channel;
use axp_protocol::principal::Principal;
use serde_json::json;

use super::state::{Session, State};
use crate::time::rfc3339;

/// The activity bits of a status: idle, error, in progress, input needed.
const ACTIVITY: u32 = (1 << 5) - 1;

/// A session's entry: times of its own, activity of its chat.
pub(crate) fn summary(session: &Session) -> SessionSummary {
    let created = rfc3339(session.created_at);
    let checkpoint =
        session.exchange.checkpoint.as_ref().map(|c| rfc3339(c.created_at.min(253_402_300_799_999)));
    let archived = session.session.status & SessionStatus::IsArchived.bits();
    let modified = [Some(session.chat.modified_at.clone()), checkpoint].into_iter().flatten().max();
    SessionSummary {
        provider: session.session.provider.clone(),
        title: session.session.title.clone(),
        status: session.chat.status & ACTIVITY | archived,
        activity: session.chat.activity.clone(),
        origin: None,
        project: None,
        working_directories: None,
        annotations: None,
        resource: Channel::Session(session.id.clone()).to_string(),
        modified_at: modified.filter(|m| *m > created).unwrap_or_else(|| created.clone()),
        created_at: created,
        changes: None,
        meta: session.session.meta.clone(),
    }
}

/// What changed between two entries of one session; `None` when nothing did.
pub(crate) fn changes(before: &SessionSummary, after: &SessionSummary) -> Option<PartialSessionSummary> {
    if before == after {
        return None;
    }
    fn new<T: Clone + PartialEq>(before: &T, after: &T) -> Option<T> {
        (before != after).then(|| after.clone())
    }
    Some(PartialSessionSummary {
        title: new(&before.title, &after.title),
        status: new(&before.status, &after.status),
        activity: if before.activity == after.activity { None } else { after.activity.clone() },
        modified_at: new(&before.modified_at, &after.modified_at),
        ..Default::default()
    })
}

/// A page of the catalogue, newest session first.
pub(crate) fn list(
    state: &State,
    actor: &Principal,
    limit: Option<i64>,
    cursor: Option<&str>,
) -> Result<String, ProtocolError> {
    let limit = match limit {
        None => usize::MAX,
        Some(n) if n >= 1 => usize::try_from(n).unwrap_or(usize::MAX),
        Some(n) => {
            return Err(ProtocolError::invalid_params(format!("limit: {n} where at least 1 is allowed")));
        }
    };
    let mut sessions: Vec<_> = state.sessions.values().filter(|s| actor.reads(&s.id)).collect();
    sessions.sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| a.id.cmp(&b.id)));
    let start = match cursor {
        None => 0,
        Some(cursor) => {
            let last = sessions.iter().position(|s| s.id.as_str() == cursor);
            last.ok_or_else(|| ProtocolError::invalid_params("cursor: not one of this list"))? + 1
        }
    };
    let page: Vec<_> = sessions[start..].iter().take(limit).collect();
    let more = sessions.len() > start + page.len();
    let items: Vec<_> = page.iter().map(|s| summary(s)).collect();
    let mut result = json!({ "items": items });
    if let (true, Some(last)) = (more, page.last()) {
        result["nextCursor"] = json!(last.id);
    }
    Ok(result.to_string())
}
