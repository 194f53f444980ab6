//! The HTTP side of a connection: one request head is read, and either upgraded or answered and closed (section 2).

use std::sync::Arc;
use std::time::Duration;

use axp_protocol::AXP_VERSION;
use axp_protocol::principal::Principal;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_util::sync::CancellationToken;

use crate::config::Credentials;

/// Longest request head, bytes.
const HEAD_BYTES: usize = 16 * 1024;
/// Headers a request may have.
const HEADERS: usize = 64;
/// The one path that upgrades.
const PATH: &str = "/axp";

/// A request head and what came behind it.
#[derive(Debug)]
pub(super) struct Head {
    bytes: Vec<u8>,
    end: usize,
}

/// Why no request was read.
#[derive(Debug)]
pub(super) enum HeadError {
    /// The client went away, or took too long.
    Gone,
    /// It is not HTTP, or too long.
    Malformed,
}

/// What to do with a request.
#[derive(Debug)]
pub(super) enum Decision {
    /// Open a WebSocket for this principal.
    Upgrade {
        /// Whom the token stands for.
        principal: Arc<Principal>,
        /// Value of `Sec-WebSocket-Accept`.
        accept: String,
    },
    /// Answer and close.
    Answer(Answer),
}

/// An answer that ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Health,
    Malformed,
    Unauthorized,
    Forbidden,
    NotFound,
    Full,
}

impl Answer {
    fn parts(self) -> (&'static str, &'static str, String) {
        const TEXT: &str = "Content-Type: text/plain; charset=utf-8\r\n";
        match self {
            Self::Health => (
                "200 OK",
                "Content-Type: application/json\r\nCache-Control: no-store\r\n",
                format!("{{\"status\":\"ok\",\"protocol\":\"{AXP_VERSION}\"}}"),
            ),
            Self::Malformed => ("400 Bad Request", TEXT, "bad request\n".into()),
            Self::Unauthorized => (
                "401 Unauthorized",
                "Content-Type: text/plain; charset=utf-8\r\nWWW-Authenticate: Bearer\r\n",
                "unauthorized\n".into(),
            ),
            Self::Forbidden => ("403 Forbidden", TEXT, "forbidden\n".into()),
            Self::NotFound => ("404 Not Found", TEXT, "not found\n".into()),
            Self::Full => (
                "503 Service Unavailable",
                "Content-Type: text/plain; charset=utf-8\r\nRetry-After: 5\r\n",
                "too many connections\n".into(),
            ),
        }
    }

    /// Sends the answer and closes; gives up after `limit`, and waits for nothing once the server stops.
    pub(super) async fn send(self, mut stream: TcpStream, limit: Duration, stop: &CancellationToken) {
        let (status, headers, body) = self.parts();
        let text = format!(
            "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        if matches!(timeout(limit, stream.write_all(text.as_bytes())).await, Ok(Ok(()))) {
            stop.run_until_cancelled(linger(stream, limit)).await;
        }
    }
}

/// Reads up to the end of the request head.
pub(super) async fn read_head(stream: &mut TcpStream, limit: Duration) -> Result<Head, HeadError> {
    timeout(limit, read_to_blank_line(stream)).await.unwrap_or(Err(HeadError::Gone))
}

async fn read_to_blank_line(stream: &mut TcpStream) -> Result<Head, HeadError> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        let before = bytes.len();
        let room = HEAD_BYTES.saturating_sub(before);
        if room == 0 {
            return Err(HeadError::Malformed);
        }
        let read =
            (&mut *stream).take(room as u64).read_buf(&mut bytes).await.map_err(|_| HeadError::Gone)?;
        if read == 0 {
            return Err(HeadError::Gone);
        }
        // Something else than HTTP, TLS above all, is told at once: its client would wait for our first byte.
        if !bytes.first().is_some_and(u8::is_ascii_uppercase) {
            return Err(HeadError::Malformed);
        }
        // Only what is new can complete the blank line, so that a slow client costs no more than a quick one.
        let from = before.saturating_sub(3);
        if let Some(at) =
            bytes.get(from..).and_then(|new| new.windows(4).position(|four| four == b"\r\n\r\n"))
        {
            return Ok(Head { end: from + at + 4, bytes });
        }
    }
}

