//! Frames, time-outs and ends of WebSockets.

use super::*;

#[tokio::test]
async fn frames_go_both_ways() {
    let host = Host::start(ServerSettings::default()).await;
    let mut client = host.connect().await;
    assert_echo(&mut client).await;
    // Longer than one WebSocket frame of ours, with characters across the seams.
    client.send(Message::text("repeat 100001")).await.unwrap();
    assert_eq!(next_text(&mut client).await, "é".repeat(100_001));
    client.close(None).await.unwrap();
    let answer = within(client.next()).await;
    assert!(matches!(answer, Some(Ok(Message::Close(_)))), "{answer:?}");
    assert!(within(client.next()).await.is_none());
}

#[tokio::test]
async fn a_binary_frame_ends_with_1003() {
    let host = Host::start(ServerSettings::default()).await;
    let mut client = host.connect().await;
    client.send(Message::binary(vec![1, 2, 3])).await.unwrap();
    assert_eq!(close_code(&mut client).await, 1003);
}

#[tokio::test]
async fn a_frame_over_the_limit_is_answered_and_ends_with_1009() {
    let host = Host::start(ServerSettings { frame_bytes: 1_000, ..Default::default() }).await;
    let mut client = host.connect().await;
    // More than the socket's buffers hold: the answer must get through although the frame is not read.
    let (mut send, mut receive) = {
        client.send(Message::text("x".repeat(1_000))).await.unwrap();
        assert_eq!(next_text(&mut client).await.len(), 1_000);
        client.split()
    };
    let sending = tokio::spawn(async move { send.send(Message::text("x".repeat(20_000_000))).await });
    let mut seen = Vec::new();
    while let Some(Ok(message)) = within(receive.next()).await {
        seen.push(message);
    }
    assert!(matches!(seen.first(), Some(Message::Text(text)) if text.as_str() == "too large"), "{seen:?}");
    match seen.get(1) {
        Some(Message::Close(Some(frame))) => assert_eq!(u16::from(frame.code), 1009),
        other => panic!("{other:?}"),
    }
    // The rest of the frame fails or is thrown away; either way the client is not left hanging.
    let _ = within(sending).await.unwrap();
}

#[tokio::test]
async fn broken_frames_end_the_connection() {
    let host = Host::start(ServerSettings::default()).await;
    for (bytes, code) in [(vec![0x81, 0x01, b'x'], 1002), (vec![0x81, 0x82, 0, 0, 0, 0, 0xC3, 0x28], 1007)] {
        let mut client = host.connect().await;
        client.get_mut().write_all(&bytes).await.unwrap();
        assert_eq!(close_code(&mut client).await, code);
    }
}

#[tokio::test]
async fn no_greeting_in_time_ends_with_1008() {
    let host = Host::start(ServerSettings { hello: Duration::from_millis(50), ..Default::default() }).await;
    let mut client = host.connect().await;
    // Talk that is no greeting changes nothing. On a slow machine the end may come before it.
    let _ = client.send(Message::text("ping")).await;
    assert_eq!(close_code(&mut client).await, 1008);
}

#[tokio::test]
async fn an_idle_client_is_pinged_and_kept() {
    let settings = ServerSettings {
        hello: Duration::from_secs(60),
        ping: Duration::from_millis(20),
        ..Default::default()
    };
    let host = Host::start(settings).await;
    let mut client = host.connect().await;
    assert_echo(&mut client).await;
    for _ in 0..3 {
        assert!(matches!(within(client.next()).await, Some(Ok(Message::Ping(_)))));
    }
    assert_echo(&mut client).await;
}

#[tokio::test]
async fn a_silent_client_is_dropped() {
    let settings = ServerSettings {
        ping: Duration::from_millis(20),
        silence: Duration::from_millis(80),
        ..Default::default()
    };
    let mut host = Host::start(settings).await;
    let mut socket = host.socket().await;
    let mut bytes = upgrade(&[]).into_bytes();
    bytes.extend(frame("hello"));
    socket.write_all(&bytes).await.unwrap();
    let (_outbox, gone) = within(host.opened.recv()).await.unwrap();
    // Never answers a ping.
    rest(&mut socket).await;
    within(gone.cancelled()).await;
}

#[tokio::test]
async fn a_full_queue_ends_the_connection() {
    let settings =
        ServerSettings { queue_bytes: 100_000, close: Duration::from_millis(100), ..Default::default() };
    let mut host = Host::start(settings).await;
    let mut client = host.connect().await;
    let (outbox, gone) = within(host.opened.recv()).await.unwrap();
    let event: Arc<str> = "x".repeat(50_000).into();
    let mut sent = 0;
    while outbox.event(&event) {
        sent += 1;
        tokio::task::yield_now().await;
    }
    within(gone.cancelled()).await;
    // What arrives is the start of what was sent, without a gap, then the end.
    let mut received = 0;
    while let Some(Ok(message)) = within(client.next()).await {
        received += usize::from(message.is_text());
    }
    assert!(received <= sent, "{received} of {sent}");
    assert!(!outbox.event(&event));
}

#[tokio::test]
async fn a_writer_stuck_in_a_full_socket_gives_up() {
    let settings = ServerSettings {
        queue_bytes: 100_000_000,
        write: Duration::from_millis(50),
        close: Duration::from_millis(50),
        ..Default::default()
    };
    let mut host = Host::start(settings).await;
    let client = host.connect().await;
    let (outbox, gone) = within(host.opened.recv()).await.unwrap();
    let event: Arc<str> = "x".repeat(1_000_000).into();
    for _ in 0..64 {
        outbox.event(&event);
    }
    // The client is open all the time and reads nothing.
    within(gone.cancelled()).await;
    drop(client);
}

#[tokio::test]
async fn the_authority_may_end_a_connection() {
    let mut host = Host::start(ServerSettings::default()).await;
    let mut client = host.connect().await;
    let (outbox, gone) = within(host.opened.recv()).await.unwrap();
    outbox.event(&"last".into());
    outbox.close(1008, "enough");
    assert_eq!(next_text(&mut client).await, "last");
    assert_eq!(close_code(&mut client).await, 1008);
    within(gone.cancelled()).await;
}

#[tokio::test]
async fn stop_closes_with_1001() {
    let host = Host::start(ServerSettings::default()).await;
    let mut idle = host.connect().await;
    let mut busy = host.connect().await;
    assert_echo(&mut idle).await;
    busy.send(Message::text("wait")).await.unwrap();
    // One that has not even sent its request.
    let silent = host.socket().await;
    let address = host.server.address();
    let stopping = tokio::spawn(host.server.stop());
    assert_eq!(close_code(&mut idle).await, 1001);
    assert_eq!(close_code(&mut busy).await, 1001);
    drop((idle, busy));
    within(stopping).await.unwrap();
    assert!(TcpStream::connect(address).await.is_err());
    drop(silent);
}

#[tokio::test]
async fn stop_does_not_wait_for_ever() {
    let settings = ServerSettings {
        queue_bytes: 100_000_000,
        stop: Duration::from_millis(50),
        close: Duration::from_secs(3600),
        write: Duration::from_secs(3600),
        ..Default::default()
    };
    let mut host = Host::start(settings).await;
    let client = host.connect().await;
    let (outbox, gone) = within(host.opened.recv()).await.unwrap();
    for _ in 0..64 {
        outbox.event(&"x".repeat(1_000_000).into());
    }
    within(host.server.stop()).await;
    assert!(gone.is_cancelled());
    drop(client);
}
