//! Keeps text of hosts and agents from driving the terminal it is shown on.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Longest control string (title, hyperlink, …) that is taken for one, characters.
const CONTROL_STRING: u16 = 2048;

/// Whether a character acts on a terminal or on the order of the text beside it.
fn acts(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// After ESC.
    Escape,
    /// After CSI.
    Csi,
    /// In an OSC, DCS, SOS, PM or APC string, with as many characters left to it.
    Control(u16),
}

/// Removes control sequences from text that arrives in pieces; a sequence may be cut anywhere.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stripper(State);

impl Stripper {
    /// Appends what may be shown of `text`.
    pub(crate) fn push(&mut self, text: &str, out: &mut String) {
        for c in text.chars() {
            self.0 = match (self.0, c) {
                (State::Escape, '[') => State::Csi,
                (State::Escape, ']' | 'P' | 'X' | '^' | '_') => State::Control(CONTROL_STRING),
                (State::Escape, ' '..='/') => State::Escape,
                (State::Escape, '0'..='~') => State::Text,
                (State::Csi, ' '..='?') => State::Csi,
                (State::Csi, '@'..='~') => State::Text,
                (State::Control(_), '\u{7}' | '\u{9c}') => State::Text,
                // A line's end ends everything: an unfinished string must not swallow what follows.
                (State::Control(left), c) if left > 0 && !matches!(c, '\n' | '\u{1b}') => {
                    State::Control(left - 1)
                }
                (_, c) => text_character(c, out),
            };
        }
    }
}

fn text_character(c: char, out: &mut String) -> State {
    match c {
        '\u{1b}' => return State::Escape,
        '\u{9b}' => return State::Csi,
        '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}' => return State::Control(CONTROL_STRING),
        '\n' | '\t' => out.push(c),
        c if acts(c) => {}
        c => out.push(c),
    }
    State::Text
}

/// Text without control sequences; line breaks and tabs stay.
pub(crate) fn strip(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| acts(c) && !matches!(c, '\n' | '\t')) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    Stripper::default().push(text, &mut out);
    Cow::Owned(out)
}

/// Text with control characters spelled out: for what a person decides on, where nothing may be hidden.
pub(crate) fn reveal(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| acts(c) && !matches!(c, '\n' | '\t')) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if acts(c) && !matches!(c, '\n' | '\t') {
            // Writing to a String cannot fail.
            let _ = write!(out, "{}", c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Text as one line of at most `max` characters.
pub(crate) fn one_line(text: &str, max: usize) -> String {
    shorten(&strip(text), max)
}

/// [`reveal`]ed text as one line of at most `max` characters.
pub(crate) fn reveal_line(text: &str, max: usize) -> String {
    shorten(&reveal(text), max)
}

fn shorten(text: &str, max: usize) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.chars().count() <= max {
        return words;
    }
    words.chars().take(max.saturating_sub(1)).chain(['…']).collect()
}

/// JSON with every acting character escaped, so that it means the same and does nothing.
pub(crate) fn escape_json(json: &str) -> Cow<'_, str> {
    // The serialiser escapes C0 itself; what is left can only stand inside strings.
    if !json.chars().any(acts) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if acts(c) {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_sequences_go_and_text_stays() {
        for (text, shown) in [
            ("plain é 漢字\n\tok", "plain é 漢字\n\tok"),
            ("\u{1b}[31mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}after", "after"),
            ("\u{1b}]8;;http://x\u{1b}\\link\u{1b}]8;;\u{1b}\\", "link"),
            ("\u{9b}2Jcleared", "cleared"),
            ("\u{1b}Pq#0\u{9c}sixel", "sixel"),
            ("\u{1b}(Bset", "set"),
            ("a\rb\u{8}c\u{7f}d\u{0}", "abcd"),
            ("\u{202e}evil\u{2066}", "evil"),
            ("windows\r\nline", "windows\nline"),
            ("\u{1b}]unfinished\nnext line", "\nnext line"),
            ("\u{1b}", ""),
            ("\u{1b}[1;\u{1b}[2mtwice", "twice"),
        ] {
            assert_eq!(strip(text), shown, "{text:?}");
        }
    }

    #[test]
    fn nothing_is_hidden_from_a_decision() {
        assert_eq!(reveal("echo \u{1b}]0; rm -rf ~ \u{7}"), "echo \\u{1b}]0; rm -rf ~ \\u{7}");
        assert_eq!(reveal_line("a\n  b\u{202e}", 80), "a b\\u{202e}");
    }

    #[test]
    fn lines_are_kept_short() {
        assert_eq!(one_line("a  b\n c", 80), "a b c");
        assert_eq!(one_line("abcdef", 4), "abc…");
    }

    #[test]
    fn json_keeps_its_meaning() {
        let value = serde_json::json!({ "k\u{9b}": "a\u{7f}\u{202e}b" });
        let escaped = escape_json(&value.to_string()).into_owned();
        assert!(!escaped.chars().any(acts), "{escaped:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }

    /// Text in which sequences are likely.
    fn hostile() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            any::<char>().prop_map(String::from),
            "[\u{1b}\u{9b}\u{9d}\u{90}\u{9c}\u{7}\r\n\t]",
            "[a-z;0-9\\[\\]\\\\PX^_ ]{0,4}",
            "[\u{202a}-\u{202e}\u{2066}-\u{2069}]",
        ];
        proptest::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn nothing_that_acts_is_left(text in hostile()) {
            for shown in [strip(&text), reveal(&text)] {
                prop_assert!(!shown.chars().any(|c| acts(c) && !matches!(c, '\n' | '\t')), "{shown:?}");
                prop_assert_eq!(strip(&shown), shown.clone());
            }
            prop_assert_eq!(strip(&text).matches('\n').count(), text.matches('\n').count());
        }

        #[test]
        fn pieces_make_the_same_as_the_whole(text in hostile(), cut in 0usize..64) {
            let cut = text.char_indices().map(|(i, _)| i).nth(cut).unwrap_or(text.len());
            let (mut stripper, mut out) = (Stripper::default(), String::new());
            stripper.push(&text[..cut], &mut out);
            stripper.push(&text[cut..], &mut out);
            let (mut whole, mut expected) = (Stripper::default(), String::new());
            whole.push(&text, &mut expected);
            prop_assert_eq!(out, expected);
        }
    }
}
