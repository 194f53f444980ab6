//! Other people's fixtures: every one goes through the host's own reduction and parsing, and each that does not pass
//! is named with its reason.
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod wanted;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use ahp::reducers::apply_action_to_resource_watch;
use ahp_types::StateAction;
use ahp_types::actions::ActionEnvelope;
use ahp_types::state::ResourceWatchState;
use axp_protocol::action::{Action, Envelope};
use axp_protocol::channel::Channel;
use axp_protocol::state::ChannelState;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use wanted::wanted;

fn fixtures(folder: &Path) -> Vec<(String, Value)> {
    let entries = std::fs::read_dir(folder).expect("the corpus");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("JSON"))
    };
    paths.into_iter().map(read).collect()
}

/// Without nulls, and without the time of the change, which a reducer that reads no clock cannot know.
fn comparable(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .filter(|(key, value)| !value.is_null() && key != "modifiedAt")
            .map(|(key, value)| (key, comparable(value)))
            .collect(),
        Value::Array(list) => list.into_iter().map(comparable).collect(),
        other => other,
    }
}

/// The channel whose reduction a fixture is of; none for what no channel of the host is.
fn channel(reducer: &str) -> Option<Channel> {
    let name = match reducer {
        "root" => "ahp-root://",
        "session" => "ahp-session:/s",
        "chat" => "ahp-chat:/s",
        "changeset" => "ahp-changeset:/s",
        _ => return None,
    };
    Some(Channel::parse(name).expect("a channel"))
}

fn reduce(fixture: &Value) -> Result<(), String> {
    let reducer = fixture["reducer"].as_str().expect("a reducer");
    let initial = fixture["initial"].clone();
    let mut actions = vec![];
    for action in fixture["actions"].as_array().expect("actions") {
        let action: Action =
            serde_json::from_value(action.clone()).map_err(|e| format!("an action of 0.8.0: {e}"))?;
        actions.push(action);
    }
    let old = |e: serde_json::Error| format!("a state of 0.8.0: {e}");
    let reached = match channel(reducer) {
        Some(channel) => {
            let mut state = ChannelState::from_value(&channel, initial).map_err(old)?;
            for action in &actions {
                state.apply(action);
            }
            serde_json::to_value(&state)
        }
        None if reducer == "resourceWatch" => {
            let mut state: ResourceWatchState = serde_json::from_value(initial).map_err(old)?;
            for action in &actions {
                if let Action::Ahp(action) = action {
                    apply_action_to_resource_watch(&mut state, action);
                }
            }
            serde_json::to_value(&state)
        }
        None => return Err(format!("the host has no {reducer} channel")),
    };
    let reached = comparable(reached.expect("JSON"));
    let expected = comparable(fixture["expected"].clone());
    match difference("", &expected, &reached) {
        None => Ok(()),
        Some(why) => Err(why),
    }
}

/// The first place where two values differ.
fn difference(at: &str, expected: &Value, reached: &Value) -> Option<String> {
    match (expected, reached) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<_> = a.keys().chain(b.keys()).collect();
            keys.into_iter().find_map(|key| {
                let of = |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                difference(&format!("{at}/{key}"), &of(a), &of(b))
            })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).enumerate().find_map(|(n, (a, b))| difference(&format!("{at}/{n}"), a, b))
        }
        // 10 and 10.0 are one number in JSON.
        (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64() => None,
        _ => (expected != reached).then(|| format!("{at} should be {expected}, is {reached}")),
    }
}

