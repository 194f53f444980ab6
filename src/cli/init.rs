//! `axp init`: a host's configuration and a profile for each role, private, overwriting nothing.

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use axp_host::config::{Credential, DEFAULT_PORT, HostFile, HostLimits, new_token, token_digest};
use axp_protocol::principal::{AllSessions, Role, SessionScope};
use axp_protocol::scalar::{Id, Text};
use clap::Args;
use serde_json::json;

use super::Context;
use super::error::CliError;
use super::profile::{FOLDER, path_of, quoted};
use crate::client::Credentials;

const EXAMPLES: &str = "EXAMPLES
  axp init                          in a clone: the name comes from the remote `origin`
  axp init --repo owner/project     name it
  axp init --port 9000              another port than 7331";

/// Roles that get a profile.
const ROLES: [Role; 4] = [Role::Maintainer, Role::Contributor, Role::Observer, Role::Verifier];

/// Set a project up: a host configuration and a private profile for each role, in .axp/
///
/// Nothing is overwritten: if one of the files is there already, nothing is written at all. The folder is put on the
/// repository's local exclude list, so that Git does not see it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InitArgs {
    /// Name of the repository, OWNER/NAME; the host's database belongs to it [default: from the remote `origin`]
    #[arg(long, value_name = "OWNER/NAME")]
    repo: Option<String>,
    /// Port of the host, on this machine only
    #[arg(long, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// Folder to put .axp/ into [default: top of the Git repository here, else the current folder]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// What [`set_up`] has made.
#[derive(Debug)]
pub(crate) struct Made {
    /// Repository name.
    pub(crate) repository: String,
    /// The host's configuration.
    pub(crate) config: PathBuf,
    /// Profiles by role.
    pub(crate) profiles: Vec<(Role, PathBuf)>,
    /// Exclude file that names the folder now.
    pub(crate) exclude: Option<PathBuf>,
}

/// Runs `axp init`.
pub(crate) fn run(args: &InitArgs, ctx: &Context) -> Result<(), CliError> {
    let here = ctx.here()?;
    let folder = match &args.dir {
        Some(dir) => here.join(dir),
        None => work_tree(&here)?.unwrap_or(here),
    };
    let repository = match &args.repo {
        Some(name) => name.clone(),
        None => origin_name(&folder).ok_or_else(|| {
            CliError::usage("no name for the repository: there is no remote `origin` to take it from")
                .hint("name it: axp init --repo OWNER/NAME")
        })?,
    };
    let made = set_up(&folder, &repository, args.port)?;
    let profiles: serde_json::Map<_, _> =
        made.profiles.iter().map(|(role, path)| (role.as_str().to_owned(), json!(path))).collect();
    ctx.out.json(&json!({
        "repository": made.repository,
        "config": made.config,
        "profiles": profiles,
        "exclude": made.exclude,
    }))?;
    ctx.out.done(&format!(
        "Set up {} for {}: host.json and profiles for maintainer, contributor, observer and verifier.",
        folder.join(FOLDER).display(),
        made.repository
    ))?;
    ctx.out.note(&format!("\nNext:\n  axp host                    run the host\n{}", joining(&made)));
    Ok(())
}

/// How somebody joins, for a person. Names files, never what is in them.
pub(crate) fn joining(made: &Made) -> String {
    let contributor =
        made.profiles.iter().find(|(role, _)| *role == Role::Contributor).map(|(_, path)| path.clone());
    let contributor = quoted(&contributor.unwrap_or_default().display().to_string());
    format!(
        "  axp create --task TASK      open a session

A contributor joins with the profile {contributor}.
Send it to them privately: it holds their token. Then they run, in their clone:
  axp park SESSION --profile contributor.json --cost 1.00 -- AGENT ARGS
From another machine, its `url` must be the wss:// address of a proxy before this host."
    )
}

