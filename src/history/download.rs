//! An export, taken from the host as a stream: what is in memory of it is a piece, however long it is.

use std::fs::File;

use axp_protocol::ProtocolError;
use axp_protocol::channel::Channel;
use axp_protocol::method::{Method as _, params};
use axp_protocol::scalar::Id;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncSeekExt as _, AsyncWrite, AsyncWriteExt as _};

use super::archive::{Archive, HistoryError};
use super::extract::Extract;
use super::frames::Messages;
use crate::client::{self, ClientError, Credentials, HostInfo};

/// Largest message that is no export, and largest rest of an answer around its result, bytes.
const SMALL: usize = 4 * 1024 * 1024;
/// The ID of our only request after the greeting.
const EXPORT: u64 = 2;

/// Why a history was not fetched.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The host.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The disk here.
    #[error("the history cannot be kept: {0}")]
    Disk(#[from] std::io::Error),
    /// What the host sent.
    #[error("what the host sent cannot be used: {0}")]
    History(#[from] HistoryError),
}

/// Told the bytes so far.
pub type Progress<'a> = &'a mut (dyn FnMut(u64) + Send);

/// Fetches the history of a session into a temporary file and opens it. A lost connection is tried once more.
///
/// # Errors
/// When the host cannot be reached, refuses, falls silent or sends something else, or the disk is full.
pub async fn fetch(
    credentials: &Credentials,
    session: &Id,
    progress: Progress<'_>,
) -> Result<Archive, DownloadError> {
    let file = tempfile::tempfile()?;
    download(credentials, session, &file, progress).await?;
    open(file).await
}

/// Fetches the history of a session into a file, which it overwrites. A lost connection is tried once more.
///
/// # Errors
/// As [`fetch`], but what the file holds is not looked at.
pub async fn download(
    credentials: &Credentials,
    session: &Id,
    file: &File,
    progress: Progress<'_>,
) -> Result<(), DownloadError> {
    match attempt(credentials, session, file, progress).await {
        Err(DownloadError::Client(ClientError::Lost)) => attempt(credentials, session, file, progress).await,
        result => result,
    }
}

/// Opens a fetched history, off the async threads: a long one takes its time.
///
/// # Errors
/// When it is no whole history of one session.
pub async fn open(file: File) -> Result<Archive, DownloadError> {
    let opened = tokio::task::spawn_blocking(move || Archive::open(file)).await;
    Ok(opened.map_err(std::io::Error::other)??)
}

async fn attempt(
    credentials: &Credentials,
    session: &Id,
    file: &File,
    progress: Progress<'_>,
) -> Result<(), DownloadError> {
    let mut file = tokio::fs::File::from_std(file.try_clone()?);
    let mut messages = Messages::new(client::upgrade(credentials).await?.into_inner());
    let hello = client::hello(&format!("axp-{}", client::random_id()));
    let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello });
    messages.send("initialize", hello.to_string()).await?;
    HostInfo::of(&greeting(&mut messages).await?)?;

    let channel = client::text(&Channel::Exchange(session.clone()).to_string())?;
    let ask = json!({
        "jsonrpc": "2.0", "id": EXPORT, "method": params::Export::NAME, "params": params::Export { channel },
    });
    messages.send(params::Export::NAME, ask.to_string()).await?;
    // What else a host sends meanwhile is no answer.
    while !answer(&mut messages, &mut file, progress).await? {}
    Ok(())
}

/// An answer without its result.
#[derive(Debug, Deserialize)]
struct Rest {
    id: Option<Value>,
    error: Option<Refusal>,
}

#[derive(Debug, Deserialize)]
struct Refusal {
    code: i32,
    message: String,
    data: Option<Value>,
}

impl Refusal {
    fn error(self) -> ClientError {
        ProtocolError { code: self.code, message: self.message, data: self.data }.into()
    }
}

fn wrong(method: &str, why: impl ToString) -> ClientError {
    ClientError::Answer { method: method.to_owned(), why: why.to_string() }
}

/// The result of `initialize`.
async fn greeting<S: AsyncRead + AsyncWrite + Unpin>(
    messages: &mut Messages<S>,
) -> Result<Value, ClientError> {
    #[derive(Deserialize)]
    struct Greeting {
        result: Option<Value>,
        error: Option<Refusal>,
    }
    let mut text = vec![];
    loop {
        let part = messages.part().await?;
        text.extend(part.bytes);
        if text.len() > SMALL {
            return Err(wrong("initialize", "it is too long"));
        }
        if part.last {
            break;
        }
    }
    let greeting: Greeting = serde_json::from_slice(&text).map_err(|e| wrong("initialize", e))?;
    match greeting.error {
        Some(error) => Err(error.error()),
        None => Ok(greeting.result.unwrap_or_default()),
    }
}

/// Takes one message; whether it was the answer, whose result is in the file then.
async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    messages: &mut Messages<S>,
    file: &mut tokio::fs::File,
    progress: Progress<'_>,
) -> Result<bool, DownloadError> {
    file.rewind().await?;
    file.set_len(0).await?;
    let (mut extract, mut out, mut written) = (Extract::new(), vec![], 0u64);
    loop {
        let part = messages.part().await?;
        extract.push(&part.bytes, &mut out);
        if extract.rest().len() > SMALL {
            return Err(wrong(params::Export::NAME, "it is too long").into());
        }
        file.write_all(&out).await?;
        written += out.len() as u64;
        out.clear();
        progress(written);
        if part.last {
            break;
        }
    }
    file.flush().await?;
    let rest: Rest = serde_json::from_slice(extract.rest()).map_err(|e| wrong(params::Export::NAME, e))?;
    match rest.error {
        _ if rest.id != Some(json!(EXPORT)) => Ok(false),
        Some(error) => Err(error.error().into()),
        None => Ok(true),
    }
}