#[test]
fn every_reducer_fixture_passes_or_has_a_reason() {
    let Some(corpus) = wanted("AHP_CORPUS").map(PathBuf::from) else { return };
    let list = std::fs::read_to_string(corpus.join("expected-pass-0.9.0.txt")).expect("the list");
    let expected: BTreeSet<String> = list.lines().map(str::to_owned).collect();
    assert_eq!(expected.len(), 197);
    let (mut passed, mut failed) = (BTreeSet::new(), vec![]);
    let fixtures = fixtures(&corpus.join("reducers"));
    assert_eq!(fixtures.len(), 249);
    for (name, fixture) in fixtures {
        match reduce(&fixture) {
            Ok(()) => {
                passed.insert(name);
            }
            Err(why) => {
                assert!(!expected.contains(&name), "{name}: {why}");
                failed.push(format!("{name}: {}", why.chars().take(200).collect::<String>()));
            }
        }
    }
    // Past the capture of test output, so that nobody has to ask for it.
    let report = format!("{} pass; {} do not:\n{}", passed.len(), failed.len(), failed.join("\n"));
    writeln!(std::io::stderr(), "{report}").expect("stderr");
    assert!(expected.is_subset(&passed));
}

/// Reads a value as this type and writes it again.
fn through<T: DeserializeOwned + Serialize>(input: &Value) -> Result<Value, String> {
    let read: T = serde_json::from_value(input.clone()).map_err(|e| e.to_string())?;
    serde_json::to_value(read).map_err(|e| e.to_string())
}

fn round_trip(kind: &str, input: &Value) -> Result<Value, String> {
    use ahp_types::commands::{ChangesetOperationTarget, ChatSource, Implementation, InitializeResult};
    use ahp_types::common::StringOrMarkdown;
    use ahp_types::messages::JsonRpcMessage;
    use ahp_types::notifications::{PartialSessionSummary, SessionAddedParams};
    use ahp_types::state::{ChatInputQuestion, Customization, SessionStatus, SessionSummary};
    match kind {
        // As the host and the satellite read them, which must not differ from what upstream makes of it.
        "StateAction" => {
            let ours = through::<Action>(input)?;
            assert_eq!(ours, through::<StateAction>(input)?);
            Ok(ours)
        }
        "ActionEnvelope" => {
            let ours = through::<Envelope>(input)?;
            assert_eq!(comparable(ours.clone()), comparable(through::<ActionEnvelope>(input)?));
            Ok(ours)
        }
        "JsonRpcMessage" => through::<JsonRpcMessage>(input),
        "ChatSource" => through::<ChatSource>(input),
        "InitializeResult" => through::<InitializeResult>(input),
        "SessionStatus" => through::<SessionStatus>(input),
        "Customization" => through::<Customization>(input),
        "ChangesetOperationTarget" => through::<ChangesetOperationTarget>(input),
        "StringOrMarkdown" => through::<StringOrMarkdown>(input),
        "ChatInputQuestion" => through::<ChatInputQuestion>(input),
        "SessionSummary" => through::<SessionSummary>(input),
        "PartialSessionSummary" => through::<PartialSessionSummary>(input),
        "Implementation" => through::<Implementation>(input),
        "SessionAddedParams" => through::<SessionAddedParams>(input),
        other => panic!("no type {other}"),
    }
}

#[test]
fn every_round_trip_fixture_passes_or_has_a_reason() {
    let Some(corpus) = wanted("AHP_CORPUS").map(PathBuf::from) else { return };
    let mut failed = vec![];
    for (name, fixture) in fixtures(&corpus.join("round-trips")) {
        let kind = fixture["type"].as_str().expect("a type");
        let outputs = fixture["acceptableOutputs"].as_array().expect("outputs");
        match round_trip(kind, &fixture["input"]) {
            Ok(output) => {
                let why = outputs.iter().map(|expected| difference("", expected, &output));
                let why: Option<Vec<String>> = why.collect();
                failed.extend(why.map(|why| format!("{name}: {}", why.join("; "))));
            }
            Err(why) => failed.push(format!("{name}: {why}")),
        }
    }
    let report = format!("{} do not pass:\n{}", failed.len(), failed.join("\n"));
    writeln!(std::io::stderr(), "{report}").expect("stderr");
    // A customization has no such member in 0.9.0.
    assert_eq!(failed, ["027-agent-customization-model-and-tools.json: /enabled should be true, is null"]);
}
