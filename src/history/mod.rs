//! An exported history: fetched as a stream, kept in a file, read one action at a time, and checked without a host.

mod archive;
mod audit;
mod download;
mod extract;
mod frames;

pub use archive::{Archive, Head, HistoryError, pieces};
pub use audit::{Check, Trace, audit, manifest_fits};
pub use download::{DownloadError, Progress, download, fetch, open};
