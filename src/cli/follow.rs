//! Follows a session: its chat, exchange and changeset as they change, over lost connections.

use std::time::Duration;

use ahp_types::state::{ChangesetState, ChatState};
use axp_protocol::action::Envelope;
use axp_protocol::channel::{Channel, ROOT};
use axp_protocol::method::{Method as _, params};
use axp_protocol::scalar::Id;
use axp_protocol::shape::ExchangeState;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::client::{AxpClient, ClientError, ConnectOptions, Credentials, Event, Events};
use crate::history::{Archive, DownloadError, HistoryError, fetch};

/// Silence after which the host is asked whether it is still there.
const SILENCE: Duration = Duration::from_secs(20);
/// Time it has to answer anything.
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest wait that a host may ask for.
const ASKED: Duration = Duration::from_secs(300);
/// First and longest wait before another attempt.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// What is known of a session.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct View {
    /// The conversation.
    pub(crate) chat: ChatState,
    /// Leases, budgets, checkpoint.
    pub(crate) exchange: ExchangeState,
    /// Files of the checkpoint.
    pub(crate) changeset: ChangesetState,
}

impl View {
    /// Applies an action on one of the three channels.
    pub(crate) fn apply(&mut self, session: &Id, envelope: &Envelope) {
        use ahp::reducers::{apply_action_to_changeset, apply_action_to_chat};
        use axp_protocol::action::Action;
        if envelope.rejection_reason.is_some() {
            return;
        }
        // An action that a reducer does not know leaves the state as it is.
        let _ = match (Channel::parse(&envelope.channel), &envelope.action) {
            (Ok(Channel::Chat(id)), Action::Ahp(a)) if id == *session => {
                apply_action_to_chat(&mut self.chat, a)
            }
            (Ok(Channel::Changeset(id)), Action::Ahp(a)) if id == *session => {
                apply_action_to_changeset(&mut self.changeset, a)
            }
            (Ok(Channel::Exchange(id)), Action::Axp(a)) if id == *session => {
                axp_protocol::state::apply_to_exchange(&mut self.exchange, a)
            }
            _ => return,
        };
    }
}

/// What has happened.
#[derive(Debug)]
pub(crate) enum Update {
    /// An action, which the view has taken in.
    Action(Box<Envelope>),
    /// An action that was among the missed ones, which the view has taken in now.
    Known,
    /// Connected again; the view is new, and these envelopes led to it since the last one.
    Resumed(Vec<Value>),
    /// The connection is lost; the next call waits this long and tries again.
    Lost {
        /// What the system said.
        why: String,
        /// The wait.
        wait: Duration,
    },
}

/// Follows one session.
#[derive(Debug)]
pub(crate) struct Follower {
    credentials: Credentials,
    session: Id,
    /// Whether envelopes that were missed are fetched, and none is given out twice.
    exact: bool,
    link: Option<(AxpClient, Events)>,
    view: View,
    seen: u64,
    attempt: u32,
    wait: Duration,
}

impl Follower {
    /// Connects and subscribes. With `exact`, [`Update::Resumed`] brings the envelopes that were missed.
    ///
    /// # Errors
    /// When the host cannot be reached or the session not be read.
    pub(crate) async fn open(
        credentials: Credentials,
        session: Id,
        exact: bool,
    ) -> Result<Self, ClientError> {
        let (client, events, view, seen) = attach(&credentials, &session).await?;
        let link = Some((client, events));
        Ok(Self { credentials, session, exact, link, view, seen, attempt: 0, wait: Duration::ZERO })
    }

    /// What is known now.
    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// The next thing that happens.
    ///
    /// # Errors
    /// When the host refuses, so that another attempt would not help.
    pub(crate) async fn next(&mut self) -> Result<Update, ClientError> {
        loop {
            let Some((client, events)) = &mut self.link else { return self.again().await };
            match tokio::time::timeout(SILENCE, events.next()).await {
                Ok(Some(Event::Action(envelope))) => {
                    self.attempt = 0;
                    self.view.apply(&self.session, &envelope);
                    if envelope.server_seq > self.seen {
                        self.seen = envelope.server_seq;
                        return Ok(Update::Action(envelope));
                    }
                    return Ok(Update::Known);
                }
                Ok(Some(_)) => {}
                Ok(None) => return Ok(self.lost(ClientError::Lost)),
                Err(_) => {
                    let params = json!({ "channel": ROOT });
                    match client.request::<_, Value>("ping", &params).await {
                        Ok(_) | Err(ClientError::Refused(_)) => self.attempt = 0,
                        Err(error) => return Ok(self.lost(error)),
                    }
                }
            }
        }
    }

