//! The state of a host in memory, and what follows from a change of it.

use std::collections::{BTreeMap, HashMap, HashSet};

use ahp::reducers::ReduceOutcome;
use ahp_types::actions::PartialChatSummary;
use ahp_types::actions::{
    ChatTurnStartedAction, SessionChatUpdatedAction, SessionInputNeededRemovedAction,
    SessionInputNeededSetAction, StateAction,
};
use ahp_types::state::{
    AgentInfo, Changeset, ChangesetState, ChangesetStatus, ChatState, ChatSummary, ResponsePart, RootState,
    SessionInputRequest, SessionLifecycle, SessionState, SessionStatus, SessionToolConfirmationRequest,
    ToolCallConfirmationState, ToolCallState,
};
use axp_protocol::action::Action;
use axp_protocol::canonical::hash;
use axp_protocol::channel::{Channel, EXECUTORS, MEMORY};
use axp_protocol::scalar::{Digest, Id};
use axp_protocol::shape::{Context, ExchangeState, ExecutorRegistry, MemoryState, SessionPhase};
use axp_protocol::state::ChannelState;
use axp_protocol::{AXP_VERSION, CAPABILITY};
use serde_json::json;

use crate::time::rfc3339;

/// A client ID's first user and highest clientSeq.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientBinding {
    pub(crate) principal: Id,
    pub(crate) last_seq: u64,
}

/// A session's four channels.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) id: Id,
    /// ms since the Unix epoch.
    pub(crate) created_at: u64,
    pub(crate) exchange: ExchangeState,
    pub(crate) chat: ChatState,
    pub(crate) session: SessionState,
    pub(crate) changeset: ChangesetState,
    /// Every turn ID this session ever had.
    pub(crate) turn_ids: HashSet<String>,
}

/// Everything.
#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) repository: String,
    pub(crate) seq: u64,
    pub(crate) root: RootState,
    pub(crate) executors: ExecutorRegistry,
    pub(crate) memory: MemoryState,
    pub(crate) sessions: BTreeMap<Id, Session>,
    pub(crate) clients: HashMap<String, ClientBinding>,
    pub(crate) blob_bytes: u64,
    /// Who first signed with a key, by the key's fingerprint.
    pub(crate) keys: HashMap<Digest, Id>,
}

impl State {
    pub(crate) fn new(repository: &str) -> Self {
        Self {
            repository: repository.to_owned(),
            seq: 0,
            root: RootState {
                agents: vec![AgentInfo {
                    provider: "axp".into(),
                    display_name: "AXP".into(),
                    description: "Coding agents that contributors park here".into(),
                    models: vec![],
                    protected_resources: None,
                    customizations: None,
                    capabilities: None,
                }],
                active_sessions: None,
                terminals: None,
                config: None,
                meta: Some(exchange_meta(json!({
                    "version": AXP_VERSION, "memory": MEMORY, "executors": EXECUTORS
                }))),
            },
            executors: ExecutorRegistry { resource: EXECUTORS.into(), entries: BTreeMap::new() },
            memory: MemoryState { resource: MEMORY.into(), entries: BTreeMap::new() },
            sessions: BTreeMap::new(),
            clients: HashMap::new(),
            blob_bytes: 0,
            keys: HashMap::new(),
        }
    }

    /// Applies an action to the channel's state.
    pub(crate) fn apply(&mut self, channel: &Channel, action: &Action) -> ReduceOutcome {
        use axp_protocol::state::{apply_to_exchange, apply_to_executors, apply_to_memory};
        match (channel, action) {
            (Channel::Executors, Action::Axp(action)) => apply_to_executors(&mut self.executors, action),
            (Channel::Memory, Action::Axp(action)) => apply_to_memory(&mut self.memory, action),
            (Channel::Root, Action::Ahp(action)) => {
                ahp::reducers::apply_action_to_root(&mut self.root, action)
            }
            _ => {
                let Some(session) = channel.session().and_then(|id| self.sessions.get_mut(id)) else {
                    return ReduceOutcome::OutOfScope;
                };
                match (channel, action) {
                    (Channel::Exchange(_), Action::Axp(action)) => {
                        apply_to_exchange(&mut session.exchange, action)
                    }
                    (Channel::Session(_), Action::Ahp(action)) => {
                        ahp::reducers::apply_action_to_session(&mut session.session, action)
                    }
                    (Channel::Chat(_), Action::Ahp(action)) => {
                        if let StateAction::ChatTurnStarted(started) = &**action {
                            session.turn_ids.insert(started.turn_id.clone());
                        }
                        ahp::reducers::apply_action_to_chat(&mut session.chat, action)
                    }
                    (Channel::Changeset(_), Action::Ahp(action)) => {
                        ahp::reducers::apply_action_to_changeset(&mut session.changeset, action)
                    }
                    _ => ReduceOutcome::OutOfScope,
                }
            }
        }
    }

