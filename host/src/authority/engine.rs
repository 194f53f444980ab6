//! Carries decisions out: records them in one transaction and applies them to memory; what is said of them waits until
//! the transaction is durable.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ahp_types::actions::ActionOrigin;
use ahp_types::state::SessionSummary;
use axp_protocol::ProtocolError;
use axp_protocol::action::{Action, AxpAction};
use axp_protocol::canonical::hash;
use axp_protocol::channel::{Channel, ROOT};
use axp_protocol::method::Call;
use axp_protocol::principal::Principal;
use axp_protocol::scalar::Id;
use serde_json::json;

use super::deadlines::{Deadlines, Expiry};
use super::decide::{self, Answer, Decision, Effect, Refusal};
use super::delivery::Output;
use super::frames::{action_frame, notification};
use super::load::load_state;
use super::lookup::Stored;
use super::state::{Session, State, follow_up};
use super::{ConnectionId, Incoming, Input, Settings, artifacts, catalogue, grants, lease};
use crate::outbox::Outbox;
use crate::reads::Reads;
use crate::rpc::Request;
use crate::store::{Reader, Receipt, ReceiptKey, Store, StoreError};

/// A connection as the authority knows it.
pub(super) struct Connection {
    pub(super) principal: Arc<Principal>,
    pub(super) outbox: Outbox,
    pub(super) greeted: Arc<AtomicBool>,
    /// Set by `initialize` and `reconnect`.
    pub(super) client: Option<String>,
    pub(super) channels: HashSet<Channel>,
}

pub(super) struct Engine {
    pub(super) store: Box<dyn Store>,
    pub(super) reader: Box<dyn Reader>,
    pub(super) reads: Reads,
    pub(super) settings: Settings,
    pub(super) state: State,
    /// Channels the store had at start, and the bytes of log after each one's snapshot.
    stored: HashMap<Channel, usize>,
    pub(super) connections: HashMap<ConnectionId, Connection>,
    pub(super) subscribers: HashMap<Channel, BTreeSet<ConnectionId>>,
    deadlines: Deadlines,
    /// Bytes of log since each channel's newest snapshot.
    log_bytes: HashMap<Channel, usize>,
    /// Size of each channel's newest snapshot.
    snapshot_sizes: HashMap<Channel, usize>,
    open: bool,
    outputs: Vec<Output>,
    /// Sessions the batch touched, with their catalogue entries from before it.
    touched: BTreeMap<Id, Option<SessionSummary>>,
}

impl Engine {
    pub(super) fn load(mut store: Box<dyn Store>, settings: Settings) -> Result<Self, StoreError> {
        let reader = store.reader()?;
        let reads = Reads::start(store.reader()?)?;
        let (state, stored) = load_state(&mut *store, &settings.repository)?;
        let log_bytes = stored.iter().map(|(channel, log)| (channel.clone(), *log)).collect();
        let mut engine = Self {
            store,
            reader,
            reads,
            settings,
            state,
            stored,
            connections: HashMap::new(),
            subscribers: HashMap::new(),
            deadlines: Deadlines::default(),
            log_bytes,
            snapshot_sizes: HashMap::new(),
            open: false,
            outputs: vec![],
            touched: BTreeMap::new(),
        };
        engine.schedule_all();
        Ok(engine)
    }

    fn schedule_all(&mut self) {
        self.deadlines = Deadlines::default();
        for executor in self.state.executors.entries.values().filter(|e| e.online) {
            self.deadlines.push(executor.expires_at, Expiry::Executor(executor.id.clone()));
        }
        for session in self.state.sessions.values() {
            if let Some(lease) = &session.exchange.lease {
                self.deadlines.push(lease.expires_at, Expiry::Lease(session.id.clone()));
            }
        }
    }

    /// Orphans what a previous process left running (section 7).
    pub(super) fn start_up(&mut self) -> Result<(), StoreError> {
        let now = (self.settings.clock)();
        let missing: Vec<_> = [Channel::Executors, Channel::Memory]
            .into_iter()
            .filter(|c| !self.stored.contains_key(c))
            .collect();
        let held: Vec<Id> = self
            .state
            .sessions
            .values()
            .filter(|s| s.exchange.lease.is_some())
            .map(|s| s.id.clone())
            .collect();
        if held.is_empty() && missing.is_empty() {
            return Ok(());
        }
        self.begin()?;
        for channel in missing {
            if let Some(Ok(seed)) = self.state.snapshot(&channel) {
                self.store.create_channel(&channel, &seed, self.state.seq)?;
            }
        }
        for id in held {
            if let Some(session) = self.state.sessions.get(&id) {
                let events = lease::orphan(session, "the host restarted while the turn ran", now);
                self.record(events, None, now)?;
            }
        }
        self.store.commit()?;
        self.open = false;
        // Nobody is connected yet.
        self.outputs.clear();
        self.touched.clear();
        Ok(())
    }

