//! Health of a node, as another one measures it: its speed, and whether it answers. Each node judges for itself.

/// Answers that are remembered of a node.
const REMEMBERED: usize = 64;
/// Time after the first probe of a suspected node without an answer until the next one, in seconds; it doubles up to
/// [`PROBE_MAX_S`].
const PROBE_FIRST_S: f64 = 1.0;
/// Longest time between two probes of a suspected node, in seconds.
const PROBE_MAX_S: f64 = 30.0;
/// Longest wait for the first byte of a node of which nothing is known yet, in seconds.
const FIRST_BYTE_UNKNOWN_S: f64 = 1.0;
/// Shortest wait for the first byte, in seconds: a busy machine is that late now and then.
const FIRST_BYTE_MIN_S: f64 = 0.25;

/// Measurements of a node.
///
/// A node that was silent once is suspected: nothing is asked of it until it has answered a probe, the first of which
/// goes out at once. *Busy is not dead*: any answer clears a suspicion, also a refusal. A suspicion holds for new
/// requests only.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// Times to the first byte of the last answers, in seconds, in a ring.
    took_s: Vec<f64>,
    next: usize,
    suspected: Option<Suspicion>,
}

#[derive(Clone, Copy, Debug)]
struct Suspicion {
    /// Time of the next probe.
    probe_at_s: f64,
    /// Time since the last probe; 0 before the first.
    pause_s: f64,
}

impl Health {
    /// Notes an answer: a part of the range, or a refusal. `took_s` is the time to its first byte.
    pub fn answered(&mut self, took_s: f64) {
        self.cleared();
        if self.took_s.len() < REMEMBERED {
            self.took_s.push(took_s);
        } else if let Some(slot) = self.took_s.get_mut(self.next) {
            *slot = took_s;
        }
        self.next = (self.next + 1) % REMEMBERED;
    }

    /// Notes that the node took no connection, broke off, sent no first byte in time, or refused this node's table of
    /// members.
    pub fn silent(&mut self, now_s: f64) {
        // Requests that were under way together fail together, and are one reason.
        self.suspected.get_or_insert(Suspicion {
            probe_at_s: now_s,
            pause_s: 0.0,
        });
    }

    /// Ends a suspicion: the node has answered a probe.
    pub const fn cleared(&mut self) {
        self.suspected = None;
    }

    /// Notes a probe without an answer.
    pub fn not_cleared(&mut self, now_s: f64) {
        if let Some(suspicion) = &mut self.suspected {
            suspicion.pause_s = (suspicion.pause_s * 2.0).clamp(PROBE_FIRST_S, PROBE_MAX_S);
            suspicion.probe_at_s = now_s + suspicion.pause_s;
        }
    }

    /// Returns true if the node is not to be asked.
    pub const fn is_suspected(&self) -> bool {
        self.suspected.is_some()
    }

    /// Returns when a suspected node is to be probed next, in seconds.
    pub fn probe_at_s(&self) -> Option<f64> {
        self.suspected.map(|suspicion| suspicion.probe_at_s)
    }

    /// Returns how long to wait for the first byte, in seconds: three times what 99 of 100 answers took, at most
    /// `within_s`.
    pub fn first_byte_s(&self, within_s: f64) -> f64 {
        self.quantile(0.99)
            .map_or(FIRST_BYTE_UNKNOWN_S, |p99| (3.0 * p99).max(FIRST_BYTE_MIN_S))
            .min(within_s)
    }

    /// Returns after how many seconds without an answer a second node may be asked: what 95 of 100 answers took, at
    /// least three times the median. `None` until there were enough answers to tell.
    pub fn hedge_after_s(&self) -> Option<f64> {
        (self.took_s.len() >= REMEMBERED / 4).then_some(())?;
        Some(self.quantile(0.95)?.max(3.0 * self.quantile(0.5)?))
    }

    fn quantile(&self, share: f64) -> Option<f64> {
        let mut sorted = self.took_s.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "at most 64"
        )]
        let index = ((sorted.len() as f64 * share).ceil() as usize).saturating_sub(1);
        sorted.get(index).copied()
    }
}

/// Bytes that may be asked for a second time: a share of all that came, saved up to a bound.
#[derive(Clone, Copy, Debug)]
pub struct HedgeBudget {
    share: f64,
    saved_bytes: f64,
    saved_max_bytes: f64,
}

impl HedgeBudget {
    /// Makes a budget: `share` of the bytes that come, of which at most `saved_max_bytes` are saved up.
    pub const fn new(share: f64, saved_max_bytes: f64) -> Self {
        Self {
            share,
            saved_bytes: 0.0,
            saved_max_bytes,
        }
    }

    /// Notes bytes that have come.
    #[expect(clippy::cast_precision_loss, reason = "a budget")]
    pub fn came(&mut self, bytes: u64) {
        self.saved_bytes = (self.saved_bytes + self.share * bytes as f64).min(self.saved_max_bytes);
    }

    /// Takes bytes for a second request out of the budget. Returns whether there were enough.
    #[expect(clippy::cast_precision_loss, reason = "a budget")]
    pub fn take(&mut self, bytes: u64) -> bool {
        let enough = self.saved_bytes >= bytes as f64;
        if enough {
            self.saved_bytes -= bytes as f64;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_node_is_suspected_until_it_answers() {
        let mut health = Health::default();
        assert!(!health.is_suspected());
        health.silent(3.0);
        assert!(health.is_suspected());
        assert_eq!(health.probe_at_s(), Some(3.0), "the first probe goes out at once");
        health.cleared();
        assert!(!health.is_suspected() && health.probe_at_s().is_none());
        health.silent(4.0);
        health.answered(0.01);
        assert!(!health.is_suspected(), "any answer clears it");
    }

    #[test]
    fn pauses_between_probes_double_up_to_half_a_minute() {
        let mut health = Health::default();
        let mut now_s = 0.0;
        health.silent(now_s);
        for pause_s in [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0] {
            health.not_cleared(now_s);
            health.silent(now_s + 0.5);
            now_s += pause_s;
            assert!(health.probe_at_s().is_some_and(|at_s| (at_s - now_s).abs() < 1e-9), "{pause_s}");
        }
        health.cleared();
        health.not_cleared(now_s);
        assert!(!health.is_suspected(), "another answer came meanwhile");
    }

    #[test]
    fn waits_follow_what_was_measured() {
        let mut health = Health::default();
        assert!((health.first_byte_s(5.0) - 1.0).abs() < 1e-9);
        assert_eq!(health.hedge_after_s(), None);
        for _ in 0..95 {
            health.answered(0.1);
        }
        for _ in 0..5 {
            health.answered(0.5);
        }
        assert!((health.first_byte_s(5.0) - 1.5).abs() < 1e-9);
        assert!((health.first_byte_s(0.2) - 0.2).abs() < 1e-9, "never longer than there is time");
        assert!((health.hedge_after_s().unwrap() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_hundredth_of_what_came_may_be_asked_twice() {
        let mut budget = HedgeBudget::new(0.01, 1000.0);
        assert!(!budget.take(1));
        budget.came(10_000);
        assert!(budget.take(100));
        assert!(!budget.take(1));
        budget.came(10_000_000);
        assert!(!budget.take(1001), "no more is saved up");
        assert!(budget.take(1000));
    }
}
