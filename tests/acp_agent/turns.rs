//! Real agent processes, driven through whole turns.

use crate::agents::{Ran, answered, asks, folder, project, sample, script, start, turn};
use axp::acp::{AgentError, DecideError, Decision, Outcome, TurnEnd, TurnEvent};
use axp::sample::TURN_MICROS;

fn end(ran: &Ran) -> &TurnEnd {
    ran.end.as_ref().expect("the turn ended")
}

#[tokio::test]
async fn an_allowed_turn_fixes_the_project() {
    let folder = project();
    let mut agent = start(&sample(folder.path())).await.expect("the agent starts");
    assert_eq!(agent.info().name, "axp-sample");

    let ran = answered(&mut agent, "t1", "Fix the sum", true).await;
    assert_eq!((end(&ran).outcome, end(&ran).error.as_deref()), (Outcome::Complete, None));
    assert_eq!(ran.results(), [("Edit add.sh".to_owned(), true), ("Run the tests".to_owned(), true)]);
    assert!(ran.text().ends_with("The tests pass. Done.\n"), "{}", ran.text());
    assert!(std::fs::read_to_string(folder.path().join("add.sh")).expect("the file").contains("$1 + $2"));

    let usage = end(&ran).usage.expect("a consistent report");
    assert!(usage.input_tokens > 40 && usage.output_tokens > 10);
    assert_eq!(end(&ran).cost_micros, Some(TURN_MICROS));
    let costs: Vec<_> = ran.events.iter().filter(|event| matches!(event, TurnEvent::Cost { .. })).collect();
    assert_eq!(
        costs,
        [
            &TurnEvent::Cost { micros: 1_000, exceeded: false },
            &TurnEvent::Cost { micros: 2_000, exceeded: true }
        ]
    );

    let ran = answered(&mut agent, "t2", "And again", true).await;
    assert_eq!(end(&ran).cost_micros, Some(TURN_MICROS), "only the growth counts");
    assert!(ran.asked().is_empty(), "nothing is left to fix");
    agent.stop().await;
}

#[tokio::test]
async fn a_denied_edit_changes_nothing() {
    let folder = project();
    let mut agent = start(&sample(folder.path())).await.expect("the agent starts");
    let ran = answered(&mut agent, "t1", "Fix the sum", false).await;
    assert_eq!(end(&ran).outcome, Outcome::Complete);
    assert_eq!((ran.asked().len(), ran.results().len()), (1, 0));
    assert!(std::fs::read_to_string(folder.path().join("add.sh")).expect("the file").contains("$1 - $2"));
    agent.stop().await;
}

#[tokio::test]
async fn the_words_of_the_sample_agent_work() {
    let folder = folder();
    let mut agent = start(&sample(folder.path())).await.expect("the agent starts");
    let ran = answered(&mut agent, "t1", "please APPEND tea", true).await;
    assert_eq!(ran.results(), [("Edit NOTES.md".to_owned(), true)]);
    let ran = answered(&mut agent, "t2", "ASK2", true).await;
    assert_eq!(ran.asked().len(), 2);
    let notes = std::fs::read_to_string(folder.path().join("NOTES.md")).expect("the notes");
    assert_eq!(notes, "tea\nfirst\nsecond\n");

    let ran = answered(&mut agent, "t3", "NOPERM NOUSAGE", true).await;
    assert!(ran.asked().is_empty() && ran.results().is_empty());
    let told = end(&ran);
    assert_eq!((told.usage, told.cost_micros, &told.raw_usage), (None, None, &None));
    agent.stop().await;
}

#[tokio::test]
async fn a_turn_can_be_cancelled_while_it_talks() {
    let folder = folder();
    let mut agent = start(&sample(folder.path())).await.expect("the agent starts");
    let ran = turn(&mut agent, "t1", "SLOW", |event, cancel| {
        if format!("{event:?}").contains("Still thinking") {
            cancel.cancel();
        }
    })
    .await;
    assert_eq!((end(&ran).outcome, end(&ran).must_stop), (Outcome::Cancelled, false));
    assert!(end(&ran).usage.is_some(), "the report after a cancellation counts");

    let ran = answered(&mut agent, "t2", "NOPERM", true).await;
    assert_eq!(end(&ran).outcome, Outcome::Complete, "the agent is still good");
    agent.stop().await;
}

