//! `axp-host`: a host that runs alone.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use axp_host::HostError;
use axp_host::run::{Overrides, run_from_config, stop_signal};
use clap::Parser;
use tracing_subscriber::EnvFilter;

/// Serve sessions to the people and agents of one repository.
///
/// Clients connect to ws://ADDRESS/axp with a bearer token. SIGINT and SIGTERM stop the host in order. RUST_LOG sets
/// what is logged to stderr.
#[derive(Debug, Parser)]
#[command(
    name = "axp-host",
    version,
    after_help = "Example:\n  axp-host --config .axp/host.json --listen 127.0.0.1:7331\n\n\
                  Exit codes: 0 stopped, 1 failed, 2 usage or configuration."
)]
struct Arguments {
    /// Configuration file; `axp init` makes one.
    #[arg(long, value_name = "FILE", default_value = ".axp/host.json")]
    config: PathBuf,
    /// Address to listen on instead of the configured one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error, 1),
    };
    let overrides = Overrides { listen: arguments.listen };
    let done = runtime.block_on(async {
        // Before anything else: whoever sees the address may send a signal at once.
        let stop = stop_signal().map_err(|source| HostError::Io { what: "signals", source })?;
        run_from_config(&arguments.config, overrides, stop, announce).await
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, error.exit_code()),
    }
}

fn announce(address: SocketAddr) {
    let mut out = std::io::stdout();
    // Whoever started the host may not be reading any more; the host serves all the same.
    let _ = writeln!(out, "listening on ws://{address}/axp").and_then(|()| out.flush());
}

fn fail(error: &dyn std::error::Error, code: u8) -> ExitCode {
    // Nothing is left to tell when stderr is closed.
    let _ = writeln!(std::io::stderr(), "axp-host: {error}");
    ExitCode::from(code)
}
