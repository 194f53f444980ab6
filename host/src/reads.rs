//! Large reads beside the authority: blobs and exports, from committed data, one at a time.

use std::sync::mpsc::{Sender, channel};

use axp_protocol::AXP_VERSION;
use axp_protocol::ProtocolError;
use axp_protocol::canonical::{canonical, hex};
use axp_protocol::channel::Channel;
use axp_protocol::scalar::{Digest, Id};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::sync::OwnedSemaphorePermit;

use crate::authority::{Trace, error_frame};
use crate::outbox::Outbox;
use crate::rpc::RequestId;
use crate::store::{Reader, StoreError};

/// A read, and whom to answer.
pub(crate) enum ReadJob {
    /// Content of a blob; as an AHP resource, or as AXP gives it.
    Blob {
        session: Id,
        digest: Digest,
        resource: bool,
        id: RequestId,
        outbox: Outbox,
        permit: OwnedSemaphorePermit,
    },
    /// History of a session through a sequence number, with its newest states.
    Export {
        channels: Vec<Channel>,
        repository: String,
        through: u64,
        snapshots: Vec<(String, String)>,
        id: RequestId,
        outbox: Outbox,
        permit: OwnedSemaphorePermit,
    },
}

/// Hands reads to a thread of their own, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Reads {
    jobs: Sender<ReadJob>,
}

impl Reads {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub(crate) fn start(mut reader: Box<dyn Reader>) -> Result<Self, StoreError> {
        let (jobs, queue) = channel();
        std::thread::Builder::new()
            .name("reads".into())
            .spawn(move || {
                while let Ok(job) = queue.recv() {
                    answer(&mut *reader, job);
                }
            })
            .map_err(|source| StoreError::Io { path: "reads thread".into(), source })?;
        Ok(Self { jobs })
    }

    pub(crate) fn submit(&self, job: ReadJob) {
        // The thread lives as long as this sender.
        let _ = self.jobs.send(job);
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
    let mut digest = Sha256::new();
    digest.update(b"[");
    let mut first = true;
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
                if !std::mem::take(&mut first) {
                    digest.update(b",");
                }
                digest.update(canonical(&value).as_bytes());
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
    digest.update(b"]");
    Ok(Trace { hash: hex(&digest.finalize()), has_checkpoint: within && !after })
}

fn answer(reader: &mut dyn Reader, job: ReadJob) {
    let (result, id, outbox, permit) = match job {
        ReadJob::Blob { session, digest, resource, id, outbox, permit } => {
            (blob(reader, &session, &digest, resource), id, outbox, permit)
        }
        ReadJob::Export { channels, repository, through, snapshots, id, outbox, permit } => {
            (export(reader, &channels, &repository, through, &snapshots), id, outbox, permit)
        }
    };
    let frame = match result {
        Ok(result) => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
        Err(error) => {
            tracing::error!(%error, "a read failed");
            error_frame(Some(&id), &ProtocolError::internal("the host could not read this"))
        }
    };
    outbox.reply(frame);
    drop(permit);
}

fn blob(
    reader: &mut dyn Reader,
    session: &Id,
    digest: &Digest,
    resource: bool,
) -> Result<String, StoreError> {
    let (data, media_type) = reader
        .blob(session, digest)?
        .ok_or_else(|| StoreError::Damaged(format!("blob {digest} of session {session} is gone")))?;
    let data = STANDARD.encode(data);
    Ok(if resource {
        json!({ "data": data, "encoding": "base64", "contentType": media_type }).to_string()
    } else {
        json!({ "data": data, "mediaType": media_type }).to_string()
    })
}

fn export(
    reader: &mut dyn Reader,
    channels: &[Channel],
    repository: &str,
    through: u64,
    snapshots: &[(String, String)],
) -> Result<String, StoreError> {
    let snapshot = |resource: &str, state: &str, seq: u64| {
        format!(r#"{{"resource":{},"state":{state},"fromSeq":{seq}}}"#, json!(resource))
    };
    let seeds = reader.seeds(channels)?;
    let seeds =
        seeds.iter().map(|(name, state, seq)| snapshot(name, state, *seq)).collect::<Vec<_>>().join(",");
    let states =
        snapshots.iter().map(|(name, state)| snapshot(name, state, through)).collect::<Vec<_>>().join(",");
    let mut out = format!(
        r#"{{"version":"{AXP_VERSION}","repository":{},"serverSeq":{through},"seeds":[{seeds}],"snapshots":[{states}],"actions":["#,
        json!(repository)
    );
    let mut first = true;
    reader.actions(channels, 0, through, &mut |row| {
        if !std::mem::take(&mut first) {
            out.push(',');
        }
        let origin = row.origin.as_ref().map(|o| o.get());
        out.push_str(&envelope(&row.channel, row.action.get(), row.seq, origin, None));
        true
    })?;
    out.push_str("]}");
    Ok(out)
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
