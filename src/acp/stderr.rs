//! The end of what an agent writes to its standard error.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt};

use tokio_util::sync::CancellationToken;

use super::text::strip_controls;

/// How much of it is kept.
pub(super) const TAIL: usize = 8 * 1024;

/// The last bytes written.
#[derive(Clone, Default)]
pub(super) struct Tail {
    bytes: Arc<Mutex<VecDeque<u8>>>,
    complete: CancellationToken,
}

impl Tail {
    /// Reads until the end, so that the agent is never blocked by a full pipe.
    pub(super) async fn drain(self, mut source: impl AsyncRead + Unpin) {
        let mut chunk = vec![0; TAIL];
        while let Ok(count @ 1..) = source.read(&mut chunk).await {
            let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
            bytes.extend(&chunk[..count]);
            let surplus = bytes.len().saturating_sub(TAIL);
            bytes.drain(..surplus);
        }
        self.complete.cancel();
    }

    /// Waits until everything has been read.
    pub(super) async fn complete(&self) {
        self.complete.cancelled().await;
    }

    /// The kept text, without control sequences.
    pub(super) fn text(&self) -> String {
        let bytes: Vec<u8> =
            self.bytes.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        strip_controls(&String::from_utf8_lossy(&bytes)).trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_end_is_kept() {
        let tail = Tail::default();
        let mut written = vec![b'x'; 3 * TAIL];
        written.extend_from_slice(b"\x1b[31mfatal\x1b[0m: no key\r\n");
        tail.clone().drain(written.as_slice()).await;
        let text = tail.text();
        assert!(text.ends_with("xfatal: no key"), "{text}");
        assert!(text.len() <= TAIL);
    }
}
