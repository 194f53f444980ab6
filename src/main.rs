//! The `axp` command.

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    // Parts of this program that are processes of their own; they have no command line for people.
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    match args.split_first() {
        Some((name, rest)) if name == axp::acp::GUARD_COMMAND => return axp::acp::guard_main(rest),
        Some((name, _)) if name == axp::sample::SAMPLE_COMMAND => return axp::sample::run(),
        _ => {}
    }
    let cli = axp::cli::Cli::parse();
    let color = cli.color();
    match axp::cli::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error.report(color);
            error.exit_code()
        }
    }
}
