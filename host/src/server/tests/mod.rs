mod http;
mod socket;

use std::future::pending;

use axp_protocol::principal::Role as PrincipalRole;
use axp_protocol::principal::{AllSessions, SessionScope};
use axp_protocol::scalar::Id;
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_util::sync::DropGuard;

use super::*;
use crate::config::{Credential, token_digest};

const TOKEN: &str = "a-token-of-enough-characters";
/// Longest wait for something that must happen.
const DEADLINE: Duration = Duration::from_secs(20);

type Client = WebSocketStream<TcpStream>;

/// A peer that echoes; any frame greets except `ping`.
struct Echo {
    outbox: Outbox,
    greeted: bool,
    _gone: DropGuard,
}

impl connection::Peer for Echo {
    async fn frame(&mut self, text: &str) {
        self.greeted |= text != "ping";
        match text.strip_prefix("repeat ") {
            Some(count) => self.outbox.reply("é".repeat(count.parse().unwrap())),
            None if text == "wait" => pending().await,
            None => self.outbox.reply(text.to_owned()),
        };
    }

    fn too_large(&mut self) {
        self.outbox.reply("too large".into());
    }

    fn greeted(&self) -> bool {
        self.greeted
    }
}

/// What the other side of a connection looks like: its queue, and a token cancelled when its peer is dropped.
type Opened = (Outbox, CancellationToken);

struct Host {
    server: Server,
    opened: mpsc::UnboundedReceiver<Opened>,
}

impl Host {
    async fn start(settings: ServerSettings) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let credentials = Credentials::new(&[Credential {
            id: Id::new("ada").unwrap(),
            role: PrincipalRole::Maintainer,
            sessions: SessionScope::All(AllSessions::All),
            token_sha256: token_digest(TOKEN),
        }])
        .unwrap();
        let (sender, opened) = mpsc::unbounded_channel();
        let server = Server::start_with(settings, credentials, listener, move |principal, outbox| {
            assert_eq!(principal.id.as_str(), "ada");
            let gone = CancellationToken::new();
            sender.send((outbox.clone(), gone.clone())).unwrap();
            Echo { outbox, greeted: false, _gone: gone.drop_guard() }
        })
        .unwrap();
        Self { server, opened }
    }

    async fn socket(&self) -> TcpStream {
        TcpStream::connect(self.server.address()).await.unwrap()
    }

    async fn connect(&self) -> Client {
        let mut request = "ws://host/axp".into_client_request().unwrap();
        request.headers_mut().insert("Authorization", format!("Bearer {TOKEN}").parse().unwrap());
        tokio_tungstenite::client_async(request, self.socket().await).await.unwrap().0
    }

    /// Sends bytes and reads all that is answered.
    async fn exchange(&self, text: &str) -> String {
        let mut socket = self.socket().await;
        socket.write_all(text.as_bytes()).await.unwrap();
        rest(&mut socket).await
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future).await.expect("it does not happen")
}

async fn rest(socket: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset ends it as well as an orderly close does.
    let _ = within(socket.read_to_end(&mut bytes)).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn next_text(client: &mut Client) -> String {
    loop {
        match within(client.next()).await.unwrap().unwrap() {
            Message::Text(text) => return text.to_string(),
            Message::Ping(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Code of the close frame that ends what the client receives.
async fn close_code(client: &mut Client) -> u16 {
    loop {
        match within(client.next()).await {
            Some(Ok(Message::Close(Some(CloseFrame { code, .. })))) => {
                assert!(within(client.next()).await.is_none(), "the socket closes after the frame");
                return code.into();
            }
            Some(Ok(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn assert_echo(client: &mut Client) {
    client.send(Message::text("hello")).await.unwrap();
    assert_eq!(next_text(client).await, "hello");
}

fn upgrade(changes: &[(&str, &str)]) -> String {
    let mut text = format!(
        "GET /axp HTTP/1.1\r\nHost: host\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Authorization: Bearer {TOKEN}\r\n\r\n"
    );
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    text
}

/// A text frame of a client, masked with zeros.
fn frame(text: &str) -> Vec<u8> {
    let mut bytes = vec![0x81, 0x80 | u8::try_from(text.len()).unwrap(), 0, 0, 0, 0];
    bytes.extend(text.as_bytes());
    bytes
}
