//! Large reads beside the authority: blobs and exports, from committed data, one at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use axp_protocol::AXP_VERSION;
use axp_protocol::ProtocolError;
use axp_protocol::canonical::ListHash;
use axp_protocol::channel::Channel;
use axp_protocol::scalar::{Digest, Id};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::authority::{Trace, error_frame, result_frame};
use crate::outbox::{Outbox, Piece};
use crate::rpc::RequestId;
use crate::store::{Reader, StoreError};

/// Exports that run at the same time.
const EXPORTS: usize = 16;
/// Bytes of one piece of a streamed answer.
const PIECE: usize = 64 * 1024;

/// How a blob is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlobForm {
    /// As AXP does.
    Axp,
    /// As an AHP resource.
    Base64,
    /// As an AHP resource, as text if it is text.
    Text,
}

/// The content of a blob that somebody reads.
#[derive(Debug)]
pub(crate) struct BlobRead {
    pub(crate) session: Id,
    pub(crate) digest: Digest,
    pub(crate) form: BlobForm,
    pub(crate) to: Asker,
}

/// The history of a session that somebody reads.
#[derive(Debug)]
pub(crate) struct ExportRead {
    pub(crate) channels: Vec<Channel>,
    pub(crate) repository: String,
    /// Newest sequence number that belongs to it.
    pub(crate) through: u64,
    /// Names and JSON of the newest states.
    pub(crate) snapshots: Vec<(String, String)>,
    pub(crate) to: Asker,
}

/// Whom to answer.
#[derive(Debug)]
pub(crate) struct Asker {
    pub(crate) id: RequestId,
    pub(crate) outbox: Outbox,
    /// Given back with the answer.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Hands reads to threads of their own: blobs one after the other, each export by itself, since whoever takes it may
/// be slow.
#[derive(Debug)]
pub(crate) struct Reads {
    blobs: Sender<BlobRead>,
    exports: Arc<AtomicUsize>,
}

impl Reads {
    /// Starts the thread for blobs. It ends when this is dropped.
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub(crate) fn start(mut reader: Box<dyn Reader>) -> Result<Self, StoreError> {
        let (blobs, queue) = channel::<BlobRead>();
        std::thread::Builder::new()
            .name("blobs".into())
            .spawn(move || {
                while let Ok(read) = queue.recv() {
                    let result = blob(&mut *reader, &read.session, &read.digest, read.form);
                    read.to.answer(result);
                }
            })
            .map_err(|source| StoreError::Io { path: "blobs thread".into(), source })?;
        Ok(Self { blobs, exports: Arc::default() })
    }

    pub(crate) fn blob(&self, read: BlobRead) {
        // The thread lives as long as this sender.
        let _ = self.blobs.send(read);
    }