    fn begin(&mut self) -> Result<(), StoreError> {
        if !self.open {
            self.store.begin()?;
            self.open = true;
        }
        Ok(())
    }

    /// Time until something expires; `None` when nothing will.
    pub(super) fn until_deadline(&self) -> Option<Duration> {
        let next = self.deadlines.next()?;
        Some(Duration::from_millis(next.saturating_sub((self.settings.clock)())))
    }

    pub(super) fn handle(&mut self, input: Input) {
        match input {
            Input::Open { connection, principal, outbox, greeted } => {
                let opened =
                    Connection { principal, outbox, greeted, client: None, channels: HashSet::new() };
                self.connections.insert(connection, opened);
            }
            Input::Closed { connection } => {
                // What the batch has for others must not be lost on their account, so nothing waits for this.
                if let Some(closed) = self.connections.remove(&connection) {
                    for channel in closed.channels {
                        self.drop_subscriber(&channel, connection);
                    }
                }
            }
            Input::Request(incoming) => self.request(*incoming),
            Input::Stop => {}
        }
    }

    pub(super) fn drop_subscriber(&mut self, channel: &Channel, connection: ConnectionId) {
        if let Some(set) = self.subscribers.get_mut(channel) {
            set.remove(&connection);
            if set.is_empty() {
                self.subscribers.remove(channel);
            }
        }
    }

    fn request(&mut self, incoming: Incoming) {
        let Incoming { connection, id, request, permit } = incoming;
        if !self.connections.contains_key(&connection) {
            return;
        }
        // What has run out by now has run out for this request.
        self.expire();
        // These read state and change who hears of it; what was decided before them goes out first, so that a
        // snapshot and the first action after it neither overlap nor gap (section 5).
        let barrier = matches!(
            request,
            Request::Initialize(_)
                | Request::Reconnect(_)
                | Request::Subscribe { .. }
                | Request::Unsubscribe { .. }
                // And these read the log.
                | Request::Axp(Call::Review(_) | Call::MemoryPropose(_))
        );
        if barrier {
            self.flush();
        }
        let echo = match (&request, &id) {
            (Request::DispatchAction(p), None) => Some((p.channel.clone(), p.action.clone(), p.client_seq)),
            _ => None,
        };
        let result = self.begin().map_err(Refusal::from).and_then(|()| self.execute(connection, request));
        match (result, id) {
            (Ok(answer), Some(id)) => self.outputs.push(Output::Answer { connection, id, answer, permit }),
            (Ok(_), None) => {}
            (Err(Refusal::Protocol(error)), Some(id)) => {
                self.outputs.push(Output::Refused { connection, id, error, permit });
            }
            (Err(Refusal::Protocol(error)), None) => {
                if let Some((channel, action, seq)) = echo {
                    self.echo(connection, &channel, &action, seq, &error);
                }
            }
            (Err(Refusal::Store(error)), id) => {
                if let Some(id) = id {
                    let error = ProtocolError::internal("the host could not store this");
                    self.outputs.push(Output::Refused { connection, id, error, permit });
                }
                self.fail(&error);
            }
        }
        if barrier {
            self.flush();
        }
    }

