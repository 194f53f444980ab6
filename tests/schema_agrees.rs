//! Schema and parser say the same of every parameter: at each limit, one past it, and for what does not belong there.
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use axp_protocol::method::Call;
use axp_protocol::schema::files;
use jsonschema::Validator;
use serde_json::{Map, Value, json};

/// Longer texts than this are tried at their limit, but not inside every list.
const LONG: usize = 100_000;

/// The schema of a method's parameters.
struct Params {
    method: String,
    schema: Value,
    validator: Validator,
}

fn all() -> Vec<Params> {
    let read = |(name, text): (String, String)| {
        let file: Value = serde_json::from_str(&text).expect("JSON");
        let schema = file["properties"]["params"].clone();
        let validator = jsonschema::draft202012::new(&schema).unwrap_or_else(|e| panic!("{name}: {e}"));
        Params { method: file["title"].as_str().expect("a title").to_owned(), schema, validator }
    };
    files().into_iter().map(read).collect()
}

impl Params {
    /// Both agree; whether they take it.
    fn agree(&self, params: &Value, what: &str) -> bool {
        let text = params.to_string();
        let parsed = Call::parse(&self.method, &text).expect("a method");
        let valid = self.validator.is_valid(params);
        let shown: String = text.chars().take(300).collect();
        assert_eq!(
            parsed.is_ok(),
            valid,
            "{} {what}: the parser says {parsed:.300?} of {shown}",
            self.method
        );
        valid
    }

    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        if let Some(name) = schema["$ref"].as_str().and_then(|r| r.strip_prefix("#/$defs/")) {
            return &self.schema["$defs"][name];
        }
        match schema["anyOf"].as_array() {
            Some(of) => self.resolve(of.iter().find(|s| s["type"] != "null").expect("not only null")),
            None => schema,
        }
    }

    /// Something that is valid.
    fn sample(&self, schema: &Value) -> Value {
        let schema = self.resolve(schema);
        if let Some(one) = schema["oneOf"].as_array().and_then(|of| of.first()) {
            return one["const"].clone();
        }
        if let Some(constant) = schema.get("const") {
            return constant.clone();
        }
        match kind(schema) {
            "string" => match schema["pattern"].as_str() {
                Some(pattern) => json!(matching(pattern)),
                None => json!("x".repeat(size(schema, "minLength").unwrap_or(0))),
            },
            "integer" => schema.get("minimum").cloned().unwrap_or(json!(0)),
            "array" => {
                let one = self.sample(&schema["items"]);
                Value::Array(vec![one; size(schema, "minItems").unwrap_or(0)])
            }
            "object" if is_ahp(schema) => ahp(schema),
            "object" => {
                let members = schema["properties"].as_object().into_iter().flatten();
                members.map(|(name, schema)| (name.clone(), self.sample(schema))).collect()
            }
            other => panic!("{}: no sample of {other}: {schema}", self.method),
        }
    }

    /// Tries everything at and past the limits of one place; `put` makes the parameters with a value there.
    fn probe(&self, schema: &Value, at: &str, put: &dyn Fn(Value) -> Value) -> usize {
        let mut tried = 0;
        let mut check = |value: Value| {
            self.agree(&put(value), at);
            tried += 1;
        };
        for odd in
            [json!(null), json!(true), json!("?"), json!(""), json!(1.5), json!(-1), json!([]), json!({})]
        {
            check(odd);
        }
        let schema = self.resolve(schema);
        match kind(schema) {
            "string" => {
                let (least, most) = (size(schema, "minLength"), size(schema, "maxLength"));
                for length in [least.map(|n| n.saturating_sub(1)), least, most, most.map(|n| n + 1)] {
                    let Some(length) = length else { continue };
                    check(json!("x".repeat(length)));
                    // Characters are counted, not bytes and not UTF-16 units.
                    if length < LONG {
                        check(json!("\u{1f600}".repeat(length)));
                    }
                }
                if let Some(pattern) = schema["pattern"].as_str() {
                    let good = matching(pattern);
                    for text in [
                        good.to_uppercase(),
                        format!("{good}0"),
                        format!("{good}\n"),
                        format!(" {good}"),
                        good.chars().skip(1).collect(),
                        good.repeat(2),
                        "a".repeat(128),
                        "a".repeat(129),
                        "0".repeat(64),
                        "é".into(),
                        "-a".into(),
                        "a-._Z".into(),
                    ] {
                        check(json!(text));
                    }
                }
            }
            "integer" => {
                for name in ["minimum", "maximum"] {
                    let Some(limit) = schema[name].as_i64() else { continue };
                    [limit - 1, limit, limit + 1].into_iter().for_each(|n| check(json!(n)));
                }
                check(json!("1"));
            }
            "array" => {
                let (least, most) = (size(schema, "minItems").unwrap_or(0), size(schema, "maxItems"));
                let one = self.sample(&schema["items"]);
                for length in
                    [least.saturating_sub(1), least, most.unwrap_or(least), most.unwrap_or(least) + 1]
                {
                    check(Value::Array(vec![one.clone(); length]));
                }
                tried += self.probe(&schema["items"], &format!("{at}[]"), &|item| {
                    put(Value::Array([vec![item], vec![one.clone(); least.saturating_sub(1)]].concat()))
                });
            }
            "object" if !is_ahp(schema) => tried += self.probe_object(schema, at, put),
            _ => {}
        }
        tried
    }

    fn probe_object(&self, schema: &Value, at: &str, put: &dyn Fn(Value) -> Value) -> usize {
        let whole = self.sample(schema);
        let whole = whole.as_object().expect("an object");
        let with = |change: &dyn Fn(&mut Map<String, Value>)| {
            let mut object = whole.clone();
            change(&mut object);
            put(Value::Object(object))
        };
        assert!(self.agree(&with(&|_| ()), at), "{}: {at}: the sample must be valid", self.method);
        let extra = with(&|object| {
            object.insert("notThere".into(), json!(1));
        });
        assert!(!self.agree(&extra, at), "{}: {at}: strict", self.method);
        let mut tried = 2;
        for (name, member) in schema["properties"].as_object().into_iter().flatten() {
            self.agree(
                &with(&|object| {
                    object.remove(name);
                }),
                &format!("{at}.{name} missing"),
            );
            tried += 1 + self.probe(member, &format!("{at}.{name}"), &|value| {
                let mut object = whole.clone();
                object.insert(name.clone(), value);
                put(Value::Object(object))
            });
        }
        tried
    }
}

