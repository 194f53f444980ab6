//! Wall-clock time as the wire spells it: ms since the Unix epoch in AXP, RFC 3339 text in AHP.

use std::time::{SystemTime, UNIX_EPOCH};

/// Reads the wall clock, ms since the Unix epoch.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// RFC 3339 with milliseconds, UTC.
pub fn rfc3339(ms: u64) -> String {
    let timestamp = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    format!("{:.3}", timestamp.unwrap_or(jiff::Timestamp::MAX))
}

/// ms since the Unix epoch of an RFC 3339 text; 0 when it is not one.
pub fn parse_rfc3339(text: &str) -> u64 {
    text.parse::<jiff::Timestamp>().ok().and_then(|t| u64::try_from(t.as_millisecond()).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_number_agree() {
        assert_eq!(rfc3339(1_764_547_200_007), "2025-12-01T00:00:00.007Z");
        assert_eq!(parse_rfc3339("2025-12-01T00:00:00.007Z"), 1_764_547_200_007);
        assert_eq!(parse_rfc3339("soon"), 0);
        assert_eq!(parse_rfc3339(&rfc3339(u64::MAX)), jiff::Timestamp::MAX.as_millisecond() as u64);
    }
}
