//! Permission requests that wait for a maintainer's choice.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_client_protocol::Responder;
use ahp_types::state::{ConfirmationOption, ConfirmationOptionKind};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;

use super::inbound::Inbound;
use super::text::clip;

const LONGEST_LABEL: usize = 256;
const MOST_OPTIONS: usize = 64;

/// A choice made for a tool call that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the tool may run.
    pub approved: bool,
    /// The chosen option, one of those that were offered.
    pub option_id: Option<String>,
}

/// Why a decision was not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecideError {
    /// No request for this tool call is open.
    #[error("no permission request is open for this tool call")]
    NotOpen,
    /// The option was not offered, or is of the other kind.
    #[error("the option was not offered for such a decision")]
    NotOffered,
}

/// What an option does to the tool, and whether it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Allow {
        once: bool,
    },
    Reject {
        once: bool,
    },
    /// Not known to us: offered as a denial, and never chosen unless it is named.
    Unknown,
}

/// The options of one request, as the agent sent them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options(Vec<(String, String, Kind)>);

impl Options {
    /// Reads the options that can be chosen at all: those with an ID, each ID once.
    pub(super) fn read(options: &Value) -> Self {
        let mut read: Vec<(String, String, Kind)> = Vec::new();
        for option in options.as_array().map(Vec::as_slice).unwrap_or_default().iter().take(MOST_OPTIONS) {
            let Some(id) = option["optionId"].as_str() else { continue };
            if read.iter().any(|(known, ..)| known == id) {
                continue;
            }
            let label = option["name"].as_str().unwrap_or(id);
            let kind = match option["kind"].as_str().unwrap_or_default() {
                "allow_once" => Kind::Allow { once: true },
                kind if kind.starts_with("allow") => Kind::Allow { once: false },
                "reject_once" => Kind::Reject { once: true },
                kind if kind.starts_with("reject") => Kind::Reject { once: false },
                _ => Kind::Unknown,
            };
            read.push((id.to_owned(), clip(label, LONGEST_LABEL), kind));
        }
        Self(read)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The options as a host offers them.
    pub(super) fn offered(&self) -> Vec<ConfirmationOption> {
        let offer = |(id, label, kind): &(String, String, Kind)| ConfirmationOption {
            id: id.clone(),
            label: label.clone(),
            kind: match kind {
                Kind::Allow { .. } => ConfirmationOptionKind::Approve,
                Kind::Reject { .. } | Kind::Unknown => ConfirmationOptionKind::Deny,
            },
            group: None,
        };
        self.0.iter().map(offer).collect()
    }

    /// The ID to answer with; `None` stands for `cancelled`.
    fn answer(&self, decision: &Decision) -> Result<Option<String>, DecideError> {
        let allows = |kind: &Kind| matches!(kind, Kind::Allow { .. });
        if let Some(wanted) = &decision.option_id {
            return match self.0.iter().find(|(id, ..)| id == wanted) {
                Some((id, _, kind)) if allows(kind) == decision.approved => Ok(Some(id.clone())),
                _ => Err(DecideError::NotOffered),
            };
        }
        let by_kind =
            |wanted: Kind| self.0.iter().find(|(_, _, kind)| *kind == wanted).map(|(id, ..)| id.clone());
        Ok(if decision.approved {
            by_kind(Kind::Allow { once: true }).or_else(|| by_kind(Kind::Allow { once: false }))
        } else {
            by_kind(Kind::Reject { once: true }).or_else(|| by_kind(Kind::Reject { once: false }))
        })
    }
}

struct Open {
    options: Options,
    responder: Responder<Value>,
}

#[derive(Default)]
struct Inner {
    open: HashMap<String, VecDeque<Open>>,
    turn: Option<UnboundedSender<Inbound>>,
}

/// The open permission requests of an agent. Clones share them.
#[derive(Clone, Default)]
pub struct PermissionBook {
    inner: Arc<Mutex<Inner>>,
}

impl PermissionBook {
    /// Answers the agent's oldest open request for this tool call.
    ///
    /// Without an option ID the plain choice is taken: once rather than always. A denial where the agent offered no
    /// way to reject answers `cancelled`, and so does an approval where it offered no way to allow.
    ///
    /// # Errors
    ///
    /// When no request is open for the tool call, or the option was not offered for such a decision. Nothing is
    /// answered then.
    pub fn decide(&self, tool_call_id: &str, decision: &Decision) -> Result<(), DecideError> {
        let mut inner = self.lock();
        let queue = inner.open.get_mut(tool_call_id).ok_or(DecideError::NotOpen)?;
        let answer = queue.front().ok_or(DecideError::NotOpen)?.options.answer(decision)?;
        let Some(open) = queue.pop_front() else { return Err(DecideError::NotOpen) };
        // A denied tool is over for the host: whatever else waits for it can no longer be asked.
        let rest = if decision.approved { VecDeque::new() } else { std::mem::take(queue) };
        if queue.is_empty() {
            inner.open.remove(tool_call_id);
        }
        // The translator hears of it before the agent does, so that the agent's next report finds the tool running.
        if let Some(turn) = &inner.turn {
            let id = tool_call_id.to_owned();
            let _ = turn.send(Inbound::Decided { tool_call_id: id, approved: decision.approved });
        }
        respond(open.responder, answer.as_deref());
        rest.into_iter().for_each(|open| respond(open.responder, None));
        Ok(())
    }

