//! One agent process with one ACP session.

use std::collections::HashSet;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use agent_client_protocol as acp;
use agent_client_protocol::UntypedMessage;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::connection::Connection;
use super::error::AgentError;
use super::inbound::Shared;
use super::lines::{Intake, Noise};
use super::permission::PermissionBook;
use super::process::{AgentSpec, Process};
use super::text::label;

/// How long a cancelled turn has to end.
pub(super) const CANCEL_GRACE: Duration = Duration::from_secs(2);
/// How long stragglers of a turn are awaited before the next one: what is read after it began is taken for its own.
pub(super) const STRAGGLERS: Duration = Duration::from_millis(50);
/// How long an agent has to end by itself once its input is closed.
const CLOSE_GRACE: Duration = Duration::from_millis(500);
/// How long output may still arrive when the process has ended: a child of its may hold the pipe.
pub(super) const OUTPUT_GRACE: Duration = Duration::from_secs(1);
/// Steps after `initialize` may load models or ask a server.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// What an agent told about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentInfo {
    /// Its name, or that of its program.
    pub name: String,
    /// Its version, where it tells one.
    pub version: Option<String>,
    /// The IDs of the authentication methods it lists.
    pub auth_methods: Vec<String>,
}

/// A running agent. Dropping it kills its processes; [`stop`](Self::stop) ends them in good order.
pub struct Agent {
    pub(super) info: AgentInfo,
    pub(super) session: String,
    pub(super) cwd: PathBuf,
    pub(super) process: Arc<Process>,
    pub(super) connection: Option<Connection>,
    pub(super) shared: Arc<Shared>,
    /// Tool call IDs that earlier turns used.
    pub(super) taken: HashSet<String>,
    pub(super) prompts: u64,
    pub(super) cancel_sent: bool,
    /// When the session or the last turn was over.
    pub(super) idle_since: Instant,
}

/// Kills an agent from anywhere. Clones are cheap; an agent that is gone is left alone.
#[derive(Clone)]
pub struct AgentKiller {
    process: Weak<Process>,
}

impl AgentKiller {
    /// Kills the whole process tree without waiting for it.
    pub fn kill_now(&self) {
        if let Some(process) = self.process.upgrade() {
            process.kill_now();
        }
    }
}

impl Agent {
    /// Starts the agent and its session.
    ///
    /// # Errors
    ///
    /// When the program cannot be started, does not speak ACP v1, refuses a step or does not answer in time. Nothing
    /// of it is left running then.
    pub async fn start(spec: &AgentSpec) -> Result<Self, AgentError> {
        let (process, stdin, stdout) = Process::spawn(spec)?;
        let shared = Arc::new(Shared::new(Arc::new(Intake::new())));
        let connection = Connection::open(stdin, stdout, Arc::clone(&shared)).await;
        let mut agent = Self {
            info: AgentInfo::default(),
            session: String::new(),
            cwd: std::path::absolute(&spec.cwd).unwrap_or_else(|_| spec.cwd.clone()),
            process: Arc::new(process),
            connection,
            shared,
            taken: HashSet::new(),
            prompts: 0,
            cancel_sent: false,
            idle_since: Instant::now(),
        };
        match agent.open_session(spec).await {
            Ok(()) => Ok(agent),
            Err(error) => {
                agent.connection = None;
                agent.process.end().await;
                Err(error)
            }
        }
    }

    /// What the agent told about itself.
    #[must_use]
    pub fn info(&self) -> &AgentInfo {
        &self.info
    }

    /// What the agent wrote beside the protocol so far.
    #[must_use]
    pub fn noise(&self) -> Noise {
        self.shared.intake.noise()
    }

    /// The open permission requests. The handle stays good while a turn runs.
    #[must_use]
    pub fn permissions(&self) -> PermissionBook {
        self.shared.permissions.clone()
    }

    /// A handle that kills the agent, also while a turn runs.
    #[must_use]
    pub fn killer(&self) -> AgentKiller {
        AgentKiller { process: Arc::downgrade(&self.process) }
    }

    /// Kills the whole process tree without waiting for it.
    pub fn kill_now(&self) {
        self.process.kill_now();
    }

    /// Waits for the end of the agent's process and tells how it ended.
    pub fn exited(&self) -> impl Future<Output = AgentError> + Send + use<> {
        self.process.exit().ended()
    }

    /// Ends the agent: a running turn is cancelled and has 2 s, its input is closed, then the whole tree gets SIGTERM,
    /// 1.5 s, and SIGKILL. Nothing is left when this returns.
    pub async fn stop(mut self) {
        if self.is_unanswered() && !self.cancel_sent {
            self.send_cancel();
            let mut answered = self.shared.answered.subscribe();
            let prompts = self.prompts;
            tokio::select! {
                _ = answered.wait_for(|count| *count >= prompts) => {}
                _ = self.exited() => {}
                () = sleep(CANCEL_GRACE) => {}
            }
        }
        self.shared.permissions.end_turn();
        if let Some(connection) = self.connection.take() {
            connection.close(CLOSE_GRACE).await;
        }
        let _ = timeout(CLOSE_GRACE, self.exited()).await;
        self.process.end().await;
    }

