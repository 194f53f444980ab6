use std::fs;
use std::os::unix::fs::symlink;

use super::support::{Project, checkpoint, chmod, git, quiet, state, try_git, write};
use crate::worktree::{CheckpointOptions, Phase, Worktree, WorktreeError};

#[test]
fn everything_not_ignored_is_committed_once() {
    let project = Project::new();
    let worktree = project.worktree("x");
    write(worktree.path(), "README.md", "hello\nbrave\nworld\n");
    write(worktree.path(), "new/file", "new\n");
    write(worktree.path(), "debug.log", "ignored\n");
    write(worktree.path(), "target/out", "ignored\n");
    let mut phases = Vec::new();
    let options = CheckpointOptions::new(worktree.base_commit(), "Say hello\n\nbravely\n");
    let made = worktree.checkpoint(&options, &mut |step| phases.push(step.phase)).unwrap();
    assert_eq!(git(worktree.path(), &["log", "-1", "--format=%B"]), "Say hello\n\nbravely");
    assert_eq!(git(worktree.path(), &["status", "--porcelain"]), "");
    assert_eq!(
        git(worktree.path(), &["rev-parse", "HEAD", "HEAD~1"]),
        format!("{}\n{}", made.head, made.base)
    );
    assert_eq!(
        made.files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(),
        ["README.md", "new/file"]
    );
    assert_eq!((made.stat.added, made.stat.removed), (2, 0));
    assert_eq!(made.branch, "axp/x");
    phases.dedup();
    assert_eq!(phases, [Phase::Stage, Phase::Bundle]);

    let again = checkpoint(&worktree).unwrap();
    assert_eq!(again.head, made.head, "nothing changed, nothing to commit");
    assert_eq!(again.bundle.unwrap().size, made.bundle.unwrap().size);
}

#[test]
fn artifacts_match_their_digests_and_go_with_their_owner() {
    let project = Project::new();
    let worktree = project.worktree("x");
    write(worktree.path(), "new", "new\n");
    let made = checkpoint(&worktree).unwrap();
    let bundle = made.bundle.clone().unwrap();
    for artifact in [&bundle, &made.patch] {
        use sha2::{Digest, Sha256};
        let bytes = fs::read(&artifact.path).unwrap();
        assert_eq!(artifact.size, bytes.len() as u64);
        let hex: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(artifact.sha256, hex);
    }
    let heads = git(worktree.path(), &["bundle", "list-heads", bundle.path.to_str().unwrap()]);
    assert_eq!(heads, format!("{} refs/heads/axp/x", made.head));
    drop(made);
    assert!(!bundle.path.exists());
}

#[test]
fn an_agent_that_changed_nothing_is_a_normal_result() {
    let project = Project::new();
    let worktree = project.worktree("x");
    let made = checkpoint(&worktree).unwrap();
    assert_eq!(made.head, made.base);
    assert!(made.bundle.is_none() && made.files.is_empty());
    assert_eq!((made.patch.size, made.stat.to_string().as_str()), (0, ""));
}

#[test]
fn commits_of_the_agent_are_kept() {
    let project = Project::new();
    let worktree = project.worktree("x");
    write(worktree.path(), "own", "own\n");
    git(worktree.path(), &["add", "own"]);
    git(worktree.path(), &["commit", "--quiet", "-m", "by the agent"]);
    let own = git(worktree.path(), &["rev-parse", "HEAD"]);
    assert_eq!(checkpoint(&worktree).unwrap().head, own);
    write(worktree.path(), "left", "left\n");
    let made = checkpoint(&worktree).unwrap();
    assert_eq!(git(worktree.path(), &["rev-parse", "HEAD~1"]), own);
    assert_eq!(made.files.len(), 2);
}

#[test]
fn commits_without_changes_still_make_a_bundle() {
    let project = Project::new();
    let worktree = project.worktree("x");
    git(worktree.path(), &["commit", "--quiet", "--allow-empty", "-m", "nothing"]);
    let made = checkpoint(&worktree).unwrap();
    assert_ne!(made.head, made.base);
    assert!(made.bundle.is_some() && made.files.is_empty());
    assert_eq!(made.patch.size, 0);
}

