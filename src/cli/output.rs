//! What a command prints: results on stdout as text or JSON, notes on stderr.

use std::io::{ErrorKind, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::error::CliError;
use super::sanitize::escape_json;

/// When to colour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Color {
    fn on(self, terminal: bool) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => {
                let unwanted = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
                terminal && !unwanted && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
            }
        }
    }

    /// How to write on stderr.
    pub(crate) fn stderr(self) -> Style {
        Style { color: self.on(std::io::stderr().is_terminal()) }
    }

    /// How to write on stdout.
    pub(crate) fn stdout(self) -> Style {
        Style { color: self.on(std::io::stdout().is_terminal()) }
    }
}

/// Paints words, or leaves them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Style {
    color: bool,
}

impl Style {
    /// Whether it paints.
    pub(crate) fn is_colored(self) -> bool {
        self.color
    }

    /// Leaves them.
    #[cfg(test)]
    pub(crate) fn plain() -> Self {
        Self { color: false }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.color && !text.is_empty() {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }

    /// Stands out.
    pub(crate) fn strong(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// Stands back.
    pub(crate) fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// Went well.
    pub(crate) fn good(self, text: &str) -> String {
        self.paint("32", text)
    }

    /// Went wrong.
    pub(crate) fn bad(self, text: &str) -> String {
        self.paint("1;31", text)
    }

    /// Waits for somebody.
    pub(crate) fn ask(self, text: &str) -> String {
        self.paint("1;33", text)
    }

    /// Names a thing that happens.
    pub(crate) fn accent(self, text: &str) -> String {
        self.paint("36", text)
    }
}

/// Where results and notes go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    json: bool,
    quiet: bool,
    color: Color,
}

impl Output {
    /// As the global options say.
    pub(crate) fn new(json: bool, quiet: bool, color: Color) -> Self {
        Self { json, quiet, color }
    }

    /// Whether results are JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// How to paint results.
    pub(crate) fn style(&self) -> Style {
        self.color.stdout()
    }

    /// Prints a result for a person as it is; nothing with `--json`.
    pub(crate) fn print(&self, text: &str) -> Result<(), CliError> {
        if self.json || text.is_empty() { Ok(()) } else { write_stdout(text.as_bytes()) }
    }

    /// Prints a line of a result for a person; nothing with `--json`.
    pub(crate) fn line(&self, text: &str) -> Result<(), CliError> {
        self.print(&format!("{text}\n"))
    }

    /// Confirms on stdout that something was done; nothing with `-q` or `--json`.
    pub(crate) fn done(&self, text: &str) -> Result<(), CliError> {
        if self.quiet { Ok(()) } else { self.line(text) }
    }

    /// Prints a result for a program, one line of JSON; nothing without `--json`.
    pub(crate) fn json<T: Serialize>(&self, value: &T) -> Result<(), CliError> {
        if !self.json {
            return Ok(());
        }
        let mut text = serde_json::to_string(value)
            .map(|json| escape_json(&json).into_owned())
            .map_err(|e| CliError::failed(format!("the result cannot be written as JSON: {e}")))?;
        text.push('\n');
        write_stdout(text.as_bytes())
    }

    /// Says something beside the result, on stderr; nothing with `-q` or `--json`.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet && !self.json {
            // A note that nobody can read is no failure.
            let _ = writeln!(std::io::stderr().lock(), "{text}");
        }
    }

    /// A spinner on stderr while something takes time; it is gone when it is dropped.
    pub(crate) fn spinner(&self, text: &str) -> Spinner {
        if self.quiet || self.json || !std::io::stderr().is_terminal() {
            return Spinner(ProgressBar::hidden());
        }
        let bar = ProgressBar::new_spinner().with_message(text.to_owned());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        Spinner(bar)
    }
}

/// A running spinner.
#[derive(Debug, Clone)]
pub(crate) struct Spinner(ProgressBar);

impl Spinner {
    /// Says something else from here.
    pub(crate) fn say(&self, text: String) {
        self.0.set_message(text);
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Writes raw bytes to stdout and sees them off.
pub(crate) fn write_stdout(bytes: &[u8]) -> Result<(), CliError> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => CliError::closed_pipe(),
        _ => CliError::failed(format!("cannot write to stdout: {error}")),
    })
}

/// Rows under a head, in columns as wide as they must be.
pub(crate) fn table(style: Style, head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut text = style.dim(&line(head.to_vec()));
    for row in rows {
        text.push('\n');
        text.push_str(&line(row.iter().map(String::as_str).collect()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["a".into(), "bb".into()], vec!["cccc".into(), "d".into()]];
        assert_eq!(table(Style::plain(), &["ID", "NAME"], &rows), "ID    NAME\na     bb\ncccc  d");
    }

    #[test]
    fn colour_is_asked_for_or_not() {
        assert_eq!(Style { color: true }.bad("x"), "\u{1b}[1;31mx\u{1b}[0m");
        assert_eq!(Style { color: true }.dim(""), "");
        assert!(Color::Always.on(false) && !Color::Never.on(true) && !Color::Auto.on(false));
    }
}
