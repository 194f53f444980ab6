//! Amounts as people write them: decimal USD, counts, durations; exact in both directions.

use std::time::Duration;

use axp_protocol::limits::MAX_SAFE_INTEGER;
use axp_protocol::shape::Allowance;

/// USD millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Usd(pub(crate) u64);

impl std::str::FromStr for Usd {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || !digits(whole) || !digits(fraction) || text.ends_with('.') {
            return Err("write USD as a decimal number, such as 2 or 0.10".into());
        }
        if fraction.len() > 6 {
            return Err("USD has at most six decimals here".into());
        }
        let too_much = || format!("more than {}", usd(MAX_SAFE_INTEGER));
        let whole: u64 = whole.parse().map_err(|_| too_much())?;
        // At most six digits, padded to exactly six.
        let fraction: u64 = format!("{fraction:0<6}").parse().map_err(|_| too_much())?;
        whole
            .checked_mul(1_000_000)
            .and_then(|micros| micros.checked_add(fraction))
            .filter(|micros| *micros <= MAX_SAFE_INTEGER)
            .map(Self)
            .ok_or_else(too_much)
    }
}

impl std::fmt::Display for Usd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let fraction = format!("{:06}", self.0 % 1_000_000);
        // Cents are always shown, smaller places where there is something in them.
        let shown = fraction.trim_end_matches('0').len().max(2);
        write!(f, "{}.{}", self.0 / 1_000_000, fraction.get(..shown).unwrap_or(&fraction))
    }
}

/// An amount with its sign, as in `$0.10`.
pub(crate) fn usd(micros: u64) -> String {
    format!("${}", Usd(micros))
}

/// A count with thousands set off.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A count of things.
pub(crate) fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

/// A budget in words.
pub(crate) fn allowance(a: &Allowance) -> String {
    format!(
        "{}, {}, {}",
        counted(a.tokens, "token", "tokens"),
        usd(a.cost_micros),
        counted(a.turns, "turn", "turns")
    )
}

/// A count of tokens or turns on the command line.
pub(crate) fn parse_count(text: &str) -> Result<u64, String> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err("write a whole number, such as 10000".into());
    }
    text.parse()
        .ok()
        .filter(|n| *n <= MAX_SAFE_INTEGER)
        .ok_or_else(|| format!("more than {MAX_SAFE_INTEGER}"))
}

/// A count that nothing can be done without.
pub(crate) fn parse_some(text: &str) -> Result<u64, String> {
    match parse_count(text)? {
        0 => Err("with none, no turn can run".into()),
        n => Ok(n),
    }
}

/// A duration on the command line: `1500ms`, `30s`, `5m`, `2h`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let wrong = || "write a duration such as 1500ms, 30s or 5m".to_owned();
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    if number.is_empty() {
        return Err(wrong());
    }
    number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(unit_ms))
        .filter(|ms| *ms <= MAX_SAFE_INTEGER)
        .map(Duration::from_millis)
        .ok_or_else(|| "too long".to_owned())
}

/// A duration in words: `850 ms`, `4.2 s`, `3 min 5 s`, `2 h 10 min`.
pub(crate) fn duration(d: Duration) -> String {
    let (ms, s) = (d.as_millis(), d.as_secs());
    match s {
        0 => format!("{ms} ms"),
        1..60 => format!("{}.{} s", s, d.subsec_millis() / 100),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        _ => format!("{} h {} min", s / 3600, s % 3600 / 60),
    }
}

/// A size in words.
pub(crate) fn bytes(n: u64) -> String {
    match n {
        0..1_000 => counted(n, "byte", "bytes"),
        1_000..1_000_000 => format!("{}.{} kB", n / 1_000, n % 1_000 / 100),
        _ => format!("{}.{} MB", n / 1_000_000, n % 1_000_000 / 100_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn money_is_exact() {
        for (text, micros) in [
            ("2", 2_000_000),
            ("0.10", 100_000),
            ("0.000001", 1),
            ("0", 0),
            ("007.5", 7_500_000),
            ("9007199254.740991", MAX_SAFE_INTEGER),
        ] {
            assert_eq!(text.parse::<Usd>().unwrap().0, micros, "{text}");
        }
        for bad in [
            "",
            ".",
            ".5",
            "1.",
            "1_000",
            "1,000",
            "$1",
            "-1",
            "+1",
            "1e3",
            "0.0000001",
            "1.0.0",
            " 1",
            "1 ",
            "٣",
            "9007199254.740992",
            "99999999999999999999",
        ] {
            assert!(bad.parse::<Usd>().is_err(), "{bad:?}");
        }
        assert_eq!(usd(0), "$0.00");
        assert_eq!(usd(1_234_500), "$1.2345");
        assert_eq!(usd(2_000_000), "$2.00");
    }

    #[test]
    fn durations_have_units() {
        for (text, ms) in [("30s", 30_000), ("5m", 300_000), ("1500ms", 1_500), ("2h", 7_200_000)] {
            assert_eq!(parse_duration(text).unwrap().as_millis(), ms, "{text}");
        }
        for bad in ["", "30", "s", "1.5s", "-1s", "30 s", "5min", "99999999999999999999s"] {
            assert!(parse_duration(bad).is_err(), "{bad:?}");
        }
        assert_eq!(duration(Duration::from_millis(850)), "850 ms");
        assert_eq!(duration(Duration::from_millis(4_260)), "4.2 s");
        assert_eq!(duration(Duration::from_secs(185)), "3 min 5 s");
        assert_eq!(duration(Duration::from_secs(7_800)), "2 h 10 min");
    }

    #[test]
    fn counts_are_readable() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(12_345_678), "12,345,678");
        assert_eq!(
            (parse_some("1"), parse_some("0").is_err(), parse_some("x").is_err()),
            (Ok(1), true, true)
        );
        let a = Allowance { tokens: 1, cost_micros: 500_000, turns: 2 };
        assert_eq!(allowance(&a), "1 token, $0.50, 2 turns");
        assert_eq!(bytes(1_234), "1.2 kB");
        assert_eq!(parse_count("100000"), Ok(100_000));
        for bad in ["", "1k", "-1", "1.0", "9007199254740992"] {
            assert!(parse_count(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn money_survives_writing_and_reading(micros in 0..=MAX_SAFE_INTEGER) {
            prop_assert_eq!(Usd(micros).to_string().parse::<Usd>().unwrap().0, micros);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,24}") {
            if let Ok(Usd(micros)) = text.parse::<Usd>() {
                prop_assert!(micros <= MAX_SAFE_INTEGER);
                prop_assert!(text.bytes().all(|b| b.is_ascii_digit() || b == b'.'));
            }
            let _ = parse_duration(&text);
        }

        #[test]
        fn durations_are_exact(n in 0u64..1_000_000_000, unit in prop_oneof![Just(("ms", 1)), Just(("s", 1000)), Just(("m", 60_000))]) {
            let parsed = parse_duration(&format!("{n}{}", unit.0)).unwrap();
            prop_assert_eq!(parsed, Duration::from_millis(n * unit.1));
        }
    }
}
