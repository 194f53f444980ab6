//! The authority behind its own channel, with a real store: promises of section 7.

mod model;
mod reviewed;
mod support;

use serde_json::json;
use support::*;

#[test]
fn initialize_comes_first_and_once() {
    let host = TestHost::new();
    let mut raw = host.raw("maria");
    assert_eq!(raw.call("listSessions", json!({"channel": "ahp-root://"})).unwrap_err().0, -32009);
    assert_eq!(raw.call("ping", json!({"channel": "ahp-root://"})).unwrap(), json!(null));
    raw.hello("c1");
    assert_eq!(raw.call("initialize", hello_params("c1")).unwrap_err().0, -32011);
}

#[test]
fn a_client_id_belongs_to_its_first_principal() {
    let host = TestHost::new();
    host.raw("maria").hello("shared");
    let refused = host.raw("carl").call("initialize", hello_params("shared")).unwrap_err();
    assert_eq!(refused.0, -32009);
    host.raw("maria").hello("shared");
}

#[test]
fn other_versions_are_refused() {
    let host = TestHost::new();
    let mut params = hello_params("c");
    params["protocolVersions"] = json!(["0.8.0"]);
    let refused = host.raw("maria").call("initialize", params).unwrap_err();
    assert_eq!(refused.0, -32005);
    let mut params = hello_params("c");
    params["_meta"]["org.axp.exchange"]["version"] = json!("0.1.0");
    assert_eq!(host.raw("maria").call("initialize", params).unwrap_err().0, -32005);
}

#[test]
fn a_turn_from_grant_to_settlement() {
    let host = TestHost::new();
    let mut maria = host.peer("maria");
    let mut carl = host.peer("carl");
    maria.create("fix");
    maria.call("subscribe", json!({"channel": "ahp-chat:/fix"})).unwrap();
    let epoch = carl.park("fix", 1000);
    maria.prompt("fix", "t1").unwrap();
    carl.reserve("fix", epoch, "t1", 400).unwrap();
    carl.emit("fix", epoch, json!([
        {"type": "chat/responsePart", "turnId": "t1", "part": {"kind": "markdown", "id": "p", "content": ""}},
        {"type": "chat/delta", "turnId": "t1", "partId": "p", "content": "Hello"},
    ]))
    .unwrap();
    carl.settle("fix", epoch, "t1", json!({
        "inputTokens": 100, "outputTokens": 20, "cacheReadTokens": 10, "costMicros": 5, "source": "reported"
    }))
    .unwrap();
    let exchange = maria.snapshot("axp-session:/fix");
    assert_eq!(exchange["grants"]["g"]["spent"], json!({"tokens": 120, "costMicros": 5, "turns": 1}));
    assert_eq!(exchange["reservation"], json!(null));
    let chat = maria.snapshot("ahp-chat:/fix");
    assert_eq!(chat["turns"][0]["responseParts"][0]["content"], "Hello");
    assert_eq!(chat["turns"][0]["state"], "complete");
    let types: Vec<_> =
        maria.events().iter().map(|e| e["action"]["type"].as_str().unwrap().to_owned()).collect();
    assert_eq!(
        types,
        ["chat/turnStarted", "chat/responsePart", "chat/delta", "chat/usage", "chat/turnComplete"]
    );
    // Settling again is a no-op.
    carl.settle("fix", epoch, "t1", json!(null)).unwrap();
    assert_eq!(maria.snapshot("axp-session:/fix")["grants"]["g"]["spent"]["turns"], 1);
}