impl Head {
    /// What came after the head: the first bytes of the WebSocket, if the client did not wait.
    pub(super) fn into_rest(mut self) -> Vec<u8> {
        self.bytes.split_off(self.end)
    }

    /// Decides about the request. A refusal never tells which of token and path was wrong.
    pub(super) fn decide(&self, credentials: &Credentials, origins: &[String]) -> Decision {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let head = self.bytes.get(..self.end).unwrap_or_default();
        if !matches!(request.parse(head), Ok(httparse::Status::Complete(_))) {
            return Decision::Answer(Answer::Malformed);
        }
        let (method, path) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
        let headers = Headers(request.headers);

        if !headers.lists("Upgrade", "websocket") {
            let health = method == "GET" && path == "/healthz";
            return Decision::Answer(if health { Answer::Health } else { Answer::NotFound });
        }
        if headers.all("Origin").any(|origin| !origins.iter().any(|known| known.as_bytes() == origin)) {
            return Decision::Answer(Answer::Forbidden);
        }
        // The token is looked up whatever the path, so that the time of the answer tells no more than its text.
        let principal =
            headers.one("Authorization").and_then(bearer).and_then(|token| credentials.find(token));
        let Some(principal) = principal.filter(|_| path == PATH) else {
            return Decision::Answer(Answer::Unauthorized);
        };
        let key = headers
            .one("Sec-WebSocket-Key")
            .filter(|key| BASE64_STANDARD.decode(key).is_ok_and(|nonce| nonce.len() == 16));
        let fits = method == "GET"
            && request.version == Some(1)
            && headers.lists("Connection", "upgrade")
            && headers.one("Sec-WebSocket-Version") == Some(b"13".as_slice());
        match key {
            Some(key) if fits => Decision::Upgrade { principal, accept: derive_accept_key(key) },
            _ => Decision::Answer(Answer::Malformed),
        }
    }
}

/// Header lookups; names compare without case.
struct Headers<'a>(&'a [httparse::Header<'a>]);

impl<'a> Headers<'a> {
    fn all(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
    }

    /// The value of a header that may appear once; none when it appears twice.
    fn one(&self, name: &str) -> Option<&'a [u8]> {
        let mut values = self.all(name);
        values.next().filter(|_| values.next().is_none())
    }

    /// Whether a header with a comma-separated list names `item`.
    fn lists(&self, name: &str, item: &str) -> bool {
        self.all(name)
            .flat_map(|value| value.split(|byte| *byte == b','))
            .any(|part| part.trim_ascii().eq_ignore_ascii_case(item.as_bytes()))
    }
}

