use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::support::{Project, checkpoint, chmod, git, quiet, traces, write};
use crate::worktree::{BranchFate, Phase, Start, Worktree, WorktreeError};

#[test]
fn a_worktree_has_the_files_of_head_on_a_new_branch() {
    let project = Project::new();
    let mut phases = Vec::new();
    let worktree =
        Worktree::create(&project.repository(), "fix-1", Start::Head, &mut |step| phases.push(step)).unwrap();
    assert_eq!(worktree.path(), project.root().join(".axp/worktrees/fix-1"));
    assert_eq!(worktree.branch(), "axp/fix-1");
    assert_eq!(worktree.base_commit(), project.head());
    assert_eq!(git(worktree.path(), &["status", "--porcelain=v2", "--branch"]).lines().count(), 2);
    assert_eq!(git(worktree.path(), &["symbolic-ref", "HEAD"]), "refs/heads/axp/fix-1");
    assert_eq!(fs::read_link(worktree.path().join("link")).unwrap().to_str(), Some("README.md"));
    assert!(phases.iter().all(|step| step.phase == Phase::Checkout));
    assert_eq!(phases.last().and_then(|step| step.total), Some(6));
    assert_eq!(phases.last().map(|step| step.done), Some(6));
}

#[test]
fn the_folder_is_private_and_ignored_once() {
    let project = Project::new();
    project.worktree("a");
    project.worktree("b");
    let mode = fs::metadata(project.root().join(".axp")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let exclude = fs::read_to_string(project.root().join(".git/info/exclude")).unwrap();
    assert_eq!(exclude.lines().filter(|line| *line == "/.axp/").count(), 1);
    assert_eq!(project.git(&["status", "--porcelain"]), "");
}

#[test]
fn an_exclude_file_without_a_last_newline_keeps_its_last_line() {
    let project = Project::new();
    let exclude = project.root().join(".git/info/exclude");
    fs::write(&exclude, "*.tmp").unwrap();
    project.worktree("a");
    assert_eq!(fs::read_to_string(&exclude).unwrap(), "*.tmp\n/.axp/\n");
    fs::remove_dir_all(project.root().join(".git/info")).unwrap();
    project.worktree("b");
    assert_eq!(fs::read_to_string(&exclude).unwrap(), "/.axp/\n");
}

#[test]
fn what_belongs_to_the_user_stays_as_it_is() {
    let project = Project::new();
    let root = project.root();
    write(&root, "README.md", "stashed\n");
    project.git(&["stash", "--quiet"]);
    write(&root, "src/lib.rs", "// staged\n");
    project.git(&["add", "src/lib.rs"]);
    write(&root, "src/lib.rs", "// and edited\n");
    write(&root, "untracked", "mine\n");
    fs::remove_file(root.join("run.sh")).unwrap();
    project.git(&["branch", "other"]);
    let before = project.belongings();

    let worktree = project.worktree("x");
    write(worktree.path(), "README.md", "work\n");
    checkpoint(&worktree).unwrap();
    worktree.remove(BranchFate::Delete).unwrap();
    assert_eq!(project.belongings(), before);
}

#[test]
fn taken_names_are_left_alone() {
    let project = Project::new();
    assert_eq!(project.worktree("x").name(), "x");
    assert_eq!(project.worktree("x").name(), "x-2");
    project.git(&["branch", "axp/x-3"]);
    write(&project.root(), ".axp/worktrees/x-4/keep", "mine");
    project.git(&["branch", "axp/x-5/below"]);
    let sixth = project.worktree("x");
    assert_eq!((sixth.name(), sixth.branch()), ("x-6", "axp/x-6"));
    assert_eq!(fs::read(project.root().join(".axp/worktrees/x-4/keep")).unwrap(), b"mine");
}

#[test]
fn a_folder_that_git_still_lists_is_taken() {
    let project = Project::new();
    let worktree = project.worktree("x");
    fs::remove_dir_all(worktree.path()).unwrap();
    project.git(&["update-ref", "-d", "refs/heads/axp/x"]);
    assert_eq!(project.worktree("x").name(), "x-2");
}

#[test]
fn a_branch_called_axp_does_not_stand_in_the_way() {
    let project = Project::new();
    project.git(&["branch", "axp"]);
    let worktree = project.worktree("x");
    assert_eq!(worktree.branch(), "axp-x");
    assert_eq!(Worktree::open(worktree.path()).unwrap(), worktree);
}

#[test]
fn hooks_signing_and_a_missing_identity_do_not_matter() {
    let project = Project::new();
    let hooks = project.root().join(".git/hooks");
    fs::create_dir_all(&hooks).unwrap();
    for hook in [
        "post-checkout",
        "pre-commit",
        "commit-msg",
        "post-commit",
        "reference-transaction",
        "post-index-change",
    ] {
        write(&hooks, hook, "#!/bin/sh\ntouch ../ran ran \"$GIT_DIR/ran\"\nexit 1\n");
        chmod(&hooks.join(hook), 0o755);
    }
    for (name, value) in [
        ("commit.gpgSign", "true"),
        ("gpg.program", "/bin/false"),
        ("core.fsmonitor", "/bin/false"),
        ("user.useConfigOnly", "true"),
        ("worktree.useRelativePaths", "true"),
        ("diff.noprefix", "true"),
        ("diff.external", "/bin/false"),
        ("core.safecrlf", "true"),
        ("core.autocrlf", "input"),
        ("core.splitIndex", "true"),
        ("checkout.defaultRemote", "nowhere"),
        ("branch.autoSetupMerge", "always"),
    ] {
        project.git(&["config", name, value]);
    }
    for name in ["user.name", "user.email"] {
        project.git(&["config", "--unset", name]);
    }
    let config = fs::read(project.root().join(".git/config")).unwrap();
    let worktree = project.worktree("x");
    write(worktree.path(), "new.txt", "one\r\ntwo\n");
    let made = checkpoint(&worktree).unwrap();
    assert_eq!(fs::read(project.root().join(".git/config")).unwrap(), config);
    let who = git(worktree.path(), &["log", "-1", "--format=%an <%ae> %cn <%ce> %G? %B"]);
    assert_eq!(who, "AXP Contributor <axp@localhost> AXP Contributor <axp@localhost> N work");
    assert_eq!(made.read_blob(&made.files[0].after.as_ref().unwrap().id).unwrap(), b"one\ntwo\n");
    let patch = fs::read_to_string(&made.patch.path).unwrap();
    assert!(patch.starts_with("diff --git a/new.txt b/new.txt\n"), "{patch}");
    let root = project.root();
    for folder in [root.as_path(), worktree.path(), worktree.path().parent().unwrap(), &worktree.git_dir] {
        assert!(!folder.join("ran").exists(), "a hook ran in {folder:?}");
    }
}

#[test]
fn filters_run_as_the_user_configured_them() {
    let project = Project::new();
    project.git(&["config", "filter.upper.clean", "tr a-z A-Z"]);
    project.git(&["config", "filter.upper.smudge", "tr A-Z a-z"]);
    write(&project.root(), ".gitattributes", "*.up filter=upper\n");
    write(&project.root(), "a.up", "loud\n");
    project.commit("filtered");
    let worktree = project.worktree("x");
    assert_eq!(fs::read(worktree.path().join("a.up")).unwrap(), b"loud\n");
    assert!(checkpoint(&worktree).unwrap().bundle.is_none());
    write(worktree.path(), "a.up", "louder\n");
    let made = checkpoint(&worktree).unwrap();
    assert_eq!(made.read_blob(&made.files[0].after.as_ref().unwrap().id).unwrap(), b"LOUDER\n");
}

#[test]
fn the_start_is_a_commit_that_exists() {
    let project = Project::new();
    let first = project.git(&["rev-parse", "HEAD~1"]);
    let repository = project.repository();
    let create = |start| Worktree::create(&repository, "x", start, &mut quiet);
    let worktree = create(Start::Commit(first.to_uppercase())).unwrap();
    assert_eq!(worktree.base_commit(), first);
    assert!(!worktree.path().join("src").exists());

    let missing = create(Start::Commit("0123456789".repeat(4))).unwrap_err();
    assert!(matches!(missing, WorktreeError::CommitMissing { .. }), "{missing}");
    let tree = create(Start::Commit(project.git(&["rev-parse", "HEAD^{tree}"]))).unwrap_err();
    assert!(matches!(tree, WorktreeError::CommitMissing { .. }), "{tree}");
    let name = create(Start::Commit("main".into())).unwrap_err();
    assert!(matches!(name, WorktreeError::InvalidCommitId { .. }), "{name}");
}

#[test]
fn links_in_place_of_our_folders_are_refused() {
    let project = Project::new();
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), project.root().join(".axp")).unwrap();
    let error = Worktree::create(&project.repository(), "x", Start::Head, &mut quiet).unwrap_err();
    assert!(matches!(error, WorktreeError::UnsafeFolder { .. }), "{error}");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn a_failed_checkout_leaves_nothing() {
    let project = Project::new();
    project.git(&["config", "filter.broken.smudge", "false"]);
    project.git(&["config", "filter.broken.required", "true"]);
    write(&project.root(), ".gitattributes", "data.bin filter=broken\n");
    project.git(&["-c", "filter.broken.clean=cat", "add", "-A"]);
    project.git(&["-c", "filter.broken.clean=cat", "commit", "--quiet", "-m", "x"]);
    let before = traces(&project.repository());
    let error = Worktree::create(&project.repository(), "x", Start::Head, &mut quiet).unwrap_err();
    assert!(matches!(error, WorktreeError::Git { action: "check out the files", .. }), "{error}");
    assert_eq!(traces(&project.repository()), before);
}

