use std::fs;

use super::support::{Project, git, write};
use crate::worktree::{Repository, Start, Worktree, WorktreeError};

#[test]
fn any_folder_of_a_checkout_will_do() {
    let project = Project::new();
    for folder in ["", "src", ".git", ".git/objects"] {
        let found = Repository::discover(&project.root().join(folder)).unwrap();
        assert_eq!(found.root(), project.root());
        assert_eq!(found.head().unwrap(), project.head());
    }
}

#[test]
fn folders_without_a_usable_repository_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let error = Repository::discover(folder.path()).unwrap_err();
    assert!(matches!(error, WorktreeError::NotARepository { .. }), "{error}");

    git(folder.path(), &["init", "--quiet", "--bare", "bare"]);
    let error = Repository::discover(&folder.path().join("bare")).unwrap_err();
    assert!(matches!(error, WorktreeError::BareRepository { .. }), "{error}");

    git(folder.path(), &["init", "--quiet", "new"]);
    let error = Repository::discover(&folder.path().join("new")).unwrap_err();
    assert!(matches!(error, WorktreeError::NoCommits { .. }), "{error}");

    let error = Repository::discover(&folder.path().join("absent")).unwrap_err();
    assert!(matches!(error, WorktreeError::Io { .. }), "{error}");
}

#[test]
fn a_linked_worktree_has_its_own_head_and_the_main_root() {
    let project = Project::new();
    let linked = project.folder.path().join("linked");
    project.git(&["worktree", "add", "--quiet", linked.to_str().unwrap(), "HEAD~1"]);
    let found = Repository::discover(&linked).unwrap();
    assert_eq!(found.root(), project.root());
    assert_eq!(found.head().unwrap(), project.git(&["rev-parse", "HEAD~1"]));
    let made = Worktree::create(&found, "x", Start::Head, &mut |_| {}).unwrap();
    assert_eq!(made.path(), project.root().join(".axp/worktrees/x"));
    assert_eq!(fs::read_to_string(made.path().join("README.md")).unwrap(), "first\n");
}

#[test]
fn worktrees_of_a_bare_clone_stand_for_themselves() {
    let project = Project::new();
    let place = project.folder.path().canonicalize().unwrap();
    git(&place, &["clone", "--quiet", "--bare", "project", "hub/.git"]);
    git(&place.join("hub"), &["--git-dir=.git", "worktree", "add", "--quiet", "main-copy", "main"]);
    let found = Repository::discover(&place.join("hub/main-copy")).unwrap();
    assert_eq!(found.root(), place.join("hub/main-copy"));
    let made = Worktree::create(&found, "x", Start::Head, &mut |_| {}).unwrap();
    assert_eq!(Worktree::open(made.path()).unwrap(), made);
    assert_eq!(git(found.root(), &["status", "--porcelain"]), "");
}

#[test]
fn a_worktree_of_an_agent_belongs_to_the_checkout_around_it() {
    let project = Project::new();
    let worktree = project.worktree("x");
    let found = Repository::discover(&worktree.path().join("src")).unwrap();
    assert_eq!(found, project.repository());
}

#[test]
fn a_submodule_is_a_repository_of_its_own() {
    let project = Project::new();
    let library = Project::new();
    let url = library.root();
    project.git(&[
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "--quiet",
        "add",
        url.to_str().unwrap(),
        "lib",
    ]);
    let found = Repository::discover(&project.root().join("lib/src")).unwrap();
    assert_eq!(found.root(), project.root().join("lib"));
    let made = Worktree::create(&found, "x", Start::Head, &mut |_| {}).unwrap();
    write(made.path(), "new", "new\n");
    assert_eq!(super::support::checkpoint(&made).unwrap().files.len(), 1);
}

#[test]
fn odd_folder_names_are_fine() {
    let project = Project::new();
    for name in ["with space", "-dash", "ünïcode", "quote\"'", "colon:semi;", "new\nline", "back\\slash"] {
        let target = project.folder.path().canonicalize().unwrap().join(name);
        git(project.folder.path(), &["clone", "--quiet", "--", "project", target.to_str().unwrap()]);
        let found = Repository::discover(&target).unwrap();
        assert_eq!(found.root(), target);
        let made = Worktree::create(&found, "x", Start::Head, &mut |_| {}).unwrap();
        assert_eq!(Worktree::open(made.path()).unwrap(), made, "{name:?}");
        assert_eq!(Worktree::list(&found).unwrap(), std::slice::from_ref(&made), "{name:?}");
        write(made.path(), "new", "new\n");
        let artifacts = super::support::checkpoint(&made).unwrap();
        let bundle = artifacts.bundle.as_ref().unwrap();
        let start = Start::Bundle {
            path: bundle.path.clone(),
            base: artifacts.base.clone(),
            head: artifacts.head.clone(),
        };
        Worktree::create(&found, "y", start, &mut |_| {}).unwrap();
    }
}
