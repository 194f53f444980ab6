//! What comes after the work: signatures, an independent look, a branch that is pushed, and an audit with no host.

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Running, Stage, git};

/// A stage whose agent has done a piece of work, with a key for each side.
fn worked() -> (Stage, Running) {
    let (stage, park) = Stage::parked("s", &[]);
    stage.prompt("s", "APPEND one").well();
    for who in ["contributor", "maintainer"] {
        stage.run(who, &["keygen"]).well();
    }
    (stage, park)
}

fn head(stage: &Stage) -> String {
    let seen = stage.wait_for("s", "a checkpoint", |seen| seen["exchange"]["checkpoint"].is_object());
    seen["exchange"]["checkpoint"]["headCommit"].as_str().expect("a commit").to_owned()
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path")
}

#[test]
fn a_contribution_is_signed_twice_verified_published_and_audited() {
    let (stage, park) = worked();
    let head = head(&stage);
    let submitted = stage.json("contributor", &["submit", "s", "--model", "Some Model 4"]);
    assert_eq!(submitted["manifest"]["headCommit"], json!(head));
    assert_eq!(submitted["manifest"]["model"], "Some Model 4");

    // What is signed is shown first; without a person to ask it needs to be told.
    let shown = stage.run("maintainer", &["accept", "s"]).with(2);
    assert!(shown.stdout.contains(&head) && shown.stdout.contains("Some Model 4"), "{}", shown.stdout);
    let clone = stage.clone("elsewhere");
    let publish = ["publish", "s", "--directory", path(&clone)];
    assert!(stage.run("maintainer", &publish).with(4).stderr.contains("axp accept s"));
    let accepted = stage.json("maintainer", &["accept", "s", "--yes"]);
    assert_eq!(accepted["manifest"], submitted["manifest"]);

    // The verifier sees the exact commit, and nothing of our secrets.
    let script = "test \"$(git rev-parse HEAD)\" = \"$1\" && ! env | grep -q AXP_ && cat NOTES.md && exit 7";
    let verify = ["verify", "s", "--directory", path(&clone), "--", "sh", "-c", script, "sh", &head];
    let verified = stage.run("verifier", &verify).with(7);
    assert!(verified.stdout.contains("one"), "{}", verified.stdout);
    let seen = stage.inspect("s");
    assert_eq!(seen["exchange"]["verification"]["exitCode"], 7);
    assert_eq!(seen["exchange"]["verification"]["headCommit"], json!(head));

    // Pushed to a remote of the clone and to no other, and never over other commits.
    stage.run("maintainer", &[&publish[..], &["--remote", "https://example.org/x"]].concat()).with(1);
    git(&stage.project(), &["branch", "axp/taken", "main~0"]);
    let published = stage.json("maintainer", &publish);
    assert_eq!(published["headCommit"], json!(head));
    assert_eq!(git(&stage.project(), &["rev-parse", "axp/s"]), head);
    let other = git(&stage.project(), &["commit-tree", "-m", "other", "main^{tree}"]);
    git(&stage.project(), &["branch", "--force", "axp/taken", &other]);
    stage.run("maintainer", &[&publish[..], &["--name", "taken"]].concat()).with(1);
    assert_eq!(git(&stage.project(), &["rev-parse", "axp/taken"]), other);
    // Somebody who trusts neither key publishes nothing.
    stage.run("verifier", &["keygen"]).well();
    assert!(stage.run("verifier", &publish).with(3).stderr.contains("--trust"));
    park.stop(Signal::TERM).well();

    // A third party audits the file, with no host and no database.
    let file = stage.at("history.json");
    stage.run("observer", &["export", "s", "--out", path(&file)]).well();
    let mut stage = stage;
    stage.stop_host(Signal::TERM).well();
    std::fs::remove_dir_all(stage.project().join(".axp")).expect("the host's data goes");
    let audit = |file: &Path| stage.run("nobody", &["export", "--verify", path(file), "--json"]);
    let checked = audit(&file).well().last().clone();
    assert_eq!(checked["holds"], true);
    let names: Vec<_> = checked["checks"].as_array().expect("checks").iter().map(|c| &c["what"]).collect();
    for check in ["trace hash", "contributor's signature", "maintainer's signature", "two keys", "spending"] {
        assert!(names.iter().any(|name| *name == check), "{names:?}");
    }

    // Whatever is changed in it shows.
    let history: Value = serde_json::from_slice(&std::fs::read(&file).expect("a file")).expect("JSON");
    let forged = stage.at("forged.json");
    let forge = |change: &dyn Fn(&mut Value)| {
        let mut history = history.clone();
        change(&mut history);
        std::fs::write(&forged, history.to_string()).expect("a file");
        let checks = audit(&forged).with(1).last()["checks"].clone();
        let failed = checks.as_array().into_iter().flatten().filter(|check| check["holds"] == false);
        failed.map(|check| check["what"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    let exchange = |history: &mut Value| {
        let snapshots = history["snapshots"].as_array_mut().expect("snapshots");
        let of = |s: &&mut Value| s["resource"] == "axp-session:/s";
        std::mem::take(&mut snapshots.iter_mut().find(of).expect("the session")["state"])
    };
    assert_eq!(
        forge(&|history| {
            exchange(history);
        }),
        ["states recomputed from the actions"]
    );
    // A word that the agent said.
    let said = forge(&|history| {
        let actions = history["actions"].as_array_mut().expect("actions");
        let delta = actions.iter_mut().find(|a| a["action"]["type"] == "chat/delta").expect("a delta");
        delta["action"]["content"] = json!("something else");
    });
    assert_eq!(said, ["states recomputed from the actions", "trace hash"]);
    // A word and the state that comes of it: the signatures still stand against it.
    let model = forge(&|history| {
        let text = history.to_string().replace("Some Model 4", "Some Model 5");
        *history = serde_json::from_str(&text).expect("JSON");
    });
    assert_eq!(model, ["contributor's signature", "maintainer's signature"]);
    std::fs::write(&forged, &history.to_string()[..2000]).expect("a file");
    assert!(stage.run("nobody", &["export", "--verify", path(&forged)]).with(1).stderr.contains("history"));

    // And it can be seen as it happened.
    let log = stage.run("nobody", &["log", path(&file)]).well();
    assert!(log.stdout.contains("APPEND one"), "{}", log.stdout);
    let lines = stage.run("nobody", &["log", path(&file), "--json"]).well();
    assert_eq!(json!(lines.json), history["actions"]);
}

#[test]
fn a_signature_is_for_what_was_shown_and_for_no_later_work() {
    let (stage, park) = worked();
    let first = head(&stage);
    let submitted = stage.json("contributor", &["submit", "s"]);
    stage.json("maintainer", &["accept", "s", "--yes"]);
    let clone = stage.clone("elsewhere");
    let verify = |script: &str| {
        stage.run("verifier", &["verify", "s", "--directory", path(&clone), "--", "sh", "-c", script])
    };
    verify("true").well();

    // A new checkpoint voids both.
    stage.prompt("s", "APPEND two").well();
    let second = stage
        .wait_for("s", "the next checkpoint", |seen| {
            seen["exchange"]["checkpoint"]["headCommit"] != json!(first)
        })
        .clone();
    let second_head = second["exchange"]["checkpoint"]["headCommit"].clone();
    assert_eq!(
        (&second["exchange"]["review"], &second["exchange"]["verification"]),
        (&Value::Null, &Value::Null)
    );
    assert!(stage.run("maintainer", &["accept", "s", "--yes"]).with(4).stderr.contains("axp submit s"));

    // A maintainer's signature over another manifest than the one that is there is refused.
    let stale = sign(&stage, &submitted["manifest"]);
    stage.json("contributor", &["submit", "s"]);
    let params = stage.at("stale.json");
    std::fs::write(&params, json!({ "signature": stale }).to_string()).expect("a file");
    let rpc = ["rpc", "_axp/approveReview", "--session", "s", "--params", path(&params)];
    let refused = stage.run("maintainer", &rpc);
    assert!(refused.code != Some(0) && refused.stderr.contains("signature"), "{}", refused.stderr);
    assert_eq!(stage.inspect("s")["exchange"]["review"]["maintainer"], Value::Null);

    // So is the result of a command that ran on a head that is no longer current.
    let (gate, began) = (stage.at("gate"), stage.at("began"));
    let script = format!(": > '{}'; while [ ! -e '{}' ]; do sleep 0.05; done", path(&began), path(&gate));
    let running =
        stage.spawn("verifier", &["verify", "s", "--directory", path(&clone), "--", "sh", "-c", &script]);
    stage.wait_for("s", "the command", |_| began.exists());
    stage.prompt("s", "APPEND three").well();
    stage.wait_for("s", "the third checkpoint", |seen| {
        seen["exchange"]["checkpoint"]["headCommit"] != second_head
    });
    std::fs::write(&gate, "").expect("a file");
    let late = running.end();
    assert!(late.code == Some(4), "{:?}: {}", late.code, late.stderr);
    assert_eq!(stage.inspect("s")["exchange"]["verification"], Value::Null);

    // The same key cannot be both; an observer can be neither; a command that takes too long is ended.
    stage.json("contributor", &["submit", "s"]);
    let key = stage.at("home-contributor/.config/axp/key.pem");
    stage.run("maintainer", &["accept", "s", "--yes", "--key", path(&key)]).with(2);
    stage.run("observer", &["verify", "s", "--directory", path(&clone), "--", "true"]).with(3);
    let slow = ["verify", "s", "--directory", path(&clone), "--timeout", "200ms", "--", "sleep", "600"];
    stage.run("verifier", &slow).with(124);
    let missing = ["verify", "s", "--directory", path(&clone), "--", "no-such-program"];
    assert!(stage.run("verifier", &missing).with(2).stderr.contains("error: program `no-such-program`"));
    // No worktree of a verification is left in the clone.
    assert_eq!(git(&clone, &["worktree", "list"]).lines().count(), 1);
    park.stop(Signal::TERM).well();
}

/// The maintainer's signature over a manifest.
fn sign(stage: &Stage, manifest: &Value) -> Value {
    let pem = std::fs::read_to_string(stage.at("home-maintainer/.config/axp/key.pem")).expect("a key");
    let key = axp_protocol::signature::PrivateKey::from_pem(&pem).expect("a key");
    json!(key.sign(manifest).expect("a signature"))
}

#[test]
fn a_key_is_private_and_never_overwritten() {
    let stage = Stage::without_host();
    let made = stage.json("contributor", &["keygen"]);
    let file = Path::new(made["path"].as_str().expect("a path"));
    let before = std::fs::read(file).expect("a key");
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(file.metadata().expect("there").permissions().mode() & 0o777, 0o600);
    stage.run("contributor", &["keygen"]).with(4);
    assert_eq!(std::fs::read(file).expect("a key"), before);
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644)).expect("set");
    let lax = stage.run("contributor", &["submit", "s"]);
    assert!(lax.code != Some(0) && lax.stderr.contains("chmod"), "{}", lax.stderr);
}
