//! `initialize`, `reconnect`, `subscribe` and `unsubscribe` (section 5).

use std::sync::atomic::Ordering;

use ahp_types::commands::{InitializeParams, ReconnectParams};
use axp_protocol::channel::Channel;
use axp_protocol::limits::SUBSCRIPTIONS;
use axp_protocol::method::METHODS;
use axp_protocol::principal::{Principal, Role};
use axp_protocol::{AHP_VERSION, AXP_VERSION, CAPABILITY, ProtocolError, codes};
use serde_json::{Value, json};

use super::ConnectionId;
use super::decide::{Answer, Refusal, readable};
use super::engine::Engine;
use super::state::ClientBinding;
use crate::reads::envelope;

/// Longest client ID, bytes.
const CLIENT_ID: usize = 256;

impl Engine {
    /// Marks a connection as greeted, as this client.
    pub(super) fn greet(&mut self, connection: ConnectionId, client: &str) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.client = Some(client.to_owned());
            connection.greeted.store(true, Ordering::Release);
        }
    }

    /// Binds a client ID for ever to the principal that first uses it (section 3).
    pub(super) fn bind(&mut self, client: &str, actor: &Principal) -> Result<u64, Refusal> {
        match self.state.clients.get(client) {
            Some(known) if known.principal == actor.id => Ok(known.last_seq),
            Some(_) => {
                Err(ProtocolError::not_permitted("this client ID belongs to another principal").into())
            }
            None => {
                self.store.bind_client(client, &actor.id)?;
                let binding = ClientBinding { principal: actor.id.clone(), last_seq: 0 };
                self.state.clients.insert(client.to_owned(), binding);
                Ok(0)
            }
        }
    }

    /// Whether a principal may read a channel.
    fn may_read(&self, actor: &Principal, channel: &Channel) -> Result<(), ProtocolError> {
        match channel {
            Channel::Root | Channel::Executors => Ok(()),
            Channel::Memory if actor.role == Role::Maintainer && actor.reads_all() => Ok(()),
            Channel::Memory => Err(ProtocolError::not_permitted(
                "only a maintainer of all sessions may subscribe to axp-memory://",
            )),
            _ => readable(&self.state, actor, channel).map(|_| ()),
        }
    }

    fn snapshot_json(&self, channel: &Channel) -> Result<String, ProtocolError> {
        let state = self
            .state
            .snapshot(channel)
            .ok_or_else(|| ProtocolError::not_found(format!("no channel {channel}")))?
            .map_err(|e| ProtocolError::internal(format!("{channel} cannot be written: {e}")))?;
        let resource = json!(channel.to_string());
        Ok(format!(r#"{{"resource":{resource},"state":{state},"fromSeq":{}}}"#, self.state.seq))
    }

    fn add_subscriber(&mut self, connection: ConnectionId, channel: &Channel) {
        if let Some(known) = self.connections.get_mut(&connection) {
            known.channels.insert(channel.clone());
            self.subscribers.entry(channel.clone()).or_default().insert(connection);
        }
    }

    fn readable_channels(
        &self,
        actor: &Principal,
        names: &[String],
    ) -> Result<(Vec<Channel>, Vec<String>), ProtocolError> {
        if names.len() > SUBSCRIPTIONS {
            return Err(ProtocolError::limit(format!("at most {SUBSCRIPTIONS} subscriptions a connection")));
        }
        let mut channels = Vec::new();
        let mut missing = Vec::new();
        for name in names {
            match Channel::parse(name) {
                Ok(channel) if self.may_read(actor, &channel).is_ok() => {
                    if !channels.contains(&channel) {
                        channels.push(channel);
                    }
                }
                _ => missing.push(name.clone()),
            }
        }
        Ok((channels, missing))
    }

    pub(super) fn initialize(
        &mut self,
        connection: ConnectionId,
        actor: &Principal,
        p: &InitializeParams,
    ) -> Result<Answer, Refusal> {
        if !p.protocol_versions.iter().any(|v| v == AHP_VERSION) {
            return Err(ProtocolError::new(
                codes::UNSUPPORTED_VERSION,
                format!("this host speaks AHP {AHP_VERSION} only"),
            )
            .with_data(json!({ "supportedVersions": [AHP_VERSION] }))
            .into());
        }
        let offered = p.meta.as_ref().and_then(|m| m.get(CAPABILITY)?.get("version").cloned());
        if let Some(offered) = offered
            && offered != AXP_VERSION
        {
            return Err(ProtocolError::new(
                codes::UNSUPPORTED_VERSION,
                format!("this host speaks AXP {AXP_VERSION} only, not {offered}"),
            )
            .with_data(json!({ "supportedVersions": [AHP_VERSION], "axpVersion": AXP_VERSION }))
            .into());
        }
        check_client_id(&p.client_id)?;
        // Every channel asked for must be readable: a client that is refused one knows at once.
        let names = p.initial_subscriptions.as_deref().unwrap_or_default();
        for name in names {
            self.may_read(actor, &Channel::parse(name)?)?;
        }
        let (channels, _) = self.readable_channels(actor, names)?;
        let last_seq = self.bind(&p.client_id, actor)?;
        let snapshots =
            channels.iter().map(|c| self.snapshot_json(c)).collect::<Result<Vec<_>, _>>()?.join(",");
        let methods: Vec<_> = METHODS.iter().map(|m| m.name).collect();
        let info = json!({ "name": "axp", "version": env!("CARGO_PKG_VERSION") });
        let meta = json!({ CAPABILITY: {
            "version": AXP_VERSION,
            "methods": methods,
            "principal": actor.id,
            "role": actor.role,
            "repository": self.state.repository,
            "memory": axp_protocol::channel::MEMORY,
            "lastClientSeq": last_seq,
        }});
        for channel in &channels {
            self.add_subscriber(connection, channel);
        }
        self.greet(connection, &p.client_id);
        Ok(Answer::Json(format!(
            r#"{{"protocolVersion":"{AHP_VERSION}","serverSeq":{},"serverInfo":{info},"snapshots":[{snapshots}],"_meta":{meta}}}"#,
            self.state.seq
        )))
    }

    pub(super) fn reconnect(
        &mut self,
        connection: ConnectionId,
        actor: &Principal,
        p: &ReconnectParams,
    ) -> Result<Answer, Refusal> {
        check_client_id(&p.client_id)?;
        match self.state.clients.get(&p.client_id) {
            Some(known) if known.principal == actor.id => {}
            Some(_) => {
                return Err(
                    ProtocolError::not_permitted("this client ID belongs to another principal").into()
                );
            }
            None => {
                return Err(
                    ProtocolError::not_found("this client ID is not known here; initialize instead").into()
                );
            }
        }
        let cursor = u64::try_from(p.last_seen_server_seq).ok().filter(|seq| *seq <= self.state.seq);
        let Some(cursor) = cursor else {
            return Err(ProtocolError::invalid_params(format!(
                "lastSeenServerSeq {} is not in the past of this host, which is at {}; initialize instead",
                p.last_seen_server_seq, self.state.seq
            ))
            .with_data(json!({ "path": "lastSeenServerSeq" }))
            .into());
        };
        let (channels, missing) = self.readable_channels(actor, &p.subscriptions)?;
        let budget = self.settings.replay_actions;
        let mut actions = Vec::new();
        let mut over = false;
        self.reader.actions(&channels, cursor, self.state.seq, &mut |row| {
            if actions.len() == budget {
                over = true;
                return false;
            }
            let origin = row.origin.as_ref().map(|o| o.get());
            actions.push(envelope(&row.channel, row.action.get(), row.seq, origin, None));
            true
        })?;
        let missing = Value::from(missing);
        let result = if over {
            let snapshots =
                channels.iter().map(|c| self.snapshot_json(c)).collect::<Result<Vec<_>, _>>()?.join(",");
            format!(r#"{{"type":"snapshot","snapshots":[{snapshots}],"missing":{missing}}}"#)
        } else {
            format!(r#"{{"type":"replay","actions":[{}],"missing":{missing}}}"#, actions.join(","))
        };
        for channel in &channels {
            self.add_subscriber(connection, channel);
        }
        self.greet(connection, &p.client_id);
        Ok(Answer::Json(result))
    }

    pub(super) fn subscribe(
        &mut self,
        connection: ConnectionId,
        actor: &Principal,
        channel: &Channel,
    ) -> Result<Answer, Refusal> {
        self.may_read(actor, channel)?;
        let channels = &self.connections[&connection].channels;
        if !channels.contains(channel) && channels.len() >= SUBSCRIPTIONS {
            return Err(
                ProtocolError::limit(format!("at most {SUBSCRIPTIONS} subscriptions a connection")).into()
            );
        }
        let snapshot = self.snapshot_json(channel)?;
        self.add_subscriber(connection, channel);
        Ok(Answer::Json(format!(r#"{{"snapshot":{snapshot}}}"#)))
    }

    pub(super) fn unsubscribe(
        &mut self,
        connection: ConnectionId,
        channel: &Channel,
    ) -> Result<Answer, Refusal> {
        if let Some(known) = self.connections.get_mut(&connection) {
            known.channels.remove(channel);
        }
        self.drop_subscriber(channel, connection);
        Ok(Answer::Json("null".into()))
    }
}

fn check_client_id(id: &str) -> Result<(), ProtocolError> {
    if id.is_empty() || id.len() > CLIENT_ID {
        return Err(ProtocolError::invalid_params(format!("clientId: 1 to {CLIENT_ID} bytes are allowed"))
            .with_data(json!({ "path": "clientId" })));
    }
    Ok(())
}