    fn execute(&mut self, connection: ConnectionId, request: Request) -> Result<Answer, Refusal> {
        // A store that failed in the flush before this has ended every connection.
        let Some(known) = self.connections.get(&connection) else {
            return Err(ProtocolError::internal("the connection is over").into());
        };
        let actor = known.principal.clone();
        let client = known.client.clone();
        let now = (self.settings.clock)();
        let client = match (&request, client) {
            (Request::Initialize(_) | Request::Reconnect(_), Some(_)) => {
                return Err(ProtocolError::conflict("this connection is initialized already").into());
            }
            (Request::Initialize(p), None) => return self.initialize(connection, &actor, p),
            (Request::Reconnect(p), None) => return self.reconnect(connection, &actor, p),
            (_, None) => {
                return Err(ProtocolError::not_permitted("initialize or reconnect comes first").into());
            }
            (_, Some(client)) => client,
        };
        match request {
            Request::Initialize(_) | Request::Reconnect(_) => {
                Err(ProtocolError::internal("unreachable").into())
            }
            Request::Subscribe { channel } => self.subscribe(connection, &actor, &channel),
            Request::Unsubscribe { channel } => self.unsubscribe(connection, &channel),
            Request::ListSessions(p) => {
                Ok(Answer::Json(catalogue::list(&self.state, &actor, p.limit, p.cursor.as_deref())?))
            }
            Request::CreateSession(p) => self.create_session(&actor, &p, now),
            Request::ResourceRead { session, digest, text } => {
                let session = decide::readable(&self.state, &actor, &Channel::Exchange(session))?.id.clone();
                if self.store.blob_meta(&session, &digest)?.is_none() {
                    return Err(
                        ProtocolError::not_found(format!("no blob {digest} in session {session}")).into()
                    );
                }
                Ok(Answer::Resource { session, digest, text })
            }
            Request::DispatchAction(p) => {
                let key = ReceiptKey::Dispatch { client: client.clone(), seq: p.client_seq };
                let input = input_hash(&json!({ "channel": p.channel.to_string(), "action": p.action }))?;
                let origin = ActionOrigin {
                    client_id: client.clone(),
                    client_seq: i64::try_from(p.client_seq).unwrap_or(i64::MAX),
                };
                let answer = self.once(key, "dispatchAction", input, Some(origin), now, |engine| {
                    let session = decide::readable(&engine.state, &actor, &p.channel)?;
                    Ok(super::turn::dispatch(session, &actor, &p.channel, &p.action, now)?)
                })?;
                if let Some(binding) = self.state.clients.get_mut(&client) {
                    binding.last_seq = binding.last_seq.max(p.client_seq);
                }
                Ok(answer)
            }
            Request::Axp(call) => {
                let decide = |engine: &mut Self| {
                    let mut stored = Stored { store: &mut *engine.store, reader: &mut *engine.reader };
                    decide::decide(&engine.state, &mut stored, &actor, &call, now)
                };
                let Some(operation) = call.operation_id() else {
                    return Ok(decide(self)?.answer);
                };
                let key = ReceiptKey::Operation { principal: actor.id.clone(), operation: operation.clone() };
                let params = call.params().map_err(|e| ProtocolError::internal(e.to_string()))?;
                self.once(key, call.method(), input_hash(&params)?, None, now, decide)
            }
            Request::BlobPut { operation, channel, upload } => {
                let key = ReceiptKey::Operation { principal: actor.id.clone(), operation };
                let input = json!({
                    "channel": channel.to_string(), "digest": upload.digest, "mediaType": upload.media_type
                });
                let total = self.settings.blob_total_bytes;
                self.once(key, "_axp/blobPut", input_hash(&input)?, None, now, |engine| {
                    Ok(artifacts::put_blob(&engine.state, &actor, &channel, upload, total)?)
                })
            }
        }
    }

    /// Carries a mutation out once: its receipt answers every repetition (section 6).
    fn once(
        &mut self,
        key: ReceiptKey,
        method: &str,
        input: String,
        origin: Option<ActionOrigin>,
        now: u64,
        decide: impl FnOnce(&mut Self) -> Result<Decision, Refusal>,
    ) -> Result<Answer, Refusal> {
        if let Some(receipt) = self.store.receipt(&key)? {
            if receipt.method == method && receipt.input == input {
                return Ok(Answer::Json(receipt.result));
            }
            return Err(ProtocolError::conflict("this ID was used for something else before").into());
        }
        let decision = decide(self)?;
        let Answer::Json(result) = &decision.answer else {
            return Err(ProtocolError::internal("a mutation must have a result to keep").into());
        };
        let receipt = Receipt { method: method.to_owned(), input, result: result.clone() };
        for effect in decision.effects {
            match effect {
                Effect::PutBlob { session, digest, media_type, data } => {
                    if self.store.put_blob(&digest, &data)? {
                        self.state.blob_bytes += data.len() as u64;
                    }
                    self.store.link_blob(&session, &digest, &media_type)?;
                }
                Effect::BindKey { key, principal } => {
                    self.store.bind_key(&key, &principal)?;
                    self.state.keys.insert(key, principal);
                }
            }
        }
        self.record(decision.events, origin, now)?;
        self.store.put_receipt(&key, &receipt)?;
        Ok(decision.answer)
    }

