//! Every error code of the protocol (section 6), produced through the socket.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axp::client::{AxpClient, ClientError};
use axp_host::store::{BlobMeta, Loaded, Reader, Receipt, ReceiptKey, SqliteStore, Store, StoreError};
use axp_protocol::channel::Channel;
use axp_protocol::scalar::{Digest, Id};
use common::*;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

fn code<T: std::fmt::Debug>(result: Result<T, ClientError>) -> i32 {
    match result {
        Err(ClientError::Refused(error)) => {
            assert!(!error.message.is_empty());
            error.code
        }
        other => panic!("{other:?}"),
    }
}

/// Sends frames over a bare socket and gives the answers' codes.
async fn bare(host: &TestHost, frames: &[String]) -> Vec<(i64, Value)> {
    let mut request = host.url().into_client_request().unwrap();
    request.headers_mut().insert("authorization", format!("Bearer {}", host.token("maria")).parse().unwrap());
    let (mut socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    let mut answers = Vec::new();
    for frame in frames {
        socket.send(Message::text(frame.clone())).await.unwrap();
        let answer = within("an answer", socket.next()).await.unwrap().unwrap().into_text().unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        answers.push((answer["error"]["code"].as_i64().unwrap(), answer["id"].clone()));
    }
    answers
}

async fn context(client: &AxpClient, chars: u64) -> Result<Value, ClientError> {
    client.request("_axp/context", &json!({"channel": "axp-session:/fix", "maxChars": chars})).await
}

#[tokio::test]
async fn every_code_is_produced() {
    let host = TestHost::start().await;
    let mut seen = BTreeSet::new();

    let hello = |version: &str| {
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"channel": "ahp-root://",
            "protocolVersions": [version], "clientId": "bare"}})
        .to_string()
    };
    let early =
        json!({"jsonrpc": "2.0", "id": "x", "method": "listSessions", "params": {"channel": "ahp-root://"}});
    let answers = bare(&host, &["{".into(), "[1]".into(), early.to_string(), hello("0.8.0")]).await;
    assert_eq!(
        answers,
        [(-32700, json!(null)), (-32600, json!(null)), (-32009, json!("x")), (-32005, json!(1))]
    );
    seen.extend(answers.iter().map(|(code, _)| i32::try_from(*code).unwrap()));

    let (maria, _maria_events) = host.client("maria").await;
    let (carl, _carl_events) = host.client("carl").await;
    let (dora, _dora_events) = host.client("dora").await;
    create(&maria, "fix").await;
    let root = json!({"channel": "ahp-root://"});

    let mut check = |expected: i32, got: i32, what: &str| {
        assert_eq!(got, expected, "{what}");
        seen.insert(got);
    };
    check(
        -32601,
        code(maria.request::<_, Value>("terminal/open", &root).await),
        "a method that is not there",
    );
    check(
        -32602,
        code(axp(&carl, "_axp/renew", "fix", json!({"epoch": 1, "more": 1})).await),
        "an unknown field",
    );
    check(-32001, code(maria.subscribe("ahp-chat:/nothing").await), "no such session");
    let again = json!({"channel": "ahp-session:/fix"});
    check(-32003, code(maria.request::<_, Value>("createSession", &again).await), "a session that exists");
    let digest = json!({"channel": "axp-session:/fix", "digest": "0".repeat(64)});
    check(-32008, code(maria.request::<_, Value>("_axp/blobGet", &digest).await), "no such blob");
    check(-32009, code(prompt(&carl, "fix", "t").await), "a contributor who prompts");

    let epoch = claim(&carl, "fix", "g", 1000).await;
    let limit = json!({"tokens": 10, "costMicros": 10, "turns": 1});
    axp(&dora, "_axp/grant", "fix", json!({"grantId": "d", "limit": limit, "enforcement": "accounting"}))
        .await
        .unwrap();
    let second = json!({"grantId": "d", "executorId": "dora", "leaseMs": 3000});
    check(-32011, code(axp(&dora, "_axp/claim", "fix", second).await), "a second holder");
    check(-32040, code(axp(&carl, "_axp/renew", "fix", json!({"epoch": epoch + 1})).await), "another epoch");
    prompt(&maria, "fix", "t1").await.unwrap();
    check(-32004, code(prompt(&maria, "fix", "t2").await), "a turn is active");
    let reserve = |tokens: u64| {
        let ceiling = json!({"tokens": tokens, "costMicros": 0, "turns": 1});
        axp(&carl, "_axp/reserve", "fix", json!({"epoch": epoch, "turnId": "t1", "ceiling": ceiling}))
    };
    check(-32041, code(reserve(1001).await), "more than the grant has");
    reserve(1000).await.unwrap();
    let text = json!([{"type": "chat/responsePart", "turnId": "t1",
        "part": {"kind": "markdown", "id": "p", "content": "x".repeat(4000)}}]);
    axp(&carl, "_axp/emit", "fix", json!({"epoch": epoch, "actions": text})).await.unwrap();
    axp(
        &carl,
        "_axp/settle",
        "fix",
        json!({"epoch": epoch, "turnId": "t1", "usage": null, "outcome": "complete"}),
    )
    .await
    .unwrap();
    check(-32042, code(context(&maria, 1024).await), "a context that does not fit");
    context(&maria, 64_000).await.unwrap();
    let long = json!({"channel": "ahp-root://", "cursor": "x".repeat(70_000)});
    check(-32043, code(maria.request::<_, Value>("listSessions", &long).await), "a frame over its limit");

    let all = [
        -32700, -32600, -32601, -32602, -32001, -32003, -32004, -32005, -32008, -32009, -32011, -32040,
        -32041, -32042, -32043,
    ];
    assert_eq!(seen, BTreeSet::from(all));
}

