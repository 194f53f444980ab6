//! Scalars that carry their own limits: what parses is valid, and the JSON Schema of a field is the schema of its
//! type, so that parser and schema cannot disagree.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use crate::limits::MAX_SAFE_INTEGER;

/// Declares a string newtype whose content passes `check`, with the pattern that says the same in a schema.
macro_rules! pattern_string {
    ($(#[$doc:meta])* $name:ident, $what:literal, $pattern:expr, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Checks and wraps; the error is a sentence that names the rule.
            pub fn new(value: impl Into<String>) -> Result<Self, String> {
                let value = value.into();
                let check: fn(&str) -> bool = $check;
                if check(&value) { Ok(Self(value)) } else { Err(format!(concat!("not ", $what, ": must match {}"), $pattern)) }
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The text, owned.
            pub fn into_string(self) -> String {
                self.0
            }
        }

        impl Deref for $name {
            type Target = str;
            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;
            fn from_str(value: &str) -> Result<Self, String> {
                Self::new(value)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::new(String::deserialize(deserializer)?).map_err(D::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "pattern": $pattern })
            }
        }
    };
}

fn is_id(text: &str) -> bool {
    text.len() <= crate::limits::ID_CHARS
        && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

pattern_string!(
    /// An identifier chosen by a client: session, operation, executor, grant, turn (section 4).
    Id, "an identifier", r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$", is_id
);
pattern_string!(
    /// A Git object ID, SHA-1 or SHA-256, lower-case hex.
    Sha, "a commit ID", r"^([0-9a-f]{40}|[0-9a-f]{64})$",
    |text| matches!(text.len(), 40 | 64) && is_lower_hex(text)
);
pattern_string!(
    /// A SHA-256 digest, lower-case hex.
    Digest, "a digest", r"^[0-9a-f]{64}$", |text| text.len() == 64 && is_lower_hex(text)
);

/// A string of `MIN` to `MAX` Unicode characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Text<const MIN: usize, const MAX: usize>(String);

impl<const MIN: usize, const MAX: usize> Text<MIN, MAX> {
    /// Checks the length and wraps; the error is a sentence that names the limit.
    pub fn new(value: impl Into<String>) -> Result<Self, String> {
        let value = value.into();
        // A string has at most as many characters as bytes: most texts need no counting.
        if MIN == 0 && value.len() <= MAX {
            return Ok(Self(value));
        }
        let chars = value.chars().count();
        if (MIN..=MAX).contains(&chars) {
            Ok(Self(value))
        } else {
            Err(format!("a text of {chars} characters where {MIN} to {MAX} are allowed"))
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text, owned.
    pub fn into_string(self) -> String {
        self.0
    }
}

impl<const MIN: usize, const MAX: usize> Deref for Text<MIN, MAX> {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl<const MIN: usize, const MAX: usize> fmt::Display for Text<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de, const MIN: usize, const MAX: usize> Deserialize<'de> for Text<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl<const MIN: usize, const MAX: usize> JsonSchema for Text<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        format!("Text{MIN}To{MAX}").into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        if MIN == 0 {
            json_schema!({ "type": "string", "maxLength": MAX })
        } else {
            json_schema!({ "type": "string", "minLength": MIN, "maxLength": MAX })
        }
    }
}

/// An integer from `MIN` to `MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Int<const MIN: u64, const MAX: u64>(u64);

/// Any integer of the protocol: 0 to 2^53 − 1 (section 6).
pub type Uint = Int<0, MAX_SAFE_INTEGER>;

impl<const MIN: u64, const MAX: u64> Int<MIN, MAX> {
    /// Checks the range and wraps; the error is a sentence that names the limit.
    pub fn new(value: u64) -> Result<Self, String> {
        if (MIN..=MAX).contains(&value) {
            Ok(Self(value))
        } else {
            Err(format!("{value} where {MIN} to {MAX} is allowed"))
        }
    }

    /// The nearest allowed value.
    pub fn clamped(value: u64) -> Self {
        Self(value.clamp(MIN, MAX))
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Int<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<const MIN: u64, const MAX: u64>;
        impl<const MIN: u64, const MAX: u64> serde::de::Visitor<'_> for Visitor<MIN, MAX> {
            type Value = Int<MIN, MAX>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an integer from {MIN} to {MAX}")
            }
            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Self::Value, E> {
                Int::new(value).map_err(E::custom)
            }
            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Self::Value, E> {
                u64::try_from(value)
                    .map_err(|_| E::custom(format!("{value} where {MIN} to {MAX} is allowed")))
                    .and_then(|value| self.visit_u64(value))
            }
            // `1.0` and `1` are the same JSON number.
            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Self::Value, E> {
                if value.fract() == 0.0 && (0.0..=MAX_SAFE_INTEGER as f64).contains(&value) {
                    self.visit_u64(value as u64)
                } else {
                    Err(E::custom(format!("{value} where an integer from {MIN} to {MAX} is expected")))
                }
            }
        }
        deserializer.deserialize_any(Visitor::<MIN, MAX>)
    }
}

