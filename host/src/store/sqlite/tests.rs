use std::fs;

use tempfile::TempDir;

use super::*;

const REPOSITORY: &str = "ada/parser";

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("host.db");
    (folder, path)
}

fn session() -> Id {
    Id::new("fix-1").unwrap()
}

fn chat() -> Channel {
    Channel::Chat(session())
}

fn exchange() -> Channel {
    Channel::Exchange(session())
}

fn digest(byte: &str) -> Digest {
    Digest::new(byte.repeat(32)).unwrap()
}

fn receipt(result: &str) -> Receipt {
    Receipt { method: "_axp/grant".into(), input: "hash".into(), result: result.into() }
}

/// Runs `work` as one transaction.
fn committed(store: &mut SqliteStore, work: impl FnOnce(&mut SqliteStore)) {
    store.begin().unwrap();
    work(store);
    store.commit().unwrap();
}

fn with_session(store: &mut SqliteStore) {
    committed(store, |store| {
        store.create_session(&session(), 1_000).unwrap();
        store.create_channel(&chat(), r#"{"turns":[]}"#, 1).unwrap();
        store.create_channel(&exchange(), r#"{"epoch":0}"#, 1).unwrap();
    });
}

fn read(
    reader: &mut dyn Reader,
    channels: &[Channel],
    after: u64,
    through: u64,
) -> Vec<(u64, String, String)> {
    let mut rows = Vec::new();
    reader
        .actions(channels, after, through, &mut |row| {
            rows.push((row.seq, row.channel, row.action.get().to_owned()));
            true
        })
        .unwrap();
    rows
}

#[test]
fn a_new_database_is_empty() {
    let (_folder, path) = folder();
    let loaded = SqliteStore::open(&path, REPOSITORY).unwrap().load().unwrap();
    assert_eq!((loaded.seq, loaded.blob_bytes), (0, 0));
    assert!(loaded.channels.is_empty() && loaded.clients.is_empty() && loaded.sessions.is_empty());
}

#[test]
fn everything_survives_a_reopen() {
    let (_folder, path) = folder();
    let mut store = SqliteStore::open(&path, REPOSITORY).unwrap();
    with_session(&mut store);
    let ada = Id::new("ada").unwrap();
    let dispatch = ReceiptKey::Dispatch { client: "laptop".into(), seq: 7 };
    let late = ReceiptKey::Dispatch { client: "laptop".into(), seq: 3 };
    let operation = ReceiptKey::Operation { principal: ada.clone(), operation: Id::new("op-1").unwrap() };
    committed(&mut store, |store| {
        store.append(2, &chat(), r#"{"type":"a"}"#, Some(r#"{"clientId":"laptop"}"#)).unwrap();
        store.append(3, &exchange(), r#"{"type":"b"}"#, None).unwrap();
        store.append(4, &chat(), r#"{"type":"c"}"#, None).unwrap();
        store.put_snapshot(&chat(), 2, r#"{"turns":["old"]}"#).unwrap();
        store.put_snapshot(&chat(), 2, r#"{"turns":["x"]}"#).unwrap();
        store.bind_client("laptop", &ada).unwrap();
        store.bind_client("laptop", &Id::new("eve").unwrap()).unwrap();
        store.put_receipt(&dispatch, &receipt("1")).unwrap();
        store.put_receipt(&late, &receipt("2")).unwrap();
        store.put_receipt(&operation, &receipt("3")).unwrap();
        assert!(store.put_blob(&digest("ab"), b"hello").unwrap());
        store.link_blob(&session(), &digest("ab"), "text/plain").unwrap();
    });
    drop(store);

    let mut store = SqliteStore::open(&path, REPOSITORY).unwrap();
    let loaded = store.load().unwrap();
    assert_eq!(loaded.seq, 4);
    assert_eq!(loaded.blob_bytes, 5);
    assert_eq!(loaded.clients, [("laptop".to_owned(), ada, 7)]);
    assert_eq!(loaded.sessions, [(session(), 1_000)]);
    let [first, second] = loaded.channels.as_slice() else { panic!("{:?}", loaded.channels) };
    assert_eq!((&first.channel, first.state.as_str(), first.through_seq), (&chat(), r#"{"turns":["x"]}"#, 2));
    assert_eq!(first.actions, [(4, r#"{"type":"c"}"#.to_owned())]);
    assert_eq!(
        (&second.channel, second.state.as_str(), second.through_seq),
        (&exchange(), r#"{"epoch":0}"#, 1)
    );
    assert_eq!(second.actions, [(3, r#"{"type":"b"}"#.to_owned())]);
    assert_eq!(store.receipt(&dispatch).unwrap(), Some(receipt("1")));
    assert_eq!(store.receipt(&late).unwrap(), Some(receipt("2")));
    assert_eq!(store.receipt(&operation).unwrap(), Some(receipt("3")));
    assert_eq!(
        store.blob_meta(&session(), &digest("ab")).unwrap(),
        Some(BlobMeta { size: 5, media_type: "text/plain".into() })
    );
}

#[test]
fn the_newest_number_counts_seeds_and_snapshots() {
    let (_folder, path) = folder();
    let mut store = SqliteStore::open(&path, REPOSITORY).unwrap();
    committed(&mut store, |store| store.create_channel(&Channel::Root, "{}", 9).unwrap());
    assert_eq!(store.load().unwrap().seq, 9);
    committed(&mut store, |store| store.put_snapshot(&Channel::Root, 12, "{}").unwrap());
    assert_eq!(store.load().unwrap().seq, 12);
}

#[test]
fn a_rollback_leaves_nothing() {
    let (_folder, path) = folder();
    let mut store = SqliteStore::open(&path, REPOSITORY).unwrap();
    let key = ReceiptKey::Operation { principal: Id::new("ada").unwrap(), operation: Id::new("op").unwrap() };
    store.begin().unwrap();
    store.create_session(&session(), 1).unwrap();
    store.create_channel(&chat(), "{}", 1).unwrap();
    store.append(2, &chat(), "{}", None).unwrap();
    store.put_receipt(&key, &receipt("1")).unwrap();
    store.bind_client("laptop", &Id::new("ada").unwrap()).unwrap();
    store.put_blob(&digest("ab"), b"x").unwrap();
    store.link_blob(&session(), &digest("ab"), "text/plain").unwrap();
    store.rollback();
    store.rollback();

    let loaded = store.load().unwrap();
    assert_eq!((loaded.seq, loaded.blob_bytes), (0, 0));
    assert!(loaded.channels.is_empty() && loaded.clients.is_empty() && loaded.sessions.is_empty());
    assert_eq!(store.receipt(&key).unwrap(), None);
    assert_eq!(store.blob_meta(&session(), &digest("ab")).unwrap(), None);
    // An interned ID does not outlive its channel.
    store.begin().unwrap();
    assert!(matches!(store.append(1, &chat(), "{}", None), Err(StoreError::Damaged(_))));
    store.rollback();
    // The same rows fit again.
    with_session(&mut store);
}

#[test]
fn an_open_transaction_sees_its_receipts_and_blobs() {
    let (_folder, path) = folder();
    let mut store = SqliteStore::open(&path, REPOSITORY).unwrap();
    with_session(&mut store);
    let key = ReceiptKey::Operation { principal: Id::new("ada").unwrap(), operation: Id::new("op").unwrap() };
    store.begin().unwrap();
    assert_eq!(store.receipt(&key).unwrap(), None);
    store.put_receipt(&key, &receipt("1")).unwrap();
    assert_eq!(store.receipt(&key).unwrap(), Some(receipt("1")));
    assert!(store.put_receipt(&key, &receipt("2")).is_err(), "a receipt is never replaced");
    store.put_blob(&digest("ab"), b"x").unwrap();
    store.link_blob(&session(), &digest("ab"), "text/plain").unwrap();
    assert!(store.blob_meta(&session(), &digest("ab")).unwrap().is_some());
    store.commit().unwrap();
    assert_eq!(store.receipt(&key).unwrap(), Some(receipt("1")));
}

#[test]
fn a_dispatch_receipt_needs_a_bound_client() {
    let (_folder, path) = folder();
    let mut store = SqliteStore::open(&path, REPOSITORY).unwrap();
    store.begin().unwrap();
    let key = ReceiptKey::Dispatch { client: "laptop".into(), seq: 1 };
    assert!(store.put_receipt(&key, &receipt("1")).is_err());
    store.rollback();
}

#[test]
fn one_live_store_a_file() {
    let (folder, path) = folder();
    let store = SqliteStore::open(&path, REPOSITORY).unwrap();
    assert!(matches!(SqliteStore::open(&path, REPOSITORY), Err(StoreError::InUse { .. })));
    #[cfg(unix)]
    {
        let link = folder.path().join("other.db");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(SqliteStore::open(&link, REPOSITORY), Err(StoreError::InUse { .. })));
    }
    drop(store);
    SqliteStore::open(&path, REPOSITORY).unwrap();
}

#[test]
fn another_repository_is_refused() {
    let (_folder, path) = folder();
    drop(SqliteStore::open(&path, REPOSITORY).unwrap());
    match SqliteStore::open(&path, "eve/parser") {
        Err(StoreError::OtherRepository { found, wanted, .. }) => {
            assert_eq!((found.as_str(), wanted.as_str()), (REPOSITORY, "eve/parser"));
        }
        other => panic!("{other:?}"),
    }
    SqliteStore::open(&path, REPOSITORY).unwrap();
}

#[test]
fn a_newer_schema_is_refused_and_left_alone() {
    let (_folder, path) = folder();
    drop(SqliteStore::open(&path, REPOSITORY).unwrap());
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    match SqliteStore::open(&path, REPOSITORY) {
        Err(StoreError::Newer { found: 99, known, .. }) => assert_eq!(known, schema::known_version()),
        other => panic!("{other:?}"),
    }
    let version: i64 =
        Connection::open(&path).unwrap().query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(version, 99);
}

#[test]
fn files_that_are_no_database_of_ours_are_named() {
    let (folder, path) = folder();
    fs::write(&path, "not a database, whatever its name says. ".repeat(100)).unwrap();
    match SqliteStore::open(&path, REPOSITORY) {
        Err(StoreError::Damaged(what)) => assert!(what.contains("host.db"), "{what}"),
        other => panic!("{other:?}"),
    }
    let other = folder.path().join("other.db");
    Connection::open(&other).unwrap().execute_batch("CREATE TABLE songs (name TEXT)").unwrap();
    match SqliteStore::open(&other, REPOSITORY) {
        Err(StoreError::Damaged(what)) => assert!(what.contains("another program"), "{what}"),
        result => panic!("{result:?}"),
    }
}

#[test]
fn damage_inside_is_named() {
    let (_folder, path) = folder();
    let mut store = SqliteStore::open(&path, REPOSITORY).unwrap();
    with_session(&mut store);
    drop(store);
    // Overwrites all but the first page, which holds the header and the schema.
    let mut bytes = fs::read(&path).unwrap();
    bytes.iter_mut().skip(4096).for_each(|byte| *byte = 0xA5);
    fs::write(&path, bytes).unwrap();
    let result = SqliteStore::open(&path, REPOSITORY).and_then(|mut store| store.load());
    assert!(matches!(result, Err(StoreError::Damaged(_))), "{result:?}");
}

#[test]
fn a_missing_folder_or_a_folder_is_an_io_error() {
    let (folder, _) = folder();
    let path = folder.path().join("no/host.db");
    assert!(matches!(SqliteStore::open(&path, REPOSITORY), Err(StoreError::Io { .. })));
    assert!(matches!(SqliteStore::open(folder.path(), REPOSITORY), Err(StoreError::Io { .. })));
}

#[cfg(unix)]
#[test]
fn files_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let (folder, path) = folder();
    let mut store = SqliteStore::open(&path, REPOSITORY).unwrap();
    with_session(&mut store);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        names.push(entry.file_name().into_string().unwrap());
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
    }
    names.sort();
    assert_eq!(names, ["host.db", "host.db-shm", "host.db-wal", "host.db.lock"]);
}

#[test]
fn a_reader_sees_only_what_is_committed() {
    let (_folder, path) = folder();
    let mut store = SqliteStore::open(&path, REPOSITORY).unwrap();
    with_session(&mut store);
    let mut reader = store.reader().unwrap();
    store.begin().unwrap();
    store.append(2, &chat(), r#"{"type":"a"}"#, None).unwrap();
    store.put_blob(&digest("ab"), b"x").unwrap();
    store.link_blob(&session(), &digest("ab"), "text/plain").unwrap();
    assert!(read(&mut *reader, &[chat()], 0, u64::MAX).is_empty());
    assert!(reader.blob(&session(), &digest("ab")).unwrap().is_none());
    store.commit().unwrap();
    assert_eq!(read(&mut *reader, &[chat()], 0, u64::MAX).len(), 1);
    assert_eq!(
        reader.blob(&session(), &digest("ab")).unwrap(),
        Some((b"x".to_vec(), "text/plain".to_owned()))
    );
    assert_eq!(
        reader.seeds(&[chat(), Channel::Memory]).unwrap(),
        [(chat().to_string(), r#"{"turns":[]}"#.to_owned(), 1)]
    );
}

#[test]
fn a_reader_merges_channels_in_order_and_stops_when_told() {
    let (_folder, path) = folder();
    let mut store = SqliteStore::open(&path, REPOSITORY).unwrap();
    with_session(&mut store);
    committed(&mut store, |store| {
        store.create_channel(&Channel::Memory, "{}", 1).unwrap();
        for seq in 2..=40 {
            let channel = match seq % 3 {
                0 => chat(),
                1 => exchange(),
                _ => Channel::Memory,
            };
            store.append(seq, &channel, &format!("{seq}"), Some("{}")).unwrap();
        }
    });
    let mut reader = store.reader().unwrap();
    let both = [chat(), exchange(), chat(), Channel::Root];
    let rows = read(&mut *reader, &both, 3, 39);
    let expected: Vec<u64> = (4..=39).filter(|seq| seq % 3 != 2).collect();
    assert_eq!(rows.iter().map(|row| row.0).collect::<Vec<_>>(), expected);
    for (seq, channel, action) in rows {
        assert_eq!(channel, if seq % 3 == 0 { chat() } else { exchange() }.to_string());
        assert_eq!(action, seq.to_string());
    }
    let mut seen = 0;
    reader
        .actions(&both, 0, u64::MAX, &mut |row| {
            assert!(row.origin.is_some());
            seen += 1;
            seen < 5
        })
        .unwrap();
    assert_eq!(seen, 5);
    assert!(read(&mut *reader, &[], 0, u64::MAX).is_empty());
}

#[test]
fn blobs_are_stored_once_and_shared_by_permission() {
    let (_folder, path) = folder();
    let mut store = SqliteStore::open(&path, REPOSITORY).unwrap();
    with_session(&mut store);
    let other = Id::new("fix-2").unwrap();
    committed(&mut store, |store| {
        store.create_session(&other, 2).unwrap();
        assert!(store.put_blob(&digest("ab"), b"same").unwrap());
        assert!(!store.put_blob(&digest("ab"), b"same").unwrap());
        store.link_blob(&session(), &digest("ab"), "text/plain").unwrap();
        store.link_blob(&session(), &digest("ab"), "text/html").unwrap();
    });
    assert_eq!(store.load().unwrap().blob_bytes, 4);
    assert_eq!(store.blob_meta(&session(), &digest("ab")).unwrap().unwrap().media_type, "text/plain");
    assert_eq!(store.blob_meta(&other, &digest("ab")).unwrap(), None);
    assert_eq!(store.reader().unwrap().blob(&other, &digest("ab")).unwrap(), None);
    committed(&mut store, |store| store.link_blob(&other, &digest("ab"), "text/html").unwrap());
    assert_eq!(store.blob_meta(&other, &digest("ab")).unwrap().unwrap().media_type, "text/html");
    store.begin().unwrap();
    assert!(store.link_blob(&other, &digest("cd"), "text/html").is_err());
    store.rollback();
}
