//! Stands between the people of a test and their host, and reads what they ask: all of it must be what the schemas say.

use std::io::{Cursor, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use crate::valid::wrong;

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// AXP requests.
    pub(crate) requests: usize,
    /// What was wrong with some.
    pub(crate) wrong: Vec<String>,
}

pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Mutex<Seen>>,
}

impl Recorder {
    /// Listens on a free port for as long as the test process lives.
    pub(crate) fn start(host: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let seen = Arc::<Mutex<Seen>>::default();
        let all = seen.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // Without a host the client sees its connection closed.
                let Ok(server) = TcpStream::connect(host) else { continue };
                let (Ok(client_end), Ok(server_end)) = (client.try_clone(), server.try_clone()) else {
                    continue;
                };
                let mut reader = Reader { seen: all.clone(), ..Reader::default() };
                std::thread::spawn(move || pump(client, server, |bytes| reader.take(bytes)));
                std::thread::spawn(move || pump(server_end, client_end, |_| ()));
            }
        });
        Self { address, seen }
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, mut look: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        look(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// Reads one client's side of a connection.
#[derive(Default)]
struct Reader {
    seen: Arc<Mutex<Seen>>,
    buffer: Vec<u8>,
    upgraded: bool,
    message: Vec<u8>,
}

impl Reader {
    fn take(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        if !self.upgraded {
            let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") else { return };
            self.buffer.drain(..end + 4);
            self.upgraded = true;
        }
        loop {
            let mut cursor = Cursor::new(&self.buffer);
            let Ok(Some((header, length))) = FrameHeader::parse(&mut cursor) else { return };
            let start = usize::try_from(cursor.position()).expect("a size");
            let end = start + usize::try_from(length).expect("a size");
            let Some(payload) = self.buffer.get(start..end) else { return };
            let mask = header.mask.expect("what a client sends is masked");
            if let OpCode::Data(Data::Text | Data::Continue) = header.opcode {
                self.message.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
                if header.is_final {
                    let message = std::mem::take(&mut self.message);
                    self.request(&serde_json::from_slice(&message).unwrap_or_default());
                }
            }
            self.buffer.drain(..end);
        }
    }

    fn request(&self, request: &Value) {
        let Some(method) = request["method"].as_str().filter(|method| method.starts_with("_axp/")) else {
            return;
        };
        let mut seen = self.seen.lock().expect("nobody panics here");
        seen.requests += 1;
        seen.wrong.extend(wrong(method, &request["params"]));
    }
}
