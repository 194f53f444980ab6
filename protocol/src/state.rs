//! Channel state and its reduction: AHP's channels by the upstream reducers, AXP's by the ones here. No I/O, no
//! clock (section 7).

use std::collections::BTreeMap;

use ahp::reducers::{
    ReduceOutcome, apply_action_to_changeset, apply_action_to_chat, apply_action_to_root,
    apply_action_to_session,
};
use ahp_types::state::{ChangesetState, ChatState, RootState, SessionState};
use serde::Serialize;
use serde_json::Value;

use crate::action::{Action, AxpAction, Envelope};
use crate::channel::Channel;
use crate::error::ProtocolError;
use crate::limits::COMMENTS;
use crate::shape::{ExchangeState, ExecutorRegistry, MemoryState, SettledUsage};

/// State of a channel.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ChannelState {
    /// `ahp-root://`
    Root(Box<RootState>),
    /// `ahp-session:/ID`
    Session(Box<SessionState>),
    /// `ahp-chat:/ID`
    Chat(Box<ChatState>),
    /// `ahp-changeset:/ID`
    Changeset(Box<ChangesetState>),
    /// `axp-session:/ID`
    Exchange(Box<ExchangeState>),
    /// `axp-executors://`
    Executors(Box<ExecutorRegistry>),
    /// `axp-memory://`
    Memory(Box<MemoryState>),
}

impl ChannelState {
    /// Reads a stored or received state of the kind that `channel` has.
    ///
    /// # Errors
    /// When the JSON does not fit.
    pub fn from_value(channel: &Channel, value: Value) -> Result<Self, serde_json::Error> {
        use serde_json::from_value;
        Ok(match channel {
            Channel::Root => Self::Root(from_value(value)?),
            Channel::Session(_) => Self::Session(from_value(value)?),
            Channel::Chat(_) => Self::Chat(from_value(value)?),
            Channel::Changeset(_) => Self::Changeset(from_value(value)?),
            Channel::Exchange(_) => Self::Exchange(from_value(value)?),
            Channel::Executors => Self::Executors(from_value(value)?),
            Channel::Memory => Self::Memory(from_value(value)?),
        })
    }

    /// Applies one action in place.
    pub fn apply(&mut self, action: &Action) -> ReduceOutcome {
        match (self, action) {
            (Self::Root(state), Action::Ahp(action)) => apply_action_to_root(state, action),
            (Self::Session(state), Action::Ahp(action)) => apply_action_to_session(state, action),
            (Self::Chat(state), Action::Ahp(action)) => apply_action_to_chat(state, action),
            (Self::Changeset(state), Action::Ahp(action)) => apply_action_to_changeset(state, action),
            (Self::Exchange(state), Action::Axp(action)) => apply_to_exchange(state, action),
            (Self::Executors(state), Action::Axp(action)) => apply_to_executors(state, action),
            (Self::Memory(state), Action::Axp(action)) => apply_to_memory(state, action),
            _ => ReduceOutcome::OutOfScope,
        }
    }
}

/// Reducer of `axp-executors://`.
pub fn apply_to_executors(state: &mut ExecutorRegistry, action: &AxpAction) -> ReduceOutcome {
    let AxpAction::ExecutorChanged { executor } = action else { return ReduceOutcome::OutOfScope };
    state.entries.insert(executor.id.clone(), executor.clone());
    ReduceOutcome::Applied
}

/// Reducer of `axp-memory://`.
pub fn apply_to_memory(state: &mut MemoryState, action: &AxpAction) -> ReduceOutcome {
    let AxpAction::MemoryChanged { memory } = action else { return ReduceOutcome::OutOfScope };
    state.entries.insert(memory.id.clone(), memory.clone());
    ReduceOutcome::Applied
}

