//! Agents that other people wrote, at pinned versions: each its own way with permissions, usage and processes.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{MARK, Running, Stage, action};
use crate::wanted::wanted;

/// A model server on loopback; it ends with its owner.
struct Model {
    server: Child,
    url: String,
}

impl Model {
    fn start(script: &OsStr) -> Self {
        let mut command = Command::new("python3");
        command.arg(script).arg("0").stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = command.spawn().expect("python3 runs");
        let mut port = String::new();
        let stdout = server.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut port).expect("it tells its port");
        Self { server, url: format!("http://127.0.0.1:{}/v1", port.trim()) }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Parks a command with these variables, which it is allowed to see.
fn park(stage: &Stage, agent: &[&OsStr], env: &[(&str, &str)]) -> Running {
    let mut args = vec!["park", "s", "--json", "--start-timeout", "80s", "--agent-env", MARK];
    for (name, _) in env {
        args.extend(["--agent-env", name]);
    }
    args.push("--");
    let mut command = stage.axp("contributor", &args);
    command.args(agent).env(MARK, &stage.mark).envs(env.iter().copied());
    Running::start(command)
}

fn asks(line: &Value) -> bool {
    action(line) == "chat/toolCallReady" && line["action"]["options"].is_array()
}

#[test]
fn the_sdk_example_agent_runs_the_loop() {
    let Some(agent) = wanted("AXP_SDK_AGENT") else { return };
    let stage = Stage::start();
    stage.create("s");
    let mut park = park(&stage, &["node".as_ref(), &agent], &[]);
    park.parked();
    let allowed = stage.prompt("s", "hello").well();
    assert_eq!(allowed.json.iter().filter(|line| asks(line)).count(), 1, "{}", allowed.stdout);
    // It reports no usage, so what was reserved is what is charged.
    assert_eq!(allowed.last()["usage"]["source"], "reservation");

    let mut denied = stage.prompting("s", "hello again");
    denied.until("the question", asks);
    stage.run("maintainer", &["deny", "s"]).well();
    denied.end().well();

    let mut cancelled = stage.prompting("s", "and again");
    cancelled.until("the question", asks);
    stage.run("maintainer", &["cancel", "s"]).well();
    assert_eq!(cancelled.end().with(1).last()["outcome"], "cancelled");

    stage.wait_for("s", "the settlement", |seen| seen["exchange"]["reservation"].is_null());
    let seen = stage.inspect("s");
    assert_eq!(seen["exchange"]["checkpoint"], Value::Null, "it edits nothing");
    assert_eq!(stage.grant("s")["spent"]["turns"], 3);
    park.stop(Signal::TERM).well();
    stage.no_agent_left(None);
}

/// qwen-code, parked with a model server behind it.
fn qwen() -> Option<(Stage, Model, Running)> {
    let (agent, script) = (wanted("AXP_QWEN")?, wanted("AXP_FAKE_LLM")?);
    let model = Model::start(&script);
    let stage = Stage::start();
    stage.create("s");
    let env = [
        ("OPENAI_API_KEY", "key-of-the-contributor"),
        ("OPENAI_BASE_URL", &model.url),
        ("OPENAI_MODEL", "fake"),
    ];
    let arguments = ["--acp", "--auth-type", "openai"].map(OsStr::new);
    let mut park = park(&stage, &[&[agent.as_os_str()], &arguments[..]].concat(), &env);
    park.parked();
    Some((stage, model, park))
}

#[test]
fn qwen_code_edits_a_file_after_it_was_allowed_to() {
    let Some((stage, _model, park)) = qwen() else { return };
    // Denied, nothing is written, and the next turn runs all the same.
    let mut denied = stage.prompting("s", "Please write hello.txt");
    denied.until("the question", asks);
    stage.run("maintainer", &["deny", "s"]).well();
    denied.end().well();
    assert_eq!(stage.inspect("s")["exchange"]["checkpoint"], Value::Null);

    let mut prompt = stage.prompting("s", "Please do write hello.txt");
    let asked = prompt.until("the question", asks);
    let options = asked["action"]["options"].as_array().expect("options");
    let once =
        options.iter().find(|option| option["label"].as_str().is_some_and(|label| label.contains("once")));
    let option = once.unwrap_or(&options[0])["id"].as_str().expect("an ID");
    let tool = asked["action"]["toolCallId"].as_str().expect("a tool");
    stage.run("maintainer", &["approve", "s", "--tool", tool, "--option", option]).well();
    let ended = prompt.end().well();
    let usage = &ended.last()["usage"];
    assert_eq!(usage["source"], "reported", "{usage}");
    assert!(usage["inputTokens"].as_u64().is_some_and(|tokens| tokens >= 100), "{usage}");
    // It tells no cost: for that, the reservation.
    assert_eq!((&usage["costSource"], &usage["costMicros"]), (&json!("reservation"), &json!(100_000)));

    let restored = stage.restore("s", &stage.clone("elsewhere"));
    let written = std::fs::read_to_string(restored.join("hello.txt")).expect("the file");
    assert_eq!(written.trim(), "hello from fake llm");
    assert!(!stage.project().join("hello.txt").exists());

    stage.prompt("s", "PLAIN words only").well();
    assert_eq!(stage.grant("s")["spent"]["turns"], 3);

    let ended = park.stop(Signal::TERM).well();
    stage.no_agent_left(None);
    assert!(!(ended.stdout + &ended.stderr).contains("key-of-the-contributor"));
    assert_eq!(stage.files_with(&["key-of-the-contributor".to_owned()]), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_tool_shell_of_qwen_code_goes_with_a_killed_park() {
    let Some((stage, _model, park)) = qwen() else { return };
    // Reading needs no permission; the shell is in a session of its own, below the agent.
    let _prompt = stage.prompting("s", "RUNSLEEP");
    let sleeping = || {
        let agents = stage.agents(Some(&park));
        agents.iter().any(|pid| {
            std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"tail\0-f\0"))
        })
    };
    let deadline = std::time::Instant::now() + crate::support::PATIENCE;
    while !sleeping() {
        assert!(std::time::Instant::now() < deadline, "the shell tool does not run");
        std::thread::sleep(crate::support::LOOK);
    }
    park.stop(Signal::KILL);
    stage.no_agent_left(None);
}
