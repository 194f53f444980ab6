//! The man pages in `man/` are those of the command line.

mod generated;

#[test]
fn the_man_pages_are_up_to_date() {
    let pages = axp::cli::man_pages().expect("the pages render");
    generated::compare("man", &pages, "cargo run -- __man man");
}
