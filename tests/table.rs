//! Who may do what, where and when: every method, by role, scope and session status, through the socket.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use axp::client::{AxpClient, ClientError, Credentials, Events, operation_id};
use axp::history::{Trace, fetch};
use axp_protocol::canonical::hash;
use axp_protocol::method::METHODS;
use axp_protocol::principal::Role;
use axp_protocol::scalar::Id;
use axp_protocol::signature::PrivateKey;
use common::*;
use serde_json::{Value, json};

/// What is asked for, the role that asks, and what comes of it while the session is open, orphaned and closed: in its
/// own session and with the scope `*`, and in a session that is out of its scope.
///
/// `+` done · `P` not permitted · `N` no such session · `L` stale lease · `C` conflict
const TABLE: &str = include_str!("table.txt");

const ROLES: [Role; 4] = [Role::Maintainer, Role::Contributor, Role::Verifier, Role::Observer];
const SCOPES: [&str; 3] = ["own", "all", "other"];
const STATUSES: [&str; 3] = ["open", "orphaned", "closed"];

fn letter(result: &Result<Value, ClientError>) -> char {
    match result {
        Ok(_) => '+',
        Err(ClientError::Refused(error)) => match error.code {
            -32009 => 'P',
            -32001 => 'N',
            -32040 => 'L',
            -32011 => 'C',
            code => panic!("{code}: {}", error.message),
        },
        Err(error) => panic!("{error}"),
    }
}

/// The people of the table, and two who set the scene.
struct People {
    clients: BTreeMap<String, (AxpClient, Events)>,
    /// For reading a history.
    giver: Credentials,
}

impl People {
    fn client(&self, name: &str) -> &AxpClient {
        &self.clients[name].0
    }
}

/// One cell: a session of its own, in its state, and somebody who asks.
struct Cell<'a> {
    people: &'a People,
    session: &'a str,
    method: &'a str,
    /// Who asks.
    asker: &'a str,
    /// Who runs the session.
    holder: &'a str,
    epoch: u64,
}

