//! What is made from the command line's own definition: completions, man pages, and the schemas of the protocol.

use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory as _};

use super::Cli;
use super::error::CliError;
use super::output::write_stdout;

const COMPLETIONS_EXAMPLES: &str = "EXAMPLES
  axp completions bash > ~/.local/share/bash-completion/completions/axp
  axp completions zsh > ~/.zfunc/_axp
  axp completions fish > ~/.config/fish/completions/axp.fish";

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: clap_complete::Shell,
}

/// Write generated files into a folder
#[derive(Debug, Args)]
pub(crate) struct IntoArgs {
    /// The folder
    dir: PathBuf,
}

/// The command line as clap knows it.
pub fn command() -> clap::Command {
    let mut command = Cli::command();
    command.build();
    command
}

/// Runs `axp completions`.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "axp", &mut script);
    write_stdout(&script)
}

/// Every command that is shown, with its whole name: `axp` itself, its commands, and theirs.
pub fn commands() -> Vec<(String, clap::Command)> {
    fn add(name: String, command: &clap::Command, list: &mut Vec<(String, clap::Command)>) {
        list.push((name.clone(), command.clone()));
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            add(format!("{name} {}", sub.get_name()), sub, list);
        }
    }
    let mut list = vec![];
    add("axp".into(), &command(), &mut list);
    list
}

/// The man pages by file name: one for `axp`, one for each command.
///
/// # Errors
/// When a page cannot be rendered.
pub fn man_pages() -> std::io::Result<Vec<(String, String)>> {
    let pages = commands().into_iter().map(|(name, command)| {
        let name = name.replace(' ', "-");
        page(format!("{name}.1"), command.display_name(&name))
    });
    pages.collect()
}

fn page(file: String, command: clap::Command) -> std::io::Result<(String, String)> {
    let mut text = Vec::new();
    // No date: the same definition always gives the same page.
    let source = concat!("axp ", env!("CARGO_PKG_VERSION"));
    clap_mangen::Man::new(command).manual("AXP").source(source).render(&mut text)?;
    // The examples have a section of their own.
    let text = String::from_utf8_lossy(&text).replace(".SH EXTRA\nEXAMPLES\n", ".SH EXAMPLES\n");
    Ok((file, text))
}

/// Runs `axp __man`.
pub(crate) fn man(args: &IntoArgs) -> Result<(), CliError> {
    let pages = man_pages().map_err(|e| CliError::failed(format!("a man page cannot be rendered: {e}")))?;
    write_all(&args.dir, pages)
}

/// Runs `axp __schema`.
pub(crate) fn schema(args: &IntoArgs) -> Result<(), CliError> {
    write_all(&args.dir, axp_protocol::schema::files())
}

fn write_all(dir: &Path, files: Vec<(String, String)>) -> Result<(), CliError> {
    std::fs::create_dir_all(dir).map_err(|e| CliError::io("make", dir, &e))?;
    for (name, text) in files {
        let path = dir.join(name);
        std::fs::write(&path, text).map_err(|e| CliError::io("write", &path, &e))?;
    }
    Ok(())
}
