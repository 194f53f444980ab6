use std::path::Path;

use axp_protocol::principal::{AllSessions, Role, SessionScope};
use axp_protocol::scalar::Id;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::config::{Credential, new_token, token_digest};
use crate::store::SqliteStore;

const REPOSITORY: &str = "ada/parser";

async fn host(database: &Path) -> RunningHost {
    let credentials = Credentials::new(&[Credential {
        id: Id::new("ada").unwrap(),
        role: Role::Maintainer,
        sessions: SessionScope::All(AllSessions::All),
        token_sha256: token_digest(&new_token()),
    }])
    .unwrap();
    let settings =
        HostSettings { authority: authority::Settings::new(REPOSITORY), server: ServerSettings::default() };
    let store = SqliteStore::open(database, REPOSITORY).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    RunningHost::start(settings, credentials, Box::new(store), listener).await.unwrap()
}

#[tokio::test]
async fn a_host_serves_and_stops_and_lets_the_database_go() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("host.db");
    for _ in 0..2 {
        let host = host(&database).await;
        let mut socket = TcpStream::connect(host.address).await.unwrap();
        socket.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        let address = host.address;
        host.stop().await.unwrap();
        assert!(TcpStream::connect(address).await.is_err());
    }
}