/// A store that fails to commit when told to, as a full disk does.
struct FullDisk {
    store: SqliteStore,
    full: Arc<AtomicBool>,
}

impl Store for FullDisk {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        self.store.load()
    }
    fn begin(&mut self) -> Result<(), StoreError> {
        self.store.begin()
    }
    fn commit(&mut self) -> Result<(), StoreError> {
        if self.full.load(Ordering::Relaxed) {
            self.store.rollback();
            return Err(StoreError::Damaged("the disk is full".into()));
        }
        self.store.commit()
    }
    fn rollback(&mut self) {
        self.store.rollback();
    }
    fn create_channel(&mut self, channel: &Channel, seed: &str, seq: u64) -> Result<(), StoreError> {
        self.store.create_channel(channel, seed, seq)
    }
    fn create_session(&mut self, session: &Id, created_at: u64) -> Result<(), StoreError> {
        self.store.create_session(session, created_at)
    }
    fn append(
        &mut self,
        seq: u64,
        channel: &Channel,
        action: &str,
        origin: Option<&str>,
    ) -> Result<(), StoreError> {
        self.store.append(seq, channel, action, origin)
    }
    fn put_snapshot(&mut self, channel: &Channel, through_seq: u64, state: &str) -> Result<(), StoreError> {
        self.store.put_snapshot(channel, through_seq, state)
    }
    fn receipt(&mut self, key: &ReceiptKey) -> Result<Option<Receipt>, StoreError> {
        self.store.receipt(key)
    }
    fn put_receipt(&mut self, key: &ReceiptKey, receipt: &Receipt) -> Result<(), StoreError> {
        self.store.put_receipt(key, receipt)
    }
    fn bind_client(&mut self, client: &str, principal: &Id) -> Result<(), StoreError> {
        self.store.bind_client(client, principal)
    }
    fn bind_key(&mut self, key: &Digest, principal: &Id) -> Result<(), StoreError> {
        self.store.bind_key(key, principal)
    }
    fn put_blob(&mut self, digest: &Digest, data: &[u8]) -> Result<bool, StoreError> {
        self.store.put_blob(digest, data)
    }
    fn link_blob(&mut self, session: &Id, digest: &Digest, media_type: &str) -> Result<(), StoreError> {
        self.store.link_blob(session, digest, media_type)
    }
    fn blob_meta(&mut self, session: &Id, digest: &Digest) -> Result<Option<BlobMeta>, StoreError> {
        self.store.blob_meta(session, digest)
    }
    fn reader(&self) -> Result<Box<dyn Reader>, StoreError> {
        self.store.reader()
    }
}

#[tokio::test]
async fn a_transaction_that_fails_leaves_nothing_and_says_so() {
    let full = Arc::new(AtomicBool::new(false));
    let flag = full.clone();
    let host = TestHost::with_store(move |store| Box::new(FullDisk { store, full: flag })).await;
    let (maria, mut events) = host.client("maria").await;
    create(&maria, "fix").await;
    let before = maria.subscribe("ahp-chat:/fix").await.unwrap();
    let action = json!({"type": "chat/turnStarted", "turnId": "t1", "startedAt": "2024-01-01T00:00:00.000Z",
        "message": message("go")});
    let params = json!({"channel": "ahp-chat:/fix", "operationId": "op", "action": action});
    full.store(true, Ordering::Relaxed);
    assert_eq!(code(maria.request::<_, Value>("_axp/dispatch", &params).await), -32603);
    full.store(false, Ordering::Relaxed);
    let after = maria.subscribe("ahp-chat:/fix").await.unwrap();
    assert_eq!((&after.state, after.from_seq), (&before.state, before.from_seq));
    while let Some(event) = events.try_next() {
        assert!(!matches!(event, axp::client::Event::Action(_)), "nothing was broadcast");
    }
    // The same operation then happens.
    maria.request::<_, Value>("_axp/dispatch", &params).await.unwrap();
    assert_eq!(maria.subscribe("ahp-chat:/fix").await.unwrap().state["activeTurn"]["id"], "t1");
}
