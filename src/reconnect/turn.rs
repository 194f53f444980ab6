//! One turn: reserve, prompt, publish, settle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axp_protocol::channel::blob_base;
use axp_protocol::codes;
use axp_protocol::method::{TurnOutcome, params};
use axp_protocol::scalar::{Id, Text, Uint};
use axp_protocol::shape::{Allowance, Usage, UsageSource};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::checkpoint::{CheckpointError, publish};
use super::donation::SharedLedger;
use super::emitter::Emitter;
use super::event::ParkEvent;
use super::journal::{Journal, Settlement};
use super::supervisor::ParkError;
use crate::acp::{Agent, Emission, Outcome, TurnContext, TurnEnd, TurnEvent};
use crate::budget::turn_ceiling;
use crate::client::{ClientError, operation_id, text};
use crate::worktree::Worktree;

/// Emissions that may wait for the host.
const QUEUE: usize = 1024;

/// Time for the action that follows an answer.
const WORD: Duration = Duration::from_secs(10);

/// Media type of an agent's own report of its usage, kept in the history.
pub const USAGE_REPORT: &str = "application/vnd.axp.usage+json";

/// Everything a turn needs.
pub(super) struct Turn {
    pub(super) emitter: Emitter,
    pub(super) journal: Journal,
    pub(super) ledger: SharedLedger,
    pub(super) worktree: Worktree,
    pub(super) published: Option<String>,
    /// The smaller of the donor's limit and the host's.
    pub(super) limit: Allowance,
    /// Spent by the host's account.
    pub(super) host_spent: Allowance,
    pub(super) per_turn: Allowance,
    pub(super) id: String,
    pub(super) text: String,
    pub(super) with_context: bool,
    /// Whether the agent must forget what was said so far: its context was replaced.
    pub(super) fresh: bool,
    pub(super) cancel: CancellationToken,
    /// What the host has settled the turn at, once it says so.
    pub(super) settled: watch::Receiver<Option<Usage>>,
    pub(super) abandon: CancellationToken,
    pub(super) out: mpsc::UnboundedSender<ParkEvent>,
}

/// How it went.
pub(super) struct TurnReport {
    /// The agent, unless it is of no more use; it has been ended then.
    pub(super) agent: Option<Agent>,
    /// Head of the checkpoint that was published.
    pub(super) published: Option<String>,
    /// An error that ends the lease.
    pub(super) end: Result<(), ParkError>,
}

impl Turn {
    pub(super) async fn run(self, mut agent: Agent) -> TurnReport {
        let mut published = None;
        let (usable, end) = self.steps(&mut agent, &mut published).await;
        if usable {
            TurnReport { agent: Some(agent), published, end }
        } else {
            agent.stop().await;
            TurnReport { agent: None, published, end }
        }
    }