    /// Streams an export through a reader of its own.
    pub(crate) fn export(&self, reader: Result<Box<dyn Reader>, StoreError>, read: ExportRead) {
        let mut reader = match reader {
            Ok(reader) => reader,
            Err(error) => return read.to.answer(Err(error)),
        };
        if self.exports.fetch_add(1, Ordering::Relaxed) >= EXPORTS {
            self.exports.fetch_sub(1, Ordering::Relaxed);
            let busy = ProtocolError::limit(format!("{EXPORTS} exports are running; try again later"));
            read.to.outbox.reply(error_frame(Some(&read.to.id), &busy));
            return;
        }
        let running = self.exports.clone();
        let spawned = std::thread::Builder::new().name("export".into()).spawn(move || {
            if let Err(error) = export(&mut *reader, &read) {
                tracing::error!(%error, "an export broke off");
            }
            running.fetch_sub(1, Ordering::Relaxed);
        });
        if let Err(error) = spawned {
            // What was to be answered is gone with the thread; whoever asked sees the request time out.
            self.exports.fetch_sub(1, Ordering::Relaxed);
            tracing::error!(%error, "no thread for an export");
        }
    }
}

impl Asker {
    fn answer(self, result: Result<String, StoreError>) {
        let frame = match result {
            Ok(result) => result_frame(&self.id, &result),
            Err(error) => {
                tracing::error!(%error, "a read failed");
                error_frame(Some(&self.id), &ProtocolError::internal("the host could not read this"))
            }
        };
        self.outbox.reply(frame);
        drop(self.permit);
    }
}

/// Hash of the recorded actions of a session's chat, exchange and session channels through a sequence number: the
/// canonical list of their envelopes, as an export has them (section 8).
pub(crate) fn trace(reader: &mut dyn Reader, session: &Id, through: u64) -> Result<Trace, StoreError> {
    let channels = [
        Channel::Chat(session.clone()),
        Channel::Exchange(session.clone()),
        Channel::Session(session.clone()),
    ];
    let mut digest = ListHash::default();
    let mut damaged = None;
    // A checkpoint after the end would mean that the trace does not hold what is reviewed.
    let (mut within, mut after) = (false, false);
    reader.actions(&channels, 0, u64::MAX >> 1, &mut |row| {
        // The type is written first, and only the host writes on this channel.
        let checkpoint = row.channel.starts_with("axp-session:/")
            && row.action.get().starts_with(r#"{"type":"_axp/checkpointChanged""#);
        if row.seq > through {
            after |= checkpoint;
            return true;
        }
        within |= checkpoint;
        let origin = row.origin.as_ref().map(|o| o.get());
        let text = envelope(&row.channel, row.action.get(), row.seq, origin, None);
        match serde_json::from_str(&text) {
            Ok(value) => {
                digest.push(&value);
                true
            }
            Err(error) => {
                damaged = Some(StoreError::Damaged(format!("action {}: {error}", row.seq)));
                false
            }
        }
    })?;
    if let Some(error) = damaged {
        return Err(error);
    }
    Ok(Trace { hash: digest.finish(), has_checkpoint: within && !after })
}

fn blob(
    reader: &mut dyn Reader,
    session: &Id,
    digest: &Digest,
    form: BlobForm,
) -> Result<String, StoreError> {
    let (data, media_type) = reader
        .blob(session, digest)?
        .ok_or_else(|| StoreError::Damaged(format!("blob {digest} of session {session} is gone")))?;
    let resource = |data: String, encoding: &str| {
        json!({ "data": data, "encoding": encoding, "contentType": media_type }).to_string()
    };
    Ok(match form {
        BlobForm::Axp => json!({ "data": STANDARD.encode(data), "mediaType": media_type }).to_string(),
        BlobForm::Base64 => resource(STANDARD.encode(data), "base64"),
        BlobForm::Text => match String::from_utf8(data) {
            Ok(text) => resource(text, "utf-8"),
            Err(error) => resource(STANDARD.encode(error.into_bytes()), "base64"),
        },
    })
}

/// An answer that leaves in pieces. Once the client is gone, the rest is not produced.
struct Pieces {
    sender: Option<mpsc::Sender<Piece>>,
    buffer: Vec<u8>,
}

impl Pieces {
    fn push(&mut self, text: &str) {
        self.buffer.extend_from_slice(text.as_bytes());
        if self.buffer.len() >= PIECE
            && let Some(sender) = &self.sender
        {
            let piece = std::mem::replace(&mut self.buffer, Vec::with_capacity(PIECE + PIECE / 4));
            if sender.blocking_send(Piece::Part(piece)).is_err() {
                self.sender = None;
            }
        }
    }

    fn gone(&self) -> bool {
        self.sender.is_none()
    }

    fn finish(self) {
        if let Some(sender) = self.sender {
            // Nobody there any more: nothing is owed.
            let _ = sender.blocking_send(Piece::Last(self.buffer));
        }
    }
}

/// Streams a history: what is in memory of its log is a piece, however long it is.
fn export(reader: &mut dyn Reader, read: &ExportRead) -> Result<(), StoreError> {
    let mut out = Pieces { sender: read.to.outbox.stream(), buffer: Vec::new() };
    out.push(&format!(
        r#"{{"jsonrpc":"2.0","id":{},"result":{{"version":"{AXP_VERSION}","repository":{},"serverSeq":{},"seeds":["#,
        read.to.id,
        json!(read.repository),
        read.through
    ));
    let seeds = reader.seeds(&read.channels)?;
    push_snapshots(&mut out, seeds.iter().map(|(name, state, seq)| (name, state, *seq)));
    out.push(r#"],"snapshots":["#);
    push_snapshots(&mut out, read.snapshots.iter().map(|(name, state)| (name, state, read.through)));
    out.push(r#"],"actions":["#);
    let mut first = true;
    reader.actions(&read.channels, 0, read.through, &mut |row| {
        if !std::mem::take(&mut first) {
            out.push(",");
        }
        let origin = row.origin.as_ref().map(|o| o.get());
        out.push(&envelope(&row.channel, row.action.get(), row.seq, origin, None));
        !out.gone()
    })?;
    out.push("]}}");
    out.finish();
    Ok(())
}

fn push_snapshots<'a>(out: &mut Pieces, snapshots: impl Iterator<Item = (&'a String, &'a String, u64)>) {
    for (i, (resource, state, seq)) in snapshots.enumerate() {
        let comma = if i > 0 { "," } else { "" };
        out.push(&format!(r#"{comma}{{"resource":{},"state":"#, json!(resource)));
        out.push(state);
        out.push(&format!(r#","fromSeq":{seq}}}"#));
    }
}

/// An action envelope, put together from JSON that is written already.
pub(crate) fn envelope(
    channel: &str,
    action: &str,
    seq: u64,
    origin: Option<&str>,
    rejection: Option<&str>,
) -> String {
    let mut text = format!(r#"{{"channel":{},"action":{action},"serverSeq":{seq}"#, json!(channel));
    if let Some(origin) = origin {
        text.push_str(r#","origin":"#);
        text.push_str(origin);
    }
    if let Some(why) = rejection {
        text.push_str(r#","rejectionReason":"#);
        text.push_str(&json!(why).to_string());
    }
    text.push('}');
    text
}
