//! One prompt and everything until its end.

use std::collections::VecDeque;
use std::sync::PoisonError;

use agent_client_protocol as acp;
use agent_client_protocol::UntypedMessage;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::agent::{Agent, CANCEL_GRACE, OUTPUT_GRACE, STRAGGLERS, is_disconnected};
use super::emission::{Emission, TurnContext};
use super::error::{AgentError, describe};
use super::inbound::{Inbound, PROMPT, Shared};
use super::permission::{Options, respond};
use super::text::label;
use super::translate::Translator;
use super::usage::{TurnUsage, UsageReports};

/// What happens while a turn runs.
#[derive(Clone, Debug, PartialEq)]
pub enum TurnEvent {
    /// Something for the host.
    Emit(Emission),
    /// The turn's cost so far.
    Cost {
        /// USD millionths since the turn began.
        micros: u64,
        /// Whether this is more than the turn may cost. The caller decides what follows.
        exceeded: bool,
    },
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The agent finished.
    Complete,
    /// We cancelled it, or the agent says it was cancelled.
    Cancelled,
    /// The agent stopped for another reason.
    Error,
}

/// The end of a turn.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnEnd {
    /// How it ended.
    pub outcome: Outcome,
    /// What went wrong, where something did.
    pub error: Option<String>,
    /// The tokens used, if the agent's report is consistent.
    pub usage: Option<TurnUsage>,
    /// The cost in USD millionths, if it is known.
    pub cost_micros: Option<u64>,
    /// The agent's report of its usage as it was sent, for the record.
    pub raw_usage: Option<Value>,
    /// Updates that were dropped since the last turn ended, because they came too late or for a tool that was over.
    pub dropped: u64,
    /// Updates that say nothing a transcript holds.
    pub ignored: u64,
    /// The agent did not end its turn after it was cancelled: it must be stopped.
    pub must_stop: bool,
}

impl Agent {
    /// Prompts the agent with these blocks of text and follows it to the end of its turn.
    ///
    /// Events go to `sink` in order; a full sink slows the agent down. Cancelling `cancel` sends `session/cancel`,
    /// answers what waits for a permission, and gives the agent 2 s.
    ///
    /// # Errors
    ///
    /// When the agent's process ends or breaks the protocol, and when its last prompt was never answered.
    pub async fn prompt(
        &mut self,
        context: TurnContext,
        texts: Vec<String>,
        sink: mpsc::Sender<TurnEvent>,
        cancel: CancellationToken,
    ) -> Result<TurnEnd, AgentError> {
        if self.is_unanswered() {
            return Err(AgentError::Busy);
        }
        sleep_until(self.idle_since + STRAGGLERS).await;
        let blocks: Vec<_> = texts.iter().map(|text| json!({"type": "text", "text": text})).collect();
        let params = json!({ "sessionId": self.session, "prompt": blocks });
        let request =
            UntypedMessage::new(PROMPT, params).map_err(|error| AgentError::refused(PROMPT, &error))?;
        let Some(connection) = &self.connection else { return Err(self.lost().await) };
        let peer = connection.peer.clone();

        let (inbox, received) = mpsc::unbounded_channel();
        let mut turn = Turn {
            translator: Translator::new(&context, self.cwd.clone(), std::mem::take(&mut self.taken)),
            reports: UsageReports::default(),
            ceiling_micros: context.ceiling_micros,
            events: VecDeque::new(),
            asking: true,
            scope: TurnScope::open(&self.shared, inbox),
        };
        self.prompts += 1;
        self.cancel_sent = false;
        let response = peer.send_request(request).block_task();
        let (reply, cancelled) = self.follow(&mut turn, response, received, &sink, &cancel).await;

        let Turn { mut translator, reports, scope, .. } = turn;
        drop(scope);
        self.idle_since = Instant::now();
        translator.finish();
        let (visible, ignored) = (translator.visible_bytes(), translator.ignored());
        let dropped = translator.dropped() + self.shared.take_late();
        self.taken = translator.into_taken();
        let cost_micros = self.shared.cost.lock().unwrap_or_else(PoisonError::into_inner).end_turn();

        let answered = matches!(&reply, Some(Ok(_)));
        let (outcome, error) = match &reply {
            _ if cancelled => (Outcome::Cancelled, None),
            Some(Ok(response)) => outcome_of(&response["stopReason"]),
            Some(Err(error)) if !is_disconnected(error) => {
                let message = format!(
                    "the agent answered with an error: {} ({})",
                    describe(error),
                    i32::from(error.code)
                );
                (Outcome::Error, Some(message))
            }
            _ => return Err(self.lost().await),
        };
        let must_stop = match &reply {
            Some(Ok(_)) => false,
            Some(Err(error)) => is_disconnected(error),
            None => true,
        };
        let error = error.or_else(|| {
            must_stop.then(|| "the agent did not end its turn in time after it was cancelled".to_owned())
        });
        let response = reply.and_then(Result::ok).unwrap_or_default();
        let (usage, raw_usage) = reports.finish(&response, visible);
        // A report that came before the end of a turn that was not answered is not the whole of it.
        let usage = usage.filter(|_| answered);
        Ok(TurnEnd { outcome, error, usage, cost_micros, raw_usage, dropped, ignored, must_stop })
    }

