//! `axp keygen`, and the keys that reviews are signed with. A private key never leaves its file.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use axp_protocol::scalar::Digest;
use axp_protocol::signature::{PrivateKey, fingerprint};
use clap::Args;
use directories::ProjectDirs;
use serde_json::json;

use super::Context;
use super::error::CliError;
use super::profile::quoted;

const EXAMPLES: &str = "EXAMPLES
  axp keygen
  axp keygen --out ~/keys/project.pem
  openssl pkey -in ~/keys/project.pem -pubout      the public key again";

/// Longest key file that is read, bytes.
const LONGEST: u64 = 16 * 1024;

/// Make a key to sign reviews with
///
/// An Ed25519 key as PKCS#8 PEM, readable by you only. The public key is printed. A key belongs to the first person
/// who signs with it: use it under one profile only.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeygenArgs {
    /// Where to; nothing is overwritten [default: key.pem in your configuration folder for axp]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Runs `axp keygen`.
pub(crate) fn run(args: &KeygenArgs, ctx: &Context) -> Result<(), CliError> {
    let path = path(args.out.as_deref())?;
    let key = PrivateKey::from_seed(&rand::random());
    let failed =
        |e: axp_protocol::signature::SignatureError| CliError::failed(format!("no key was made: {e}"));
    write_private(&path, key.to_pem().map_err(failed)?.as_bytes())?;
    let public = key.public_pem().map_err(failed)?;
    let id = fingerprint(&public).map_err(failed)?;
    ctx.out.json(&json!({ "path": path, "fingerprint": id, "publicKey": public }))?;
    ctx.out.print(&public)?;
    ctx.out.note(&format!("Wrote {}, key {id}.", path.display()));
    Ok(())
}

/// The file that was named, or the usual one.
fn path(named: Option<&Path>) -> Result<PathBuf, CliError> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    let dirs = ProjectDirs::from("", "", "axp").ok_or_else(|| {
        CliError::failed("there is no home folder to keep the key in").hint("name a file: --out FILE")
    })?;
    Ok(dirs.config_dir().join("key.pem"))
}

fn write_private(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    if let Some(folder) = path.parent().filter(|folder| *folder != Path::new("")) {
        std::fs::create_dir_all(folder).map_err(|e| CliError::io("make", folder, &e))?;
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => CliError::conflict(format!("{} is there already", path.display()))
            .hint("a key is never overwritten; name another file: --out FILE"),
        _ => CliError::io("write", path, &error),
    })?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|error| {
        // Half a key is of no use to anybody.
        let _ = std::fs::remove_file(path);
        CliError::io("write", path, &error)
    })
}

/// A private key with its public name.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) private: PrivateKey,
    pub(crate) fingerprint: Digest,
}

/// Reads the key that was named, or the usual one.
///
/// # Errors
/// When it is not there, is no such key, or can be read by others.
pub(crate) fn read(named: Option<&Path>) -> Result<Key, CliError> {
    let path = path(named)?;
    let shown = path.display();
    let file = std::fs::File::open(&path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            CliError::usage(format!("there is no key {shown}")).hint("make one: axp keygen")
        }
        _ => CliError::io("read", &path, &error),
    })?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let meta = file.metadata().map_err(|e| CliError::io("read", &path, &e))?;
        let mode = meta.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(CliError::usage(format!(
                "the key {shown} can be used by others on this machine (mode {mode:03o})"
            ))
            .hint(format!("run: chmod 600 {}", quoted(&shown.to_string()))));
        }
    }
    let mut pem = String::new();
    file.take(LONGEST).read_to_string(&mut pem).map_err(|e| CliError::io("read", &path, &e))?;
    // The reason would quote nothing of the key, and adds nothing either.
    let wrong = |_| {
        CliError::usage(format!("{shown} is not an Ed25519 private key in PKCS#8 PEM"))
            .hint("axp keygen makes one")
    };
    let private = PrivateKey::from_pem(&pem).map_err(wrong)?;
    let fingerprint = private.public_pem().and_then(|public| fingerprint(&public)).map_err(wrong)?;
    Ok(Key { private, fingerprint })
}

/// Reads the fingerprint of a public key in SPKI PEM.
///
/// # Errors
/// When it is not there, or no such key.
pub(crate) fn read_public(path: &Path) -> Result<Digest, CliError> {
    let file = std::fs::File::open(path).map_err(|e| CliError::io("read", path, &e))?;
    let mut pem = String::new();
    file.take(LONGEST).read_to_string(&mut pem).map_err(|e| CliError::io("read", path, &e))?;
    fingerprint(&pem).map_err(|e| CliError::usage(format!("{}: {e}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_private_and_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/key.pem");
        let key = PrivateKey::from_seed(&[3; 32]);
        write_private(&path, key.to_pem().unwrap().as_bytes()).unwrap();
        assert_eq!(read(Some(&path)).unwrap().fingerprint, fingerprint(&key.public_pem().unwrap()).unwrap());
        let error = write_private(&path, b"other").unwrap_err();
        assert_eq!(error.code, super::super::error::ExitCode::Conflict);
        assert!(read(Some(&path)).is_ok());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
            assert!(read(Some(&path)).unwrap_err().message.contains("mode 640"));
        }
    }
}