/// Makes `.axp/` in `folder`. Either all of it is made, or nothing.
pub(crate) fn set_up(folder: &Path, repository: &str, port: u16) -> Result<Made, CliError> {
    check_name(repository)?;
    let axp = folder.join(FOLDER);
    let config = axp.join("host.json");
    let profiles: Vec<_> = ROLES.iter().map(|role| (*role, path_of(folder, *role))).collect();
    match fs::symlink_metadata(&axp) {
        Ok(meta) if !meta.is_dir() => {
            return Err(CliError::conflict(format!("{} is in the way: not a folder", axp.display())));
        }
        _ => {}
    }
    let there = std::iter::once(&config)
        .chain(profiles.iter().map(|(_, path)| path))
        .filter(|path| path.symlink_metadata().is_ok())
        .map(|path| path.display().to_string())
        .collect::<Vec<_>>();
    if !there.is_empty() {
        let are = if there.len() == 1 { "is there already" } else { "are there already" };
        return Err(CliError::conflict(format!("{} {are}; nothing was written", there.join(", ")))
            .hint("`axp host` runs what is set up; move the files away to set up anew"));
    }

    let url = format!("ws://127.0.0.1:{port}/axp");
    let mut files = Vec::new();
    let mut credentials = Vec::new();
    for (role, path) in &profiles {
        let token = new_token();
        credentials.push(Credential {
            id: Id::new(role.as_str()).map_err(CliError::failed)?,
            role: *role,
            sessions: SessionScope::All(AllSessions::All),
            token_sha256: token_digest(&token),
        });
        files.push((path.clone(), pretty(&Credentials { url: url.clone(), token })?));
    }
    let host = HostFile {
        repository: Text::new(repository).map_err(CliError::usage)?,
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        database: "axp.db".into(),
        allowed_origins: vec![],
        credentials,
        limits: HostLimits::default(),
    };
    let mut host = serde_json::to_value(&host).map_err(|e| CliError::failed(e.to_string()))?;
    if let Some(host) = host.as_object_mut() {
        // What the file does not say follows the defaults of later versions.
        host.remove("limits");
    }
    files.push((config.clone(), pretty(&host)?));

    // First, so that Git never sees the tokens.
    let exclude = exclude(folder)?;
    let new_folder = private_folder(&axp)?;
    let mut written = Vec::new();
    for (path, text) in &files {
        if let Err(error) = write_new(path, text) {
            for path in written {
                let _ = fs::remove_file(path);
            }
            if new_folder {
                let _ = fs::remove_dir(&axp);
            }
            return Err(CliError::io("write", path, &error));
        }
        written.push(path);
    }
    Ok(Made { repository: repository.to_owned(), config, profiles, exclude })
}

fn check_name(repository: &str) -> Result<(), CliError> {
    let parts: Vec<_> = repository.split('/').collect();
    let good = |part: &&str| !part.is_empty() && !part.chars().any(|c| c.is_whitespace() || c.is_control());
    if parts.len() < 2 || !parts.iter().all(good) || Text::<1, 256>::new(repository).is_err() {
        return Err(CliError::usage(format!("{repository:?} is not a repository name"))
            .hint("a name is OWNER/NAME, such as acme/parser"));
    }
    Ok(())
}

fn pretty<T: serde::Serialize>(value: &T) -> Result<String, CliError> {
    serde_json::to_string_pretty(value)
        .map(|text| text + "\n")
        .map_err(|e| CliError::failed(format!("cannot write JSON: {e}")))
}

/// Makes sure of a folder only its owner can enter; whether it is new.
fn private_folder(path: &Path) -> Result<bool, CliError> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            // Worktrees may have made it before there was anything private in it.
            #[cfg(unix)]
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o700))
                .map_err(|e| CliError::io("make private", path, &e))?;
            Ok(false)
        }
        Err(error) => Err(CliError::io("make", path, &error)),
    }
}

fn write_new(path: &Path, text: &str) -> std::io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).inspect_err(|_| {
        let _ = fs::remove_file(path);
    })
}

fn open_repository(folder: &Path) -> Result<Option<git2::Repository>, CliError> {
    match git2::Repository::discover(folder) {
        Ok(repository) => Ok(Some(repository)),
        Err(error) if error.code() == git2::ErrorCode::NotFound => Ok(None),
        Err(error) => Err(CliError::failed(format!(
            "cannot open the Git repository of {}: {}",
            folder.display(),
            error.message()
        ))),
    }
}

