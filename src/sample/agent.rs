//! The agent's side of ACP: sessions, prompts, cancellation.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use agent_client_protocol as acp;
use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::schema::{
    CancelNotification, Implementation, InitializeRequest, InitializeResponse, NewSessionRequest,
    NewSessionResponse, PromptRequest,
};
use agent_client_protocol::{Agent, ByteStreams};
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};
use tokio_util::sync::CancellationToken;

use super::turn::Turn;

/// A session's folder, its turns so far, and the handle that cancels the running one.
#[derive(Clone)]
struct Session {
    cwd: PathBuf,
    turns: u64,
    cancel: CancellationToken,
}

#[derive(Clone, Default)]
struct Sessions(Arc<Mutex<HashMap<String, Session>>>);

impl Sessions {
    fn open(&self, cwd: PathBuf) -> String {
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let id = format!("sample-{}", sessions.len() + 1);
        sessions.insert(id.clone(), Session { cwd, turns: 0, cancel: CancellationToken::new() });
        id
    }

    fn begin_turn(&self, id: &str) -> Option<Session> {
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let session = sessions.get_mut(id)?;
        session.turns += 1;
        session.cancel = CancellationToken::new();
        Some(session.clone())
    }

    fn cancel(&self, id: &str) {
        if let Some(session) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(id) {
            session.cancel.cancel();
        }
    }
}

/// Speaks ACP v1 on standard input and output until the input ends.
pub fn run() -> ExitCode {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return ExitCode::FAILURE;
    };
    let served = runtime.block_on(serve());
    // A read of standard input cannot be called off, and nothing else is left to wait for.
    runtime.shutdown_background();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sample agent: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> Result<(), acp::Error> {
    let transport = ByteStreams::new(tokio::io::stdout().compat_write(), tokio::io::stdin().compat());
    let sessions = Sessions::default();
    let (opening, prompting, cancelling) = (sessions.clone(), sessions.clone(), sessions);
    Agent
        .v1()
        .name("sample")
        .on_receive_request(
            async move |_hello: InitializeRequest, responder, _client| {
                let info = Implementation::new("axp-sample", env!("CARGO_PKG_VERSION"));
                responder.respond(InitializeResponse::new(ProtocolVersion::V1).agent_info(info))
            },
            acp::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: NewSessionRequest, responder, _client| {
                responder.respond(NewSessionResponse::new(opening.open(request.cwd)))
            },
            acp::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: PromptRequest, responder, client: acp::v1::ConnectionTo<acp::Client>| {
                let Some(session) = prompting.begin_turn(&request.session_id.0) else {
                    return responder
                        .respond_with_error(acp::Error::invalid_params().data("no such session"));
                };
                let turn = Turn::new(client.clone(), request, session.cwd, session.turns, session.cancel);
                client.spawn(async move { responder.respond_with_result(turn.run().await) })
            },
            acp::on_receive_request!(),
        )
        .on_receive_notification(
            async move |cancel: CancelNotification, _client| {
                cancelling.cancel(&cancel.session_id.0);
                Ok(())
            },
            acp::on_receive_notification!(),
        )
        .connect_to(transport)
        .await
}
