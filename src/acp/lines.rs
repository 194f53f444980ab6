//! The agent's standard output, cut into JSON-RPC lines.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::AgentError;
use super::text::label;

/// The longest line an agent may write: agents send whole images.
pub const MAX_LINE: usize = 16 * 1024 * 1024;
/// So many lines of something else in a row, and this is no ACP agent.
pub const MAX_NOISE: u64 = 1_000;

const CHUNK: usize = 64 * 1024;
const KEPT_NOISE: usize = 10;
/// The least a waiting message counts, so that a flood of tiny ones is bounded as well.
const MESSAGE_OVERHEAD: usize = 4096;

/// What the agent wrote to its standard output that is not JSON-RPC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Noise {
    /// How many lines were skipped.
    pub lines: u64,
    /// The first of them, without control sequences.
    pub first: Vec<String>,
}

/// Bounds what has been read from the agent and not been dealt with.
///
/// The protocol engine queues without limit, so the reader waits here instead, and the agent in its turn on a full
/// pipe. A permit travels with its message and is given back when the message has been translated.
pub(super) struct Budget {
    room: Arc<Semaphore>,
    waiting: Mutex<VecDeque<OwnedSemaphorePermit>>,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self { room: Arc::new(Semaphore::new(MAX_LINE)), waiting: Mutex::default() }
    }

    async fn enter(&self, length: usize) {
        let cost = u32::try_from(length.clamp(MESSAGE_OVERHEAD, MAX_LINE)).unwrap_or(u32::MAX);
        if let Ok(permit) = Arc::clone(&self.room).acquire_many_owned(cost).await {
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(permit);
        }
    }

    /// The permit of the oldest message; messages are dispatched in the order they were read.
    pub(super) fn leave(&self) -> Option<OwnedSemaphorePermit> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// What the reader shares with the rest of the agent's connection.
pub(super) struct Intake {
    pub(super) budget: Budget,
    noise: Mutex<Noise>,
    fault: OnceLock<AgentError>,
}

impl Intake {
    pub(super) fn new() -> Self {
        Self { budget: Budget::new(), noise: Mutex::default(), fault: OnceLock::new() }
    }

    pub(super) fn noise(&self) -> Noise {
        self.noise.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why reading stopped, if not at the end of the output.
    pub(super) fn fault(&self) -> Option<AgentError> {
        self.fault.get().cloned()
    }

    fn skip(&self, line: &str) {
        let mut noise = self.noise.lock().unwrap_or_else(PoisonError::into_inner);
        noise.lines += 1;
        let line = label(line, 200);
        if noise.first.len() < KEPT_NOISE && !line.is_empty() {
            noise.first.push(line);
        }
    }
}

/// Reads JSON-RPC lines in chunks and skips everything else.
///
/// A fault ends the lines as the end of the output would, and is told through [`Intake::fault`]: an error in the
/// stream would tear the connection down before the messages in front of it were dispatched, and those count.
pub(super) struct LineReader<R> {
    source: R,
    buffer: Vec<u8>,
    head: usize,
    scanned: usize,
    ended: bool,
    run: u64,
    intake: Arc<Intake>,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    pub(super) fn new(source: R, intake: Arc<Intake>) -> Self {
        Self { source, buffer: Vec::new(), head: 0, scanned: 0, ended: false, run: 0, intake }
    }

    /// The next JSON-RPC line, or `None` at the end of the output or after a fault.
    pub(super) async fn next_line(&mut self) -> Option<String> {
        loop {
            if self.intake.fault.get().is_some() {
                return None;
            }
            let bytes = self.next_bytes().await?;
            let line = match String::from_utf8(bytes) {
                Ok(line) => line,
                Err(error) => {
                    self.skip(&String::from_utf8_lossy(error.as_bytes()));
                    continue;
                }
            };
            match classify(&line) {
                Kind::Noise => self.skip(&line),
                Kind::Dispatched => {
                    self.run = 0;
                    self.intake.budget.enter(line.len()).await;
                    return Some(line);
                }
                Kind::Internal => {
                    self.run = 0;
                    return Some(line);
                }
            }
        }
    }

    fn skip(&mut self, line: &str) {
        self.intake.skip(line);
        self.run += 1;
        if self.run >= MAX_NOISE {
            let first = self.intake.noise().first.into_iter().next().unwrap_or_default();
            self.fail(AgentError::Noise { lines: self.run, first });
        }
    }

    fn fail(&mut self, error: AgentError) {
        // The first fault is the cause; a later one would be its echo.
        let _ = self.intake.fault.set(error);
        self.buffer = Vec::new();
    }

    /// The bytes up to the next line feed, without it.
    async fn next_bytes(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n') {
                let end = self.scanned + at;
                if end - self.head > MAX_LINE {
                    self.fail(AgentError::LineTooLong { limit: MAX_LINE });
                    return None;
                }
                let line = self.buffer[self.head..end].to_vec();
                self.head = end + 1;
                self.scanned = self.head;
                return Some(line);
            }
            self.scanned = self.buffer.len();
            if self.buffer.len() - self.head > MAX_LINE {
                self.fail(AgentError::LineTooLong { limit: MAX_LINE });
                return None;
            }
            if self.ended {
                let rest = self.buffer.split_off(self.head);
                self.buffer = Vec::new();
                (self.head, self.scanned) = (0, 0);
                return (!rest.is_empty()).then_some(rest);
            }
            self.fill().await;
        }
    }

    async fn fill(&mut self) {
        self.buffer.drain(..self.head);
        self.scanned -= self.head;
        self.head = 0;
        if self.buffer.is_empty() && self.buffer.capacity() > 4 * CHUNK {
            self.buffer.shrink_to(CHUNK);
        }
        self.buffer.reserve(CHUNK);
        // `take` keeps one read from growing the buffer past the limit by more than a chunk.
        let mut limited = (&mut self.source).take(CHUNK as u64);
        match limited.read_buf(&mut self.buffer).await {
            Ok(0) | Err(_) => self.ended = true,
            Ok(_) => {}
        }
    }
}