    /// Logs actions, applies them, and adds what follows from them. The origin belongs to the first.
    fn record(
        &mut self,
        events: Vec<(Channel, Action)>,
        mut origin: Option<ActionOrigin>,
        now: u64,
    ) -> Result<(), StoreError> {
        let mut sessions = BTreeSet::new();
        let mut mirrored = false;
        for (channel, action) in events {
            mirrored |= !is_delta(&action);
            sessions.extend(channel.session().cloned());
            self.append(&channel, &action, origin.take())?;
        }
        if !mirrored {
            return Ok(());
        }
        for id in sessions {
            while let Some(session) = self.state.sessions.get(&id) {
                let next = follow_up(session, now);
                if next.is_empty() {
                    break;
                }
                for (channel, action) in next {
                    self.append(&channel, &action, None)?;
                }
            }
        }
        Ok(())
    }

    fn append(
        &mut self,
        channel: &Channel,
        action: &Action,
        origin: Option<ActionOrigin>,
    ) -> Result<(), StoreError> {
        let damaged = |e: serde_json::Error| StoreError::Damaged(format!("an action cannot be written: {e}"));
        if let Some(id) = channel.session()
            && !self.touched.contains_key(id)
        {
            self.touched.insert(id.clone(), self.state.sessions.get(id).map(catalogue::summary));
        }
        let text = serde_json::to_string(action).map_err(damaged)?;
        let origin = origin.map(|o| serde_json::to_string(&o)).transpose().map_err(damaged)?;
        let seq = self.state.seq + 1;
        self.store.append(seq, channel, &text, origin.as_deref())?;
        self.state.seq = seq;
        self.state.apply(channel, action);
        self.schedule(action, channel);
        let frame = action_frame(channel, &text, seq, origin.as_deref(), None);
        self.outputs.push(Output::Event { channel: channel.clone(), frame });

        let logged = self.log_bytes.entry(channel.clone()).or_default();
        *logged += text.len();
        let threshold =
            self.snapshot_sizes.get(channel).copied().unwrap_or(0).max(self.settings.snapshot_bytes);
        if *logged >= threshold
            && let Some(snapshot) = self.state.snapshot(channel)
        {
            let snapshot = snapshot.map_err(damaged)?;
            self.store.put_snapshot(channel, seq, &snapshot)?;
            self.log_bytes.insert(channel.clone(), 0);
            self.snapshot_sizes.insert(channel.clone(), snapshot.len());
        }
        Ok(())
    }

    fn schedule(&mut self, action: &Action, channel: &Channel) {
        let Action::Axp(action) = action else { return };
        match (&**action, channel.session()) {
            (AxpAction::LeaseChanged { lease: Some(lease), .. }, Some(id)) => {
                self.deadlines.push(lease.expires_at, Expiry::Lease(id.clone()));
            }
            (AxpAction::ExecutorChanged { executor }, _) if executor.online => {
                self.deadlines.push(executor.expires_at, Expiry::Executor(executor.id.clone()));
            }
            _ => {}
        }
    }

    /// Turns what has expired into actions.
    pub(super) fn expire(&mut self) {
        let now = (self.settings.clock)();
        while let Some(expiry) = self.deadlines.due(now) {
            let events = match &expiry {
                Expiry::Lease(id) => match self.state.sessions.get(id) {
                    Some(s) if s.exchange.lease.as_ref().is_some_and(|l| l.expires_at <= now) => {
                        lease::orphan(s, "the contributor's lease expired while the turn ran", now)
                    }
                    _ => continue,
                },
                Expiry::Executor(id) => match self.state.executors.entries.get(id) {
                    Some(e) if e.online && e.expires_at <= now => vec![grants::executor_offline(e)],
                    _ => continue,
                },
            };
            if let Err(error) = self.begin().and_then(|()| self.record(events, None, now)) {
                self.fail(&error);
                return;
            }
        }
    }