    fn lost(&mut self, error: ClientError) -> Update {
        self.link = None;
        let asked = match &error {
            ClientError::Http { retry_after: Some(seconds), .. } => Duration::from_secs(*seconds).min(ASKED),
            _ => Duration::ZERO,
        };
        self.wait = backoff(self.attempt, rand::random::<f64>()).max(asked);
        self.attempt = self.attempt.saturating_add(1);
        Update::Lost { why: error.to_string(), wait: self.wait }
    }

    async fn again(&mut self) -> Result<Update, ClientError> {
        tokio::time::sleep(self.wait).await;
        match self.resume().await {
            Ok(missed) => Ok(Update::Resumed(missed)),
            Err(error) if error.is_transient() => Ok(self.lost(error)),
            Err(error) => Err(error),
        }
    }

    async fn resume(&mut self) -> Result<Vec<Value>, ClientError> {
        let (client, events, view, seq) = attach(&self.credentials, &self.session).await?;
        // What arrives now may be among what was missed: it is not given out again.
        let (missed, newest) = if self.exact { self.missed().await? } else { (vec![], seq) };
        self.seen = self.seen.max(newest);
        self.link = Some((client, events));
        self.view = view;
        Ok(missed)
    }

    async fn missed(&self) -> Result<(Vec<Value>, u64), ClientError> {
        let wrong = |error| match error {
            DownloadError::Client(error) => error,
            other => ClientError::Answer { method: params::Export::NAME.into(), why: other.to_string() },
        };
        let archive = fetch(&self.credentials, &self.session, &mut |_| {}).await.map_err(wrong)?;
        let (session, seen) = (self.session.clone(), self.seen);
        // A long history takes its time.
        let read = tokio::task::spawn_blocking(move || since(archive, &session, seen)).await;
        let read = read.unwrap_or_else(|e| Err(std::io::Error::other(e).into()));
        read.map_err(|e| wrong(e.into()))
    }
}

/// The envelopes after `seen` that are on our channels, and the newest number of the host.
fn since(mut archive: Archive, session: &Id, seen: u64) -> Result<(Vec<Value>, u64), HistoryError> {
    let channels = channels(session).map(|channel| channel.to_string());
    let mut missed = vec![];
    archive.actions(|envelope| {
        let seq = envelope.get("serverSeq").and_then(Value::as_u64).unwrap_or_default();
        let channel = envelope.get("channel").and_then(Value::as_str).unwrap_or_default();
        if seq > seen && channels.iter().any(|c| c == channel) {
            missed.push(envelope);
        }
        Ok::<_, HistoryError>(())
    })?;
    Ok((missed, archive.head().server_seq))
}

fn channels(session: &Id) -> [Channel; 3] {
    [Channel::Chat(session.clone()), Channel::Exchange(session.clone()), Channel::Changeset(session.clone())]
}

/// Connects and subscribes; also the place in the order that every part of the view has reached.
async fn attach(
    credentials: &Credentials,
    session: &Id,
) -> Result<(AxpClient, Events, View, u64), ClientError> {
    async fn state<T: DeserializeOwned>(
        client: &AxpClient,
        channel: &Channel,
    ) -> Result<(T, u64), ClientError> {
        let snapshot = client.subscribe(&channel.to_string()).await?;
        let state = serde_json::from_value(snapshot.state).map_err(|e| ClientError::Answer {
            method: format!("subscribe {channel}"),
            why: e.to_string(),
        })?;
        Ok((state, snapshot.from_seq))
    }
    let options = ConnectOptions { timeout: PATIENCE, ..Default::default() };
    let (client, events) = AxpClient::connect(credentials, options).await?;
    let [chat, exchange, changeset] = channels(session);
    // The first one subscribed is the one that is furthest behind.
    let (chat, seq) = state(&client, &chat).await?;
    let (exchange, _) = state(&client, &exchange).await?;
    let (changeset, _) = state(&client, &changeset).await?;
    Ok((client, events, View { chat, exchange, changeset }, seq))
}

/// How long to wait before another attempt: doubling, with jitter between half and whole.
fn backoff(attempt: u32, random: f64) -> Duration {
    let (first, longest) = BACKOFF;
    let whole = first.saturating_mul(2u32.saturating_pow(attempt.min(16))).min(longest);
    whole.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_half_a_minute() {
        assert_eq!(backoff(0, 1.0), Duration::from_millis(500));
        assert_eq!(backoff(0, 0.0), Duration::from_millis(250));
        assert_eq!(backoff(3, 1.0), Duration::from_secs(4));
        assert_eq!(backoff(6, 1.0), Duration::from_secs(30));
        assert_eq!(backoff(u32::MAX, 0.0), Duration::from_secs(15));
    }
}
