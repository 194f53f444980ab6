//! Random commands, valid and not, from several principals: what holds whatever they do (section 7).

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::support::*;

const SESSION: &str = "axp-session:/fix";

/// One thing somebody tries. `who` picks a contributor, `HOLDER` whoever holds the lease; `behind` is how far behind
/// the newest epoch it claims to be.
#[derive(Debug, Clone)]
enum Try {
    Grant { who: usize, tokens: u64 },
    Revoke { who: usize },
    Claim { who: usize, resume: Option<u64> },
    Renew { who: usize, behind: u64 },
    Release { who: usize, behind: u64 },
    Reserve { who: usize, behind: u64, tokens: u64 },
    Part { who: usize, behind: u64, id: u8 },
    Delta { who: usize, behind: u64, id: u8 },
    Settle { who: usize, behind: u64, usage: Option<(u64, u64, u64)>, outcome: &'static str },
    Prompt { id: u8 },
    Pending { kind: &'static str, id: u8 },
    Cancel,
    Wait { ms: u64 },
    Repeat,
    Restart,
}

fn tries() -> impl Strategy<Value = Try> {
    let who = prop_oneof![1 => 0usize..2, 3 => Just(HOLDER)];
    // Mostly the newest epoch, sometimes one that is over.
    let behind = prop_oneof![8 => Just(0u64), 1 => 1u64..3];
    let usage = proptest::option::of((0u64..60, 0u64..60, 0u64..80));
    prop_oneof![
        4 => (0usize..2, 0u64..400).prop_map(|(who, tokens)| Try::Grant { who, tokens }),
        1 => (0usize..2).prop_map(|who| Try::Revoke { who }),
        4 => (0usize..2, proptest::option::weighted(0.2, 0u64..2)).prop_map(|(who, resume)| Try::Claim { who, resume }),
        2 => (who.clone(), behind.clone()).prop_map(|(who, behind)| Try::Renew { who, behind }),
        1 => (who.clone(), behind.clone()).prop_map(|(who, behind)| Try::Release { who, behind }),
        9 => (who.clone(), behind.clone(), 0u64..60).prop_map(|(who, behind, tokens)| Try::Reserve { who, behind, tokens }),
        8 => (who.clone(), behind.clone(), 0u8..8).prop_map(|(who, behind, id)| Try::Part { who, behind, id }),
        8 => (who.clone(), behind.clone(), 0u8..4).prop_map(|(who, behind, id)| Try::Delta { who, behind, id }),
        4 => (who, behind, usage, prop_oneof![Just("complete"), Just("cancelled"), Just("error")])
            .prop_map(|(who, behind, usage, outcome)| Try::Settle { who, behind, usage, outcome }),
        8 => (0u8..40).prop_map(|id| Try::Prompt { id }),
        2 => (prop_oneof![Just("queued"), Just("steering")], 0u8..12).prop_map(|(kind, id)| Try::Pending { kind, id }),
        1 => Just(Try::Cancel),
        1 => (1u64..12_000).prop_map(|ms| Try::Wait { ms }),
        2 => Just(Try::Repeat),
        1 => Just(Try::Restart),
    ]
}

struct Run {
    host: TestHost,
    maria: TestPeer,
    contributors: [TestPeer; 2],
    watcher: TestPeer,
    /// The last mutation that succeeded: whose, method, params, answer.
    last: Option<(usize, String, Value, Value)>,
    seq: u64,
    epoch: u64,
    /// Who held the lease last.
    holder: usize,
    /// How many of their grants each contributor has revoked: a revoked one is dead, so the next has a new name.
    revoked: [usize; 2],
    /// Successful mutations by method.
    done: BTreeMap<String, usize>,
}

const MARIA: usize = 2;
const HOLDER: usize = 3;

impl Run {
    fn new() -> Self {
        let host = TestHost::new();
        let mut maria = host.peer("maria");
        maria.create("fix");
        let contributors = [host.peer("carl"), host.peer("dora")];
        let watcher = watcher(&host);
        Self {
            host,
            maria,
            contributors,
            watcher,
            last: None,
            seq: 0,
            epoch: 0,
            holder: 0,
            revoked: [0; 2],
            done: BTreeMap::new(),
        }
    }

    fn mutate(&mut self, who: usize, method: &str, channel: &str, mut params: Value) {
        let who = if who == HOLDER { self.holder } else { who };
        params["channel"] = json!(channel);
        params["operationId"] = json!(fresh("op"));
        let peer = if who == MARIA { &mut self.maria } else { &mut self.contributors[who] };
        let before = self.watcher.snapshot(SESSION);
        match peer.call(method, params.clone()) {
            Ok(answer) => {
                if method == "_axp/revoke" {
                    self.revoked[who] += 1;
                }
                *self.done.entry(method.to_owned()).or_default() += 1;
                self.last = Some((who, method.to_owned(), params, answer));
            }
            Err((code, message)) => {
                assert!(code != -32603, "{method} {params}: {message}");
                assert_eq!(
                    self.watcher.snapshot(SESSION),
                    before,
                    "a refusal changes nothing: {method} {params}"
                );
            }
        }
    }

    fn grant_of(&self, who: usize) -> String {
        format!("g{who}-{}", self.revoked[who])
    }

    fn active_turn(&mut self) -> Value {
        let turn = self.watcher.snapshot("ahp-chat:/fix")["activeTurn"]["id"].clone();
        if turn.is_null() { json!("none") } else { turn }
    }

    fn step(&mut self, attempt: &Try) {
        let epoch = |run: &Self, behind: u64| json!(run.epoch.saturating_sub(behind));
        match attempt.clone() {
            Try::Grant { who, tokens } => {
                let limit = json!({"tokens": tokens, "costMicros": 1000, "turns": 6});
                let params =
                    json!({"grantId": self.grant_of(who), "limit": limit, "enforcement": "accounting"});
                self.mutate(who, "_axp/grant", SESSION, params);
            }
            Try::Revoke { who } => {
                self.mutate(who, "_axp/revoke", SESSION, json!({"grantId": self.grant_of(who)}));
            }
            Try::Claim { who, resume } => {
                let mut params = json!({"grantId": self.grant_of(who), "executorId": format!("e{who}"), "leaseMs": 10_000});
                if let Some(behind) = resume {
                    params["resumeEpoch"] = epoch(self, behind);
                }
                self.mutate(who, "_axp/claim", SESSION, params);
            }
            Try::Renew { who, behind } => {
                self.mutate(who, "_axp/renew", SESSION, json!({"epoch": epoch(self, behind)}));
            }
            Try::Release { who, behind } => {
                self.mutate(who, "_axp/release", SESSION, json!({"epoch": epoch(self, behind)}));
            }
            Try::Reserve { who, behind, tokens } => {
                let ceiling = json!({"tokens": tokens, "costMicros": 7, "turns": 1});
                let params =
                    json!({"epoch": epoch(self, behind), "turnId": self.active_turn(), "ceiling": ceiling});
                self.mutate(who, "_axp/reserve", SESSION, params);
            }
            Try::Part { who, behind, id } => {
                let part = json!({"kind": "markdown", "id": format!("p{id}"), "content": ""});
                let action = json!({"type": "chat/responsePart", "turnId": self.active_turn(), "part": part});
                let params = json!({"epoch": epoch(self, behind), "actions": [action]});
                self.mutate(who, "_axp/emit", SESSION, params);
            }
            Try::Delta { who, behind, id } => {
                let action = json!({"type": "chat/delta", "turnId": self.active_turn(), "partId": format!("p{id}"), "content": "x"});
                let params = json!({"epoch": epoch(self, behind), "actions": [action]});
                self.mutate(who, "_axp/emit", SESSION, params);
            }
            Try::Settle { who, behind, usage, outcome } => {
                let usage = usage.map(|(input, output, cache)| {
                    json!({"inputTokens": input, "outputTokens": output, "cacheReadTokens": cache, "costMicros": 3,
                        "source": "reported"})
                });
                let params = json!({"epoch": epoch(self, behind), "turnId": self.active_turn(), "usage": usage,
                    "outcome": outcome});
                self.mutate(who, "_axp/settle", SESSION, params);
            }
            Try::Prompt { id } => {
                let message = json!({"text": "go", "origin": {"kind": "user"}});
                let action = json!({"type": "chat/turnStarted", "turnId": format!("t{id}"),
                    "startedAt": "2024-01-01T00:00:00.000Z", "message": message});
                self.mutate(MARIA, "_axp/dispatch", "ahp-chat:/fix", json!({"action": action}));
            }
            Try::Pending { kind, id } => {
                let message = json!({"text": "go", "origin": {"kind": "user"}});
                let action = json!({"type": "chat/pendingMessageSet", "kind": kind, "id": format!("m{id}"), "message": message});
                self.mutate(MARIA, "_axp/dispatch", "ahp-chat:/fix", json!({"action": action}));
            }
            Try::Cancel => {
                let action =
                    json!({"type": "chat/turnCancelled", "turnId": self.active_turn(), "duration": 0});
                self.mutate(MARIA, "_axp/dispatch", "ahp-chat:/fix", json!({"action": action}));
            }
            Try::Wait { ms } => self.host.advance(ms),
            Try::Repeat => {
                let Some((who, method, params, answer)) = self.last.clone() else { return };
                let before = self.watcher.seq();
                let peer = if who == MARIA { &mut self.maria } else { &mut self.contributors[who] };
                assert_eq!(peer.call(&method, params), Ok(answer), "a receipt answers the same");
                assert_eq!(self.watcher.seq(), before, "and does nothing");
            }
            Try::Restart => {
                // What was sent before is checked before the connections end.
                self.check();
                self.host.restart();
                self.maria = self.host.peer("maria");
                self.contributors = [self.host.peer("carl"), self.host.peer("dora")];
                self.watcher = watcher(&self.host);
                // Start-up orphans before anybody listens.
                self.seq = self.watcher.seq();
            }
        }
    }

    fn check(&mut self) {
        for event in self.watcher.events() {
            let seq = event["serverSeq"].as_u64().unwrap();
            if self.seq != 0 {
                assert_eq!(seq, self.seq + 1, "sequence numbers have no gaps");
            }
            self.seq = seq;
        }
        let state = self.watcher.snapshot(SESSION);
        let epoch = state["epoch"].as_u64().unwrap();
        assert!(epoch >= self.epoch, "epochs only grow");
        self.epoch = epoch;
        if let Some(owner) = state["lease"]["owner"].as_str() {
            self.holder = usize::from(owner == "dora");
        }
        if !state["lease"].is_null() {
            assert_eq!(state["lease"]["epoch"], state["epoch"]);
            assert_eq!(state["status"], "open");
            let grant = &state["grants"][state["lease"]["grantId"].as_str().unwrap()];
            assert_eq!((&grant["revoked"], &grant["owner"]), (&json!(false), &state["lease"]["owner"]));
        }
        if !state["reservation"].is_null() {
            assert_eq!(
                state["reservation"]["epoch"], state["lease"]["epoch"],
                "only the holder has a reservation"
            );
            let active = self.watcher.snapshot("ahp-chat:/fix")["activeTurn"]["id"].clone();
            assert_eq!(state["reservation"]["turnId"], active);
        }
        let mut spent: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
        for settled in state["usage"].as_array().unwrap() {
            let number = |key: &str| settled["usage"][key].as_u64().unwrap();
            let sum = spent.entry(settled["grantId"].as_str().unwrap()).or_default();
            sum.0 += number("inputTokens") + number("outputTokens");
            sum.1 += number("costMicros");
            sum.2 += 1;
        }
        for (id, grant) in state["grants"].as_object().unwrap() {
            let expected = spent.get(id.as_str()).copied().unwrap_or_default();
            let number = |key: &str| grant["spent"][key].as_u64().unwrap();
            assert_eq!(
                (number("tokens"), number("costMicros"), number("turns")),
                expected,
                "spent is what was settled"
            );
        }
    }
}

fn watcher(host: &TestHost) -> TestPeer {
    let mut watcher = host.peer("observer");
    for channel in ["axp-executors://", SESSION, "ahp-session:/fix", "ahp-chat:/fix", "ahp-changeset:/fix"] {
        watcher.snapshot(channel);
    }
    watcher
}

/// How often each method has succeeded over all cases: a property over commands that are all refused proves nothing.
static DONE: std::sync::Mutex<BTreeMap<String, usize>> = std::sync::Mutex::new(BTreeMap::new());

#[test]
fn whatever_is_tried_the_rules_hold() {
    random_commands();
    let done = DONE.lock().unwrap();
    for method in ["grant", "revoke", "claim", "renew", "release", "reserve", "emit", "settle", "dispatch"] {
        let times = done.get(&format!("_axp/{method}")).copied().unwrap_or(0);
        assert!(times > 0, "_axp/{method} never succeeded: {done:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, ..ProptestConfig::default() })]

    fn random_commands(attempts in proptest::collection::vec(tries(), 60..120)) {
        let mut run = Run::new();
        for attempt in &attempts {
            run.step(attempt);
            run.check();
        }
        let export = run.maria.call("_axp/export", json!({"channel": SESSION})).unwrap();
        assert_replays(&export);
        for (method, times) in &run.done {
            *DONE.lock().unwrap().entry(method.clone()).or_default() += times;
        }
        // What is stored is what was shown.
        run.host.restart();
        let export = run.host.peer("maria").call("_axp/export", json!({"channel": SESSION})).unwrap();
        assert_replays(&export);
    }
}