#[test]
fn the_same_operation_happens_once() {
    let mut host = TestHost::new();
    host.peer("maria").create("fix");
    let mut carl = host.peer("carl");
    let params = json!({"channel": "axp-session:/fix", "operationId": "op", "grantId": "g", "enforcement": "accounting",
        "limit": {"tokens": 5, "costMicros": 5, "turns": 5}});
    let first = carl.call("_axp/grant", params.clone()).unwrap();
    let before = carl.snapshot("axp-session:/fix");
    assert_eq!(carl.call("_axp/grant", params.clone()).unwrap(), first);
    assert_eq!(host.peer("carl").call("_axp/grant", params.clone()).unwrap(), first);
    let mut other = params.clone();
    other["limit"]["turns"] = json!(6);
    assert_eq!(carl.call("_axp/grant", other).unwrap_err().0, -32011);
    // Operation IDs are a principal's own.
    let mut dora = params.clone();
    dora["grantId"] = json!("dora");
    assert_eq!(host.peer("dora").call("_axp/grant", dora).unwrap()["owner"], "dora");
    host.restart();
    let mut carl = host.peer("carl");
    assert_eq!(carl.call("_axp/grant", params).unwrap(), first);
    assert_eq!(carl.snapshot("axp-session:/fix")["grants"]["g"], before["grants"]["g"]);
}

#[test]
fn a_stale_epoch_can_do_nothing() {
    let host = TestHost::new();
    let mut maria = host.peer("maria");
    maria.create("fix");
    let mut carl = host.peer("carl");
    let old = carl.park("fix", 1000);
    maria.prompt("fix", "t1").unwrap();
    carl.reserve("fix", old, "t1", 10).unwrap();
    let claim = |resume: serde_json::Value| {
        json!({"channel": "axp-session:/fix", "operationId": fresh("op"), "executorId": "e", "grantId": "g", "leaseMs": 30000,
            "resumeEpoch": resume})
    };
    let new = carl.call("_axp/claim", claim(json!(old))).unwrap()["epoch"].as_u64().unwrap();
    assert_eq!(new, old + 1);
    let before = maria.snapshot("axp-session:/fix");
    assert_eq!(before["grants"]["g"]["spent"]["tokens"], 10, "the turn in flight is charged in full");
    let chat = maria.snapshot("ahp-chat:/fix");
    assert_eq!(chat["turns"][0]["state"], "error");
    let op = || json!({"channel": "axp-session:/fix", "operationId": fresh("op"), "epoch": old});
    for method in ["_axp/renew", "_axp/release"] {
        assert_eq!(carl.call(method, op()).unwrap_err().0, -32040, "{method}");
    }
    assert_eq!(carl.reserve("fix", old, "t1", 1).unwrap_err().0, -32040);
    assert_eq!(
        carl.emit("fix", old, json!([{"type": "chat/delta", "turnId": "t1", "partId": "p", "content": ""}]))
            .unwrap_err()
            .0,
        -32040
    );
    assert_eq!(carl.settle("fix", old, "t1", json!(null)).unwrap_err().0, -32040);
    assert_eq!(carl.call("_axp/claim", claim(json!(old))).unwrap_err().0, -32040);
    assert_eq!(maria.snapshot("axp-session:/fix"), before);
}

#[test]
fn one_of_two_claims_wins() {
    let host = TestHost::new();
    host.peer("maria").create("fix");
    host.peer("carl").park("fix", 100);
    let mut dora = host.peer("dora");
    dora.grant("fix", 100);
    let refused = dora.claim("fix").unwrap_err();
    assert_eq!(refused.0, -32011);
    assert!(refused.1.contains("carl runs session fix"), "{}", refused.1);
}

#[test]
fn expiry_orphans_and_charges_in_full() {
    let host = TestHost::new();
    let mut maria = host.peer("maria");
    maria.create("fix");
    let mut carl = host.peer("carl");
    let epoch = carl.park("fix", 1000);
    maria.prompt("fix", "t1").unwrap();
    carl.reserve("fix", epoch, "t1", 300).unwrap();
    host.advance(29_000);
    let op = json!({"channel": "axp-session:/fix", "operationId": "renew", "epoch": epoch});
    carl.call("_axp/renew", op).unwrap();
    host.advance(29_000);
    assert_eq!(maria.snapshot("axp-session:/fix")["status"], "open");
    host.advance(1_001);
    let exchange = maria.snapshot("axp-session:/fix");
    assert_eq!((&exchange["status"], &exchange["lease"]), (&json!("orphaned"), &json!(null)));
    assert_eq!(exchange["grants"]["g"]["spent"]["tokens"], 300);
    assert_eq!(carl.claim("fix").unwrap(), epoch + 1);
}

