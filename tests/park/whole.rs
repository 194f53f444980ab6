//! The whole loop, and what is left of it.

use std::collections::BTreeMap;
use std::process::Command;

use axp_protocol::action::Envelope;
use axp_protocol::state::{ChannelState, replay};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{MARK, Running, SAMPLE, Stage, action, git};

/// Checks an exported history: its actions, from the seeds, give its snapshots.
fn check_history(history: &Value) {
    let by_resource = |list: &Value| -> BTreeMap<String, Value> {
        let list = list.as_array().expect("a list");
        list.iter()
            .map(|s| (s["resource"].as_str().expect("a name").to_owned(), s["state"].clone()))
            .collect()
    };
    let seeds = by_resource(&history["seeds"]);
    let snapshots = by_resource(&history["snapshots"]);
    let actions: Vec<Envelope> = serde_json::from_value(history["actions"].clone()).expect("envelopes");
    let states = replay(&seeds, &actions).expect("replayed");
    assert_eq!(states.keys().collect::<Vec<_>>(), snapshots.keys().collect::<Vec<_>>());
    for (name, state) in &states {
        assert_eq!(json!(state), snapshots[name], "{name}");
        if let ChannelState::Exchange(exchange) = state {
            assert!(exchange.checkpoint.is_some());
        }
    }
}

