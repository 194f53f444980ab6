//! Every size, count and time limit of the protocol in one place.

/// Largest integer a JSON number carries exactly everywhere: 2^53 − 1.
pub const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;
/// Ordinary frame, bytes (section 2).
pub const FRAME_BYTES: usize = 64 * 1024;
/// Content of one blob, bytes, before base64 (section 7).
pub const BLOB_BYTES: usize = 16_000_000;
/// All blobs of a host together, bytes (section 7).
pub const BLOB_TOTAL_BYTES: u64 = 2_000_000_000;
/// Frame of `_axp/blobPut`: the blob in base64 plus an ordinary frame for the rest.
pub const BLOB_FRAME_BYTES: usize = BLOB_BYTES.div_ceil(3) * 4 + FRAME_BYTES;
/// Frame of `_axp/checkpoint`, bytes: 2,000 changed files with two blob references each do not fit an ordinary
/// frame.
pub const CHECKPOINT_FRAME_BYTES: usize = 4 * 1024 * 1024;
/// Frame of `_axp/compact`, bytes: the longest proposal its limits allow does not fit an ordinary frame.
pub const COMPACT_FRAME_BYTES: usize = 512 * 1024;
/// Outbound queue of one connection, bytes (section 2).
pub const QUEUE_BYTES: usize = 2 * 1024 * 1024;
/// Time for `initialize` or `reconnect` after the upgrade, ms (section 2).
pub const HELLO_MS: u64 = 10_000;
/// Subscriptions of one connection (section 5).
pub const SUBSCRIPTIONS: usize = 256;
/// Actions a `reconnect` replays at most (section 5).
pub const REPLAY_ACTIONS: usize = 4096;
/// Queued messages of one chat (section 5).
pub const QUEUED_MESSAGES: usize = 32;
/// Comments kept visible in the exchange state (section 6).
pub const COMMENTS: usize = 256;
/// Text of one user message, characters. Bounded by the ordinary frame as well.
pub const MESSAGE_CHARS: usize = 60_000;
/// Length of an identifier (section 4).
pub const ID_CHARS: usize = 128;
/// Shortest and longest lease or registration, ms (section 6).
pub const LEASE_MS: std::ops::RangeInclusive<u64> = 3_000..=300_000;
/// Shortest bearer token, characters (section 3).
pub const TOKEN_CHARS: usize = 24;
