//! Discussion, contexts, lessons, signatures and verification.

use axp_protocol::canonical::hash;
use axp_protocol::signature::PrivateKey;
use serde_json::{Value, json};

use super::support::*;

const SESSION: &str = "axp-session:/fix";

/// A session with two turns and a checkpoint, parked by carl.
fn worked() -> (TestHost, TestPeer, TestPeer, u64, Value) {
    let host = TestHost::new();
    let mut maria = host.peer("maria");
    maria.create("fix");
    let mut carl = host.peer("carl");
    let epoch = carl.park("fix", 1000);
    carl.turn(&mut maria, "fix", epoch, "t1");
    carl.turn(&mut maria, "fix", epoch, "t2");
    let checkpoint = carl.checkpoint("fix", epoch, "b");
    (host, maria, carl, epoch, checkpoint)
}

#[test]
fn comments_have_their_author_and_time_from_the_host() {
    let (host, mut maria, mut carl, _, _) = worked();
    let comment = |checkpoint: Value, path: Value| json!({"body": "Looks right", "checkpoint": checkpoint, "path": path});
    let made = carl.axp("_axp/comment", "fix", comment(json!("b".repeat(40)), json!("src/a.rs"))).unwrap();
    assert_eq!((&made["author"], &made["createdAt"]), (&json!("carl"), &json!(1_700_000_000_000_u64)));
    maria.axp("_axp/comment", "fix", json!({"body": "Thanks"})).unwrap();
    host.peer("vera").axp("_axp/comment", "fix", json!({"body": "Will check"})).unwrap();
    let discussion = maria.snapshot(SESSION)["discussion"].clone();
    assert_eq!(discussion.as_array().unwrap().len(), 3);
    for (peer, params, code) in [
        ("carl", comment(json!("c".repeat(40)), json!(null)), -32011),
        ("carl", comment(json!(null), json!("src/a.rs")), -32602),
        ("carl", comment(json!("b".repeat(40)), json!("../x")), -32602),
        ("carl", json!({"body": "  "}), -32602),
        ("observer", json!({"body": "hello"}), -32009),
    ] {
        let refused = host.peer(peer).axp("_axp/comment", "fix", params.clone()).unwrap_err();
        assert_eq!(refused.0, code, "{params}");
    }
}

#[test]
fn at_most_256_comments_stay_visible() {
    let (_host, mut maria, _, _, _) = worked();
    for n in 0..258 {
        maria.axp("_axp/comment", "fix", json!({"body": format!("comment {n}")})).unwrap();
    }
    let discussion = maria.snapshot(SESSION)["discussion"].clone();
    assert_eq!((discussion.as_array().unwrap().len(), &discussion[0]["body"]), (256, &json!("comment 2")));
}

fn proposal(revision: u64, through: u64) -> Value {
    json!({"expectedRevision": revision, "throughTurn": through, "summary": "We found the cause.",
        "decisions": ["Keep the API"], "activeFiles": ["src/a.rs"]})
}