    /// Whether the agent can take another turn, and what ends the lease.
    async fn steps(
        &self,
        agent: &mut Agent,
        published: &mut Option<String>,
    ) -> (bool, Result<(), ParkError>) {
        if self.fresh
            && let Err(error) = agent.fresh_session().await
        {
            tracing::warn!(%error, "the agent opens no other session; another process takes the turn");
            return (false, Ok(()));
        }
        let ceiling = match self.reserve().await {
            Ok(Some(ceiling)) => ceiling,
            // The turn is over already.
            Ok(None) => return (true, Ok(())),
            Err(error) => return (true, Err(error)),
        };
        let prompt = match self.prompt_texts().await {
            Ok(prompt) => prompt,
            Err(error) => {
                let end = self.settle(TurnOutcome::Error, Some(error.to_string()), None, &ceiling).await;
                return (true, end);
            }
        };
        let (result, over_ceiling) = self.prompt(agent, prompt, &ceiling).await;
        if self.abandon.is_cancelled() {
            return (false, Ok(()));
        }
        let (mut usable, mut outcome, mut error, usage, fatal) = match result {
            Err(Failure::Lost(error)) => return (false, Err(error.into())),
            Err(Failure::Agent(error)) => {
                (false, TurnOutcome::Error, Some(error.to_string()), None, Some(ParkError::Agent(error)))
            }
            Ok(end) => {
                let usage = self.usage(&end, &ceiling);
                let outcome = match end.outcome {
                    Outcome::Complete => TurnOutcome::Complete,
                    Outcome::Cancelled => TurnOutcome::Cancelled,
                    Outcome::Error => TurnOutcome::Error,
                };
                if let Some(raw) = &end.raw_usage {
                    self.keep_report(raw).await;
                }
                (!end.must_stop, outcome, end.error, Some(usage), None)
            }
        };
        if over_ceiling {
            outcome = TurnOutcome::Error;
            error = Some(format!(
                "stopped: the agent's cost passed the turn's ceiling of {} USD millionths",
                ceiling.cost_micros
            ));
        }
        match self.publish().await {
            Ok(None) => {}
            Ok(Some((head, files))) => {
                *published = Some(head.clone());
                let _ = self.out.send(ParkEvent::Checkpoint { head, files });
            }
            Err(CheckpointError::Client(lost)) if lost.is_transient() => {
                // The settlement is asked for again with the next connection.
                let _ = self.settle(outcome, error, usage, &ceiling).await;
                return (usable, Err(lost.into()));
            }
            Err(why) => {
                outcome = TurnOutcome::Error;
                let kept = self.worktree.path().display();
                error = Some(format!("the work could not be published: {why}; it is kept in {kept}"));
                let _ = self.out.send(ParkEvent::Note(error.clone().unwrap_or_default()));
            }
        }
        let settled = self.settle(outcome, error, usage, &ceiling).await;
        if let Some(fatal) = fatal {
            usable = false;
            return (usable, Err(fatal));
        }
        (usable, settled)
    }

    /// Sets the turn's budget aside, here first. `None` when the turn ended meanwhile.
    async fn reserve(&self) -> Result<Option<Allowance>, ParkError> {
        let own = self.ledger.spending().spent;
        // Whoever says more was spent is believed.
        let spent = own.dearer(&self.host_spent);
        let Some(ceiling) = turn_ceiling(&self.limit, &spent, &self.per_turn) else {
            let why = format!(
                "the budget is spent: {} of {} tokens, {} of {} USD millionths, {} of {} turns",
                spent.tokens,
                self.limit.tokens,
                spent.cost_micros,
                self.limit.cost_micros,
                spent.turns,
                self.limit.turns
            );
            return Err(self.unpaid(why).await);
        };
        let turn = self.id.clone();
        self.ledger.write(move |ledger| ledger.reserve(&turn, ceiling)).await?;
        let reserve = params::Reserve {
            channel: self.channel()?,
            operation_id: operation_id(),
            epoch: Uint::clamped(self.emitter.epoch),
            turn_id: Id::new(self.id.clone()).map_err(ParkError::Local)?,
            ceiling,
        };
        match self.emitter.client.call::<params::Reserve>(&reserve).await {
            Ok(()) => Ok(Some(ceiling)),
            // Lost: the host may have reserved; it counts in full until it is known.
            Err(error) if error.is_transient() => Err(error.into()),
            Err(error) => {
                let turn = self.id.clone();
                self.ledger.write(move |ledger| ledger.withdraw(&turn)).await?;
                match error.code() {
                    Some(codes::CONFLICT) => Ok(None),
                    Some(codes::BUDGET) => Err(self.unpaid(error.to_string()).await),
                    // The lease is over; the host says so on its own.
                    Some(codes::STALE_LEASE) => Ok(None),
                    _ => Err(error.into()),
                }
            }
        }
    }

    /// Ends a turn that cannot be paid for, so that whoever waits for it learns why.
    async fn unpaid(&self, why: String) -> ParkError {
        let settle = async {
            let settle = params::Settle {
                channel: self.channel()?,
                operation_id: operation_id(),
                epoch: Uint::clamped(self.emitter.epoch),
                turn_id: Id::new(self.id.clone()).map_err(ParkError::Local)?,
                usage: None,
                outcome: TurnOutcome::Error,
                error: clipped(&why),
            };
            Ok::<_, ParkError>(self.emitter.client.call::<params::Settle>(&settle).await?)
        };
        if let Err(error) = settle.await {
            tracing::warn!(%error, "an unpaid turn could not be ended");
        }
        ParkError::Budget(why)
    }