#[test]
fn a_message_needs_not_be_fit_for_git() {
    let project = Project::new();
    let worktree = project.worktree("x");
    for (message, expected) in [
        ("", "AXP checkpoint"),
        ("a\0b", "ab"),
        ("# not a comment", "# not a comment"),
        ("--amend", "--amend"),
    ] {
        write(worktree.path(), "file", message);
        write(worktree.path(), "other", expected);
        let options = CheckpointOptions::new(worktree.base_commit(), message);
        worktree.checkpoint(&options, &mut quiet).unwrap();
        assert_eq!(git(worktree.path(), &["log", "-1", "--format=%B"]), expected);
    }
}

#[test]
fn a_broken_link_never_leads_to_the_users_checkout() {
    let project = Project::new();
    let worktree = project.worktree("x");
    let before = project.belongings();
    write(worktree.path(), "new", "new\n");
    fs::remove_file(worktree.path().join(".git")).unwrap();
    assert_eq!(checkpoint(&worktree).unwrap().files.len(), 1);
    git(worktree.path(), &["init", "--quiet"]);
    write(worktree.path(), "newer", "newer\n");
    assert_eq!(checkpoint(&worktree).unwrap().files.len(), 2);
    assert_eq!(project.belongings(), before);
}

#[test]
fn edits_right_after_a_checkpoint_are_seen() {
    let project = Project::new();
    let worktree = project.worktree("x");
    // Same size, and often the same time stamp as the index.
    for round in 0..20 {
        write(worktree.path(), "file", format!("{round:04}"));
        let made = checkpoint(&worktree).unwrap();
        let blob = made.files[0].after.as_ref().unwrap();
        assert_eq!(made.read_blob(&blob.id).unwrap(), format!("{round:04}").as_bytes());
    }
}

#[test]
fn a_deleted_index_costs_nothing() {
    let project = Project::new();
    let worktree = project.worktree("x");
    fs::remove_file(worktree.git_dir.join("index")).unwrap();
    write(worktree.path(), "new", "new\n");
    assert_eq!(checkpoint(&worktree).unwrap().files.len(), 1);
    assert_eq!(git(worktree.path(), &["status", "--porcelain"]), "");
}

/// Runs a checkpoint that must fail, and checks that the worktree is as it was.
fn refused(worktree: &Worktree, options: &CheckpointOptions) -> WorktreeError {
    let before = state(worktree);
    let status = try_git(worktree.path(), &["status", "--porcelain"]);
    let error = worktree.checkpoint(options, &mut quiet).unwrap_err();
    assert!(state(worktree) == before, "{error}");
    assert_eq!(try_git(worktree.path(), &["status", "--porcelain"]), status);
    error
}

#[test]
fn limits_are_told_with_numbers() {
    let project = Project::new();
    let worktree = project.worktree("x");
    for n in 0..4 {
        write(worktree.path(), &format!("f{n}"), "x\n");
    }
    let mut options = CheckpointOptions::new(worktree.base_commit(), "work");
    options.max_files = 3;
    let error = refused(&worktree, &options);
    assert!(matches!(error, WorktreeError::TooManyFiles { count: 4, limit: 3 }), "{error}");

    write(worktree.path(), "big", vec![b'x'; 5000]);
    options = CheckpointOptions { max_files: 2000, max_blob: 4999, ..options };
    let error = refused(&worktree, &options);
    assert!(
        matches!(&error, WorktreeError::FileTooLarge { path, size: 5000, limit: 4999 } if path == "big"),
        "{error}"
    );

    options.max_blob = 5000;
    let error = refused(&worktree, &options);
    assert!(matches!(error, WorktreeError::ArtifactTooLarge { what: "patch", .. }), "{error}");

    options.max_blob = 6000;
    assert_eq!(worktree.checkpoint(&options, &mut quiet).unwrap().files.len(), 5);
}

#[test]
fn a_bundle_that_is_too_large_takes_the_commit_back() {
    let project = Project::new();
    let worktree = project.worktree("x");
    // History the patch does not show: each version is committed, then replaced by a small one.
    for round in 0..3_u32 {
        let noise: Vec<u8> =
            (0..800_u32).map(|n| (n.wrapping_mul(2_654_435_761 ^ round) >> 13) as u8).collect();
        write(worktree.path(), "file", noise);
        git(worktree.path(), &["add", "-A"]);
        git(worktree.path(), &["commit", "--quiet", "-m", "noise"]);
    }
    write(worktree.path(), "file", "small\n");
    let mut options = CheckpointOptions::new(worktree.base_commit(), "work");
    options.max_blob = 1000;
    let error = refused(&worktree, &options);
    assert!(matches!(error, WorktreeError::ArtifactTooLarge { what: "bundle", .. }), "{error}");
    assert_eq!(checkpoint(&worktree).unwrap().files.len(), 1);
}

