//! Renews a lease every third of its length, and says when it can no longer be relied on.

use std::time::Duration;

use axp_protocol::method::params;
use axp_protocol::scalar::{Id, Uint};
use axp_protocol::shape::Lease;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::budget::LeaseClock;
use crate::client::{AxpClient, ClientError, operation_id, text};

/// Why a lease ended.
#[derive(Debug)]
pub(super) enum LeaseEnd {
    /// The host did not renew it.
    NotRenewed(ClientError),
    /// It ran out by this machine's clock, asleep perhaps.
    RanOut,
}

/// A lease as it was claimed.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) lease: Lease,
    /// When its claim, or first renewal, was sent.
    pub(super) sent: Duration,
    /// The executor's registration, which is kept up with the lease.
    pub(super) registration: params::Register,
}

/// The renewing task; it ends with this.
#[derive(Debug)]
pub(super) struct Heartbeat {
    ended: oneshot::Receiver<LeaseEnd>,
    task: JoinHandle<()>,
}

impl Heartbeat {
    /// Keeps a lease.
    pub(super) fn start(client: &AxpClient, session: &Id, held: &Held) -> Self {
        let Held { lease, sent, registration } = held;
        let (sent, registration) = (*sent, registration.clone());
        let period = Duration::from_millis(lease.heartbeat_ms.max(100));
        // A silent, half-open connection is noticed within a third of the lease.
        let client = client.with_timeout(period);
        let clock = LeaseClock::new(period * 3, sent);
        let (report, ended) = oneshot::channel();
        let channel = format!("axp-session:/{session}");
        let epoch = Uint::clamped(lease.epoch);
        let task = tokio::spawn(async move {
            let end = keep(client, channel, epoch, clock, period, registration).await;
            // Nobody to tell: the runner is over.
            let _ = report.send(end);
        });
        Self { ended, task }
    }

    /// Resolves when the lease can no longer be relied on.
    pub(super) async fn ended(&mut self) -> LeaseEnd {
        (&mut self.ended).await.unwrap_or(LeaseEnd::RanOut)
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep(
    client: AxpClient,
    channel: String,
    epoch: Uint,
    mut clock: LeaseClock,
    period: Duration,
    registration: params::Register,
) -> LeaseEnd {
    let ttl = Duration::from_millis(registration.ttl_ms.get());
    let mut registered = LeaseClock::now();
    loop {
        // The first renewal is due a period after the claim was sent, which may be a while ago.
        let waited = (period * 3).saturating_sub(clock.left(LeaseClock::now()));
        tokio::time::sleep(period.saturating_sub(waited)).await;
        let sent = LeaseClock::now();
        if clock.left(sent).is_zero() {
            return LeaseEnd::RanOut;
        }
        let channel = match text(&channel) {
            Ok(channel) => channel,
            Err(error) => return LeaseEnd::NotRenewed(error),
        };
        let renew = params::Renew { channel, operation_id: operation_id(), epoch };
        match client.call::<params::Renew>(&renew).await {
            Ok(_) => clock.renewed(sent),
            Err(error) => return LeaseEnd::NotRenewed(error),
        }
        if sent.saturating_sub(registered) >= ttl / 3 {
            registered = sent;
            let again = params::Register { operation_id: operation_id(), ..registration.clone() };
            // The lease does not depend on it: it is how others see that this executor is here.
            if let Err(error) = client.call::<params::Register>(&again).await {
                tracing::debug!(%error, "the executor's registration was not refreshed");
            }
        }
    }
}