    /// What the agent is told: the work so far where it has to know, and the message, each a block of its own.
    async fn prompt_texts(&self) -> Result<Vec<String>, ClientError> {
        if !self.with_context {
            return Ok(vec![self.text.clone()]);
        }
        let context = params::Context {
            channel: text(&format!("axp-session:/{}", self.emitter.session))?,
            max_chars: axp_protocol::scalar::Int::clamped(200_000),
        };
        let context = self.emitter.client.call::<params::Context>(&context).await?;
        Ok(vec![context.text, self.text.clone()])
    }

    /// Prompts the agent and sends on what it says. Also tells whether its cost passed the ceiling.
    async fn prompt(
        &self,
        agent: &mut Agent,
        prompt: Vec<String>,
        ceiling: &Allowance,
    ) -> (Result<TurnEnd, Failure>, bool) {
        let context = TurnContext {
            turn_id: self.id.clone(),
            blob_base: blob_base(&self.emitter.session),
            ceiling_micros: ceiling.cost_micros,
        };
        let (events, mut from_agent) = mpsc::channel(QUEUE);
        let (to_host, emissions) = mpsc::channel(QUEUE);
        let over = Arc::new(AtomicBool::new(false));
        let forward = {
            let (over, cancel) = (over.clone(), self.cancel.clone());
            async move {
                while let Some(event) = from_agent.recv().await {
                    match event {
                        // An emitter that has given up takes nothing more; the agent goes on or is stopped by it.
                        TurnEvent::Emit(emission) => drop(to_host.send(emission).await),
                        TurnEvent::Cost { exceeded: true, .. } => {
                            over.store(true, Ordering::Relaxed);
                            cancel.cancel();
                        }
                        TurnEvent::Cost { .. } => {}
                    }
                }
            }
        };
        let emit = {
            let (emitter, cancel, abandon) =
                (self.emitter.clone(), self.cancel.clone(), self.abandon.clone());
            async move {
                let result = tokio::select! {
                    result = emitter.run(emissions) => result,
                    () = abandon.cancelled() => Ok(()),
                };
                if result.is_err() {
                    cancel.cancel();
                }
                result
            }
        };
        let (end, (), emitted) =
            tokio::join!(agent.prompt(context, prompt, events, self.cancel.clone()), forward, emit);
        let over = over.load(Ordering::Relaxed);
        let result = match (end, emitted) {
            (_, Err(error)) if error.is_transient() => Err(Failure::Lost(error)),
            (Err(error), _) => Err(Failure::Agent(error)),
            // The host has ended the turn: what the agent still said is of no interest to it.
            (Ok(end), Err(error)) if matches!(error.code(), Some(codes::BUDGET | codes::STALE_LEASE)) => {
                Ok(end)
            }
            (Ok(end), Err(error)) => Ok(TurnEnd {
                outcome: Outcome::Error,
                error: Some(format!("the host refused the agent's output: {error}")),
                ..end
            }),
            (Ok(end), Ok(())) => Ok(end),
        };
        (result, over)
    }

    /// What the turn is charged: the agent's report as far as it is consistent, the ceiling for the rest.
    fn usage(&self, end: &TurnEnd, ceiling: &Allowance) -> Usage {
        let full = Usage::of_reservation(ceiling);
        let (cost_micros, cost_source) = match end.cost_micros {
            Some(cost) => (cost, UsageSource::Reported),
            None => (ceiling.cost_micros, UsageSource::Reservation),
        };
        match &end.usage {
            Some(usage) => Usage {
                input_tokens: usage.input_tokens,
                output_tokens: usage.output_tokens,
                cache_read_tokens: usage.cache_read_tokens,
                cost_micros,
                source: UsageSource::Reported,
                cost_source: Some(cost_source),
            },
            None => Usage { cost_micros, cost_source: Some(cost_source), ..full },
        }
    }