    fn create_session(
        &mut self,
        actor: &Principal,
        p: &crate::rpc::NewSession,
        now: u64,
    ) -> Result<Answer, Refusal> {
        decide::require_role(actor, &[axp_protocol::principal::Role::Maintainer], "create a session")?;
        if !actor.reads(&p.id) {
            return Err(
                ProtocolError::not_permitted(format!("session {} is outside your scope", p.id)).into()
            );
        }
        if self.state.sessions.contains_key(&p.id) {
            return Err(ProtocolError::session_exists(format!("session {} exists", p.id)).into());
        }
        let open = |s: &&Session| {
            s.exchange.status != axp_protocol::shape::SessionPhase::Closed && s.exchange.task == p.task
        };
        if let Some(other) = self.state.sessions.values().find(open) {
            return Err(ProtocolError::conflict(format!(
                "session {} is open for task {:?}",
                other.id, p.task
            ))
            .into());
        }
        let internal = |e: serde_json::Error| ProtocolError::internal(e.to_string());
        let session =
            Session::new(&p.id, &self.state.repository, &p.title, &p.task, now).map_err(internal)?;
        self.store.create_session(&p.id, now)?;
        let summary = catalogue::summary(&session);
        self.state.sessions.insert(p.id.clone(), session);
        for channel in Session::channels(&p.id) {
            if let Some(seed) = self.state.snapshot(&channel) {
                self.store.create_channel(&channel, &seed.map_err(internal)?, self.state.seq)?;
            }
        }
        let frame = notification("root/sessionAdded", &json!({ "channel": ROOT, "summary": summary }));
        self.outputs.push(Output::Summary { session: p.id.clone(), frame });
        Ok(Answer::Json("null".into()))
    }

    fn echo(
        &mut self,
        to: ConnectionId,
        channel: &Channel,
        action: &ahp_types::StateAction,
        seq: u64,
        why: &ProtocolError,
    ) {
        let client = self.connections.get(&to).and_then(|c| c.client.clone()).unwrap_or_default();
        let origin = json!({ "clientId": client, "clientSeq": seq }).to_string();
        if let Ok(action) = serde_json::to_string(action) {
            let frame = action_frame(channel, &action, self.state.seq, Some(&origin), Some(&why.message));
            self.outputs.push(Output::Echo { connection: to, frame });
        }
    }

    /// Makes the batch durable and lets it out.
    pub(super) fn flush(&mut self) {
        if self.open {
            if let Err(error) = self.store.commit() {
                self.fail(&error);
                return;
            }
            self.open = false;
        }
        for (id, before) in std::mem::take(&mut self.touched) {
            let (Some(before), Some(session)) = (before, self.state.sessions.get(&id)) else { continue };
            if let Some(changes) = catalogue::changes(&before, &catalogue::summary(session)) {
                let session = Channel::Session(id.clone()).to_string();
                let params = json!({ "channel": ROOT, "session": session, "changes": changes });
                let frame = notification("root/sessionSummaryChanged", &params);
                self.outputs.push(Output::Summary { session: id, frame });
            }
        }
        for output in std::mem::take(&mut self.outputs) {
            self.send(output);
        }
    }

    /// A store that fails takes the whole batch back: memory is read again from what is durable, and everybody who
    /// waits is told.
    fn fail(&mut self, error: &StoreError) {
        tracing::error!(%error, "the transaction failed and was taken back");
        self.store.rollback();
        self.open = false;
        self.touched.clear();
        for output in std::mem::take(&mut self.outputs) {
            match output {
                Output::Answer { connection, id, permit, .. } => {
                    let error =
                        ProtocolError::internal("the host could not store this; nothing of it happened");
                    self.send(Output::Refused { connection, id, error, permit });
                }
                refused @ Output::Refused { .. } => self.send(refused),
                Output::Event { .. } | Output::Summary { .. } | Output::Echo { .. } => {}
            }
        }
        match load_state(&mut *self.store, &self.settings.repository) {
            Ok((state, stored)) => {
                self.state = state;
                self.log_bytes = stored;
                self.snapshot_sizes.clear();
                self.schedule_all();
            }
            Err(error) => {
                // Memory may now be ahead of the store; nothing may be answered from it.
                tracing::error!(%error, "stored state cannot be read; connections end");
                for connection in self.connections.values() {
                    connection.outbox.close(1011, "storage failed");
                }
                self.connections.clear();
                self.subscribers.clear();
            }
        }
    }
}

/// Deltas change nothing that other channels mirror.
fn is_delta(action: &Action) -> bool {
    use ahp_types::StateAction::{ChatDelta, ChatReasoning};
    matches!(action, Action::Ahp(a) if matches!(**a, ChatDelta(_) | ChatReasoning(_)))
}

fn input_hash(value: &serde_json::Value) -> Result<String, ProtocolError> {
    hash(value).map_err(|e| ProtocolError::internal(format!("the params cannot be hashed: {e}")))
}
