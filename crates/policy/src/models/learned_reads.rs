//! Throughput of a disk, of other nodes and of the source by the number of concurrent threads, for Lobster's thread
//! assignment.

use std::collections::BTreeMap;

use super::{LoadModel, Portfolio, Preprocessing, ThroughputCurve, extrapolated};

/// Weight that a read loses with each later one at the same number of threads.
const FADING: f64 = 1.0 - 1.0 / 64.0;
/// Reads after which a measurement at a number of threads that no longer reads is forgotten: the source may be slower
/// by now.
const KEPT_READS: u64 = 1024;
/// Fewest reads of a measurement, if there is one with as many: single reads of a source with a latency tail say
/// little.
const READS_MIN: f64 = 8.0;
/// Power of a change of the cost at one number of threads that the costs at all others change by: nearly all of it is a
/// change of the source, and the rest brings numbers together that were measured wrongly.
const SHARED_CHANGE: f64 = 0.9;
/// Bytes a second of one thread while nothing was measured.
const UNKNOWN_BYTES_PER_S: f64 = 100e6;
/// Samples a second of decoding threads while they have not measured it: as if decoding took no time.
const UNKNOWN_SAMPLES_PER_S: f64 = 1e9;

/// Bytes and seconds of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct MeasuredReads {
    bytes: f64,
    seconds: f64,
    /// Weight of the reads.
    reads: f64,
    /// Count of all reads of the origin when the last of these ended.
    at: u64,
}

impl MeasuredReads {
    /// Seconds of one thread for a byte.
    fn byte_s(&self) -> f64 {
        self.seconds / self.bytes
    }
}

/// Reads of an origin by the number of threads at work.
#[derive(Clone, Debug, Default, PartialEq)]
struct OriginSpeed {
    by_threads: BTreeMap<u32, MeasuredReads>,
    reads: u64,
}

impl OriginSpeed {
    /// Records a read. Reads that become slower or faster do so beside any number of threads. Else numbers at which
    /// nothing is read now would be chosen, or avoided, for what the source once was.
    fn observe(&mut self, threads: u32, bytes: u64, seconds: f64) {
        self.reads += 1;
        let read = self.by_threads.entry(threads).or_default();
        let known_s = (read.reads >= READS_MIN).then(|| read.byte_s());
        read.bytes = read.bytes.mul_add(FADING, bytes as f64);
        read.seconds = read.seconds.mul_add(FADING, seconds);
        read.reads = read.reads.mul_add(FADING, 1.0);
        read.at = self.reads;
        if let Some(before_s) = known_s {
            let change = (read.byte_s() / before_s).powf(SHARED_CHANGE);
            let others = self.by_threads.iter_mut().filter(|(number, _)| **number != threads);
            others.for_each(|(_, read)| read.seconds *= change);
        }
        let reads = self.reads;
        self.by_threads.retain(|_, read| read.at + KEPT_READS >= reads);
    }

    /// Throughput by threads, up to `threads`: see [`extrapolated`]. Without a guess of what more threads than ever
    /// would read, no more would ever be tried.
    fn throughput(&self, threads: u32) -> ThroughputCurve {
        let least = self.by_threads.values().map(|read| read.reads).fold(0.0, f64::max).min(READS_MIN);
        let counted = self.by_threads.iter().filter(|(_, read)| read.reads >= least);
        let mut rates: Vec<(u32, f64)> = counted
            .map(|(&threads, read)| (threads, f64::from(threads) * read.bytes / read.seconds))
            .collect();
        rates.extend(extrapolated(&rates, threads));
        ThroughputCurve::new(&rates)
            .or_else(|_| ThroughputCurve::new(&[(1, UNKNOWN_BYTES_PER_S)]))
            .expect("a rate above zero")
    }
}

/// Times of reads, by the number of threads that were reading when a read ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LearnedReads {
    disk: OriginSpeed,
    peers: PeerSpeed,
    source: OriginSpeed,
}

