//! One lease: an agent that waits for prompts, a heartbeat, and the turn that runs.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use ahp::reducers::apply_action_to_chat;
use ahp_types::StateAction;
use ahp_types::state::ChatState;
use axp_protocol::action::{Action, AxpAction, Envelope};
use axp_protocol::method::params;
use axp_protocol::scalar::Uint;
use axp_protocol::shape::{ExchangeState, Lease, SessionPhase, Usage};
use axp_protocol::state::apply_to_exchange;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::donation::Donation;
use super::emitter::Emitter;
use super::event::{ParkEvent, StopReason};
use super::heartbeat::{Heartbeat, Held, LeaseEnd};
use super::supervisor::{ParkError, ParkSpec};
use super::turn::{Turn, TurnReport};
use crate::acp::{Agent, AgentKiller, Decision, PermissionBook};
use crate::client::{AxpClient, Event, Events, operation_id, text};

/// Why the park goes on with another attempt.
#[derive(Debug)]
pub(super) enum Again {
    /// The connection or lease was lost.
    Lost(String),
    /// The agent had to be ended with its turn; another process takes the next one.
    FreshAgent,
}

/// What to do next.
enum Step {
    Stop(StopReason),
    Again(Again),
    Failed(ParkError),
}

/// The turn that runs, and how to reach it.
struct Running {
    id: String,
    /// Asks the agent to stop; the turn's work is still published.
    cancel: CancellationToken,
    /// Says what the host has settled the turn at.
    settled: watch::Sender<Option<Usage>>,
    /// Gives the host up: nothing more is sent.
    abandon: CancellationToken,
    permissions: PermissionBook,
    killer: AgentKiller,
    work: Pin<Box<dyn Future<Output = TurnReport> + Send>>,
}

/// One lease, one agent process, one heartbeat.
pub(super) struct Runner<'a> {
    spec: &'a ParkSpec,
    client: &'a AxpClient,
    donation: &'a mut Donation,
    lease: Lease,
    heartbeat: Heartbeat,
    exchange: ExchangeState,
    /// Place in the order that each state has reached: events up to there are in it.
    exchange_seq: u64,
    chat: ChatState,
    chat_seq: u64,
    out: &'a mpsc::UnboundedSender<ParkEvent>,
    stop: &'a CancellationToken,
    turn: Option<Running>,
    /// The last turn that was worked on.
    ended: Option<String>,
    /// Whether this agent process has been told of the work so far.
    informed: bool,
    /// Whether the context has been replaced since it was told.
    replaced: bool,
}

impl<'a> Runner<'a> {
    #[expect(clippy::too_many_arguments, reason = "everything a lease depends on")]
    pub(super) fn new(
        spec: &'a ParkSpec,
        client: &'a AxpClient,
        donation: &'a mut Donation,
        held: Held,
        (exchange, exchange_seq): (ExchangeState, u64),
        (chat, chat_seq): (ChatState, u64),
        out: &'a mpsc::UnboundedSender<ParkEvent>,
        stop: &'a CancellationToken,
    ) -> Self {
        let heartbeat = Heartbeat::start(client, &spec.session, &held);
        Self {
            spec,
            client,
            donation,
            lease: held.lease,
            heartbeat,
            exchange,
            exchange_seq,
            chat,
            chat_seq,
            out,
            stop,
            turn: None,
            ended: None,
            informed: false,
            replaced: false,
        }
    }

    fn tell(&self, event: ParkEvent) {
        // Nobody watching is fine.
        let _ = self.out.send(event);
    }

    /// Runs until the lease or the park is over. Afterwards no process of the agent is left.
    pub(super) async fn run(
        mut self,
        agent: Agent,
        events: &mut Events,
    ) -> Result<Result<StopReason, Again>, ParkError> {
        let mut idle = Some(agent);
        let mut stopping = false;
        if self.exchange.lease.as_ref().is_none_or(|l| l.epoch != self.lease.epoch) {
            // It ended between the claim and the snapshot.
            let step = self.lease_over(self.exchange.status);
            return self.wind_up(step, idle).await;
        }
        let step = loop {
            if self.turn.is_none() {
                if stopping {
                    break Step::Stop(StopReason::Asked);
                }
                if let Some(agent) = idle.take() {
                    idle = self.next_turn(agent);
                }
            }
            tokio::select! {
                end = self.heartbeat.ended() => break match end {
                    LeaseEnd::NotRenewed(error) if error.is_transient() => Step::Again(Again::Lost(error.to_string())),
                    LeaseEnd::NotRenewed(error) => self.lease_refused(error.to_string()),
                    LeaseEnd::RanOut => Step::Again(Again::Lost("the lease ran out while this machine slept or was stalled".into())),
                },
                event = events.next() => match event {
                    None => break Step::Again(Again::Lost("the connection to the host was lost".into())),
                    Some(Event::Action(envelope)) => {
                        if let Some(step) = self.apply(&envelope).await {
                            break step;
                        }
                    }
                    Some(_) => {}
                },
                report = work(&mut self.turn) => {
                    self.ended = self.turn.take().map(|turn| turn.id);
                    let step;
                    (idle, step) = self.turn_over(report);
                    if let Some(step) = step {
                        break step;
                    }
                }
                error = exited(&mut idle) => break Step::Failed(error),
                () = self.stop.cancelled(), if !stopping => {
                    stopping = true;
                    if let Some(turn) = &self.turn {
                        turn.cancel.cancel();
                    }
                }
            }
        };
        self.wind_up(step, idle).await
    }