#[test]
fn a_bug_is_fixed_by_a_parked_agent() {
    let stage = Stage::start();
    stage.create("s");
    let mut watch = stage.spawn("observer", &["watch", "s", "--json"]);
    let mut park = stage.park("s", &["--cost", "2.00", "--turns", "5"], SAMPLE);
    let parked = park.parked();
    assert_eq!(parked["epoch"], 1);
    let worktree = parked["worktree"].as_str().expect("a worktree").to_owned();
    watch.until("the lease", |line| action(line) == "_axp/leaseChanged");

    // The maintainer prompts; somebody approves the one thing that is asked.
    let prompt = stage.prompting("s", "Fix add.sh, please");
    let asked = watch.until("the question", |line| {
        action(line) == "chat/toolCallReady" && line["action"]["options"].is_array()
    });
    let tool = asked["action"]["toolCallId"].as_str().expect("a tool");
    let option = asked["action"]["options"][0]["id"].as_str().expect("an option");
    stage.run("maintainer", &["approve", "s", "--tool", tool, "--option", option]).well();
    let ended = prompt.end().well();
    let outcome = ended.last();
    assert_eq!(outcome["outcome"], "complete");
    let usage = &outcome["usage"];
    assert_eq!(usage["costMicros"], axp::sample::TURN_MICROS);
    assert_eq!(usage["source"], "reported");

    // Everybody saw the same, in the same order.
    let mut followed = ended.json.clone();
    followed.pop();
    let text: String = followed
        .iter()
        .filter(|line| action(line) == "chat/delta")
        .filter_map(|line| line["action"]["content"].as_str())
        .collect();
    assert!(text.contains("The tests pass. Done."), "{text}");

    // The checkpoint is announced, and in another clone its test passes.
    stage.wait_for("s", "a checkpoint", |seen| seen["exchange"]["checkpoint"].is_object());
    let clone = stage.clone("elsewhere");
    let restored = stage.restore("s", &clone);
    let test = |folder: &std::path::Path| {
        Command::new("sh").arg("test.sh").current_dir(folder).output().expect("sh")
    };
    assert!(test(&restored).status.success());
    // The contributor's own checkout is as it was.
    assert!(!test(&stage.project()).status.success());
    assert_eq!(git(&stage.project(), &["status", "--porcelain"]), "");
    assert_eq!(git(&stage.project(), &["branch", "--show-current"]), "main");

    // What the host counts, what this machine counts, and what was settled are the same.
    let grant = stage.grant("s");
    let total = ["inputTokens", "outputTokens"].iter().filter_map(|part| usage[part].as_u64()).sum::<u64>();
    let spent = json!({"tokens": total, "costMicros": usage["costMicros"], "turns": 1});
    assert_eq!(grant["spent"], spent);
    assert_eq!(outcome["spent"], spent);
    let status = stage.json("contributor", &["status"]);
    assert_eq!(status["ledgers"][0]["spent"], spent);
    assert_eq!(status["ledgers"][0]["unsettled"], json!([]));
    assert_eq!(status["ledgers"][0]["parked"], true);

    // The agent leaves; its work stays.
    let ended = park.stop(Signal::TERM).well();
    assert_eq!(ended.last()["state"], "stopped");
    stage.no_agent_left(None);
    assert!(std::path::Path::new(&worktree).join("add.sh").is_file());
    stage.run("maintainer", &["close", "s"]).well();
    let seen = watch.end().well();
    let watched: Vec<_> = seen.json.iter().filter_map(|line| line["serverSeq"].as_u64()).collect();
    assert!(watched.is_sorted_by(|a, b| a < b), "{watched:?}");
    for line in followed {
        assert!(seen.json.contains(&line), "the watcher missed {line}");
    }

    // All of it was read along, and checked against the schemas.
    assert!(stage.requests() > 10, "{}", stage.requests());

    // The history tells all of it.
    let out = stage.at("history.json");
    stage.run("observer", &["export", "s", "--out", out.to_str().expect("a path")]).well();
    let history: Value = serde_json::from_slice(&std::fs::read(&out).expect("a file")).expect("JSON");
    check_history(&history);
    let secrets: Vec<_> =
        ["maintainer", "contributor", "observer", "verifier"].map(|role| stage.token(role)).into();
    let secrets = [secrets, vec![stage.mark.clone()]].concat();
    assert_eq!(stage.files_with(&secrets), Vec::<std::path::PathBuf>::new());
    for secret in &secrets {
        for text in [&ended.stdout, &ended.stderr, &seen.stdout, &seen.stderr] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

#[test]
fn no_secret_is_in_a_command_line_or_a_log() {
    let (mut stage, park) = Stage::parked("s", &[]);
    let command_lines = || -> String {
        let processes = std::fs::read_dir("/proc").expect("/proc");
        let lines = processes.filter_map(|entry| std::fs::read(entry.ok()?.path().join("cmdline")).ok());
        lines.map(|line| String::from_utf8_lossy(&line).into_owned()).collect()
    };
    assert!(command_lines().contains("--agent-env"), "the park is seen");
    let ended = park.stop(Signal::TERM).well();
    let seen = command_lines() + &ended.stderr + &stage.stop_host(Signal::TERM).well().stderr;
    assert!(!seen.contains(&stage.mark));
    assert!(!seen.contains(&stage.token("contributor")));
}

#[test]
fn the_next_park_goes_on_from_the_checkpoint() {
    let (stage, park) = Stage::parked("s", &[]);
    stage.prompt("s", "APPEND one").well();
    park.stop(Signal::TERM).well();
    // From another clone, which has never seen the work.
    let clone = stage.clone("second");
    let mut second = stage.park("s", &["--directory", clone.to_str().expect("a path")], SAMPLE);
    assert_eq!(second.parked()["epoch"], 2);
    stage.prompt("s", "APPEND two").well();
    let restored = stage.restore("s", &stage.clone("third"));
    assert_eq!(std::fs::read_to_string(restored.join("NOTES.md")).expect("notes"), "one\ntwo\n");
}

/// An agent that commits by itself on the first turn, and changes nothing on the second.
const COMMITTER: &str = r#"
next() { IFS= read -r line || exit 0; id=$(printf '%s' "$line" | sed 's/.*"id":\([^,}]*\).*/\1/'); }
reply() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
next; reply '{"protocolVersion":1,"agentInfo":{"name":"committer","version":"1"}}'
next; reply '{"sessionId":"s"}'
next
printf 'by hand\n' > 'a file.txt'
git add --all && git -c user.name=a -c user.email=a@example.org commit --quiet --message='My own words' >&2
reply '{"stopReason":"end_turn"}'
next; reply '{"stopReason":"end_turn"}'
next
"#;

#[test]
fn an_agent_may_commit_by_itself_or_change_nothing() {
    let stage = Stage::start();
    stage.create("s");
    let script = stage.at("agent.sh");
    std::fs::write(&script, COMMITTER).expect("a script");
    let mut park = stage.park("s", &[], &["sh", script.to_str().expect("a path")]);
    park.parked();
    stage.prompt("s", "Commit").well();
    let first = stage.wait_for("s", "a checkpoint", |seen| seen["exchange"]["checkpoint"].is_object());
    let restored = stage.restore("s", &stage.clone("elsewhere"));
    assert_eq!(std::fs::read_to_string(restored.join("a file.txt")).expect("the file"), "by hand\n");
    assert!(git(&restored, &["log", "--format=%s"]).contains("My own words"));
    stage.prompt("s", "Do nothing").well();
    park.stop(Signal::TERM).well();
    assert_eq!(stage.inspect("s")["exchange"]["checkpoint"], first["exchange"]["checkpoint"]);
}

#[test]
fn run_needs_nothing_set_up() {
    let stage = Stage::without_host();
    let run = |options: &[&str], text: &str| {
        let args =
            [&["run", text, "--cost", "0.50", "--json", "--agent-env", MARK], options, &["--"], SAMPLE]
                .concat();
        let mut command = stage.axp("nobody", &args);
        command.env(MARK, &stage.mark);
        Running::start(command).end()
    };
    let ended = run(&["--yes"], "Fix it").well();
    assert_eq!(ended.last()["outcome"], "complete", "{}", ended.stdout);
    let branches = git(&stage.project(), &["branch", "--list", "axp/*", "--format=%(refname:short)"]);
    assert_eq!(branches.lines().count(), 1, "{branches}");
    let fixed = git(&stage.project(), &["show", &format!("{branches}:add.sh")]);
    assert!(fixed.contains("$1 + $2"), "{fixed}");
    assert_eq!(git(&stage.project(), &["status", "--porcelain"]), "");

    // Without --yes and without a terminal nothing is allowed, and nothing is changed.
    let ended = run(&[], "APPEND no").well();
    assert_eq!(ended.last()["outcome"], "complete", "{}", ended.stdout);
    assert!(!stage.project().join("NOTES.md").exists());
    assert_eq!(run(&["--yes"], "CRASH").with(1).last()["outcome"], "error");
    assert!(stage.agents(None).is_empty());
}

#[test]
fn the_demo_keeps_what_it_is_told_to() {
    let stage = Stage::without_host();
    let kept = stage.at("kept");
    let demo = stage.json("nobody", &["demo", "--yes", "--keep", kept.to_str().expect("a path")]);
    assert_eq!(demo["turn"]["outcome"], "complete");
    assert_eq!(demo["permissions"].as_array().map(Vec::len), Some(1), "{demo:#}");
    assert_eq!(demo["verification"]["exitCode"], 0);
    assert_eq!(demo["checkpoint"]["files"], 1);
    assert_eq!(demo["grant"]["spent"]["turns"], 1);
    for path in ["repository", "worktree", "verification", "database"] {
        let path = std::path::Path::new(demo["paths"][path].as_str().expect("a path"));
        assert!(path.starts_with(&kept) && path.exists(), "{}", path.display());
    }
    // As a person sees it, with nothing kept.
    let shown = stage.run("nobody", &["demo"]).well();
    assert!(shown.stdout.contains("add.sh"), "{}", shown.stdout);
    assert!(!shown.stdout.contains('\u{1b}'));
}
