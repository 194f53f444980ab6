use proptest::prelude::*;

use super::support::try_git;
use crate::worktree::names::{branch, candidates};
use crate::worktree::{check_name, parse_commit_id};

#[test]
fn names_that_could_leave_their_folder_or_confuse_git_are_refused() {
    for name in [
        "", ".", "..", "a..b", "-x", "_x", "a/b", "../x", "a.lock", "a.LOCK", "a.", "a b", "ä", "a\n", "a~1",
        "x@{1}",
    ] {
        assert!(check_name(name).is_err(), "{name:?}");
    }
    for name in ["a", "7", "fix-1", "A.b_c-d", "HEAD", "a.lock.x", "locked"] {
        assert!(check_name(name).is_ok(), "{name:?}");
    }
    assert!(check_name(&"x".repeat(101)).is_ok());
    assert!(check_name(&"x".repeat(102)).is_err());
}

#[test]
fn only_full_ids_are_commits() {
    for id in
        ["", "HEAD", "abc", "--help", &"g".repeat(40), &"a".repeat(39), &"a".repeat(41), &"é".repeat(20)]
    {
        assert!(parse_commit_id(id).is_err(), "{id:?}");
    }
    assert_eq!(parse_commit_id(&"AB".repeat(32)).unwrap(), "ab".repeat(32));
}

#[test]
fn names_are_numbered_from_two() {
    let names: Vec<_> = candidates("x").take(3).collect();
    assert_eq!(names, ["x", "x-2", "x-3"]);
    assert_eq!(candidates("x").last().as_deref(), Some("x-999"));
}

proptest! {
    #[test]
    fn accepted_names_stay_in_their_folder(name in "\\PC{0,20}|[a-zA-Z0-9._/-]{0,120}") {
        if check_name(&name).is_ok() {
            let path = std::path::Path::new(&name);
            prop_assert_eq!(path.components().count(), 1);
            prop_assert_eq!(path.file_name(), Some(path.as_os_str()));
            for candidate in candidates(&name).take(3) {
                for own in [true, false] {
                    prop_assert!(git2::Branch::name_is_valid(&branch(&candidate, own)).unwrap());
                }
            }
        }
    }

    #[test]
    fn ids_are_hexadecimal(id in "\\PC{0,70}|[0-9a-fA-F]{38,66}") {
        if let Ok(id) = parse_commit_id(&id) {
            prop_assert!(id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
        }
    }
}

#[test]
fn git_agrees_with_the_names_that_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "A.b_c-d", "a.lock.x", "HEAD", "7-"] {
        let (ok, text) = try_git(folder.path(), &["check-ref-format", "--branch", &branch(name, false)]);
        assert!(ok, "{name}: {text}");
    }
}
