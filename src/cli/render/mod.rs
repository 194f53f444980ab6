//! Shows a session as a person wants to read it. Pure: it is given states, remembers what it has shown of them, and
//! returns the text that is new. So whatever led from one state to the next, nothing is shown twice or left out.

mod exchange;
mod tool;

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::sample_view;

use std::time::Duration;

use ahp_types::state::{ChatState, ErrorInfo, ResponsePart, Turn, TurnState};
use axp_protocol::scalar::Id;
use axp_protocol::shape::{ExchangeState, Usage, UsageSource};

use super::follow::View;
use super::money::{allowance, bytes, count, duration, usd};
use super::output::Style;
use super::sanitize::{Stripper, one_line, reveal, strip};
use super::waiting::plain;
use exchange::ExchangeShown;
pub(crate) use exchange::short;
use tool::ToolShown;

/// Shows one session.
#[derive(Debug)]
pub(crate) struct Renderer {
    style: Style,
    session: Id,
    /// How `axp` is called, for the commands that answer a question; none when somebody else asks it.
    invocation: Option<String>,
    exchange: ExchangeShown,
    /// Finished turns that are over and done with.
    finished: usize,
    turn: Option<TurnShown>,
    queued: Vec<String>,
    page: Page,
}

/// What has been shown of a turn.
#[derive(Debug)]
struct TurnShown {
    id: String,
    parts: Vec<PartShown>,
}

#[derive(Debug)]
enum PartShown {
    /// Text or thought: bytes taken, and what a cut sequence has left.
    Text {
        bytes: usize,
        stripper: Stripper,
    },
    Tool(ToolShown),
    Whole,
}

/// The text under way, and where its last line stands.
#[derive(Debug, Default)]
pub(super) struct Page {
    text: String,
    /// Whether the last line is unfinished, and which part it belongs to.
    open: Option<usize>,
    /// The tool call whose line is the last one.
    last_tool: Option<usize>,
}

impl Page {
    /// Adds whole lines.
    pub(super) fn line(&mut self, line: &str) {
        self.end_line();
        self.text.push_str(line);
        self.text.push('\n');
        self.last_tool = None;
    }

    fn end_line(&mut self) {
        if self.open.take().is_some() {
            self.text.push('\n');
        }
    }

    /// Adds to the running text of a part.
    fn run(&mut self, part: usize, shown: &str, painted: &str) {
        if self.open.is_some_and(|open| open != part) {
            self.end_line();
        }
        self.text.push_str(painted);
        self.open = if shown.ends_with('\n') { None } else { Some(part) };
        self.last_tool = None;
    }
}

impl Renderer {
    /// Shows nothing yet. `invocation` is how `axp` is called for the commands that answer a question.
    pub(crate) fn new(style: Style, session: Id, invocation: Option<String>) -> Self {
        Self {
            style,
            session,
            invocation,
            exchange: ExchangeShown::default(),
            finished: 0,
            turn: None,
            queued: vec![],
            page: Page::default(),
        }
    }

    /// Takes a state as known, but for the turn that runs, and says in a few lines how things stand.
    pub(crate) fn attach(&mut self, view: &View) -> String {
        self.skip(view);
        let style = self.style;
        let title = one_line(&view.chat.title, 200);
        self.page.line(&format!("{}  {title}", style.strong(&self.session)));
        let lines = exchange::summary(style, &view.exchange);
        for line in lines {
            self.page.line(&line);
        }
        let turns = view.chat.turns.len() as u64;
        if turns > 0 {
            let turns = super::money::counted(turns, "turn", "turns");
            self.page.line(&style.dim(&format!("{turns} so far")));
        }
        std::mem::take(&mut self.page.text)
    }

    /// Takes a state as known, but for the turn that runs.
    pub(crate) fn skip(&mut self, view: &View) {
        self.exchange = ExchangeShown::of(&view.exchange);
        self.finished = view.chat.turns.len();
        self.queued = queued(&view.chat).map(|m| m.0.to_owned()).collect();
    }

    /// What is new in `view`.
    pub(crate) fn update(&mut self, view: &View) -> String {
        let files = view.changeset.files.len() as u64;
        self.exchange.update(self.style, &view.exchange, files, &mut self.page);
        self.chat(&view.chat, &view.exchange);
        std::mem::take(&mut self.page.text)
    }

    /// Ends a line that is still open.
    pub(crate) fn finish(&mut self) -> String {
        self.page.end_line();
        std::mem::take(&mut self.page.text)
    }

    fn chat(&mut self, chat: &ChatState, exchange: &ExchangeState) {
        self.finished = self.finished.min(chat.turns.len());
        while let Some(turn) = chat.turns.get(self.finished) {
            self.start(&turn.id, &turn.message.text);
            self.parts(&turn.response_parts);
            self.end(turn, exchange);
            self.finished += 1;
        }
        if let Some(turn) = &chat.active_turn {
            self.start(&turn.id, &turn.message.text);
            self.parts(&turn.response_parts);
        }
        let waiting: Vec<_> = queued(chat).collect();
        for (id, text, steering) in &waiting {
            if !self.queued.iter().any(|known| known == id) {
                let what = if *steering { "steering" } else { "queued" };
                self.page.line(&format!(
                    "{} {}",
                    self.style.accent(&format!("» {what}:")),
                    one_line(text, 300)
                ));
            }
        }
        self.queued = waiting.iter().map(|(id, ..)| (*id).to_owned()).collect();
    }

    fn start(&mut self, id: &str, text: &str) {
        if self.turn.as_ref().is_some_and(|turn| turn.id == id) {
            return;
        }
        let text = strip(text.trim_end()).replace('\n', "\n  ");
        self.page.line(&format!("{} {}", self.style.accent("›"), self.style.strong(&text)));
        self.turn = Some(TurnShown { id: id.to_owned(), parts: vec![] });
    }