fn kind(schema: &Value) -> &str {
    match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).find(|k| *k != "null").unwrap_or(""),
        kind => kind.as_str().unwrap_or(""),
    }
}

fn size(schema: &Value, name: &str) -> Option<usize> {
    schema[name].as_u64().map(|n| usize::try_from(n).expect("a size"))
}

/// A type of AHP, whose own schema it is not ours to repeat.
fn is_ahp(schema: &Value) -> bool {
    schema["description"].as_str().is_some_and(|text| text.ends_with("of AHP 0.9.0."))
}

fn ahp(schema: &Value) -> Value {
    if schema["properties"].get("edit").is_some() {
        return json!({"id": "a.txt", "edit": {"after": {"uri": "file:///a.txt", "content": {"uri": "b"}}}});
    }
    json!({"type": "chat/delta", "turnId": "t", "partId": "p", "content": "x"})
}

fn matching(pattern: &str) -> String {
    let length = if pattern.contains("{40}") {
        40
    } else if pattern.contains("{64}") {
        64
    } else {
        3
    };
    "a".repeat(length)
}

#[test]
fn schema_and_parser_agree_at_and_past_every_limit() {
    let all = all();
    assert_eq!(all.len(), 25);
    let tried: usize = all.iter().map(|params| params.probe(&params.schema, "params", &|value| value)).sum();
    assert!(tried > 2500, "{tried} values were tried");
}
