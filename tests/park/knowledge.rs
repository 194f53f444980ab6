//! What is said and learned along the way: comments, the context of the next agent, lessons, and any method by name.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Stage, action};

fn text(stage: &Stage) -> String {
    let context = stage.json("observer", &["context", "s"]);
    context["text"].as_str().expect("a text").to_owned()
}

#[test]
fn comments_are_seen_by_all_and_name_files_of_the_checkpoint() {
    let (stage, park) = Stage::parked("s", &[]);
    let mut watch = stage.spawn("observer", &["watch", "s", "--json"]);
    stage.run("maintainer", &["comment", "s", "too early", "--path", "NOTES.md"]).with(4);
    stage.prompt("s", "APPEND one").well();
    let checkpoint = stage
        .wait_for("s", "a checkpoint", |seen| seen["exchange"]["checkpoint"].is_object())["exchange"]
        ["checkpoint"]["headCommit"]
        .clone();
    let said = stage.json("maintainer", &["comment", "s", "Looks good", "--path", "NOTES.md"]);
    assert_eq!((&said["checkpoint"], &said["path"]), (&checkpoint, &json!("NOTES.md")));
    // An unchanged file may be spoken of, one that is not there may not.
    stage.run("maintainer", &["comment", "s", "typo", "--path", "NOTES.rs"]).with(2);
    stage.run("maintainer", &["comment", "s", "And this", "--path", "test.sh"]).well();
    for who in ["contributor", "verifier"] {
        stage.run(who, &["comment", "s", &format!("from the {who}")]).well();
    }
    let refused = stage.run("observer", &["comment", "s", "me too"]).with(3);
    assert!(refused.stderr.contains("an observer"), "{}", refused.stderr);
    watch.until("the comment", |line| {
        action(line) == "_axp/commentAdded" && line["action"]["comment"]["body"] == "from the verifier"
    });
    let seen = stage.inspect("s");
    let bodies: Vec<_> =
        seen["exchange"]["discussion"].as_array().expect("a thread").iter().map(|c| &c["body"]).collect();
    assert_eq!(bodies, ["Looks good", "And this", "from the contributor", "from the verifier"]);
    assert!(stage.run("observer", &["inspect", "s"]).well().stdout.contains("Looks good"));
    park.stop(Signal::TERM).well();
}

#[test]
fn an_accepted_summary_replaces_turns_and_the_agent_starts_afresh_with_it() {
    let (stage, park) = Stage::parked("s", &["--turns", "9"]);
    stage.prompt("s", "APPEND one").well();
    stage.prompt("s", "RECALL").well();
    let said = |outcome: &crate::support::Ended| -> String {
        let deltas = outcome.json.iter().filter(|line| action(line) == "chat/delta");
        deltas.filter_map(|line| line["action"]["content"].as_str()).collect()
    };
    let before = said(&stage.prompt("s", "RECALL").well());
    assert!(before.contains("prompt 3 of this session"), "{before}");
    assert!(text(&stage).contains("APPEND one"));

    let summary = stage.at("summary.md");
    std::fs::write(&summary, "Notes are kept in NOTES.md, one a line.\n").expect("a file");
    let propose = ["compact", "propose", "s", "--summary-file", summary.to_str().expect("a path")];
    let options = ["--decision", "One note a line", "--file", "NOTES.md"];
    let proposal = stage.json("contributor", &[&propose[..], &options].concat());
    // Somebody has to look at it, and only a maintainer takes it.
    stage.run("contributor", &["compact", "accept", "s", "--yes"]).with(3);
    let shown = stage.run("maintainer", &["compact", "accept", "s"]).with(2);
    assert!(shown.stdout.contains("one a line"), "{}", shown.stdout);
    let accepted = stage.json("maintainer", &["compact", "accept", "s", "--yes"]);
    assert_eq!(accepted["revision"], 1);
    assert_eq!(accepted["prefixHash"], proposal["context"]["prefixHash"]);
    let context = text(&stage);
    assert!(context.contains("Notes are kept in NOTES.md") && !context.contains("APPEND one"), "{context}");

    // The same park, a new session of the agent, told the summary.
    let after = said(&stage.prompt("s", "RECALL").well());
    assert!(after.contains("prompt 1 of this session") && after.contains("Notes are kept"), "{after}");
    assert_eq!(stage.inspect("s")["exchange"]["epoch"], 1);
    // The turns themselves stay.
    let history = stage.run("observer", &["export", "s", "--out", "-"]).well();
    assert!(history.stdout.contains("APPEND one"));

    // A context that does not fit is not cut.
    let long = "x".repeat(3000);
    stage.prompt("s", &format!("RECALL {long}")).well();
    let refused = stage.run("observer", &["context", "s", "--max-chars", "1024"]).with(1);
    assert!(refused.stderr.contains("axp compact"), "{}", refused.stderr);
    park.stop(Signal::TERM).well();
}

