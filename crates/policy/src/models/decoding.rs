//! Decoding speed, learned while ranks decode: throughput by size class of samples and by threads, and the recent cost
//! of a sample for each rank.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::rank_threads::{RankThreads, STALE_BATCHES, recent};
use super::{Portfolio, Preprocessing, extrapolated};

/// Batches after which a measurement at a number of threads that no longer decodes is forgotten, and so are those of a
/// profile.
const KEPT_BATCHES: u64 = 1024;
/// A measurement of decoding that was made before: one of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfiledDecoding {
    /// Mean size of the samples in bytes.
    pub bytes: u64,
    /// Threads that decoded at once.
    pub threads: u32,
    /// Seconds of one of these threads for a sample.
    pub seconds: f64,
}

/// Recent cost of a rank's samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct RankCost {
    seconds: f64,
    bytes: u64,
    /// Threads of the node that decode now; 0 if that is not known.
    threads: u32,
    /// Batches since they are as many.
    batches: u64,
    /// Threads beside which recent batches were decoded: the first ones after a change were decoded before it.
    beside: u32,
}

impl RankCost {
    fn observe(&mut self, bytes: u64, seconds: f64, threads: u32) {
        self.seconds = recent(self.seconds, seconds);
        self.bytes = bytes;
        if threads != self.threads {
            (self.threads, self.batches) = (threads, 0);
        }
        self.batches += 1;
        if self.batches > STALE_BATCHES || self.beside == 0 {
            self.beside = threads;
        }
    }
}

/// Costs of a size class by rank.
type ClassCosts = BTreeMap<usize, RankThreads>;

/// Decoding of a node's ranks, as measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LearnedDecoding {
    ranks: Vec<RankCost>,
    classes: BTreeMap<u32, ClassCosts>,
    batches: u64,
    /// Samples a second by threads for each size class, from a profile.
    profile: BTreeMap<u32, Vec<(u32, f64)>>,
}

impl LearnedDecoding {
    /// Creates a model of `ranks` that have measured nothing.
    pub fn new(ranks: usize) -> Self {
        Self {
            ranks: vec![RankCost::default(); ranks],
            ..Self::default()
        }
    }

    /// Starts from measurements of a profile. They count for a rank that has measured nothing; and for a while, how
    /// throughput grows with threads is theirs, as long as it was measured at one number of threads only.
    pub fn start_from(&mut self, profile: &[ProfiledDecoding]) {
        for ProfiledDecoding { bytes, threads, seconds } in profile {
            if *threads > 0 && *seconds > 0.0 && seconds.is_finite() {
                let rates = self.profile.entry(class_of(*bytes)).or_default();
                rates.push((*threads, f64::from(*threads) / seconds));
            }
        }
    }

    /// Records a batch of a rank: one thread took `seconds` for a sample of `bytes` on average, while `threads` of the
    /// node were decoding, if their number is known.
    pub fn observe(&mut self, rank: usize, bytes: u64, seconds: f64, threads: Option<u32>) {
        if !(seconds > 0.0 && seconds.is_finite()) {
            return;
        }
        let threads = threads.unwrap_or(0);
        self.ranks[rank].observe(bytes, seconds, threads);
        if threads == 0 {
            return;
        }
        self.batches += 1;
        let class = self.classes.entry(class_of(bytes)).or_default();
        class.entry(rank).or_default().observe(threads, seconds, self.batches);
        let since = self.batches.saturating_sub(KEPT_BATCHES);
        for rank in class.values_mut() {
            rank.forget_before(since);
        }
    }

    /// Returns the seconds in which one thread of a rank decodes a sample of `bytes`. The rank's recent cost is scaled
    /// by the measured ratio of both size classes. A rank that has measured nothing has the profile's cost, or 0
    /// without a profile.
    pub fn seconds(&self, rank: usize, bytes: u64) -> f64 {
        let RankCost {
            seconds, bytes: measured, ..
        } = self.ranks[rank];
        if seconds == 0.0 {
            let rates = self.profiled(class_of(bytes)).and_then(|rates| rates.first());
            return rates.map_or(0.0, |&(threads, rate)| f64::from(threads) / rate);
        }
        let ratio = match (self.class_seconds(bytes), self.class_seconds(measured)) {
            (Some(wanted), Some(known)) => wanted / known,
            _ => 1.0,
        };
        seconds * ratio
    }

    /// Returns the recent seconds in which one thread of a rank decodes a sample; 0 if it has measured nothing.
    pub fn recent_s(&self, rank: usize) -> f64 {
        self.ranks[rank].seconds
    }