fn bearer(value: &[u8]) -> Option<&str> {
    let (scheme, token) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Sends the answer that turns the connection into a WebSocket.
pub(super) async fn switch_protocols(
    stream: &mut TcpStream,
    accept: &str,
    limit: Duration,
) -> std::io::Result<()> {
    let text = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    timeout(limit, stream.write_all(text.as_bytes())).await?
}

/// Closes our side and reads what still comes until the client closes its own, for at most `limit`: closing a socket
/// with unread bytes resets it, and the client would lose the answer.
pub(super) async fn linger(mut stream: TcpStream, limit: Duration) {
    let drained = async {
        stream.shutdown().await?;
        // On the heap for these moments, not in every connection's task for its whole life.
        let mut scrap = vec![0; 16 * 1024];
        while stream.read(&mut scrap).await? > 0 {}
        Ok::<_, std::io::Error>(())
    };
    // Whatever the end, the socket is dropped now.
    let _ = timeout(limit, drained).await;
}

#[cfg(test)]
mod tests {
    use axp_protocol::principal::{AllSessions, Role, SessionScope};
    use axp_protocol::scalar::Id;

    use super::*;
    use crate::config::{Credential, token_digest};

    const TOKEN: &str = "0123456789abcdef01234567";
    const GOOD: &str = "GET /axp HTTP/1.1\r\nHost: h\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
        Authorization: Bearer 0123456789abcdef01234567\r\n\r\n";

    fn decide(text: &str) -> Result<String, Answer> {
        let credentials = Credentials::new(&[Credential {
            id: Id::new("ada").unwrap(),
            role: Role::Maintainer,
            sessions: SessionScope::All(AllSessions::All),
            token_sha256: token_digest(TOKEN),
        }])
        .unwrap();
        let head = Head { bytes: text.as_bytes().to_vec(), end: text.len() };
        match head.decide(&credentials, &["https://good.example".to_owned()]) {
            Decision::Upgrade { accept, .. } => Ok(accept),
            Decision::Answer(answer) => Err(answer),
        }
    }

    #[test]
    fn a_good_upgrade_is_accepted() {
        // The pair of RFC 6455, section 1.3.
        assert_eq!(decide(GOOD).as_deref(), Ok("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        let origin = GOOD.replace("Host: h", "Host: h\r\nOrigin: https://good.example");
        assert!(decide(&origin).is_ok());
        assert!(decide(&GOOD.replace("Bearer", "bearer")).is_ok());
    }

    #[test]
    fn refusals_follow_the_table() {
        for (from, to, answer) in [
            ("/axp", "/axp/", Answer::Unauthorized),
            ("/axp", "/axp?token=x", Answer::Unauthorized),
            ("/axp", "/healthz", Answer::Unauthorized),
            ("01234567\r\n\r\n", "0123456x\r\n\r\n", Answer::Unauthorized),
            ("Bearer ", "Basic ", Answer::Unauthorized),
            ("Bearer ", "", Answer::Unauthorized),
            ("Authorization", "X-Authorization", Answer::Unauthorized),
            ("Host: h", "Authorization: Bearer x", Answer::Unauthorized),
            ("Host: h", "Origin: https://evil.example", Answer::Forbidden),
            ("Host: h", "Origin: null", Answer::Forbidden),
            ("Host: h", "Origin: https://good.example\r\nOrigin: https://evil.example", Answer::Forbidden),
            ("GET", "POST", Answer::Malformed),
            ("HTTP/1.1", "HTTP/1.0", Answer::Malformed),
            ("HTTP/1.1", "HTTP/9", Answer::Malformed),
            ("Version: 13", "Version: 8", Answer::Malformed),
            ("dGhlIHNhbXBsZSBub25jZQ==", "short", Answer::Malformed),
            ("keep-alive, Upgrade", "close", Answer::Malformed),
            ("WebSocket", "h2c", Answer::NotFound),
        ] {
            assert_eq!(decide(&GOOD.replacen(from, to, 1)), Err(answer), "{from} -> {to}");
        }
    }

    #[test]
    fn a_wrong_origin_is_refused_before_the_token_is_looked_at() {
        let text = GOOD.replace("Host: h", "Origin: https://evil.example").replace("Bearer", "Basic");
        assert_eq!(decide(&text), Err(Answer::Forbidden));
    }

    #[test]
    fn plain_requests_get_health_or_nothing() {
        assert_eq!(decide("GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"), Err(Answer::Health));
        assert_eq!(decide("GET /axp HTTP/1.1\r\nHost: h\r\n\r\n"), Err(Answer::NotFound));
        assert_eq!(decide("POST /healthz HTTP/1.1\r\nHost: h\r\n\r\n"), Err(Answer::NotFound));
        assert_eq!(decide("nonsense\r\n\r\n"), Err(Answer::Malformed));
    }
}
