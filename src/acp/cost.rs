//! What a turn cost, in USD millionths: the growth of the session's total.

use serde_json::Value;

/// The most a JSON number can say exactly, in USD millionths.
const LARGEST: f64 = 9_007_199_254_740_991.0;

/// Follows an agent's reports of its session's total cost.
///
/// Growth is never lost between turns: what is reported after a turn's end belongs to the next one, unless the turn
/// had no known cost and was charged at its ceiling anyway.
#[derive(Debug, Default)]
pub(super) struct CostTracker {
    /// The total that has been charged, or was there before the first prompt.
    base: u64,
    last: Option<u64>,
    in_turn: bool,
    started: bool,
    reported: bool,
    /// The turn's cost cannot be told: it fell, or was no amount of USD.
    unknown: bool,
}

impl CostTracker {
    /// Takes a `usage_update`; returns the turn's cost so far if it is known and the update tells it.
    pub(super) fn observe(&mut self, update: &Value) -> Option<u64> {
        let cost = &update["cost"];
        if cost.is_null() {
            return None;
        }
        let Some(total) = total_micros(cost) else {
            self.unknown = true;
            return None;
        };
        let fell = self.last.is_some_and(|last| total < last);
        self.last = Some(total);
        if !self.started {
            self.base = total;
            return None;
        }
        if fell {
            self.unknown = true;
        }
        if !self.in_turn {
            if self.unknown {
                self.base = total;
            }
            return None;
        }
        self.reported = true;
        if self.unknown { None } else { Some(total.saturating_sub(self.base)) }
    }

    /// Starts a turn.
    pub(super) fn begin_turn(&mut self) {
        self.in_turn = true;
        self.started = true;
        self.reported = false;
        self.unknown = false;
    }

    /// Ends a turn and returns its cost, if it is known.
    pub(super) fn end_turn(&mut self) -> Option<u64> {
        self.in_turn = false;
        let total = self.last.unwrap_or(self.base);
        let known = self.reported && !self.unknown;
        let cost = known.then(|| total.saturating_sub(self.base));
        // A late report of a turn that was charged at its ceiling is not charged again.
        self.unknown = !known;
        self.base = total;
        cost
    }
}

fn total_micros(cost: &Value) -> Option<u64> {
    if !cost["currency"].as_str()?.eq_ignore_ascii_case("USD") {
        return None;
    }
    usd_to_micros(cost["amount"].as_f64()?)
}

/// Dollars as whole millionths, rounded up. Noise of the binary fraction is no millionth.
pub(super) fn usd_to_micros(dollars: f64) -> Option<u64> {
    let micros = dollars * 1e6;
    if !(0.0..=LARGEST).contains(&micros) {
        return None;
    }
    let nearest = micros.round();
    let noise = (micros * 4.0 * f64::EPSILON).max(1e-6);
    let whole = if (micros - nearest).abs() <= noise { nearest } else { micros.ceil() };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked above")]
    Some(whole as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn usd(amount: f64) -> Value {
        json!({"cost": {"amount": amount, "currency": "USD"}})
    }

    /// Runs a turn over these totals.
    fn turn(tracker: &mut CostTracker, totals: &[f64]) -> Option<u64> {
        tracker.begin_turn();
        for total in totals {
            tracker.observe(&usd(*total));
        }
        tracker.end_turn()
    }

    #[test]
    fn dollars_are_rounded_up() {
        for (dollars, micros) in [
            (0.0, Some(0)),
            (0.1 + 0.2, Some(300_000)),
            (0.000_000_1, Some(1)),
            (1.000_000_1, Some(1_000_001)),
            (0.0123, Some(12_300)),
            (1234.56789, Some(1_234_567_890)),
            (-0.01, None),
            (f64::NAN, None),
            (f64::INFINITY, None),
            (1e12, None),
        ] {
            assert_eq!(usd_to_micros(dollars), micros, "{dollars}");
        }
    }

    #[test]
    fn a_turn_costs_the_growth() {
        let mut tracker = CostTracker::default();
        assert_eq!(turn(&mut tracker, &[0.001, 0.003]), Some(3_000));
        assert_eq!(turn(&mut tracker, &[0.003]), Some(0));
        assert_eq!(turn(&mut tracker, &[0.004, 0.01]), Some(7_000));
    }

    #[test]
    fn what_was_there_before_the_first_prompt_is_a_baseline() {
        let mut tracker = CostTracker::default();
        tracker.observe(&usd(5.0));
        tracker.observe(&usd(6.0));
        assert_eq!(turn(&mut tracker, &[6.5]), Some(500_000));
    }

    #[test]
    fn a_turn_without_a_report_has_no_known_cost_and_is_not_charged_twice() {
        let mut tracker = CostTracker::default();
        assert_eq!(turn(&mut tracker, &[]), None);
        tracker.observe(&usd(1.0));
        assert_eq!(turn(&mut tracker, &[1.25]), Some(250_000));
    }

    #[test]
    fn a_late_report_of_a_known_turn_is_charged_to_the_next() {
        let mut tracker = CostTracker::default();
        assert_eq!(turn(&mut tracker, &[1.0]), Some(1_000_000));
        tracker.observe(&usd(1.5));
        assert_eq!(turn(&mut tracker, &[1.75]), Some(750_000));
    }

    #[test]
    fn a_falling_or_foreign_cost_is_unknown() {
        let mut tracker = CostTracker::default();
        assert_eq!(turn(&mut tracker, &[1.0, 0.5, 2.0]), None);
        assert_eq!(turn(&mut tracker, &[2.5]), Some(500_000), "the next turn starts anew");
        assert_eq!(turn(&mut tracker, &[2.0]), None, "below the last turn's total");

        for cost in [
            json!({"amount": 1.0, "currency": "EUR"}),
            json!({"amount": -1.0, "currency": "USD"}),
            json!({"amount": "1.0", "currency": "USD"}),
            json!({"amount": 1.0}),
            json!(1.0),
        ] {
            let mut tracker = CostTracker::default();
            tracker.begin_turn();
            tracker.observe(&usd(1.0));
            tracker.observe(&json!({ "cost": cost }));
            tracker.observe(&usd(2.0));
            assert_eq!(tracker.end_turn(), None, "{cost}");
        }
    }

    #[test]
    fn an_update_without_a_cost_changes_nothing() {
        let mut tracker = CostTracker::default();
        tracker.begin_turn();
        assert_eq!(tracker.observe(&usd(1.0)), Some(1_000_000));
        assert_eq!(tracker.observe(&json!({"used": 1, "size": 2})), None);
        assert_eq!(tracker.observe(&usd(1.5)), Some(1_500_000));
        assert_eq!(tracker.end_turn(), Some(1_500_000));
    }

    proptest! {
        #[test]
        fn rising_totals_are_charged_completely(turns in proptest::collection::vec(
            proptest::collection::vec(0u32..1_000_000, 1..4), 1..6,
        )) {
            let mut tracker = CostTracker::default();
            let (mut total, mut charged) = (0u64, 0u64);
            for steps in turns {
                tracker.begin_turn();
                for step in steps {
                    total += u64::from(step);
                    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                    tracker.observe(&usd(total as f64 / 1e6));
                }
                charged += tracker.end_turn().unwrap();
            }
            prop_assert_eq!(charged, total);
        }
    }
}
