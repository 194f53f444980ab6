//! The protocol engine between our line reader and the agent's standard input.

use std::sync::Arc;

use agent_client_protocol as acp;
use agent_client_protocol::{Agent, Client, ConnectionTo, Dispatch, Lines};
use futures_util::{sink, stream};
use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::inbound::Shared;
use super::lines::LineReader;

/// A running connection. Dropping or closing it closes the agent's standard input.
pub(super) struct Connection {
    pub(super) peer: ConnectionTo<Agent>,
    shut: CancellationToken,
    driver: JoinHandle<()>,
}

impl Connection {
    /// Connects; `None` if the connection ended before it began.
    pub(super) async fn open(stdin: ChildStdin, stdout: ChildStdout, shared: Arc<Shared>) -> Option<Self> {
        let reader = LineReader::new(stdout, Arc::clone(&shared.intake));
        let incoming = stream::unfold(reader, |mut reader| async move {
            let line = reader.next_line().await?;
            Some((Ok(line), reader))
        });
        let outgoing = sink::unfold(stdin, |mut stdin, line: String| async move {
            let mut bytes = line.into_bytes();
            bytes.push(b'\n');
            stdin.write_all(&bytes).await?;
            stdin.flush().await?;
            Ok::<_, std::io::Error>(stdin)
        });
        let transport = Lines::new(outgoing, incoming);

        let shut = CancellationToken::new();
        let (tell_peer, peer) = oneshot::channel();
        let until = shut.clone();
        // The version-neutral builder: ours is the word on an agent's protocol version, and on updates that are not
        // in the schema.
        let builder = acp::Builder::new(Client).name("axp").on_receive_dispatch(
            async move |message: Dispatch, _peer: ConnectionTo<Agent>| shared.dispatch(message),
            acp::on_receive_dispatch!(),
        );
        let driver = tokio::spawn(async move {
            let running = builder.connect_with(transport, async move |peer: ConnectionTo<Agent>| {
                let _ = tell_peer.send(peer);
                until.cancelled().await;
                Ok(())
            });
            if let Err(error) = running.await {
                tracing::debug!(code = i32::from(error.code), "connection to the agent ended");
            }
        });
        let peer = peer.await.ok()?;
        Some(Self { peer, shut, driver })
    }

    /// Closes the agent's standard input, once what was sent has been written or can no longer be.
    pub(super) async fn close(mut self, patience: std::time::Duration) {
        self.shut.cancel();
        if tokio::time::timeout(patience, &mut self.driver).await.is_err() {
            self.driver.abort();
            let _ = (&mut self.driver).await;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
