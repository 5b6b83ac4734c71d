//! Health of a node, as another one measures it: its speed, and whether it answers. Each node judges for itself.

/// Answers that are remembered of a node.
const REMEMBERED: usize = 64;
/// Late answers in a row after which a node is suspected.
const LATE_MAX: u32 = 3;
/// First time for which a suspected node is not asked, in seconds; it doubles up to [`SUSPECT_MAX_S`].
const SUSPECT_FIRST_S: f64 = 1.0;
/// Longest time for which a suspected node is not asked, in seconds.
const SUSPECT_MAX_S: f64 = 30.0;
/// Longest wait for the first byte of a node of which nothing is known yet, in seconds.
const FIRST_BYTE_UNKNOWN_S: f64 = 1.0;
/// Shortest wait for the first byte, in seconds: a busy machine is that late now and then.
const FIRST_BYTE_MIN_S: f64 = 0.25;

/// Measurements of a node.
///
/// *Busy is not dead*: any answer clears a suspicion, also a refusal. A suspicion holds for new requests only.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// Times to the first byte of the last answers, in seconds, in a ring.
    took_s: Vec<f64>,
    next: usize,
    late: u32,
    suspected: Option<Suspicion>,
}

#[derive(Clone, Copy, Debug)]
struct Suspicion {
    until_s: f64,
    lasted_s: f64,
}

impl Health {
    /// Notes an answer: a part of the range, or a refusal. `took_s` is the time to its first byte.
    pub fn answered(&mut self, took_s: f64) {
        self.late = 0;
        self.suspected = None;
        if self.took_s.len() < REMEMBERED {
            self.took_s.push(took_s);
        } else if let Some(slot) = self.took_s.get_mut(self.next) {
            *slot = took_s;
        }
        self.next = (self.next + 1) % REMEMBERED;
    }

    /// Notes that no first byte came in time.
    pub fn late(&mut self, now_s: f64) {
        self.late += 1;
        if self.late >= LATE_MAX {
            self.suspect(now_s);
        }
    }

    /// Notes that the node took no connection, or closed one in the middle of an answer.
    pub fn failed(&mut self, now_s: f64) {
        self.suspect(now_s);
    }

    fn suspect(&mut self, now_s: f64) {
        // Requests that were under way together fail together, and are one reason.
        if self.suspected.is_some_and(|suspicion| suspicion.until_s > now_s) {
            return;
        }
        let lasted_s = self
            .suspected
            .map_or(SUSPECT_FIRST_S, |suspicion| (suspicion.lasted_s * 2.0).min(SUSPECT_MAX_S));
        self.suspected = Some(Suspicion {
            until_s: now_s + lasted_s,
            lasted_s,
        });
    }

    /// Returns whether the node is not to be asked now. After the time of a suspicion it is asked again, and one
    /// failure more suspects it for twice as long.
    pub fn is_suspected(&self, now_s: f64) -> bool {
        self.suspected.is_some_and(|suspicion| suspicion.until_s > now_s)
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
    fn three_late_answers_in_a_row_suspect_a_node_and_any_answer_clears_it() {
        let mut health = Health::default();
        health.late(0.0);
        health.late(0.0);
        health.answered(0.01);
        health.late(1.0);
        health.late(1.0);
        assert!(!health.is_suspected(1.0));
        health.late(1.0);
        assert!(health.is_suspected(1.9));
        assert!(!health.is_suspected(2.0), "asked again after a second");
        health.answered(0.01);
        assert!(!health.is_suspected(1.9));
    }

    #[test]
    fn a_suspicion_doubles_up_to_half_a_minute() {
        let mut health = Health::default();
        let mut now_s = 0.0;
        for lasts_s in [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0] {
            health.failed(now_s);
            health.failed(now_s);
            assert!(health.is_suspected(now_s + lasts_s - 0.1), "{lasts_s}");
            assert!(!health.is_suspected(now_s + lasts_s), "{lasts_s}");
            now_s += lasts_s;
        }
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
