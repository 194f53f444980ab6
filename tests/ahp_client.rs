//! The unmodified AHP client against the host: what an ordinary AHP program sees of a session.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;

use ahp::reducers::{apply_action_to_changeset, apply_action_to_chat, apply_action_to_session};
use ahp::{Client, ClientConfig, SubscriptionEvent};
use ahp_types::StateAction;
use ahp_types::actions::{ActionEnvelope, ChatToolCallConfirmedAction, ChatTurnStartedAction};
use ahp_types::commands::{ListSessionsResult, ReconnectResult};
use ahp_types::state::{
    ChatState, Message, MessageKind, MessageOrigin, ResponsePart, SnapshotState, ToolCallState,
};
use common::*;
use serde_json::json;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

const CHANNELS: [&str; 3] = ["ahp-session:/fix", "ahp-chat:/fix", "ahp-changeset:/fix"];

async fn ahp_client(host: &TestHost, name: &str) -> Client {
    let mut request = host.url().into_client_request().unwrap();
    request.headers_mut().insert("authorization", format!("Bearer {}", host.token(name)).parse().unwrap());
    let (stream, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    Client::connect(ahp_ws::WebSocketTransport::from_stream(stream), ClientConfig::default()).await.unwrap()
}

/// States of the session's channels, kept by the upstream reducers.
#[derive(Default)]
struct Mirror {
    states: BTreeMap<String, SnapshotState>,
    seq: u64,
}

impl Mirror {
    fn take(&mut self, envelope: &ActionEnvelope) {
        assert!(envelope.server_seq > self.seq, "in order");
        self.seq = envelope.server_seq;
        match self.states.get_mut(&envelope.channel) {
            Some(SnapshotState::Chat(state)) => drop(apply_action_to_chat(state, &envelope.action)),
            Some(SnapshotState::Session(state)) => drop(apply_action_to_session(state, &envelope.action)),
            Some(SnapshotState::Changeset(state)) => drop(apply_action_to_changeset(state, &envelope.action)),
            other => panic!("{}: {}", envelope.channel, other.is_some()),
        }
    }

    fn chat(&self) -> &ChatState {
        match &self.states["ahp-chat:/fix"] {
            SnapshotState::Chat(chat) => chat,
            _ => panic!("not a chat"),
        }
    }

    fn tool(&self) -> Option<&ToolCallState> {
        self.chat().active_turn.as_ref()?.response_parts.iter().find_map(|part| match part {
            ResponsePart::ToolCall(call) => Some(&call.tool_call),
            _ => None,
        })
    }
}

/// A client with its mirror.
struct Viewer {
    client: Client,
    events: ahp::ClientEventStream,
    mirror: Mirror,
    id: String,
}

impl Viewer {
    async fn join(host: &TestHost, name: &str, id: &str) -> Self {
        let client = ahp_client(host, name).await;
        let events = client.events();
        let channels = CHANNELS.map(str::to_owned).to_vec();
        let hello = client.initialize(id.to_owned(), vec!["0.9.0".into()], channels).await.unwrap();
        assert_eq!(hello.protocol_version, "0.9.0");
        assert_eq!(hello.snapshots.len(), 3);
        let mut mirror = Mirror { seq: u64::try_from(hello.server_seq).unwrap(), ..Default::default() };
        for snapshot in hello.snapshots {
            mirror.states.insert(snapshot.resource, snapshot.state);
        }
        Self { client, events, mirror, id: id.to_owned() }
    }

    /// Takes events until `done` says so.
    async fn until(&mut self, what: &str, done: impl Fn(&Mirror) -> bool) {
        within(what, async {
            while !done(&self.mirror) {
                let event = self.events.recv().await.expect("an open connection");
                if let SubscriptionEvent::Action(envelope) = event.event {
                    self.mirror.take(&envelope);
                }
            }
        })
        .await;
    }

    async fn dispatch(&self, action: StateAction) {
        self.client.dispatch("ahp-chat:/fix".into(), action).await.unwrap();
    }
}

fn start_turn(id: &str) -> StateAction {
    StateAction::ChatTurnStarted(ChatTurnStartedAction {
        turn_id: id.into(),
        started_at: "2024-01-01T00:00:00.000Z".into(),
        message: Message {
            text: "Please fix it".into(),
            origin: MessageOrigin { kind: MessageKind::User },
            attachments: None,
            model: None,
            agent: None,
            meta: None,
        },
        queued_message_id: None,
        meta: None,
    })
}

fn allow(turn: &str, tool: &str) -> StateAction {
    StateAction::ChatToolCallConfirmed(ChatToolCallConfirmedAction {
        turn_id: turn.into(),
        tool_call_id: tool.into(),
        meta: None,
        approved: true,
        confirmed: None,
        reason: None,
        edited_tool_input: None,
        user_suggestion: None,
        reason_message: None,
        selected_option_id: Some("yes".into()),
    })
}

#[tokio::test]
async fn an_ordinary_client_drives_a_session_and_agrees_with_the_host() {
    let host = TestHost::start().await;
    let (maria, _events) = host.client("maria").await;
    create(&maria, "fix").await;
    let (carl, _carl_events) = host.client("carl").await;
    let epoch = claim(&carl, "fix", "g", 1000).await;

    let mut mike = Viewer::join(&host, "mike", "mikes-editor").await;
    let mut olga = Viewer::join(&host, "olga", "olgas-editor").await;
    let list: ListSessionsResult =
        mike.client.request("listSessions", json!({"channel": "ahp-root://"})).await.unwrap();
    assert_eq!(list.items[0].resource, "ahp-session:/fix");

    mike.dispatch(start_turn("t1")).await;
    mike.until("the turn", |m| m.chat().active_turn.is_some()).await;
    let ceiling = json!({"tokens": 500, "costMicros": 100, "turns": 1});
    axp(&carl, "_axp/reserve", "fix", json!({"epoch": epoch, "turnId": "t1", "ceiling": ceiling}))
        .await
        .unwrap();
    let emit = |actions| axp(&carl, "_axp/emit", "fix", json!({"epoch": epoch, "actions": actions}));
    emit(json!([
        {"type": "chat/responsePart", "turnId": "t1", "part": {"kind": "markdown", "id": "p1", "content": ""}},
        {"type": "chat/delta", "turnId": "t1", "partId": "p1", "content": "Looking "},
        {"type": "chat/delta", "turnId": "t1", "partId": "p1", "content": "at it."},
        {"type": "chat/toolCallStart", "turnId": "t1", "toolCallId": "k1", "toolName": "edit", "displayName": "Edit"},
        {"type": "chat/toolCallReady", "turnId": "t1", "toolCallId": "k1", "invocationMessage": "Edit add.sh", "options": [
            {"id": "yes", "label": "Allow", "kind": "approve"}, {"id": "no", "label": "Reject", "kind": "deny"}]},
    ]))
    .await
    .unwrap();
    mike.until("the question", |m| matches!(m.tool(), Some(ToolCallState::PendingConfirmation(_)))).await;
    mike.dispatch(allow("t1", "k1")).await;
    mike.until("the answer", |m| matches!(m.tool(), Some(ToolCallState::Running(_)))).await;

    // Away for a while: what was missed is replayed.
    mike.client.shutdown().await;
    drop(mike.events);
    emit(json!([
        {"type": "chat/toolCallComplete", "turnId": "t1", "toolCallId": "k1",
            "result": {"success": true, "pastTenseMessage": "Edited add.sh"}},
        {"type": "chat/delta", "turnId": "t1", "partId": "p1", "content": " Done."},
    ]))
    .await
    .unwrap();
    let client = ahp_client(&host, "mike").await;
    let events = client.events();
    let channels = CHANNELS.map(str::to_owned).to_vec();
    let seen = i64::try_from(mike.mirror.seq).unwrap();
    match client.reconnect(mike.id.clone(), seen, channels).await.unwrap() {
        ReconnectResult::Replay(replay) => {
            assert!(replay.missing.is_empty());
            let last = replay.actions.last().map(|e| e.action.clone());
            assert!(matches!(last, Some(StateAction::ChatDelta(delta)) if delta.content == " Done."));
            for envelope in &replay.actions {
                mike.mirror.take(envelope);
            }
        }
        ReconnectResult::Snapshot(_) => panic!("a short gap is replayed"),
    }
    mike.client = client;
    mike.events = events;

    let usage = json!({"inputTokens": 10, "outputTokens": 5, "cacheReadTokens": 0, "costMicros": 7, "source": "reported"});
    axp(
        &carl,
        "_axp/settle",
        "fix",
        json!({"epoch": epoch, "turnId": "t1", "usage": usage, "outcome": "complete"}),
    )
    .await
    .unwrap();
    let settled = maria.subscribe("ahp-chat:/fix").await.unwrap().from_seq;
    for viewer in [&mut mike, &mut olga] {
        // The mirror of the chat's new status is the last action of the turn.
        viewer.until("the end", |m| m.seq >= settled).await;
        for channel in CHANNELS {
            let snapshot = maria.subscribe(channel).await.unwrap();
            let mirrored = serde_json::to_value(&viewer.mirror.states[channel]).unwrap();
            assert_eq!(mirrored, snapshot.state, "{channel}");
        }
    }
    let turn = &mike.mirror.chat().turns[0];
    let ResponsePart::Markdown(text) = &turn.response_parts[0] else { panic!("text comes first") };
    assert_eq!(text.content, "Looking at it. Done.");
}

#[tokio::test]
async fn a_refused_action_comes_back_with_its_reason() {
    let host = TestHost::start().await;
    let (maria, _events) = host.client("maria").await;
    create(&maria, "fix").await;
    let mut mike = Viewer::join(&host, "mike", "mikes-editor").await;
    mike.dispatch(start_turn("t1")).await;
    mike.until("the turn", |m| m.chat().active_turn.is_some()).await;
    mike.dispatch(start_turn("t2")).await;
    let reason = within("the echo", async {
        loop {
            let event = mike.events.recv().await.expect("an open connection");
            if let SubscriptionEvent::Action(envelope) = event.event
                && let Some(reason) = envelope.rejection_reason
            {
                return reason;
            }
        }
    })
    .await;
    assert_eq!(reason, "turn t1 is active");
}
