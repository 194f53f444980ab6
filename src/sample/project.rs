//! The project the sample agent knows how to fix.

/// The file with the bug.
pub(super) const CODE: &str = "add.sh";
/// The tests that fail because of it.
pub(super) const TESTS: &str = "test.sh";
/// The bug and what is right.
pub(super) const BUG: (&str, &str) = ("$(($1 - $2))", "$(($1 + $2))");

const FILES: &[(&str, &str, bool)] = &[
    (
        "README.md",
        "# calc\n\nSums for shell scripts. Source `add.sh` and call `add 2 3`. Run `sh test.sh` before you commit.\n",
        false,
    ),
    ("add.sh", "# Prints the sum of two whole numbers.\nadd() {\n    echo \"$(($1 - $2))\"\n}\n", false),
    (
        "test.sh",
        r#"#!/bin/sh
# Checks add.sh; exits with 1 if a sum is wrong.
cd "$(dirname "$0")" || exit 1
. ./add.sh

failed=0
check() {
    got=$(add "$1" "$2")
    if [ "$got" = "$3" ]; then
        echo "ok   $1 + $2 = $3"
    else
        echo "FAIL $1 + $2 = $got, expected $3"
        failed=1
    fi
}

check 0 0 0
check 2 3 5
check 40 2 42
exit "$failed"
"#,
        true,
    ),
];

/// A small project with a bug and a test that fails: path, contents, and whether the file is executable. It needs a
/// POSIX shell and nothing else.
#[must_use]
pub fn scratch_project() -> &'static [(&'static str, &'static str, bool)] {
    FILES
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_tests_fail_until_the_bug_is_fixed() {
        let folder = tempfile::tempdir().unwrap();
        for (path, contents, _) in scratch_project() {
            std::fs::write(folder.path().join(path), contents).unwrap();
        }
        let passes = || Command::new("sh").arg(folder.path().join(TESTS)).output().unwrap().status.success();
        assert!(!passes());
        let code = std::fs::read_to_string(folder.path().join(CODE)).unwrap();
        assert_eq!(code.matches(BUG.0).count(), 1);
        std::fs::write(folder.path().join(CODE), code.replace(BUG.0, BUG.1)).unwrap();
        assert!(passes());
    }
}
