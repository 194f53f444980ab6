//! Canonical JSON and SHA-256 (section 8): the one spelling of a value that hashes and signatures are made over.

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Canonical JSON of `value`: keys sorted by UTF-16 code units, no spaces, numbers as JavaScript writes them.
pub fn canonical(value: &Value) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

/// Lower-case hex SHA-256 of the canonical JSON of `value`.
///
/// # Errors
/// When `value` cannot be represented in JSON (a map with keys that are not strings, say).
pub fn hash<T: Serialize>(value: &T) -> Result<String, serde_json::Error> {
    Ok(sha256_hex(canonical(&serde_json::to_value(value)?).as_bytes()))
}

/// The hash of a list whose values come one after the other: that of [`hash`] of the whole list.
#[derive(Debug, Clone, Default)]
pub struct ListHash {
    digest: Sha256,
    begun: bool,
}

impl ListHash {
    /// Adds the next value.
    pub fn push(&mut self, value: &Value) {
        self.digest.update(if std::mem::replace(&mut self.begun, true) { b"," } else { b"[" });
        self.digest.update(canonical(value).as_bytes());
    }

    /// Lower-case hex SHA-256 of the list up to here.
    pub fn finish(mut self) -> String {
        self.digest.update(if self.begun { &b"]"[..] } else { &b"[]"[..] });
        hex(&self.digest.finalize())
    }
}

/// Lower-case hex SHA-256 of bytes.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Lower-case hex of bytes.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|b| [DIGITS[usize::from(b >> 4)] as char, DIGITS[usize::from(b & 15)] as char])
        .collect()
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => write_number(n, out),
        Value::String(s) => write_string(s, out),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
            out.push('{');
            for (i, (key, item)) in entries.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_string(key, out);
                out.push(':');
                write(item, out);
            }
            out.push('}');
        }
    }
}

fn write_string(text: &str, out: &mut String) {
    use std::fmt::Write as _;
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            c if c < ' ' => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn write_number(number: &serde_json::Number, out: &mut String) {
    // JavaScript has one number type: an integer past 2^53 is written as the double it becomes there.
    match number.as_f64() {
        Some(value) => out.push_str(ryu_js::Buffer::new().format(value)),
        None => out.push_str(&number.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_sort_by_utf16_units() {
        // U+FF5E sorts before U+1F600 by code point, after it by UTF-16 unit (0xFF5E against 0xD83D).
        let value = json!({"\u{ff5e}": 1, "\u{1f600}": 2, "a": {"c": [], "b": {}}});
        assert_eq!(canonical(&value), "{\"a\":{\"b\":{},\"c\":[]},\"\u{1f600}\":2,\"\u{ff5e}\":1}");
    }

    #[test]
    fn numbers_are_written_as_javascript_does() {
        for (value, expected) in [
            (0.0, "0"),
            (-0.0, "0"),
            (1.0, "1"),
            (-1.5, "-1.5"),
            (1e21, "1e+21"),
            (123456789012345680000.0, "123456789012345680000"),
            (1e-6, "0.000001"),
            (1e-7, "1e-7"),
            (1.25e-9, "1.25e-9"),
            (5e-324, "5e-324"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
            (0.1, "0.1"),
            // Halfway between two shortest spellings, it is the even one.
            (-1665913905323918.0 - 0.25, "-1665913905323918.2"),
        ] {
            assert_eq!(canonical(&json!(value)), expected, "{value:e}");
        }
        assert_eq!(canonical(&json!(9007199254740991u64)), "9007199254740991");
    }

    #[test]
    fn strings_escape_only_what_must_be() {
        assert_eq!(
            canonical(&json!("\u{1}\n\t\"\\/é\u{7f}\u{2028}")),
            "\"\\u0001\\n\\t\\\"\\\\/é\u{7f}\u{2028}\""
        );
    }

    #[test]
    fn a_list_hashes_the_same_whole_or_in_parts() {
        for list in [vec![], vec![json!(1)], vec![json!({"b": 1, "a": [2]}), json!("x"), json!(null)]] {
            let mut parts = ListHash::default();
            list.iter().for_each(|value| parts.push(value));
            assert_eq!(parts.finish(), hash(&list).unwrap(), "{list:?}");
        }
    }

    #[test]
    fn hash_is_sha256_of_the_canonical_text() {
        assert_eq!(
            hash(&json!({})).unwrap(),
            "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
        );
    }
}