impl<const MIN: u64, const MAX: u64> JsonSchema for Int<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        format!("Int{MIN}To{MAX}").into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": MIN, "maximum": MAX })
    }
}

/// A list of `MIN` to `MAX` items.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct List<T, const MIN: usize, const MAX: usize>(Vec<T>);

impl<T, const MIN: usize, const MAX: usize> List<T, MIN, MAX> {
    /// Checks the count and wraps; the error is a sentence that names the limit.
    pub fn new(items: Vec<T>) -> Result<Self, String> {
        if (MIN..=MAX).contains(&items.len()) {
            Ok(Self(items))
        } else {
            Err(format!("a list of {} where {MIN} to {MAX} are allowed", items.len()))
        }
    }

    /// The items, owned.
    pub fn into_vec(self) -> Vec<T> {
        self.0
    }
}

impl<T, const MIN: usize, const MAX: usize> Deref for List<T, MIN, MAX> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<'de, T: Deserialize<'de>, const MIN: usize, const MAX: usize> Deserialize<'de> for List<T, MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Vec::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl<T: JsonSchema, const MIN: usize, const MAX: usize> JsonSchema for List<T, MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        format!("{}List{MIN}To{MAX}", T::schema_name()).into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let items = generator.subschema_for::<T>();
        if MIN == 0 {
            json_schema!({ "type": "array", "items": items, "maxItems": MAX })
        } else {
            json_schema!({ "type": "array", "items": items, "minItems": MIN, "maxItems": MAX })
        }
    }
}

/// `deserialize_with` for plain `u64` fields: the same strictness as [`Uint`], without the wrapper in arithmetic.
pub(crate) fn uint<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Uint::deserialize(deserializer).map(Uint::get)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn identifiers_follow_the_pattern() {
        for good in ["a", "A9", "parser-fix", "a.b_c-d", &"x".repeat(128)] {
            assert!(Id::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", ".a", "a/b", "a b", "é", &"x".repeat(129), "a\n"] {
            assert!(Id::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn integers_are_exact() {
        assert_eq!(serde_json::from_str::<Uint>("9007199254740991").unwrap().get(), MAX_SAFE_INTEGER);
        assert_eq!(serde_json::from_str::<Uint>("2.0").unwrap().get(), 2);
        for bad in ["9007199254740992", "-1", "1.5", "\"1\"", "1e300", "null", "true"] {
            assert!(serde_json::from_str::<Uint>(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn text_counts_characters(text in "\\PC{0,12}") {
            let chars = text.chars().count();
            prop_assert_eq!(Text::<2, 8>::new(text.clone()).is_ok(), (2..=8).contains(&chars));
            prop_assert_eq!(Text::<0, 5>::new(text).is_ok(), chars <= 5);
        }

        #[test]
        fn lists_are_counted(n in 0usize..8) {
            prop_assert_eq!(List::<u8, 1, 5>::new(vec![0; n]).is_ok(), (1..=5).contains(&n));
        }
    }
}
