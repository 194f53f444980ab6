//! Nothing an agent has started is left behind.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::agents::{AXP, folder, gone, lives, pids, script, start};

/// Children of all kinds: one that ignores SIGTERM, one in a session of its own, and (under a guard, which alone can
/// tell whose it was) a daemon whose parent is gone.
fn children(daemon: bool) -> String {
    let stubborn = r#"trap "" TERM; echo $$ >> pids; while :; do sleep 1; done"#;
    let daemon =
        if daemon { format!("(setsid sh -c '{stubborn}' &)") } else { format!("sh -c '{stubborn}' &") };
    format!(
        "sh -c '{stubborn}' & setsid sh -c '{stubborn}' & {daemon}
sh -c 'echo $$ >> pids; exec sleep 1000' & echo $$ >> pids
while [ \"$(wc -l < pids)\" -lt 5 ]; do :; done"
    )
}

async fn five(folder: &Path) -> Vec<i32> {
    let pids = pids(&folder.join("pids"), 5).await;
    assert!(pids.iter().all(|pid| lives(*pid)));
    pids
}

#[tokio::test]
async fn stop_ends_the_whole_tree() {
    for guarded in [true, false] {
        let folder = folder();
        let body = format!("trap '' TERM; {}; hello; while :; do sleep 1; done", children(guarded));
        let mut spec = script(folder.path(), &body);
        spec.guard = guarded.then(|| AXP.into());
        let agent = start(&spec).await.expect("the agent starts");
        let pids = five(folder.path()).await;
        crate::agents::soon("the stop", agent.stop()).await;
        let left: Vec<_> = pids.iter().filter(|pid| lives(**pid)).collect();
        assert!(left.is_empty(), "guarded: {guarded}, left: {left:?}");
    }
}

#[tokio::test]
async fn an_agent_that_ends_takes_its_tree_along() {
    let folder = folder();
    let mut spec = script(folder.path(), &format!("{}; hello; exit 0", children(true)));
    spec.guard = Some(AXP.into());
    let agent = start(&spec).await.expect("the agent starts");
    let pids = pids(&folder.path().join("pids"), 5).await;
    crate::agents::soon("the exit", agent.exited()).await;
    gone(&pids).await;
    agent.stop().await;
}

#[tokio::test]
async fn dropping_and_killing_end_the_whole_tree() {
    for (guarded, dropped) in [(true, true), (true, false), (false, true), (false, false)] {
        let folder = folder();
        let body = format!("{}; hello; while :; do sleep 1; done", children(guarded));
        let mut spec = script(folder.path(), &body);
        spec.guard = guarded.then(|| AXP.into());
        let agent = start(&spec).await.expect("the agent starts");
        let pids = five(folder.path()).await;
        if dropped {
            drop(agent);
            gone(&pids).await;
        } else {
            agent.killer().kill_now();
            gone(&pids).await;
            agent.stop().await;
        }
    }
}

#[tokio::test]
async fn a_failed_start_leaves_nothing() {
    let folder = folder();
    let body =
        format!("{}; next; reply '{{\"protocolVersion\":9}}'; while :; do sleep 1; done", children(false));
    assert!(start(&script(folder.path(), &body)).await.is_err());
    gone(&pids(&folder.path().join("pids"), 5).await).await;
}

#[tokio::test]
async fn an_agent_dies_with_its_axp() {
    let folder = folder();
    let path = folder.path().join("agent.sh");
    std::fs::write(&path, format!("{}; while :; do sleep 1; done", children(true))).expect("a script");
    // A shell stands in for axp: it starts the guard, and is killed like axp would be.
    let mut parent = Command::new("sh")
        .arg("-c")
        .arg(format!("'{AXP}' __agent-guard $$ -- sh agent.sh; :"))
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("a shell");
    let pids = five(folder.path()).await;
    parent.kill().expect("the shell is killed");
    parent.wait().expect("the shell is gone");
    gone(&pids).await;
}

#[test]
fn a_guard_serves_its_parent_only() {
    let output = Command::new(AXP)
        .args(["__agent-guard", "1", "--", "sh", "-c", "echo ran"])
        .output()
        .expect("output");
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(127), &b""[..]),
        "its parent is not process 1"
    );
    for wrong in
        [&["__agent-guard"][..], &["__agent-guard", "x", "--", "sh"], &["__agent-guard", "1", "sh", "-c"]]
    {
        let output = Command::new(AXP).args(wrong).output().expect("output");
        assert_eq!(output.status.code(), Some(127), "{wrong:?}");
    }
}
