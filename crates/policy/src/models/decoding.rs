//! Decoding speed, learned while ranks decode: throughput by size class of samples and by threads, and the recent cost
//! of a sample for each rank.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Portfolio, Preprocessing, extrapolated};

/// Weight that a rank's cost of a sample loses with each later batch: threads follow a change within a few steps.
const FADING: f64 = 1.0 / 3.0;
/// Weight that a measurement of a size class loses with each later one at the same number of threads.
const CLASS_FADING: f64 = 1.0 - 1.0 / 64.0;
/// Batches after which a measurement at a number of threads that no longer decodes is forgotten, and so are those of a
/// profile.
const KEPT_BATCHES: u64 = 1024;
/// Batches of a rank that make a measurement at a number of threads.
const KNOWN_BATCHES: u64 = 4;
/// Factor by which the last batches differ from those before if these no longer count.
const CHANGED: f64 = 1.25;

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
    /// Threads of the node that decoded beside the last batch.
    threads: Option<u32>,
}

impl RankCost {
    fn observe(&mut self, bytes: u64, seconds: f64) {
        self.seconds = faded(self.seconds, seconds);
        self.bytes = bytes;
    }
}

/// Returns a recent cost after one more; 0 stands for none before.
fn faded(before: f64, seconds: f64) -> f64 {
    if before == 0.0 {
        seconds
    } else {
        seconds.mul_add(1.0 - FADING, FADING * before)
    }
}

/// Cost of a rank's samples of one size class at one number of threads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ThreadCost {
    samples: f64,
    /// Seconds of one thread for these samples.
    seconds: f64,
    /// Recent seconds for a sample.
    recent_s: f64,
    /// Batches since as many threads as now decode.
    batches: u64,
    /// Count of all batches when the last of these was measured.
    at: u64,
}

impl ThreadCost {
    fn mean_s(&self) -> f64 {
        self.seconds / self.samples
    }

    /// Begins a new measurement: what was measured before counts as one batch.
    fn begin(&mut self) {
        if self.samples > 1.0 {
            self.seconds = self.mean_s();
            self.samples = 1.0;
        }
        self.recent_s = 0.0;
        self.batches = 0;
    }

    /// Records a batch. Returns the factor by which samples have become costlier, or cheaper, since the one before;
    /// `None` while too few batches were measured to tell.
    fn observe(&mut self, seconds: f64) -> Option<f64> {
        let before_s = self.mean_s();
        self.samples = self.samples.mul_add(CLASS_FADING, 1.0);
        self.seconds = self.seconds.mul_add(CLASS_FADING, seconds);
        self.recent_s = faded(self.recent_s, seconds);
        self.batches += 1;
        if self.batches <= KNOWN_BATCHES {
            return None;
        }
        if (self.recent_s / self.mean_s()).ln().abs() > CHANGED.ln() {
            (self.samples, self.seconds) = (1.0, self.recent_s);
        }
        Some(self.mean_s() / before_s)
    }
}

/// Costs of a size class by the node's decoding threads, then by rank.
type ClassCosts = BTreeMap<u32, BTreeMap<usize, ThreadCost>>;

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
    ///
    /// Samples that become costlier while as many threads decode as before would cost more beside any number of
    /// threads. So the rank's measurements at other numbers change by the same factor: how throughput grows with
    /// threads is only told by batches before and after their number has changed.
    pub fn observe(&mut self, rank: usize, bytes: u64, seconds: f64, threads: Option<u32>) {
        if !(seconds > 0.0 && seconds.is_finite()) {
            return;
        }
        let cost = &mut self.ranks[rank];
        cost.observe(bytes, seconds);
        let Some(threads) = threads.filter(|threads| *threads > 0) else {
            return;
        };
        let is_as_before = cost.threads.replace(threads) == Some(threads);
        self.batches += 1;
        let class = self.classes.entry(class_of(bytes)).or_default();
        let measured = class.entry(threads).or_default().entry(rank).or_default();
        if !is_as_before {
            measured.begin();
        }
        measured.at = self.batches;
        if let Some(change) = measured.observe(seconds) {
            let others = class.iter_mut().filter(|(number, _)| **number != threads);
            others
                .filter_map(|(_, ranks)| ranks.get_mut(&rank))
                .for_each(|cost| cost.seconds *= change);
        }
        let batches = self.batches;
        class.retain(|_, ranks| ranks.values().any(|measured| measured.at + KEPT_BATCHES >= batches));
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
        let measured = self.classes.get(&class_of(bytes))?.values().flat_map(BTreeMap::values);
        let (samples, seconds) = measured.fold((0.0, 0.0), |sum, cost| (sum.0 + cost.samples, sum.1 + cost.seconds));
        (samples > 0.0).then(|| seconds / samples)
    }
}

/// Returns samples a second by threads.
///
/// The number of threads that decode now sets the scale. How much slower a thread is at another number is asked of the
/// rank whose cost differs least between both: too many threads slow all ranks down, and a rank whose samples have
/// become costlier is alone with it.
fn throughput(costs: &ClassCosts) -> Option<Vec<(u32, f64)>> {
    let newest = |ranks: &BTreeMap<usize, ThreadCost>| ranks.values().map(|cost| cost.at).max();
    let (_, now) = costs.iter().max_by_key(|(_, ranks)| newest(ranks))?;
    let seconds = now.values().map(ThreadCost::mean_s).sum::<f64>() / now.len() as f64;
    let slowdown = |ranks: &BTreeMap<usize, ThreadCost>| {
        let ratios = ranks
            .iter()
            .filter_map(|(rank, cost)| Some(cost.mean_s() / now.get(rank)?.mean_s()));
        ratios.min_by(|a, b| a.ln().abs().total_cmp(&b.ln().abs()))
    };
    let points = costs
        .iter()
        .filter_map(|(&threads, ranks)| Some((threads, f64::from(threads) / (seconds * slowdown(ranks)?))));
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
            learned.observe(0, 1000, 0.01 * f64::from(threads.max(2)) / 2.0, Some(threads));
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
