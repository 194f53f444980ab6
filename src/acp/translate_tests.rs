use std::collections::HashSet;

use ahp_types::state::{ConfirmationOptionKind, ToolCallState};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::acp::test_host::{BASE, Host};

fn translator(turn_id: &str, taken: HashSet<String>) -> Translator {
    let context = TurnContext { turn_id: turn_id.into(), blob_base: BASE.into(), ceiling_micros: 0 };
    Translator::new(&context, "/work".into(), taken)
}

fn pair() -> (Translator, Host) {
    (translator("t1", HashSet::new()), Host::new())
}

fn say(text: &str) -> Value {
    json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})
}

fn think(text: &str) -> Value {
    json!({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": text}})
}

fn tool(id: &str, rest: Value) -> Value {
    let mut update = json!({"sessionUpdate": "tool_call_update", "toolCallId": id});
    for (name, value) in rest.as_object().unwrap() {
        update[name] = value.clone();
    }
    update
}

fn options() -> Vec<ConfirmationOption> {
    let option = |id: &str, kind| ConfirmationOption { id: id.into(), label: id.into(), kind, group: None };
    vec![option("yes", ConfirmationOptionKind::Approve), option("no", ConfirmationOptionKind::Deny)]
}

fn text_item(text: &str) -> Value {
    json!({"type": "content", "content": {"type": "text", "text": text}})
}

#[test]
fn text_is_appended_until_something_else_comes_between() {
    let (mut translator, mut host) = pair();
    for update in [
        say("Hel"),
        say(""),
        say("lo"),
        think("hm"),
        think("!"),
        say("again"),
        json!({"sessionUpdate": "current_mode_update"}),
        say(" and again"),
        tool("c1", json!({"title": "Look"})),
        say("end"),
    ] {
        host.accept(translator.update(&update));
    }
    let parts: Vec<(&str, &str)> = host
        .parts()
        .iter()
        .map(|part| match part {
            ResponsePart::Markdown(part) => (part.id.as_str(), part.content.as_str()),
            ResponsePart::Reasoning(part) => (part.id.as_str(), part.content.as_str()),
            ResponsePart::ToolCall(_) => ("tool", ""),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        parts,
        [
            ("t1.part-1", "Hello"),
            ("t1.part-2", "hm!"),
            ("t1.part-3", "again and again"),
            ("tool", ""),
            ("t1.part-4", "end"),
        ]
    );
    assert_eq!((translator.ignored(), translator.dropped()), (1, 0));
    assert_eq!(translator.visible_bytes(), 5 + 3 + 15 + 3);
}

#[test]
fn long_chunks_are_cut_between_characters() {
    let (mut translator, mut host) = pair();
    let text = "ä".repeat(LONGEST_DELTA * 2 + 1);
    assert_eq!(host.accept(translator.update(&say(&text))), 4);
    assert_eq!(host.text(), text);
}

#[test]
fn other_content_becomes_a_referenced_blob() {
    let (mut translator, mut host) = pair();
    for update in [
        json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "image", "mimeType": "image/png", "data": "AQID"}}),
        json!({"sessionUpdate": "plan", "entries": [{"content": "x", "priority": "low", "status": "pending"}]}),
        json!({"sessionUpdate": "from_the_future", "uri": "file:///x"}),
        json!({"sessionUpdate": "agent_message_chunk"}),
    ] {
        assert_eq!(host.accept(translator.update(&update)), 1, "{update}");
    }
    let kinds: Vec<&str> = host
        .parts()
        .iter()
        .map(|part| match part {
            ResponsePart::ContentRef(link) => link.content_type.as_deref().unwrap(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, ["image/png", "application/json", "application/json", "application/json"]);
}

#[test]
fn a_tool_runs_through_its_life() {
    let (mut translator, mut host) = pair();
    let start = json!({"sessionUpdate": "tool_call", "toolCallId": "c1", "title": "Edit \u{1b}[1ma.rs", "kind": "edit"});
    host.accept(translator.update(&start));
    assert!(matches!(host.tool("c1"), ToolCallState::Streaming(call)
        if call.tool_name == "edit" && call.display_name == "Edit a.rs"));
    host.accept(
        translator.update(&tool("c1", json!({"status": "in_progress", "rawInput": {"path": "a.rs"}}))),
    );
    assert!(matches!(host.tool("c1"), ToolCallState::Running(_)));
    host.accept(translator.update(&tool("c1", json!({"content": [text_item("half")]}))));
    assert_eq!(host.accept(translator.update(&tool("c1", json!({"content": [text_item("half")]})))), 0);
    assert!(matches!(host.tool("c1"), ToolCallState::Running(call) if call.content.is_some()));
    let diff = json!({"type": "diff", "path": "/work/a.rs", "oldText": "1", "newText": "2"});
    host.accept(
        translator.update(&tool("c1", json!({"status": "completed", "content": [text_item("all"), diff]}))),
    );
    assert!(matches!(host.tool("c1"), ToolCallState::Completed(call)
        if call.success && call.content.as_ref().unwrap().len() == 2 && call.tool_input.is_some()));
    assert_eq!(host.accept(translator.update(&tool("c1", json!({"status": "failed"})))), 0);
    assert_eq!(translator.dropped(), 1);
}

#[test]
fn an_update_for_an_unknown_tool_opens_it_and_a_second_start_merges() {
    let (mut translator, mut host) = pair();
    let failed = tool("c9", json!({"status": "failed", "rawOutput": {"error": "boom"}}));
    assert_eq!(host.accept(translator.update(&failed)), 3);
    assert!(matches!(host.tool("c9"), ToolCallState::Completed(call)
        if !call.success && call.error.is_some() && call.tool_name == "tool"));

    let mut start = json!({"sessionUpdate": "tool_call", "toolCallId": "c1", "title": "One"});
    host.accept(translator.update(&start));
    start["title"] = json!("Two");
    start["status"] = json!("in_progress");
    host.accept(translator.update(&start));
    assert!(
        matches!(host.tool("c1"), ToolCallState::Running(call) if call.invocation_message.as_text() == "Two")
    );
}

#[test]
fn a_permission_opens_the_tool_and_holds_back_its_results() {
    let (mut translator, mut host) = pair();
    let diff = json!({"type": "diff", "path": "a", "newText": "2"});
    let fields = json!({"toolCallId": "c1", "title": "Write", "kind": "edit", "content": [diff]});
    let (emission, id) = translator.permission(&fields, options());
    host.accept(emission);
    assert_eq!(id, "c1");
    assert!(matches!(host.tool("c1"), ToolCallState::PendingConfirmation(call)
        if call.options.as_ref().unwrap().len() == 2 && call.edits.is_some()));
    assert_eq!(host.accept(translator.update(&tool("c1", json!({"status": "completed"})))), 0);
    host.decide("c1", true);
    host.accept(translator.decided("c1", true));
    assert!(matches!(host.tool("c1"), ToolCallState::Completed(call) if call.success));
}

#[test]
fn a_denied_tool_stays_denied_and_may_be_asked_for_anew() {
    let (mut translator, mut host) = pair();
    let fields = json!({"toolCallId": "c1", "title": "Write"});
    host.accept(translator.permission(&fields, options()).0);
    host.decide("c1", false);
    host.accept(translator.decided("c1", false));
    assert_eq!(host.accept(translator.update(&tool("c1", json!({"status": "failed"})))), 0);
    assert_eq!(translator.dropped(), 1);

    let (emission, id) = translator.permission(&fields, options());
    host.accept(emission);
    assert_eq!(id, "c1~2");
    host.decide(&id, true);
    host.accept(translator.decided(&id, true));
    host.accept(translator.update(&tool("c1", json!({"status": "completed"}))));
    assert!(matches!(host.tool("c1~2"), ToolCallState::Completed(_)));
}

#[test]
fn a_tool_may_ask_twice() {
    let (mut translator, mut host) = pair();
    let fields = json!({"toolCallId": "c1", "title": "Run"});
    host.accept(translator.permission(&fields, options()).0);
    assert_eq!(host.accept(translator.permission(&fields, options()).0), 0, "one choice at a time");
    host.decide("c1", true);
    host.accept(translator.decided("c1", true));
    host.decide("c1", true);
    host.accept(translator.decided("c1", true));
    assert!(matches!(host.tool("c1"), ToolCallState::Running(_)));
    host.accept(translator.update(&tool("c1", json!({"content": [text_item("x")]}))));
    host.accept(translator.permission(&fields, options()).0);
    host.decide("c1", true);
    host.accept(translator.decided("c1", true));
    assert!(matches!(host.tool("c1"), ToolCallState::Running(call) if call.content.is_some()));
}

#[test]
fn ids_are_taken_once_over_all_turns() {
    let (mut first, mut host) = pair();
    host.accept(first.update(&tool("call_1", json!({"status": "completed"}))));
    let taken = first.into_taken();
    let mut second = translator("t2", taken);
    host.start("t2");
    host.accept(second.update(&tool("call_1", json!({"status": "completed"}))));
    host.accept(second.update(&tool("bad\u{7}id", json!({}))));
    host.accept(second.update(&tool(&"x".repeat(5000), json!({}))));
    assert!(matches!(host.tool("call_1~2"), ToolCallState::Completed(_)));
    assert!(host.ids.iter().all(|id| id.len() < 250));
}

#[test]
fn what_comes_after_the_end_is_dropped_and_counted() {
    let (mut translator, mut host) = pair();
    translator.finish();
    for update in [say("late"), tool("c1", json!({}))] {
        assert_eq!(host.accept(translator.update(&update)), 0);
    }
    assert_eq!(translator.dropped(), 2);
}

#[derive(Clone, Debug)]
enum Step {
    Update(Value),
    Ask(Value),
    Decide(usize, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let id = prop_oneof!["[abc]", Just(String::new())];
    let status = prop_oneof![
        Just(Value::Null),
        Just(json!("pending")),
        Just(json!("in_progress")),
        Just(json!("completed")),
        Just(json!("failed")),
        Just(json!("paused")),
    ];
    let item = prop_oneof![
        "[a-z]{0,9}".prop_map(|text| text_item(&text)),
        (3000usize..6000).prop_map(|length| text_item(&"z".repeat(length))),
        Just(json!({"type": "diff", "path": "/work/x", "oldText": "a", "newText": "b"})),
        Just(json!({"type": "terminal", "terminalId": "1", "uri": "x"})),
    ];
    let content = prop_oneof![
        Just(Value::Null),
        proptest::collection::vec(item, 0..9).prop_map(Value::Array),
        Just(json!("wrong")),
    ];
    let fields = (id, status, content, any::<bool>(), 0usize..6000).prop_map(
        |(id, status, content, titled, input)| {
            let mut fields = json!({"toolCallId": id, "status": status, "content": content});
            if titled {
                fields["title"] = json!("Title\u{1b}[0m");
                fields["rawInput"] = json!({ "uri": "x".repeat(input) });
            }
            fields
        },
    );
    let call = (fields.clone(), any::<bool>()).prop_map(|(mut fields, start)| {
        fields["sessionUpdate"] = json!(if start { "tool_call" } else { "tool_call_update" });
        fields
    });
    prop_oneof![
        2 => "\\PC{0,8}".prop_map(|text| Step::Update(say(&text))),
        1 => "\\PC{0,8}".prop_map(|text| Step::Update(think(&text))),
        4 => call.prop_map(Step::Update),
        2 => fields.prop_map(Step::Ask),
        3 => (0usize..4, any::<bool>()).prop_map(|(at, approved)| Step::Decide(at, approved)),
        1 => Just(Step::Update(json!({"sessionUpdate": "novel", "uri": "file:///x"}))),
        1 => Just(Step::Update(Value::Null)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn a_host_accepts_whatever_an_agent_does(steps in proptest::collection::vec(step(), 0..40)) {
        let (mut translator, mut host) = pair();
        let mut asked: Vec<String> = Vec::new();
        let mut said = String::new();
        for step in steps {
            match step {
                Step::Update(update) => {
                    if update["sessionUpdate"] == "agent_message_chunk" {
                        said.push_str(text_of(&update["content"]).unwrap());
                    }
                    host.accept(translator.update(&update));
                }
                Step::Ask(fields) => {
                    let (emission, id) = translator.permission(&fields, options());
                    host.accept(emission);
                    asked.push(id);
                }
                Step::Decide(at, approved) if at < asked.len() => {
                    let id = asked.remove(at);
                    host.decide(&id, approved);
                    host.accept(translator.decided(&id, approved));
                    if !approved {
                        asked.retain(|other| *other != id);
                    }
                }
                Step::Decide(..) => {}
            }
        }
        prop_assert_eq!(host.text(), said);
    }
}
