//! What a command is given in a file or on stdin, up to a limit.

use std::path::Path;

use tokio::io::AsyncReadExt as _;

use super::error::CliError;

/// How a person calls a file, or `-`.
pub(crate) fn name(path: &Path) -> String {
    if path == Path::new("-") { "stdin".into() } else { path.display().to_string() }
}

/// Reads a file, or stdin for `-`, of at most `limit` bytes.
///
/// # Errors
/// When it cannot be read, or is longer: `than` says what it may not be longer than.
pub(crate) async fn read(path: &Path, limit: usize, than: &str) -> Result<Vec<u8>, CliError> {
    let shown = name(path);
    let most = limit as u64 + 1;
    let mut bytes = vec![];
    let read = if path == Path::new("-") {
        tokio::io::stdin().take(most).read_to_end(&mut bytes).await
    } else {
        match tokio::fs::File::open(path).await {
            Ok(file) => file.take(most).read_to_end(&mut bytes).await,
            Err(error) => Err(error),
        }
    };
    read.map_err(|e| CliError::failed(format!("cannot read {shown}: {e}")))?;
    if bytes.len() > limit {
        return Err(CliError::usage(format!("{shown} is longer than {than}")));
    }
    Ok(bytes)
}

/// The same as text.
///
/// # Errors
/// As [`read`], and when it is not UTF-8.
pub(crate) async fn read_text(path: &Path, limit: usize, than: &str) -> Result<String, CliError> {
    let bytes = read(path, limit, than).await?;
    String::from_utf8(bytes).map_err(|_| CliError::usage(format!("{} is not UTF-8 text", name(path))))
}

#[cfg(test)]
mod tests {
    use super::super::error::ExitCode;
    use super::*;

    #[tokio::test]
    async fn nothing_is_read_past_its_limit() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "12345").unwrap();
        assert_eq!(read_text(file.path(), 5, "five").await.unwrap(), "12345");
        let error = read(file.path(), 4, "a word may be").await.unwrap_err();
        assert_eq!(error.code, ExitCode::Usage);
        assert!(error.message.ends_with("is longer than a word may be"), "{error}");
        std::fs::write(file.path(), b"\xff").unwrap();
        assert_eq!(read_text(file.path(), 5, "five").await.unwrap_err().code, ExitCode::Usage);
        assert_eq!(read(Path::new("/nothing/there"), 5, "five").await.unwrap_err().code, ExitCode::Failed);
    }
}
