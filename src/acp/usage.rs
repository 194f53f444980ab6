//! What a turn used, in tokens: a report is believed only if it adds up.

use serde_json::{Map, Value, json};

/// The most a JSON number can say exactly.
const LARGEST: u64 = (1 << 53) - 1;
/// No tokeniser packs more text into one token than this.
const BYTES_PER_TOKEN: u64 = 16;

/// Tokens of one turn. Cache reads are part of the input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnUsage {
    /// Input tokens, cache reads and writes included.
    pub input_tokens: u64,
    /// Output tokens, thoughts included.
    pub output_tokens: u64,
    /// Input tokens that were read from a cache.
    pub cache_read_tokens: u64,
}

impl TurnUsage {
    fn plus(self, other: Self) -> Option<Self> {
        let sum = Self {
            input_tokens: self.input_tokens.checked_add(other.input_tokens)?,
            output_tokens: self.output_tokens.checked_add(other.output_tokens)?,
            cache_read_tokens: self.cache_read_tokens.checked_add(other.cache_read_tokens)?,
        };
        (sum.input_tokens <= LARGEST && sum.output_tokens <= LARGEST).then_some(sum)
    }
}

/// Collects what an agent reports during a turn.
///
/// Seen in the wild: `usage` in the prompt's response (the draft of ACP), `_meta.quota.token_count` there, and
/// `_meta.usage` on a message chunk, once for each call of the model.
#[derive(Debug, Default)]
pub(super) struct UsageReports {
    chunks: Vec<Value>,
}

impl UsageReports {
    /// Takes a report that hangs on a session update.
    pub(super) fn update(&mut self, update: &Value) {
        let usage = &update["_meta"]["usage"];
        // Bounded, because an agent decides how many there are.
        if usage.is_object() && self.chunks.len() < 10_000 {
            self.chunks.push(usage.clone());
        }
    }

    /// The tokens of the turn, and the reports they were read from.
    ///
    /// `visible_bytes` is the text the agent wrote: a report that could not have produced it is not believed.
    pub(super) fn finish(self, response: &Value, visible_bytes: u64) -> (Option<TurnUsage>, Option<Value>) {
        let usage = &response["usage"];
        let quota = &response["_meta"]["quota"];
        let count = &quota["token_count"];
        let covers = |usage: &TurnUsage| usage.output_tokens >= visible_bytes.div_ceil(BYTES_PER_TOKEN);
        let turn = read_report(usage)
            .filter(covers)
            .or_else(|| read_report(count).filter(covers))
            .or_else(|| sum(&self.chunks).filter(covers));

        let mut raw = Map::new();
        for (name, value) in [("usage", usage), ("quota", quota)] {
            if !value.is_null() {
                raw.insert(name.to_owned(), value.clone());
            }
        }
        if !self.chunks.is_empty() {
            raw.insert("updates".to_owned(), json!(self.chunks));
        }
        (turn, (!raw.is_empty()).then_some(Value::Object(raw)))
    }
}

fn sum(reports: &[Value]) -> Option<TurnUsage> {
    let mut reports = reports.iter();
    let first = read_report(reports.next()?)?;
    reports.try_fold(first, |sum, report| sum.plus(read_report(report)?))
}

/// Reads one report, if one of its readings adds up to its own total.
///
/// Agents differ in whether the input holds the cached tokens and whether the output holds the thoughts; the total
/// tells. An empty report is what some agents send after a cancellation, and says nothing.
fn read_report(report: &Value) -> Option<TurnUsage> {
    let total = number(report, &["totalTokens", "total_tokens"])??;
    let input = number(report, &["inputTokens", "input_tokens"])??;
    let output = number(report, &["outputTokens", "output_tokens"])??;
    let thought = number(
        report,
        &["thoughtTokens", "thought_tokens", "reasoningOutputTokens", "reasoning_output_tokens"],
    )?;
    let read = number(
        report,
        &["cachedReadTokens", "cached_read_tokens", "cachedInputTokens", "cached_input_tokens"],
    )?;
    let write = number(report, &["cachedWriteTokens", "cached_write_tokens"])?;
    let read = read.unwrap_or(0);
    let whole_input = input.checked_add(read)?.checked_add(write.unwrap_or(0))?;
    let whole_output = output.checked_add(thought.unwrap_or(0))?;
    [(input, output), (whole_input, output), (input, whole_output), (whole_input, whole_output)]
        .into_iter()
        .find(|(input, output)| total > 0 && input.checked_add(*output) == Some(total) && read <= *input)
        .map(|(input_tokens, output_tokens)| TurnUsage {
            input_tokens,
            output_tokens,
            cache_read_tokens: read,
        })
}

