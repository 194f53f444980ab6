//! Agents to be driven: the sample agent, and shell scripts that misbehave on purpose.

use std::ffi::OsString;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ahp_types::actions::StateAction;
use axp::acp::{Agent, AgentError, AgentSpec, Decision, TurnContext, TurnEnd, TurnEvent};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub(crate) const AXP: &str = env!("CARGO_BIN_EXE_axp");

const LOOK: Duration = Duration::from_millis(5);

/// What every script begins with: read a message, answer it, say hello.
const PRELUDE: &str = r#"
next() { IFS= read -r line || exit 0; id=$(printf '%s' "$line" | sed 's/.*"id":\([^,}]*\).*/\1/'); }
reply() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
update() { printf '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":%s}}\n' "$1"; }
say() { update '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"'"$1"'"}}'; }
hello() { next; reply '{"protocolVersion":1,"agentInfo":{"name":"script","version":"1"}}'; next; reply '{"sessionId":"s"}'; }
"#;

/// Fails instead of hanging: nothing here takes as long as a minute.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(Duration::from_secs(60), future).await;
    waited.unwrap_or_else(|_| panic!("still waiting for: {what}"))
}

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// A folder with the sample agent's project.
pub(crate) fn project() -> TempDir {
    let folder = folder();
    for (path, contents, _) in axp::sample::scratch_project() {
        std::fs::write(folder.path().join(path), contents).expect("a project file");
    }
    folder
}

pub(crate) fn sample(cwd: &Path) -> AgentSpec {
    let mut spec = AgentSpec::new(AXP, vec![axp::sample::SAMPLE_COMMAND.into()], cwd);
    spec.start_timeout = Duration::from_secs(50);
    spec.guard = Some(PathBuf::from(AXP));
    spec
}

/// A shell script as an agent, in this folder.
pub(crate) fn script(cwd: &Path, body: &str) -> AgentSpec {
    let path = cwd.join("agent.sh");
    std::fs::write(&path, format!("{PRELUDE}\n{body}\n")).expect("a script");
    let mut spec = AgentSpec::new("sh", vec![OsString::from(path)], cwd);
    spec.start_timeout = Duration::from_secs(50);
    spec
}

pub(crate) async fn start(spec: &AgentSpec) -> Result<Agent, AgentError> {
    soon("the agent's start", Agent::start(spec)).await
}

pub(crate) fn context(turn_id: &str) -> TurnContext {
    TurnContext { turn_id: turn_id.into(), blob_base: "axp-blob:/s/".into(), ceiling_micros: 1_500 }
}

/// What a turn brought.
pub(crate) struct Ran {
    pub(crate) end: Result<TurnEnd, AgentError>,
    pub(crate) events: Vec<TurnEvent>,
}

impl Ran {
    pub(crate) fn actions(&self) -> impl Iterator<Item = &StateAction> {
        self.events.iter().flat_map(|event| match event {
            TurnEvent::Emit(emission) => emission.actions.as_slice(),
            TurnEvent::Cost { .. } => &[],
        })
    }

    pub(crate) fn text(&self) -> String {
        let texts = self.actions().filter_map(|action| match action {
            StateAction::ChatDelta(delta) => Some(delta.content.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// Whether each completed tool succeeded, by name.
    pub(crate) fn results(&self) -> Vec<(String, bool)> {
        let completed = self.actions().filter_map(|action| match action {
            StateAction::ChatToolCallComplete(done) => {
                Some((done.result.past_tense_message.as_text().to_owned(), done.result.success))
            }
            _ => None,
        });
        completed.collect()
    }

    /// The tool calls a choice was offered for.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.actions().filter_map(asks).collect()
    }
}

/// The tool call that an action asks a permission for.
pub(crate) fn asks(action: &StateAction) -> Option<String> {
    match action {
        StateAction::ChatToolCallReady(ready) if ready.options.is_some() => Some(ready.tool_call_id.clone()),
        _ => None,
    }
}

/// Runs a turn; `react` sees each event as it comes.
pub(crate) async fn turn(
    agent: &mut Agent,
    turn_id: &str,
    text: &str,
    mut react: impl FnMut(&TurnEvent, &CancellationToken),
) -> Ran {
    let (sink, mut events) = mpsc::channel(4);
    let cancel = CancellationToken::new();
    let mut seen = Vec::new();
    let prompt = agent.prompt(context(turn_id), vec![text.to_owned()], sink, cancel.clone());
    let collect = async {
        while let Some(event) = events.recv().await {
            react(&event, &cancel);
            seen.push(event);
        }
    };
    let (end, ()) = soon("the turn's end", async { tokio::join!(prompt, collect) }).await;
    Ran { end, events: seen }
}

/// Runs a turn and answers every question the same way.
pub(crate) async fn answered(agent: &mut Agent, turn_id: &str, text: &str, approved: bool) -> Ran {
    let book = agent.permissions();
    turn(agent, turn_id, text, |event, _| {
        if let TurnEvent::Emit(emission) = event {
            for id in emission.actions.iter().filter_map(asks) {
                book.decide(&id, &Decision { approved, option_id: None }).expect("the question is open");
            }
        }
    })
    .await
}

/// Whether a process is there and no zombie.
pub(crate) fn lives(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next().map(str::to_owned));
    state.is_some_and(|state| state != "Z" && state != "X")
}

/// Waits until the file holds this many process IDs.
pub(crate) async fn pids(file: &Path, count: usize) -> Vec<i32> {
    let read = || {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<i32>>()
    };
    soon("process IDs", async {
        while read().len() < count {
            tokio::time::sleep(LOOK).await;
        }
    })
    .await;
    read()
}

/// Waits until none of these processes is there.
pub(crate) async fn gone(pids: &[i32]) {
    soon("the end of all processes", async {
        while pids.iter().any(|pid| lives(*pid)) {
            tokio::time::sleep(LOOK).await;
        }
    })
    .await;
}
