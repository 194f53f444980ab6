//! `axp init`: private files, nothing overwritten, unseen by Git.

#![expect(clippy::expect_used, reason = "a test that cannot go on stops")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const FILES: [&str; 5] =
    ["host.json", "maintainer.json", "contributor.json", "observer.json", "verifier.json"];

fn git(dir: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"])
        .args(args)
        .current_dir(dir)
        .env_remove("GIT_DIR")
        .output()
        .expect("git runs");
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("git prints text")
}

fn repository() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a folder");
    let root = dir.path().join("clone");
    fs::create_dir(&root).expect("a folder");
    git(&root, &["init", "-q"]);
    git(&root, &["remote", "add", "origin", "https://example.org/acme/parser.git"]);
    git(&root, &["commit", "-q", "--allow-empty", "-m", "first"]);
    (dir, root)
}

fn axp(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_axp"))
        .args(args)
        .current_dir(dir)
        .env_remove("AXP_URL")
        .env_remove("AXP_TOKEN")
        .output()
        .expect("axp runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_str(&fs::read_to_string(path).expect("the file is there")).expect("it is JSON")
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o777
}

#[test]
fn everything_is_made_private_and_unseen() {
    let (_dir, root) = repository();
    let output = axp(&root, &["init", "--port", "9123"]);
    assert!(output.status.success(), "{}", text(&output.stderr));

    let folder = root.join(".axp");
    assert_eq!(mode(&folder), 0o700);
    let host = json(&folder.join("host.json"));
    assert_eq!(host["repository"], "acme/parser");
    assert_eq!(host["listen"], "127.0.0.1:9123");
    let printed = text(&output.stdout) + &text(&output.stderr);
    for (i, role) in ["maintainer", "contributor", "observer", "verifier"].iter().enumerate() {
        let path = folder.join(format!("{role}.json"));
        assert_eq!(mode(&path), 0o600, "{role}");
        let profile = json(&path);
        assert_eq!(profile["url"], "ws://127.0.0.1:9123/axp");
        let token = profile["token"].as_str().expect("a token");
        assert!(token.len() >= 24);
        assert!(!printed.contains(token), "a token was printed");
        assert_eq!(host["credentials"][i]["role"], *role);
        assert!(!fs::read_to_string(folder.join("host.json")).expect("text").contains(token));
    }
    assert_eq!(mode(&folder.join("host.json")), 0o600);
    axp_host::config::HostFile::load(&folder.join("host.json")).expect("the host takes it");
    assert_eq!(git(&root, &["status", "--porcelain"]), "");
}

#[test]
fn nothing_is_overwritten() {
    for there in FILES {
        let (_dir, root) = repository();
        let folder = root.join(".axp");
        fs::create_dir(&folder).expect("a folder");
        fs::write(folder.join(there), "mine").expect("a file");
        let output = axp(&root, &["init"]);
        assert_eq!(output.status.code(), Some(4), "{there}");
        assert!(text(&output.stderr).contains(there), "{}", text(&output.stderr));
        assert_eq!(fs::read_to_string(folder.join(there)).expect("it is there"), "mine");
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 1, "nothing else was written");
        let exclude = fs::read_to_string(root.join(".git/info/exclude")).unwrap_or_default();
        assert!(!exclude.contains(".axp"), "{exclude}");
    }
}

#[test]
fn a_link_in_the_way_is_not_followed() {
    let (dir, root) = repository();
    let elsewhere = dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a folder");
    std::os::unix::fs::symlink(&elsewhere, root.join(".axp")).expect("a link");
    assert_eq!(axp(&root, &["init"]).status.code(), Some(4));
    assert_eq!(fs::read_dir(&elsewhere).expect("a folder").count(), 0);
}

#[test]
fn the_exclude_line_is_written_once_and_for_all_work_trees() {
    let (dir, root) = repository();
    let exclude = root.join(".git/info/exclude");
    fs::create_dir_all(exclude.parent().expect("a folder")).expect("a folder");
    // Without a line break at its end, as an editor may leave it.
    fs::write(&exclude, "*.log").expect("a file");
    assert!(axp(&root, &["init"]).status.success());
    let linked = dir.path().join("linked");
    git(&root, &["worktree", "add", "-q", linked.to_str().expect("text"), "-b", "other"]);
    assert!(axp(&linked, &["init"]).status.success());
    assert_eq!(fs::read_to_string(&exclude).expect("it is there"), "*.log\n/.axp/\n");
    assert_eq!(git(&linked, &["status", "--porcelain"]), "");
    assert_eq!(mode(&linked.join(".axp")), 0o700);
}

#[test]
fn a_folder_below_goes_to_the_top_or_where_it_is_told() {
    let (_dir, root) = repository();
    let below = root.join("a [b]/c");
    fs::create_dir_all(&below).expect("a folder");
    assert!(axp(&below, &["init"]).status.success());
    assert!(root.join(".axp/host.json").is_file());
    assert!(axp(&below, &["init", "--dir", "."]).status.success());
    assert!(below.join(".axp/host.json").is_file());
    assert_eq!(git(&root, &["status", "--porcelain"]), "");
}

#[test]
fn outside_of_git_the_name_must_be_given() {
    let dir = tempfile::tempdir().expect("a folder");
    let output = axp(dir.path(), &["init"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("hint: name it: axp init --repo OWNER/NAME"));
    assert_eq!(axp(dir.path(), &["init", "--repo", "no name"]).status.code(), Some(2));
    assert!(!dir.path().join(".axp").exists());
    let output = axp(dir.path(), &["init", "--repo", "acme/parser", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let made: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert_eq!(made["repository"], "acme/parser");
}

#[test]
fn a_host_sets_a_repository_up_and_stops_in_order() {
    use std::io::BufRead as _;
    let (_dir, root) = repository();
    let mut host = Command::new(env!("CARGO_BIN_EXE_axp"))
        .args(["host", "--json", "--listen", "127.0.0.1:0"])
        .current_dir(&root)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("axp runs");
    let mut line = String::new();
    std::io::BufReader::new(host.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    let ready: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(ready["state"], "ready");
    let token = json(&root.join(".axp/observer.json"))["token"].as_str().expect("a token").to_owned();
    let sessions = Command::new(env!("CARGO_BIN_EXE_axp"))
        .args(["sessions", "--json"])
        .env("AXP_URL", ready["url"].as_str().expect("a URL"))
        .env("AXP_TOKEN", &token)
        .output()
        .expect("axp runs");
    assert_eq!(text(&sessions.stdout), "{\"items\":[]}\n", "{}", text(&sessions.stderr));
    let pid = host.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs").success());
    assert_eq!(host.wait().expect("it ends").code(), Some(0));
    assert_eq!(git(&root, &["status", "--porcelain"]), "");
}