#[test]
fn an_accepted_context_replaces_turns_and_history_stays() {
    let (host, mut maria, mut carl, epoch, _) = worked();
    assert_eq!(carl.axp("_axp/compact", "fix", proposal(1, 1)).unwrap_err().0, -32011, "another revision");
    for through in [0, 3] {
        assert_eq!(carl.axp("_axp/compact", "fix", proposal(0, through)).unwrap_err().0, -32602, "{through}");
    }
    let proposed = carl.axp("_axp/compact", "fix", proposal(0, 1)).unwrap();
    let accept = json!({"proposalId": proposed["id"]});
    assert_eq!(carl.axp("_axp/acceptCompaction", "fix", accept.clone()).unwrap_err().0, -32009);
    let context = maria.axp("_axp/acceptCompaction", "fix", accept.clone()).unwrap();
    let mut bare = context.clone();
    bare.as_object_mut().unwrap().remove("prefixHash");
    assert_eq!(context["prefixHash"], hash(&bare).unwrap());
    assert_eq!((&context["revision"], &context["gitHead"]), (&json!(1), &json!("b".repeat(40))));
    assert_eq!(maria.axp("_axp/acceptCompaction", "fix", accept).unwrap_err().0, -32008, "once");

    let answer = maria.call("_axp/context", json!({"channel": SESSION})).unwrap();
    let text = answer["text"].as_str().unwrap();
    assert!(
        text.contains("We found the cause.") && text.contains("said in t2") && !text.contains("said in t1"),
        "{text}"
    );
    assert_eq!(answer["prefixHash"], hash(&json!({"text": text})).unwrap());
    assert_eq!(maria.snapshot("ahp-chat:/fix")["turns"].as_array().unwrap().len(), 2);

    // A checkpoint that moved on, and a turn that runs.
    let stale = carl.axp("_axp/compact", "fix", proposal(1, 2)).unwrap();
    carl.checkpoint("fix", epoch, "c");
    let accept = json!({"proposalId": stale["id"]});
    assert_eq!(maria.axp("_axp/acceptCompaction", "fix", accept).unwrap_err().0, -32011);
    maria.prompt("fix", "t3").unwrap();
    assert_eq!(carl.axp("_axp/compact", "fix", proposal(1, 2)).unwrap_err().0, -32004);
    drop(host);
}

#[test]
fn a_context_that_does_not_fit_says_how_far_over_it_is() {
    let (_host, mut maria, mut carl, epoch, _) = worked();
    maria.prompt("fix", "t3").unwrap();
    carl.reserve("fix", epoch, "t3", 10).unwrap();
    let part = json!([{"type": "chat/responsePart", "turnId": "t3",
        "part": {"kind": "markdown", "id": "p", "content": "x".repeat(3000)}}]);
    carl.emit("fix", epoch, part).unwrap();
    carl.settle("fix", epoch, "t3", json!(null)).unwrap();
    let refused = maria.call("_axp/context", json!({"channel": SESSION, "maxChars": 1024})).unwrap_err();
    assert_eq!(refused.0, -32042);
    assert!(refused.1.contains("more than the 1024") && refused.1.contains("_axp/compact"), "{}", refused.1);
}

fn lesson(title: &str, to: u64) -> Value {
    json!({"title": title, "trigger": "parser edits", "lesson": "Keep the types", "outcome": "failure",
        "fromSeq": 1, "toSeq": to})
}

#[test]
fn lessons_join_their_evidence_and_stay_retired() {
    let (host, mut maria, mut carl, _, _) = worked();
    let seq = maria.seq();
    for range in [json!([0, 0]), json!([5, 2]), json!([1, seq + 1])] {
        let mut bad = lesson("Parser", 1);
        (bad["fromSeq"], bad["toSeq"]) = (range[0].clone(), range[1].clone());
        assert_eq!(carl.axp("_axp/memoryPropose", "fix", bad).unwrap_err().0, -32602, "{range}");
    }
    let first = carl.axp("_axp/memoryPropose", "fix", lesson(" Parser ", seq)).unwrap();
    assert_eq!(
        (&first["status"], &first["revision"], &first["title"]),
        (&json!("proposed"), &json!(1), &json!("Parser"))
    );
    let again = carl.axp("_axp/memoryPropose", "fix", lesson("Parser", seq)).unwrap();
    assert_eq!(again, first, "the same evidence changes nothing");
    let more = maria.axp("_axp/memoryPropose", "fix", lesson("Parser", seq - 1)).unwrap();
    assert_eq!((&more["id"], &more["revision"]), (&first["id"], &json!(2)));
    assert_eq!(more["evidence"].as_array().unwrap().len(), 2);
    let other = carl.axp("_axp/memoryPropose", "fix", lesson("Parser.", seq)).unwrap();
    assert_ne!(other["id"], first["id"], "other wording is another lesson");

    let search = json!({"channel": "axp-memory://", "query": "parser"});
    assert_eq!(carl.call("_axp/memorySearch", search.clone()).unwrap()["total"], 0, "only accepted ones");
    let review = |id: &Value, revision: u64, status: &str| json!({"channel": "axp-memory://", "operationId": fresh("op"), "memoryId": id, "revision": revision, "status": status});
    assert_eq!(carl.call("_axp/memoryReview", review(&first["id"], 2, "accepted")).unwrap_err().0, -32009);
    assert_eq!(maria.call("_axp/memoryReview", review(&first["id"], 1, "accepted")).unwrap_err().0, -32011);
    maria.call("_axp/memoryReview", review(&first["id"], 2, "accepted")).unwrap();
    let hits = host.peer("olga").call("_axp/memorySearch", search.clone()).unwrap();
    assert_eq!((&hits["total"], &hits["items"][0]["id"]), (&json!(1), &first["id"]));

    maria.call("_axp/memoryReview", review(&first["id"], 3, "retired")).unwrap();
    let revived = carl.axp("_axp/memoryPropose", "fix", lesson("Parser", 2)).unwrap();
    assert_eq!(revived["status"], "retired", "new evidence never revives");
    assert_eq!(carl.call("_axp/memorySearch", search).unwrap()["total"], 0);
}

