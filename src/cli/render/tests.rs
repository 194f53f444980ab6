use ahp_types::StateAction;
use axp_protocol::action::{AxpAction, Envelope};
use serde_json::{Value, json};

use super::*;
use crate::cli::follow::View;

/// A session that nobody has touched.
pub(crate) fn sample_view() -> View {
    let value = json!({
        "chat": {
            "resource": "ahp-chat:/s", "title": "Fix add.sh", "status": 1,
            "modifiedAt": "2026-01-01T00:00:00.000Z", "turns": [],
        },
        "exchange": {
            "resource": "axp-session:/s", "session": "ahp-session:/s", "chat": "ahp-chat:/s",
            "repository": "acme/parser", "task": "issue-42", "status": "open", "epoch": 0, "lease": null,
            "grants": {}, "reservation": null, "usage": [], "checkpoint": null,
            "context": {
                "revision": 0, "throughTurn": 0, "summary": "", "decisions": [], "activeFiles": [],
                "gitHead": null, "prefixHash": "",
            },
            "compaction": null, "review": null, "verification": null, "discussion": [],
        },
        "changeset": { "status": "ready", "files": [] },
    });
    let part = |name: &str| value[name].clone();
    View {
        chat: serde_json::from_value(part("chat")).unwrap(),
        exchange: serde_json::from_value(part("exchange")).unwrap(),
        changeset: serde_json::from_value(part("changeset")).unwrap(),
    }
}

/// A session and what is shown of it.
struct Screen {
    view: View,
    renderer: Renderer,
    seq: u64,
}

impl Screen {
    fn new() -> Self {
        let session = Id::new("s").unwrap();
        let mut renderer = Renderer::new(Style::plain(), session, Some("axp".into()));
        let view = sample_view();
        renderer.skip(&view);
        Self { view, renderer, seq: 0 }
    }

    /// Applies an action without looking.
    fn apply(&mut self, action: Value) {
        self.seq += 1;
        let kind = action["type"].as_str().unwrap().to_owned();
        let (channel, action) = if kind.starts_with("_axp/") {
            ("axp-session:/s", serde_json::from_value::<AxpAction>(action).unwrap().into())
        } else {
            let channel = if kind.starts_with("changeset/") { "ahp-changeset:/s" } else { "ahp-chat:/s" };
            let action: StateAction = serde_json::from_value(action).unwrap();
            assert!(!matches!(action, StateAction::Unknown(_)), "{kind}");
            (channel, action.into())
        };
        let envelope = Envelope {
            channel: channel.into(),
            action,
            server_seq: self.seq,
            origin: None,
            rejection_reason: None,
        };
        self.view.apply(&Id::new("s").unwrap(), &envelope);
    }

    fn look(&mut self) -> String {
        self.renderer.update(&self.view)
    }

    fn all(&mut self, actions: Vec<Value>) -> String {
        let mut text = String::new();
        for action in actions {
            self.apply(action);
            text += &self.look();
        }
        text
    }
}

fn grant(tokens: u64) -> Value {
    json!({
        "id": "g", "owner": "bob", "revoked": false, "enforcement": "accounting",
        "limit": {"tokens": 100_000, "costMicros": 1_000_000, "turns": 10},
        "spent": {"tokens": tokens, "costMicros": 12_300, "turns": 1},
    })
}

fn lease(epoch: u64) -> Value {
    let lease = json!({
        "owner": "bob", "executorId": "e", "epoch": epoch, "expiresAt": 1, "heartbeatMs": 1, "grantId": "g",
    });
    json!({"type": "_axp/leaseChanged", "lease": lease, "epoch": epoch, "status": "open"})
}

fn started(id: &str, text: &str) -> Value {
    json!({
        "type": "chat/turnStarted", "turnId": id, "startedAt": "2026-01-01T00:00:00.000Z",
        "message": {"text": text, "origin": {"kind": "user"}},
    })
}

fn part(kind: &str, id: &str, content: &str) -> Value {
    let part = json!({"kind": kind, "id": id, "content": content});
    json!({"type": "chat/responsePart", "turnId": "t", "part": part})
}