#[test]
fn a_lock_is_named() {
    let project = Project::new();
    let worktree = project.worktree("x");
    write(worktree.path(), "new", "new\n");
    let lock = worktree.git_dir.join("index.lock");
    fs::write(&lock, "").unwrap();
    let options = CheckpointOptions::new(worktree.base_commit(), "work");
    let error = refused(&worktree, &options);
    assert!(matches!(&error, WorktreeError::IndexLocked { path } if *path == lock), "{error}");
    fs::remove_file(lock).unwrap();
    assert_eq!(checkpoint(&worktree).unwrap().files.len(), 1);
}

#[test]
fn an_unreadable_file_is_named_and_nothing_is_committed() {
    let project = Project::new();
    let worktree = project.worktree("x");
    write(worktree.path(), "secret", "x");
    chmod(&worktree.path().join("secret"), 0);
    if fs::read(worktree.path().join("secret")).is_ok() {
        return; // Root reads everything.
    }
    let error = refused(&worktree, &CheckpointOptions::new(worktree.base_commit(), "work"));
    assert!(matches!(&error, WorktreeError::Git { detail, .. } if detail.contains("secret")), "{error}");
}

#[test]
fn repositories_inside_the_worktree_are_named() {
    let project = Project::new();
    let worktree = project.worktree("x");
    let options = CheckpointOptions::new(worktree.base_commit(), "work");
    git(worktree.path(), &["init", "--quiet", "deep/own repo"]);
    write(worktree.path(), "deep/own repo/file", "x\n");
    let error = refused(&worktree, &options);
    assert!(
        matches!(&error, WorktreeError::EmbeddedRepository { path } if path == "deep/own repo"),
        "{error}"
    );

    let nested = worktree.path().join("deep/own repo");
    git(&nested, &["add", "-A"]);
    git(&nested, &["commit", "--quiet", "-m", "inner"]);
    let error = refused(&worktree, &options);
    assert!(
        matches!(&error, WorktreeError::EmbeddedRepository { path } if path == "deep/own repo"),
        "{error}"
    );

    fs::remove_dir_all(nested.join(".git")).unwrap();
    assert_eq!(checkpoint(&worktree).unwrap().files[0].path, "deep/own repo/file");
}

#[test]
fn submodules_count_as_pointers_unless_they_hold_uncommitted_work() {
    let library = Project::new();
    let project = Project::new();
    let url = library.root();
    let allow = ["-c", "protocol.file.allow=always"];
    let add = ["submodule", "--quiet", "add", url.to_str().unwrap(), "lib"];
    let worktree = project.worktree("x");
    git(worktree.path(), &[&allow[..], &add].concat());
    let made = checkpoint(&worktree).unwrap();
    let pointer = made.files.iter().find(|file| file.path == "lib").unwrap();
    assert_eq!(pointer.new_mode.as_deref(), Some("160000"));
    assert!(pointer.before.is_none() && pointer.after.is_none());

    write(worktree.path(), "lib/README.md", "lost?\n");
    let error = refused(&worktree, &CheckpointOptions::new(worktree.base_commit(), "work"));
    assert!(matches!(&error, WorktreeError::SubmoduleChanges { path } if path == "lib"), "{error}");
    git(&worktree.path().join("lib"), &["checkout", "--quiet", "HEAD~1", "--force"]);
    assert_eq!(checkpoint(&worktree).unwrap().files.len(), 2);
}

#[test]
fn pipes_and_links_are_not_followed() {
    let project = Project::new();
    let worktree = project.worktree("x");
    let secret = project.folder.path().join("secret");
    fs::write(&secret, "do not read").unwrap();
    symlink(&secret, worktree.path().join("out")).unwrap();
    symlink("/", worktree.path().join("root")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        worktree.path().join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let made = checkpoint(&worktree).unwrap();
    let bytes: Vec<_> = made
        .files
        .iter()
        .map(|file| (file.path.as_str(), made.read_blob(&file.after.as_ref().unwrap().id).unwrap()))
        .collect();
    assert_eq!(bytes, [("out", secret.to_str().unwrap().into()), ("root", b"/".to_vec())]);
}
