//! Compares files that are made from the code with those that are checked in.

use std::collections::BTreeSet;
use std::path::Path;

/// The folder holds exactly these files, with exactly this text.
#[expect(clippy::expect_used, reason = "a test that cannot go on stops")]
pub(crate) fn compare(folder: &str, files: &[(String, String)], regenerate: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut wrong: Vec<String> = vec![];
    for (name, text) in files {
        match std::fs::read_to_string(path.join(name)) {
            Ok(there) if there == *text => {}
            Ok(_) => wrong.push(format!("{name} differs")),
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
    }
    let wanted: BTreeSet<_> = files.iter().map(|(name, _)| name.as_str()).collect();
    for entry in std::fs::read_dir(&path).expect("the folder is there") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        if !wanted.contains(name.as_str()) {
            wrong.push(format!("{name} is made by nothing"));
        }
    }
    assert!(wrong.is_empty(), "{folder}/ is not up to date; run: {regenerate}\n{}", wrong.join("\n"));
}