/// Reducer of `axp-session:/ID`.
pub fn apply_to_exchange(state: &mut ExchangeState, action: &AxpAction) -> ReduceOutcome {
    match action {
        AxpAction::CommentAdded { comment } => {
            state.discussion.push(comment.clone());
            let surplus = state.discussion.len().saturating_sub(COMMENTS);
            state.discussion.drain(..surplus);
        }
        AxpAction::LeaseChanged { lease, epoch, status } => {
            state.lease = lease.clone();
            state.epoch = *epoch;
            state.status = *status;
        }
        AxpAction::GrantChanged { grant } => {
            state.grants.insert(grant.id.clone(), grant.clone());
        }
        AxpAction::Reserved { reservation } => state.reservation = Some(reservation.clone()),
        AxpAction::Settled { turn_id, grant, usage } => {
            state.usage.push(SettledUsage {
                turn_id: turn_id.clone(),
                grant_id: grant.id.clone(),
                usage: *usage,
            });
            state.grants.insert(grant.id.clone(), grant.clone());
            state.reservation = None;
        }
        AxpAction::CheckpointChanged { checkpoint } => {
            state.checkpoint = Some(checkpoint.clone());
            state.review = None;
            state.verification = None;
        }
        AxpAction::CompactionProposed { proposal } => state.compaction = Some(proposal.clone()),
        AxpAction::ContextChanged { context } => {
            state.context = context.clone();
            state.compaction = None;
        }
        AxpAction::ReviewChanged { review } => state.review = Some(review.clone()),
        AxpAction::VerificationChanged { verification } => state.verification = Some(verification.clone()),
        AxpAction::MemoryChanged { .. } | AxpAction::ExecutorChanged { .. } => {
            return ReduceOutcome::OutOfScope;
        }
    }
    ReduceOutcome::Applied
}

/// Recomputes channel states from their seeds, one action after the other.
#[derive(Debug)]
pub struct Replay {
    states: BTreeMap<String, ChannelState>,
    last: u64,
}

impl Replay {
    /// Begins at the seeds, by channel name.
    ///
    /// # Errors
    /// −32602 when a channel name or seed cannot be read.
    pub fn new<'a>(seeds: impl IntoIterator<Item = (&'a str, Value)>) -> Result<Self, ProtocolError> {
        let mut states = BTreeMap::new();
        for (name, seed) in seeds {
            let channel = Channel::parse(name)?;
            let state = ChannelState::from_value(&channel, seed)
                .map_err(|e| ProtocolError::invalid_params(format!("seed of {name}: {e}")))?;
            states.insert(name.to_owned(), state);
        }
        Ok(Self { states, last: 0 })
    }

    /// Takes the next action; one of another channel only counts in the order.
    ///
    /// # Errors
    /// −32602 when it does not come after the one before.
    pub fn apply(&mut self, envelope: &Envelope) -> Result<(), ProtocolError> {
        if envelope.server_seq <= self.last {
            return Err(ProtocolError::invalid_params(format!(
                "serverSeq {} after {}",
                envelope.server_seq, self.last
            )));
        }
        self.last = envelope.server_seq;
        if let Some(state) = self.states.get_mut(&envelope.channel) {
            state.apply(&envelope.action);
        }
        Ok(())
    }

    /// The sequence number of the newest action.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// What the states are now.
    pub fn states(&self) -> &BTreeMap<String, ChannelState> {
        &self.states
    }
}

/// Recomputes channel states from their seeds and an ordered list of actions; actions of other channels are passed
/// over.
///
/// # Errors
/// −32602 when a channel name, seed or action cannot be read, or the order is broken.
pub fn replay(
    seeds: &BTreeMap<String, Value>,
    actions: &[Envelope],
) -> Result<BTreeMap<String, ChannelState>, ProtocolError> {
    let mut replay = Replay::new(seeds.iter().map(|(name, seed)| (name.as_str(), seed.clone())))?;
    actions.iter().try_for_each(|envelope| replay.apply(envelope))?;
    Ok(replay.states)
}
