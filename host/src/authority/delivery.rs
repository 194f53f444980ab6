//! What goes out once a transaction is durable: events to who is subscribed, answers to who asked.

use axp_protocol::ProtocolError;
use axp_protocol::channel::Channel;
use axp_protocol::scalar::Id;
use tokio::sync::OwnedSemaphorePermit;

use super::ConnectionId;
use super::decide::Answer;
use super::engine::Engine;
use super::frames::{error_frame, result_frame};
use super::state::Session;
use crate::outbox::Frame;
use crate::reads::{Asker, BlobForm, BlobRead, ExportRead};
use crate::rpc::RequestId;

/// What goes out once the transaction is durable, in order.
pub(super) enum Output {
    Event { channel: Channel, frame: Frame },
    Summary { session: Id, frame: Frame },
    Answer { connection: ConnectionId, id: RequestId, answer: Answer, permit: OwnedSemaphorePermit },
    Refused { connection: ConnectionId, id: RequestId, error: ProtocolError, permit: OwnedSemaphorePermit },
    Echo { connection: ConnectionId, frame: Frame },
}

impl Engine {
    pub(super) fn send(&mut self, output: Output) {
        match output {
            Output::Event { channel, frame } => {
                for id in self.subscribers.get(&channel).into_iter().flatten() {
                    if let Some(connection) = self.connections.get(id) {
                        connection.outbox.event(&frame);
                    }
                }
            }
            Output::Summary { session, frame } => {
                for id in self.subscribers.get(&Channel::Root).into_iter().flatten() {
                    if let Some(connection) = self.connections.get(id)
                        && connection.principal.reads(&session)
                    {
                        connection.outbox.event(&frame);
                    }
                }
            }
            Output::Echo { connection, frame } => {
                if let Some(connection) = self.connections.get(&connection) {
                    connection.outbox.event(&frame);
                }
            }
            Output::Refused { connection, id, error, permit } => {
                if let Some(connection) = self.connections.get(&connection) {
                    connection.outbox.reply(error_frame(Some(&id), &error));
                }
                drop(permit);
            }
            Output::Answer { connection, id, answer, permit } => {
                let Some(connection) = self.connections.get(&connection) else { return };
                let outbox = connection.outbox.clone();
                match answer {
                    Answer::Json(result) => {
                        outbox.reply(result_frame(&id, &result));
                        drop(permit);
                    }
                    Answer::Blob { session, digest } => {
                        let to = Asker { id, outbox, permit };
                        self.reads.blob(BlobRead { session, digest, form: BlobForm::Axp, to });
                    }
                    Answer::Resource { session, digest, text } => {
                        let to = Asker { id, outbox, permit };
                        let form = if text { BlobForm::Text } else { BlobForm::Base64 };
                        self.reads.blob(BlobRead { session, digest, form, to });
                    }
                    Answer::Export { session } => {
                        let channels = Session::channels(&session);
                        let state = |c: &Channel| Some((c.to_string(), self.state.snapshot(c)?.ok()?));
                        let read = ExportRead {
                            repository: self.state.repository.clone(),
                            through: self.state.seq,
                            snapshots: channels.iter().filter_map(state).collect(),
                            channels: channels.to_vec(),
                            to: Asker { id, outbox, permit },
                        };
                        self.reads.export(self.store.reader(), read);
                    }
                }
            }
        }
    }
}
