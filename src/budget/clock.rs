//! How long a lease may be relied on here.

use std::time::Duration;

/// Counts a lease from when its last successful renewal was *sent*, on a clock that runs during sleep, so that this
/// side stops before the host hands the session on. Wall-clock jumps change nothing.
#[derive(Debug, Clone)]
pub struct LeaseClock {
    length: Duration,
    renewed: Duration,
}

impl LeaseClock {
    /// A lease of this length whose claim was sent at `sent`, a time from [`LeaseClock::now`].
    pub fn new(length: Duration, sent: Duration) -> Self {
        Self { length, renewed: sent }
    }

    /// Now, on the clock that leases are counted by: time since boot, sleep included.
    pub fn now() -> Duration {
        #[cfg(target_os = "linux")]
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        // Elsewhere the monotonic clock is the one that runs during sleep, or the best there is.
        #[cfg(not(target_os = "linux"))]
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
    }

    /// A renewal that was sent at `sent` succeeded. An answer that overtook a later one changes nothing.
    pub fn renewed(&mut self, sent: Duration) {
        self.renewed = self.renewed.max(sent);
    }

    /// What is left of the lease at `now`; zero when it ran out.
    pub fn left(&self, now: Duration) -> Duration {
        (self.renewed + self.length).saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_from_the_sending() {
        let s = Duration::from_secs;
        let mut clock = LeaseClock::new(s(30), s(100));
        assert_eq!(clock.left(s(110)), s(20));
        clock.renewed(s(120));
        clock.renewed(s(110));
        assert_eq!(clock.left(s(130)), s(20));
        assert_eq!(clock.left(s(151)), s(0));
    }

    #[test]
    fn the_clock_runs() {
        let before = LeaseClock::now();
        assert!(LeaseClock::now() >= before && before > Duration::ZERO);
    }
}
