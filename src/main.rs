//! The `axp` command.

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match args.split_first() {
        Some((name, rest)) if name == axp::acp::GUARD_COMMAND => axp::acp::guard_main(rest),
        Some((name, _)) if name == axp::sample::SAMPLE_COMMAND => axp::sample::run(),
        _ => ExitCode::from(2),
    }
}
