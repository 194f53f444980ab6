//! Request heads, answers and the number of connections.

use super::*;

#[tokio::test]
async fn health_needs_no_token() {
    let host = Host::start(ServerSettings::default()).await;
    let answer = host.exchange("GET /healthz HTTP/1.1\r\nHost: host\r\n\r\n").await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("\r\nContent-Type: application/json\r\n"), "{head}");
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
    assert!(head.ends_with("\r\nConnection: close"), "{head}");
    assert_eq!(body, r#"{"status":"ok","protocol":"0.2.0"}"#);
}

#[tokio::test]
async fn refusals_have_their_status() {
    let host = Host::start(ServerSettings::default()).await;
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 404),
        ("GET /axp HTTP/1.1\r\n\r\n".to_owned(), 404),
        (upgrade(&[("/axp", "/other")]), 401),
        (upgrade(&[(TOKEN, "another-token-of-enough-characters")]), 401),
        (upgrade(&[("Host: host", "Origin: https://evil.example")]), 403),
        (upgrade(&[("GET", "PUT")]), 400),
        ("GET /healthz HTTP/1.1\r\nno colon\r\n\r\n".to_owned(), 400),
        ("\u{16}\u{3}\u{1} a TLS greeting".to_owned(), 400),
        (format!("GET /healthz HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(20_000)), 400),
    ] {
        let answer = host.exchange(&request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:.60}: {answer}");
        assert!(answer.contains("\r\nContent-Length: ") && answer.contains("\r\nConnection: close\r\n"));
        assert!(!answer.contains(TOKEN));
    }
}

#[tokio::test]
async fn wrong_token_and_wrong_path_look_the_same() {
    let host = Host::start(ServerSettings::default()).await;
    let path = host.exchange(&upgrade(&[("/axp", "/other")])).await;
    let token = host.exchange(&upgrade(&[(TOKEN, "another-token-of-enough-characters")])).await;
    assert_eq!(path, token);
}

#[tokio::test]
async fn a_head_that_does_not_end_is_dropped() {
    let settings = ServerSettings { head: Duration::from_millis(50), ..Default::default() };
    let host = Host::start(settings).await;
    assert_eq!(host.exchange("GET /healthz HTTP/1.1\r\n").await, "");
}

#[tokio::test]
async fn a_frame_sent_with_the_head_is_read() {
    let host = Host::start(ServerSettings::default()).await;
    let mut socket = host.socket().await;
    let mut bytes = upgrade(&[]).into_bytes();
    bytes.extend(frame("early"));
    socket.write_all(&bytes).await.unwrap();
    let mut seen = Vec::new();
    while !seen.windows(5).any(|part| part == b"early") {
        assert!(within(socket.read_buf(&mut seen)).await.unwrap() > 0);
    }
}

#[tokio::test]
async fn an_allowed_origin_connects() {
    let settings =
        ServerSettings { allowed_origins: vec!["https://good.example".into()], ..Default::default() };
    let host = Host::start(settings).await;
    let mut socket = host.socket().await;
    let text = upgrade(&[("Host: host", "Origin: https://good.example")]);
    socket.write_all(text.as_bytes()).await.unwrap();
    let mut start = [0; 12];
    within(socket.read_exact(&mut start)).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 101");
}

#[tokio::test]
async fn one_connection_too_many_gets_503_and_harms_nobody() {
    let host = Host::start(ServerSettings { max_connections: 2, ..Default::default() }).await;
    let mut first = host.connect().await;
    let mut second = host.connect().await;
    for _ in 0..3 {
        let answer = host.exchange(&upgrade(&[])).await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    }
    assert_echo(&mut first).await;
    assert_echo(&mut second).await;
    first.close(None).await.unwrap();
    while let Some(Ok(_)) = within(first.next()).await {}
    // The place is free when the host has seen the end, which is soon after the client has.
    within(async {
        while host.exchange("GET /healthz HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 503 ") {}
    })
    .await;
}
