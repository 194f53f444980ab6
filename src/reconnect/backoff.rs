//! How long to wait before another attempt.

use std::time::{Duration, Instant};

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff as _;

/// A connection that lived this long was healthy: the next wait is the shortest again.
const HEALTHY: Duration = Duration::from_secs(60);

/// Waits of 0.5 s doubling to a cap, each with jitter between half and whole.
#[derive(Debug)]
pub(super) struct Backoff {
    policy: ExponentialBackoff,
    healthy_since: Option<Instant>,
}

impl Backoff {
    pub(super) fn new(cap: Duration) -> Self {
        // The crate spreads by ± a factor around the interval: three quarters ± a third is half to whole.
        let mut policy = ExponentialBackoff {
            initial_interval: Duration::from_millis(375),
            max_interval: cap.mul_f64(0.75).max(Duration::from_millis(1)),
            randomization_factor: 1.0 / 3.0,
            multiplier: 2.0,
            max_elapsed_time: None,
            ..ExponentialBackoff::default()
        };
        policy.reset();
        policy.current_interval = policy.initial_interval.min(policy.max_interval);
        Self { policy, healthy_since: None }
    }

    /// A lease was claimed.
    pub(super) fn healthy(&mut self, now: Instant) {
        self.healthy_since = Some(now);
    }

    /// The wait before the next attempt; at least what the host asked for.
    pub(super) fn next(&mut self, now: Instant, asked: Option<Duration>) -> Duration {
        if self.healthy_since.take().is_some_and(|since| now.duration_since(since) >= HEALTHY) {
            self.policy.reset();
        }
        let wait = self.policy.next_backoff().unwrap_or(self.policy.max_interval);
        wait.max(asked.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_the_cap_within_their_jitter() {
        for _ in 0..50 {
            let mut backoff = Backoff::new(Duration::from_secs(30));
            let now = Instant::now();
            for whole in [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0] {
                let wait = backoff.next(now, None).as_secs_f64();
                assert!((whole / 2.0 - 0.01..=whole + 0.01).contains(&wait), "{wait} for {whole}");
            }
        }
    }

    #[test]
    fn only_health_resets() {
        let mut backoff = Backoff::new(Duration::from_secs(30));
        let start = Instant::now();
        for _ in 0..5 {
            backoff.healthy(start);
            backoff.next(start + Duration::from_secs(1), None);
        }
        assert!(
            backoff.next(start, None) >= Duration::from_secs(8),
            "a host that accepts and drops is not hammered"
        );
        backoff.healthy(start);
        assert!(backoff.next(start + Duration::from_secs(61), None) <= Duration::from_millis(501));
    }

    #[test]
    fn the_host_may_ask_for_more() {
        let mut backoff = Backoff::new(Duration::from_secs(30));
        assert!(backoff.next(Instant::now(), Some(Duration::from_secs(90))) >= Duration::from_secs(90));
    }
}