#[test]
fn lessons_are_proposed_accepted_found_and_retired() {
    let (stage, park) = Stage::parked("s", &[]);
    stage.prompt("s", "APPEND one").well();
    let propose = |who: &str, lesson: &str| {
        let fixed = ["memory", "propose", "s", "--title", "Schlüssel first", "--trigger", "any task"];
        stage.json(who, &[&fixed[..], &["--outcome", "success", "--lesson", lesson]].concat())
    };
    let found = |query: &str| stage.json("observer", &["memory", "search", query]);
    let memory = propose("contributor", "Run the tests first");
    let id = memory["id"].as_str().expect("an ID");
    assert_eq!(found("schlüssel")["total"], 0, "nothing is found before it is accepted");
    // The same again is the same lesson; other words are another one.
    assert_eq!(propose("maintainer", " Run the tests first ")["id"], memory["id"]);
    let other = propose("contributor", "Never run the tests first");
    assert_ne!(other["id"], memory["id"]);

    stage.run("contributor", &["memory", "accept", &id[..12]]).with(3);
    stage.run("maintainer", &["memory", "accept", &id[..12]]).well();
    let hits = found("SCHLÜSSEL");
    assert_eq!((&hits["total"], &hits["items"][0]["id"]), (&json!(1), &memory["id"]));
    assert!(text(&stage).contains("Run the tests first"), "a lesson that fits the task is told");
    stage.run("maintainer", &["memory", "retire", id]).well();
    assert_eq!(found("schlüssel")["total"], 0);
    // New evidence does not bring it back.
    propose("contributor", "Run the tests first");
    assert_eq!(found("schlüssel")["total"], 0);
    let retired = stage.json("maintainer", &["memory", "list", "--status", "retired"]);
    assert_eq!(retired["items"].as_array().map(Vec::len), Some(1), "{retired:#}");
    park.stop(Signal::TERM).well();
}

#[test]
fn any_method_can_be_called_and_repeated() {
    let stage = Stage::start();
    stage.create("s");
    let params = stage.at("comment.json");
    std::fs::write(&params, json!({"body": "hello", "checkpoint": null, "path": null}).to_string())
        .expect("a file");
    let call = ["rpc", "_axp/comment", "--session", "s", "--params", params.to_str().expect("a path")];
    let first = stage.run("maintainer", &call).well();
    let operation = first.stderr.lines().find_map(|line| line.strip_prefix("operation ")).expect("an ID");
    let again = stage.run("maintainer", &[&call[..], &["--operation", operation]].concat()).well();
    assert_eq!(first.stdout, again.stdout);
    let thread = stage.inspect("s")["exchange"]["discussion"].clone();
    assert_eq!(thread.as_array().map(Vec::len), Some(1), "{thread}");
    // Another input under the same ID is refused.
    std::fs::write(&params, json!({"body": "other", "checkpoint": null, "path": null}).to_string())
        .expect("a file");
    stage.run("maintainer", &[&call[..], &["--operation", operation]].concat()).with(4);
    let list: Value = stage.json("nobody", &["rpc", "--list"]);
    assert_eq!(list.as_array().map(Vec::len), Some(25));
    stage.run("maintainer", &["rpc", "_axp/nothing", "--session", "s"]).with(1);
}