impl Cell<'_> {
    async fn as_(&self, who: &str, method: &str, params: Value) -> Result<Value, ClientError> {
        axp(self.people.client(who), method, self.session, params).await
    }

    async fn done(&self, who: &str, method: &str, params: Value) -> Value {
        self.as_(who, method, params).await.unwrap_or_else(|e| panic!("{who} {method}: {e}"))
    }

    async fn grant(&self, who: &str, grant: &str) {
        let limit = json!({"tokens": 1000, "costMicros": 1000, "turns": 9});
        self.done(who, "_axp/grant", json!({"grantId": grant, "limit": limit, "enforcement": "accounting"}))
            .await;
    }

    async fn claim(&mut self) {
        self.grant(self.holder, "held").await;
        let params =
            json!({"grantId": "held", "executorId": format!("e-{}", self.session), "leaseMs": 300_000});
        self.epoch = self.done(self.holder, "_axp/claim", params).await["epoch"].as_u64().unwrap();
    }

    async fn blob(&self) -> Value {
        self.done("giver", "_axp/blobPut", json!({"data": "YQ==", "mediaType": "text/plain"})).await
    }

    fn checkpoint(&self, blob: &Value) -> Value {
        json!({"epoch": self.epoch, "files": [], "checkpoint": {"baseCommit": "a".repeat(40),
            "headCommit": "b".repeat(40), "branch": "axp/x", "bundle": blob, "patch": blob,
            "createdAt": 1}})
    }

    /// Lets the holder end a turn and publish a checkpoint.
    async fn work(&self) {
        self.reserved().await;
        self.done(self.holder, "_axp/settle", self.settlement()).await;
        let blob = self.blob().await;
        self.done(self.holder, "_axp/checkpoint", self.checkpoint(&blob)).await;
    }

    async fn reserved(&self) {
        prompt(self.people.client("boss"), self.session, "t").await.unwrap();
        self.done(self.holder, "_axp/reserve", self.reservation()).await;
    }

    fn reservation(&self) -> Value {
        json!({"epoch": self.epoch, "turnId": "t", "ceiling": {"tokens": 10, "costMicros": 10, "turns": 1}})
    }

    fn settlement(&self) -> Value {
        json!({"epoch": self.epoch, "turnId": "t", "usage": null, "outcome": "complete"})
    }

    async fn review(&self) -> Value {
        let session = Id::new(self.session).unwrap();
        let mut archive = fetch(&self.people.giver, &session, &mut |_| {}).await.unwrap();
        let mut trace = Trace::new(&session, archive.head().server_seq);
        archive
            .actions(|action| {
                trace.push(&action);
                Ok::<_, axp::history::HistoryError>(())
            })
            .unwrap();
        let name = format!("axp-session:/{}", self.session);
        let exchange = &archive.head().snapshots.iter().find(|s| s.resource == name).unwrap().state;
        let checkpoint = &exchange["checkpoint"];
        let manifest = json!({"version": 1, "repository": "owner/project", "session": exchange["session"],
            "baseCommit": checkpoint["baseCommit"], "headCommit": checkpoint["headCommit"], "model": "m",
            "promptHash": hash(&json!("")).unwrap(), "traceHash": trace.finish(),
            "traceThroughSeq": archive.head().server_seq, "checkpointDigest": hash(checkpoint).unwrap()});
        json!({"contributor": key(self.holder).sign(&manifest).unwrap(), "manifest": manifest})
    }

    async fn propose(&self) -> Value {
        let through = self.people.client("giver").subscribe(&format!("axp-session:/{}", self.session)).await;
        let through = through.unwrap().from_seq;
        json!({"title": format!("of {}", self.session), "trigger": "always", "lesson": "l",
            "outcome": "success", "fromSeq": 1, "toSeq": through})
    }

    /// Sets the scene and gives the parameters of the call.
    async fn prepare(&mut self) -> Value {
        let compaction = json!({"expectedRevision": 0, "throughTurn": 1, "summary": "s", "decisions": [],
            "activeFiles": []});
        if self.method != "_axp/claim" {
            self.claim().await;
        }
        match self.method {
            "_axp/register" => json!({"executorId": format!("r-{}", self.session), "name": "n",
                "placement": "satellite", "capabilities": [], "ttlMs": 3000}),
            "_axp/dispatch" => json!({"action": {"type": "chat/turnStarted", "turnId": "new",
                "startedAt": "2024-01-01T00:00:00.000Z", "message": message("go")}}),
            "_axp/comment" => json!({"body": "b"}),
            "_axp/grant" => json!({"grantId": "new", "enforcement": "accounting",
                "limit": {"tokens": 1, "costMicros": 1, "turns": 1}}),
            "_axp/revoke" => {
                // A grant of the asker's own, where it can have one.
                if self.may_give() {
                    self.grant(self.asker, "mine").await;
                    json!({"grantId": "mine"})
                } else {
                    json!({"grantId": "held"})
                }
            }
            "_axp/claim" => {
                let owner = if self.may_give() { self.asker } else { "giver" };
                self.grant(owner, "mine").await;
                json!({"grantId": "mine", "executorId": format!("c-{}", self.session), "leaseMs": 3000})
            }
            "_axp/renew" | "_axp/release" => json!({"epoch": self.epoch}),
            "_axp/reserve" => {
                prompt(self.people.client("boss"), self.session, "t").await.unwrap();
                self.reservation()
            }
            "_axp/emit" => {
                self.reserved().await;
                json!({"epoch": self.epoch, "actions": [{"type": "chat/responsePart", "turnId": "t",
                    "part": {"kind": "markdown", "id": "p", "content": "x"}}]})
            }
            "_axp/settle" => {
                self.reserved().await;
                self.settlement()
            }
            "_axp/checkpoint" => {
                let blob = self.blob().await;
                self.checkpoint(&blob)
            }
            "_axp/compact" => {
                self.work().await;
                compaction
            }
            "_axp/acceptCompaction" => {
                self.work().await;
                let proposal = self.done("giver", "_axp/compact", compaction).await;
                json!({"proposalId": proposal["id"]})
            }
            "_axp/memoryPropose" => self.propose().await,
            "_axp/memoryReview" => {
                let proposal = self.propose().await;
                let memory = self.done("giver", "_axp/memoryPropose", proposal).await;
                json!({"memoryId": memory["id"], "revision": memory["revision"], "status": "accepted"})
            }
            "_axp/memorySearch" => json!({"query": ""}),
            "_axp/review" => {
                self.work().await;
                self.review().await
            }
            "_axp/approveReview" => {
                self.work().await;
                let review = self.review().await;
                let signature = key(self.asker).sign(&review["manifest"]).unwrap();
                self.done(self.holder, "_axp/review", review).await;
                json!({ "signature": signature })
            }
            "_axp/verify" => {
                self.work().await;
                json!({"headCommit": "b".repeat(40), "command": ["true"], "exitCode": 0,
                    "output": self.blob().await})
            }
            "_axp/close" | "_axp/context" | "_axp/export" => json!({}),
            "_axp/blobPut" => json!({"data": "Yg==", "mediaType": "text/plain"}),
            "_axp/blobGet" => json!({"digest": self.blob().await["sha256"]}),
            other => panic!("{other} is not in the test"),
        }
    }

    fn may_give(&self) -> bool {
        let (role, scope) = self.asker.split_once('-').unwrap();
        scope != "other" && matches!(role, "maintainer" | "contributor")
    }

    async fn call(&self, mut params: Value) -> Result<Value, ClientError> {
        let id = self.session;
        let channel = match self.method {
            "_axp/register" => "axp-executors://".to_owned(),
            "_axp/memoryReview" | "_axp/memorySearch" => "axp-memory://".to_owned(),
            "_axp/dispatch" => format!("ahp-chat:/{id}"),
            _ => format!("axp-session:/{id}"),
        };
        params["channel"] = json!(channel);
        if axp_protocol::method::info(self.method).unwrap().mutates {
            params["operationId"] = json!(operation_id());
        }
        checked(self.people.client(self.asker), self.method, &params).await
    }
}