fn asks() -> Vec<Value> {
    let options = json!([
        {"id": "once", "label": "Allow once", "kind": "approve"},
        {"id": "no", "label": "Reject", "kind": "deny"},
    ]);
    vec![
        json!({"type": "chat/toolCallStart", "turnId": "t", "toolCallId": "c1", "toolName": "edit", "displayName": "Edit"}),
        json!({
            "type": "chat/toolCallReady", "turnId": "t", "toolCallId": "c1", "invocationMessage": "Edit add.sh",
            "toolInput": "echo \u{1b}]0;hidden\u{7}", "options": options,
        }),
    ]
}

fn allowed() -> Value {
    json!({
        "type": "chat/toolCallConfirmed", "turnId": "t", "toolCallId": "c1", "approved": true,
        "confirmed": "user-action", "selectedOptionId": "once",
    })
}

fn edited() -> Value {
    let content: Vec<_> = (1..=8).map(|n| format!("line {n}")).collect();
    json!({
        "type": "chat/toolCallComplete", "turnId": "t", "toolCallId": "c1",
        "result": {
            "success": true, "pastTenseMessage": "Edited add.sh",
            "content": [{"type": "text", "text": content.join("\n")}],
        },
    })
}

fn settled() -> Value {
    let usage = json!({
        "inputTokens": 1200, "outputTokens": 34, "cacheReadTokens": 0, "costMicros": 12_300, "source": "reported",
    });
    json!({"type": "_axp/settled", "turnId": "t", "grant": grant(1234), "usage": usage})
}

fn whole_turn() -> Vec<Value> {
    let mut actions = vec![
        json!({"type": "_axp/grantChanged", "grant": grant(0)}),
        lease(1),
        started("t", "Fix add.sh,\nplease"),
        part("reasoning", "r", "It subtracts."),
        json!({"type": "chat/reasoning", "turnId": "t", "partId": "r", "content": " Hm."}),
        part("markdown", "m", ""),
        json!({"type": "chat/delta", "turnId": "t", "partId": "m", "content": "I will \u{1b}[3"}),
        json!({"type": "chat/delta", "turnId": "t", "partId": "m", "content": "1mfix it."}),
    ];
    actions.extend(asks());
    actions.extend([
        allowed(),
        edited(),
        part("markdown", "m2", "Fixed."),
        json!({"type": "changeset/contentChanged", "files": [{"id": "add.sh", "edit": {}}]}),
        json!({"type": "_axp/checkpointChanged", "checkpoint": {
            "baseCommit": "a".repeat(40), "headCommit": "0123456789abcdef0123456789abcdef01234567",
            "branch": "axp/s", "createdAt": 1,
            "bundle": {"uri": "u", "sha256": "b".repeat(64), "size": 1, "mediaType": "x"},
            "patch": {"uri": "u", "sha256": "b".repeat(64), "size": 1, "mediaType": "x"},
        }}),
        settled(),
        json!({"type": "chat/turnComplete", "turnId": "t", "duration": 4200}),
    ]);
    actions
}

const WHOLE_TURN: &str = "\
◇ grant g of bob: gives 100,000 tokens, $1.00, 10 turns
▸ bob has parked an agent (epoch 1)
› Fix add.sh,
  please
It subtracts. Hm.
I will fix it.
● Edit add.sh
  ? may it?
  │ echo \\u{1b}]0;hidden\\u{7}
  once (Allow once) · no (Reject)
  axp approve s
  axp deny s
  allowed (Allow once)
  ✓ Edited add.sh
  │ … 2 lines before
  │ line 3
  │ line 4
  │ line 5
  │ line 6
  │ line 7
  │ line 8
Fixed.
◆ checkpoint 0123456789 on axp/s: 1 file
✓ done · 1,200 in, 34 out · $0.0123 · 4.2 s
  left: 98,766 tokens, $0.9877, 9 turns
";

#[test]
fn a_turn_reads_from_top_to_bottom() {
    assert_eq!(Screen::new().all(whole_turn()), WHOLE_TURN);
}

