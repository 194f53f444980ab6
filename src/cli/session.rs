//! Which session a command is about, and calls to its host.

use ahp_types::commands::ListSessionsResult;
use ahp_types::state::{SessionStatus, SessionSummary};
use axp_protocol::channel::{Channel, ROOT};
use axp_protocol::method::{ChannelSnapshot, Method};
use axp_protocol::scalar::Id;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::error::CliError;
use super::sanitize::one_line;
use crate::client::{AxpClient, ClientError, ConnectOptions, Credentials, Events, HostInfo};

#[derive(serde::Deserialize)]
struct SubscribeAnswer {
    snapshot: ChannelSnapshot,
}

/// A host that commands go to. A connection that breaks is made anew once, and a call that may have been lost is
/// asked again with its own operation ID, which the host answers without doing it twice.
#[derive(Debug)]
pub(crate) struct Host {
    credentials: Credentials,
    options: ConnectOptions,
    client: AxpClient,
    // Dropping these would end the pump; nobody here listens.
    _events: Events,
}

impl Host {
    /// Connects.
    pub(crate) async fn connect(
        credentials: Credentials,
        options: ConnectOptions,
    ) -> Result<Self, ClientError> {
        let (client, events) = AxpClient::connect(&credentials, options.clone()).await?;
        Ok(Self { credentials, options, client, _events: events })
    }

    /// What it opens with.
    pub(crate) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// What the host said of itself and of us.
    pub(crate) fn info(&self) -> &HostInfo {
        self.client.info()
    }

    /// A method of the AXP table.
    pub(crate) async fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Output, ClientError> {
        self.request(M::NAME, params).await
    }

    /// Any method; it must be safe to ask twice.
    pub(crate) async fn request<P: serde::Serialize, R: DeserializeOwned>(
        &mut self,
        method: &str,
        params: &P,
    ) -> Result<R, ClientError> {
        match self.client.request(method, params).await {
            Err(ClientError::Lost) => {
                let options = self.options.clone();
                let (client, events) = AxpClient::connect(&self.credentials, options).await?;
                self.client = client;
                self._events = events;
                self.client.request(method, params).await
            }
            answer => answer,
        }
    }

    /// Any method that is not safe to ask twice.
    pub(crate) async fn once<P: serde::Serialize, R: DeserializeOwned>(
        &mut self,
        method: &str,
        params: &P,
    ) -> Result<R, ClientError> {
        self.client.request(method, params).await
    }

    /// The state of a channel now.
    pub(crate) async fn snapshot<T: DeserializeOwned>(
        &mut self,
        channel: &Channel,
    ) -> Result<T, ClientError> {
        let params = json!({ "channel": channel.to_string() });
        let answer: SubscribeAnswer = self.request("subscribe", &params).await?;
        serde_json::from_value(answer.snapshot.state)
            .map_err(|e| ClientError::Answer { method: format!("subscribe {channel}"), why: e.to_string() })
    }

    /// The newest sequence number that a channel's state stands for.
    pub(crate) async fn seq(&mut self, channel: &Channel) -> Result<u64, ClientError> {
        let params = json!({ "channel": channel.to_string() });
        let answer: SubscribeAnswer = self.request("subscribe", &params).await?;
        Ok(answer.snapshot.from_seq)
    }

    /// All sessions we may read, newest first.
    pub(crate) async fn sessions(&mut self) -> Result<Vec<SessionSummary>, ClientError> {
        let mut all = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut params = json!({ "channel": ROOT });
            if let Some(cursor) = &cursor {
                params["cursor"] = json!(cursor);
            }
            let page: ListSessionsResult = self.request("listSessions", &params).await?;
            all.extend(page.items);
            match page.next_cursor {
                // A cursor that stands still would never end.
                Some(next) if cursor.as_ref() != Some(&next) => cursor = Some(next),
                _ => return Ok(all),
            }
        }
    }

    /// The session that was named, or the only open one.
    pub(crate) async fn session(&mut self, named: Option<&str>) -> Result<Id, CliError> {
        match named {
            Some(text) => parse(text),
            None => only_open(&self.sessions().await?),
        }
    }
}

/// Reads `ID`, `ahp-session:/ID` or `axp-session:/ID`.
pub(crate) fn parse(text: &str) -> Result<Id, CliError> {
    let id =
        text.strip_prefix("ahp-session:/").or_else(|| text.strip_prefix("axp-session:/")).unwrap_or(text);
    Id::new(id).map_err(|_| {
        CliError::usage(format!("{text:?} is not a session")).hint("`axp sessions` lists them; use the ID")
    })
}

/// The ID of a catalogue entry.
pub(crate) fn id_of(summary: &SessionSummary) -> &str {
    summary.resource.strip_prefix("ahp-session:/").unwrap_or(&summary.resource)
}

/// Whether a catalogue entry is of a session that takes work.
pub(crate) fn is_open(summary: &SessionSummary) -> bool {
    summary.status & SessionStatus::IsArchived.bits() == 0
}

fn only_open(sessions: &[SessionSummary]) -> Result<Id, CliError> {
    let open: Vec<_> = sessions.iter().filter(|s| is_open(s)).collect();
    match open.as_slice() {
        [one] => parse(id_of(one)),
        [] => {
            Err(CliError::usage("no session is open on this host").hint("open one: axp create --task TASK"))
        }
        several => {
            let shown: Vec<_> = several
                .iter()
                .take(10)
                .map(|s| format!("  {}  {}", one_line(id_of(s), 128), one_line(&s.title, 60)))
                .collect();
            let more = if several.len() > shown.len() { "\n  …" } else { "" };
            Err(CliError::usage(format!(
                "{} sessions are open; name one:\n{}{more}",
                several.len(),
                shown.join("\n")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::ExitCode;
    use super::*;

    fn summary(id: &str, status: u32) -> SessionSummary {
        serde_json::from_value(json!({
            "provider": "axp", "title": format!("title of {id}"), "status": status,
            "resource": format!("ahp-session:/{id}"),
            "createdAt": "2026-01-01T00:00:00.000Z", "modifiedAt": "2026-01-01T00:00:00.000Z",
        }))
        .unwrap()
    }

    #[test]
    fn a_session_has_three_spellings() {
        for text in ["fix-1", "ahp-session:/fix-1", "axp-session:/fix-1"] {
            assert_eq!(parse(text).unwrap().as_str(), "fix-1");
        }
        for text in ["", "a b", "ahp-chat:/x", "axp-session:/"] {
            assert_eq!(parse(text).unwrap_err().code, ExitCode::Usage, "{text}");
        }
    }

    #[test]
    fn the_only_open_session_need_not_be_named() {
        let archived = SessionStatus::IsArchived.bits() | 1;
        let one = [summary("a", 1), summary("b", archived)];
        assert_eq!(only_open(&one).unwrap().as_str(), "a");
        assert!(only_open(&[summary("b", archived)]).unwrap_err().message.contains("no session is open"));
        let error = only_open(&[summary("a", 1), summary("c", 8)]).unwrap_err();
        assert!(
            error.message.contains("a  title of a") && error.message.contains("c  title of c"),
            "{error}"
        );
    }
}