#[tokio::test]
async fn a_turn_can_be_cancelled_while_a_question_is_open() {
    let folder = folder();
    let mut agent = start(&sample(folder.path())).await.expect("the agent starts");
    let book = agent.permissions();
    let ran = turn(&mut agent, "t1", "APPEND x", |event, cancel| {
        if let TurnEvent::Emit(emission) = event
            && emission.actions.iter().any(|action| asks(action).is_some())
        {
            assert_eq!(book.open(), ["tool-1-1"]);
            let wrong = Decision { approved: true, option_id: Some("reject".into()) };
            assert_eq!(book.decide("tool-1-1", &wrong), Err(DecideError::NotOffered));
            cancel.cancel();
        }
    })
    .await;
    assert_eq!(end(&ran).outcome, Outcome::Cancelled);
    assert!(book.open().is_empty());
    let late = Decision { approved: true, option_id: None };
    assert_eq!(book.decide("tool-1-1", &late), Err(DecideError::NotOpen));
    assert!(!folder.path().join("NOTES.md").exists());
    agent.stop().await;
}

#[tokio::test]
async fn a_crash_tells_the_last_words() {
    for guarded in [true, false] {
        let folder = folder();
        let mut spec = sample(folder.path());
        spec.guard = spec.guard.filter(|_| guarded);
        let mut agent = start(&spec).await.expect("the agent starts");
        let exited = agent.exited();
        let ran = answered(&mut agent, "t1", "CRASH", true).await;
        let expected = AgentError::Exited {
            status: "exited with status 3".into(),
            stderr: "sample agent: crashing as asked".into(),
        };
        assert_eq!(ran.end, Err(expected.clone()));
        assert!(ran.text().contains("I have read the task."), "what was said before counts");
        assert_eq!(crate::agents::soon("the exit", exited).await, expected);
        agent.stop().await;
    }
}

/// Asks for a permission with these options and says what it was answered.
fn asker(options: &str) -> String {
    format!(
        r#"hello; next; prompt=$id
printf '{{"jsonrpc":"2.0","id":0,"method":"session/request_permission","params":{{"sessionId":"s","toolCall":{{"toolCallId":"c"}},"options":{options}}}}}\n'
next
say "$(printf '%s' "$line" | sed 's/.*"outcome":{{\([^}}]*\)}}.*/\1/; s/"//g')"
update '{{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed"}}'
id=$prompt; reply '{{"stopReason":"end_turn"}}'; next"#
    )
}