    /// Starts the active turn unless there is none or it is paid for elsewhere; gives the agent back then.
    fn next_turn(&mut self, agent: Agent) -> Option<Agent> {
        let Some(active) = &self.chat.active_turn else { return Some(agent) };
        // The end of a turn reaches us after its settlement was answered.
        if self.exchange.reservation.is_some() || self.ended.as_ref() == Some(&active.id) {
            return Some(agent);
        }
        let id = active.id.clone();
        self.tell(ParkEvent::TurnStarted { turn: id.clone(), text: active.message.text.clone() });
        let cancel = CancellationToken::new();
        let (settled, host_settled) = watch::channel(None);
        let abandon = CancellationToken::new();
        let (permissions, killer) = (agent.permissions(), agent.killer());
        let turn = Turn {
            emitter: Emitter {
                client: self.client.clone(),
                session: self.spec.session.clone(),
                epoch: self.lease.epoch,
            },
            journal: self.donation.journal.clone(),
            ledger: self.donation.ledger.clone(),
            worktree: self.donation.worktree.clone(),
            published: self.donation.published.clone(),
            limit: self.donation.limit(&self.exchange),
            host_spent: self.exchange.grants.get(&self.donation.grant).map(|g| g.spent).unwrap_or_default(),
            per_turn: self.spec.per_turn,
            id: id.clone(),
            text: active.message.text.clone(),
            with_context: (!self.informed || self.replaced) && !self.chat.turns.is_empty(),
            fresh: self.informed && self.replaced,
            cancel: cancel.clone(),
            settled: host_settled,
            abandon: abandon.clone(),
            out: self.out.clone(),
        };
        self.informed = true;
        self.replaced = false;
        self.turn = Some(Running {
            id,
            cancel,
            settled,
            abandon,
            permissions,
            killer,
            work: Box::pin(turn.run(agent)),
        });
        None
    }