#[test]
fn restart_orphans_and_history_survives() {
    let mut host = TestHost::new();
    let mut maria = host.peer("maria");
    maria.create("fix");
    let mut carl = host.peer("carl");
    let epoch = carl.park("fix", 1000);
    maria.prompt("fix", "t1").unwrap();
    carl.reserve("fix", epoch, "t1", 300).unwrap();
    host.restart();
    let mut maria = host.peer("maria");
    let exchange = maria.snapshot("axp-session:/fix");
    assert_eq!((&exchange["status"], &exchange["epoch"]), (&json!("orphaned"), &json!(epoch)));
    assert_eq!(exchange["grants"]["g"]["spent"]["tokens"], 300);
    assert_eq!(maria.snapshot("ahp-chat:/fix")["turns"][0]["state"], "error");
}

#[test]
fn cancel_steer_and_queue() {
    let host = TestHost::new();
    let mut maria = host.peer("maria");
    maria.create("fix");
    let mut carl = host.peer("carl");
    let epoch = carl.park("fix", 1000);
    maria.prompt("fix", "t1").unwrap();
    carl.reserve("fix", epoch, "t1", 100).unwrap();
    assert_eq!(maria.prompt("fix", "t2").unwrap_err().0, -32004);
    maria.pending("fix", "queued", "q1").unwrap();
    maria.pending("fix", "steering", "s1").unwrap();
    let chat = maria.snapshot("ahp-chat:/fix");
    assert_eq!(chat["turns"][0]["state"], "cancelled");
    assert_eq!(chat["activeTurn"]["id"], "s1");
    let exchange = maria.snapshot("axp-session:/fix");
    assert_eq!(exchange["grants"]["g"]["spent"]["tokens"], 100);
    carl.reserve("fix", epoch, "s1", 100).unwrap();
    carl.settle("fix", epoch, "s1", json!(null)).unwrap();
    let chat = maria.snapshot("ahp-chat:/fix");
    assert_eq!(chat["activeTurn"]["id"], "q1", "the queued message starts when the chat is free");
    maria.dispatch("fix", json!({"type": "chat/turnCancelled", "turnId": "q1", "duration": 0})).unwrap();
    assert_eq!(maria.snapshot("ahp-chat:/fix")["activeTurn"], json!(null));
    assert_eq!(maria.prompt("fix", "t1").unwrap_err().0, -32011, "turn IDs are used once");
    for n in 0..32 {
        // With a turn active, messages wait.
        if n == 0 {
            maria.prompt("fix", "t9").unwrap();
        }
        maria.pending("fix", "queued", &format!("m{n}")).unwrap();
    }
    assert_eq!(maria.pending("fix", "queued", "m32").unwrap_err().0, -32043);
}

#[test]
fn revoking_ends_the_lease() {
    let host = TestHost::new();
    let mut maria = host.peer("maria");
    maria.create("fix");
    let mut carl = host.peer("carl");
    let epoch = carl.park("fix", 1000);
    maria.prompt("fix", "t1").unwrap();
    carl.reserve("fix", epoch, "t1", 250).unwrap();
    let revoke = |op: &str| json!({"channel": "axp-session:/fix", "operationId": op, "grantId": "g"});
    assert_eq!(host.peer("dora").call("_axp/revoke", revoke("a")).unwrap_err().0, -32009);
    carl.call("_axp/revoke", revoke("b")).unwrap();
    carl.call("_axp/revoke", revoke("c")).unwrap();
    let exchange = maria.snapshot("axp-session:/fix");
    assert_eq!((&exchange["status"], &exchange["lease"]), (&json!("orphaned"), &json!(null)));
    assert_eq!(exchange["grants"]["g"]["revoked"], true);
    assert_eq!(exchange["grants"]["g"]["spent"]["tokens"], 250);
    assert_eq!(carl.claim("fix").unwrap_err().0, -32041);
}