#[tokio::test]
async fn only_offered_options_are_answered() {
    for (options, approved, said, results) in [
        (r#"[]"#, true, "outcome:cancelled", 1),
        (r#"[{"optionId":"y","name":"Y","kind":"allow_always"}]"#, true, "optionId:y", 1),
        (r#"[{"optionId":"y","name":"Y","kind":"allow_once"}]"#, false, "outcome:cancelled", 0),
        (r#"[{"optionId":"n","name":"N","kind":"reject_always"}]"#, false, "optionId:n", 0),
        (r#"[{"optionId":"z","name":"Z","kind":"what_is_this"}]"#, false, "outcome:cancelled", 0),
    ] {
        let folder = folder();
        let mut agent = start(&script(folder.path(), &asker(options))).await.expect("the agent starts");
        let ran = answered(&mut agent, "t1", "go", approved).await;
        assert!(ran.text().contains(said), "{options}: {}", ran.text());
        assert_eq!(ran.results().len(), results, "{options}");
        assert_eq!(end(&ran).dropped, u64::from(results == 0), "{options}");
        agent.stop().await;
    }
}

#[tokio::test]
async fn file_requests_are_unknown_methods_and_the_turn_goes_on() {
    let folder = folder();
    let body = r#"hello; next; prompt=$id
printf '{"jsonrpc":"2.0","id":0,"method":"fs/write_text_file","params":{"sessionId":"s","path":"x","content":""}}\n'
next; say "$(printf '%s' "$line" | sed 's/.*"code":\(-[0-9]*\).*/\1/')"
id=$prompt; reply '{"stopReason":"a_new_reason","usage":{"totalTokens":3,"inputTokens":2,"outputTokens":1}}'
say late; next"#;
    let mut agent = start(&script(folder.path(), body)).await.expect("the agent starts");
    let ran = answered(&mut agent, "t1", "go", true).await;
    assert_eq!(ran.text(), "-32601");
    assert_eq!(end(&ran).outcome, Outcome::Error);
    assert!(end(&ran).error.as_ref().is_some_and(|error| error.contains("a_new_reason")));
    assert!(end(&ran).usage.is_some(), "the usage is kept");
    agent.stop().await;
}

#[tokio::test]
async fn an_error_answer_ends_the_turn_and_not_the_agent() {
    let folder = folder();
    let body = r#"hello; next
printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32603,"message":"no model","data":{"details":"quota"}}}\n' "$id"
next; say well; reply '{"stopReason":"end_turn"}'; next"#;
    let mut agent = start(&script(folder.path(), body)).await.expect("the agent starts");
    let ran = answered(&mut agent, "t1", "go", true).await;
    assert_eq!(
        end(&ran).error.as_deref(),
        Some("the agent answered with an error: no model: quota (-32603)")
    );
    let ran = answered(&mut agent, "t2", "go", true).await;
    assert_eq!((end(&ran).outcome, ran.text().as_str()), (Outcome::Complete, "well"));
    agent.stop().await;
}

#[tokio::test]
async fn an_agent_that_ignores_a_cancellation_must_be_stopped() {
    let folder = folder();
    let mut agent =
        start(&script(folder.path(), "hello; next; say on; while :; do next; done")).await.expect("started");
    let ran = turn(&mut agent, "t1", "go", |_, cancel| cancel.cancel()).await;
    assert_eq!((end(&ran).outcome, end(&ran).must_stop), (Outcome::Cancelled, true));
    let ran = answered(&mut agent, "t2", "go", true).await;
    assert_eq!(ran.end, Err(AgentError::Busy));
    agent.stop().await;
}

#[tokio::test]
async fn what_comes_between_turns_is_dropped_and_counted() {
    let folder = folder();
    let body = r#"hello; say early; echo heard; next; say one; reply '{"stopReason":"end_turn"}'; say late; say later
printf '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"other","update":{}}}\n'
echo heard; next; say two; reply '{"stopReason":"end_turn"}'; next"#;
    let mut agent = start(&script(folder.path(), body)).await.expect("the agent starts");
    let heard = async |agent: &axp::acp::Agent, lines| {
        crate::agents::soon("the stragglers", async {
            while agent.noise().lines < lines {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        })
        .await;
    };
    heard(&agent, 1).await;
    let first = answered(&mut agent, "t1", "go", true).await;
    heard(&agent, 2).await;
    let second = answered(&mut agent, "t2", "go", true).await;
    assert_eq!((first.text().as_str(), second.text().as_str()), ("one", "two"));
    assert_eq!(end(&first).dropped + end(&second).dropped, 4);
    agent.stop().await;
}

/// The example agent of the ACP TypeScript SDK 1.0, which asks for a permission in the middle of its turn.
#[tokio::test]
async fn the_sdk_example_agent_takes_a_turn() {
    let Some(path) = crate::wanted::wanted("AXP_SDK_AGENT") else { return };
    let folder = folder();
    let mut spec = axp::acp::AgentSpec::new("node", vec![path], folder.path());
    spec.start_timeout = std::time::Duration::from_secs(50);
    spec.guard = Some(crate::agents::AXP.into());
    let mut agent = start(&spec).await.expect("the agent starts");
    for approved in [true, false] {
        let ran = answered(&mut agent, if approved { "t1" } else { "t2" }, "hello", approved).await;
        assert_eq!(end(&ran).outcome, Outcome::Complete);
        assert_eq!(ran.asked().len(), 1);
        assert_eq!(ran.results().len(), if approved { 2 } else { 1 }, "{:?}", ran.events);
        assert_eq!((end(&ran).usage, end(&ran).cost_micros), (None, None));
    }
    let ran = turn(&mut agent, "t3", "hello", |event, cancel| {
        if let TurnEvent::Emit(emission) = event
            && emission.actions.iter().any(|action| asks(action).is_some())
        {
            cancel.cancel();
        }
    })
    .await;
    assert_eq!((end(&ran).outcome, end(&ran).must_stop), (Outcome::Cancelled, false));
    agent.stop().await;
}
