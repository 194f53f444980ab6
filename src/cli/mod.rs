//! The command line: one file a command family. Errors become sentences and exit codes here and nowhere else.

mod approve;
mod comment;
mod confirm;
mod context;
mod create;
mod demo;
mod error;
mod export;
mod follow;
mod generate;
mod grant;
mod host;
mod init;
mod input;
mod keys;
mod list;
mod local;
mod log;
mod memory;
mod money;
mod output;
mod park;
mod paths;
mod profile;
mod render;
mod review;
mod rpc;
mod run;
mod sanitize;
mod session;
mod status;
mod turn;
mod verify;
mod wait;
mod waiting;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, Subcommand};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

pub use error::{CliError, ExitCode};
pub use generate::{command, commands, man_pages};
pub use output::Color;

use crate::client::{ConnectOptions, Credentials};
use output::Output;
use profile::{Environment, Need, quoted};
use session::Host;

const EXAMPLES: &str = "EXAMPLES
  axp init --repo owner/project            in the project: profiles and a host configuration
  axp host                                 run the host
  axp create --task issue-42               open a session
  axp park SESSION --cost 1.00 -- AGENT    a contributor parks an agent, in their clone
  axp prompt SESSION \"Fix it\" --wait       give it something to do and follow it

EXIT CODES
  0 done · 1 failed, or a turn that ended in an error · 2 usage · 3 not permitted
  4 conflict or stale · 5 budget · 6 host unreachable · 130 interrupted

PROFILES
  A profile is {url, token} in .axp/ROLE.json, found here or in a folder above.
  AXP_URL and AXP_TOKEN together replace it; --profile wins over both.";

/// Park your own coding agent at someone's project, with a budget, and stay in control of every token
///
/// A contributor parks an agent at a session, in a Git worktree of its own; the project's maintainers prompt it, steer
/// it and answer its questions; what it spends is held to the contributor's budget.
#[derive(Debug, Parser)]
#[command(name = "axp", version, after_help = EXAMPLES, max_term_width = 100, subcommand_required = true)]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Global options")]
struct Global {
    /// Print JSON for programs: one document, or one a line; nothing else on stdout
    #[arg(long, global = true)]
    json: bool,
    /// Profile to use: a private file with {url, token}
    #[arg(long, global = true, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Print results only, no notes
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Say more on stderr; twice for still more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    /// When to colour: auto, always or never
    #[arg(long, global = true, default_value_t = Color::Auto, value_name = "WHEN")]
    #[arg(value_enum, hide_possible_values = true, hide_default_value = true)]
    color: Color,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::DemoArgs),
    Run(Box<run::RunArgs>),
    Init(init::InitArgs),
    #[command(visible_alias = "serve")]
    Host(host::HostArgs),
    Create(create::CreateArgs),
    Park(Box<park::ParkArgs>),
    Prompt(turn::PromptArgs),
    Queue(turn::QueueArgs),
    Steer(turn::SteerArgs),
    Watch(watch::WatchArgs),
    Approve(approve::ApproveArgs),
    Deny(approve::DenyArgs),
    Cancel(turn::CancelArgs),
    Close(turn::CloseArgs),
    Sessions(list::SessionsArgs),
    Executors(list::ExecutorsArgs),
    Inspect(list::InspectArgs),
    Grant(grant::GrantArgs),
    Revoke(grant::RevokeArgs),
    Comment(comment::CommentArgs),
    Context(context::ContextArgs),
    Compact(context::CompactArgs),
    Memory(memory::MemoryArgs),
    Keygen(keys::KeygenArgs),
    Submit(review::SubmitArgs),
    Accept(review::AcceptArgs),
    Verify(verify::VerifyArgs),
    Publish(review::PublishArgs),
    Export(export::ExportArgs),
    Log(log::LogArgs),
    Rpc(rpc::RpcArgs),
    Status(status::StatusArgs),
    Completions(generate::CompletionsArgs),
    #[command(name = "__man", hide = true)]
    Man(generate::IntoArgs),
    #[command(name = "__schema", hide = true)]
    Schema(generate::IntoArgs),
}

impl Command {
    /// Whether the command says something itself, or tidies up, when it is interrupted.
    fn sees_interrupts(&self) -> bool {
        match self {
            Self::Host(_) | Self::Park(_) | Self::Run(_) | Self::Demo(_) | Self::Verify(_) => true,
            Self::Prompt(args) => args.waits(),
            Self::Queue(args) => args.waits(),
            Self::Steer(args) => args.waits(),
            _ => false,
        }
    }
}

/// What every command is given.
#[derive(Debug)]
pub(crate) struct Context {
    /// Where results and notes go.
    pub(crate) out: Output,
    profile: Option<PathBuf>,
}

impl Context {
    /// The current folder.
    pub(crate) fn here(&self) -> Result<PathBuf, CliError> {
        std::env::current_dir().map_err(|e| CliError::failed(format!("there is no current folder: {e}")))
    }

    /// The credentials for what is needed.
    pub(crate) fn credentials(&self, need: Need) -> Result<Credentials, CliError> {
        profile::resolve(self.profile.as_deref(), &Environment::read(), &self.here()?, need)
    }

