//! Sends a turn's output to the host: blobs first, then actions, batched while a call is in flight.

use ahp_types::StateAction;
use axp_protocol::limits::BLOB_BYTES;
use axp_protocol::method::{AhpAction, params};
use axp_protocol::scalar::{Id, List, Uint};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::mpsc;

use crate::acp::Emission;
use crate::client::{AxpClient, ClientError, operation_id, text};

/// Actions of one call (protocol section 6).
const ACTIONS: usize = 64;
/// Bytes of actions in one call: an ordinary frame, less what goes around them.
const BYTES: usize = 56 * 1024;
/// Characters of one delta (protocol section 9).
const DELTA_CHARS: usize = 4096;

/// Where a turn's output goes.
#[derive(Debug, Clone)]
pub(super) struct Emitter {
    pub(super) client: AxpClient,
    pub(super) session: Id,
    pub(super) epoch: u64,
}

/// Actions that wait for the next call.
#[derive(Debug, Default)]
struct Batch {
    actions: Vec<StateAction>,
    sizes: Vec<usize>,
}

impl Batch {
    fn add(&mut self, action: StateAction) {
        if let (Some(StateAction::ChatDelta(last)), StateAction::ChatDelta(next)) =
            (self.actions.last_mut(), &action)
            && last.part_id == next.part_id
            && last.turn_id == next.turn_id
            && last.content.chars().count() + next.content.chars().count() <= DELTA_CHARS
        {
            last.content.push_str(&next.content);
            if let Some(size) = self.sizes.last_mut() {
                // Escapes can make a character six bytes long.
                *size += next.content.len() * 6;
            }
            return;
        }
        self.sizes.push(serde_json::to_string(&action).map_or(0, |json| json.len()));
        self.actions.push(action);
    }

    /// As much from the front as one call may carry.
    fn take(&mut self) -> Vec<StateAction> {
        let mut bytes = 0;
        let mut count = 0;
        for size in &self.sizes {
            bytes += size + 1;
            if count == ACTIONS || (count > 0 && bytes > BYTES) {
                break;
            }
            count += 1;
        }
        self.sizes.drain(..count);
        self.actions.drain(..count).collect()
    }
}

impl Emitter {
    /// Sends everything that arrives until the sender is gone.
    ///
    /// # Errors
    /// When the connection is lost or the host refuses; what arrives later is not sent.
    pub(super) async fn run(self, mut output: mpsc::Receiver<Emission>) -> Result<(), ClientError> {
        let mut batch = Batch::default();
        loop {
            if batch.actions.is_empty() {
                let Some(emission) = output.recv().await else { return Ok(()) };
                self.accept(&mut batch, emission).await?;
            }
            while batch.actions.len() < ACTIONS {
                let Ok(emission) = output.try_recv() else { break };
                self.accept(&mut batch, emission).await?;
            }
            while !batch.actions.is_empty() {
                self.emit(batch.take()).await?;
            }
        }
    }

    async fn accept(&self, batch: &mut Batch, emission: Emission) -> Result<(), ClientError> {
        for blob in emission.blobs {
            self.upload(&blob.data, &blob.media_type).await?;
        }
        for action in emission.actions {
            batch.add(action);
        }
        Ok(())
    }

    /// Stores content for the session.
    pub(super) async fn upload(
        &self,
        data: &[u8],
        media_type: &str,
    ) -> Result<axp_protocol::shape::BlobRef, ClientError> {
        if data.len() > BLOB_BYTES {
            let message = format!("content of {} bytes; a host takes at most {BLOB_BYTES}", data.len());
            return Err(axp_protocol::ProtocolError::limit(message).into());
        }
        let put = params::BlobPut {
            channel: text(&format!("axp-session:/{}", self.session))?,
            operation_id: operation_id(),
            data: text(&STANDARD.encode(data))?,
            media_type: text(media_type)?,
        };
        self.client.call::<params::BlobPut>(&put).await
    }

    async fn emit(&self, actions: Vec<StateAction>) -> Result<(), ClientError> {
        let actions = actions.into_iter().map(|a| AhpAction(Box::new(a))).collect();
        let emit = params::Emit {
            channel: text(&format!("axp-session:/{}", self.session))?,
            operation_id: operation_id(),
            epoch: Uint::clamped(self.epoch),
            actions: List::new(actions).map_err(axp_protocol::ProtocolError::internal)?,
        };
        self.client.call::<params::Emit>(&emit).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ahp_types::actions::ChatDeltaAction;

    fn delta(part: &str, content: &str) -> StateAction {
        StateAction::ChatDelta(ChatDeltaAction {
            turn_id: "t".into(),
            part_id: part.into(),
            content: content.into(),
            meta: None,
        })
    }

    #[test]
    fn neighbouring_deltas_join() {
        let mut batch = Batch::default();
        for (part, text) in [("a", "one "), ("a", "two"), ("b", "x"), ("a", "three")] {
            batch.add(delta(part, text));
        }
        batch.add(delta("a", &"y".repeat(4096)));
        let texts: Vec<_> = batch.take();
        assert_eq!(texts[..3], [delta("a", "one two"), delta("b", "x"), delta("a", "three")]);
        assert_eq!(texts.len(), 4);
    }

    #[test]
    fn a_call_stays_within_its_frame() {
        let mut batch = Batch::default();
        for n in 0..100 {
            batch.add(delta(&n.to_string(), &"\u{1}".repeat(900)));
        }
        let mut sent = 0;
        while !batch.actions.is_empty() {
            let actions = batch.take();
            assert!(actions.len() <= ACTIONS && !actions.is_empty());
            assert!(serde_json::to_string(&actions).unwrap().len() <= 60 * 1024);
            sent += actions.len();
        }
        assert_eq!(sent, 100);
    }
}