/// Everybody has a key of their own.
fn key(who: &str) -> PrivateKey {
    let mut seed = [7; 32];
    for (to, from) in seed.iter_mut().zip(who.bytes()) {
        *to = from;
    }
    PrivateKey::from_seed(&seed)
}

/// Methods that only whoever runs the session may call.
fn by_holder(method: &str) -> bool {
    let fenced = [
        "_axp/renew",
        "_axp/release",
        "_axp/reserve",
        "_axp/emit",
        "_axp/settle",
        "_axp/checkpoint",
        "_axp/review",
    ];
    fenced.contains(&method)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_method_does_what_the_table_says() {
    let cells = METHODS.len() * ROLES.len() * SCOPES.len() * STATUSES.len();
    let sessions: Vec<String> = (0..cells).map(|n| format!("s{n}")).collect();
    let mut names: Vec<(String, Role, Vec<String>)> = vec![
        ("boss".into(), Role::Maintainer, vec!["*".into()]),
        ("giver".into(), Role::Contributor, vec!["*".into()]),
    ];
    for role in ROLES {
        for scope in SCOPES {
            let scopes = match scope {
                "own" => sessions.clone(),
                "all" => vec!["*".into()],
                _ => vec!["elsewhere".into()],
            };
            names.push((format!("{}-{scope}", role.as_str()), role, scopes));
        }
    }
    let host = TestHost::of(&names).await;
    let mut clients = BTreeMap::new();
    for (name, ..) in &names {
        clients.insert(name.clone(), host.client(name).await);
    }
    let people = People { clients, giver: host.credentials("giver") };
    // Who is told of sessions but never looks would be cut off for slowness.
    let mut sessions = sessions.iter();
    let mut text = String::new();
    for method in METHODS {
        write!(text, "{:<22}", method.name).unwrap();
        for role in ROLES {
            for scope in SCOPES {
                text.push(' ');
                for status in STATUSES {
                    let session = sessions.next().unwrap();
                    let asker = format!("{}-{scope}", role.as_str());
                    create(people.client("boss"), session).await;
                    let mut cell = Cell {
                        people: &people,
                        session,
                        method: method.name,
                        asker: &asker,
                        holder: "giver",
                        epoch: 0,
                    };
                    if by_holder(method.name) && cell.may_give() {
                        cell.holder = &asker;
                    }
                    let params = cell.prepare().await;
                    match status {
                        "orphaned" => {
                            if method.name == "_axp/claim" {
                                cell.holder = "giver";
                                cell.claim().await;
                            }
                            cell.done(cell.holder, "_axp/revoke", json!({"grantId": "held"})).await;
                        }
                        "closed" => {
                            cell.done("boss", "_axp/close", json!({})).await;
                        }
                        _ => {}
                    }
                    text.push(letter(&cell.call(params).await));
                }
            }
            text.push_str(" |");
        }
        text.push('\n');
    }
    let body: Vec<_> = TABLE.lines().filter(|line| line.starts_with("_axp/")).collect();
    let reached: Vec<_> = text.lines().collect();
    if body != reached {
        panic!("the table says\n{}\nwhat happens is\n{text}", body.join("\n"));
    }
}
