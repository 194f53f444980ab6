//! A host without sockets: peers talk to the authority through the same `Peer` that a connection has.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use axp_protocol::principal::{AllSessions, Principal, Role, SessionScope};
use axp_protocol::scalar::Id;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::authority::{Handle, Settings, spawn};
use crate::outbox::{Outgoing, Outlet, Piece, outbox};
use crate::rpc::Peer;
use crate::store::SqliteStore;

static FRESH: AtomicU64 = AtomicU64::new(0);

/// An identifier that no other call in this process gets.
pub(crate) fn fresh(prefix: &str) -> String {
    format!("{prefix}-{}", FRESH.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn hello_params(client: &str) -> Value {
    json!({"channel": "ahp-root://", "protocolVersions": ["0.9.0"], "clientId": client,
        "_meta": {"org.axp.exchange": {"version": "0.2.0"}}})
}

pub(crate) type Refused = (i64, String);

pub(crate) struct TestHost {
    runtime: Arc<Runtime>,
    folder: tempfile::TempDir,
    now: Arc<AtomicU64>,
    running: Option<(Handle, JoinHandle<()>)>,
}

impl TestHost {
    pub(crate) fn new() -> Self {
        let runtime = Arc::new(tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
        let folder = tempfile::tempdir().unwrap();
        let mut host =
            Self { runtime, folder, now: Arc::new(AtomicU64::new(1_700_000_000_000)), running: None };
        host.start();
        host
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("axp.db")
    }

    fn start(&mut self) {
        let store = SqliteStore::open(&self.path(), "owner/project").unwrap();
        let now = self.now.clone();
        let settings = Settings {
            replay_actions: 8,
            snapshot_bytes: 512,
            clock: Arc::new(move || now.load(Ordering::Relaxed)),
            ..Settings::new("owner/project")
        };
        self.running = Some(spawn(Box::new(store), settings).unwrap());
    }

    /// Ends the authority and starts another on the same database.
    pub(crate) fn restart(&mut self) {
        if let Some((handle, thread)) = self.running.take() {
            handle.stop();
            thread.join().unwrap();
        }
        self.start();
    }

    /// Lets time pass. What is due is noticed at the latest with the next request.
    pub(crate) fn advance(&self, ms: u64) {
        self.now.fetch_add(ms, Ordering::Relaxed);
        // Any input makes the authority look at the clock; the answer proves that it has.
        self.raw("maria").call("ping", json!({"channel": "ahp-root://"})).unwrap();
        let mut nudge = self.raw("maria");
        nudge.hello(&fresh("nudge"));
    }

    fn principal(name: &str) -> Principal {
        let role = match name {
            "maria" => Role::Maintainer,
            "vera" => Role::Verifier,
            "olga" | "observer" => Role::Observer,
            _ => Role::Contributor,
        };
        let sessions = match name {
            "olga" => SessionScope::Only(vec!["axp-session:/fix".into()]),
            _ => SessionScope::All(AllSessions::All),
        };
        Principal { id: Id::new(name).unwrap(), role, sessions }
    }

    /// A connection before `initialize`.
    pub(crate) fn raw(&self, name: &str) -> TestPeer {
        let (handle, _) = self.running.as_ref().unwrap();
        let (sender, outlet) = outbox(4 << 20);
        let peer = Peer::open(handle, Arc::new(Self::principal(name)), sender);
        TestPeer {
            runtime: self.runtime.clone(),
            peer,
            outlet,
            client: String::new(),
            next: 1,
            events: vec![],
        }
    }

    /// A greeted connection with a client ID of its own.
    pub(crate) fn peer(&self, name: &str) -> TestPeer {
        let mut peer = self.raw(name);
        peer.hello(&fresh(name));
        peer
    }
}

impl Drop for TestHost {
    fn drop(&mut self) {
        if let Some((handle, thread)) = self.running.take() {
            handle.stop();
            thread.join().unwrap();
        }
    }
}

pub(crate) struct TestPeer {
    runtime: Arc<Runtime>,
    peer: Peer,
    outlet: Outlet,
    client: String,
    next: u64,
    events: Vec<Value>,
}

impl TestPeer {
    pub(crate) fn client(&self) -> &str {
        &self.client
    }

    pub(crate) fn hello(&mut self, client: &str) -> Value {
        self.client = client.to_owned();
        let hello = self.call("initialize", hello_params(client)).unwrap();
        assert!(self.peer.greeted());
        hello
    }

    /// Sends a frame and waits for the reply that is not an event.
    pub(crate) fn raw_frame(&mut self, frame: &str) -> Value {
        self.runtime.clone().block_on(async {
            self.peer.frame(frame).await;
            loop {
                let item = tokio::time::timeout(Duration::from_secs(20), self.outlet.next()).await;
                match item.expect("an answer in time").expect("an open connection") {
                    Outgoing::Reply(text) => return serde_json::from_str(&text).unwrap(),
                    Outgoing::Event(text) => self.events.push(serde_json::from_str(&text).unwrap()),
                    Outgoing::Stream(mut pieces) => {
                        let mut whole = Vec::new();
                        loop {
                            match pieces.recv().await.expect("an answer that does not break off") {
                                Piece::Part(bytes) => whole.extend(bytes),
                                Piece::Last(bytes) => {
                                    whole.extend(bytes);
                                    return serde_json::from_slice(&whole).unwrap();
                                }
                            }
                        }
                    }
                    Outgoing::Close(code, why) => panic!("closed: {code} {why}"),
                }
            }
        })
    }

    pub(crate) fn call(&mut self, method: &str, params: Value) -> Result<Value, Refused> {
        let id = self.next;
        self.next += 1;
        let frame = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string();
        let reply = self.raw_frame(&frame);
        assert_eq!(reply["id"], id);
        match reply.get("error") {
            Some(error) => {
                Err((error["code"].as_i64().unwrap(), error["message"].as_str().unwrap().to_owned()))
            }
            None => Ok(reply["result"].clone()),
        }
    }

    pub(crate) fn notify(&mut self, method: &str, params: Value) {
        let frame = json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string();
        self.runtime.clone().block_on(self.peer.frame(&frame));
    }

    /// Params of the next `action` notification, waiting for it.
    pub(crate) fn next_event(&mut self) -> Value {
        if self.events.is_empty() {
            self.runtime.clone().block_on(async {
                let item = tokio::time::timeout(Duration::from_secs(20), self.outlet.next()).await;
                match item.expect("an event in time") {
                    Some(Outgoing::Event(text)) => self.events.push(serde_json::from_str(&text).unwrap()),
                    other => panic!("{other:?}"),
                }
            });
        }
        self.events.remove(0)["params"].take()
    }

    /// Params of the `action` notifications that came so far.
    pub(crate) fn events(&mut self) -> Vec<Value> {
        // A round trip: everything committed before it has been queued.
        self.seq();
        let all = std::mem::take(&mut self.events);
        all.into_iter().filter(|e| e["method"] == "action").map(|mut e| e["params"].take()).collect()
    }

    pub(crate) fn snapshot(&mut self, channel: &str) -> Value {
        let had = self.call("subscribe", json!({"channel": channel})).unwrap();
        had["snapshot"]["state"].clone()
    }

    /// Newest sequence number of the host.
    pub(crate) fn seq(&mut self) -> u64 {
        self.call("subscribe", json!({"channel": "ahp-root://"})).unwrap()["snapshot"]["fromSeq"]
            .as_u64()
            .unwrap()
    }

    pub(crate) fn create(&mut self, id: &str) {
        let config = json!({"title": format!("Title {id}"), "task": format!("task-{id}")});
        self.call("createSession", json!({"channel": format!("ahp-session:/{id}"), "config": config}))
            .unwrap();
    }

    pub(crate) fn grant(&mut self, session: &str, tokens: u64) {
        let limit = json!({"tokens": tokens, "costMicros": 1_000_000, "turns": 10});
        self.axp(
            "_axp/grant",
            session,
            json!({"grantId": self.grant_id(), "limit": limit, "enforcement": "accounting"}),
        )
        .unwrap();
    }

    fn grant_id(&self) -> &'static str {
        if self.client.starts_with("carl") { "g" } else { "h" }
    }

    pub(crate) fn claim(&mut self, session: &str) -> Result<u64, Refused> {
        let params = json!({"executorId": format!("e-{}", self.grant_id()), "grantId": self.grant_id(), "leaseMs": 30_000});
        let mut params = params;
        if self.grant_id() == "g" {
            params["executorId"] = json!("e");
        }
        Ok(self.axp("_axp/claim", session, params)?["epoch"].as_u64().unwrap())
    }

    pub(crate) fn park(&mut self, session: &str, tokens: u64) -> u64 {
        self.grant(session, tokens);
        self.claim(session).unwrap()
    }

    /// A mutation on the exchange channel with a fresh operation ID.
    pub(crate) fn axp(&mut self, method: &str, session: &str, mut params: Value) -> Result<Value, Refused> {
        params["channel"] = json!(format!("axp-session:/{session}"));
        params["operationId"] = json!(fresh("op"));
        self.call(method, params)
    }

    pub(crate) fn reserve(
        &mut self,
        session: &str,
        epoch: u64,
        turn: &str,
        tokens: u64,
    ) -> Result<Value, Refused> {
        let ceiling = json!({"tokens": tokens, "costMicros": 0, "turns": 1});
        self.axp("_axp/reserve", session, json!({"epoch": epoch, "turnId": turn, "ceiling": ceiling}))
    }

    pub(crate) fn emit(&mut self, session: &str, epoch: u64, actions: Value) -> Result<Value, Refused> {
        self.axp("_axp/emit", session, json!({"epoch": epoch, "actions": actions}))
    }

    pub(crate) fn settle(
        &mut self,
        session: &str,
        epoch: u64,
        turn: &str,
        usage: Value,
    ) -> Result<Value, Refused> {
        self.axp(
            "_axp/settle",
            session,
            json!({"epoch": epoch, "turnId": turn, "usage": usage, "outcome": "complete"}),
        )
    }

    /// Uploads content; gives its reference.
    pub(crate) fn upload(&mut self, session: &str, data: &str) -> Value {
        use base64::Engine as _;
        let data = base64::engine::general_purpose::STANDARD.encode(data);
        self.axp("_axp/blobPut", session, json!({"data": data, "mediaType": "text/plain"})).unwrap()
    }

    /// Publishes a checkpoint whose head is this digit forty times.
    pub(crate) fn checkpoint(&mut self, session: &str, epoch: u64, head: &str) -> Value {
        let blob = self.upload(session, head);
        let checkpoint = json!({"baseCommit": "a".repeat(40), "headCommit": head.repeat(40), "branch": "axp/x",
            "bundle": blob, "patch": blob, "createdAt": 5});
        self.axp("_axp/checkpoint", session, json!({"epoch": epoch, "checkpoint": checkpoint, "files": []}))
            .unwrap();
        checkpoint
    }

    /// A whole turn that says something.
    pub(crate) fn turn(&mut self, maria: &mut TestPeer, session: &str, epoch: u64, turn: &str) {
        maria.prompt(session, turn).unwrap();
        self.reserve(session, epoch, turn, 10).unwrap();
        let part = json!([{"type": "chat/responsePart", "turnId": turn,
            "part": {"kind": "markdown", "id": "p", "content": format!("said in {turn}")}}]);
        self.emit(session, epoch, part).unwrap();
        self.settle(session, epoch, turn, json!(null)).unwrap();
    }

    pub(crate) fn dispatch(&mut self, session: &str, action: Value) -> Result<Value, Refused> {
        let params =
            json!({"channel": format!("ahp-chat:/{session}"), "operationId": fresh("op"), "action": action});
        self.call("_axp/dispatch", params)
    }

    pub(crate) fn prompt(&mut self, session: &str, turn: &str) -> Result<Value, Refused> {
        let message = json!({"text": "Please fix it", "origin": {"kind": "user"}});
        self.dispatch(
            session,
            json!({"type": "chat/turnStarted", "turnId": turn,
            "startedAt": "2024-01-01T00:00:00.000Z", "message": message}),
        )
    }

    pub(crate) fn pending(&mut self, session: &str, kind: &str, id: &str) -> Result<Value, Refused> {
        let message = json!({"text": "And this", "origin": {"kind": "user"}});
        self.dispatch(
            session,
            json!({"type": "chat/pendingMessageSet", "kind": kind, "id": id, "message": message}),
        )
    }
}

/// Replays an exported history from its seeds and compares with its snapshots.
pub(crate) fn assert_replays(export: &Value) {
    let seeds = export["seeds"].as_array().unwrap();
    let seeds =
        seeds.iter().map(|s| (s["resource"].as_str().unwrap().to_owned(), s["state"].clone())).collect();
    let actions: Vec<_> = serde_json::from_value(export["actions"].clone()).unwrap();
    let states = axp_protocol::state::replay(&seeds, &actions).unwrap();
    let snapshots = export["snapshots"].as_array().unwrap();
    assert_eq!(snapshots.len(), states.len());
    for snapshot in snapshots {
        let name = snapshot["resource"].as_str().unwrap();
        assert_eq!(serde_json::to_value(&states[name]).unwrap(), snapshot["state"], "{name}");
    }
}
