//! A project with its host, and people at it: each an `axp` process with a token, a home and a state folder of their own.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axp::client::{AxpClient, ConnectOptions, Credentials};
use axp::worktree::{BundleFile, Repository, RestoreRequest, restore};
use axp_protocol::scalar::Id;
use axp_protocol::shape::Checkpoint;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::recorder::Recorder;

/// Nothing here takes as long as this; past it, a test fails instead of hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
/// Time between two looks at something that announces nothing.
pub(crate) const LOOK: Duration = Duration::from_millis(10);
/// The variable that marks an agent's processes; its value must turn up nowhere else.
pub(crate) const MARK: &str = "PARK_TEST_MARK";
pub(crate) const SAMPLE: &[&str] = &[env!("CARGO_BIN_EXE_axp"), axp::sample::SAMPLE_COMMAND];

/// A scratch repository, set up for hosting, and its host.
pub(crate) struct Stage {
    folder: TempDir,
    pub(crate) url: String,
    /// Where the host really listens, and who reads along.
    behind: Option<(String, Recorder)>,
    host: Option<Running>,
    /// The value of [`MARK`].
    pub(crate) mark: String,
}

impl Stage {
    pub(crate) fn start() -> Self {
        let mut stage = Self::without_host();
        stage.start_host();
        stage
    }

    pub(crate) fn without_host() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mark = format!("mark-{:032x}", rand::random::<u128>());
        let stage = Self { folder, url: String::new(), behind: None, host: None, mark };
        let project = stage.project();
        std::fs::create_dir(&project).expect("a folder");
        for (path, contents, _) in axp::sample::scratch_project() {
            std::fs::write(project.join(path), contents).expect("a file");
        }
        git(&project, &["init", "--quiet", "--initial-branch=main"]);
        git(&project, &["add", "--all"]);
        git(&project, &["commit", "--quiet", "--message=first"]);
        stage.run("nobody", &["init", "--repo", "owner/project"]).well();
        stage
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub(crate) fn project(&self) -> PathBuf {
        self.at("project")
    }

    /// Starts the host: on the port it had, if it ran before.
    pub(crate) fn start_host(&mut self) {
        let listen = match &self.behind {
            Some((address, _)) => address.clone(),
            None => "127.0.0.1:0".to_owned(),
        };
        let mut host = self.spawn("nobody", &["host", "--listen", &listen, "--json"]);
        let ready = host.until("the host", |line| line["state"] == "ready");
        let url = ready["url"].as_str().expect("an address");
        let address =
            url.strip_prefix("ws://").and_then(|rest| rest.strip_suffix("/axp")).expect("an address");
        if self.behind.is_none() {
            let recorder = Recorder::start(address.parse().expect("an address"));
            self.url = format!("ws://{}/axp", recorder.address);
            self.behind = Some((address.to_owned(), recorder));
        }
        self.host = Some(host);
    }

    /// Ends the host by a signal; what it wrote to stderr.
    pub(crate) fn stop_host(&mut self, signal: Signal) -> Ended {
        let host = self.host.take().expect("a host");
        host.signal(signal);
        host.end()
    }

    /// How often an AXP method was called.
    pub(crate) fn requests(&self) -> usize {
        self.behind
            .as_ref()
            .map_or(0, |(_, recorder)| recorder.seen.lock().expect("nobody panicked").requests)
    }

    pub(crate) fn token(&self, role: &str) -> String {
        let profile =
            std::fs::read_to_string(self.project().join(format!(".axp/{role}.json"))).expect("a profile");
        let profile: Value = serde_json::from_str(&profile).expect("JSON");
        profile["token"].as_str().expect("a token").to_owned()
    }