    /// Runs the turn; returns the agent's answer, if it came, and whether we cancelled.
    async fn follow(
        &mut self,
        turn: &mut Turn,
        response: impl Future<Output = Result<Value, acp::Error>>,
        mut inbox: mpsc::UnboundedReceiver<Inbound>,
        sink: &mpsc::Sender<TurnEvent>,
        cancel: &CancellationToken,
    ) -> (Option<Result<Value, acp::Error>>, bool) {
        let process = std::sync::Arc::clone(&self.process);
        let mut watch = std::pin::pin!(process.watch());
        let mut response = std::pin::pin!(response);
        let mut dead = std::pin::pin!(async {
            process.exit().ended().await;
            sleep(OUTPUT_GRACE).await;
        });
        let mut deadline = None;
        let mut reply = None;
        let mut more = true;
        while reply.is_none() || more || !turn.events.is_empty() {
            let idle = turn.events.is_empty();
            tokio::select! {
                biased;
                () = cancel.cancelled(), if deadline.is_none() => {
                    deadline = Some(Instant::now() + CANCEL_GRACE);
                    turn.stop_asking();
                    self.shared.permissions.end_turn();
                    self.send_cancel();
                }
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => break,
                answer = &mut response, if reply.is_none() => {
                    reply = Some(answer);
                    // After a response the handler has done so already; a connection that is gone has no handler.
                    turn.stop_asking();
                    self.shared.close_turn();
                    self.shared.permissions.end_turn();
                }
                slot = sink.reserve(), if !idle => match (slot, turn.events.pop_front()) {
                    (Ok(slot), Some(event)) => slot.send(event),
                    // Nobody listens any more; the turn still has to end.
                    _ => turn.events.clear(),
                },
                item = inbox.recv(), if idle && more => match item {
                    Some(item) => turn.take(item, &self.shared),
                    None => more = false,
                },
                () = &mut dead, if reply.is_none() => break,
                () = &mut watch => {}
            }
        }
        (reply, deadline.is_some())
    }
}

struct Turn {
    translator: Translator,
    reports: UsageReports,
    ceiling_micros: u64,
    events: VecDeque<TurnEvent>,
    /// Whether a permission may still wait for a choice.
    asking: bool,
    scope: TurnScope,
}

impl Turn {
    fn stop_asking(&mut self) {
        self.asking = false;
    }

    fn take(&mut self, item: Inbound, shared: &Shared) {
        match item {
            Inbound::Update { update, .. } => {
                self.reports.update(&update);
                let emission = self.translator.update(&update);
                self.emit(emission);
                if update["sessionUpdate"] == "usage_update"
                    && let Some(micros) = shared.observe_cost(&update)
                {
                    self.events.push_back(TurnEvent::Cost { micros, exceeded: micros > self.ceiling_micros });
                }
            }
            Inbound::Ask { params, responder, .. } => {
                let options = Options::read(&params["options"]);
                if options.is_empty() || !self.asking {
                    return respond(*responder, None);
                }
                let (emission, id) = self.translator.permission(&params["toolCall"], options.offered());
                // It waits before it is told, so that the choice finds it.
                shared.permissions.wait(id, options, *responder);
                self.emit(emission);
            }
            Inbound::Decided { tool_call_id, approved } => {
                let emission = self.translator.decided(&tool_call_id, approved);
                self.emit(emission);
            }
        }
    }

    fn emit(&mut self, emission: Emission) {
        if !emission.is_empty() {
            self.events.push_back(TurnEvent::Emit(emission));
        }
    }
}

/// Opens the turn for what the agent sends and closes it again, also when the caller loses patience.
struct TurnScope {
    shared: std::sync::Arc<Shared>,
}

impl TurnScope {
    fn open(shared: &std::sync::Arc<Shared>, inbox: mpsc::UnboundedSender<Inbound>) -> Self {
        shared.cost.lock().unwrap_or_else(PoisonError::into_inner).begin_turn();
        shared.begin_turn(inbox);
        Self { shared: std::sync::Arc::clone(shared) }
    }
}

impl Drop for TurnScope {
    fn drop(&mut self) {
        self.shared.close_turn();
        self.shared.permissions.end_turn();
    }
}

fn outcome_of(stop_reason: &Value) -> (Outcome, Option<String>) {
    let failed = |reason: String| (Outcome::Error, Some(reason));
    match stop_reason.as_str() {
        Some("end_turn") => (Outcome::Complete, None),
        Some("cancelled") => (Outcome::Cancelled, None),
        Some("max_tokens") => failed("the agent stopped: max_tokens, its limit of tokens was reached".into()),
        Some("max_turn_requests") => {
            failed("the agent stopped: max_turn_requests, its limit of model requests was reached".into())
        }
        Some("refusal") => failed("the agent stopped: refusal, it will not do this".into()),
        Some(other) => failed(format!("the agent stopped: {}", label(other, 100))),
        None => failed("the agent stopped without a reason".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_reasons_decide_the_outcome() {
        for (reason, outcome) in [
            (json!("end_turn"), Outcome::Complete),
            (json!("cancelled"), Outcome::Cancelled),
            (json!("max_tokens"), Outcome::Error),
            (json!("max_turn_requests"), Outcome::Error),
            (json!("refusal"), Outcome::Error),
            (json!("something_new"), Outcome::Error),
            (Value::Null, Outcome::Error),
        ] {
            let (read, error) = outcome_of(&reason);
            assert_eq!(read, outcome, "{reason}");
            if let (Outcome::Error, Some(reason)) = (outcome, reason.as_str()) {
                assert!(error.unwrap().contains(reason), "the reason is named");
            }
        }
    }
}