    /// Applies an action of the host; a step when it ends the lease.
    async fn apply(&mut self, envelope: &Envelope) -> Option<Step> {
        if envelope.rejection_reason.is_some() {
            return None;
        }
        match &envelope.action {
            Action::Ahp(action)
                if envelope.channel == self.chat.resource && envelope.server_seq > self.chat_seq =>
            {
                self.chat_seq = envelope.server_seq;
                match &**action {
                    StateAction::ChatToolCallConfirmed(a) => {
                        if let Some(turn) = self.turn.as_ref().filter(|t| t.id == a.turn_id) {
                            let decision =
                                Decision { approved: a.approved, option_id: a.selected_option_id.clone() };
                            // A question that is no longer open needs no answer.
                            let _ = turn.permissions.decide(&a.tool_call_id, &decision);
                        }
                    }
                    StateAction::ChatToolCallReady(a) if a.options.is_some() => {
                        self.tell(ParkEvent::PermissionAsked {
                            tool: a.invocation_message.as_text().to_owned(),
                        });
                    }
                    StateAction::ChatTurnCancelled(a) => self.cancel_turn(&a.turn_id),
                    StateAction::ChatError(a) => self.cancel_turn(&a.turn_id),
                    _ => {}
                }
                apply_action_to_chat(&mut self.chat, action);
                None
            }
            Action::Axp(action)
                if envelope.channel == self.exchange.resource && envelope.server_seq > self.exchange_seq =>
            {
                self.exchange_seq = envelope.server_seq;
                apply_to_exchange(&mut self.exchange, action);
                match &**action {
                    AxpAction::LeaseChanged { lease, status, .. } => {
                        let ours = lease.as_ref().is_some_and(|l| l.epoch == self.lease.epoch);
                        if ours { None } else { Some(self.lease_over(*status)) }
                    }
                    AxpAction::Settled { turn_id, usage, .. } => {
                        if let Some(turn) = self.turn.as_ref().filter(|t| t.id == turn_id.as_str()) {
                            turn.settled.send_replace(Some(*usage));
                        }
                        None
                    }
                    AxpAction::ContextChanged { .. } => {
                        self.replaced = true;
                        None
                    }
                    AxpAction::GrantChanged { grant }
                        if grant.id == self.donation.grant && !grant.revoked =>
                    {
                        self.limit_changed().await;
                        None
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// A turn that the host has ended: the agent stops, its work is kept.
    fn cancel_turn(&self, id: &str) {
        if let Some(turn) = self.turn.as_ref().filter(|t| t.id == id) {
            turn.cancel.cancel();
        }
    }

    fn lease_over(&self, status: SessionPhase) -> Step {
        if self.exchange.grants.get(&self.donation.grant).is_some_and(|g| g.revoked) {
            return Step::Stop(StopReason::Revoked);
        }
        match status {
            SessionPhase::Closed => Step::Stop(StopReason::Closed),
            _ => Step::Again(Again::Lost("the host ended the lease".into())),
        }
    }

    /// The host refused a renewal; what it sent before says why, or an attempt to claim will.
    fn lease_refused(&self, why: String) -> Step {
        match self.lease_over(self.exchange.status) {
            Step::Again(_) => Step::Again(Again::Lost(why)),
            step => step,
        }
    }

    /// The donor changed the grant; on this machine it counts as far as the donor said so here.
    async fn limit_changed(&mut self) {
        let approved = crate::budget::approved_limit(&self.spec.state_folder, &self.donation.account);
        if let Some(limit) = approved
            && let Err(error) = self.donation.ledger.write(move |ledger| ledger.set_limit(limit)).await
        {
            self.tell(ParkEvent::Note(format!("the new limit could not be kept here: {error}")));
        }
        self.tell(ParkEvent::LimitChanged { limit: self.donation.limit(&self.exchange) });
    }

    /// The agent, if it is of further use or must still be ended, and what ends the lease.
    fn turn_over(&mut self, report: TurnReport) -> (Option<Agent>, Option<Step>) {
        if let Some(head) = report.published {
            self.donation.published = Some(head);
        }
        let step = match report.end {
            Ok(()) if report.agent.is_some() => None,
            Ok(()) => Some(Step::Again(Again::FreshAgent)),
            Err(ParkError::Client(error)) if error.is_transient() => {
                Some(Step::Again(Again::Lost(error.to_string())))
            }
            Err(error) => Some(Step::Failed(error)),
        };
        (report.agent, step)
    }

    /// Ends the agent, and gives the lease back where it is still ours to give.
    async fn wind_up(
        mut self,
        step: Step,
        idle: Option<Agent>,
    ) -> Result<Result<StopReason, Again>, ParkError> {
        if let Some(turn) = self.turn.take() {
            turn.abandon.cancel();
            turn.cancel.cancel();
            if !matches!(step, Step::Stop(StopReason::Asked)) {
                // Nobody pays for it or takes its output any more, and the next holder must find it gone.
                turn.killer.kill_now();
            }
            let report = turn.work.await;
            if let Some(agent) = report.agent {
                agent.stop().await;
            }
        }
        if let Some(agent) = idle {
            let noise = agent.noise();
            for line in &noise.first {
                tracing::debug!(lines = noise.lines, line, "the agent wrote something that is no message");
            }
            agent.stop().await;
        }
        if matches!(&step, Step::Stop(StopReason::Asked) | Step::Failed(_)) {
            let release = async {
                let release = params::Release {
                    channel: text(&format!("axp-session:/{}", self.spec.session))?,
                    operation_id: operation_id(),
                    epoch: Uint::clamped(self.lease.epoch),
                };
                self.client.with_timeout(Duration::from_secs(5)).call::<params::Release>(&release).await
            };
            if let Err(error) = release.await {
                self.tell(ParkEvent::Note(format!("the session could not be given back: {error}")));
            }
        }
        match step {
            Step::Stop(reason) => Ok(Ok(reason)),
            Step::Again(again) => Ok(Err(again)),
            Step::Failed(error) => Err(error),
        }
    }
}

/// The running turn's report; never without one.
async fn work(turn: &mut Option<Running>) -> TurnReport {
    match turn {
        Some(turn) => (&mut turn.work).await,
        None => std::future::pending().await,
    }
}

/// Resolves when the idle agent dies; never while it works.
async fn exited(idle: &mut Option<Agent>) -> ParkError {
    match idle {
        Some(agent) => agent.exited().await.into(),
        None => std::future::pending().await,
    }
}
