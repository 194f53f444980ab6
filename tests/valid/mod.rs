//! Whether parameters are what the published schemas say.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::Value;

static SCHEMAS: LazyLock<BTreeMap<String, Validator>> = LazyLock::new(|| {
    let read = |(name, text): (String, String)| {
        let file: Value = serde_json::from_str(&text).unwrap_or_default();
        let method = file["title"].as_str().unwrap_or_default().to_owned();
        match jsonschema::draft202012::new(&file["properties"]["params"]) {
            Ok(validator) => (method, validator),
            Err(error) => panic!("{name}: {error}"),
        }
    };
    axp_protocol::schema::files().into_iter().map(read).collect()
});

/// What is wrong with the parameters of an AXP method; nothing for any other.
pub(crate) fn wrong(method: &str, params: &Value) -> Option<String> {
    let error = SCHEMAS.get(method)?.iter_errors(params).next()?;
    Some(format!("{method}: {error} at {}", error.instance_path()))
}
