//! What the sample agent does with a prompt.

use std::path::PathBuf;
use std::time::Duration;

use agent_client_protocol as acp;
use agent_client_protocol::Client;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    ContentBlock, ContentChunk, Cost, Diff, PermissionOption, PermissionOptionKind, PromptRequest,
    PromptResponse, RequestPermissionOutcome, RequestPermissionRequest, SessionId, SessionNotification,
    SessionUpdate, StopReason, ToolCall, ToolCallContent, ToolCallStatus, ToolCallUpdate,
    ToolCallUpdateFields, ToolKind, Usage, UsageUpdate,
};
use serde_json::json;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::TURN_MICROS;
use super::project::{BUG, CODE, TESTS};

const NOTES: &str = "NOTES.md";
const SLOW_STEP: Duration = Duration::from_millis(250);
const SLOW_STEPS: u32 = 240;

/// The turn was cancelled, or the client is gone.
enum Stop {
    Cancelled,
    Failed(acp::Error),
}

impl From<acp::Error> for Stop {
    fn from(error: acp::Error) -> Self {
        Self::Failed(error)
    }
}

pub(super) struct Turn {
    client: ConnectionTo<Client>,
    session: SessionId,
    prompt: String,
    before: String,
    cwd: PathBuf,
    number: u64,
    cancel: CancellationToken,
    said: u64,
    tools: u64,
}

impl Turn {
    pub(super) fn new(
        client: ConnectionTo<Client>,
        request: PromptRequest,
        cwd: PathBuf,
        number: u64,
        cancel: CancellationToken,
    ) -> Self {
        let mut texts: Vec<_> = request
            .prompt
            .iter()
            .filter_map(|block| match block {
                ContentBlock::Text(text) => Some(text.text.clone()),
                _ => None,
            })
            .collect();
        // What comes before the last block tells of earlier turns.
        let prompt = texts.pop().unwrap_or_default();
        let before = texts.join("\n");
        Self { client, session: request.session_id, prompt, before, cwd, number, cancel, said: 0, tools: 0 }
    }