enum Kind {
    /// A request or notification, which reaches our handler.
    Dispatched,
    /// A response or protocol-level notification, which the engine may keep to itself.
    Internal,
    Noise,
}

#[derive(Deserialize)]
struct Envelope {
    jsonrpc: String,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    id: Option<Id>,
    #[serde(default, rename = "params")]
    _params: Structured,
    #[serde(default, deserialize_with = "present")]
    result: bool,
    #[serde(default, deserialize_with = "present")]
    error: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Id {
    Number(#[expect(dead_code, reason = "only its shape matters")] i64),
    Text(#[expect(dead_code, reason = "only its shape matters")] String),
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

/// Parameters, which JSON-RPC allows to be an object, an array or absent.
#[derive(Default)]
struct Structured;

impl<'de> Deserialize<'de> for Structured {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shape;
        impl<'de> Visitor<'de> for Shape {
            type Value = Structured;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object or an array")
            }
            fn visit_unit<E>(self) -> Result<Structured, E> {
                Ok(Structured)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Structured, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Structured)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Structured, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Structured)
            }
        }
        deserializer.deserialize_any(Shape)
    }
}

fn classify(line: &str) -> Kind {
    if !line.trim_start().starts_with('{') {
        return Kind::Noise;
    }
    match serde_json::from_str::<Envelope>(line) {
        Ok(envelope) if envelope.jsonrpc == "2.0" => match envelope.method {
            Some(method) if method.starts_with("$/") => Kind::Internal,
            Some(_) => Kind::Dispatched,
            None if envelope.id.is_some() && (envelope.result ^ envelope.error) => Kind::Internal,
            None => Kind::Noise,
        },
        _ => Kind::Noise,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read_all(input: &[u8]) -> (Vec<String>, Arc<Intake>) {
        let intake = Arc::new(Intake::new());
        let mut reader = LineReader::new(input, Arc::clone(&intake));
        let mut lines = Vec::new();
        while let Some(line) = reader.next_line().await {
            intake.budget.leave();
            lines.push(line);
        }
        (lines, intake)
    }

    const NOTE: &str = r#"{"jsonrpc":"2.0","method":"session/update","params":{}}"#;

    #[tokio::test]
    async fn everything_else_is_skipped_and_counted() {
        let mut input = b"Welcome!\n\x1b[32mready\x1b[0m\n\n\xff\xfe bad\n".to_vec();
        input.extend_from_slice(NOTE.as_bytes());
        input.extend_from_slice(b"\n{\"level\":\"info\",\"method\":\"GET\"}\n[1]\n{\"jsonrpc\":\"2.0\"}\n");
        input.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":null}\r\n");
        input.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"method\":\"x\",\"params\":3}\n");
        input.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"y\"}");
        let (lines, intake) = read_all(&input).await;
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert_eq!(lines[0], NOTE);
        assert!(lines[2].contains("\"y\""), "the last line needs no line feed");
        let noise = intake.noise();
        assert_eq!(noise.lines, 8);
        assert_eq!(noise.first[..2], ["Welcome!", "ready"]);
        assert_eq!(intake.fault(), None);
    }

    #[tokio::test]
    async fn too_much_noise_in_a_row_is_a_fault() {
        let mut input = "log\n".repeat(999) + NOTE + "\n" + &"log\n".repeat(999);
        let (lines, intake) = read_all(input.as_bytes()).await;
        assert_eq!((lines.len(), intake.fault()), (1, None));

        input.push_str("log\n");
        input.push_str(NOTE);
        let (lines, intake) = read_all(input.as_bytes()).await;
        assert_eq!(lines.len(), 1);
        assert_eq!(intake.fault(), Some(AgentError::Noise { lines: 1000, first: "log".into() }));
    }

    #[tokio::test]
    async fn a_line_over_the_limit_is_a_fault_and_what_came_before_counts() {
        let empty = r#"{"jsonrpc":"2.0","method":"m","params":{"x":""}}"#;
        let full = empty.replace("\"\"}", &format!("\"{}\"}}", "a".repeat(MAX_LINE - empty.len())));
        assert_eq!(full.len(), MAX_LINE);
        let input = format!("{NOTE}\n{full}\n{full} \n{NOTE}\n");
        let (lines, intake) = read_all(input.as_bytes()).await;
        assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [NOTE.len(), MAX_LINE]);
        assert_eq!(intake.fault(), Some(AgentError::LineTooLong { limit: MAX_LINE }));

        let endless = vec![b'x'; MAX_LINE + 2 * CHUNK];
        let (lines, intake) = read_all(&endless).await;
        assert_eq!((lines.len(), intake.fault()), (0, Some(AgentError::LineTooLong { limit: MAX_LINE })));
    }

    #[tokio::test]
    async fn reading_waits_until_messages_are_dealt_with() {
        let intake = Arc::new(Intake::new());
        let input = format!("{NOTE}\n").repeat(MAX_LINE / MESSAGE_OVERHEAD + 1);
        let mut reader = LineReader::new(input.as_bytes(), Arc::clone(&intake));
        for _ in 0..MAX_LINE / MESSAGE_OVERHEAD {
            assert!(reader.next_line().await.is_some());
        }
        let mut next = std::pin::pin!(reader.next_line());
        tokio::select! {
            biased;
            _ = next.as_mut() => panic!("read on although nothing was dealt with"),
            () = std::future::ready(()) => {}
        }
        drop(intake.budget.leave());
        assert!(next.await.is_some());
    }
}
