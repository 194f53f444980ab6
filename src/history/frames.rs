//! WebSocket messages as they arrive, piece by piece. The library that the rest of the client uses gives whole ones.

use std::io::Cursor;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Control, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{Frame, FrameHeader};

use crate::client::ClientError;

/// Silence after which the host is given up.
const SILENCE: Duration = Duration::from_secs(30);
/// Bytes read at a time.
const PIECE: usize = 64 * 1024;
/// Longest payload of a control frame, bytes (RFC 6455, section 5.5).
const CONTROL: u64 = 125;

/// A part of a text message.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) bytes: Vec<u8>,
    /// Whether the message ends here.
    pub(super) last: bool,
}

/// A connection after its upgrade.
#[derive(Debug)]
pub(super) struct Messages<S> {
    stream: S,
    method: &'static str,
    /// What has arrived and was not taken; the first `taken` bytes were.
    buffer: Vec<u8>,
    taken: usize,
    /// Bytes of the frame that are still to come, and whether it ends its message.
    frame: Option<(u64, bool)>,
    /// Whether a message has begun and not ended.
    within: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Messages<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, method: "initialize", buffer: vec![], taken: 0, frame: None, within: false }
    }

    /// Sends a message of its own; `method` is what errors are about from here.
    pub(super) async fn send(&mut self, method: &'static str, text: String) -> Result<(), ClientError> {
        self.method = method;
        self.write(Frame::message(text.into_bytes(), OpCode::Data(Data::Text), true)).await
    }

    /// The next part of a message.
    pub(super) async fn part(&mut self) -> Result<Part, ClientError> {
        loop {
            if let Some((left, last)) = self.frame {
                let have = self.buffer.len() - self.taken;
                if have == 0 && left > 0 {
                    self.read().await?;
                    continue;
                }
                let take = usize::try_from(left).map_or(have, |left| have.min(left));
                let bytes = self.take(take);
                let left = left - take as u64;
                let ends = left == 0 && last;
                self.frame = (left > 0).then_some((left, last));
                self.within = !ends;
                return Ok(Part { bytes, last: ends });
            }
            let (header, length) = self.header().await?;
            match header.opcode {
                OpCode::Data(Data::Text) if !self.within => self.frame = Some((length, header.is_final)),
                OpCode::Data(Data::Continue) if self.within => self.frame = Some((length, header.is_final)),
                OpCode::Control(control) if length <= CONTROL && header.is_final => {
                    let payload = self.exactly(length as usize).await?;
                    match control {
                        Control::Ping => self.write(Frame::pong(payload)).await?,
                        Control::Close => return Err(ClientError::Lost),
                        _ => {}
                    }
                }
                _ => return Err(self.wrong("a frame out of place")),
            }
        }
    }

    async fn header(&mut self) -> Result<(FrameHeader, u64), ClientError> {
        loop {
            let mut cursor = Cursor::new(self.buffer.get(self.taken..).unwrap_or_default());
            let parsed = FrameHeader::parse(&mut cursor).map_err(|e| self.wrong(&e.to_string()))?;
            if let Some((header, length)) = parsed {
                self.taken += cursor.position() as usize;
                if header.rsv1 || header.rsv2 || header.rsv3 || header.mask.is_some() {
                    return Err(self.wrong("a frame that no server sends"));
                }
                return Ok((header, length));
            }
            self.read().await?;
        }
    }

    async fn exactly(&mut self, count: usize) -> Result<Vec<u8>, ClientError> {
        while self.buffer.len() - self.taken < count {
            self.read().await?;
        }
        Ok(self.take(count))
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        let end = self.taken + count;
        let bytes = self.buffer.get(self.taken..end).unwrap_or_default().to_vec();
        self.taken = end;
        bytes
    }

    /// Reads what there is, at least one byte.
    async fn read(&mut self) -> Result<(), ClientError> {
        self.buffer.drain(..self.taken);
        self.taken = 0;
        self.buffer.reserve(PIECE);
        match tokio::time::timeout(SILENCE, self.stream.read_buf(&mut self.buffer)).await {
            Ok(Ok(0) | Err(_)) => Err(ClientError::Lost),
            Ok(Ok(_)) => Ok(()),
            Err(_) => {
                Err(ClientError::Timeout { method: self.method.to_owned(), seconds: SILENCE.as_secs() })
            }
        }
    }

    async fn write(&mut self, mut frame: Frame) -> Result<(), ClientError> {
        frame.header_mut().mask = Some(rand::random());
        let mut bytes = vec![];
        frame.format(&mut bytes).map_err(|e| self.wrong(&e.to_string()))?;
        let write = async {
            self.stream.write_all(&bytes).await?;
            self.stream.flush().await
        };
        match tokio::time::timeout(SILENCE, write).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(ClientError::Lost),
        }
    }

    fn wrong(&self, why: &str) -> ClientError {
        ClientError::Answer { method: self.method.to_owned(), why: why.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a server sends, frame by frame.
    fn frames(list: &[(OpCode, bool, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![];
        for (code, last, payload) in list {
            let header = FrameHeader { opcode: *code, is_final: *last, ..Default::default() };
            Frame::from_payload(header, payload.to_vec().into()).format(&mut bytes).unwrap();
        }
        bytes
    }

    async fn messages(bytes: Vec<u8>) -> (Vec<String>, ClientError, Vec<u8>) {
        let (ours, mut theirs) = tokio::io::duplex(37);
        let server = tokio::spawn(async move {
            // In small pieces, so that every frame is cut somewhere.
            for piece in bytes.chunks(7) {
                if theirs.write_all(piece).await.is_err() {
                    break;
                }
            }
            let _ = theirs.shutdown().await;
            let mut said = vec![];
            let _ = theirs.read_to_end(&mut said).await;
            said
        });
        let (mut messages, mut list, mut open) = (Messages::new(ours), vec![], vec![]);
        let error = loop {
            match messages.part().await {
                Ok(part) => {
                    open.extend(part.bytes);
                    if part.last {
                        list.push(String::from_utf8(std::mem::take(&mut open)).unwrap());
                    }
                }
                Err(error) => break error,
            }
        };
        drop(messages);
        (list, error, server.await.unwrap())
    }

    const TEXT: OpCode = OpCode::Data(Data::Text);
    const MORE: OpCode = OpCode::Data(Data::Continue);

    #[tokio::test]
    async fn messages_arrive_in_parts_with_pings_between() {
        let long = "x".repeat(70_000);
        let (list, error, said) = messages(frames(&[
            (TEXT, true, b"one"),
            (TEXT, false, b"tw"),
            (OpCode::Control(Control::Ping), true, b"?"),
            (MORE, false, b""),
            (MORE, true, b"o"),
            (TEXT, true, long.as_bytes()),
            (TEXT, true, b""),
            (TEXT, false, b"cut"),
        ]))
        .await;
        assert_eq!(list, ["one", "two", &long, ""]);
        assert!(matches!(error, ClientError::Lost), "{error}");
        let (header, length) = FrameHeader::parse(&mut Cursor::new(&said)).unwrap().unwrap();
        assert!(matches!(header.opcode, OpCode::Control(Control::Pong)) && length == 1);
        assert!(header.mask.is_some(), "what a client sends is masked");
    }

    #[tokio::test]
    async fn frames_out_of_place_end_it() {
        for list in [
            &[(MORE, true, &b"x"[..])][..],
            &[(TEXT, false, b"x"), (TEXT, true, b"y")],
            &[(OpCode::Data(Data::Binary), true, b"x")],
            &[(OpCode::Control(Control::Ping), true, &[b'x'; 126])],
        ] {
            let (_, error, _) = messages(frames(list)).await;
            assert!(matches!(error, ClientError::Answer { .. }), "{error}");
        }
        let (_, error, _) = messages(frames(&[(OpCode::Control(Control::Close), true, b"")])).await;
        assert!(matches!(error, ClientError::Lost), "{error}");
    }
}
