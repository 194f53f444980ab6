//! What maintainers do with a turn: deny, cancel, steer, queue.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{SAMPLE, Stage, action};

/// Texts of the turns so far, with their states.
fn turns(seen: &Value) -> Vec<(String, String)> {
    let turns = seen["chat"]["turns"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    turns.iter().map(|turn| (text(&turn["message"]["text"]), text(&turn["state"]))).collect()
}

#[test]
fn what_is_denied_does_not_happen() {
    let (stage, mut park) = Stage::parked("s", &[]);
    let mut prompt = stage.prompting("s", "Fix it");
    prompt.until("the question", |line| line["action"]["options"].is_array());
    stage.run("maintainer", &["deny", "s"]).well();
    let ended = prompt.end().well();
    assert_eq!(ended.last()["outcome"], "complete");
    let said: String = ended.json.iter().filter_map(|line| line["action"]["content"].as_str()).collect();
    assert!(said.contains("Then add.sh stays as it is."), "{said}");
    // It is charged, and there is nothing to publish.
    assert_eq!(stage.grant("s")["spent"]["turns"], 1);
    park.signal(Signal::TERM);
    park.until("the end", |line| line["state"] == "stopped");
    assert_eq!(stage.inspect("s")["exchange"]["checkpoint"], Value::Null);
}

#[test]
fn a_cancelled_turn_ends_and_the_next_one_runs() {
    let (stage, _park) = Stage::parked("s", &[]);
    let mut prompt = stage.prompting("s", "SLOW please");
    prompt.until("text", |line| action(line) == "chat/delta");
    stage.run("maintainer", &["cancel", "s"]).well();
    let ended = prompt.end().with(1);
    assert_eq!(ended.last()["outcome"], "cancelled");
    // A turn that was begun is paid for.
    stage.wait_for("s", "the settlement", |seen| seen["exchange"]["reservation"].is_null());
    assert_eq!(stage.grant("s")["spent"]["turns"], 1);
    stage.prompt("s", "NOPERM").well();
    assert_eq!(stage.grant("s")["spent"]["turns"], 2);
}

#[test]
fn a_cancel_answers_what_is_asked() {
    let (stage, park) = Stage::parked("s", &[]);
    let mut prompt = stage.prompting("s", "APPEND never");
    prompt.until("the question", |line| line["action"]["options"].is_array());
    stage.run("maintainer", &["cancel"]).well();
    assert_eq!(prompt.end().with(1).last()["outcome"], "cancelled");
    stage.prompt("s", "APPEND later").well();
    let seen = stage.inspect("s");
    let spent: Vec<_> = turns(&seen);
    assert_eq!(
        spent,
        [
            ("APPEND never".to_owned(), "cancelled".to_owned()),
            ("APPEND later".to_owned(), "complete".to_owned())
        ]
    );
    drop(park);
    let restored = stage.restore("s", &stage.clone("elsewhere"));
    assert_eq!(std::fs::read_to_string(restored.join("NOTES.md")).expect("notes"), "later\n");
}

#[test]
fn steering_takes_the_turn_over() {
    let (stage, _park) = Stage::parked("s", &[]);
    let mut prompt = stage.prompting("s", "SLOW please");
    prompt.until("text", |line| action(line) == "chat/delta");
    let steer = stage.run("maintainer", &["steer", "s", "NOPERM now", "--wait", "--json"]).well();
    assert_eq!(steer.last()["outcome"], "complete");
    prompt.end().with(1);
    let seen = stage.inspect("s");
    assert_eq!(
        turns(&seen),
        [
            ("SLOW please".to_owned(), "cancelled".to_owned()),
            ("NOPERM now".to_owned(), "complete".to_owned())
        ]
    );
}

#[test]
fn a_queued_message_waits_for_its_turn() {
    let (stage, _park) = Stage::parked("s", &[]);
    let mut prompt = stage.prompting("s", "APPEND first");
    prompt.until("the question", |line| line["action"]["options"].is_array());
    let mut queue = stage.spawn("maintainer", &["queue", "s", "NOPERM second", "--wait", "--json"]);
    stage.wait_for("s", "the queue", |seen| {
        seen["chat"]["queuedMessages"][0]["message"]["text"] == "NOPERM second"
    });
    assert_eq!(turns(&stage.inspect("s")), []);
    stage.run("maintainer", &["approve", "s"]).well();
    prompt.end().well();
    queue.until("the outcome", |line| line["outcome"] == "complete");
    queue.end().well();
    let texts: Vec<_> = turns(&stage.inspect("s")).into_iter().map(|(text, _)| text).collect();
    assert_eq!(texts, ["APPEND first", "NOPERM second"]);
}

#[test]
fn an_agent_that_dies_in_a_turn_is_told_of_on_both_sides() {
    let (stage, park) = Stage::parked("s", &[]);
    let ended = stage.prompt("s", "CRASH").with(1);
    assert_eq!(ended.last()["outcome"], "error");
    // The words it left on stderr, for whoever has to find out.
    let error = &ended.last()["error"];
    assert_eq!(error["type"], "agent", "{error}");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("crashing as asked")), "{error}");
    let ended = park.end().with(1);
    assert!(ended.stderr.contains("crashing as asked"), "{}", ended.stderr);
    // Not known what it used: all that was reserved is charged.
    let spent = stage.grant("s")["spent"].clone();
    assert_eq!(spent, json!({"tokens": 10_000, "costMicros": 100_000, "turns": 1}));
    // The session is free for another.
    let mut next = stage.park("s", &[], SAMPLE);
    next.parked();
    stage.prompt("s", "NOPERM").well();
    next.stop(Signal::TERM).well();
}