    /// The tool calls that wait for a decision.
    #[must_use]
    pub fn open(&self) -> Vec<String> {
        self.lock().open.keys().cloned().collect()
    }

    pub(super) fn begin_turn(&self, turn: UnboundedSender<Inbound>) {
        self.lock().turn = Some(turn);
    }

    /// Answers every open request with `cancelled`. After that, requests of this turn no longer wait.
    pub(super) fn end_turn(&self) {
        let mut inner = self.lock();
        inner.turn = None;
        let open = std::mem::take(&mut inner.open);
        drop(inner);
        open.into_values().flatten().for_each(|open| respond(open.responder, None));
    }

    /// Lets a request wait, or answers `cancelled` when the turn is no longer asking.
    pub(super) fn wait(&self, tool_call_id: String, options: Options, responder: Responder<Value>) {
        let mut inner = self.lock();
        if inner.turn.is_none() {
            drop(inner);
            return respond(responder, None);
        }
        inner.open.entry(tool_call_id).or_default().push_back(Open { options, responder });
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers with an option, or `cancelled`. An agent that is gone needs no answer.
pub(super) fn respond(responder: Responder<Value>, option_id: Option<&str>) {
    let outcome = match option_id {
        Some(id) => json!({"outcome": "selected", "optionId": id}),
        None => json!({"outcome": "cancelled"}),
    };
    let _ = responder.respond(json!({ "outcome": outcome }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(kinds: &[&str]) -> Options {
        let list: Vec<Value> = kinds
            .iter()
            .map(|kind| json!({"optionId": format!("id-{kind}"), "name": kind, "kind": kind}))
            .collect();
        Options::read(&json!(list))
    }

    fn answer(
        kinds: &[&str],
        approved: bool,
        option_id: Option<&str>,
    ) -> Result<Option<String>, DecideError> {
        options(kinds).answer(&Decision { approved, option_id: option_id.map(str::to_owned) })
    }

    #[test]
    fn kinds_decide_not_the_order() {
        let all = ["allow_always", "allow_once", "reject_always", "reject_once"];
        assert_eq!(answer(&all, true, None), Ok(Some("id-allow_once".into())));
        assert_eq!(answer(&all, false, None), Ok(Some("id-reject_once".into())));
        assert_eq!(answer(&["allow_always"], true, None), Ok(Some("id-allow_always".into())));
        assert_eq!(answer(&["reject_always"], false, None), Ok(Some("id-reject_always".into())));
    }

    #[test]
    fn only_offered_options_are_answered() {
        let all = ["allow_once", "reject_once", "whatever"];
        assert_eq!(answer(&all, true, Some("id-allow_once")), Ok(Some("id-allow_once".into())));
        assert_eq!(answer(&all, false, Some("id-whatever")), Ok(Some("id-whatever".into())));
        for (approved, id) in
            [(true, "id-reject_once"), (false, "id-allow_once"), (true, "id-whatever"), (true, "x")]
        {
            assert_eq!(answer(&all, approved, Some(id)), Err(DecideError::NotOffered), "{id}");
        }
    }

    #[test]
    fn without_a_fitting_option_the_answer_is_cancelled() {
        assert_eq!(answer(&["allow_once"], false, None), Ok(None));
        assert_eq!(answer(&["reject_once"], true, None), Ok(None));
        assert_eq!(answer(&["whatever"], false, None), Ok(None));
    }

    #[test]
    fn options_are_offered_with_their_ids_and_labels() {
        let list = json!([
            {"optionId": "a", "name": "Yes, always", "kind": "allow_always"},
            {"optionId": "b", "name": "No", "kind": "reject_once"},
            {"optionId": "c", "name": "Explain", "kind": "ask_me_later"},
            {"optionId": "a", "name": "again", "kind": "reject_once"},
            {"name": "no ID"},
        ]);
        let offered = Options::read(&list).offered();
        let told: Vec<_> =
            offered.iter().map(|o| (o.id.as_str(), o.label.as_str(), o.kind.clone())).collect();
        assert_eq!(
            told,
            [
                ("a", "Yes, always", ConfirmationOptionKind::Approve),
                ("b", "No", ConfirmationOptionKind::Deny),
                ("c", "Explain", ConfirmationOptionKind::Deny),
            ]
        );
        assert!(Options::read(&json!([])).is_empty() && Options::read(&json!("x")).is_empty());
    }
}
