//! What a park keeps for its whole life: one grant, its ledger, one worktree.

use std::sync::{Arc, Mutex, PoisonError};

use axp_protocol::method::{BlobData, params};
use axp_protocol::scalar::Id;
use axp_protocol::shape::{Allowance, Checkpoint, ExchangeState};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::mpsc;

use super::checkpoint::{blocking, reporter};
use super::event::ParkEvent;
use super::journal::Journal;
use super::supervisor::{ParkError, ParkSpec};
use crate::budget::{Account, Ledger, LedgerError, Spending};
use crate::client::{AxpClient, random_id, text};
use crate::worktree::{Repository, Start, Worktree};

/// The ledger, shared with the turn that runs. Its writes are synced, so they run off the async threads.
#[derive(Debug, Clone)]
pub(super) struct SharedLedger(Arc<Mutex<Ledger>>);

impl SharedLedger {
    /// What it adds up to.
    pub(super) fn spending(&self) -> Spending {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).spending()
    }

    /// Writes, off the async threads.
    pub(super) async fn write(
        &self,
        change: impl FnOnce(&mut Ledger) -> Result<(), LedgerError> + Send + 'static,
    ) -> Result<(), ParkError> {
        let ledger = self.0.clone();
        let task = tokio::task::spawn_blocking(move || {
            change(&mut ledger.lock().unwrap_or_else(PoisonError::into_inner))
        });
        match task.await {
            Ok(result) => Ok(result?),
            Err(error) => Err(ParkError::Local(format!("the ledger could not be written: {error}"))),
        }
    }
}

/// One grant, one worktree.
#[derive(Debug)]
pub(super) struct Donation {
    pub(super) grant: Id,
    pub(super) executor: Id,
    pub(super) account: Account,
    pub(super) ledger: SharedLedger,
    pub(super) worktree: Worktree,
    pub(super) journal: Journal,
    /// Whether the host has acknowledged the grant.
    pub(super) granted: bool,
    /// Newest epoch that was ours.
    pub(super) epoch: Option<u64>,
    /// A claim whose answer was lost.
    pub(super) claim: Option<params::Claim>,
    /// Head of the newest checkpoint that was published.
    pub(super) published: Option<String>,
}

impl Donation {
    /// Makes the worktree, from the host's checkpoint where there is one, and opens the ledger.
    pub(super) async fn prepare(
        spec: &ParkSpec,
        client: &AxpClient,
        exchange: &ExchangeState,
        out: &mpsc::UnboundedSender<ParkEvent>,
    ) -> Result<Self, ParkError> {
        let grant = random_id();
        let account = Account {
            host: spec.credentials.url.clone(),
            repository: exchange.repository.clone(),
            session: spec.session.to_string(),
            grant: grant.to_string(),
        };
        let folder = spec.state_folder.clone();
        let (limit, opened) = (spec.limit, account.clone());
        let ledger = tokio::task::spawn_blocking(move || Ledger::open(&folder, &opened, limit))
            .await
            .map_err(|error| ParkError::Local(format!("the ledger could not be opened: {error}")))??;
        let worktree = worktree(spec, client, exchange.checkpoint.as_ref(), out).await?;
        Ok(Self {
            grant,
            executor: random_id(),
            account,
            ledger: SharedLedger(Arc::new(Mutex::new(ledger))),
            worktree,
            journal: Journal::default(),
            granted: false,
            epoch: None,
            claim: None,
            published: exchange.checkpoint.as_ref().map(|c| c.head_commit.to_string()),
        })
    }

    /// What may be spent: the smaller of the donor's own limit and the host's grant.
    pub(super) fn limit(&self, exchange: &ExchangeState) -> Allowance {
        let own = self.ledger.spending().limit;
        match exchange.grants.get(&self.grant) {
            Some(grant) => Allowance {
                tokens: own.tokens.min(grant.limit.tokens),
                cost_micros: own.cost_micros.min(grant.limit.cost_micros),
                turns: own.turns.min(grant.limit.turns),
            },
            None => own,
        }
    }
}

async fn worktree(
    spec: &ParkSpec,
    client: &AxpClient,
    checkpoint: Option<&Checkpoint>,
    out: &mpsc::UnboundedSender<ParkEvent>,
) -> Result<Worktree, ParkError> {
    let directory = spec.directory.clone();
    let name = spec.session.to_string();
    let progress = out.clone();
    let Some(checkpoint) = checkpoint else {
        return Ok(blocking(move || {
            Worktree::create(&Repository::discover(&directory)?, &name, Start::Head, &mut reporter(progress))
        })
        .await?);
    };
    let _ = out.send(ParkEvent::Progress { what: "downloading the checkpoint", done: 0, total: None });
    let bundle = download(client, &spec.session, checkpoint).await?;
    let (base, head) = (checkpoint.base_commit.to_string(), checkpoint.head_commit.to_string());
    Ok(blocking(move || {
        let start = Start::Bundle { path: bundle.path().to_owned(), base, head };
        Worktree::create(&Repository::discover(&directory)?, &name, start, &mut reporter(progress))
    })
    .await?)
}

/// Fetches a checkpoint's bundle into a temporary file and checks its digest.
///
/// # Errors
/// When the host does not give it, gives other bytes, or there is no room for it.
pub async fn download(
    client: &AxpClient,
    session: &Id,
    checkpoint: &Checkpoint,
) -> Result<tempfile::NamedTempFile, ParkError> {
    let get = params::BlobGet {
        channel: text(&format!("axp-session:/{session}"))?,
        digest: checkpoint.bundle.sha256.clone(),
    };
    let blob: BlobData = client.call::<params::BlobGet>(&get).await?;
    download_with(blob, checkpoint).map_err(ParkError::Local)
}

/// Puts a checkpoint's bundle into a temporary file after its digest was checked.
///
/// # Errors
/// A sentence, when these are other bytes, or there is no room for them.
pub fn download_with(blob: BlobData, checkpoint: &Checkpoint) -> Result<tempfile::NamedTempFile, String> {
    let failed = |error: &dyn std::fmt::Display| format!("the checkpoint's bundle: {error}");
    let data = STANDARD.decode(blob.data).map_err(|e| failed(&e))?;
    if axp_protocol::canonical::sha256_hex(&data) != checkpoint.bundle.sha256.as_str() {
        return Err(failed(&"the host sent other bytes than it names"));
    }
    let write = || -> std::io::Result<tempfile::NamedTempFile> {
        let mut file = tempfile::NamedTempFile::new()?;
        std::io::Write::write_all(&mut file, &data)?;
        Ok(file)
    };
    write().map_err(|e| failed(&e))
}