    /// `axp` as somebody.
    pub(crate) fn axp(&self, who: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_axp"));
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["GIT_", "AXP_", "XDG_", "RUST_"].iter().any(|prefix| text.starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        let home = self.at(&format!("home-{who}"));
        std::fs::create_dir_all(&home).expect("a home");
        command.args(args).current_dir(self.project()).stdin(Stdio::null());
        command.env("HOME", &home).env("XDG_STATE_HOME", home.join("state"));
        if who != "nobody" {
            command.env("AXP_URL", &self.url).env("AXP_TOKEN", self.token(who));
        }
        command
    }

    pub(crate) fn spawn(&self, who: &str, args: &[&str]) -> Running {
        Running::start(self.axp(who, args))
    }

    pub(crate) fn run(&self, who: &str, args: &[&str]) -> Ended {
        self.spawn(who, args).end()
    }

    /// The JSON that a command prints.
    pub(crate) fn json(&self, who: &str, args: &[&str]) -> Value {
        let args = [args, &["--json"]].concat();
        let ended = self.run(who, &args).well();
        ended.json.last().cloned().unwrap_or_else(|| panic!("axp {args:?} printed nothing"))
    }

    pub(crate) fn create(&self, session: &str) {
        let task = format!("task-{session}");
        self.run("maintainer", &["create", "--id", session, "--task", &task, "--title", "Fix add"]).well();
    }

    /// A stage with a session and an agent parked at it.
    pub(crate) fn parked(session: &str, options: &[&str]) -> (Self, Running) {
        let stage = Self::start();
        stage.create(session);
        let mut park = stage.park(session, options, SAMPLE);
        park.parked();
        (stage, park)
    }

    /// `axp park` as the contributor.
    pub(crate) fn park(&self, session: &str, options: &[&str], agent: &[&str]) -> Running {
        let head = ["park", session, "--json", "--max-backoff", "200ms", "--agent-env", MARK];
        let args = [&head[..], options, &["--"], agent].concat();
        let mut command = self.axp("contributor", &args);
        command.env(MARK, &self.mark);
        Running::start(command)
    }

    /// `axp prompt --wait`, which allows what is asked.
    pub(crate) fn prompt(&self, session: &str, text: &str) -> Ended {
        self.run("maintainer", &["prompt", session, text, "--wait", "--yes", "--json"])
    }

    /// `axp prompt --wait` that goes on, seen to have started; it allows nothing by itself.
    pub(crate) fn prompting(&self, session: &str, text: &str) -> Running {
        let mut prompt = self.spawn("maintainer", &["prompt", session, text, "--wait", "--json"]);
        prompt.until("the turn", |line| action(line) == "chat/turnStarted");
        prompt
    }

    pub(crate) fn inspect(&self, session: &str) -> Value {
        self.json("observer", &["inspect", session])
    }

    /// Waits for a state of the session.
    pub(crate) fn wait_for(&self, session: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let seen = self.inspect(session);
            if is(&seen) {
                return seen;
            }
            assert!(began.elapsed() < PATIENCE, "still waiting for {what}: {seen:#}");
        }
    }

    /// The session's only grant.
    pub(crate) fn grant(&self, session: &str) -> Value {
        self.json("observer", &["grant", session])[0].clone()
    }

    /// The agent's processes: all that carry the mark, apart from the command that parked it.
    pub(crate) fn agents(&self, park: Option<&Running>) -> Vec<u32> {
        let marked = format!("{MARK}={}", self.mark);
        let own = park.map(|park| park.child.id());
        let processes = std::fs::read_dir("/proc").expect("/proc");
        let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| Some(*pid) != own)
            .filter(|pid| {
                let env = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                env.split(|byte| *byte == 0).any(|pair| pair == marked.as_bytes())
            })
            .collect()
    }

    /// Waits until none of the agent's processes is left; how long that took.
    pub(crate) fn no_agent_left(&self, park: Option<&Running>) -> Duration {
        let began = Instant::now();
        loop {
            let left = self.agents(park);
            if left.is_empty() {
                return began.elapsed();
            }
            assert!(began.elapsed() < PATIENCE, "processes are left: {left:?}");
            std::thread::sleep(LOOK);
        }
    }

    /// A fresh clone of the project, as somebody else has it.
    pub(crate) fn clone(&self, name: &str) -> PathBuf {
        let into = self.at(name);
        let (from, to) = (self.project(), into.clone());
        let from = from.to_str().expect("a path");
        git(self.folder.path(), &["clone", "--quiet", "--no-hardlinks", from, to.to_str().expect("a path")]);
        into
    }

    /// Restores the session's checkpoint into a clone, from what the host gives; the worktree.
    pub(crate) fn restore(&self, session: &str, clone: &Path) -> PathBuf {
        let state = self.inspect(session)["exchange"]["checkpoint"].clone();
        let checkpoint: Checkpoint = serde_json::from_value(state).expect("a checkpoint");
        let url = self.url.clone();
        let token = self.token("verifier");
        let session = Id::new(session).expect("an ID");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let bundle = runtime.block_on(async {
            let credentials = Credentials { url, token };
            let (client, _events) =
                AxpClient::connect(&credentials, ConnectOptions::default()).await.expect("connected");
            axp::reconnect::download(&client, &session, &checkpoint).await.expect("a bundle")
        });
        let repository = Repository::discover(clone).expect("a repository");
        let request = RestoreRequest {
            bundle: Some(BundleFile { path: bundle.path(), sha256: &checkpoint.bundle.sha256 }),
            base: &checkpoint.base_commit,
            head: &checkpoint.head_commit,
            into: "restored",
        };
        restore(&repository, &request, &mut |_| {}).expect("restored").path().to_owned()
    }

    /// Every file below the folder of this stage that holds one of these, apart from profiles.
    pub(crate) fn files_with(&self, secrets: &[String]) -> Vec<PathBuf> {
        let mut folders = vec![self.folder.path().to_owned()];
        let mut found = vec![];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                let kind = path.symlink_metadata().expect("it is there");
                if kind.is_dir() {
                    folders.push(path);
                } else if kind.is_file() {
                    let bytes = std::fs::read(&path).expect("a file");
                    let holds =
                        |secret: &String| bytes.windows(secret.len()).any(|at| at == secret.as_bytes());
                    let profile = folder.ends_with(".axp") && path.extension().is_some_and(|e| e == "json");
                    if !profile && secrets.iter().any(holds) {
                        found.push(path);
                    }
                }
            }
        }
        found
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Children first: their folders go with the stage.
        self.host = None;
        if let Some((_, recorder)) = self.behind.take().filter(|_| !std::thread::panicking()) {
            let seen = recorder.seen.lock().expect("nobody panicked");
            assert_eq!(seen.wrong, Vec::<String>::new());
        }
    }
}