    fn parts(&mut self, parts: &[ResponsePart]) {
        let Some(turn) = &mut self.turn else { return };
        let waiting =
            parts.iter().filter(|p| matches!(p, ResponsePart::ToolCall(t) if tool::waits(&t.tool_call)));
        let questions = tool::Questions {
            session: &self.session,
            invocation: self.invocation.as_deref(),
            several: waiting.count() > 1,
        };
        for (i, part) in parts.iter().enumerate() {
            if i == turn.parts.len() {
                turn.parts.push(match part {
                    ResponsePart::Markdown(_) | ResponsePart::Reasoning(_) => {
                        PartShown::Text { bytes: 0, stripper: Stripper::default() }
                    }
                    ResponsePart::ToolCall(_) => PartShown::Tool(ToolShown::default()),
                    _ => {
                        whole(self.style, part, &mut self.page);
                        PartShown::Whole
                    }
                });
            }
            match (&mut turn.parts[i], part) {
                (PartShown::Text { bytes, stripper }, ResponsePart::Markdown(p)) => {
                    let new = advance(bytes, stripper, &p.content);
                    if !new.is_empty() {
                        self.page.run(i, &new, &new);
                    }
                }
                (PartShown::Text { bytes, stripper }, ResponsePart::Reasoning(p)) => {
                    let new = advance(bytes, stripper, &p.content);
                    if !new.is_empty() {
                        let painted = self.style.dim(&new);
                        self.page.run(i, &new, &painted);
                    }
                }
                (PartShown::Tool(shown), ResponsePart::ToolCall(p)) => {
                    shown.update(self.style, i, &p.tool_call, &questions, &mut self.page);
                }
                _ => {}
            }
        }
    }

    fn end(&mut self, turn: &Turn, exchange: &ExchangeState) {
        let style = self.style;
        let took = turn.duration.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
        let settled = exchange.usage.iter().rev().find(|u| u.turn_id.as_str() == turn.id);
        let mut facts: Vec<String> = vec![];
        if let Some(settled) = settled {
            facts.extend(spent(&settled.usage));
        }
        facts.extend(took.map(duration));
        let facts =
            if facts.is_empty() { String::new() } else { style.dim(&format!(" · {}", facts.join(" · "))) };
        let line = match turn.state {
            TurnState::Complete => format!("{}{facts}", style.good("✓ done")),
            TurnState::Cancelled => format!("{}{facts}", style.ask("■ cancelled")),
            TurnState::Error => {
                let why = error_of(turn).map_or("", |e| e.message.as_str());
                format!("{} {}{facts}", style.bad("✗ failed:"), strip(why))
            }
        };
        self.page.line(&line);
        if let Some(grant) = settled.and_then(|s| exchange.grants.get(&s.grant_id)) {
            self.page.line(&style.dim(&format!("  left: {}", allowance(&grant.limit.left(&grant.spent)))));
        }
        self.turn = None;
    }
}

/// Why a turn failed.
pub(crate) fn error_of(turn: &Turn) -> Option<&ErrorInfo> {
    turn.response_parts.iter().rev().find_map(|part| match part {
        ResponsePart::Error(part) => Some(&part.error),
        _ => None,
    })
}

/// What a turn used, in words.
fn spent(usage: &Usage) -> Vec<String> {
    if usage.source == UsageSource::Reservation {
        let charge = usage.charge();
        return vec![format!(
            "charged in full: {} tokens, {}",
            count(charge.tokens),
            usd(charge.cost_micros)
        )];
    }
    let reserved = if usage.cost_source == Some(UsageSource::Reservation) { " (reserved)" } else { "" };
    vec![
        format!("{} in, {} out", count(usage.input_tokens), count(usage.output_tokens)),
        format!("{}{reserved}", usd(usage.cost_micros)),
    ]
}

/// The text that was added since the last time.
fn advance(bytes: &mut usize, stripper: &mut Stripper, content: &str) -> String {
    let mut new = String::new();
    stripper.push(content.get(*bytes..).unwrap_or_default(), &mut new);
    *bytes = content.len();
    new
}

/// Parts that come in one piece.
fn whole(style: Style, part: &ResponsePart, page: &mut Page) {
    match part {
        // What was used is said at the end of the turn.
        ResponsePart::ContentRef(p) if p.content_type.as_deref() == Some(crate::reconnect::USAGE_REPORT) => {}
        ResponsePart::ContentRef(p) => {
            let kind = one_line(p.content_type.as_deref().unwrap_or("content"), 80);
            let size = p.size_hint.and_then(|n| u64::try_from(n).ok()).map(bytes);
            page.line(&style.dim(&format!("▪ {kind}{}", size.map(|s| format!(", {s}")).unwrap_or_default())));
        }
        ResponsePart::SystemNotification(p) => page.line(&style.dim(&strip(plain(&p.content)))),
        ResponsePart::InputRequest(p) => {
            let asked = p.request.message.as_deref().unwrap_or_default();
            page.line(&format!("{} {}", style.ask("? the agent asks:"), reveal(asked)));
        }
        // An error is said when the turn ends.
        _ => {}
    }
}

/// Messages that wait, with whether they steer.
fn queued(chat: &ChatState) -> impl Iterator<Item = (&str, &str, bool)> {
    let steering = chat.steering_message.iter().map(|m| (m.id.as_str(), m.message.text.as_str(), true));
    let queued = chat.queued_messages.iter().flatten();
    steering.chain(queued.map(|m| (m.id.as_str(), m.message.text.as_str(), false)))
}