    /// Returns the threads of the node beside which the rank's recent batches were decoded; 0 if that is not known.
    pub fn threads(&self, rank: usize) -> u32 {
        self.ranks[rank].beside
    }

    /// Returns throughput by threads for each size class, up to `threads`; `None` before any measurement. A class that
    /// was measured at one number of threads grows as in the profile. Without a profile, and after a while, it counts
    /// as proportional; with several numbers it goes on as [`extrapolated`] says.
    pub fn portfolio(&self, threads: u32) -> Option<Portfolio> {
        let profiled = self.profile.keys().filter(|class| !self.classes.contains_key(class));
        let models = self.classes.keys().chain(profiled).filter_map(|&class| {
            let points = match self.classes.get(&class).map(throughput) {
                Some(points) => points?,
                None => self.profile.get(&class)?.clone(),
            };
            let model = if let [(measured, rate)] = points[..] {
                self.grown(class, (measured, rate), threads)
            } else {
                let more = extrapolated(&points, threads);
                Preprocessing::fit(&points.into_iter().chain(more).collect::<Vec<_>>()).ok()
            };
            Some((middle_of(class), model?))
        });
        Portfolio::new(models)
    }

    /// Returns throughput by threads from that at one number of threads.
    fn grown(&self, class: u32, (measured, rate): (u32, f64), threads: u32) -> Option<Preprocessing> {
        let rates = self.profiled(class).filter(|_| self.batches < KEPT_BATCHES);
        if let Some(profiled) = rates.and_then(|rates| Preprocessing::fit(rates).ok()) {
            let scale = rate / profiled.samples_per_s(measured);
            let scaled = rates?.iter().map(|&(threads, rate)| (threads, scale * rate));
            return Preprocessing::fit(&scaled.collect::<Vec<_>>()).ok();
        }
        let (one, most) = (rate / f64::from(measured), threads.max(measured).max(2));
        Preprocessing::fit(&[(1, one), (most, f64::from(most) * one)]).ok()
    }

    /// Returns the profile's measurements of the size class that is nearest.
    fn profiled(&self, class: u32) -> Option<&Vec<(u32, f64)>> {
        let nearest = self.profile.iter().min_by_key(|(profiled, _)| profiled.abs_diff(class));
        nearest.map(|(_, rates)| rates)
    }

    fn class_seconds(&self, bytes: u64) -> Option<f64> {
        let ranks = self.classes.get(&class_of(bytes))?.values();
        let costs: Vec<f64> = ranks.filter_map(|rank| rank.seconds(rank.newest()?.1)).collect();
        (!costs.is_empty()).then(|| costs.iter().sum::<f64>() / costs.len() as f64)
    }
}

/// Returns samples a second by threads.
///
/// The number of threads that decode now sets the scale. How much slower a thread is at another number is asked of the
/// rank whose cost differs least between both: too many threads slow all ranks down, and a rank whose samples have
/// become costlier is alone with it.
fn throughput(costs: &ClassCosts) -> Option<Vec<(u32, f64)>> {
    let (_, now) = costs.values().filter_map(RankThreads::newest).max()?;
    let scale: Vec<f64> = costs.values().filter_map(|rank| rank.seconds(now)).collect();
    let seconds = scale.iter().sum::<f64>() / scale.len() as f64;
    let slowdown = |threads: u32| {
        let ratios = costs.values().filter_map(|rank| Some(rank.seconds(threads)? / rank.seconds(now)?));
        ratios.min_by(|a, b| a.ln().abs().total_cmp(&b.ln().abs()))
    };
    let numbers: BTreeSet<u32> = costs.values().flat_map(RankThreads::numbers).collect();
    let points = numbers
        .into_iter()
        .filter_map(|threads| Some((threads, f64::from(threads) / (seconds * slowdown(threads)?))));
    Some(points.collect())
}

/// Size class: sizes between two powers of two.
const fn class_of(bytes: u64) -> u32 {
    u64::BITS - bytes.leading_zeros()
}

/// A size in the middle of a class, in bytes.
const fn middle_of(class: u32) -> u64 {
    let (least, most) = (class_least(class), class_least(class + 1));
    least + (most - least) / 2
}

