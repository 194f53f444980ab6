//! Reads the state back from what is stored.

use std::collections::HashMap;

use axp_protocol::action::Action;
use axp_protocol::channel::Channel;
use axp_protocol::state::ChannelState;

use super::state::{ClientBinding, Session, State};
use crate::store::{Store, StoreError, StoredChannel};

/// The state as stored, and the channels it is made of, with the bytes of log after each one's snapshot.
pub(super) fn load_state(
    store: &mut dyn Store,
    repository: &str,
) -> Result<(State, HashMap<Channel, usize>), StoreError> {
    let loaded = store.load()?;
    let log = |c: &StoredChannel| c.actions.iter().map(|(_, action)| action.len()).sum();
    let stored_channels = loaded.channels.iter().map(|c| (c.channel.clone(), log(c))).collect();
    let mut state = State::new(repository);
    state.seq = loaded.seq;
    state.blob_bytes = loaded.blob_bytes;
    state.keys = loaded.keys.into_iter().collect();
    for (client, principal, last_seq) in loaded.clients {
        state.clients.insert(client, ClientBinding { principal, last_seq });
    }
    for (id, created_at) in loaded.sessions {
        let session = Session::new(&id, repository, "", "", created_at)
            .map_err(|e| StoreError::Damaged(format!("session {id}: {e}")))?;
        state.sessions.insert(id, session);
    }
    for stored in loaded.channels {
        let damaged = |e: serde_json::Error| StoreError::Damaged(format!("{}: {e}", stored.channel));
        let value = serde_json::from_str(&stored.state).map_err(damaged)?;
        match ChannelState::from_value(&stored.channel, value).map_err(damaged)? {
            // The root is made of this program's own words; only its actions are stored, and it has none.
            ChannelState::Root(_) => {}
            ChannelState::Executors(executors) => state.executors = *executors,
            ChannelState::Memory(memory) => state.memory = *memory,
            other => {
                let session = stored.channel.session().and_then(|id| state.sessions.get_mut(id));
                session
                    .ok_or_else(|| StoreError::Damaged(format!("{} has no session", stored.channel)))?
                    .set(other);
            }
        }
        for (_, action) in &stored.actions {
            let action: Action = serde_json::from_str(action).map_err(damaged)?;
            state.apply(&stored.channel, &action);
        }
    }
    Ok((state, stored_channels))
}
