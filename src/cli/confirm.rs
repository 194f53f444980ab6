//! Asks a person before something that is not undone.

use std::io::IsTerminal as _;

use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::Context;
use super::error::CliError;

/// Goes on when the person says so, or said so with `--yes`.
///
/// # Errors
/// When they do not, and when nobody is at the terminal to be asked.
pub(crate) async fn confirm(ctx: &Context, yes: bool, question: &str) -> Result<(), CliError> {
    if yes {
        return Ok(());
    }
    if ctx.out.is_json() || !std::io::stdin().is_terminal() {
        return Err(CliError::usage(format!("nobody is here to be asked: {question}"))
            .hint("look at what is shown above, then run it again with --yes"));
    }
    ctx.out.print(&format!("{} ", ctx.out.style().ask(&format!("{question} [y/N]"))))?;
    let mut line = String::new();
    let read = BufReader::new(tokio::io::stdin()).read_line(&mut line).await;
    read.map_err(|e| CliError::failed(format!("cannot read the answer: {e}")))?;
    match line.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(CliError::failed("nothing was done")),
    }
}
