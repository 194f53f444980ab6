//! What `--help` says, of every command, so that a changed flag is a visible change.

use std::fmt::Write as _;
use std::path::Path;

#[test]
fn the_help_is_as_recorded() {
    let mut text = String::new();
    for (name, command) in axp::cli::commands() {
        let help = command.term_width(100).render_long_help();
        writeln!(text, "$ {name} --help\n{help}").expect("a string takes text");
    }

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/help.txt");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("the folder can be made");
        std::fs::write(&path, &text).expect("the snapshot can be written");
    }
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    if recorded != text {
        let line = recorded.lines().zip(text.lines()).position(|(a, b)| a != b).unwrap_or_default();
        panic!(
            "the help differs from tests/snapshots/help.txt from line {}:\n  {:?}\n  {:?}\n\
             UPDATE_SNAPSHOTS=1 cargo test --test help records it",
            line + 1,
            recorded.lines().nth(line),
            text.lines().nth(line)
        );
    }
}