    /// JSON of a channel's state; `None` when there is no such channel.
    pub(crate) fn snapshot(&self, channel: &Channel) -> Option<Result<String, serde_json::Error>> {
        let session = channel.session().map(|id| self.sessions.get(id));
        Some(match (channel, session) {
            (Channel::Root, _) => serde_json::to_string(&self.root),
            (Channel::Executors, _) => serde_json::to_string(&self.executors),
            (Channel::Memory, _) => serde_json::to_string(&self.memory),
            (Channel::Session(_), Some(Some(s))) => serde_json::to_string(&s.session),
            (Channel::Chat(_), Some(Some(s))) => serde_json::to_string(&s.chat),
            (Channel::Changeset(_), Some(Some(s))) => serde_json::to_string(&s.changeset),
            (Channel::Exchange(_), Some(Some(s))) => serde_json::to_string(&s.exchange),
            _ => return None,
        })
    }
}

fn exchange_meta(value: serde_json::Value) -> serde_json::Map<String, serde_json::Value> {
    let mut meta = serde_json::Map::new();
    meta.insert(CAPABILITY.into(), value);
    meta
}

impl Session {
    /// A new session's first state (section 4).
    ///
    /// # Errors
    /// When the context cannot be hashed.
    pub(crate) fn new(
        id: &Id,
        repository: &str,
        title: &str,
        task: &str,
        now: u64,
    ) -> Result<Self, serde_json::Error> {
        let exchange_channel = Channel::Exchange(id.clone()).to_string();
        let chat_channel = Channel::Chat(id.clone()).to_string();
        let created = rfc3339(now);
        let idle = SessionStatus::Idle.bits();
        let mut context = Context {
            revision: 0,
            through_turn: 0,
            summary: String::new(),
            decisions: vec![],
            active_files: vec![],
            git_head: None,
            prefix_hash: String::new(),
        };
        context.prefix_hash = context_hash(&context)?;
        Ok(Self {
            id: id.clone(),
            created_at: now,
            exchange: ExchangeState {
                resource: exchange_channel.clone(),
                session: Channel::Session(id.clone()).to_string(),
                chat: chat_channel.clone(),
                repository: repository.to_owned(),
                task: task.to_owned(),
                status: SessionPhase::Open,
                epoch: 0,
                lease: None,
                grants: BTreeMap::new(),
                reservation: None,
                usage: vec![],
                checkpoint: None,
                context,
                compaction: None,
                review: None,
                verification: None,
                discussion: vec![],
            },
            chat: ChatState {
                resource: chat_channel.clone(),
                title: title.to_owned(),
                status: idle,
                activity: None,
                modified_at: created.clone(),
                origin: None,
                interactivity: None,
                working_directories: None,
                turns: vec![],
                turns_next_cursor: None,
                active_turn: None,
                steering_message: None,
                queued_messages: None,
                draft: None,
                meta: None,
            },
            session: SessionState {
                provider: "axp".into(),
                title: title.to_owned(),
                status: idle,
                activity: None,
                origin: None,
                project: None,
                working_directories: None,
                annotations: None,
                lifecycle: SessionLifecycle::Ready,
                creation_error: None,
                server_tools: None,
                active_clients: vec![],
                chats: vec![ChatSummary {
                    resource: chat_channel.clone(),
                    title: title.to_owned(),
                    status: idle,
                    activity: None,
                    modified_at: created,
                    origin: None,
                    interactivity: None,
                    working_directories: None,
                }],
                default_chat: Some(chat_channel),
                config: None,
                customizations: None,
                changesets: Some(vec![Changeset {
                    label: "Git checkpoint".into(),
                    uri_template: Channel::Changeset(id.clone()).to_string(),
                    description: None,
                    change_kind: "session".into(),
                    capabilities: None,
                }]),
                input_needed: None,
                meta: Some(exchange_meta(json!({ "channel": exchange_channel }))),
            },
            changeset: ChangesetState {
                status: ChangesetStatus::Ready,
                error: None,
                files: vec![],
                operations: None,
            },
            turn_ids: HashSet::new(),
        })
    }