#[test]
fn an_exhausted_grant_takes_no_more_turns() {
    let host = TestHost::new();
    let mut maria = host.peer("maria");
    maria.create("fix");
    let mut carl = host.peer("carl");
    let epoch = carl.park("fix", 100);
    maria.prompt("fix", "t1").unwrap();
    assert_eq!(carl.reserve("fix", epoch, "t1", 101).unwrap_err().0, -32041);
    carl.reserve("fix", epoch, "t1", 100).unwrap();
    let over = json!({"inputTokens": 150, "outputTokens": 20, "cacheReadTokens": 0, "costMicros": 0, "source": "reported"});
    carl.settle("fix", epoch, "t1", over).unwrap();
    assert_eq!(maria.snapshot("axp-session:/fix")["grants"]["g"]["spent"]["tokens"], 170);
    maria.prompt("fix", "t2").unwrap();
    assert_eq!(carl.reserve("fix", epoch, "t2", 1).unwrap_err().0, -32041);
    // The holder may end a turn it cannot pay for, so that whoever waits for it learns why.
    let end = json!({"channel": "axp-session:/fix", "operationId": "end", "epoch": epoch, "turnId": "t2", "usage": null,
        "outcome": "error", "error": "the budget is spent"});
    carl.call("_axp/settle", end).unwrap();
    let chat = maria.snapshot("ahp-chat:/fix");
    assert_eq!(chat["turns"][1]["responseParts"][0]["error"]["errorType"], "budget");
    assert_eq!(maria.snapshot("axp-session:/fix")["grants"]["g"]["spent"]["turns"], 1);
}

#[test]
fn permissions_are_the_maintainers() {
    let host = TestHost::new();
    let mut maria = host.peer("maria");
    maria.create("fix");
    maria.call("subscribe", json!({"channel": "ahp-session:/fix"})).unwrap();
    let mut carl = host.peer("carl");
    let epoch = carl.park("fix", 1000);
    maria.prompt("fix", "t1").unwrap();
    carl.reserve("fix", epoch, "t1", 10).unwrap();
    carl.emit("fix", epoch, json!([
        {"type": "chat/toolCallStart", "turnId": "t1", "toolCallId": "k", "toolName": "edit", "displayName": "Edit"},
        {"type": "chat/toolCallReady", "turnId": "t1", "toolCallId": "k", "invocationMessage": "Edit a file", "options": [
            {"id": "yes", "label": "Allow", "kind": "approve"}, {"id": "no", "label": "Reject", "kind": "deny"}]},
    ]))
    .unwrap();
    let needed = &maria.snapshot("ahp-session:/fix")["inputNeeded"];
    assert_eq!(needed[0]["toolCall"]["toolCallId"], "k");
    let confirm = |approved: bool, option: &str| {
        json!({"type": "chat/toolCallConfirmed", "turnId": "t1", "toolCallId": "k", "approved": approved,
            "selectedOptionId": option})
    };
    assert_eq!(carl.dispatch("fix", confirm(true, "yes")).unwrap_err().0, -32009);
    assert_eq!(maria.dispatch("fix", confirm(true, "no")).unwrap_err().0, -32009);
    assert_eq!(maria.dispatch("fix", confirm(true, "maybe")).unwrap_err().0, -32009);
    let complete = json!([{"type": "chat/toolCallComplete", "turnId": "t1", "toolCallId": "k",
        "result": {"success": true, "pastTenseMessage": "Edited"}}]);
    assert_eq!(carl.emit("fix", epoch, complete.clone()).unwrap_err().0, -32011);
    maria.dispatch("fix", confirm(true, "yes")).unwrap();
    assert_eq!(maria.snapshot("ahp-session:/fix")["inputNeeded"], json!(null));
    assert_eq!(maria.dispatch("fix", confirm(true, "yes")).unwrap_err().0, -32011);
    carl.emit("fix", epoch, complete).unwrap();
}

