//! The commands a maintainer and a contributor type, against a real host; a client plays the parked agent.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on stops")]

mod common;

use std::process::{Output, Stdio};
use std::time::Duration;

use axp::client::{AxpClient, Events};
use common::{TestHost, axp, claim, create, dispatch, within};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// `axp` as one of the people of the host.
fn command(host: &TestHost, who: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_axp"));
    command
        .args(args)
        .current_dir(std::env::temp_dir())
        .env("AXP_URL", host.url())
        .env("AXP_TOKEN", host.token(who))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

async fn run(host: &TestHost, who: &str, args: &[&str]) -> Output {
    let output = within("axp", command(host, who, args).output()).await.unwrap();
    for text in [&output.stdout, &output.stderr] {
        assert!(!String::from_utf8_lossy(text).contains(host.token(who)), "a token was printed");
    }
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json_lines(bytes: &[u8]) -> Vec<Value> {
    text(bytes).lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// The turn that is active, once there is one.
async fn active_turn(client: &AxpClient, session: &str) -> String {
    within("a turn", async {
        loop {
            let chat = client.subscribe(&format!("ahp-chat:/{session}")).await.unwrap().state;
            if let Some(id) = chat["activeTurn"]["id"].as_str() {
                return id.to_owned();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

/// Takes the next turn and reserves for it.
async fn reserve(carl: &AxpClient, session: &str, epoch: u64) -> String {
    let turn = active_turn(carl, session).await;
    let ceiling = json!({"tokens": 500, "costMicros": 1000, "turns": 1});
    axp(carl, "_axp/reserve", session, json!({"epoch": epoch, "turnId": turn, "ceiling": ceiling}))
        .await
        .unwrap();
    turn
}

async fn emit(carl: &AxpClient, session: &str, epoch: u64, actions: Vec<Value>) {
    axp(carl, "_axp/emit", session, json!({"epoch": epoch, "actions": actions})).await.unwrap();
}

/// What an agent does that asks once: text, a tool with permission, and usage.
async fn play(carl: &AxpClient, session: &str, epoch: u64) {
    let turn = reserve(carl, session, epoch).await;
    let part = json!({"kind": "markdown", "id": "m", "content": "I look at \u{1b}[2Jit."});
    let options = json!([
        {"id": "always", "label": "Always allow", "kind": "approve"},
        {"id": "yes", "label": "Allow once", "kind": "approve"},
        {"id": "no", "label": "Reject", "kind": "deny"},
    ]);
    let actions = vec![
        json!({"type": "chat/responsePart", "turnId": turn, "part": part}),
        json!({"type": "chat/toolCallStart", "turnId": turn, "toolCallId": "call 1", "toolName": "edit",
            "displayName": "Edit"}),
        json!({"type": "chat/toolCallReady", "turnId": turn, "toolCallId": "call 1",
            "invocationMessage": "Edit add.sh", "options": options}),
    ];
    emit(carl, session, epoch, actions).await;
    // The tool goes on when it is allowed, and is over when it is not.
    let allowed = within("an answer", async {
        loop {
            let chat = carl.subscribe(&format!("ahp-chat:/{session}")).await.unwrap().state;
            let status = chat["activeTurn"]["responseParts"][1]["toolCall"]["status"].clone();
            match status.as_str().unwrap_or_default() {
                "running" => return true,
                "pending-confirmation" => tokio::time::sleep(Duration::from_millis(20)).await,
                _ => return false,
            }
        }
    })
    .await;
    if allowed {
        let result = json!({"success": true, "pastTenseMessage": "Edited add.sh"});
        let done = json!({"type": "chat/toolCallComplete", "turnId": turn, "toolCallId": "call 1", "result": result});
        emit(carl, session, epoch, vec![done]).await;
    }
    let usage = json!({"inputTokens": 100, "outputTokens": 20, "cacheReadTokens": 0, "costMicros": 900,
        "source": "reported"});
    let settle = json!({"epoch": epoch, "turnId": turn, "usage": usage, "outcome": "complete"});
    axp(carl, "_axp/settle", session, settle).await.unwrap();
}

/// A host with an open session `s` and Carl's client holding it.
async fn parked() -> (TestHost, AxpClient, Events, u64) {
    let host = TestHost::start().await;
    let (maria, _events) = host.client("maria").await;
    create(&maria, "s").await;
    let (carl, events) = host.client("carl").await;
    let epoch = claim(&carl, "s", "g", 10_000).await;
    (host, carl, events, epoch)
}

#[tokio::test]
async fn prompt_follows_a_turn_to_its_end() {
    let (host, carl, _events, epoch) = parked().await;
    let args = ["prompt", "s", "Fix it", "--wait", "--yes"];
    let (output, ()) = tokio::join!(run(&host, "maria", &args), play(&carl, "s", epoch));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    let (done, left) = shown.split_once("✓ done").expect("it is done");
    assert_eq!(
        done,
        "› Fix it\nI look at it.\n● Edit add.sh\n  ? may it?\n  \
         always (Always allow) · yes (Allow once) · no (Reject)\n  allowed (Allow once)\n  ✓ Edited add.sh\n"
    );
    assert!(left.contains("100 in, 20 out · $0.0009"), "{left}");
    assert!(left.contains("left: 9,880 tokens, $0.9991, 9 turns"), "{left}");
}

#[tokio::test]
async fn prompt_as_json_is_envelopes_and_an_outcome() {
    let (host, carl, _events, epoch) = parked().await;
    let args = ["prompt", "Fix it", "--wait", "--yes", "--json"];
    let (output, ()) = tokio::join!(run(&host, "maria", &args), play(&carl, "s", epoch));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(!text(&output.stdout).contains('\u{1b}'));
    let mut lines = json_lines(&output.stdout);
    let outcome = lines.pop().unwrap();
    let usage = json!({"inputTokens": 100, "outputTokens": 20, "cacheReadTokens": 0, "costMicros": 900,
        "source": "reported"});
    let spent = json!({"tokens": 120, "costMicros": 900, "turns": 1});
    assert_eq!(outcome, json!({"outcome": "complete", "usage": usage, "spent": spent}));
    let seqs: Vec<_> = lines.iter().map(|l| l["serverSeq"].as_u64().unwrap()).collect();
    assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
    assert_eq!(lines[0]["action"]["type"], "chat/turnStarted");
    assert_eq!(lines.last().unwrap()["action"]["type"], "chat/turnComplete");
}

#[tokio::test]
async fn a_permission_is_answered_from_another_terminal() {
    let (host, carl, _events, epoch) = parked().await;
    let mut watch = Watch::start(&host, &["watch"]);
    watch.until("agent is parked here").await;
    let (prompted, answered, ()) = tokio::join!(
        run(&host, "maria", &["prompt", "s", "Fix it", "--wait"]),
        async {
            watch.until("axp deny s").await;
            run(&host, "mike", &["deny"]).await
        },
        play(&carl, "s", epoch)
    );
    assert_eq!(text(&answered.stdout), "Denied: Edit add.sh (Reject)\n");
    assert_eq!(prompted.status.code(), Some(0));
    assert!(text(&prompted.stdout).contains("  axp approve s\n  axp deny s\n  not allowed (Reject)\n"));
    watch.until("✓ done").await;
    assert!(run(&host, "maria", &["close"]).await.status.success());
    watch.until("the session is closed").await;
    assert!(within("watch", watch.child.wait()).await.unwrap().success());
}

/// A running `axp watch`.
struct Watch {
    child: Child,
    lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
}

impl Watch {
    fn start(host: &TestHost, args: &[&str]) -> Self {
        let mut child = command(host, "olga", args).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Waits until it follows: makes something happen until that is shown.
    async fn attached(&mut self, contributor: &AxpClient) {
        let limit = json!({"tokens": 1, "costMicros": 1, "turns": 1});
        within("following", async {
            loop {
                let grant = json!({"grantId": "attached", "limit": limit, "enforcement": "accounting"});
                axp(contributor, "_axp/grant", "s", grant).await.unwrap();
                let shown = tokio::time::timeout(Duration::from_millis(300), self.lines.next_line());
                if let Ok(line) = shown.await {
                    assert!(line.unwrap().is_some_and(|line| line.contains("_axp/grantChanged")));
                    return;
                }
            }
        })
        .await;
    }

    /// Lines up to the one that contains this.
    async fn until(&mut self, what: &str) -> Vec<String> {
        let mut seen = vec![];
        within(what, async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                seen.push(line);
                if seen.last().is_some_and(|line| line.contains(what)) {
                    return;
                }
            }
            panic!("{what:?} was not shown; this was:\n{}", seen.join("\n"));
        })
        .await;
        seen
    }
}

#[tokio::test]
async fn exit_codes_tell_what_happened() {
    let (mut host, carl, _events, epoch) = parked().await;
    let code =
        async |host: &TestHost, who: &str, args: &[&str]| run(host, who, args).await.status.code().unwrap();
    assert_eq!(code(&host, "carl", &["prompt", "s", "x"]).await, 3, "not permitted");
    assert_eq!(code(&host, "maria", &["approve"]).await, 4, "nothing waits");
    assert_eq!(code(&host, "maria", &["cancel"]).await, 4, "nothing runs");
    assert_eq!(code(&host, "maria", &["prompt", "s"]).await, 2, "a session is no text");
    assert_eq!(code(&host, "maria", &["prompt", "s", " "]).await, 2, "an empty text");
    assert_eq!(code(&host, "maria", &["inspect", "no such"]).await, 2);
    assert_eq!(code(&host, "maria", &["inspect", "none"]).await, 1);
    assert_eq!(code(&host, "maria", &["nonsense"]).await, 2);
    assert_eq!(code(&host, "maria", &["create", "--task", "task-s"]).await, 4, "the task has a session");
    assert_eq!(code(&host, "maria", &["create", "--task", "t", "--id", "s"]).await, 4, "the ID is taken");
    assert_eq!(code(&host, "carl", &["grant", "s", "--turns", "0", "--tokens", "1"]).await, 0);

    // The turn fails on the budget: whoever waits for it learns that.
    let refuse = async {
        let turn = active_turn(&carl, "s").await;
        let settle = json!({"epoch": epoch, "turnId": turn, "usage": null, "outcome": "error", "error": "nothing is left"});
        axp(&carl, "_axp/settle", "s", settle).await.unwrap();
    };
    let (output, ()) = tokio::join!(run(&host, "maria", &["prompt", "s", "x", "--wait"]), refuse);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("nothing is left"));

    // A turn that somebody cancels, and one that fails.
    let (mike, _events) = host.client("mike").await;
    let cancel = async {
        let turn = active_turn(&carl, "s").await;
        dispatch(&mike, "s", json!({"type": "chat/turnCancelled", "turnId": turn, "duration": 0}))
            .await
            .unwrap();
    };
    let (output, ()) = tokio::join!(run(&host, "maria", &["prompt", "s", "x", "--wait", "--json"]), cancel);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(json_lines(&output.stdout).pop().unwrap()["outcome"], "cancelled");

    host.stop().await;
    assert_eq!(code(&host, "maria", &["sessions"]).await, 6, "nobody is there");
}

#[tokio::test]
async fn a_queued_message_is_followed_through_its_own_turn() {
    let (host, carl, _events, epoch) = parked().await;
    assert!(run(&host, "maria", &["prompt", "s", "first"]).await.status.success());
    let both = async {
        let first = reserve(&carl, "s", epoch).await;
        // Not before the message waits.
        within("the queue", async {
            loop {
                let chat = carl.subscribe("ahp-chat:/s").await.unwrap().state;
                if chat["queuedMessages"].is_array() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        let settle = json!({"epoch": epoch, "turnId": first, "usage": null, "outcome": "complete"});
        axp(&carl, "_axp/settle", "s", settle).await.unwrap();
        play(&carl, "s", epoch).await;
    };
    let (output, ()) = tokio::join!(run(&host, "maria", &["queue", "s", "second", "--wait", "--yes"]), both);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert_eq!(shown.matches("✓ done").count(), 2, "{shown}");
    assert!(shown.contains("› second\nI look at it."), "{shown}");
}

#[tokio::test]
async fn a_restarted_host_is_followed_on_without_a_gap() {
    let (mut host, carl, events, epoch) = parked().await;
    let mut shown = Watch::start(&host, &["watch", "s"]);
    let mut lines = Watch::start(&host, &["watch", "s", "--json"]);
    shown.until("agent is parked here").await;
    let (dora, _dora_events) = host.client("dora").await;
    lines.attached(&dora).await;
    let (maria, _events) = host.client("maria").await;
    common::prompt(&maria, "s", "turn-1").await.unwrap();
    reserve(&carl, "s", epoch).await;
    lines.until("_axp/reserved").await;
    shown.until("› Please fix it").await;

    drop((carl, events, maria, dora));
    host.restart().await;
    // The restart ended the turn and orphaned the session: each is shown once.
    let after = shown.until("✗ failed").await;
    assert_eq!(after.iter().filter(|line| line.contains("is gone")).count(), 1, "{after:#?}");
    let missed = lines.until("_axp/leaseChanged").await;
    let (maria, _events) = host.client("maria").await;
    common::prompt(&maria, "s", "turn-2").await.unwrap();
    let later = lines.until("chat/turnStarted").await;
    let seqs: Vec<_> = missed
        .iter()
        .chain(&later)
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["serverSeq"].as_u64().unwrap())
        .collect();
    assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
    assert!(missed.iter().any(|line| line.contains("_axp/settled")), "{missed:#?}");
    assert!(missed.iter().any(|line| line.contains("chat/error")), "{missed:#?}");
    shown.until("› Please fix it").await;
}

#[tokio::test]
async fn grants_are_listed_changed_and_revoked() {
    let (host, carl, _events, epoch) = parked().await;
    let listed = json_lines(&run(&host, "olga", &["grant", "--json"]).await.stdout);
    assert_eq!(listed[0][0]["id"], "g");
    assert_eq!(listed[0][0]["left"], json!({"tokens": 10_000, "costMicros": 1_000_000, "turns": 10}));
    let output = run(&host, "carl", &["grant", "s", "--cost", "2.5"]).await;
    assert_eq!(
        text(&output.stdout),
        "Grant g is now 10,000 tokens, $2.50, 10 turns; left: 10,000 tokens, $2.50, 10 turns.\n"
    );
    assert_eq!(
        run(&host, "dora", &["grant", "s", "--cost", "1", "--grant", "g"]).await.status.code(),
        Some(3)
    );

    let (maria, _events) = host.client("maria").await;
    common::prompt(&maria, "s", "turn-1").await.unwrap();
    reserve(&carl, "s", epoch).await;
    let output = run(&host, "carl", &["grant", "s", "--cost", "3"]).await;
    assert_eq!(output.status.code(), Some(4));
    assert!(text(&output.stderr).contains("has a turn reserved"), "{}", text(&output.stderr));
    assert!(text(&run(&host, "carl", &["grant"]).await.stdout).contains("in a turn"));
    assert!(run(&host, "carl", &["revoke"]).await.status.success());
    assert!(text(&run(&host, "carl", &["grant"]).await.stdout).contains("revoked"));
    let output = run(&host, "carl", &["grant", "s", "--cost", "3", "--grant", "g"]).await;
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
}

#[tokio::test]
async fn lists_are_json_or_a_table() {
    let (host, _carl, _events, _) = parked().await;
    let (maria, _events) = host.client("maria").await;
    create(&maria, "other").await;
    let sessions = json_lines(&run(&host, "olga", &["sessions", "--json"]).await.stdout);
    assert_eq!(sessions.len(), 1);
    assert_eq!(sessions[0]["items"].as_array().unwrap().len(), 2);
    assert!(text(&run(&host, "olga", &["sessions"]).await.stdout).contains("Title of other"));
    let inspected = json_lines(&run(&host, "olga", &["inspect", "s", "--json"]).await.stdout);
    for (part, resource) in [("exchange", "axp-session:/s"), ("chat", "ahp-chat:/s")] {
        assert_eq!(inspected[0][part]["resource"], resource);
    }
    assert!(
        inspected[0]["session"]["lifecycle"].is_string() && inspected[0]["changeset"]["files"].is_array()
    );
    // With two open sessions one must be named.
    let output = run(&host, "olga", &["inspect"]).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("other  Title of other"), "{}", text(&output.stderr));
    let output = run(&host, "olga", &["inspect", "ahp-session:/s"]).await;
    assert!(
        text(&output.stdout).contains("carl's agent is parked here (epoch 1)"),
        "{}",
        text(&output.stdout)
    );
}

#[tokio::test]
async fn an_interrupted_wait_says_that_the_turn_goes_on() {
    let (host, _carl, _events, _) = parked().await;
    let mut child = command(&host, "maria", &["prompt", "s", "Fix it", "--wait"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    within("the turn", lines.next_line()).await.unwrap();
    let pid = child.id().unwrap().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let output = within("the end", child.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(130));
    let said = text(&output.stderr);
    assert!(said.contains("the turn goes on in session s") && said.contains("axp cancel s"), "{said}");
}

#[tokio::test]
async fn an_export_is_written_whole() {
    let (host, _carl, _events, _) = parked().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.json");
    let out = path.to_str().unwrap();
    assert!(run(&host, "olga", &["export", "s", "--out", out]).await.status.success());
    let history: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(history["repository"], "owner/project");
    assert_eq!(run(&host, "olga", &["export", "s", "--out", out]).await.status.code(), Some(4));
    assert!(run(&host, "olga", &["export", "s", "--out", out, "--force"]).await.status.success());
    let printed = json_lines(&run(&host, "olga", &["export", "s", "--out", "-"]).await.stdout);
    assert_eq!(printed, [history]);
}

#[tokio::test]
async fn a_reader_that_leaves_is_no_error() {
    let (host, _carl, _events, _) = parked().await;
    let mut child = command(&host, "olga", &["watch", "s", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let (maria, _events) = host.client("maria").await;
    let mut turn = 0;
    let output = within("the end", async {
        loop {
            // Something to write, until it has noticed.
            let _ = common::prompt(&maria, "s", &format!("turn-{turn}")).await;
            let id = format!("turn-{turn}");
            let _ = dispatch(&maria, "s", json!({"type": "chat/turnCancelled", "turnId": id, "duration": 0}))
                .await;
            turn += 1;
            if child.try_wait().unwrap().is_some() {
                break child.wait_with_output().await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}