    /// The host, with the profile for what is needed.
    pub(crate) async fn host(&self, need: Need) -> Result<Host, CliError> {
        self.host_with(need, ConnectOptions::default().timeout).await
    }

    /// The host, with this time for each answer.
    pub(crate) async fn host_with(&self, need: Need, timeout: Duration) -> Result<Host, CliError> {
        let options = ConnectOptions { timeout, ..Default::default() };
        Ok(Host::connect(self.credentials(need)?, options).await?)
    }

    /// How this program is called so that it finds the same profile, for commands that are shown.
    pub(crate) fn invocation(&self) -> String {
        match &self.profile {
            Some(path) => format!("axp --profile {}", quoted(&path.display().to_string())),
            None => "axp".into(),
        }
    }
}

impl Cli {
    /// When to colour.
    pub fn color(&self) -> Color {
        self.global.color
    }
}

/// Runs a command.
///
/// # Errors
/// What to say, and how to exit.
pub fn run(cli: Cli) -> Result<(), CliError> {
    let Global { json, profile, quiet, verbose, color } = cli.global;
    let ctx = Context { out: Output::new(json, quiet, color), profile };
    // These need neither logs nor a runtime.
    match &cli.command {
        Command::Init(args) => return init::run(args, &ctx),
        Command::Status(args) => return status::run(args, &ctx),
        Command::Keygen(args) => return keys::run(args, &ctx),
        Command::Log(args) => return log::run(args, &ctx),
        Command::Completions(args) => return generate::completions(args),
        Command::Man(args) => return generate::man(args),
        Command::Schema(args) => return generate::schema(args),
        _ => {}
    }
    logs(&cli.command, quiet, verbose, color);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| CliError::failed(format!("the system gives no threads: {e}")))?;
    let result = runtime.block_on(async {
        if cli.command.sees_interrupts() {
            return dispatch(cli.command, &ctx).await;
        }
        tokio::select! {
            result = dispatch(cli.command, &ctx) => result,
            _ = tokio::signal::ctrl_c() => Err(CliError::interrupted()),
        }
    });
    // A thread that waits for stdin would wait for ever.
    runtime.shutdown_background();
    result
}

async fn dispatch(command: Command, ctx: &Context) -> Result<(), CliError> {
    match command {
        Command::Demo(args) => demo::run(args, ctx).await,
        Command::Run(args) => run::run(*args, ctx).await,
        Command::Host(args) => host::run(args, ctx).await,
        Command::Create(args) => create::run(args, ctx).await,
        Command::Park(args) => park::run(*args, ctx).await,
        Command::Prompt(args) => turn::prompt(args, ctx).await,
        Command::Queue(args) => turn::queue(args, ctx).await,
        Command::Steer(args) => turn::steer(args, ctx).await,
        Command::Watch(args) => watch::run(args, ctx).await,
        Command::Approve(args) => approve::approve(args, ctx).await,
        Command::Deny(args) => approve::deny(args, ctx).await,
        Command::Cancel(args) => turn::cancel(args, ctx).await,
        Command::Close(args) => turn::close(args, ctx).await,
        Command::Sessions(args) => list::sessions(args, ctx).await,
        Command::Executors(args) => list::executors(args, ctx).await,
        Command::Inspect(args) => list::inspect(args, ctx).await,
        Command::Grant(args) => grant::grant(args, ctx).await,
        Command::Revoke(args) => grant::revoke(args, ctx).await,
        Command::Export(args) => export::run(args, ctx).await,
        Command::Comment(args) => comment::run(args, ctx).await,
        Command::Context(args) => context::context(args, ctx).await,
        Command::Compact(args) => context::compact(args, ctx).await,
        Command::Memory(args) => memory::run(args, ctx).await,
        Command::Submit(args) => review::submit(args, ctx).await,
        Command::Accept(args) => review::accept(args, ctx).await,
        Command::Verify(args) => verify::run(args, ctx).await,
        Command::Publish(args) => review::publish(args, ctx).await,
        Command::Rpc(args) => rpc::run(args, ctx).await,
        Command::Init(args) => init::run(&args, ctx),
        Command::Keygen(args) => keys::run(&args, ctx),
        Command::Log(args) => log::run(&args, ctx),
        Command::Status(args) => status::run(&args, ctx),
        Command::Completions(args) => generate::completions(&args),
        Command::Man(args) => generate::man(&args),
        Command::Schema(args) => generate::schema(&args),
    }
}

/// Logs on stderr. Only of our own crates: others would write down what they send, tokens among it.
fn logs(command: &Command, quiet: bool, verbose: u8, color: Color) {
    let quiet_level = if matches!(command, Command::Host(_)) { LevelFilter::INFO } else { LevelFilter::WARN };
    let level = match (quiet, verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => quiet_level,
        (false, 1) => LevelFilter::DEBUG,
        (false, _) => LevelFilter::TRACE,
    };
    let ours = Targets::new().with_target("axp", level).with_target("axp_host", level);
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(color.stderr().is_colored())
        .with_target(false);
    // Somebody who embeds us may log in their own way already.
    let _ = tracing_subscriber::registry().with(ours).with(layer).try_init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        for (name, command) in commands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.starts_with("EXAMPLES\n"), "{name}");
        }
    }
}
