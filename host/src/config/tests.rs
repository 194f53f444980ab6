use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

fn token(letter: char) -> String {
    letter.to_string().repeat(TOKEN_CHARS)
}

fn credential(id: &str, token: &str) -> Credential {
    Credential {
        id: Id::new(id).unwrap(),
        role: Role::Maintainer,
        sessions: SessionScope::All(AllSessions::All),
        token_sha256: token_digest(token),
    }
}

fn sample() -> Value {
    json!({
        "repository": "ada/parser",
        "database": "host.db",
        "credentials": [
            { "id": "ada", "role": "maintainer", "sessions": "*", "tokenSha256": hex(&token_digest(&token('a')).0) },
            { "id": "bob", "role": "observer", "sessions": ["axp-session:/fix-1"], "tokenSha256": hex(&token_digest(&token('b')).0) },
        ],
    })
}

fn written(value: &Value) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("host.json");
    fs::write(&path, value.to_string()).unwrap();
    #[cfg(unix)]
    set_mode(&path, 0o600);
    (folder, path)
}

#[cfg(unix)]
fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
}

fn refusal(value: &Value) -> String {
    let (_folder, path) = written(value);
    HostFile::load(&path).unwrap_err().to_string()
}

/// The sample with one place changed.
fn with(pointer: &str, value: Value) -> Value {
    let mut sample = sample();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    sample.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(key.to_owned(), value);
    sample
}

#[test]
fn a_short_file_gets_the_defaults() {
    let (folder, path) = written(&sample());
    let file = HostFile::load(&path).unwrap();
    assert_eq!(file.listen.to_string(), "127.0.0.1:7331");
    assert_eq!(file.limits, HostLimits::default());
    assert_eq!(file.database_path(&path), folder.path().join("host.db"));
    assert!(file.allowed_origins.is_empty());
}

#[test]
fn a_token_finds_its_principal() {
    let (_folder, path) = written(&sample());
    let credentials = HostFile::load(&path).unwrap().credentials().unwrap();
    assert_eq!(credentials.find(&token('a')).unwrap().id.as_str(), "ada");
    assert_eq!(credentials.find(&token('b')).unwrap().role, Role::Observer);
    assert!(credentials.find(&token('c')).is_none());
    assert!(credentials.find("").is_none());
}

#[test]
fn a_short_token_is_nobody_even_when_it_is_listed() {
    let short = "a".repeat(TOKEN_CHARS - 1);
    let credentials = Credentials::new(&[credential("ada", &short)]).unwrap();
    assert!(credentials.find(&short).is_none());
}

#[test]
fn wrong_files_say_what_is_wrong() {
    for (pointer, value, part) in [
        ("/colour", json!(1), "unknown field `colour`"),
        ("/credentials/0/token", json!("x"), "unknown field `token`"),
        ("/limits", json!({ "cats": 1 }), "unknown field `cats`"),
        ("/limits", json!({ "queueBytes": 0 }), "queueBytes must be more than 0"),
        ("/listen", json!("everywhere"), "socket address"),
        ("/repository", json!(""), "0 characters"),
        ("/credentials", json!([]), "at least one"),
        ("/credentials/0/role", json!("king"), "unknown variant `king`"),
        ("/credentials/0/id", json!("a b"), "not an identifier"),
        ("/credentials/0/sessions", json!("all"), "must be \"*\" or a list"),
        ("/credentials/0/sessions", json!(["fix-1"]), "\"fix-1\" is not axp-session:/ID"),
        ("/credentials/0/tokenSha256", json!("AB"), "64 lower-case hex digits"),
        ("/credentials/1/id", json!("ada"), "ada appears twice"),
        ("/credentials/1/tokenSha256", json!(hex(&token_digest(&token('a')).0)), "ada and bob have the same"),
        ("/allowedOrigins", json!(["https://example.org/"]), "not an origin"),
        ("/allowedOrigins", json!(["*"]), "not an origin"),
        ("/allowedOrigins", json!(["null"]), "not an origin"),
    ] {
        let said = refusal(&with(pointer, value));
        assert!(said.contains(part) && said.contains("host.json"), "{pointer}: {said}");
    }
}

#[test]
fn a_token_in_the_wrong_place_is_not_repeated() {
    let secret = token('s');
    assert!(!refusal(&with("/credentials/0/tokenSha256", json!(secret))).contains(&secret));
}

#[test]
fn origins_are_spelled_as_browsers_do() {
    let (_folder, path) =
        written(&with("/allowedOrigins", json!(["https://a.example:8443", "http://[::1]:80"])));
    assert_eq!(HostFile::load(&path).unwrap().allowed_origins.len(), 2);
}

#[cfg(unix)]
#[test]
fn a_file_others_can_read_is_refused() {
    let (_folder, path) = written(&sample());
    for mode in [0o640, 0o604, 0o620] {
        set_mode(&path, mode);
        let said = HostFile::load(&path).unwrap_err().to_string();
        assert!(said.contains(&format!("chmod 600 {}", path.display())), "{said}");
    }
    set_mode(&path, 0o400);
    HostFile::load(&path).unwrap();
}

#[test]
fn a_created_file_is_private_and_reads_back() {
    let (folder, path) = written(&sample());
    let file = HostFile::load(&path).unwrap();
    let copy = folder.path().join("copy.json");
    file.create(&copy).unwrap();
    let again = HostFile::load(&copy).unwrap();
    assert_eq!(serde_json::to_value(&again).unwrap(), serde_json::to_value(&file).unwrap());
    match file.create(&copy) {
        Err(ConfigError::Io { source, .. }) => assert_eq!(source.kind(), std::io::ErrorKind::AlreadyExists),
        other => panic!("{other:?}"),
    }
}

#[test]
fn new_tokens_are_long_and_differ() {
    let (first, second) = (new_token(), new_token());
    assert_eq!(first.len(), 43);
    assert_ne!(first, second);
    assert!(Credentials::new(&[credential("ada", &first)]).unwrap().find(&first).is_some());
}

#[test]
fn debug_output_holds_no_secret() {
    let secret = token('s');
    let entry = credential("ada", &secret);
    let digest = hex(&entry.token_sha256.0);
    let shown = format!("{entry:?} {:?}", Credentials::new(std::slice::from_ref(&entry)).unwrap());
    assert!(shown.contains("ada") && !shown.contains(&secret) && !shown.contains(&digest), "{shown}");
}