#[test]
fn evidence_outside_a_scope_is_hidden() {
    let (host, mut maria, _, _, _) = worked();
    maria.create("other");
    maria.prompt("other", "t1").unwrap();
    let seq = maria.seq();
    let mut params = lesson("Secret", seq);
    params["fromSeq"] = json!(seq - 1);
    let secret = maria.axp("_axp/memoryPropose", "other", params).unwrap();
    let accept = json!({"channel": "axp-memory://", "operationId": fresh("op"), "memoryId": secret["id"], "revision": 1,
        "status": "accepted"});
    maria.call("_axp/memoryReview", accept).unwrap();
    let search = json!({"channel": "axp-memory://", "query": "secret"});
    assert_eq!(maria.call("_axp/memorySearch", search.clone()).unwrap()["total"], 1);
    // olga reads session `fix` only.
    assert_eq!(host.peer("olga").call("_axp/memorySearch", search).unwrap()["total"], 0);
}

fn manifest(maria: &mut TestPeer, checkpoint: &Value) -> Value {
    let export = maria.call("_axp/export", json!({"channel": SESSION})).unwrap();
    let actions: Vec<_> = export["actions"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|e| e["channel"] != "ahp-changeset:/fix")
        .collect();
    let context = maria.call("_axp/context", json!({"channel": SESSION})).unwrap();
    json!({"version": 1, "repository": "owner/project", "session": "ahp-session:/fix",
        "baseCommit": checkpoint["baseCommit"], "headCommit": checkpoint["headCommit"], "model": "model-1",
        "promptHash": hash(&context["text"]).unwrap(), "traceHash": hash(&actions).unwrap(),
        "traceThroughSeq": export["serverSeq"], "checkpointDigest": hash(checkpoint).unwrap()})
}

fn sign(seed: u8, value: &Value) -> Value {
    serde_json::to_value(PrivateKey::from_seed(&[seed; 32]).sign(value).unwrap()).unwrap()
}

