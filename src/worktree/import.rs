//! Takes the objects of a bundle into a repository, after all checks, without touching a ref.
//!
//! The objects first go to a quarantine folder that only our own git calls can see, as a server does with a push.
//! They move into the repository when they are known to be sound, complete, and a continuation of the base.

use std::fs::{self, File};
use std::io::{BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::bundle::{Header, hash_into};
use super::error::{IoContext, Result, WorktreeError};
use super::git::Git;
use super::progress::{Phase, Progress};
use super::repository::{Repository, has_commit, is_ancestor};

/// A bundle and what it must hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Incoming<'a> {
    pub(super) path: &'a Path,
    /// The digest of the file, when one was recorded.
    pub(super) sha256: Option<&'a str>,
    /// A checked id.
    pub(super) base: &'a str,
    /// A checked id.
    pub(super) head: &'a str,
}

/// Checks a bundle and adds its objects to the repository. No ref, file or setting changes; after an error, not even
/// objects were added.
pub(super) fn import(
    repository: &Repository,
    incoming: &Incoming<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    progress(Progress::start(Phase::Restore));
    let mut bundle = verified_copy(incoming)?;
    let header = Header::read(BufReader::new(&bundle))?;
    check_header(repository, incoming, &header)?;
    bundle.seek(SeekFrom::Start(header.pack_offset)).at("read", incoming.path)?;

    let quarantine = Quarantine::new(repository)?;
    let unpacked = quarantine
        .git
        .call("read the bundle", &["index-pack", "--stdin", "--fix-thin", "--fsck-objects", "-v"])
        .stdin(bundle)
        .watched(Phase::Restore, progress);
    unpacked.map_err(as_objects)?;
    if !has_commit(&quarantine.git, incoming.head)? {
        let detail = format!("commit {} is not among them", incoming.head);
        return Err(WorktreeError::BundleObjects { detail });
    }
    if !is_ancestor(&quarantine.git, incoming.base, incoming.head)? {
        return Err(WorktreeError::NotDescendant {
            head: incoming.head.to_owned(),
            base: incoming.base.to_owned(),
        });
    }
    let exclude = format!("^{}", incoming.base);
    quarantine
        .git
        .call("read the bundle", &["rev-list", "--objects", "--quiet", incoming.head, &exclude, "--"])
        .bytes()
        .map_err(as_objects)?;
    quarantine.release()
}

/// A private copy with the recorded digest: the file itself could change between the check and its use.
fn verified_copy(incoming: &Incoming<'_>) -> Result<File> {
    let mut file = File::open(incoming.path).at("open", incoming.path)?;
    let mut copy = tempfile::tempfile().at("copy", incoming.path)?;
    let (found, _) = hash_into(&mut file, &mut copy).at("copy", incoming.path)?;
    match incoming.sha256 {
        Some(expected) if !expected.eq_ignore_ascii_case(&found) => {
            Err(WorktreeError::BundleDigest { expected: expected.to_owned(), found })
        }
        _ => {
            copy.rewind().at("copy", incoming.path)?;
            Ok(copy)
        }
    }
}

fn check_header(repository: &Repository, incoming: &Incoming<'_>, header: &Header) -> Result<()> {
    match &header.refs[..] {
        [(id, _)] if id == incoming.head => {}
        refs => {
            let found = match refs {
                [] => "no commit".to_owned(),
                [(id, _)] => id.clone(),
                more => format!("{} branches", more.len()),
            };
            return Err(WorktreeError::BundleHead { expected: incoming.head.to_owned(), found });
        }
    }
    let git = repository.git();
    for id in std::iter::once(incoming.base).chain(header.prerequisites.iter().map(String::as_str)) {
        if !has_commit(&git, id)? {
            return Err(WorktreeError::BaseMissing { base: id.to_owned() });
        }
    }
    Ok(())
}

/// A failure of git here is a fault of the bundle.
fn as_objects(error: WorktreeError) -> WorktreeError {
    match error {
        WorktreeError::Git { detail, .. } => WorktreeError::BundleObjects { detail },
        other => other,
    }
}

/// An object folder in front of the repository's own.
struct Quarantine {
    git: Git,
    folder: TempDir,
    objects: PathBuf,
}

impl Quarantine {
    fn new(repository: &Repository) -> Result<Self> {
        let objects = repository.common_dir().join("objects");
        // On the same file system, so that objects move by rename. `git gc` removes folders with this prefix, should
        // we be killed.
        let folder = tempfile::Builder::new()
            .prefix("tmp_objdir-axp-")
            .tempdir_in(&objects)
            .at("create a folder in", &objects)?;
        let pack = folder.path().join("pack");
        fs::create_dir(&pack).at("create", &pack)?;
        let git = repository
            .git()
            .env("GIT_OBJECT_DIRECTORY", folder.path())
            .env("GIT_ALTERNATE_OBJECT_DIRECTORIES", quoted(&objects));
        Ok(Self { git, folder, objects })
    }

    /// Moves the packs into the repository. An index goes last, because Git finds a pack by its index.
    fn release(self) -> Result<()> {
        let from = self.folder.path().join("pack");
        let to = self.objects.join("pack");
        fs::create_dir_all(&to).at("create", &to)?;
        let mut names = Vec::new();
        for entry in fs::read_dir(&from).at("read", &from)? {
            names.push(entry.at("read", &from)?.file_name());
        }
        names.sort_by_key(|name| name.as_encoded_bytes().ends_with(b".idx"));
        for name in names {
            let target = to.join(&name);
            // A pack is named after its content: one of the same name is the same pack.
            if !target.exists() {
                fs::rename(from.join(&name), &target).at("create", &target)?;
            }
        }
        Ok(())
    }
}

/// A path in Git's quotes, so that a colon in it does not end it.
fn quoted(path: &Path) -> std::ffi::OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let mut text = vec![b'"'];
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'"' | b'\\' => text.extend([b'\\', byte]),
            b'\n' => text.extend(b"\\n"),
            _ => text.push(byte),
        }
    }
    text.push(b'"');
    std::ffi::OsString::from_vec(text)
}
