//! How a park ends, and that nothing of its agent is left.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Running, SAMPLE, Stage, action};

/// A park with a turn that runs.
fn in_mid_turn() -> (Stage, Running, Running) {
    let (stage, park) = Stage::parked("s", &["--lease", "3s"]);
    let mut prompt = stage.prompting("s", "SLOW");
    prompt.until("text", |line| action(line) == "chat/delta");
    assert!(!stage.agents(Some(&park)).is_empty());
    (stage, park, prompt)
}

#[test]
fn the_keyboard_takes_the_agent_away() {
    let (stage, park, prompt) = in_mid_turn();
    let ended = park.stop(Signal::INT).with(130);
    assert_eq!(ended.last()["state"], "stopped");
    stage.no_agent_left(None);
    prompt.end().with(1);
    assert_eq!(stage.inspect("s")["exchange"]["lease"], Value::Null);
}

#[test]
fn a_service_manager_takes_the_agent_away() {
    let (stage, park, prompt) = in_mid_turn();
    park.stop(Signal::TERM).with(0);
    stage.no_agent_left(None);
    prompt.end().with(1);
    let grant = stage.grant("s");
    assert_eq!(grant["spent"]["turns"], 1);
    let status = stage.json("contributor", &["status"]);
    assert_eq!(status["ledgers"][0]["spent"], grant["spent"]);
    assert_eq!(status["ledgers"][0]["parked"], false);
}

#[test]
fn a_killed_park_takes_its_agent_along() {
    let (stage, park, prompt) = in_mid_turn();
    park.stop(Signal::KILL);
    stage.no_agent_left(None);
    // Its lease runs out, the turn ends with it, and all that was reserved is charged.
    assert_ne!(prompt.end().code, Some(0));
    let seen = stage.wait_for("s", "the orphaning", |seen| seen["exchange"]["lease"].is_null());
    assert_eq!(seen["chat"]["activeTurn"], Value::Null);
    assert_eq!(stage.grant("s")["spent"]["tokens"], 10_000);
    let mut next = stage.park("s", &[], SAMPLE);
    assert_eq!(next.parked()["epoch"], 2);
    stage.prompt("s", "NOPERM").well();
    next.stop(Signal::TERM).well();
}

#[test]
fn a_closed_session_sends_its_agent_home() {
    let (stage, park) = Stage::parked("s", &[]);
    stage.prompt("s", "APPEND kept").well();
    stage.run("maintainer", &["close", "s"]).well();
    park.end().with(0);
    stage.no_agent_left(None);
}

#[test]
fn an_agent_that_is_none_is_named() {
    let stage = Stage::start();
    stage.create("s");
    let missing = stage.park("s", &[], &["no-such-agent"]).end().with(1);
    assert!(missing.stderr.contains("no-such-agent"), "{}", missing.stderr);
    let silent = stage.park("s", &["--start-timeout", "1s"], &["sleep", "60"]).end().with(1);
    assert!(silent.stderr.contains("--start-timeout"), "{}", silent.stderr);
    let gone = stage.park("s", &[], &["sh", "-c", "echo no key set >&2; exit 7"]).end().with(1);
    assert!(gone.stderr.contains("status 7") && gone.stderr.contains("no key set"), "{}", gone.stderr);
    stage.no_agent_left(None);
    assert_eq!(stage.inspect("s")["exchange"]["lease"], Value::Null);
}