/// Top of the work tree that holds `folder`, if it is in one.
pub(crate) fn work_tree(folder: &Path) -> Result<Option<PathBuf>, CliError> {
    Ok(open_repository(folder)?.and_then(|r| r.workdir().map(Path::to_owned)))
}

/// Puts `.axp/` on the exclude list that all work trees of the repository share, once.
fn exclude(folder: &Path) -> Result<Option<PathBuf>, CliError> {
    let Some(repository) = open_repository(folder)? else { return Ok(None) };
    let Some(top) = repository.workdir() else { return Ok(None) };
    let top = top.canonicalize().map_err(|e| CliError::io("find", top, &e))?;
    let inside = folder.canonicalize().map_err(|e| CliError::io("find", folder, &e))?;
    let inside = inside.strip_prefix(&top).map(Path::to_owned).unwrap_or_default();
    let mut pattern = String::from("/");
    for part in inside.components() {
        // The characters that a pattern gives a meaning to.
        for c in part.as_os_str().to_string_lossy().chars() {
            if matches!(c, '*' | '?' | '[' | '\\' | ' ') {
                pattern.push('\\');
            }
            pattern.push(c);
        }
        pattern.push('/');
    }
    pattern.push_str(FOLDER);
    pattern.push('/');

    let info = repository.commondir().join("info");
    fs::create_dir_all(&info).map_err(|e| CliError::io("make", &info, &e))?;
    let path = info.join("exclude");
    let mut text = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(CliError::io("read", &path, &error)),
    };
    let known = text.split(|b| *b == b'\n').any(|line| line.trim_ascii_end() == pattern.as_bytes());
    if !known {
        let old = text.len();
        if text.last().is_some_and(|b| *b != b'\n') {
            text.push(b'\n');
        }
        text.extend_from_slice(pattern.as_bytes());
        text.push(b'\n');
        // Appended, so that whatever else writes there meanwhile is kept.
        let added = text.get(old..).unwrap_or_default();
        fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .and_then(|mut file| file.write_all(added))
            .map_err(|e| CliError::io("write", &path, &e))?;
    }
    Ok(Some(path))
}

/// OWNER/NAME from the URL of the remote `origin`.
pub(crate) fn origin_name(folder: &Path) -> Option<String> {
    let repository = open_repository(folder).ok()??;
    let remote = repository.find_remote("origin").ok()?;
    name_in_url(remote.url().ok()?)
}

fn name_in_url(url: &str) -> Option<String> {
    let path = match url.split_once("://") {
        Some(("file", _)) => return None,
        Some((_, rest)) => rest.split_once('/')?.1,
        // `user@host:path`; a path of this machine has no colon before its first slash.
        None => {
            let (host, path) = url.split_once(':')?;
            (!host.contains('/') && host.len() > 1).then_some(path)?
        }
    };
    let path = path.trim_matches('/');
    let name = path.strip_suffix(".git").unwrap_or(path);
    check_name(name).is_ok().then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_read_from_a_remote() {
        for (url, name) in [
            ("https://example.org/acme/parser.git", Some("acme/parser")),
            ("https://user@example.org:8443/acme/parser", Some("acme/parser")),
            ("git@example.org:acme/parser.git", Some("acme/parser")),
            ("ssh://git@example.org:22/group/sub/parser.git/", Some("group/sub/parser")),
            ("/srv/git/parser.git", None),
            ("../parser", None),
            ("file:///srv/git/parser.git", None),
            ("https://example.org/parser", None),
            ("C:\\work\\parser", None),
        ] {
            assert_eq!(name_in_url(url).as_deref(), name, "{url}");
        }
    }

    #[test]
    fn names_are_checked() {
        assert!(check_name("acme/parser").is_ok());
        for bad in
            ["", "parser", "/parser", "acme/", "ac me/parser", "acme//x", &format!("a/{}", "x".repeat(300))]
        {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