#[test]
fn however_often_one_looks_nothing_is_shown_twice_or_left_out() {
    let actions = whole_turn();
    for skip in 1..=actions.len() {
        let mut screen = Screen::new();
        let mut text = String::new();
        for (i, action) in actions.iter().enumerate() {
            screen.apply(action.clone());
            if i % skip == 0 {
                text += &screen.look();
                assert_eq!(screen.look(), "");
            }
        }
        text += &screen.look();
        for once in [
            "I will fix it.",
            "Hm.",
            "Edited add.sh",
            "allowed (",
            "Fixed.",
            "checkpoint",
            "✓ done",
            "› Fix",
            "left:",
        ] {
            assert_eq!(text.matches(once).count(), 1, "{once:?} with every {skip}th look:\n{text}");
        }
    }
}

#[test]
fn one_of_several_questions_is_named() {
    let mut screen = Screen::new();
    let mut actions = vec![started("t", "go")];
    actions.extend(asks());
    screen.all(actions);
    let second: Vec<_> = asks()
        .into_iter()
        .map(|mut action| {
            action["toolCallId"] = json!("c 2");
            action
        })
        .collect();
    let text = screen.all(second);
    assert!(text.contains("axp approve s --tool 'c 2'\n"), "{text}");
}

#[test]
fn a_failed_turn_says_why() {
    let mut screen = Screen::new();
    let error = json!({"kind": "error", "error": {"errorType": "budget", "message": "nothing is left"}});
    let text = screen.all(vec![
        started("t", "go"),
        json!({"type": "chat/error", "turnId": "t", "duration": 10, "part": error}),
    ]);
    assert_eq!(text, "› go\n✗ failed: nothing is left · 10 ms\n");
}

#[test]
fn a_question_that_ends_with_its_turn_was_not_allowed() {
    let mut screen = Screen::new();
    let mut actions = vec![started("t", "go")];
    actions.extend(asks());
    actions.push(json!({"type": "chat/turnCancelled", "turnId": "t", "duration": 0}));
    let text = screen.all(actions);
    assert!(text.ends_with("  not allowed\n  – not done\n■ cancelled · 0 ms\n"), "{text}");
}

#[test]
fn leases_and_grants_come_and_go() {
    let mut screen = Screen::new();
    let phase =
        |status: &str| json!({"type": "_axp/leaseChanged", "lease": null, "epoch": 2, "status": status});
    let mut raised = grant(0);
    raised["limit"]["turns"] = json!(20);
    let mut revoked = raised.clone();
    revoked["revoked"] = json!(true);
    let text = screen.all(vec![
        json!({"type": "_axp/grantChanged", "grant": grant(0)}),
        lease(1),
        lease(1),
        lease(2),
        json!({"type": "_axp/grantChanged", "grant": raised}),
        json!({"type": "_axp/grantChanged", "grant": revoked}),
        phase("orphaned"),
        lease(3),
        phase("open"),
        phase("closed"),
    ]);
    assert_eq!(
        text,
        "\
◇ grant g of bob: gives 100,000 tokens, $1.00, 10 turns
▸ bob has parked an agent (epoch 1)
▸ bob is back (epoch 2)
◇ grant g of bob: is now 100,000 tokens, $1.00, 20 turns
◇ grant g of bob: revoked
▹ bob is gone: the session waits for somebody to park at it
▸ bob has parked an agent (epoch 3)
▹ bob has taken the agent away
▪ the session is closed
"
    );
}

#[test]
fn messages_that_wait_are_shown() {
    let mut screen = Screen::new();
    let set = |kind: &str, id: &str, text: &str| {
        json!({
            "type": "chat/pendingMessageSet", "kind": kind, "id": id,
            "message": {"text": text, "origin": {"kind": "user"}},
        })
    };
    let text = screen.all(vec![
        started("t", "go"),
        set("queued", "q", "then a test"),
        set("steering", "p", "stop\u{7}"),
    ]);
    assert_eq!(text, "› go\n» queued: then a test\n» steering: stop\n");
}

#[test]
fn joining_late_shows_how_things_stand() {
    let mut screen = Screen::new();
    for action in whole_turn() {
        screen.apply(action);
    }
    let mut late = Renderer::new(Style::plain(), Id::new("s").unwrap(), None);
    assert_eq!(
        late.attach(&screen.view),
        "\
s  Fix add.sh
bob's agent is parked here (epoch 1)
grant g of bob: 98,766 tokens, $0.9877, 9 turns left
checkpoint 0123456789 on axp/s
1 turn so far
"
    );
    assert_eq!(late.update(&screen.view), "");
}