/// The type of the action in an envelope.
pub(crate) fn action(line: &Value) -> &str {
    line["action"]["type"].as_str().unwrap_or_default()
}

pub(crate) fn git(folder: &Path, args: &[&str]) -> String {
    let mut command = Command::new("git");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GIT_")) {
        command.env_remove(name);
    }
    let identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"];
    let output = command.args(identity).args(args).current_dir(folder).output().expect("git runs");
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

/// A child process whose lines of JSON are read as they come. It is killed with its owner.
pub(crate) struct Running {
    pub(crate) child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
    stderr: Option<JoinHandle<String>>,
}

/// What a process left behind.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    /// All lines.
    pub(crate) stdout: String,
    /// Those that are JSON.
    pub(crate) json: Vec<Value>,
    pub(crate) stderr: String,
}

impl Ended {
    /// It ended well.
    pub(crate) fn well(self) -> Self {
        self.with(0)
    }

    /// It ended with this code.
    pub(crate) fn with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    pub(crate) fn last(&self) -> &Value {
        self.json.last().unwrap_or_else(|| panic!("no JSON; stderr:\n{}", self.stderr))
    }
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut pipe = child.stderr.take().expect("a pipe");
        let stderr = std::thread::spawn(move || {
            let mut bytes = vec![];
            let _ = pipe.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Self { child, lines, seen: vec![], stderr: Some(stderr) }
    }

    /// Waits for a line of JSON.
    pub(crate) fn until(&mut self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let value = serde_json::from_str(&line).unwrap_or(Value::Null);
                    self.seen.push(line);
                    if is(&value) {
                        return value;
                    }
                }
                Err(error) => {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    let stderr = self.stderr.take().and_then(|reader| reader.join().ok()).unwrap_or_default();
                    let seen = self.seen.join("\n");
                    let why = if error == RecvTimeoutError::Timeout { "not in time" } else { "it ended" };
                    panic!("{what}: {why}; seen:\n{seen}\nstderr:\n{stderr}");
                }
            }
        }
    }

    /// Waits until the agent is parked; the state.
    pub(crate) fn parked(&mut self) -> Value {
        self.until("parked", |line| line["state"] == "parked")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process");
        kill_process(pid, signal).expect("signalled");
    }

    /// Waits for the end.
    pub(crate) fn end(mut self) -> Ended {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.seen.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it did not end; seen:\n{}", self.seen.join("\n")),
            }
        }
        let status = self.child.wait().expect("it ended");
        let stderr = self.stderr.take().and_then(|reader| reader.join().ok()).unwrap_or_default();
        let json = self.seen.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
        Ended { code: status.code(), stdout: self.seen.join("\n"), json, stderr }
    }

    /// Ends it by a signal and waits.
    pub(crate) fn stop(self, signal: Signal) -> Ended {
        self.signal(signal);
        self.end()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