    /// The four channels, in the order they are created and exported.
    pub(crate) fn channels(id: &Id) -> [Channel; 4] {
        [
            Channel::Exchange(id.clone()),
            Channel::Session(id.clone()),
            Channel::Chat(id.clone()),
            Channel::Changeset(id.clone()),
        ]
    }

    /// Puts a stored channel state in its place.
    pub(crate) fn set(&mut self, state: ChannelState) {
        match state {
            ChannelState::Exchange(state) => self.exchange = *state,
            ChannelState::Chat(state) => {
                let active = state.active_turn.iter().map(|t| t.id.clone());
                self.turn_ids = state.turns.iter().map(|t| t.id.clone()).chain(active).collect();
                self.chat = *state;
            }
            ChannelState::Session(state) => self.session = *state,
            ChannelState::Changeset(state) => self.changeset = *state,
            ChannelState::Root(_) | ChannelState::Executors(_) | ChannelState::Memory(_) => {}
        }
    }
}

/// `prefixHash` of a context: the hash of the context without that field (section 8).
pub(crate) fn context_hash(context: &Context) -> Result<String, serde_json::Error> {
    let mut value = serde_json::to_value(context)?;
    if let Some(object) = value.as_object_mut() {
        object.remove("prefixHash");
    }
    hash(&value)
}

/// Actions that must follow a change of a session's chat so that its other channels agree with it: the next pending
/// message starts when the chat is free (section 5), and the session channel mirrors status and waiting tool calls
/// (section 4). Returns one step; call again after applying it, until it returns nothing.
pub(crate) fn follow_up(session: &Session, now: u64) -> Vec<(Channel, Action)> {
    let mut events = Vec::new();
    let chat = &session.chat;
    if chat.active_turn.is_none() && session.exchange.status != SessionPhase::Closed {
        let next = chat.steering_message.as_ref().or_else(|| chat.queued_messages.as_ref()?.first());
        if let Some(next) = next {
            let mut turn_id = next.id.clone();
            let mut n = 1;
            while session.turn_ids.contains(&turn_id) {
                n += 1;
                // A suffix could pass the length of an identifier.
                let kept: String = next.id.chars().take(112).collect();
                turn_id = format!("{kept}-{n}");
            }
            let started = StateAction::ChatTurnStarted(ChatTurnStartedAction {
                turn_id,
                started_at: rfc3339(now),
                message: next.message.clone(),
                queued_message_id: Some(next.id.clone()),
                meta: None,
            });
            events.push((Channel::Chat(session.id.clone()), started.into()));
            return events;
        }
    }

    let channel = Channel::Session(session.id.clone());
    let waiting = waiting_tools(chat);
    let shown = session.session.input_needed.as_deref().unwrap_or_default();
    for request in shown {
        if let SessionInputRequest::ToolConfirmation(request) = request
            && !waiting.iter().any(|w| w.id == request.id)
        {
            let removed = SessionInputNeededRemovedAction { id: request.id.clone() };
            events.push((channel.clone(), StateAction::SessionInputNeededRemoved(removed).into()));
        }
    }
    for request in waiting {
        let same =
            shown.iter().any(|s| matches!(s, SessionInputRequest::ToolConfirmation(s) if *s == request));
        if !same {
            let request = SessionInputRequest::ToolConfirmation(request);
            let set = SessionInputNeededSetAction { request };
            events.push((channel.clone(), StateAction::SessionInputNeededSet(Box::new(set)).into()));
        }
    }
    if let Some(summary) = session.session.chats.first()
        && (summary.status != chat.status || summary.modified_at != chat.modified_at)
    {
        let updated = SessionChatUpdatedAction {
            chat: summary.resource.clone(),
            changes: PartialChatSummary {
                status: Some(chat.status),
                modified_at: Some(chat.modified_at.clone()),
                ..Default::default()
            },
        };
        events.push((channel, StateAction::SessionChatUpdated(updated).into()));
    }
    events
}

fn waiting_tools(chat: &ChatState) -> Vec<SessionToolConfirmationRequest> {
    let Some(turn) = &chat.active_turn else { return vec![] };
    turn.response_parts
        .iter()
        .filter_map(|part| match part {
            ResponsePart::ToolCall(tool) => match &tool.tool_call {
                ToolCallState::PendingConfirmation(pending) => Some(SessionToolConfirmationRequest {
                    id: pending.tool_call_id.clone(),
                    chat: chat.resource.clone(),
                    turn_id: turn.id.clone(),
                    tool_call: ToolCallConfirmationState::PendingConfirmation(pending.clone()),
                }),
                _ => None,
            },
            _ => None,
        })
        .collect()
}