#[test]
fn a_review_needs_two_people_with_two_keys() {
    let (host, mut maria, mut carl, epoch, checkpoint) = worked();
    let m = manifest(&mut maria, &checkpoint);
    let submit = |m: &Value, seed: u8| json!({"manifest": m, "contributor": sign(seed, m)});
    assert_eq!(host.peer("dora").axp("_axp/review", "fix", submit(&m, 1)).unwrap_err().0, -32009);
    for (field, value) in [
        ("traceHash", json!("0".repeat(64))),
        ("checkpointDigest", json!("0".repeat(64))),
        ("headCommit", json!("c".repeat(40))),
        ("repository", json!("other/project")),
        ("traceThroughSeq", json!(3)),
    ] {
        let mut wrong = m.clone();
        wrong[field] = value;
        assert_eq!(carl.axp("_axp/review", "fix", submit(&wrong, 1)).unwrap_err().0, -32011, "{field}");
    }
    let mut forged = submit(&m, 1);
    forged["manifest"]["model"] = json!("another model");
    assert_eq!(carl.axp("_axp/review", "fix", forged).unwrap_err().0, -32602);
    carl.axp("_axp/review", "fix", submit(&m, 1)).unwrap();

    let approve = |signature: Value| json!({"signature": signature});
    assert_eq!(carl.axp("_axp/approveReview", "fix", approve(sign(2, &m))).unwrap_err().0, -32009);
    assert_eq!(
        maria.axp("_axp/approveReview", "fix", approve(sign(1, &m))).unwrap_err().0,
        -32009,
        "the same key"
    );
    let mut other = m.clone();
    other["model"] = json!("another model");
    assert_eq!(maria.axp("_axp/approveReview", "fix", approve(sign(2, &other))).unwrap_err().0, -32011);
    let review = maria.axp("_axp/approveReview", "fix", approve(sign(2, &m))).unwrap();
    assert_eq!((&review["manifest"], &review["maintainer"]), (&m, &sign(2, &m)));
    // A key is its first user's for ever, over a restart too.
    let mut host = host;
    host.restart();
    let mut carl = host.peer("carl");
    let epoch2 = carl.claim("fix").unwrap();
    assert!(epoch2 > epoch);
    let mut maria = host.peer("maria");
    let m = manifest(&mut maria, &checkpoint);
    assert_eq!(carl.axp("_axp/review", "fix", submit(&m, 2)).unwrap_err().0, -32009, "the maintainer's key");
    carl.axp("_axp/review", "fix", submit(&m, 1)).unwrap();

    // A new checkpoint voids it.
    carl.checkpoint("fix", epoch2, "c");
    assert_eq!(maria.snapshot(SESSION)["review"], json!(null));
    assert_eq!(maria.axp("_axp/approveReview", "fix", approve(sign(2, &m))).unwrap_err().0, -32008);
    assert_eq!(carl.axp("_axp/review", "fix", submit(&m, 1)).unwrap_err().0, -32011);
}

#[test]
fn verification_is_for_the_current_head() {
    let (host, mut maria, mut carl, epoch, _) = worked();
    let mut vera = host.peer("vera");
    let output = vera.upload("fix", "ok 1 - adds");
    let verify = |head: &str| json!({"headCommit": head.repeat(40), "command": ["sh", "test.sh"], "exitCode": 0, "output": output});
    assert_eq!(maria.axp("_axp/verify", "fix", verify("b")).unwrap_err().0, -32009);
    assert_eq!(vera.axp("_axp/verify", "fix", verify("c")).unwrap_err().0, -32011);
    vera.axp("_axp/verify", "fix", verify("b")).unwrap();
    let state = maria.snapshot(SESSION);
    assert_eq!(
        (&state["verification"]["verifier"], &state["verification"]["exitCode"]),
        (&json!("vera"), &json!(0))
    );
    carl.checkpoint("fix", epoch, "c");
    assert_eq!(maria.snapshot(SESSION)["verification"], json!(null));
}

#[test]
fn a_session_stored_before_there_were_comments_has_an_empty_thread() {
    let (_host, mut maria, _, _, _) = worked();
    let mut stored = maria.snapshot(SESSION);
    stored.as_object_mut().unwrap().remove("discussion").unwrap();
    let channel = axp_protocol::channel::Channel::parse(SESSION).unwrap();
    let read = axp_protocol::state::ChannelState::from_value(&channel, stored).unwrap();
    assert_eq!(json!(read)["discussion"], json!([]));
}