#[test]
fn executors_emit_only_what_is_theirs() {
    let host = TestHost::new();
    let mut maria = host.peer("maria");
    maria.create("fix");
    let mut carl = host.peer("carl");
    let epoch = carl.park("fix", 1000);
    maria.prompt("fix", "t1").unwrap();
    let part = json!([{"type": "chat/responsePart", "turnId": "t1", "part": {"kind": "markdown", "id": "p", "content": ""}}]);
    assert_eq!(carl.emit("fix", epoch, part.clone()).unwrap_err().0, -32041, "nothing is reserved");
    carl.reserve("fix", epoch, "t1", 10).unwrap();
    carl.emit("fix", epoch, part.clone()).unwrap();
    let refused = [
        (part, -32011),
        (json!([{"type": "chat/delta", "turnId": "t1", "partId": "x", "content": "a"}]), -32011),
        (json!([{"type": "chat/reasoning", "turnId": "t1", "partId": "p", "content": "a"}]), -32011),
        (json!([{"type": "chat/delta", "turnId": "t0", "partId": "p", "content": "a"}]), -32011),
        (json!([{"type": "chat/turnComplete", "turnId": "t1", "duration": 1}]), -32009),
        (
            json!([{"type": "chat/responsePart", "turnId": "t1", "part": {"kind": "error", "error": {"errorType": "x", "message": "y"}}}]),
            -32009,
        ),
        (
            json!([{"type": "chat/responsePart", "turnId": "t1", "part": {"kind": "contentRef", "uri": "file:///etc/passwd"}}]),
            -32009,
        ),
        (
            json!([{"type": "chat/responsePart", "turnId": "t1", "part": {"kind": "contentRef",
            "uri": format!("axp-blob:/axp-session%3A%2Ffix/{}", "0".repeat(64))}}]),
            -32008,
        ),
        (
            json!([{"type": "chat/toolCallReady", "turnId": "t1", "toolCallId": "k", "invocationMessage": "x"}]),
            -32011,
        ),
        (json!([{"type": "_axp/leaseChanged", "epoch": 9}]), -32602),
    ];
    let before = maria.snapshot("ahp-chat:/fix");
    for (actions, code) in refused {
        let refused = carl.emit("fix", epoch, actions.clone()).unwrap_err();
        assert_eq!(refused.0, code, "{actions}: {}", refused.1);
    }
    // One bad action spoils the call: nothing of it stays.
    let half = json!([{"type": "chat/delta", "turnId": "t1", "partId": "p", "content": "a"},
        {"type": "chat/delta", "turnId": "t1", "partId": "x", "content": "a"}]);
    assert!(carl.emit("fix", epoch, half).is_err());
    assert_eq!(maria.snapshot("ahp-chat:/fix"), before);
}

#[test]
fn scopes_hide_sessions() {
    let host = TestHost::new();
    let mut maria = host.peer("maria");
    maria.create("fix");
    maria.create("other");
    let mut olga = host.peer("olga");
    let list = olga.call("listSessions", json!({"channel": "ahp-root://"})).unwrap();
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert_eq!(list["items"][0]["resource"], "ahp-session:/fix");
    olga.call("subscribe", json!({"channel": "ahp-chat:/fix"})).unwrap();
    for channel in ["ahp-chat:/other", "ahp-chat:/nothing"] {
        assert_eq!(olga.call("subscribe", json!({"channel": channel})).unwrap_err().0, -32001);
    }
    assert_eq!(olga.call("subscribe", json!({"channel": "axp-memory://"})).unwrap_err().0, -32009);
    assert_eq!(olga.call("createSession", json!({"channel": "ahp-session:/mine"})).unwrap_err().0, -32009);
    assert_eq!(maria.call("createSession", json!({"channel": "ahp-session:/fix"})).unwrap_err().0, -32003);
}

