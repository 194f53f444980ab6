//! What some tests want and a machine may lack.

use std::ffi::OsString;
use std::io::Write as _;

/// The value of a variable that names something a test wants. Without it the test is to be skipped, and says so; with
/// `AXP_REQUIRE_AGENTS=1` it fails instead.
pub(crate) fn wanted(variable: &str) -> Option<OsString> {
    let value = std::env::var_os(variable);
    if value.is_none() {
        let required = std::env::var_os("AXP_REQUIRE_AGENTS").is_some_and(|value| value == "1");
        assert!(!required, "{variable} is not set");
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        // Past the capture of test output: a skipped test passes, and nobody reads what a passed test printed.
        let _ = writeln!(std::io::stderr(), "{test}: skipped, {variable} is not set (see CONTRIBUTING.md)");
    }
    value
}