    pub(super) async fn run(mut self) -> Result<PromptResponse, acp::Error> {
        match self.act().await {
            Ok(()) => {
                self.tell_cost(TURN_MICROS)?;
                Ok(self.respond(StopReason::EndTurn))
            }
            Err(Stop::Cancelled) => Ok(self.respond(StopReason::Cancelled)),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    async fn act(&mut self) -> Result<(), Stop> {
        self.think("The prompt is short; look at the folder first.")?;
        for piece in ["I have read ", "the task. ", "Let me see.\n"] {
            self.say(piece)?;
        }
        self.tell_cost(TURN_MICROS / 2)?;
        if self.has("CRASH") {
            // Answered or refused: by then what was said has been read.
            let ping = acp::UntypedMessage::new("_sample/ping", json!({}))?;
            let _ = self.client.send_request(ping).block_task().await;
            eprintln!("sample agent: crashing as asked");
            std::process::exit(3);
        }
        if self.has("SLOW") {
            return self.talk_slowly().await;
        }
        if self.has("NOPERM") {
            self.say("Nothing has to be changed for that.\n")?;
            return Ok(());
        }
        if self.has("RECALL") {
            self.say(&format!("This is prompt {} of this session.\n", self.number))?;
            let before = std::mem::take(&mut self.before);
            return self.say(&before).map_err(Stop::from);
        }
        if self.has("ASK2") {
            return if self.append("first").await? && self.append("second").await? {
                self.say("Both lines are there.\n").map_err(Stop::from)
            } else {
                Ok(())
            };
        }
        if let Some(word) = self.word_after("APPEND") {
            return self.append(&word).await.map(drop);
        }
        if self.cwd.join(CODE).is_file() {
            return self.fix().await;
        }
        self.append("hello").await.map(drop)
    }

    /// Fixes the bug after asking, and runs the tests.
    async fn fix(&mut self) -> Result<(), Stop> {
        let old = self.read(CODE)?;
        let new = old.replace(BUG.0, BUG.1);
        if old == new {
            self.say("The sum is right already.\n")?;
        } else {
            self.say("`add` subtracts. One sign has to change.\n")?;
            if !self.edit(CODE, Some(&old), &new).await? {
                return Ok(());
            }
        }
        if self.cwd.join(TESTS).is_file() {
            self.run_tests().await?;
        }
        Ok(())
    }

    async fn append(&mut self, line: &str) -> Result<bool, Stop> {
        let exists = self.cwd.join(NOTES).is_file();
        let old = if exists { self.read(NOTES)? } else { String::new() };
        let new = format!("{old}{line}\n");
        self.edit(NOTES, exists.then_some(&old), &new).await
    }

    /// Writes a file if that is allowed; returns whether it was.
    async fn edit(&mut self, file: &str, old: Option<&str>, new: &str) -> Result<bool, Stop> {
        let path = self.cwd.join(file);
        let id = self.tool_id();
        let diff = Diff::new(path.clone(), new).old_text(old.map(str::to_owned));
        let call = ToolCall::new(id.clone(), format!("Edit {file}"))
            .kind(ToolKind::Edit)
            .raw_input(json!({ "path": file }))
            .content(vec![ToolCallContent::from(diff)]);
        self.update(SessionUpdate::ToolCall(call.clone()))?;
        if !self.ask(call).await? {
            self.say(&format!("Then {file} stays as it is.\n"))?;
            return Ok(false);
        }
        self.status(&id, ToolCallStatus::InProgress, None)?;
        match std::fs::write(&path, new) {
            Ok(()) => self.status(&id, ToolCallStatus::Completed, None)?,
            Err(error) => {
                self.status(&id, ToolCallStatus::Failed, Some(format!("{file}: {error}")))?;
                return Ok(false);
            }
        }
        self.say(&format!("{file} is changed.\n"))?;
        Ok(true)
    }

    async fn ask(&mut self, call: ToolCall) -> Result<bool, Stop> {
        let options = vec![
            PermissionOption::new("allow", "Allow once", PermissionOptionKind::AllowOnce),
            PermissionOption::new("reject", "Reject", PermissionOptionKind::RejectOnce),
        ];
        let request =
            RequestPermissionRequest::new(self.session.clone(), ToolCallUpdate::from(call), options);
        let answer = self.client.send_request(request).block_task();
        let answer = tokio::select! {
            answer = answer => answer?,
            () = self.cancel.cancelled() => return Err(Stop::Cancelled),
        };
        match answer.outcome {
            RequestPermissionOutcome::Selected(chosen) => Ok(&*chosen.option_id.0 == "allow"),
            _ if self.cancel.is_cancelled() => Err(Stop::Cancelled),
            _ => Ok(false),
        }
    }

    async fn run_tests(&mut self) -> Result<(), Stop> {
        let id = self.tool_id();
        let call = ToolCall::new(id.clone(), "Run the tests")
            .kind(ToolKind::Execute)
            .status(ToolCallStatus::InProgress)
            .raw_input(json!({ "command": format!("sh {TESTS}") }));
        self.update(SessionUpdate::ToolCall(call))?;
        let run = Command::new("sh").arg(TESTS).current_dir(&self.cwd).kill_on_drop(true).output();
        let output = tokio::select! {
            output = run => output.map_err(acp::Error::into_internal_error)?,
            () = self.cancel.cancelled() => return Err(Stop::Cancelled),
        };
        let passed = output.status.success();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let status = if passed { ToolCallStatus::Completed } else { ToolCallStatus::Failed };
        self.status(&id, status, Some(told))?;
        self.say(if passed { "The tests pass. Done.\n" } else { "The tests still fail.\n" })?;
        Ok(())
    }

    async fn talk_slowly(&mut self) -> Result<(), Stop> {
        for step in 1..=SLOW_STEPS {
            self.say(&format!("Still thinking ({step}). "))?;
            tokio::select! {
                () = tokio::time::sleep(SLOW_STEP) => {}
                () = self.cancel.cancelled() => return Err(Stop::Cancelled),
            }
        }
        Ok(())
    }

    fn read(&self, file: &str) -> Result<String, acp::Error> {
        std::fs::read_to_string(self.cwd.join(file)).map_err(acp::Error::into_internal_error)
    }

    fn has(&self, word: &str) -> bool {
        self.prompt.split_whitespace().any(|found| found == word)
    }

    fn word_after(&self, word: &str) -> Option<String> {
        let mut words = self.prompt.split_whitespace().skip_while(|found| *found != word);
        words.next()?;
        words.next().map(str::to_owned)
    }

    fn tool_id(&mut self) -> String {
        self.tools += 1;
        format!("tool-{}-{}", self.number, self.tools)
    }

    fn say(&mut self, text: &str) -> Result<(), acp::Error> {
        self.said += text.len() as u64;
        self.update(SessionUpdate::AgentMessageChunk(ContentChunk::new(text.into())))
    }

    fn think(&mut self, text: &str) -> Result<(), acp::Error> {
        self.said += text.len() as u64;
        self.update(SessionUpdate::AgentThoughtChunk(ContentChunk::new(text.into())))
    }

    fn status(&self, id: &str, status: ToolCallStatus, output: Option<String>) -> Result<(), acp::Error> {
        let content = output.map(|text| vec![ToolCallContent::from(text)]);
        let fields = ToolCallUpdateFields::new().status(status).content(content);
        self.update(SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id.to_owned(), fields)))
    }

    /// Tells the session's cost when this much of the turn's has been spent.
    fn tell_cost(&self, spent: u64) -> Result<(), acp::Error> {
        if self.has("NOUSAGE") {
            return Ok(());
        }
        let micros = (self.number - 1) * TURN_MICROS + spent;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let cost = Cost::new(micros as f64 / 1e6, "USD");
        let used = self.input_tokens() + self.output_tokens();
        self.update(SessionUpdate::UsageUpdate(UsageUpdate::new(used, 100_000).cost(cost)))
    }

    fn update(&self, update: SessionUpdate) -> Result<(), acp::Error> {
        self.client.send_notification(SessionNotification::new(self.session.clone(), update))
    }

    fn input_tokens(&self) -> u64 {
        40 + (self.prompt.len() as u64).div_ceil(4)
    }

    fn output_tokens(&self) -> u64 {
        1 + self.said.div_ceil(4)
    }

    fn respond(&self, reason: StopReason) -> PromptResponse {
        let response = PromptResponse::new(reason);
        if self.has("NOUSAGE") {
            return response;
        }
        let (input, output) = (self.input_tokens(), self.output_tokens());
        response.usage(Usage::new(input + output, input, output))
    }
}