    /// Keeps the agent's own report of its usage in the history. The turn does not depend on it.
    async fn keep_report(&self, raw: &serde_json::Value) {
        let data = raw.to_string().into_bytes();
        let media_type = USAGE_REPORT;
        let kept = async {
            let blob = self.emitter.upload(&data, media_type).await?;
            let part = ahp_types::state::ResponsePart::ContentRef(ahp_types::state::ResourceResponsePart {
                uri: blob.uri.to_string(),
                size_hint: i64::try_from(blob.size).ok(),
                content_type: Some(media_type.into()),
                nonce: None,
            });
            let action =
                ahp_types::actions::ChatResponsePartAction { turn_id: self.id.clone(), part, meta: None };
            let actions = vec![ahp_types::StateAction::ChatResponsePart(action)];
            let (sender, emissions) = mpsc::channel(1);
            // The receiver is right here.
            let _ = sender.send(Emission { blobs: vec![], actions }).await;
            drop(sender);
            self.emitter.clone().run(emissions).await
        };
        if let Err(error) = kept.await {
            tracing::debug!(%error, "the agent's report of its usage was not kept");
        }
    }

    async fn publish(&self) -> Result<Option<(String, usize)>, CheckpointError> {
        let subject: String = self.text.lines().next().unwrap_or_default().chars().take(60).collect();
        let subject = if subject.trim().is_empty() { "Work of a parked agent".to_owned() } else { subject };
        let message = format!("{subject}\n\nAXP-Session: {}\nAXP-Turn: {}\n", self.emitter.session, self.id);
        publish(&self.emitter, &self.journal, &self.worktree, self.published.as_deref(), message, &self.out)
            .await
    }

    /// Ends the turn at the host and in the ledger.
    async fn settle(
        &self,
        outcome: TurnOutcome,
        error: Option<String>,
        usage: Option<Usage>,
        ceiling: &Allowance,
    ) -> Result<(), ParkError> {
        let charged = usage.unwrap_or_else(|| Usage::of_reservation(ceiling));
        let charge = charged.charge();
        let settle = params::Settle {
            channel: self.channel()?,
            operation_id: operation_id(),
            epoch: Uint::clamped(self.emitter.epoch),
            turn_id: Id::new(self.id.clone()).map_err(ParkError::Local)?,
            usage,
            outcome,
            error: error.as_deref().and_then(clipped),
        };
        let settlement = Settlement { turn: self.id.clone(), charge };
        let client = self.emitter.client.with_timeout(Duration::from_secs(20));
        let result = self.journal.call::<params::Settle>(&client, &settle, Some(settlement)).await;
        match result {
            Ok(()) => {}
            Err(error) if error.is_transient() => return Err(error.into()),
            // A host that ended the turn on its own has charged it in full, and so does the ledger.
            Err(error) if error.code() == Some(codes::STALE_LEASE) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        // Done already is done, too: then the host has ended the turn itself, and charged it in full.
        // It is believed when it says more than we do, never when it says less.
        let hosts = self.settled(ceiling).await;
        let (turn, charge) = (self.id.clone(), charge.dearer(&hosts.charge()));
        let charged = if hosts.charge() == charge { hosts } else { charged };
        self.ledger.write(move |ledger| ledger.settle(&turn, charge)).await?;
        let spending = self.ledger.spending();
        let _ = self.out.send(ParkEvent::TurnEnded {
            turn: self.id.clone(),
            outcome,
            error,
            usage: charged,
            spent: spending.spent,
            limit: self.limit,
        });
        Ok(())
    }

    /// What the host says it has charged; the whole reservation when it does not say.
    async fn settled(&self, ceiling: &Allowance) -> Usage {
        let mut settled = self.settled.clone();
        let said = async { settled.wait_for(Option::is_some).await.ok().and_then(|usage| *usage) };
        let said = tokio::select! {
            biased;
            said = said => said,
            () = self.abandon.cancelled() => None,
            () = tokio::time::sleep(WORD) => None,
        };
        said.unwrap_or_else(|| Usage::of_reservation(ceiling))
    }

    fn channel(&self) -> Result<Text<0, 256>, ClientError> {
        text(&format!("axp-session:/{}", self.emitter.session))
    }
}

/// Why a prompt has no end to settle.
enum Failure {
    Lost(ClientError),
    Agent(crate::acp::AgentError),
}

/// A sentence within the limit of a settlement's error.
fn clipped(why: &str) -> Option<Text<0, 4096>> {
    Text::new(why.chars().take(4096).collect::<String>()).ok()
}
