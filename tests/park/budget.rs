//! The budget, held on both sides.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{SAMPLE, Stage, action};

#[test]
fn what_is_spent_ends_the_park_before_the_next_turn() {
    let (stage, park) = Stage::parked("s", &["--turns", "1"]);
    stage.prompt("s", "NOPERM").well();
    let ended = stage.prompt("s", "NOPERM again").with(5);
    assert_eq!(ended.last()["outcome"], "error");
    let ended = park.end().with(5);
    assert_eq!(ended.last()["state"], "stopped");
    let spent = &stage.grant("s")["spent"];
    assert_eq!((&spent["turns"], &spent["costMicros"]), (&json!(1), &json!(axp::sample::TURN_MICROS)));
    stage.no_agent_left(None);
}

#[test]
fn a_turn_that_tells_nothing_is_charged_as_reserved() {
    let (stage, _park) = Stage::parked("s", &["--turn-tokens", "700", "--turn-cost", "0.05"]);
    let ended = stage.prompt("s", "NOUSAGE NOPERM").well();
    assert_eq!(ended.last()["usage"]["source"], "reservation");
    let spent = json!({"tokens": 700, "costMicros": 50_000, "turns": 1});
    assert_eq!(stage.grant("s")["spent"], spent);
    assert_eq!(stage.json("contributor", &["status"])["ledgers"][0]["spent"], spent);
}

#[test]
fn the_last_turn_may_use_what_is_left() {
    // 2,000 a turn: after two, less is left than a turn may use, and that is what it may use.
    let (stage, _park) = Stage::parked("s", &["--cost", "0.005", "--turn-cost", "0.003"]);
    for _ in 0..2 {
        stage.prompt("s", "NOPERM").well();
    }
    let ended = stage.prompt("s", "NOPERM").with(1);
    let reserved: Vec<_> = ended.json.iter().filter(|line| action(line) == "_axp/reserved").collect();
    assert_eq!(reserved.len(), 1);
    assert_eq!(reserved[0]["action"]["reservation"]["ceiling"]["costMicros"], 1_000);
    // The agent's own report passed that: it was stopped, and is charged what it said.
    let error = &ended.last()["error"]["message"];
    assert!(error.as_str().is_some_and(|text| text.contains("ceiling")), "{error}");
    assert!(stage.grant("s")["spent"]["costMicros"].as_u64().is_some_and(|spent| spent > 5_000));
}

#[test]
fn the_grant_of_a_running_park_is_raised_and_lowered() {
    let (stage, park) = Stage::parked("s", &["--turns", "1"]);
    stage.prompt("s", "NOPERM").well();
    // Not below what is spent.
    let refused = stage.run("contributor", &["grant", "s", "--turns", "0"]).with(5);
    assert!(refused.stderr.contains("spent"), "{}", refused.stderr);
    // Raised, a turn more runs.
    stage.run("contributor", &["grant", "s", "--turns", "2"]).well();
    stage.prompt("s", "NOPERM").well();
    // Not while a turn is reserved.
    stage.run("contributor", &["grant", "s", "--turns", "9"]).well();
    let mut prompt = stage.prompting("s", "SLOW");
    prompt.until("text", |line| action(line) == "chat/delta");
    let refused = stage.run("contributor", &["grant", "s", "--turns", "4"]).with(4);
    assert!(refused.stderr.contains("reserved"), "{}", refused.stderr);
    stage.run("maintainer", &["cancel", "s"]).well();
    prompt.end().with(1);
    stage.wait_for("s", "the settlement", |seen| seen["exchange"]["reservation"].is_null());
    // Lowered to what is spent, nothing runs any more.
    stage.run("contributor", &["grant", "s", "--turns", "3"]).well();
    stage.prompt("s", "NOPERM").with(5);
    park.end().with(5);
    assert_eq!(stage.grant("s")["spent"]["turns"], 3);
}

#[test]
fn a_revoked_grant_ends_the_agent_in_mid_turn() {
    let (stage, mut park) = Stage::parked("s", &["--turn-tokens", "900", "--turn-cost", "0.07"]);
    let mut prompt = stage.prompting("s", "SLOW");
    prompt.until("text", |line| action(line) == "chat/delta");
    assert!(!stage.agents(Some(&park)).is_empty());
    let revoked = Instant::now();
    stage.run("contributor", &["revoke", "s"]).well();
    stage.no_agent_left(Some(&park));
    let took = revoked.elapsed();
    assert!(took < Duration::from_secs(5), "the agent lived on for {took:?}");
    let ended = prompt.end();
    assert_ne!(ended.code, Some(0));
    park.until("the end", |line| line["state"] == "stopped");
    let seen = stage.inspect("s");
    assert_eq!(seen["exchange"]["lease"], Value::Null);
    let grant = stage.grant("s");
    assert_eq!(grant["revoked"], true);
    assert_eq!(grant["spent"], json!({"tokens": 900, "costMicros": 70_000, "turns": 1}));
    // The session is there for the next.
    let mut next = stage.park("s", &[], SAMPLE);
    assert_eq!(next.parked()["epoch"], 2);
    stage.prompt("s", "NOPERM").well();
    next.stop(Signal::TERM).well();
}

#[test]
fn both_accounts_agree_however_a_turn_ends() {
    // A turn that its park ends is reported as cancelled: what the agent used is charged here as it is there. Whether
    // the answer or the action of the settlement is first makes no difference; so it is done a few times.
    for _ in 0..4 {
        let (stage, park) = Stage::parked("s", &[]);
        let mut prompt = stage.prompting("s", "SLOW");
        prompt.until("text", |line| action(line) == "chat/delta");
        park.stop(Signal::TERM).well();
        prompt.end().with(1);
        let grant = stage.grant("s");
        assert!(grant["spent"]["tokens"].as_u64().is_some_and(|tokens| tokens < 10_000), "{grant}");
        assert_eq!(stage.json("contributor", &["status"])["ledgers"][0]["spent"], grant["spent"]);
    }
    // One that the host ends is charged in full, here as there.
    let (stage, park) = Stage::parked("s", &[]);
    let mut prompt = stage.prompting("s", "SLOW");
    prompt.until("text", |line| action(line) == "chat/delta");
    stage.run("maintainer", &["cancel", "s"]).well();
    prompt.end().with(1);
    stage.prompt("s", "NOPERM").well();
    park.stop(Signal::TERM).well();
    let grant = stage.grant("s");
    assert!(grant["spent"]["tokens"].as_u64().is_some_and(|tokens| tokens > 10_000), "{grant}");
    assert_eq!(stage.json("contributor", &["status"])["ledgers"][0]["spent"], grant["spent"]);
}
