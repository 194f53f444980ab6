//! A history in a file: its states are read whole, its actions one after the other, however many there are.

use std::fs::File;
use std::io::{BufReader, Read, Seek as _, SeekFrom};

use axp_protocol::action::Envelope;
use axp_protocol::channel::Channel;
use axp_protocol::method::ChannelSnapshot;
use axp_protocol::scalar::Id;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// Why a history cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// It cannot be read from the disk.
    #[error("it cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// It is something else, or cut short.
    #[error("it is no exported history: {0}")]
    Format(String),
    /// An action or a state cannot be read, or the order is broken.
    #[error("{0}")]
    Unreadable(String),
    /// It does not hold exactly one session.
    #[error("it holds no session, or more than one")]
    Session,
    /// It was made by another version.
    #[error("it was written by AXP {0}, this program reads {expected}", expected = axp_protocol::AXP_VERSION)]
    Version(String),
}

/// Everything but the actions.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    /// AXP version.
    pub version: String,
    /// Repository name.
    pub repository: String,
    /// Newest sequence number of the host when it was made.
    pub server_seq: u64,
    /// First state of each channel.
    pub seeds: Vec<ChannelSnapshot>,
    /// Newest state of each channel.
    pub snapshots: Vec<ChannelSnapshot>,
    /// How many actions there are.
    #[serde(rename = "actions", deserialize_with = "count")]
    pub count: u64,
}

/// An exported history in a file.
#[derive(Debug)]
pub struct Archive {
    file: File,
    head: Head,
    session: Id,
}

impl Archive {
    /// Reads everything but the actions, and checks that the JSON is whole.
    ///
    /// # Errors
    /// When it cannot be read, is no history of this version, or not one of one session.
    pub fn open(mut file: File) -> Result<Self, HistoryError> {
        file.seek(SeekFrom::Start(0))?;
        let head: Head = parse(&file, |json| Head::deserialize(json))?;
        if head.version != axp_protocol::AXP_VERSION {
            return Err(HistoryError::Version(head.version));
        }
        let session = session_of(&head)?;
        Ok(Self { file, head, session })
    }

    /// Everything but the actions.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The session it is of.
    pub fn session(&self) -> &Id {
        &self.session
    }

    /// The file itself.
    pub fn into_file(self) -> File {
        self.file
    }

    /// Gives each action as it was recorded, in order, until one of the calls fails.
    ///
    /// # Errors
    /// When the file cannot be read any more, or what a call returned.
    pub fn actions<E: From<HistoryError>>(
        &mut self,
        mut each: impl FnMut(Value) -> Result<(), E>,
    ) -> Result<(), E> {
        self.file.seek(SeekFrom::Start(0)).map_err(HistoryError::Io)?;
        let mut stopped = None;
        let read = parse(&self.file, |json| {
            let mut each = |action| match each(action) {
                Ok(()) => true,
                Err(error) => {
                    stopped = Some(error);
                    false
                }
            };
            Actions(&mut each).deserialize(json)
        });
        match stopped {
            Some(error) => Err(error),
            None => Ok(read?),
        }
    }

    /// Gives each action as it is understood, in order, until one of the calls fails.
    ///
    /// # Errors
    /// As [`actions`](Self::actions), and when an action cannot be understood.
    pub fn envelopes<E: From<HistoryError>>(
        &mut self,
        mut each: impl FnMut(Envelope) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut n = 0u64;
        self.actions(|action| {
            n += 1;
            each(understood(action, n)?)
        })
    }
}

/// The action of that number as it is understood.
pub(super) fn understood(action: Value, n: u64) -> Result<Envelope, HistoryError> {
    serde_json::from_value(action).map_err(|e| HistoryError::Unreadable(format!("action {n}: {e}")))
}

fn session_of(head: &Head) -> Result<Id, HistoryError> {
    let ids = head.snapshots.iter().filter_map(|s| match Channel::parse(&s.resource) {
        Ok(Channel::Exchange(id)) => Some(id),
        _ => None,
    });
    match ids.collect::<Vec<_>>().as_slice() {
        [id] => Ok(id.clone()),
        _ => Err(HistoryError::Session),
    }
}

type Json<'a> = serde_json::Deserializer<serde_json::de::IoRead<BufReader<&'a File>>>;

/// Reads the one JSON document that a file holds.
fn parse<T>(
    file: &File,
    read: impl FnOnce(&mut Json<'_>) -> Result<T, serde_json::Error>,
) -> Result<T, HistoryError> {
    let wrong = |error: serde_json::Error| {
        if error.is_io() { HistoryError::Io(error.into()) } else { HistoryError::Format(error.to_string()) }
    };
    let mut json = serde_json::Deserializer::from_reader(BufReader::with_capacity(1 << 16, file));
    let value = read(&mut json).map_err(wrong)?;
    json.end().map_err(wrong)?;
    Ok(value)
}

fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    struct Counter;
    impl<'de> Visitor<'de> for Counter {
        type Value = u64;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list of actions")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<u64, A::Error> {
            let mut n = 0;
            while list.next_element::<IgnoredAny>()?.is_some() {
                n += 1;
            }
            Ok(n)
        }
    }
    deserializer.deserialize_seq(Counter)
}