#[test]
fn reconnect_replays_what_was_missed_or_snapshots() {
    let host = TestHost::new();
    let mut maria = host.peer("maria");
    maria.create("fix");
    maria.create("loud");
    let seen = maria.seq();
    maria.prompt("fix", "t1").unwrap();
    let subscriptions = json!(["ahp-chat:/fix", "ahp-chat:/gone"]);
    let params = |seen: u64| json!({"channel": "ahp-root://", "clientId": "maria-1", "lastSeenServerSeq": seen, "subscriptions": subscriptions});
    host.raw("maria").hello("maria-1");
    let replay = host.raw("maria").call("reconnect", params(seen)).unwrap();
    assert_eq!(replay["type"], "replay");
    assert_eq!(replay["missing"], json!(["ahp-chat:/gone"]));
    assert_eq!(replay["actions"][0]["action"]["turnId"], "t1");
    assert_eq!(host.raw("maria").call("reconnect", params(99_999)).unwrap_err().0, -32602);
    assert_eq!(host.raw("carl").call("reconnect", params(seen)).unwrap_err().0, -32009);
    // Past the replay budget (8 in this host) come snapshots.
    maria.prompt("loud", "t1").unwrap();
    for n in 0..9 {
        maria.pending("fix", "queued", &format!("m{n}")).unwrap();
    }
    let snapshot = host.raw("maria").call("reconnect", params(seen)).unwrap();
    assert_eq!(snapshot["type"], "snapshot");
    assert_eq!(snapshot["snapshots"][0]["state"]["queuedMessages"].as_array().unwrap().len(), 9);
}

#[test]
fn a_refused_notification_is_echoed_with_its_reason() {
    let host = TestHost::new();
    let mut maria = host.peer("maria");
    maria.create("fix");
    maria.notify(
        "dispatchAction",
        json!({"channel": "ahp-chat:/fix", "clientSeq": 1,
        "action": {"type": "chat/turnCancelled", "turnId": "none", "duration": 0}}),
    );
    let echo = maria.next_event();
    assert_eq!(echo["rejectionReason"], "no turn is active");
    assert_eq!(echo["origin"]["clientSeq"], 1);
    assert_eq!(echo["serverSeq"].as_u64().unwrap(), maria.seq());
}

#[test]
fn a_dispatch_is_known_by_client_and_sequence() {
    let host = TestHost::new();
    let mut maria = host.peer("maria");
    maria.create("fix");
    let params = |turn: &str| {
        json!({"channel": "ahp-chat:/fix", "clientSeq": 7, "action": {"type": "chat/turnStarted",
        "turnId": turn, "startedAt": "2020-01-01T00:00:00.000Z", "message": {"text": "go", "origin": {"kind": "user"}}}})
    };
    maria.call("dispatchAction", params("t1")).unwrap();
    maria.call("dispatchAction", params("t1")).unwrap();
    assert_eq!(maria.call("dispatchAction", params("t2")).unwrap_err().0, -32011);
    let started = &maria.snapshot("ahp-chat:/fix")["activeTurn"]["startedAt"];
    assert_ne!(started, "2020-01-01T00:00:00.000Z", "the host stamps the time");
    let hello = host.raw("maria").hello(maria.client());
    assert_eq!(hello["_meta"]["org.axp.exchange"]["lastClientSeq"], 7);
}

#[test]
fn closing_ends_everything_and_frees_the_task() {
    let host = TestHost::new();
    let mut maria = host.peer("maria");
    maria.create("fix");
    let mut carl = host.peer("carl");
    let epoch = carl.park("fix", 1000);
    maria.prompt("fix", "t1").unwrap();
    carl.reserve("fix", epoch, "t1", 10).unwrap();
    maria.pending("fix", "queued", "q").unwrap();
    let again = json!({"channel": "ahp-session:/fix2", "config": {"task": "task-fix"}});
    assert_eq!(maria.call("createSession", again.clone()).unwrap_err().0, -32011);
    let close = json!({"channel": "axp-session:/fix", "operationId": "close"});
    assert_eq!(carl.call("_axp/close", close.clone()).unwrap_err().0, -32009);
    maria.call("_axp/close", close).unwrap();
    let exchange = maria.snapshot("axp-session:/fix");
    assert_eq!((&exchange["status"], &exchange["lease"]), (&json!("closed"), &json!(null)));
    let chat = maria.snapshot("ahp-chat:/fix");
    assert_eq!((&chat["activeTurn"], &chat["queuedMessages"]), (&json!(null), &json!(null)));
    assert_eq!(maria.prompt("fix", "t2").unwrap_err().0, -32011);
    maria.call("createSession", again).unwrap();
}

