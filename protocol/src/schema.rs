//! JSON Schemas (draft 2020-12) of the method table, one document a method.

use serde_json::{Value, json};

use crate::method::{METHODS, MethodInfo};

/// File name of a method's schema: `_axp/claim` is in `_axp.claim.schema.json`.
pub fn file_name(method: &MethodInfo) -> String {
    format!("{}.schema.json", method.name.replace('/', "."))
}

/// The schema document of a method: `params` and `result`.
pub fn document(method: &MethodInfo) -> Value {
    let (params, result) = (method.schemas)();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": method.name,
        "description": method.about,
        "type": "object",
        "properties": { "params": embed(params), "result": embed(result) },
        "required": ["params", "result"],
    })
}

/// Every schema as file name and pretty text.
pub fn files() -> Vec<(String, String)> {
    METHODS.iter().map(|m| (file_name(m), format!("{:#}\n", document(m)))).collect()
}

/// A root schema as part of another document: its definitions stay inside it, reached by its own `$id`.
fn embed(schema: schemars::Schema) -> Value {
    let mut value = schema.to_value();
    if let Some(object) = value.as_object_mut() {
        object.remove("$schema");
        if object.contains_key("$defs") {
            let title = object.get("title").and_then(Value::as_str).unwrap_or("part").to_owned();
            object.insert("$id".into(), json!(format!("urn:axp:0.2.0:{title}")));
        }
    }
    value
}
