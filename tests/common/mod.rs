//! What end-to-end tests share: a host with real sockets and a real database, and people with tokens for it.

#![allow(dead_code, reason = "each test file uses a part of it")]

#[path = "../valid/mod.rs"]
mod valid;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axp::client::{AxpClient, ConnectOptions, Credentials, Events};
use axp_host::config::{Credential, Credentials as HostCredentials, new_token, token_digest};
use axp_host::server::ServerSettings;
use axp_host::store::{SqliteStore, Store};
use axp_host::{HostSettings, RunningHost, authority};
use axp_protocol::principal::{AllSessions, Role, SessionScope};
use axp_protocol::scalar::Id;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// How long anything may take before a test gives up. Nothing is ever waited out in full when it works.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Waits for something, with the deadline.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.unwrap_or_else(|_| panic!("{what}: not within {DEADLINE:?}"))
}

pub(crate) const PEOPLE: [(&str, Role); 6] = [
    ("maria", Role::Maintainer),
    ("mike", Role::Maintainer),
    ("carl", Role::Contributor),
    ("dora", Role::Contributor),
    ("olga", Role::Observer),
    ("vera", Role::Verifier),
];

/// A host in this process, on a free loopback port.
pub(crate) struct TestHost {
    folder: tempfile::TempDir,
    tokens: Vec<(String, String)>,
    address: SocketAddr,
    running: Option<RunningHost>,
    server: ServerSettings,
    people: Vec<(Id, Role, SessionScope)>,
}

impl TestHost {
    pub(crate) async fn start() -> Self {
        Self::with(ServerSettings::default()).await
    }

    pub(crate) async fn with(server: ServerSettings) -> Self {
        let all = SessionScope::All(AllSessions::All);
        let people = PEOPLE.iter().map(|(name, role)| (Id::new(*name).unwrap(), *role, all.clone()));
        Self::new(server, people.collect()).await
    }

    /// A host of these people: their names, roles and sessions, or `*`.
    pub(crate) async fn of(people: &[(String, Role, Vec<String>)]) -> Self {
        let scope = |names: &[String]| {
            if names == ["*"] {
                return SessionScope::All(AllSessions::All);
            }
            SessionScope::Only(names.iter().map(|name| format!("axp-session:/{name}")).collect())
        };
        let people = people
            .iter()
            .map(|(name, role, sessions)| (Id::new(name.clone()).unwrap(), *role, scope(sessions)));
        Self::new(ServerSettings::default(), people.collect()).await
    }

    async fn new(server: ServerSettings, people: Vec<(Id, Role, SessionScope)>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tokens = people.iter().map(|(name, ..)| (name.to_string(), new_token())).collect();
        let address = "127.0.0.1:0".parse().unwrap();
        let mut host = Self { folder, tokens, address, running: None, server, people };
        host.run().await;
        host
    }

    /// A host whose store is what `wrap` makes of the real one.
    pub(crate) async fn with_store(wrap: impl FnOnce(SqliteStore) -> Box<dyn Store>) -> Self {
        let mut host = Self::start().await;
        host.stop().await;
        let store = SqliteStore::open(&host.database(), "owner/project").unwrap();
        host.run_on(wrap(store)).await;
        host
    }

    async fn run(&mut self) {
        let store = SqliteStore::open(&self.database(), "owner/project").unwrap();
        self.run_on(Box::new(store)).await;
    }

    async fn run_on(&mut self, store: Box<dyn Store>) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        let settings = HostSettings {
            authority: authority::Settings::new("owner/project"),
            server: self.server.clone(),
        };
        let credentials: Vec<_> = self
            .people
            .iter()
            .map(|(name, role, sessions)| Credential {
                id: name.clone(),
                role: *role,
                sessions: sessions.clone(),
                token_sha256: token_digest(self.token(name)),
            })
            .collect();
        let credentials = HostCredentials::new(&credentials).unwrap();
        let running = RunningHost::start(settings, credentials, store, listener).await.unwrap();
        self.address = running.address;
        self.running = Some(running);
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.folder.path().join("axp.db")
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) async fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop().await.unwrap();
        }
    }

    /// Stops the host and starts another on the same database and port.
    pub(crate) async fn restart(&mut self) {
        self.stop().await;
        self.run().await;
    }

    pub(crate) fn token(&self, name: &str) -> &str {
        &self.tokens.iter().find(|(n, _)| n == name).unwrap().1
    }

    pub(crate) fn url(&self) -> String {
        format!("ws://{}/axp", self.address)
    }

    pub(crate) fn credentials(&self, name: &str) -> Credentials {
        Credentials { url: self.url(), token: self.token(name).to_owned() }
    }

    pub(crate) async fn client(&self, name: &str) -> (AxpClient, Events) {
        within("connecting", AxpClient::connect(&self.credentials(name), ConnectOptions::default()))
            .await
            .unwrap()
    }
}

/// Creates a session with a task of its own.
pub(crate) async fn create(maintainer: &AxpClient, id: &str) {
    let config = json!({"title": format!("Title of {id}"), "task": format!("task-{id}")});
    let params = json!({"channel": format!("ahp-session:/{id}"), "config": config});
    maintainer.request::<_, Value>("createSession", &params).await.unwrap();
}

/// A mutation with a fresh operation ID on a session's exchange.
pub(crate) async fn axp(
    client: &AxpClient,
    method: &str,
    session: &str,
    mut params: Value,
) -> Result<Value, axp::client::ClientError> {
    params["channel"] = json!(format!("axp-session:/{session}"));
    params["operationId"] = json!(axp::client::operation_id());
    checked(client, method, &params).await
}

/// Asks; what is taken must be what the schema says.
pub(crate) async fn checked(
    client: &AxpClient,
    method: &str,
    params: &Value,
) -> Result<Value, axp::client::ClientError> {
    let result = client.request(method, params).await;
    if result.is_ok() {
        assert_eq!(valid::wrong(method, params), None);
    }
    result
}

/// A message of a user.
pub(crate) fn message(text: &str) -> Value {
    json!({"text": text, "origin": {"kind": "user"}})
}

/// Starts a turn.
pub(crate) async fn prompt(
    client: &AxpClient,
    session: &str,
    turn: &str,
) -> Result<Value, axp::client::ClientError> {
    let action = json!({"type": "chat/turnStarted", "turnId": turn, "startedAt": "2024-01-01T00:00:00.000Z",
        "message": message("Please fix it")});
    dispatch(client, session, action).await
}

/// Dispatches an action on a chat.
pub(crate) async fn dispatch(
    client: &AxpClient,
    session: &str,
    action: Value,
) -> Result<Value, axp::client::ClientError> {
    let params = json!({"channel": format!("ahp-chat:/{session}"), "operationId": axp::client::operation_id(),
        "action": action});
    checked(client, "_axp/dispatch", &params).await
}

/// Grants a budget and claims the session; returns the epoch.
pub(crate) async fn claim(contributor: &AxpClient, session: &str, grant: &str, tokens: u64) -> u64 {
    let limit = json!({"tokens": tokens, "costMicros": 1_000_000, "turns": 10});
    axp(
        contributor,
        "_axp/grant",
        session,
        json!({"grantId": grant, "limit": limit, "enforcement": "accounting"}),
    )
    .await
    .unwrap();
    let params = json!({"grantId": grant, "executorId": format!("executor-{grant}"), "leaseMs": 30_000});
    axp(contributor, "_axp/claim", session, params).await.unwrap()["epoch"].as_u64().unwrap()
}
