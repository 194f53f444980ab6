//! The worked exchange in docs/protocol.md is what a real host really answers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::VecDeque;
use std::path::Path;

use common::*;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

const BEGIN: &str = "<!-- exchange: written by tests/exchange.rs -->\n```\n";
const END: &str = "```\n<!-- end of exchange -->";

/// Somebody with a bare socket.
struct Person {
    name: &'static str,
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    asked: u64,
    /// What arrived before it was wanted.
    heard: VecDeque<Value>,
}

impl Person {
    async fn connect(host: &TestHost, name: &'static str) -> Self {
        let mut request = host.url().into_client_request().unwrap();
        let bearer = format!("Bearer {}", host.token(name));
        request.headers_mut().insert("authorization", bearer.parse().unwrap());
        let (socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
        Self { name, socket, asked: 0, heard: VecDeque::new() }
    }

    async fn next(&mut self) -> Value {
        let message = within("a message", self.socket.next()).await.unwrap().unwrap();
        serde_json::from_str(&message.into_text().unwrap()).unwrap()
    }

    async fn ask(&mut self, method: &str, params: Value, page: &mut Vec<String>) -> Value {
        self.asked += 1;
        let request = json!({"jsonrpc": "2.0", "id": self.asked, "method": method, "params": params});
        page.push(format!("{} → {}", self.name, steady(request.clone())));
        self.socket.send(Message::text(request.to_string())).await.unwrap();
        loop {
            let message = self.next().await;
            if message["id"] == json!(self.asked) {
                page.push(format!("{} ← {}", self.name, steady(message.clone())));
                assert!(message.get("error").is_none(), "{message}");
                return message["result"].clone();
            }
            self.heard.push_back(message);
        }
    }

    /// Takes the next action that arrived.
    async fn hear(&mut self, kind: &str, page: &mut Vec<String>) {
        loop {
            let message = match self.heard.pop_front() {
                Some(message) => message,
                None => self.next().await,
            };
            if message["method"] == "action" && message["params"]["action"]["type"] == kind {
                page.push(format!("{} ← {}", self.name, steady(message)));
                return;
            }
        }
    }
}

/// The same without what differs from run to run: times.
fn steady(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let member = |(key, value): (String, Value)| {
                let value = if key == "duration" { json!(1000) } else { steady(value) };
                (key, value)
            };
            map.into_iter().map(member).collect()
        }
        Value::Array(list) => list.into_iter().map(steady).collect(),
        Value::Number(n) if n.as_u64().is_some_and(|n| n > 1_500_000_000_000) => json!(1_767_225_600_000u64),
        Value::String(text) if text.len() == 24 && text.ends_with('Z') => json!("2026-01-01T00:00:00.000Z"),
        other => other,
    }
}

#[tokio::test]
async fn the_exchange_in_the_reference_is_a_real_one() {
    let host = TestHost::start().await;
    let mut page = vec![];
    let hello = |client: &str| {
        json!({"channel": "ahp-root://", "protocolVersions": ["0.9.0"], "clientId": client,
            "_meta": {"org.axp.exchange": {"version": "0.2.0"}}})
    };
    let mut maria = Person::connect(&host, "maria").await;
    let mut carl = Person::connect(&host, "carl").await;

    let greeting = maria.ask("initialize", hello("marias-laptop"), &mut page).await;
    let methods = greeting["_meta"]["org.axp.exchange"]["methods"].as_array().unwrap();
    assert_eq!(methods.len(), 25);
    for method in methods {
        assert!(axp_protocol::method::info(method.as_str().unwrap()).is_some(), "{method}");
    }
    let config = json!({"title": "Fix the parser", "task": "issue-42"});
    maria.ask("createSession", json!({"channel": "ahp-session:/fix", "config": config}), &mut page).await;
    maria.ask("subscribe", json!({"channel": "ahp-chat:/fix"}), &mut page).await;

    // The contributor's side is not told of in full: its greeting is the same.
    carl.ask("initialize", hello("carls-laptop"), &mut vec![]).await;
    carl.ask("subscribe", json!({"channel": "ahp-chat:/fix"}), &mut vec![]).await;
    let exchange = |op: &str, more: Value| {
        let mut params = json!({"channel": "axp-session:/fix", "operationId": op});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    let limit = json!({"tokens": 100_000, "costMicros": 2_000_000, "turns": 10});
    let grant = json!({"grantId": "carls-grant", "limit": limit, "enforcement": "accounting"});
    carl.ask("_axp/grant", exchange("op-1", grant), &mut page).await;
    let claim = json!({"executorId": "carls-agent", "grantId": "carls-grant", "leaseMs": 30_000});
    carl.ask("_axp/claim", exchange("op-2", claim), &mut page).await;

    let turn = json!({"type": "chat/turnStarted", "turnId": "turn-1",
        "startedAt": "2026-01-01T00:00:00.000Z", "message": message("Fix the parser")});
    let dispatch = json!({"channel": "ahp-chat:/fix", "operationId": "op-3", "action": turn});
    maria.ask("_axp/dispatch", dispatch, &mut page).await;
    carl.hear("chat/turnStarted", &mut page).await;

    let ceiling = json!({"tokens": 10_000, "costMicros": 100_000, "turns": 1});
    let reserve = json!({"epoch": 1, "turnId": "turn-1", "ceiling": ceiling});
    carl.ask("_axp/reserve", exchange("op-4", reserve), &mut page).await;
    let part = json!({"type": "chat/responsePart", "turnId": "turn-1",
        "part": {"kind": "markdown", "id": "part-1", "content": "Done"}});
    let delta = json!({"type": "chat/delta", "turnId": "turn-1", "partId": "part-1", "content": "."});
    carl.ask("_axp/emit", exchange("op-5", json!({"epoch": 1, "actions": [part, delta]})), &mut page).await;
    maria.hear("chat/responsePart", &mut page).await;
    maria.hear("chat/delta", &mut page).await;
    let usage = json!({"inputTokens": 1200, "outputTokens": 80, "cacheReadTokens": 0, "costMicros": 4_500,
        "source": "reported"});
    let settle = json!({"epoch": 1, "turnId": "turn-1", "usage": usage, "outcome": "complete"});
    carl.ask("_axp/settle", exchange("op-6", settle), &mut page).await;
    maria.hear("chat/turnComplete", &mut page).await;
    carl.ask("_axp/release", exchange("op-7", json!({"epoch": 1})), &mut page).await;

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/protocol.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the place of the exchange");
    let (written, after) = rest.split_once(END).expect("its end");
    let real = page.join("\n") + "\n";
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{real}{END}{after}")).unwrap();
        return;
    }
    for (written, real) in written.lines().zip(real.lines()) {
        assert_eq!(written, real, "UPDATE_SNAPSHOTS=1 cargo test --test exchange writes it");
    }
    assert_eq!(written, real);
}
