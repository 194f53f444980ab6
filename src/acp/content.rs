//! ACP content (text, media, resources, diffs) as blobs and AHP tool results.

use std::path::Path;

use ahp_types::actions::{ChatResponsePartAction, StateAction};
use ahp_types::state::{
    ContentRef, ResourceResponsePart, ResponsePart, ToolInput, ToolResultContent, ToolResultFileEditContent,
    ToolResultResourceContent, ToolResultTextContent,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::emission::{BlobLink, Emission, INLINE_LIMIT};
use super::text::clip;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const MOST_ITEMS: usize = 64;

/// Where a turn's content goes and which folder its paths are told relative to.
#[derive(Clone, Debug)]
pub(super) struct Store {
    pub(super) blob_base: String,
    pub(super) cwd: std::path::PathBuf,
}

impl Store {
    /// Any content block as a blob: media as its own bytes, everything else as the JSON the agent sent.
    pub(super) fn content_block(&self, block: &Value, out: &mut Emission) -> BlobLink {
        let (media_type, data) = raw_content(block).unwrap_or_else(|| (JSON.to_owned(), json_bytes(block)));
        out.blob(&self.blob_base, &media_type, data)
    }

    /// A response part that points at JSON which has no form of its own in AHP.
    pub(super) fn json_part(&self, turn_id: &str, value: &Value, out: &mut Emission) {
        let link = out.blob(&self.blob_base, JSON, json_bytes(value));
        out.actions.push(link_part(turn_id, link));
    }

    /// A response part that points at a content block.
    pub(super) fn content_part(&self, turn_id: &str, block: &Value, out: &mut Emission) {
        let link = self.content_block(block, out);
        out.actions.push(link_part(turn_id, link));
    }

    /// A tool's input: inline when short, else a blob.
    pub(super) fn tool_input(&self, input: &Value, out: &mut Emission) -> ToolInput {
        let text = match input {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        if text.len() <= INLINE_LIMIT {
            return ToolInput::Inline(text);
        }
        let media_type = if input.is_string() { TEXT } else { JSON };
        let link = out.blob(&self.blob_base, media_type, text.into_bytes());
        ToolInput::ContentRef(ContentRef {
            uri: link.uri,
            size_hint: Some(link.size),
            content_type: Some(link.media_type),
            nonce: None,
        })
    }

    /// A tool's content items, in order. One action has to fit into one frame, so the short texts of a long list
    /// become blobs too, and a list beyond all reason becomes a single one.
    pub(super) fn tool_content(&self, items: &[Value], out: &mut Emission) -> Vec<ToolResultContent> {
        if items.len() > MOST_ITEMS {
            let whole = items.iter().map(Value::to_string).collect::<Vec<_>>().join(",");
            return vec![resource(out.blob(&self.blob_base, JSON, format!("[{whole}]").into_bytes()))];
        }
        let mut inline = 4 * INLINE_LIMIT;
        items
            .iter()
            .map(|item| match text_of(&item["content"]) {
                Some(text) if item["type"] == "content" => {
                    let short = text.len() <= INLINE_LIMIT.min(inline);
                    inline -= if short { text.len() } else { 0 };
                    self.text_result(text, short, out)
                }
                _ => self.tool_item(item, out),
            })
            .collect()
    }

    fn tool_item(&self, item: &Value, out: &mut Emission) -> ToolResultContent {
        match item["type"].as_str() {
            Some("content") => resource(self.content_block(&item["content"], out)),
            Some("diff") => match self.file_edit(item, out) {
                Some(edit) => ToolResultContent::FileEdit(edit),
                None => resource(self.content_block(item, out)),
            },
            _ => resource(self.content_block(item, out)),
        }
    }

    /// A tool's raw output, for agents that send no content.
    pub(super) fn raw_output(&self, output: &Value, out: &mut Emission) -> ToolResultContent {
        match output {
            Value::String(text) => self.text_result(text, text.len() <= INLINE_LIMIT, out),
            other => {
                let text = other.to_string();
                if text.len() <= INLINE_LIMIT {
                    ToolResultContent::Text(ToolResultTextContent { text })
                } else {
                    resource(out.blob(&self.blob_base, JSON, text.into_bytes()))
                }
            }
        }
    }

    fn text_result(&self, text: &str, inline: bool, out: &mut Emission) -> ToolResultContent {
        if inline {
            return ToolResultContent::Text(ToolResultTextContent { text: text.to_owned() });
        }
        resource(out.blob(&self.blob_base, TEXT, text.as_bytes().to_vec()))
    }

    /// The edits among a tool's content items, as AHP previews them before a confirmation.
    pub(super) fn previews(&self, items: &[Value], out: &mut Emission) -> Option<Value> {
        let edits: Vec<Value> = items
            .iter()
            .filter(|item| item["type"] == "diff")
            .take(MOST_ITEMS)
            .filter_map(|item| self.file_edit(item, out))
            .filter_map(|edit| serde_json::to_value(edit).ok())
            .collect();
        (!edits.is_empty()).then(|| json!({ "items": edits }))
    }

    fn file_edit(&self, item: &Value, out: &mut Emission) -> Option<ToolResultFileEditContent> {
        let path = item["path"].as_str()?;
        let new = item["newText"].as_str()?;
        let old = item["oldText"].as_str();
        let (added, removed) = changed_lines(old.unwrap_or_default(), new);
        let mut side = |text: &str| file_state(&out.blob(&self.blob_base, TEXT, text.as_bytes().to_vec()));
        Some(ToolResultFileEditContent {
            before: old.map(&mut side),
            after: Some(side(new)),
            diff: Some(json!({ "path": self.told_path(path), "added": added, "removed": removed })),
        })
    }

    /// A path inside the working folder is told relative to it, any other one by its name only: where things lie on
    /// the contributor's machine is nobody's business.
    fn told_path(&self, path: &str) -> String {
        let path = Path::new(path);
        let told = match path.strip_prefix(&self.cwd) {
            Ok(inside) => inside,
            Err(_) if path.is_relative() => path,
            Err(_) => path.file_name().map_or(path, Path::new),
        };
        clip(&told.to_string_lossy(), 512)
    }
}

/// The text of a text content block.
pub(super) fn text_of(block: &Value) -> Option<&str> {
    if block["type"] != "text" {
        return None;
    }
    block["text"].as_str()
}

/// The bytes behind an image, a sound or an embedded resource.
fn raw_content(block: &Value) -> Option<(String, Vec<u8>)> {
    match block["type"].as_str()? {
        "image" | "audio" => {
            let data = STANDARD.decode(block["data"].as_str()?).ok()?;
            Some((block["mimeType"].as_str()?.to_owned(), data))
        }
        "resource" => {
            let resource = &block["resource"];
            let media_type = resource["mimeType"].as_str();
            if let Some(text) = resource["text"].as_str() {
                return Some((media_type.unwrap_or(TEXT).to_owned(), text.as_bytes().to_vec()));
            }
            let data = STANDARD.decode(resource["blob"].as_str()?).ok()?;
            Some((media_type.unwrap_or_default().to_owned(), data))
        }
        _ => None,
    }
}

fn json_bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn resource(link: BlobLink) -> ToolResultContent {
    ToolResultContent::Resource(ToolResultResourceContent {
        uri: link.uri,
        size_hint: Some(link.size),
        content_type: Some(link.media_type),
        nonce: None,
    })
}

fn link_part(turn_id: &str, link: BlobLink) -> StateAction {
    StateAction::ChatResponsePart(ChatResponsePartAction {
        turn_id: turn_id.to_owned(),
        part: ResponsePart::ContentRef(ResourceResponsePart {
            uri: link.uri,
            size_hint: Some(link.size),
            content_type: Some(link.media_type),
            nonce: None,
        }),
        meta: None,
    })
}

/// Both the file and its content are addressed by the blob: a host takes no address that is not a blob of the session.
fn file_state(link: &BlobLink) -> Value {
    json!({
        "uri": link.uri,
        "content": { "uri": link.uri, "sizeHint": link.size, "contentType": link.media_type },
    })
}

/// Lines added and removed, counted between the common start and the common end of both texts.
fn changed_lines(old: &str, new: &str) -> (usize, usize) {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let start = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[start..], &new[start..]);
    let end = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
    (new.len() - end, old.len() - end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> Store {
        Store { blob_base: "axp-blob:/s/".into(), cwd: "/home/me/work".into() }
    }

    #[test]
    fn media_and_resources_become_their_own_bytes() {
        for (block, media_type, data) in [
            (json!({"type": "image", "mimeType": "image/png", "data": "AQID"}), "image/png", vec![1, 2, 3]),
            (json!({"type": "audio", "mimeType": "audio/wav", "data": "AQID"}), "audio/wav", vec![1, 2, 3]),
            (
                json!({"type": "resource", "resource": {"uri": "file:///x", "text": "hi"}}),
                TEXT,
                b"hi".to_vec(),
            ),
            (
                json!({"type": "resource", "resource": {"uri": "file:///x", "blob": "AQID"}}),
                "application/octet-stream",
                vec![1, 2, 3],
            ),
        ] {
            let mut out = Emission::default();
            store().content_block(&block, &mut out);
            assert_eq!(
                (out.blobs[0].media_type.as_str(), &out.blobs[0].data),
                (media_type, &data),
                "{block}"
            );
        }
    }

    #[test]
    fn anything_else_becomes_json() {
        for block in [
            json!({"type": "resource_link", "name": "x", "uri": "file:///secret"}),
            json!({"type": "image", "mimeType": "image/png", "data": "not base64!"}),
            json!({"type": "hologram"}),
            json!(7),
        ] {
            let mut out = Emission::default();
            let item = store().tool_item(&json!({"type": "content", "content": block}), &mut out);
            assert!(matches!(item, ToolResultContent::Resource(_)), "{block}");
            assert_eq!(out.blobs[0].media_type, JSON);
            assert_eq!(serde_json::from_slice::<Value>(&out.blobs[0].data).unwrap(), block);
        }
    }

    #[test]
    fn long_text_becomes_a_blob() {
        let mut out = Emission::default();
        for (length, inline) in [(4096, true), (4097, false)] {
            let item = json!({"type": "content", "content": {"type": "text", "text": "a".repeat(length)}});
            let result = store().tool_content(&[item], &mut out);
            assert_eq!(matches!(result[0], ToolResultContent::Text(_)), inline);
        }
        assert_eq!(out.blobs.len(), 1);
    }

    #[test]
    fn a_long_list_stays_within_one_frame() {
        let item =
            |n: usize| json!({"type": "content", "content": {"type": "text", "text": format!("{n:04000}")}});
        let mut out = Emission::default();
        let results = store().tool_content(&(0..60).map(item).collect::<Vec<_>>(), &mut out);
        let texts = results.iter().filter(|result| matches!(result, ToolResultContent::Text(_))).count();
        assert_eq!((results.len(), texts, out.blobs.len()), (60, 4, 56));
        assert_eq!(store().tool_content(&(0..65).map(item).collect::<Vec<_>>(), &mut out).len(), 1);
    }

    #[test]
    fn a_diff_becomes_a_file_edit_of_two_blobs() {
        let mut out = Emission::default();
        let item = json!({"type": "diff", "path": "/home/me/work/src/a.rs", "oldText": "a\nb\nc", "newText": "a\nx\ny\nc"});
        let ToolResultContent::FileEdit(edit) = store().tool_item(&item, &mut out) else {
            panic!("no file edit");
        };
        assert_eq!(edit.diff.unwrap(), json!({"path": "src/a.rs", "added": 2, "removed": 1}));
        let (before, after) = (edit.before.unwrap(), edit.after.unwrap());
        assert_eq!(before["uri"], out.blobs[0].uri.as_str());
        assert_eq!(after["content"]["uri"], out.blobs[1].uri.as_str());

        let created = json!({"type": "diff", "path": "/elsewhere/b", "newText": ""});
        let ToolResultContent::FileEdit(edit) = store().tool_item(&created, &mut out) else {
            panic!("no file edit");
        };
        assert_eq!(edit.before, None);
        assert_eq!(edit.diff.unwrap()["path"], "b");
    }
}