    /// Whether a prompt was sent and has not been answered.
    pub(super) fn is_unanswered(&self) -> bool {
        self.prompts > *self.shared.answered.borrow()
    }

    /// Tells the agent to end its turn. One that is gone needs no telling.
    pub(super) fn send_cancel(&mut self) {
        self.cancel_sent = true;
        let params = json!({ "sessionId": self.session });
        if let (Some(connection), Ok(cancel)) =
            (&self.connection, UntypedMessage::new("session/cancel", params))
        {
            let _ = connection.peer.send_notification(cancel);
        }
    }

    /// Why the agent no longer answers.
    pub(super) async fn lost(&self) -> AgentError {
        if let Some(fault) = self.shared.intake.fault() {
            return fault;
        }
        match timeout(OUTPUT_GRACE, self.exited()).await {
            Ok(error) => error,
            Err(_) => AgentError::OutputClosed { stderr: self.process.stderr() },
        }
    }

    async fn open_session(&mut self, spec: &AgentSpec) -> Result<(), AgentError> {
        let hello = json!({
            "protocolVersion": 1,
            "clientCapabilities": {"fs": {"readTextFile": false, "writeTextFile": false}, "terminal": false},
            "clientInfo": {"name": "axp", "title": "AXP", "version": env!("CARGO_PKG_VERSION")},
        });
        let answer = self.step("initialize", hello, spec.start_timeout).await?;
        if answer["protocolVersion"] != 1 {
            let offered = label(&answer["protocolVersion"].to_string(), 40);
            return Err(AgentError::ProtocolVersion { offered });
        }
        self.info = read_info(&answer, spec);

        let patience = spec.start_timeout.max(STEP_TIMEOUT);
        if let Some(method) = &spec.auth_method {
            if !self.info.auth_methods.contains(method) {
                let offered = self.info.auth_methods.clone();
                return Err(AgentError::AuthMethod { asked: method.clone(), offered });
            }
            self.step("authenticate", json!({ "methodId": method }), patience).await?;
        }
        self.new_session(patience).await
    }

    /// Leaves the ACP session behind and opens another in the same process: what was said so far is forgotten.
    ///
    /// # Errors
    ///
    /// When the agent refuses, does not answer in time, or is gone. It should be stopped then.
    pub async fn fresh_session(&mut self) -> Result<(), AgentError> {
        if self.is_unanswered() {
            return Err(AgentError::Busy);
        }
        self.new_session(STEP_TIMEOUT).await?;
        // Its total may begin anew. One that goes on is charged twice rather than not at all.
        *self.shared.cost.lock().unwrap_or_else(PoisonError::into_inner) = Default::default();
        Ok(())
    }

    async fn new_session(&mut self, patience: Duration) -> Result<(), AgentError> {
        let session = json!({ "cwd": self.cwd, "mcpServers": [] });
        let answer = self.step("session/new", session, patience).await.map_err(|error| match error {
            AgentError::Refused { code: -32000, message, .. } => {
                AgentError::AuthRequired { message, offered: self.info.auth_methods.clone() }
            }
            other => other,
        })?;
        let Some(id) = answer["sessionId"].as_str() else {
            return Err(AgentError::BadAnswer {
                method: "session/new",
                reason: "it has no session ID".into(),
            });
        };
        self.session = id.to_owned();
        self.shared.set_session(id);
        self.idle_since = Instant::now();
        Ok(())
    }

    async fn step(
        &self,
        method: &'static str,
        params: Value,
        patience: Duration,
    ) -> Result<Value, AgentError> {
        let Some(connection) = &self.connection else { return Err(self.lost().await) };
        let request =
            UntypedMessage::new(method, params).map_err(|error| AgentError::refused(method, &error))?;
        let dead = async {
            self.exited().await;
            sleep(OUTPUT_GRACE).await;
        };
        tokio::select! {
            answer = connection.peer.send_request(request).block_task() => match answer {
                Ok(value) => Ok(value),
                Err(error) if is_disconnected(&error) => Err(self.lost().await),
                Err(error) => Err(AgentError::refused(method, &error)),
            },
            () = dead => Err(self.lost().await),
            () = sleep(patience) => {
                Err(AgentError::StartTimeout { method, timeout: patience, stderr: self.process.stderr() })
            }
        }
    }
}

/// Whether a request failed because the connection ended, not because the agent said so.
pub(super) fn is_disconnected(error: &acp::Error) -> bool {
    acp::is_incoming_transport_closed(error) || acp::is_connection_terminated(error)
}

fn read_info(answer: &Value, spec: &AgentSpec) -> AgentInfo {
    let text = |value: &Value| value.as_str().map(|text| label(text, 128)).filter(|text| !text.is_empty());
    let program = PathBuf::from(&spec.program);
    let file = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    // A terminal method is a command for the user, not something to call.
    let callable = |method: &&Value| method["type"] != "terminal";
    let methods = answer["authMethods"].as_array().map(Vec::as_slice).unwrap_or_default();
    AgentInfo {
        name: text(&answer["agentInfo"]["name"]).unwrap_or(file),
        version: text(&answer["agentInfo"]["version"]),
        auth_methods: methods
            .iter()
            .filter(callable)
            .filter_map(|m| Some(m["id"].as_str()?.to_owned()))
            .collect(),
    }
}