/// Passes over everything but the actions; ends when it is told false.
struct Actions<'a>(&'a mut dyn FnMut(Value) -> bool);

impl<'de> DeserializeSeed<'de> for Actions<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Actions<'_> {
    type Value = ();
    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an exported history")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key == "actions" {
                map.next_value_seed(Items(&mut *self.0))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

struct Items<'a>(&'a mut dyn FnMut(Value) -> bool);

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = ();
    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list of actions")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(action) = list.next_element()? {
            if !(self.0)(action) {
                return Err(A::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}

/// Copies the file, as text in pieces that each are whole characters.
///
/// # Errors
/// When it cannot be read, or what a call returned.
pub fn pieces<E: From<HistoryError>>(
    file: &mut File,
    mut each: impl FnMut(&str) -> Result<(), E>,
) -> Result<(), E> {
    file.seek(SeekFrom::Start(0)).map_err(HistoryError::Io)?;
    let (mut buffer, mut kept) = (vec![0; 1 << 16], 0);
    loop {
        let space = buffer.get_mut(kept..).unwrap_or_default();
        let read = file.read(space).map_err(HistoryError::Io)?;
        let filled = buffer.get(..kept + read).unwrap_or_default();
        let text = match std::str::from_utf8(filled) {
            Ok(text) => text,
            // A character that is cut waits for its other half.
            Err(error) if error.error_len().is_none() && read > 0 => {
                std::str::from_utf8(filled.get(..error.valid_up_to()).unwrap_or_default()).unwrap_or_default()
            }
            Err(error) => return Err(HistoryError::Format(error.to_string()).into()),
        };
        each(text)?;
        if read == 0 {
            return Ok(());
        }
        let used = text.len();
        kept = kept + read - used;
        buffer.copy_within(used..used + kept, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use serde_json::json;

    fn file(text: &str) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn history() -> Value {
        json!({
            "version": axp_protocol::AXP_VERSION, "repository": "o/r", "serverSeq": 9, "later": {"field": [1]},
            "actions": [{"n": 1}, {"n": 2}, {"n": 3}], "seeds": [],
            "snapshots": [{"resource": "axp-session:/fix", "state": {}, "fromSeq": 9}],
        })
    }

    #[test]
    fn actions_come_one_by_one_whatever_stands_around_them() {
        let mut archive = Archive::open(file(&history().to_string())).unwrap();
        assert_eq!((archive.head().count, archive.session().as_str()), (3, "fix"));
        for _ in 0..2 {
            let mut seen = vec![];
            archive
                .actions::<HistoryError>(|action| {
                    seen.push(action["n"].as_u64().unwrap());
                    Ok(())
                })
                .unwrap();
            assert_eq!(seen, [1, 2, 3]);
        }
        let mut calls = 0;
        let stopped = archive.actions(|_| {
            calls += 1;
            Err(HistoryError::Session)
        });
        assert!(matches!(stopped, Err(HistoryError::Session)) && calls == 1);
    }

    #[test]
    fn what_is_no_whole_history_is_refused() {
        let text = history().to_string();
        for cut in 0..text.len() {
            assert!(Archive::open(file(&text[..cut])).is_err(), "{cut}");
        }
        assert!(Archive::open(file(&format!("{text}x"))).is_err());
        let with = |name: &str, value: Value| {
            let mut history = history();
            history[name] = value;
            Archive::open(file(&history.to_string())).map(drop)
        };
        assert!(with("serverSeq", json!(9)).is_ok());
        assert!(matches!(with("version", json!("9.9.9")), Err(HistoryError::Version(v)) if v == "9.9.9"));
        assert!(matches!(with("snapshots", json!([])), Err(HistoryError::Session)));
        assert!(matches!(with("actions", json!({})), Err(HistoryError::Format(_))));
    }

    #[test]
    fn pieces_never_cut_a_character() {
        for lead in 0..4 {
            let text = format!("{}{}", "x".repeat(lead), "\u{1f600}é漢".repeat(20_000));
            let mut copy = String::new();
            pieces::<HistoryError>(&mut file(&text), |piece| {
                copy.push_str(piece);
                Ok(())
            })
            .unwrap();
            assert_eq!(copy, text);
        }
        let mut broken = tempfile::tempfile().unwrap();
        broken.write_all(b"abc\xf0\x9f").unwrap();
        assert!(pieces::<HistoryError>(&mut broken, |_| Ok(())).is_err());
    }
}
