//! Who holds a session: one, and the same one again after a loss.

use axp::client::{AxpClient, ClientError, ConnectOptions, Credentials};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{MARK, Running, SAMPLE, Stage, action};

#[test]
fn of_two_that_come_at_once_one_parks() {
    let stage = Stage::start();
    stage.create("s");
    let start = |who: &str, folder: &str| {
        let clone = stage.clone(folder);
        let head = [
            "park",
            "s",
            "--json",
            "--agent-env",
            MARK,
            "--directory",
            clone.to_str().expect("a path"),
            "--",
        ];
        let mut command = stage.axp(who, &[&head[..], SAMPLE].concat());
        command.env(MARK, &stage.mark);
        Running::start(command)
    };
    let (mut one, mut other) = (start("contributor", "one"), start("maintainer", "other"));
    let over = |line: &Value| line["state"] == "parked" || line["state"] == "stopped";
    let states = [one.until("a decision", over), other.until("a decision", over)];
    let parked = states.iter().filter(|line| line["state"] == "parked").count();
    assert_eq!(parked, 1, "{states:?}");
    let (holder, loser) = if states[0]["state"] == "parked" { (one, other) } else { (other, one) };
    let lost = loser.end().with(4);
    assert!(lost.stderr.contains("axp watch"), "{}", lost.stderr);
    assert_eq!(stage.inspect("s")["exchange"]["lease"]["epoch"], 1);
    stage.prompt("s", "NOPERM").well();
    holder.stop(Signal::TERM).well();
}

#[test]
fn a_database_has_one_host() {
    let stage = Stage::start();
    let second = stage.run("nobody", &["host", "--listen", "127.0.0.1:0"]).with(1);
    assert!(second.stderr.contains("another"), "{}", second.stderr);
    stage.run("maintainer", &["sessions"]).well();
}

/// The host goes away as this signal has it and comes back; the park goes on.
fn restart(signal: Signal) {
    let (mut stage, mut park) = Stage::parked("s", &[]);
    stage.prompt("s", "APPEND before").well();
    let grant = stage.grant("s")["id"].clone();
    let mut prompt = stage.prompting("s", "SLOW");
    prompt.until("text", |line| action(line) == "chat/delta");
    let mut watch = stage.spawn("observer", &["watch", "s", "--json"]);
    watch.until("the turn", |line| action(line) == "chat/delta");
    stage.stop_host(signal);
    park.until("the loss", |line| line["state"] == "reconnecting");
    stage.start_host();
    // The turn ended in an error, the reservation is charged in full, the session was orphaned.
    let lost = watch.until("the orphaning", |line| action(line) == "_axp/leaseChanged");
    assert_eq!(lost["action"]["lease"], Value::Null);
    assert_ne!(prompt.end().code, Some(0));
    // The same park, with the grant and the worktree it had, under a new epoch.
    let again = park.parked();
    assert_eq!(again["epoch"], 2);
    assert_eq!(again["grant"], grant);
    let spent = stage.grant("s")["spent"].clone();
    assert_eq!(spent["turns"], 2);
    assert_eq!(stage.json("contributor", &["status"])["ledgers"][0]["spent"], spent);
    stage.prompt("s", "APPEND after").well();
    let restored = stage.restore("s", &stage.clone("elsewhere"));
    assert_eq!(std::fs::read_to_string(restored.join("NOTES.md")).expect("notes"), "before\nafter\n");
    park.stop(Signal::TERM).well();
}

#[test]
fn a_killed_host_comes_back_to_the_same_park() {
    restart(Signal::KILL);
}

#[test]
fn a_stopped_host_comes_back_to_the_same_park() {
    restart(Signal::TERM);
}

#[test]
fn a_park_that_must_not_reconnect_ends() {
    let (mut stage, park) = Stage::parked("s", &["--no-reconnect"]);
    stage.stop_host(Signal::KILL);
    let ended = park.end().with(6);
    assert_eq!(ended.last()["state"], "stopped");
    stage.no_agent_left(None);
}

/// Calls as the contributor, over a connection of one's own.
fn call(stage: &Stage, calls: &[(&str, Value)]) -> Vec<Result<Value, ClientError>> {
    let credentials = Credentials { url: stage.url.clone(), token: stage.token("contributor") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (client, _events) =
            AxpClient::connect(&credentials, ConnectOptions::default()).await.expect("connected");
        let mut results = vec![];
        for (method, params) in calls {
            results.push(client.request::<Value, Value>(method, params).await);
        }
        results
    })
}

#[test]
fn a_stale_epoch_can_do_nothing() {
    let (mut stage, mut park) = Stage::parked("s", &[]);
    stage.stop_host(Signal::KILL);
    stage.start_host();
    assert_eq!(park.parked()["epoch"], 2);
    let before = stage.inspect("s");
    let hash = "0".repeat(64);
    let content =
        json!({"uri": format!("axp-blob:/s/{hash}"), "sha256": hash, "size": 1, "mediaType": "text/plain"});
    let commit = "1".repeat(40);
    let calls: Vec<(&str, Value)> = [
        ("_axp/renew", json!({})),
        ("_axp/release", json!({})),
        ("_axp/reserve", json!({"turnId": "t", "ceiling": {"tokens": 1, "costMicros": 1, "turns": 1}})),
        ("_axp/settle", json!({"turnId": "t", "usage": null, "outcome": "complete"})),
        (
            "_axp/emit",
            json!({"actions": [{"type": "chat/delta", "turnId": "t", "partId": "p", "content": "x"}]}),
        ),
        (
            "_axp/checkpoint",
            json!({"checkpoint": {"baseCommit": commit, "headCommit": commit, "branch": "axp/s",
            "bundle": content, "patch": content, "createdAt": 1}, "files": []}),
        ),
    ]
    .into_iter()
    .map(|(method, mut params)| {
        params["channel"] = json!("axp-session:/s");
        params["operationId"] = json!(format!("stale-{}", method.trim_start_matches("_axp/")));
        params["epoch"] = json!(1);
        (method, params)
    })
    .collect();
    for ((method, _), result) in calls.iter().zip(call(&stage, &calls)) {
        let error = result.expect_err(method);
        assert_eq!(error.code(), Some(-32040), "{method}: {error}");
    }
    assert_eq!(stage.inspect("s")["exchange"], before["exchange"]);
    park.stop(Signal::TERM).well();
}