/// Throughput of the other nodes together. They take no thread of this node, so what counts is the time in which any of
/// them was asked, and the bytes that came in it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct PeerSpeed {
    /// Requests under way.
    asked: u32,
    /// Time up to which the seconds are counted.
    until_s: f64,
    came: MeasuredReads,
}

impl PeerSpeed {
    fn pass(&mut self, now_s: f64) {
        if self.asked > 0 {
            self.came.seconds += now_s - self.until_s;
        }
        self.until_s = now_s;
    }
}

impl LearnedReads {
    /// Records that another node is asked.
    pub fn peer_asked(&mut self, now_s: f64) {
        self.peers.pass(now_s);
        self.peers.asked += 1;
    }

    /// Records the end of a request to another node; 0 bytes if none came.
    pub fn peer_ended(&mut self, bytes: u64, now_s: f64) {
        self.peers.pass(now_s);
        self.peers.asked = self.peers.asked.saturating_sub(1);
        let came = &mut self.peers.came;
        came.seconds *= FADING;
        came.bytes = came.bytes.mul_add(FADING, bytes as f64);
    }

    /// Records a read of `bytes` from a disk or the source that took `seconds`, with `threads` at work.
    pub fn observe(&mut self, is_of_source: bool, threads: u32, bytes: u64, seconds: f64) {
        if bytes == 0 || seconds <= 0.0 {
            return;
        }
        let measured = if is_of_source { &mut self.source } else { &mut self.disk };
        measured.observe(threads, bytes, seconds);
    }