#[test]
fn a_worktree_is_found_again_even_when_the_agent_broke_its_link() {
    let project = Project::new();
    let worktree = project.worktree("x");
    assert_eq!(Worktree::open(worktree.path()).unwrap(), worktree);
    assert_eq!(Worktree::list(&project.repository()).unwrap(), std::slice::from_ref(&worktree));
    fs::remove_file(worktree.path().join(".git")).unwrap();
    assert_eq!(Worktree::open(worktree.path()).unwrap(), worktree);
    for other in [project.root(), project.root().join(".axp/worktrees/none"), worktree.path().join("src")] {
        let error = Worktree::open(&other).unwrap_err();
        assert!(matches!(error, WorktreeError::NotAWorktree { .. }), "{error}");
    }
}

#[test]
fn a_project_that_moved_keeps_its_worktrees() {
    let project = Project::new();
    let worktree = project.worktree("x");
    write(worktree.path(), "new", "new\n");
    let moved = project.folder.path().canonicalize().unwrap().join("moved");
    fs::rename(project.root(), &moved).unwrap();
    let worktree = Worktree::open(&moved.join(".axp/worktrees/x")).unwrap();
    assert_eq!(checkpoint(&worktree).unwrap().files.len(), 1);
}

#[test]
fn removal_takes_read_only_folders_and_keeps_the_branch() {
    let project = Project::new();
    let worktree = project.worktree("x");
    let outside = project.root().join("README.md");
    symlink(project.root(), worktree.path().join("to-root")).unwrap();
    write(worktree.path(), "target/cache/file", "x");
    chmod(&worktree.path().join("target/cache"), 0o500);
    chmod(&worktree.path().join("target"), 0o500);
    worktree.clone().remove(BranchFate::Keep).unwrap();
    assert!(!worktree.path().exists() && outside.exists());
    assert_eq!(project.git(&["worktree", "list", "--porcelain"]).matches("worktree ").count(), 1);
    assert_eq!(project.git(&["rev-parse", "axp/x"]), project.head());
    // The name's branch is somebody's work now.
    assert_eq!(project.worktree("x").name(), "x-2");
}

#[test]
fn a_sparse_checkout_stays_sparse_and_loses_nothing() {
    let project = Project::new();
    write(&project.root(), "big/file", "big\n");
    let all = project.commit("big");
    project.git(&["sparse-checkout", "set", "--cone", "src"]);
    let worktree = project.worktree("x");
    assert!(!worktree.path().join("big").exists());
    write(worktree.path(), "outside/new", "new\n");
    write(worktree.path(), "src/lib.rs", "// changed\n");
    let made = checkpoint(&worktree).unwrap();
    let paths: Vec<_> = made.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["outside/new", "src/lib.rs"]);
    assert_eq!(made.base, all);
}
