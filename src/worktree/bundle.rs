//! Bundle files: written by git, their headers read here before git gets to see them.

use std::io::{BufRead, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::error::{Result, WorktreeError};
use super::git::Git;
use super::names::{branch_ref, parse_commit_id};
use super::progress::{Phase, Progress};

/// A header lists one ref and a few prerequisites; this leaves room for thousands.
const MAX_HEADER: u64 = 1024 * 1024;

/// Writes the commits from `base` to `branch` into a new file.
pub(super) fn write(
    git: &Git,
    base: &str,
    branch: &str,
    path: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    progress(Progress::start(Phase::Bundle));
    let range = format!("{base}..{}", branch_ref(branch));
    git.call("make the bundle", &["bundle", "create", "--progress"])
        .arg(path)
        .arg(range)
        .watched(Phase::Bundle, progress)
}

/// Copies `from` into `to`; returns the SHA-256 of the bytes in hexadecimal, and their number.
pub(super) fn hash_into(from: &mut impl Read, to: &mut impl Write) -> std::io::Result<(String, u64)> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    let mut size = 0;
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            let hex = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
            return Ok((hex, size));
        }
        hasher.update(&buffer[..read]);
        to.write_all(&buffer[..read])?;
        size += read as u64;
    }
}

/// What a bundle says about itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Commits the reader must have.
    pub(super) prerequisites: Vec<String>,
    /// The commits it holds, with the names of their refs.
    pub(super) refs: Vec<(String, String)>,
    /// Where the pack begins.
    pub(super) pack_offset: u64,
}

impl Header {
    /// Reads the header of a bundle of version 2 or 3.
    pub(super) fn read(from: impl BufRead) -> Result<Self> {
        let mut lines = Lines { from: from.take(MAX_HEADER), offset: 0 };
        let version = match lines.next()?.as_str() {
            "# v2 git bundle" => 2,
            "# v3 git bundle" => 3,
            _ => return malformed("it does not begin like a Git bundle"),
        };
        let mut header = Self { prerequisites: Vec::new(), refs: Vec::new(), pack_offset: 0 };
        let mut object_format = "sha1".to_owned();
        loop {
            let line = lines.next()?;
            if line.is_empty() {
                break;
            }
            if let Some(capability) = line.strip_prefix('@') {
                match capability.split_once('=') {
                    Some(("object-format", format)) if version == 3 => object_format = format.to_owned(),
                    // A filtered bundle leaves out objects that a checkout needs.
                    _ => return malformed("it uses a capability that is not accepted"),
                }
            } else if let Some(rest) = line.strip_prefix('-') {
                let id = rest.split(' ').next().unwrap_or(rest);
                header.prerequisites.push(id_in_header(id)?);
            } else if let Some((id, name)) = line.split_once(' ') {
                header.refs.push((id_in_header(id)?, name.to_owned()));
            } else {
                return malformed("its header has a line that is neither a ref nor a prerequisite");
            }
        }
        let length = match object_format.as_str() {
            "sha1" => 40,
            "sha256" => 64,
            _ => return malformed("it has ids of an unknown kind"),
        };
        let ids = header.prerequisites.iter().chain(header.refs.iter().map(|(id, _)| id));
        if ids.into_iter().any(|id| id.len() != length) {
            return malformed("its ids do not have the length it announces");
        }
        header.pack_offset = lines.offset;
        Ok(header)
    }
}

fn id_in_header(id: &str) -> Result<String> {
    parse_commit_id(id).or_else(|_| malformed("its header holds something that is not a commit id"))
}

fn malformed<T>(reason: &str) -> Result<T> {
    Err(WorktreeError::BundleMalformed { reason: reason.to_owned() })
}

struct Lines<R> {
    from: std::io::Take<R>,
    offset: u64,
}

impl<R: BufRead> Lines<R> {
    /// The next line without its end. Comments on prerequisites may be in any encoding, so bytes are not judged.
    fn next(&mut self) -> Result<String> {
        let mut line = Vec::new();
        let read = self.from.read_until(b'\n', &mut line);
        if read.is_err() || line.pop() != Some(b'\n') {
            return malformed("its header does not end");
        }
        self.offset += line.len() as u64 + 1;
        Ok(String::from_utf8_lossy(&line).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    fn read(text: &str) -> Result<Header> {
        Header::read(text.as_bytes())
    }

    #[test]
    fn a_header_ends_where_the_pack_begins() {
        let text = format!("# v2 git bundle\n-{A} some subject\n-{A}\n{B} refs/heads/axp/x\n\nPACK");
        let header = read(&text).unwrap();
        assert_eq!(header.prerequisites, [A, A]);
        assert_eq!(header.refs, [(B.to_owned(), "refs/heads/axp/x".to_owned())]);
        assert_eq!(&text[header.pack_offset as usize..], "PACK");
    }

    #[test]
    fn a_longer_hash_must_be_announced() {
        let id = "c".repeat(64);
        assert!(read(&format!("# v3 git bundle\n@object-format=sha256\n{id} refs/heads/x\n\n")).is_ok());
        assert!(read(&format!("# v2 git bundle\n{id} refs/heads/x\n\n")).is_err());
        assert!(read(&format!("# v3 git bundle\n@object-format=sha256\n{A} refs/heads/x\n\n")).is_err());
    }

    #[test]
    fn filters_and_nonsense_are_refused() {
        for text in [
            String::new(),
            "# v2 git bundle\n".into(),
            "# v9 git bundle\n\n".into(),
            format!("# v2 git bundle\n{A} refs/heads/x"),
            format!("# v3 git bundle\n@filter=blob:none\n{A} refs/heads/x\n\n"),
            "# v2 git bundle\n--upload-pack=evil refs/heads/x\n\n".into(),
            "# v2 git bundle\nHEAD refs/heads/x\n\n".into(),
        ] {
            assert!(matches!(read(&text), Err(WorktreeError::BundleMalformed { .. })), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_input_breaks_the_reader(bytes: Vec<u8>) {
            let _ = Header::read(&bytes[..]);
            let mut begun = b"# v2 git bundle\n".to_vec();
            begun.extend(bytes);
            let _ = Header::read(&begun[..]);
        }
    }
}
