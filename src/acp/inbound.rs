//! What an agent sends us, in the order it was sent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use agent_client_protocol as acp;
use agent_client_protocol::{Dispatch, Responder};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::mpsc::error::SendError;
use tokio::sync::watch;

use super::cost::CostTracker;
use super::lines::Intake;
use super::permission::{PermissionBook, respond};

pub(super) const PROMPT: &str = "session/prompt";
const UPDATE: &str = "session/update";
const ASK: &str = "session/request_permission";

/// One thing for the running turn to deal with. The permit bounds how much of this can wait.
pub(super) enum Inbound {
    Update { update: Value, _permit: Option<OwnedSemaphorePermit> },
    Ask { params: Value, responder: Box<Responder<Value>>, _permit: Option<OwnedSemaphorePermit> },
    Decided { tool_call_id: String, approved: bool },
}

/// What the connection's handler shares with the agent's owner.
pub(super) struct Shared {
    pub(super) intake: Arc<Intake>,
    pub(super) permissions: PermissionBook,
    pub(super) cost: Mutex<CostTracker>,
    session: Mutex<Option<String>>,
    turn: Mutex<Option<UnboundedSender<Inbound>>>,
    late: AtomicU64,
    /// How many prompts have been answered.
    pub(super) answered: watch::Sender<u64>,
}

impl Shared {
    pub(super) fn new(intake: Arc<Intake>) -> Self {
        Self {
            intake,
            permissions: PermissionBook::default(),
            cost: Mutex::default(),
            session: Mutex::default(),
            turn: Mutex::default(),
            late: AtomicU64::new(0),
            answered: watch::Sender::new(0),
        }
    }

    pub(super) fn set_session(&self, id: &str) {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(id.to_owned());
    }

    pub(super) fn begin_turn(&self, turn: UnboundedSender<Inbound>) {
        self.permissions.begin_turn(turn.clone());
        *self.turn.lock().unwrap_or_else(PoisonError::into_inner) = Some(turn);
    }

    /// Whatever the agent sends from now on is late.
    pub(super) fn close_turn(&self) {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// How many updates have come outside of a turn since the last call.
    pub(super) fn take_late(&self) -> u64 {
        self.late.swap(0, Ordering::Relaxed)
    }

    pub(super) fn observe_cost(&self, update: &Value) -> Option<u64> {
        self.cost.lock().unwrap_or_else(PoisonError::into_inner).observe(update)
    }

    /// Handles one message. It never waits, so a response is never held up by the updates in front of it.
    pub(super) fn dispatch(&self, message: Dispatch) -> Result<(), acp::Error> {
        match message {
            Dispatch::Request(request, responder) => {
                let permit = self.intake.budget.leave();
                let (method, params) = request.into_parts();
                if method != ASK {
                    return responder.respond_with_error(acp::Error::method_not_found());
                }
                if self.is_ours(&params) {
                    self.ask(params, responder, permit);
                } else {
                    respond(responder, None);
                }
                Ok(())
            }
            Dispatch::Notification(notification) => {
                let permit = self.intake.budget.leave();
                let (method, mut params) = notification.into_parts();
                if method == UPDATE {
                    if self.is_ours(&params) {
                        self.update(params["update"].take(), permit);
                    } else {
                        self.late.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Ok(())
            }
            Dispatch::Response(result, router) => {
                // The turn ends with its response, exactly here in the stream.
                if router.method() == PROMPT {
                    self.close_turn();
                    self.answered.send_modify(|count| *count += 1);
                }
                router.route_with_result(result)
            }
        }
    }

    fn is_ours(&self, params: &Value) -> bool {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        session.as_deref().is_none_or(|ours| params["sessionId"].as_str() == Some(ours))
    }

    fn update(&self, update: Value, permit: Option<OwnedSemaphorePermit>) {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = &*turn {
            let _ = turn.send(Inbound::Update { update, _permit: permit });
            return;
        }
        drop(turn);
        if update["sessionUpdate"] == "usage_update" {
            self.observe_cost(&update);
        }
        self.late.fetch_add(1, Ordering::Relaxed);
    }

    fn ask(&self, params: Value, responder: Responder<Value>, permit: Option<OwnedSemaphorePermit>) {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(turn) = &*turn else {
            return respond(responder, None);
        };
        let ask = Inbound::Ask { params, responder: Box::new(responder), _permit: permit };
        if let Err(SendError(Inbound::Ask { responder, .. })) = turn.send(ask) {
            respond(*responder, None);
        }
    }
}
