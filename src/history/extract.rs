//! Cuts the `result` out of a JSON-RPC answer while it passes by in pieces.

/// Where in the answer we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before or between members, and in values other than the result.
    Rest,
    /// In the value of `result`.
    Result,
}

/// Takes an answer apart: its result goes out, the rest is kept with `null` in the result's place. Whether the result
/// is sound JSON is for whoever reads it.
#[derive(Debug)]
pub(super) struct Extract {
    at: At,
    depth: u32,
    in_string: bool,
    escaped: bool,
    /// Whether a string at the top level would be a member's name.
    names: bool,
    /// The newest name, as far as it is of interest.
    name: Vec<u8>,
    rest: Vec<u8>,
}

/// Longer than any name of interest.
const NAME: usize = 16;

impl Extract {
    pub(super) fn new() -> Self {
        Self {
            at: At::Rest,
            depth: 0,
            in_string: false,
            escaped: false,
            names: false,
            name: vec![],
            rest: vec![],
        }
    }

    /// What stands around the result so far.
    pub(super) fn rest(&self) -> &[u8] {
        &self.rest
    }

    /// Takes the next piece; appends what it holds of the result to `out`.
    pub(super) fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        for &byte in piece {
            self.byte(byte, out);
        }
    }

    fn byte(&mut self, byte: u8, out: &mut Vec<u8>) {
        if self.in_string {
            if self.depth == 1 && self.names && self.name.len() < NAME && (byte != b'"' || self.escaped) {
                self.name.push(byte);
            }
            match (self.escaped, byte) {
                (true, _) => self.escaped = false,
                (false, b'\\') => self.escaped = true,
                (false, b'"') => self.in_string = false,
                _ => {}
            }
            return self.keep(byte, out);
        }
        // A result ends where its neighbour or the end of the answer begins.
        if self.at == At::Result && self.depth == 1 && matches!(byte, b',' | b'}') {
            self.at = At::Rest;
            self.rest.extend_from_slice(b"null");
        }
        match byte {
            b'"' => {
                self.in_string = true;
                if self.depth == 1 && self.names {
                    self.name.clear();
                }
            }
            b'{' | b'[' => {
                self.depth = self.depth.saturating_add(1);
                self.names |= self.depth == 1;
            }
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b',' if self.depth == 1 => self.names = true,
            b':' if self.depth == 1 && self.names => {
                self.names = false;
                self.keep(byte, out);
                if self.name == b"result" {
                    self.at = At::Result;
                }
                return;
            }
            _ => {}
        }
        self.keep(byte, out);
    }

    fn keep(&mut self, byte: u8, out: &mut Vec<u8>) {
        match self.at {
            At::Rest => self.rest.push(byte),
            At::Result => out.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn extract(text: &str, piece: usize) -> (String, String) {
        let (mut extract, mut out) = (Extract::new(), vec![]);
        for piece in text.as_bytes().chunks(piece.max(1)) {
            extract.push(piece, &mut out);
        }
        (String::from_utf8(out).unwrap(), String::from_utf8(extract.rest).unwrap())
    }

    #[test]
    fn the_result_is_cut_out_wherever_it_stands() {
        for (text, result, rest) in [
            (r#"{"id":2,"result":{"a":[1,"}]\","]}}"#, r#"{"a":[1,"}]\","]}"#, r#"{"id":2,"result":null}"#),
            (r#"{"result":7,"id":2}"#, "7", r#"{"result":null,"id":2}"#),
            (r#"{ "result" : "a,\"b}" , "id" : 2 }"#, r#" "a,\"b}" "#, r#"{ "result" :null, "id" : 2 }"#),
            (
                r#"{"error":{"result":1,"x":{"result":[2]}},"id":"result"}"#,
                "",
                r#"{"error":{"result":1,"x":{"result":[2]}},"id":"result"}"#,
            ),
            (r#"{"method":"result","params":{}}"#, "", r#"{"method":"result","params":{}}"#),
        ] {
            for piece in 1..text.len() {
                assert_eq!(extract(text, piece), (result.into(), rest.into()), "{text} by {piece}");
            }
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            "[\"\\\\{}\\[\\],:a é]{0,8}|result".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::hash_map("[\"\\\\{},:a]{0,4}|result|id", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_answer_comes_apart(result in value(), other in value(), first: bool, piece in 1usize..9) {
            let text = if first {
                format!(r#"{{"result":{result},"id":2,"other":{other}}}"#)
            } else {
                format!(r#"{{"other":{other},"id":2,"result":{result}}}"#)
            };
            let (out, rest) = extract(&text, piece);
            prop_assert_eq!(serde_json::from_str::<Value>(&out).unwrap(), result);
            let rest: Value = serde_json::from_str(&rest).unwrap();
            prop_assert_eq!(rest, json!({ "result": null, "id": 2, "other": other }));
        }
    }
}