const fn class_least(class: u32) -> u64 {
    match class {
        0 => 0,
        65.. => u64::MAX,
        _ => 1 << (class - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 0.02 * expected, "{found}, not {expected}");
    }

    #[test]
    fn a_rank_s_cost_follows_a_change_within_a_few_batches() {
        let mut learned = LearnedDecoding::new(2);
        assert!(learned.seconds(0, 1000) == 0.0 && learned.portfolio(8).is_none());
        learned.observe(0, 1000, 0.01, Some(8));
        learned.observe(1, 1000, 0.01, Some(8));
        for _ in 0..6 {
            learned.observe(0, 1000, 0.04, Some(8));
        }
        close(learned.seconds(0, 1000), 0.04);
        close(learned.seconds(1, 1000), 0.01);
    }

    #[test]
    fn a_size_class_has_its_own_cost_and_model() {
        let mut learned = LearnedDecoding::new(2);
        for _ in 0..100 {
            learned.observe(0, 1000, 0.01, Some(4));
            learned.observe(1, 100_000, 0.05, Some(4));
        }
        close(learned.seconds(0, 100_000), 0.05);
        let models = learned.portfolio(8).expect("measured");
        close(models.nearest(1000).samples_per_s(4), 400.0);
        close(models.nearest(100_000).samples_per_s(8), 160.0);
        assert_eq!(models.nearest(1000).threads_enough(), 8);
    }

    #[test]
    fn a_profile_counts_until_it_is_known_better() {
        let mut learned = LearnedDecoding::new(2);
        // Two threads have the peak.
        let profile = [(1, 0.01), (2, 0.01), (4, 0.02), (8, 0.04)].map(|(threads, seconds)| ProfiledDecoding {
            bytes: 1000,
            threads,
            seconds,
        });
        learned.start_from(&profile);
        let enough = |learned: &LearnedDecoding| learned.portfolio(8).expect("profiled").nearest(1000).threads_enough();
        assert_eq!(enough(&learned), 2);
        close(learned.seconds(1, 1000), 0.01);
        learned.observe(0, 1000, 0.03, Some(2));
        assert_eq!(enough(&learned), 2, "twice 0.03 s is what two threads take, and more gain nothing");
        close(learned.portfolio(8).expect("measured").nearest(1000).samples_per_s(2), 2.0 / 0.03);
        close(learned.seconds(0, 1000), 0.03);
        (0..KEPT_BATCHES).for_each(|_| learned.observe(0, 1000, 0.03, Some(2)));
        assert_eq!(enough(&learned), 8, "more threads are tried in the end");
    }

    #[test]
    fn a_rank_that_becomes_slow_does_not_look_like_too_many_threads() {
        let mut learned = LearnedDecoding::new(2);
        for _ in 0..20 {
            learned.observe(0, 1000, 0.01, Some(4));
            learned.observe(1, 1000, 0.01, Some(4));
        }
        for _ in 0..20 {
            learned.observe(0, 1000, 0.08, Some(8));
            learned.observe(1, 1000, 0.01, Some(8));
        }
        let models = learned.portfolio(8).expect("measured");
        assert_eq!(models.nearest(1000).threads_enough(), 8);
        close(models.nearest(1000).samples_per_s(8), 8.0 / 0.045);
    }

    #[test]
    fn samples_that_become_costlier_for_all_ranks_do_not_look_like_too_many_threads() {
        let mut learned = LearnedDecoding::new(2);
        let mut batches = |count: usize, seconds: f64, threads: u32| {
            for rank in (0..count).flat_map(|_| [0, 1]) {
                learned.observe(rank, 1000, seconds, Some(threads));
            }
            let models = learned.portfolio(16).expect("measured");
            let model = models.nearest(1000);
            (model.threads_enough(), model.samples_per_s(16))
        };
        // Eight threads, then four; while four decode, samples become four times as costly.
        batches(20, 0.005, 8);
        batches(80, 0.005, 4);
        assert_eq!(batches(3, 0.02, 4).0, 16);
        close(batches(60, 0.02, 4).1, 16.0 / 0.02);
        // And cheaper again, while twelve decode.
        assert_eq!(batches(20, 0.02, 12).0, 16);
        assert_eq!(batches(3, 0.005, 12).0, 16);
        close(batches(60, 0.005, 12).1, 16.0 / 0.005);
        // Threads that hinder each other are seen once their number has changed.
        assert_eq!(batches(20, 0.0025, 6).0, 6);
    }

    /// The number moves as soon as one rank shows it, and again before anything is measured there.
    #[test]
    fn samples_that_become_costlier_as_threads_are_added_do_not_look_like_too_many_threads() {
        let mut learned = LearnedDecoding::new(2);
        let mut batches = |count: usize, seconds: f64, threads: u32| {
            for rank in (0..count).flat_map(|_| [0, 1]) {
                learned.observe(rank, 1000, seconds, Some(threads));
            }
            learned.portfolio(16).expect("measured").nearest(1000).samples_per_s(4)
        };
        batches(40, 0.01, 4);
        batches(1, 0.04, 8);
        let four = batches(8, 0.04, 12);
        assert!(four < 210.0, "four threads decode 100 samples a second, not {four}");
    }

    #[test]
    fn threads_that_move_at_the_first_costlier_batch_do_not_look_as_if_they_hindered_each_other() {
        for sizes in [[1000, 1000], [1000, 1100]] {
            // With the second sizes, batches of two size classes alternate.
            let mut learned = LearnedDecoding::new(1);
            let mut batches = |count: usize, seconds: f64, threads: u32| {
                (0..count).for_each(|nth| learned.observe(0, sizes[nth % 2], seconds, Some(threads)));
            };
            batches(40, 0.005, 4);
            batches(2, 0.04, 4);
            batches(40, 0.04, 8);
            batches(2, 0.01, 8);
            batches(40, 0.01, 4);
            for bytes in sizes {
                let models = learned.portfolio(16).expect("measured");
                let model = models.nearest(bytes);
                assert_eq!(model.threads_enough(), 16, "{sizes:?}");
                close(model.samples_per_s(8) / model.samples_per_s(4), 2.0);
            }
        }
    }

    #[test]
    fn a_number_of_threads_that_changes_all_the_time_leaves_what_is_known() {
        let mut learned = LearnedDecoding::new(2);
        let mut batches = |count: usize, threads: u32| {
            for rank in (0..count).flat_map(|_| [0, 1]) {
                learned.observe(rank, 1000, 0.01, Some(threads));
            }
            let beside = learned.threads(0);
            learned.portfolio(16).map(|models| (models.nearest(1000).threads_enough(), beside))
        };
        batches(10, 8);
        for nth in 0..KEPT_BATCHES {
            batches(1, if nth % 2 == 0 { 7 } else { 9 });
        }
        assert_eq!(batches(1, 6), Some((16, 8)), "one batch at a number tells nothing");
        assert_eq!(batches(4, 6), Some((16, 6)));
    }

    #[test]
    fn one_batch_that_took_long_does_not_make_a_number_of_threads_look_bad() {
        let mut learned = LearnedDecoding::new(1);
        for (count, seconds, threads) in [(20, 0.01, 4), (2, 0.01, 8), (1, 0.05, 8), (1, 0.01, 4)] {
            (0..count).for_each(|_| learned.observe(0, 1000, seconds, Some(threads)));
        }
        assert_eq!(learned.portfolio(8).expect("measured").nearest(1000).threads_enough(), 8);
    }

    #[test]
    fn threads_that_hinder_each_other_are_seen_though_the_first_batches_were_decoded_before_they_were_as_many() {
        let mut learned = LearnedDecoding::new(1);
        for (count, seconds, threads) in [(20, 0.01, 4), (2, 0.01, 8), (20, 0.02, 8)] {
            (0..count).for_each(|_| learned.observe(0, 1000, seconds, Some(threads)));
        }
        assert_eq!(learned.portfolio(8).expect("measured").nearest(1000).threads_enough(), 4);
    }

    #[test]
    fn more_threads_than_ever_decoded_are_expected_to_gain_as_those_before_did() {
        let mut learned = LearnedDecoding::new(1);
        for threads in [7, 8] {
            (0..20).for_each(|_| learned.observe(0, 1000, 0.01, Some(threads)));
        }
        let models = learned.portfolio(16).expect("measured");
        assert_eq!(models.nearest(1000).threads_enough(), 16);
        close(models.nearest(1000).samples_per_s(16), 1600.0);
    }

    #[test]
    fn threads_that_gain_nothing_are_seen_once_several_numbers_were_measured() {
        let mut learned = LearnedDecoding::new(1);
        // Two processors: throughput ends to grow at two threads.
        for threads in 1..=8 {
            (0..6).for_each(|_| learned.observe(0, 1000, 0.01 * f64::from(threads.max(2)) / 2.0, Some(threads)));
        }
        for most in [8, 16] {
            assert_eq!(learned.portfolio(most).expect("measured").nearest(1000).threads_enough(), 2);
        }
        for _ in 0..=KEPT_BATCHES {
            learned.observe(0, 1000, 0.01, Some(2));
        }
        assert_eq!(
            learned.portfolio(8).expect("measured").nearest(1000).threads_enough(),
            8,
            "measured again"
        );
    }
}
