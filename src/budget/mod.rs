//! What is enforced on the donor's own machine, whatever the host says: the ledger of a grant and the clock of a
//! lease.

mod approval;
mod clock;
mod ledger;

pub use approval::{approve_limit, approved_limit};
pub use clock::LeaseClock;
pub use ledger::{Account, Ledger, LedgerError, Spending, Summary};

use axp_protocol::shape::Allowance;

/// The most a turn may use: the smaller of what one turn may have and what is left; `None` when nothing is.
///
/// A cost limit of zero means that the agent's cost is not counted, so nothing left of it stops nobody.
pub fn turn_ceiling(limit: &Allowance, spent: &Allowance, per_turn: &Allowance) -> Option<Allowance> {
    let left = limit.left(spent);
    if left.turns == 0 || left.tokens == 0 || (limit.cost_micros > 0 && left.cost_micros == 0) {
        return None;
    }
    Some(Allowance {
        tokens: per_turn.tokens.min(left.tokens),
        cost_micros: per_turn.cost_micros.min(left.cost_micros),
        turns: 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn allowance(max: u64) -> impl Strategy<Value = Allowance> {
        (0..max, 0..max, 0..max).prop_map(|(tokens, cost_micros, turns)| Allowance {
            tokens,
            cost_micros,
            turns,
        })
    }

    proptest! {
        #[test]
        fn a_ceiling_fits_what_is_left(limit in allowance(50), spent in allowance(50), turn in allowance(50)) {
            if let Some(ceiling) = turn_ceiling(&limit, &spent, &turn) {
                prop_assert!(spent.within(&limit) || !spent.plus(&ceiling).within(&limit));
                prop_assert!(ceiling.within(&limit.left(&spent)));
                prop_assert_eq!(ceiling.turns, 1);
            } else {
                let left = limit.left(&spent);
                prop_assert!(left.turns == 0 || left.tokens == 0 || left.cost_micros == 0);
            }
        }
    }

    #[test]
    fn a_cost_limit_of_zero_is_no_limit_to_reach() {
        let limit = Allowance { tokens: 10, cost_micros: 0, turns: 1 };
        assert!(
            turn_ceiling(&limit, &Allowance::default(), &Allowance { tokens: 5, cost_micros: 9, turns: 1 })
                .is_some()
        );
    }
}
