//! Text from an agent, made fit for a transcript or a terminal.

/// Removes terminal control sequences, other control characters and direction overrides.
///
/// Line feeds and tabs stay. Agents and the shells they run write colours, cursor moves and window titles; none of
/// them may reach a maintainer's terminal through an error message or a tool's name.
pub(crate) fn strip_controls(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' => skip_escape(&mut rest),
            '\u{9b}' => skip_csi(&mut rest),
            '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}' => skip_string(&mut rest),
            '\n' | '\t' => clean.push(c),
            c if c.is_control() || is_direction_override(c) => {}
            c => clean.push(c),
        }
    }
    clean
}

/// One line without control sequences, of at most `max` characters; a cut is marked with an ellipsis.
pub(crate) fn label(text: &str, max: usize) -> String {
    let clean = strip_controls(text);
    let line = clean.split_whitespace().collect::<Vec<_>>().join(" ");
    clip(&line, max)
}

/// The first `max` characters; a cut is marked with an ellipsis.
pub(crate) fn clip(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(max.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// Splits text into pieces of at most `max` characters, never inside a character.
pub(crate) fn pieces(text: &str, max: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest.char_indices().nth(max).map_or(rest.len(), |(at, _)| at);
        let (piece, tail) = rest.split_at(end);
        rest = tail;
        Some(piece)
    })
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn skip_escape(rest: &mut Chars<'_>) {
    match rest.peek() {
        Some('[') => {
            rest.next();
            skip_csi(rest);
        }
        Some(']' | 'P' | 'X' | '^' | '_') => {
            rest.next();
            skip_string(rest);
        }
        Some(' '..='/') => {
            while rest.next_if(|c| (' '..='/').contains(c)).is_some() {}
            rest.next_if(|c| ('0'..='~').contains(c));
        }
        Some('0'..='~') => {
            rest.next();
        }
        _ => {}
    }
}

fn skip_csi(rest: &mut Chars<'_>) {
    while rest.next_if(|c| (' '..='?').contains(c)).is_some() {}
    rest.next_if(|c| ('@'..='~').contains(c));
}

/// An operating-system command or another string sequence ends with BEL, with ST, or with its line.
fn skip_string(rest: &mut Chars<'_>) {
    while let Some(c) = rest.next_if(|c| *c != '\n') {
        match c {
            '\u{7}' | '\u{9c}' => return,
            '\u{1b}' => {
                rest.next_if_eq(&'\\');
                return;
            }
            _ => {}
        }
    }
}

fn is_direction_override(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_sequences_are_removed() {
        for (raw, clean) in [
            ("plain", "plain"),
            ("\u{1b}[31mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}after", "after"),
            ("\u{1b}]8;;http://x\u{1b}\\link", "link"),
            ("\u{1b}(Bascii", "ascii"),
            ("a\rb\u{8}c", "abc"),
            ("tab\tand\nline", "tab\tand\nline"),
            ("\u{9b}2Jgone", "gone"),
            ("a\u{202e}b", "ab"),
            ("ends\u{1b}", "ends"),
            ("unfinished \u{1b}]0;x\nnext", "unfinished \nnext"),
        ] {
            assert_eq!(strip_controls(raw), clean, "{raw:?}");
        }
    }

    #[test]
    fn labels_are_one_short_line() {
        assert_eq!(label("  Edit\n\tfile  ", 20), "Edit file");
        assert_eq!(label("abcdef", 4), "abc…");
        assert_eq!(label("äöü", 3), "äöü");
    }

    proptest! {
        #[test]
        fn pieces_join_to_the_whole(text in "\\PC{0,40}", max in 1usize..7) {
            let parts: Vec<&str> = pieces(&text, max).collect();
            prop_assert_eq!(parts.concat(), text.as_str());
            prop_assert!(parts.iter().all(|part| !part.is_empty() && part.chars().count() <= max));
        }

        #[test]
        fn nothing_controlling_is_left(text in any::<String>()) {
            let clean = strip_controls(&text);
            prop_assert!(clean.chars().all(|c| c == '\n' || c == '\t' || !c.is_control()));
        }
    }
}
