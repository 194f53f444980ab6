//! The `axp-host` program: starts from a file, says where it listens, stops on a signal.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use axp_host::config::{Credential, HostFile, HostLimits, new_token, token_digest};
use axp_protocol::principal::{AllSessions, Role, SessionScope};
use axp_protocol::scalar::{Id, Text};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

fn configured() -> (TempDir, PathBuf, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("host.json");
    let token = new_token();
    let file = HostFile {
        repository: Text::new("ada/parser").unwrap(),
        listen: "127.0.0.1:0".parse().unwrap(),
        database: "host.db".into(),
        allowed_origins: Vec::new(),
        credentials: vec![Credential {
            id: Id::new("ada").unwrap(),
            role: Role::Maintainer,
            sessions: SessionScope::All(AllSessions::All),
            token_sha256: token_digest(&token),
        }],
        limits: HostLimits::default(),
    };
    file.create(&path).unwrap();
    (folder, path, token)
}

fn command(config: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_axp-host"));
    command.arg("--config").arg(config).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// A host that is killed when the test ends before it does.
struct Running {
    child: Option<Child>,
    address: String,
}

impl Running {
    fn start(config: &Path) -> Self {
        let mut child = command(config).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line
            .trim_end()
            .strip_prefix("listening on ws://")
            .and_then(|rest| rest.strip_suffix("/axp"))
            .map(str::to_owned);
        let running = Self { child: Some(child), address: address.clone().unwrap_or_default() };
        assert!(address.is_some(), "{line:?}");
        running
    }

    fn ask(&self, request: &str) -> String {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    fn end(mut self, signal: Signal) -> Output {
        let child = self.child.take().unwrap();
        kill_process(Pid::from_child(&child), signal).unwrap();
        child.wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn it_serves_until_a_signal_and_starts_again() {
    let (_folder, config, token) = configured();
    for signal in [Signal::TERM, Signal::INT] {
        let host = Running::start(&config);
        assert!(host.ask("GET /healthz HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
        let wrong =
            format!("GET /axp HTTP/1.1\r\nUpgrade: websocket\r\nAuthorization: Bearer x{token}\r\n\r\n");
        assert!(host.ask(&wrong).starts_with("HTTP/1.1 401 "));
        let output = host.end(signal);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(!stderr(&output).contains(&token), "{}", stderr(&output));
    }
}

#[test]
fn a_database_in_use_is_exit_code_1() {
    let (_folder, config, _) = configured();
    let host = Running::start(&config);
    let output = command(&config).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("in use by another host process"), "{}", stderr(&output));
    // A crash frees it.
    let output = host.end(Signal::KILL);
    assert_eq!(output.status.code(), None);
    Running::start(&config).end(Signal::TERM);
}

#[test]
fn a_loose_configuration_is_exit_code_2() {
    let (_folder, config, _) = configured();
    std::fs::set_permissions(&config, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let output = command(&config).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("chmod 600"), "{}", stderr(&output));
}

#[test]
fn wrong_usage_is_exit_code_2_and_help_has_an_example() {
    let program = env!("CARGO_BIN_EXE_axp-host");
    let output = Command::new(program).args(["--listen", "nowhere"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let output = Command::new(program).arg("--help").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains("axp-host --config .axp/host.json"));
}
