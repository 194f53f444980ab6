//! Agents that leave the branch they were given.

use super::support::{Project, checkpoint, git, state, try_git, write};
use crate::worktree::{Worktree, WorktreeError};

fn refused(worktree: &Worktree) -> WorktreeError {
    let before = state(worktree);
    let error = checkpoint(worktree).unwrap_err();
    assert!(state(worktree) == before, "{error}");
    error
}

fn commit(worktree: &Worktree, file: &str) -> String {
    write(worktree.path(), file, file);
    git(worktree.path(), &["add", "-A"]);
    git(worktree.path(), &["commit", "--quiet", "-m", file]);
    git(worktree.path(), &["rev-parse", "HEAD"])
}

#[test]
fn the_branch_follows_to_another_branch() {
    let project = Project::new();
    let worktree = project.worktree("x");
    write(worktree.path(), "first", "first\n");
    checkpoint(&worktree).unwrap();
    git(worktree.path(), &["switch", "--quiet", "-c", "feature"]);
    let feature = commit(&worktree, "own");
    write(worktree.path(), "left", "left\n");
    let made = checkpoint(&worktree).unwrap();
    assert_eq!(made.files.len(), 3);
    assert_eq!(git(worktree.path(), &["symbolic-ref", "HEAD"]), "refs/heads/axp/x");
    assert_eq!(
        git(worktree.path(), &["rev-parse", "axp/x", "axp/x~1", "feature"]),
        format!("{}\n{feature}\n{feature}", made.head)
    );
    assert_eq!(git(worktree.path(), &["status", "--porcelain"]), "");
}

#[test]
fn the_branch_follows_a_detached_head_and_comes_back_when_deleted() {
    let project = Project::new();
    let worktree = project.worktree("x");
    git(worktree.path(), &["switch", "--quiet", "--detach"]);
    git(worktree.path(), &["branch", "--quiet", "-D", "axp/x"]);
    let own = commit(&worktree, "own");
    let made = checkpoint(&worktree).unwrap();
    assert_eq!((made.head.as_str(), made.branch.as_str()), (own.as_str(), "axp/x"));
    assert_eq!(git(worktree.path(), &["rev-parse", "axp/x"]), own);
    assert_eq!(git(worktree.path(), &["symbolic-ref", "HEAD"]), "refs/heads/axp/x");
}

#[test]
fn the_branch_never_drops_commits() {
    let project = Project::new();
    let worktree = project.worktree("x");
    let tip = commit(&worktree, "on the branch");
    git(worktree.path(), &["switch", "--quiet", "--detach", "HEAD~1"]);
    let head = commit(&worktree, "elsewhere");
    let error = refused(&worktree);
    match &error {
        WorktreeError::BranchDiverged { branch, tip: t, head: h } => {
            assert_eq!((branch.as_str(), t, h), ("axp/x", &tip, &head));
        }
        _ => panic!("{error}"),
    }
    git(worktree.path(), &["merge", "--quiet", "-m", "both", "axp/x"]);
    assert_eq!(checkpoint(&worktree).unwrap().files.len(), 2);
}

#[test]
fn a_reset_to_an_earlier_checkpoint_is_fine() {
    let project = Project::new();
    let worktree = project.worktree("x");
    write(worktree.path(), "wrong", "wrong\n");
    checkpoint(&worktree).unwrap();
    git(worktree.path(), &["reset", "--quiet", "--hard", worktree.base_commit()]);
    assert!(checkpoint(&worktree).unwrap().bundle.is_none());
}

#[test]
fn history_without_the_base_is_refused() {
    let project = Project::new();
    let worktree = project.worktree("x");
    git(worktree.path(), &["reset", "--quiet", "--hard", "HEAD~1"]);
    write(worktree.path(), "new", "new\n");
    assert!(matches!(refused(&worktree), WorktreeError::NotDescendant { .. }));

    let tree = git(worktree.path(), &["rev-parse", "HEAD^{tree}"]);
    let unrelated = git(worktree.path(), &["commit-tree", "-m", "unrelated", &tree]);
    git(worktree.path(), &["reset", "--quiet", "--hard", &unrelated]);
    let error = refused(&worktree);
    assert!(
        matches!(&error, WorktreeError::NotDescendant { head, base } if *head == unrelated && base == worktree.base_commit()),
        "{error}"
    );

    git(worktree.path(), &["switch", "--quiet", "--orphan", "empty"]);
    assert!(matches!(refused(&worktree), WorktreeError::UnbornHead { .. }));
}

#[test]
fn a_branch_in_use_elsewhere_is_not_moved() {
    let project = Project::new();
    let worktree = project.worktree("x");
    git(worktree.path(), &["switch", "--quiet", "-c", "feature"]);
    project.git(&["switch", "--quiet", "axp/x"]);
    write(worktree.path(), "new", "new\n");
    let error = refused(&worktree);
    assert!(matches!(&error, WorktreeError::BranchInUse { path, .. } if *path == project.root()), "{error}");
    project.git(&["switch", "--quiet", "main"]);
    assert_eq!(checkpoint(&worktree).unwrap().files.len(), 1);
}

#[test]
fn a_rebase_has_to_end_first() {
    let project = Project::new();
    let worktree = project.worktree("x");
    commit(&worktree, "one");
    commit(&worktree, "two");
    let (stopped, _) =
        try_git(worktree.path(), &["rebase", "--quiet", "--force-rebase", "--exec", "false", "HEAD~1"]);
    assert!(!stopped);
    assert!(matches!(refused(&worktree), WorktreeError::RebaseInProgress));
    git(worktree.path(), &["rebase", "--abort"]);
    assert_eq!(checkpoint(&worktree).unwrap().files.len(), 2);
}

#[test]
fn a_conflict_is_kept_as_it_stands() {
    let project = Project::new();
    let worktree = project.worktree("x");
    write(worktree.path(), "README.md", "ours\n");
    git(worktree.path(), &["commit", "--quiet", "-a", "-m", "ours"]);
    git(worktree.path(), &["switch", "--quiet", "-c", "other", "HEAD~1"]);
    write(worktree.path(), "README.md", "theirs\n");
    git(worktree.path(), &["commit", "--quiet", "-a", "-m", "theirs"]);
    git(worktree.path(), &["switch", "--quiet", "axp/x"]);
    assert!(!try_git(worktree.path(), &["merge", "other"]).0);
    let made = checkpoint(&worktree).unwrap();
    let bytes = made.read_blob(&made.files[0].after.as_ref().unwrap().id).unwrap();
    assert!(bytes.starts_with(b"<<<<<<< "));
}

#[test]
fn an_alias_of_a_users_branch_does_not_move_it() {
    let project = Project::new();
    let worktree = project.worktree("x");
    git(worktree.path(), &["symbolic-ref", "refs/heads/axp/x", "refs/heads/main"]);
    write(worktree.path(), "new", "new\n");
    let main = project.git(&["rev-parse", "main"]);
    // Refused or not, the user's branch stays.
    let _ = checkpoint(&worktree);
    assert_eq!(project.git(&["rev-parse", "main"]), main);
    git(worktree.path(), &["symbolic-ref", "refs/heads/axp/x", "refs/heads/other"]);
    project.git(&["branch", "other"]);
    let made = checkpoint(&worktree).unwrap();
    assert_eq!(
        project.git(&["rev-parse", "main", "other", "axp/x"]),
        format!("{main}\n{main}\n{}", made.head)
    );
}
