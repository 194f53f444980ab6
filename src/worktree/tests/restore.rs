use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::support::{Project, checkpoint, chmod, git, quiet, traces, write};
use crate::worktree::error::Result;
use crate::worktree::{
    BundleFile, CheckpointArtifacts, Phase, Repository, RestoreRequest, Start, Worktree, WorktreeError,
    restore,
};

fn digest(path: &Path) -> String {
    Sha256::digest(fs::read(path).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn restore_into(repository: &Repository, made: &CheckpointArtifacts, name: &str) -> Result<Worktree> {
    let bundle = made.bundle.as_ref().map(|bundle| BundleFile { path: &bundle.path, sha256: &bundle.sha256 });
    restore(
        repository,
        &RestoreRequest { bundle, base: &made.base, head: &made.head, into: name },
        &mut quiet,
    )
}

/// A worktree with some work, and its checkpoint.
fn work(project: &Project) -> (Worktree, CheckpointArtifacts) {
    let worktree = project.worktree("x");
    write(worktree.path(), "README.md", "hello\nbrave\nworld\n");
    write(worktree.path(), "new dir/ünï\n", b"\0\x01");
    chmod(&worktree.path().join("run.sh"), 0o755);
    fs::remove_file(worktree.path().join("src/lib.rs")).unwrap();
    let made = checkpoint(&worktree).unwrap();
    (worktree, made)
}

/// Every byte of every pack and loose object, to show that no objects came in.
fn objects(repository: &Repository) -> Vec<PathBuf> {
    fn walk(path: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                into.push(path.clone());
                walk(&path, into);
            } else {
                into.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&repository.root().join(".git/objects"), &mut found);
    found.sort();
    found
}

#[test]
fn another_clone_gets_the_same_tree_and_goes_on() {
    let project = Project::new();
    let clone = project.clone_to("clone");
    let (_, made) = work(&project);
    let mut phases = Vec::new();
    let bundle = made.bundle.as_ref().unwrap();
    let request = RestoreRequest {
        bundle: Some(BundleFile { path: &bundle.path, sha256: &bundle.sha256.to_uppercase() }),
        base: &made.base,
        head: &made.head,
        into: "x",
    };
    let restored = restore(&clone, &request, &mut |step| phases.push(step.phase)).unwrap();
    phases.dedup();
    assert_eq!(phases, [Phase::Restore, Phase::Checkout]);
    assert_eq!((restored.branch(), restored.base_commit()), ("axp/x", made.base.as_str()));
    assert_eq!(git(restored.path(), &["rev-parse", "HEAD"]), made.head);
    assert_eq!(git(restored.path(), &["status", "--porcelain"]), "");
    assert_eq!(fs::read(restored.path().join("new dir/ünï\n")).unwrap(), b"\0\x01");
    assert_eq!(git(clone.root(), &["fsck", "--strict"]), "");
    assert_eq!(git(clone.root(), &["rev-parse", "HEAD"]), made.base, "the user's branch stays");

    write(restored.path(), "more", "more\n");
    let more = checkpoint(&restored).unwrap();
    assert_eq!(more.files.len(), made.files.len() + 1);
    let back = restore_into(&project.repository(), &more, "x").unwrap();
    assert_eq!((back.name(), back.base_commit()), ("x-2", made.base.as_str()));
    assert_eq!(git(back.path(), &["rev-parse", "HEAD"]), more.head);
}

#[test]
fn a_checkpoint_that_changed_nothing_is_a_worktree_at_its_base() {
    let project = Project::new();
    let made = checkpoint(&project.worktree("x")).unwrap();
    let restored = restore_into(&project.clone_to("clone"), &made, "x").unwrap();
    assert_eq!(git(restored.path(), &["rev-parse", "HEAD"]), made.base);
}

#[test]
fn the_start_of_a_worktree_can_be_a_bundle() {
    let project = Project::new();
    let (_, made) = work(&project);
    let clone = project.clone_to("clone");
    let path = made.bundle.as_ref().unwrap().path.clone();
    let start = Start::Bundle { path, base: made.base.clone(), head: made.head.clone() };
    let worktree = Worktree::create(&clone, "again", start, &mut quiet).unwrap();
    assert_eq!(worktree.base_commit(), made.base);
    assert_eq!(checkpoint(&worktree).unwrap().head, made.head);
}

/// Runs a restore that must fail, and checks that no ref, folder or object is left.
fn refused(repository: &Repository, bundle: Option<(&Path, &str)>, base: &str, head: &str) -> WorktreeError {
    let before = (traces(repository), objects(repository));
    let bundle = bundle.map(|(path, sha256)| BundleFile { path, sha256 });
    let request = RestoreRequest { bundle, base, head, into: "x" };
    let error = restore(repository, &request, &mut quiet).unwrap_err();
    assert_eq!((traces(repository), objects(repository)), before, "{error}");
    error
}

#[test]
fn damaged_files_are_refused() {
    let project = Project::new();
    let clone = project.clone_to("clone");
    let (_, made) = work(&project);
    let good = made.bundle.as_ref().unwrap();
    let bytes = fs::read(&good.path).unwrap();
    let bad = project.folder.path().join("bad.bundle");
    let try_bytes = |bytes: &[u8]| {
        fs::write(&bad, bytes).unwrap();
        let by_digest = refused(&clone, Some((&bad, &good.sha256)), &made.base, &made.head);
        assert!(matches!(by_digest, WorktreeError::BundleDigest { .. }), "{by_digest}");
        // Even when the digest was recorded from the damaged file.
        refused(&clone, Some((&bad, &digest(&bad))), &made.base, &made.head)
    };
    let header = bytes.windows(4).position(|window| window == b"PACK").unwrap();
    for at in [header + 5, header + 20, (header + bytes.len()) / 2, bytes.len() - 1] {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x10;
        let error = try_bytes(&flipped);
        assert!(matches!(error, WorktreeError::BundleObjects { .. }), "{at}: {error}");
    }
    for length in [bytes.len() - 1, bytes.len() / 2 + header / 2, header] {
        let error = try_bytes(&bytes[..length]);
        assert!(matches!(error, WorktreeError::BundleObjects { .. }), "{length}: {error}");
    }
    for length in [0, 10, header - 1] {
        let error = try_bytes(&bytes[..length]);
        assert!(matches!(error, WorktreeError::BundleMalformed { .. }), "{length}: {error}");
    }
    let absent = refused(&clone, Some((&project.root().join("none"), &good.sha256)), &made.base, &made.head);
    assert!(matches!(absent, WorktreeError::Io { .. }), "{absent}");
}

#[test]
fn the_bundle_must_hold_the_head_and_only_that() {
    let project = Project::new();
    let clone = project.clone_to("clone");
    let (worktree, made) = work(&project);
    let bundle = made.bundle.as_ref().unwrap();
    let other = "0123456789".repeat(4);
    let error = refused(&clone, Some((&bundle.path, &bundle.sha256)), &made.base, &other);
    assert!(matches!(&error, WorktreeError::BundleHead { found, .. } if *found == made.head), "{error}");

    let two = project.folder.path().join("two.bundle");
    git(worktree.path(), &["branch", "extra"]);
    let range = format!("{}..extra", made.base);
    git(worktree.path(), &["bundle", "create", two.to_str().unwrap(), &range, "axp/x"]);
    let error = refused(&clone, Some((&two, &digest(&two))), &made.base, &made.head);
    assert!(matches!(&error, WorktreeError::BundleHead { found, .. } if found == "2 branches"), "{error}");

    let error = refused(&clone, None, &made.base, &made.head);
    assert!(matches!(error, WorktreeError::BundleMissing { .. }), "{error}");
}

#[test]
fn a_header_that_lies_about_its_objects_is_refused() {
    let project = Project::new();
    let clone = project.clone_to("clone");
    let (_, made) = work(&project);
    let bytes = fs::read(&made.bundle.as_ref().unwrap().path).unwrap();
    let invented = "0123456789".repeat(4);
    let header = bytes.windows(4).position(|window| window == b"PACK").unwrap();
    let lie = String::from_utf8(bytes[..header].to_vec()).unwrap().replace(&made.head, &invented);
    let path = project.folder.path().join("lie.bundle");
    fs::write(&path, [lie.as_bytes(), &bytes[header..]].concat()).unwrap();
    let error = refused(&clone, Some((&path, &digest(&path))), &made.base, &invented);
    assert!(matches!(error, WorktreeError::BundleObjects { .. }), "{error}");
}

#[test]
fn a_missing_base_says_what_to_fetch() {
    let project = Project::new();
    let clone = project.clone_to("clone");
    write(&project.root(), "later", "later\n");
    let later = project.commit("later");
    let (_, made) = work(&project);
    let bundle = made.bundle.as_ref().unwrap();
    let error = refused(&clone, Some((&bundle.path, &bundle.sha256)), &made.base, &made.head);
    assert!(matches!(&error, WorktreeError::BaseMissing { base } if *base == later), "{error}");
    assert!(error.to_string().contains("git fetch"), "{error}");
    // A base the clone has does not help when the bundle builds on another commit.
    let older = git(clone.root(), &["rev-parse", "HEAD"]);
    let error = refused(&clone, Some((&bundle.path, &bundle.sha256)), &older, &made.head);
    assert!(matches!(&error, WorktreeError::BaseMissing { base } if *base == later), "{error}");
    let error = refused(&clone, None, &later, &later);
    assert!(matches!(error, WorktreeError::BaseMissing { .. }), "{error}");
    git(clone.root(), &["fetch", "--quiet", "origin"]);
    restore_into(&clone, &made, "x").unwrap();
}

/// A bundle of one commit on top of `parents`, with a tree made of `entries`.
fn handmade(project: &Project, parents: &[&str], tree: &str) -> (PathBuf, String) {
    let root = project.root();
    let mut args = vec!["commit-tree", "-m", "handmade", tree];
    for parent in parents {
        args.extend(["-p", parent]);
    }
    let commit = git(&root, &args);
    git(&root, &["update-ref", "refs/heads/handmade", &commit]);
    let path = project.folder.path().join("handmade.bundle");
    let file = path.to_str().unwrap();
    let exclude: Vec<String> = parents.iter().map(|parent| format!("^{parent}")).collect();
    let mut args = vec!["bundle", "create", file, "handmade"];
    args.extend(exclude.iter().map(String::as_str));
    git(&root, &args);
    (path, commit)
}

#[test]
fn a_head_beside_the_base_is_refused() {
    let project = Project::new();
    let clone = project.clone_to("clone");
    let tree = project.git(&["rev-parse", "HEAD^{tree}"]);
    let (first, base) = (project.git(&["rev-parse", "HEAD~1"]), project.head());
    for parents in [&[first.as_str()][..], &[]] {
        let (path, head) = handmade(&project, parents, &tree);
        let error = refused(&clone, Some((&path, &digest(&path))), &base, &head);
        assert!(matches!(error, WorktreeError::NotDescendant { .. }), "{error}");
    }
}

#[test]
fn trees_that_attack_a_checkout_are_refused() {
    let project = Project::new();
    let clone = project.clone_to("clone");
    let base = project.head();
    let blob = project.git(&["rev-parse", "HEAD:README.md"]);
    for name in [".git", "..", ".GIT", "git~1"] {
        let listing = project.folder.path().join("listing");
        fs::write(&listing, format!("100644 blob {blob}\t{name}\n")).unwrap();
        let script = format!("git mktree < '{}'", listing.display());
        let tree = std::process::Command::new("sh")
            .args(["-c", &script])
            .current_dir(project.root())
            .output()
            .unwrap();
        let tree = String::from_utf8(tree.stdout).unwrap();
        let (path, head) = handmade(&project, &[&base], tree.trim());
        let error = refused(&clone, Some((&path, &digest(&path))), &base, &head);
        assert!(matches!(error, WorktreeError::BundleObjects { .. }), "{name}: {error}");
    }
}

#[test]
fn a_checkout_that_fails_after_the_checks_leaves_no_branch_or_folder() {
    let project = Project::new();
    let clone = project.clone_to("clone");
    let worktree = project.worktree("x");
    write(worktree.path(), ".gitattributes", "data.bin filter=broken\n");
    let made = checkpoint(&worktree).unwrap();
    git(clone.root(), &["config", "filter.broken.smudge", "false"]);
    git(clone.root(), &["config", "filter.broken.required", "true"]);
    let before = traces(&clone);
    let error = restore_into(&clone, &made, "x").unwrap_err();
    assert!(matches!(error, WorktreeError::Git { .. }), "{error}");
    assert_eq!(traces(&clone), before);
}

#[test]
fn names_and_ids_are_checked_first() {
    let project = Project::new();
    let repository = project.repository();
    let head = project.head();
    for (base, id, into) in [("main", head.as_str(), "x"), (&head, "--all", "x"), (&head, &head, "../x")] {
        let request = RestoreRequest { bundle: None, base, head: id, into };
        let error = restore(&repository, &request, &mut quiet).unwrap_err();
        let typed =
            matches!(error, WorktreeError::InvalidCommitId { .. } | WorktreeError::InvalidName { .. });
        assert!(typed, "{error}");
    }
    assert!(!project.root().join(".axp").exists());
}

#[test]
fn repositories_libgit2_cannot_open_work_too() {
    for flags in [&["--object-format=sha256"][..], &["--ref-format=reftable"]] {
        if !super::support::try_git(&std::env::temp_dir(), &[&["init", "-h"][..]].concat())
            .1
            .contains(&flags[0][2..12])
        {
            continue; // This git is too old for it.
        }
        let project = Project::with_init(flags);
        let (_, made) = work(&project);
        let file = made.files.iter().find(|file| file.path == "README.md").unwrap();
        assert_eq!(made.read_blob(&file.after.as_ref().unwrap().id).unwrap(), b"hello\nbrave\nworld\n");
        let restored = restore_into(&project.clone_to("clone"), &made, "y").unwrap();
        assert_eq!(git(restored.path(), &["rev-parse", "HEAD"]), made.head);
    }
}

#[test]
fn partial_and_shallow_clones_work_too() {
    let project = Project::new();
    project.git(&["config", "uploadpack.allowFilter", "true"]);
    project.git(&["config", "uploadpack.allowAnySHA1InWant", "true"]);
    let (_, made) = work(&project);
    let url = format!("file://{}", project.root().display());
    let place = project.folder.path();
    for (name, flag) in
        [("partial", "--filter=blob:none"), ("treeless", "--filter=tree:0"), ("shallow", "--depth=1")]
    {
        git(place, &["clone", "--quiet", "-b", "main", flag, &url, name]);
        let repository = Repository::discover(&place.join(name)).unwrap();
        let restored = restore_into(&repository, &made, "x").unwrap();
        write(restored.path(), "more", name);
        let more = checkpoint(&restored).unwrap();
        assert_eq!(more.files.len(), made.files.len() + 1, "{name}");
        let own = Worktree::create(&repository, "own", Start::Head, &mut quiet).unwrap();
        write(own.path(), "own", name);
        restore_into(&project.repository(), &checkpoint(&own).unwrap(), name).unwrap();
    }
}
