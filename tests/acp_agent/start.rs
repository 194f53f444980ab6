//! Agents that fail to start, or write something else than ACP.

use std::time::Duration;

use crate::agents::{answered, folder, sample, script, start};
use axp::acp::{AgentError, AgentSpec, MAX_LINE};

async fn refused(spec: &AgentSpec) -> AgentError {
    match start(spec).await {
        Ok(_) => panic!("the agent started"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_missing_program_is_named() {
    let folder = folder();
    let mut spec = sample(folder.path());
    spec.program = "no-such-agent".into();
    let error = refused(&spec).await;
    assert_eq!(error, AgentError::NotFound { program: "no-such-agent".into() });

    spec = sample(&folder.path().join("nowhere"));
    assert!(matches!(refused(&spec).await, AgentError::Spawn { reason, .. } if reason.contains("nowhere")));
    spec = sample(folder.path());
    spec.agent_env = vec!["AXP_TOKEN".into()];
    assert!(matches!(refused(&spec).await, AgentError::Environment { .. }));
}

#[tokio::test]
async fn the_environment_is_built_from_nothing() {
    let folder = folder();
    let mut spec = script(folder.path(), "env > seen; hello; next");
    spec.agent_env = vec!["CARGO_PKG_NAME".into()];
    start(&spec).await.expect("the agent starts").stop().await;
    let seen = std::fs::read_to_string(folder.path().join("seen")).expect("the environment");
    let names: Vec<&str> = seen.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    assert!(names.contains(&"PATH") && names.contains(&"CARGO_PKG_NAME"), "{names:?}");
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some(), "there is something to leave out");
    assert!(names.iter().all(|name| *name == "CARGO_PKG_NAME" || !name.starts_with("CARGO")), "{names:?}");
}

#[tokio::test]
async fn another_protocol_version_is_refused() {
    let folder = folder();
    let error = refused(&script(folder.path(), r#"next; reply '{"protocolVersion":2}'; next"#)).await;
    assert_eq!(error, AgentError::ProtocolVersion { offered: "2".into() });
}

#[tokio::test]
async fn only_a_listed_authentication_method_is_called() {
    let folder = folder();
    let body = r#"next; reply '{"protocolVersion":1,"authMethods":[{"id":"key","name":"Key"},{"id":"tty","name":"T","type":"terminal"}]}'
next; printf '%s\n' "$line" > called; reply null; next; reply '{"sessionId":"s"}'; next"#;
    let mut spec = script(folder.path(), body);
    for unlisted in ["other", "tty"] {
        spec.auth_method = Some(unlisted.into());
        let error = refused(&spec).await;
        assert_eq!(error, AgentError::AuthMethod { asked: unlisted.into(), offered: vec!["key".into()] });
    }
    assert!(!folder.path().join("called").exists());
    spec.auth_method = Some("key".into());
    let agent = start(&spec).await.expect("the agent starts");
    let called = std::fs::read_to_string(folder.path().join("called")).expect("the call");
    assert!(called.contains(r#""methodId":"key""#) && called.contains(r#""authenticate""#), "{called}");
    agent.stop().await;
}

#[tokio::test]
async fn a_login_that_is_needed_is_told() {
    let folder = folder();
    let body = r#"next; reply '{"protocolVersion":1,"authMethods":[{"id":"key","name":"Key"}]}'
next; printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"Authentication required"}}\n' "$id"; next"#;
    let error = refused(&script(folder.path(), body)).await;
    assert!(matches!(&error, AgentError::AuthRequired { offered, .. } if offered == &["key"]), "{error}");
    assert!(error.to_string().contains("--auth-method"));
}

#[tokio::test]
async fn an_agent_that_does_not_answer_is_given_up() {
    let folder = folder();
    let mut spec = script(folder.path(), "echo loading >&2; : > up; while :; do next; done");
    spec.start_timeout = Duration::from_millis(300);
    let error = refused(&spec).await;
    assert!(matches!(error, AgentError::StartTimeout { method: "initialize", .. }), "{error}");
}

#[tokio::test]
async fn an_agent_that_dies_at_the_start_tells_why() {
    let folder = folder();
    let error = refused(&script(folder.path(), "printf '\\033[31mno key\\033[0m\\n' >&2; exit 7")).await;
    assert_eq!(error, AgentError::Exited { status: "exited with status 7".into(), stderr: "no key".into() });
    let error = refused(&script(folder.path(), "kill -9 $$")).await;
    assert!(matches!(error, AgentError::Exited { status, .. } if status == "was ended by signal 9"));
    let mut guarded = script(folder.path(), "kill -9 $$");
    guarded.guard = Some(crate::agents::AXP.into());
    let error = refused(&guarded).await;
    assert!(matches!(error, AgentError::Exited { status, .. } if status == "was ended by signal 9"));
}

#[tokio::test]
async fn noise_is_skipped_and_kept_for_those_who_ask() {
    let folder = folder();
    let body = r#"echo 'Welcome!'; printf '\033[32mready\033[0m\n\377\376\n'; hello; echo '{"level":"info"}'
next; n=0; while [ $n -lt 998 ]; do echo log; n=$((n+1)); done; say hi; reply '{"stopReason":"end_turn"}'; next"#;
    let mut agent = start(&script(folder.path(), body)).await.expect("the agent starts");
    let ran = answered(&mut agent, "t1", "go", true).await;
    assert_eq!(ran.text(), "hi");
    let noise = agent.noise();
    assert_eq!(noise.lines, 3 + 1 + 998);
    assert_eq!(noise.first[..2], ["Welcome!", "ready"]);
    agent.stop().await;
}

#[tokio::test]
async fn a_thousand_lines_of_noise_fail_the_agent() {
    let folder = folder();
    let error = refused(&script(folder.path(), "while :; do echo log; done")).await;
    assert_eq!(error, AgentError::Noise { lines: 1000, first: "log".into() });
}

#[tokio::test]
async fn a_line_over_the_limit_ends_the_agent_after_what_came_before() {
    let folder = folder();
    let body = format!("hello; next; say before; head -c {} /dev/zero | tr '\\0' x; next", MAX_LINE + 1);
    let mut agent = start(&script(folder.path(), &body)).await.expect("the agent starts");
    let ran = answered(&mut agent, "t1", "go", true).await;
    assert_eq!(ran.end, Err(AgentError::LineTooLong { limit: MAX_LINE }));
    assert_eq!(ran.text(), "before");
    agent.stop().await;
}

#[tokio::test]
async fn a_long_message_within_the_limit_arrives() {
    let folder = folder();
    let body = r#"hello; next; printf '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"image","mimeType":"image/png","data":"'
head -c 8000000 /dev/zero | tr '\0' A; printf '"}}}}\n'; reply '{"stopReason":"end_turn"}'; next"#;
    let mut agent = start(&script(folder.path(), body)).await.expect("the agent starts");
    let ran = answered(&mut agent, "t1", "go", true).await;
    let axp::acp::TurnEvent::Emit(emission) = &ran.events[0] else { panic!("no emission") };
    assert_eq!((emission.blobs[0].data.len(), emission.actions.len()), (6_000_000, 1));
    agent.stop().await;
}