    /// Returns the models for up to `threads` that read, given that of decoding, if it was measured; else decoding
    /// takes no time.
    ///
    /// # Panics
    /// Never: throughputs are above zero, and there are two measurements of preprocessing.
    pub fn models(&self, decoding: Option<Portfolio>, threads: u32) -> (LoadModel, Portfolio) {
        let source = self.source.throughput(threads);
        // What does not come from other nodes is read from the source.
        let MeasuredReads { bytes, seconds, .. } = self.peers.came;
        let peers = ThroughputCurve::new(&[(1, bytes / seconds)]).unwrap_or_else(|_| source.clone());
        let origins = [self.disk.throughput(threads), peers, source];
        let unknown = || Preprocessing::fit(&[(1, UNKNOWN_SAMPLES_PER_S), (2, UNKNOWN_SAMPLES_PER_S)]);
        let preprocessing = decoding.unwrap_or_else(|| Portfolio::of(unknown().expect("two numbers of threads")));
        (LoadModel { origins }, preprocessing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::LearnedDecoding;

    #[test]
    fn throughput_is_that_of_all_threads_together() {
        let mut speeds = LearnedReads::default();
        for _ in 0..10 {
            speeds.observe(true, 1, 1000, 0.1);
            speeds.observe(true, 4, 1000, 0.2);
            speeds.observe(true, 4, 0, 5.0);
        }
        let mut learned = LearnedDecoding::new(1);
        learned.observe(0, 1000, 0.002, Some(4));
        let (load, preprocessing) = speeds.models(learned.portfolio(4), 4);
        let [disk, peers, source] = &load.origins;
        assert!((source.bytes_per_s(1.0) - 10_000.0).abs() < 1.0);
        assert!((source.bytes_per_s(4.0) - 20_000.0).abs() < 1.0);
        assert_eq!(source, peers);
        assert!((disk.bytes_per_s(1.0) - UNKNOWN_BYTES_PER_S).abs() < 1.0);
        let model = preprocessing.nearest(1000);
        assert_eq!(model.threads_enough(), 4);
        assert!((model.seconds_a_sample(1) - 0.002).abs() < 1e-9);
        assert_eq!(speeds.models(None, 4).1.nearest(1000).threads_enough(), 1, "nothing was measured");
    }

    #[test]
    fn other_nodes_count_the_bytes_that_came_while_any_was_asked() {
        let mut speeds = LearnedReads::default();
        speeds.observe(true, 1, 1000, 0.1);
        // Nothing came of a request that nobody answered.
        speeds.peer_asked(0.0);
        speeds.peer_ended(0, 1.0);
        let peers = |speeds: &LearnedReads| speeds.models(None, 4).0.origins[1].bytes_per_s(1.0);
        assert!((peers(&speeds) - 10_000.0).abs() < 1.0, "as fast as the source");
        let mut speeds = LearnedReads::default();
        for nth in 0..1000 {
            // Two at once, then a pause.
            let at_s = f64::from(nth);
            speeds.peer_asked(at_s);
            speeds.peer_asked(at_s + 0.1);
            speeds.peer_ended(1000, at_s + 0.2);
            speeds.peer_ended(1000, at_s + 0.4);
        }
        assert!((peers(&speeds) / 5000.0 - 1.0).abs() < 0.02, "{}", peers(&speeds));
    }

    #[test]
    fn what_is_long_past_is_forgotten() {
        let mut speeds = LearnedReads::default();
        for nth in 0..2000 {
            speeds.observe(false, 2, 1000, if nth < 1000 { 1.0 } else { 0.1 });
        }
        let (load, _) = speeds.models(None, 4);
        assert!((load.origins[0].bytes_per_s(2.0) - 20_000.0).abs() < 100.0);
    }

    #[test]
    fn more_threads_than_ever_read_are_expected_to_gain_until_they_have_been_seen_not_to() {
        let mut speeds = LearnedReads::default();
        let source = |speeds: &LearnedReads, threads: f64| speeds.models(None, 16).0.origins[2].bytes_per_s(threads);
        for _ in 0..20 {
            speeds.observe(true, 4, 1000, 0.1);
            speeds.observe(true, 8, 1000, 0.1);
        }
        assert!((source(&speeds, 16.0) / 160_000.0 - 1.0).abs() < 1e-9, "each reads as much");
        for _ in 0..20 {
            speeds.observe(true, 12, 1000, 0.3);
        }
        assert!((source(&speeds, 16.0) / 80_000.0 - 1.0).abs() < 1e-9, "12 read no more than 8");
        // A read that was quick by chance.
        speeds.observe(true, 14, 1000, 0.001);
        assert!((source(&speeds, 16.0) / 80_000.0 - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_source_that_becomes_slower_or_faster_is_so_beside_any_number_of_threads() {
        let mut speeds = LearnedReads::default();
        (0..100).for_each(|_| speeds.observe(true, 12, 1000, 0.01));
        (0..100).for_each(|_| speeds.observe(true, 8, 1000, 0.01));
        for (times, seconds) in [(10.0, 0.1), (1.0, 0.01)] {
            (0..400).for_each(|_| speeds.observe(true, 8, 1000, seconds));
            let rate = speeds.models(None, 12).0.origins[2].bytes_per_s(12.0);
            let error = rate * times / 1_200_000.0;
            assert!((0.75..1.34).contains(&error), "{rate} if {times} times as slow");
        }
        // A single read that hangs changes nothing for long.
        speeds.observe(true, 8, 1000, 5.0);
        (0..400).for_each(|_| speeds.observe(true, 8, 1000, 0.01));
        let rate = speeds.models(None, 12).0.origins[2].bytes_per_s(12.0);
        assert!((rate / 1_200_000.0 - 1.0).abs() < 0.25, "{rate}");
    }

    #[test]
    fn a_number_of_threads_that_no_longer_reads_is_forgotten() {
        let mut speeds = LearnedReads::default();
        (0..20).for_each(|_| speeds.observe(true, 8, 1000, 0.01));
        (0..=KEPT_READS).for_each(|_| speeds.observe(true, 2, 1000, 0.1));
        assert!((speeds.models(None, 8).0.origins[2].bytes_per_s(8.0) / 80_000.0 - 1.0).abs() < 1e-9);
    }
}
