//! The `axp` command.

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let cli = axp::cli::Cli::parse();
    let color = cli.color();
    match axp::cli::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error.report(color);
            error.code.into()
        }
    }
}