/// The first of these fields that is set: `Some(None)` if none is, `None` if it is no count of tokens.
fn number(report: &Value, names: &[&str]) -> Option<Option<u64>> {
    let Some(value) = names.iter().map(|name| &report[*name]).find(|value| !value.is_null()) else {
        return Some(None);
    };
    let whole = value.as_u64().or_else(|| {
        let value = value.as_f64()?;
        // Exact: the range check leaves only whole numbers a u64 and a f64 both hold.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked right here")]
        (value.fract() == 0.0 && (0.0..=9_007_199_254_740_991.0).contains(&value)).then_some(value as u64)
    })?;
    (whole <= LARGEST).then_some(Some(whole))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn turn(input: u64, output: u64, read: u64) -> Option<TurnUsage> {
        Some(TurnUsage { input_tokens: input, output_tokens: output, cache_read_tokens: read })
    }

    #[test]
    fn a_report_is_read_the_way_it_adds_up() {
        for (report, expected) in [
            (json!({"totalTokens": 15, "inputTokens": 10, "outputTokens": 5}), turn(10, 5, 0)),
            // Cached tokens and thoughts are inside.
            (
                json!({"totalTokens": 15, "inputTokens": 10, "outputTokens": 5, "cachedReadTokens": 8, "thoughtTokens": 3}),
                turn(10, 5, 8),
            ),
            // Cached tokens come on top.
            (
                json!({"totalTokens": 27, "inputTokens": 10, "outputTokens": 5, "cachedReadTokens": 8, "cachedWriteTokens": 4}),
                turn(22, 5, 8),
            ),
            // Thoughts come on top.
            (
                json!({"totalTokens": 18, "inputTokens": 10, "outputTokens": 5, "thoughtTokens": 3}),
                turn(10, 8, 0),
            ),
            // Both.
            (
                json!({"totalTokens": 26, "inputTokens": 10, "outputTokens": 5, "cachedReadTokens": 8, "thoughtTokens": 3}),
                turn(18, 8, 8),
            ),
            // More was read from the cache than went in, except if it comes on top.
            (json!({"totalTokens": 15, "inputTokens": 10, "outputTokens": 5, "cachedReadTokens": 11}), None),
            (
                json!({"totalTokens": 26, "inputTokens": 10, "outputTokens": 5, "cachedReadTokens": 11}),
                turn(21, 5, 11),
            ),
            (json!({"totalTokens": 16, "inputTokens": 10, "outputTokens": 5}), None),
            (json!({"inputTokens": 10, "outputTokens": 5}), None),
            (json!({"totalTokens": 0, "inputTokens": 0, "outputTokens": 0}), None),
            (json!({"totalTokens": -15, "inputTokens": -10, "outputTokens": -5}), None),
            (json!({"totalTokens": 15.0, "inputTokens": 10, "outputTokens": 5}), turn(10, 5, 0)),
            (json!({"totalTokens": 15.5, "inputTokens": 10.5, "outputTokens": 5}), None),
            (json!({"totalTokens": "15", "inputTokens": 10, "outputTokens": 5}), None),
            (json!({"totalTokens": 15, "inputTokens": 10, "outputTokens": 5, "cachedReadTokens": "x"}), None),
            (json!({"totalTokens": u64::MAX, "inputTokens": u64::MAX, "outputTokens": 0}), None),
            (json!(null), None),
            (json!([15]), None),
        ] {
            assert_eq!(read_report(&report), expected, "{report}");
        }
    }

    #[test]
    fn every_dialect_is_found() {
        let report = json!({"totalTokens": 15, "inputTokens": 10, "outputTokens": 5});
        let quota = json!({"_meta": {"quota": {"token_count": {"total_tokens": 15, "input_tokens": 10, "output_tokens": 5}}}});
        let (usage, raw) = UsageReports::default().finish(&json!({ "usage": report }), 0);
        assert_eq!((usage, raw), (turn(10, 5, 0), Some(json!({ "usage": report }))));
        let (usage, raw) = UsageReports::default().finish(&quota, 0);
        assert_eq!(usage, turn(10, 5, 0));
        assert!(raw.unwrap()["quota"]["token_count"].is_object());

        let mut reports = UsageReports::default();
        let chunk = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": ""}, "_meta": {"usage": report}});
        reports.update(&chunk);
        reports.update(&chunk);
        reports.update(&json!({"sessionUpdate": "agent_message_chunk"}));
        let (usage, raw) = reports.finish(&json!({"stopReason": "end_turn"}), 0);
        assert_eq!((usage, raw), (turn(20, 10, 0), Some(json!({"updates": [report, report]}))));
    }

    #[test]
    fn one_report_of_many_that_does_not_add_up_spoils_the_sum() {
        let mut reports = UsageReports::default();
        reports.update(&json!({"_meta": {"usage": {"totalTokens": 2, "inputTokens": 1, "outputTokens": 1}}}));
        reports.update(&json!({"_meta": {"usage": {"totalTokens": 3, "inputTokens": 1, "outputTokens": 1}}}));
        let (usage, raw) = reports.finish(&Value::Null, 0);
        assert_eq!(usage, None);
        assert!(raw.is_some(), "the raw report is kept");
    }

    #[test]
    fn a_report_below_the_visible_output_is_not_believed() {
        let response = json!({"usage": {"totalTokens": 15, "inputTokens": 10, "outputTokens": 5}});
        assert_eq!(UsageReports::default().finish(&response, 80).0, turn(10, 5, 0));
        assert_eq!(UsageReports::default().finish(&response, 81).0, None);
        assert_eq!(UsageReports::default().finish(&Value::Null, 0), (None, None));
    }

    proptest! {
        #[test]
        fn what_is_accepted_adds_up(
            input in 0u64..50, output in 0u64..50, read in proptest::option::of(0u64..50),
            write in proptest::option::of(0u64..50), thought in proptest::option::of(0u64..50), total in 0u64..200,
        ) {
            let report = json!({"totalTokens": total, "inputTokens": input, "outputTokens": output,
                "cachedReadTokens": read, "cachedWriteTokens": write, "thoughtTokens": thought});
            let (r, w, t) = (read.unwrap_or(0), write.unwrap_or(0), thought.unwrap_or(0));
            match read_report(&report) {
                Some(usage) => {
                    prop_assert_eq!(usage.input_tokens + usage.output_tokens, total);
                    prop_assert!(usage.cache_read_tokens <= usage.input_tokens);
                    prop_assert!(usage.input_tokens == input || usage.input_tokens == input + r + w);
                    prop_assert!(usage.output_tokens == output || usage.output_tokens == output + t);
                }
                None => {
                    let sums = [(input, output), (input + r + w, output), (input, output + t), (input + r + w, output + t)];
                    prop_assert!(total == 0 || sums.iter().all(|(i, o)| i + o != total || r > *i));
                }
            }
        }

        #[test]
        fn nothing_an_agent_sends_panics(bytes in proptest::collection::vec(any::<u64>(), 6)) {
            let report = json!({"totalTokens": bytes[0], "inputTokens": bytes[1], "outputTokens": bytes[2],
                "cachedReadTokens": bytes[3], "cachedWriteTokens": bytes[4], "thoughtTokens": bytes[5]});
            let mut reports = UsageReports::default();
            reports.update(&json!({"_meta": {"usage": report}}));
            reports.finish(&json!({ "usage": report }), bytes[0]);
        }
    }
}