#[test]
fn blobs_belong_to_their_session() {
    let host = TestHost::new();
    let mut maria = host.peer("maria");
    maria.create("fix");
    maria.create("other");
    let put = |channel: &str| json!({"channel": channel, "operationId": fresh("op"), "data": "aGVsbG8=", "mediaType": "text/plain"});
    let blob = maria.call("_axp/blobPut", put("axp-session:/fix")).unwrap();
    assert_eq!((&blob["size"], &blob["mediaType"]), (&json!(5), &json!("text/plain")));
    let get = |channel: &str| json!({"channel": channel, "digest": blob["sha256"]});
    assert_eq!(maria.call("_axp/blobGet", get("axp-session:/fix")).unwrap()["data"], "aGVsbG8=");
    assert_eq!(maria.call("_axp/blobGet", get("axp-session:/other")).unwrap_err().0, -32008);
    let read = json!({"channel": "ahp-root://", "uri": blob["uri"]});
    assert_eq!(maria.call("resourceRead", read.clone()).unwrap()["contentType"], "text/plain");
    let mut text = read;
    text["encoding"] = json!("utf-8");
    let text = maria.call("resourceRead", text).unwrap();
    assert_eq!((&text["data"], &text["encoding"]), (&json!("hello"), &json!("utf-8")));
    assert_eq!(host.peer("observer").call("_axp/blobPut", put("axp-session:/fix")).unwrap_err().0, -32009);
    let mut bad = put("axp-session:/fix");
    bad["data"] = json!("not base64!");
    assert_eq!(maria.call("_axp/blobPut", bad).unwrap_err().0, -32602);
}

#[test]
fn an_exported_history_replays_to_its_snapshots() {
    let host = TestHost::new();
    let mut maria = host.peer("maria");
    maria.create("fix");
    let mut carl = host.peer("carl");
    let epoch = carl.park("fix", 1000);
    maria.prompt("fix", "t1").unwrap();
    carl.reserve("fix", epoch, "t1", 10).unwrap();
    carl.settle("fix", epoch, "t1", json!(null)).unwrap();
    let export = maria.call("_axp/export", json!({"channel": "axp-session:/fix"})).unwrap();
    assert_replays(&export);
}

#[test]
fn all_methods_are_advertised_and_served() {
    let host = TestHost::new();
    let hello = host.raw("maria").hello("x");
    let methods = hello["_meta"]["org.axp.exchange"]["methods"].as_array().unwrap().clone();
    let names: Vec<_> = axp_protocol::method::METHODS.iter().map(|m| json!(m.name)).collect();
    assert_eq!(methods, names);
    assert_eq!(methods.len(), 25);
    let mut maria = host.peer("maria");
    assert_eq!(maria.call("session/nothing", json!({"channel": "ahp-root://"})).unwrap_err().0, -32601);
    for method in names {
        // Whatever else is wrong with such a call, the method is there.
        let refused = maria.call(method.as_str().unwrap(), json!({})).unwrap_err();
        assert_eq!(refused.0, -32602, "{method}");
    }
}

#[test]
fn frames_that_are_no_requests_are_answered() {
    let host = TestHost::new();
    let mut maria = host.peer("maria");
    for (frame, code, id) in [
        ("{", -32700, json!(null)),
        ("[]", -32600, json!(null)),
        ("7", -32600, json!(null)),
        (r#"{"jsonrpc":"1.0","id":3,"method":"ping"}"#, -32600, json!(3)),
        (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, -32600, json!(null)),
        (r#"{"jsonrpc":"2.0","id":4}"#, -32600, json!(4)),
        (r#"{"jsonrpc":"2.0","id":"a","method":"listSessions","params":{}}"#, -32602, json!("a")),
    ] {
        let reply = maria.raw_frame(frame);
        assert_eq!((&reply["error"]["code"], &reply["id"]), (&json!(code), &id), "{frame}");
    }
    let long =
        format!(r#"{{"jsonrpc":"2.0","id":9,"method":"ping","params":{{"x":"{}"}}}}"#, "y".repeat(70_000));
    assert_eq!(maria.raw_frame(&long.replace("ping", "listSessions"))["error"]["code"], -32043);
}
