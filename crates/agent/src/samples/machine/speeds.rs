//! Throughput of a disk, of other nodes and of the source by the number of concurrent threads, for Lobster's thread
//! assignment.

use std::collections::BTreeMap;

use forebay_policy::models::{LoadModel, Portfolio, Preprocessing, ThroughputCurve};

/// Weight that a read loses with each later one at the same number of threads.
const FADING: f64 = 1.0 - 1.0 / 64.0;
/// Bytes a second of one thread while nothing was measured.
const UNKNOWN_BYTES_PER_S: f64 = 100e6;
/// Samples a second of decoding threads while they have not measured it: as if decoding took no time.
const UNKNOWN_SAMPLES_PER_S: f64 = 1e9;

/// Bytes and seconds of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct MeasuredReads {
    bytes: f64,
    seconds: f64,
}

/// Measurements, by the number of threads that were reading when a read ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Speeds {
    disk: BTreeMap<u32, MeasuredReads>,
    peers: PeerSpeed,
    source: BTreeMap<u32, MeasuredReads>,
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

impl Speeds {
    /// Records that another node is asked.
    pub(super) fn peer_asked(&mut self, now_s: f64) {
        self.peers.pass(now_s);
        self.peers.asked += 1;
    }

    /// Records the end of a request to another node; 0 bytes if none came.
    pub(super) fn peer_ended(&mut self, bytes: u64, now_s: f64) {
        self.peers.pass(now_s);
        self.peers.asked = self.peers.asked.saturating_sub(1);
        let came = &mut self.peers.came;
        came.seconds *= FADING;
        came.bytes = came.bytes.mul_add(FADING, bytes as f64);
    }

    /// Records a read of `bytes` from a disk or the source that took `seconds`, with `threads` at work.
    pub(super) fn observe(&mut self, is_of_source: bool, threads: u32, bytes: u64, seconds: f64) {
        if bytes == 0 || seconds <= 0.0 {
            return;
        }
        let measured = if is_of_source { &mut self.source } else { &mut self.disk };
        let read = measured.entry(threads).or_default();
        read.bytes = read.bytes.mul_add(FADING, bytes as f64);
        read.seconds = read.seconds.mul_add(FADING, seconds);
    }

    /// Returns the models, given that of decoding, if it was measured; else decoding takes no time.
    ///
    /// # Panics
    /// Never: throughputs are above zero, and there are two measurements of preprocessing.
    pub(crate) fn models(&self, decoding: Option<Portfolio>) -> (LoadModel, Portfolio) {
        let source = throughput(&self.source);
        // What does not come from other nodes is read from the source.
        let MeasuredReads { bytes, seconds } = self.peers.came;
        let peers = ThroughputCurve::new(&[(1, bytes / seconds)]).unwrap_or_else(|_| source.clone());
        let origins = [throughput(&self.disk), peers, source];
        let unknown = || Preprocessing::fit(&[(1, UNKNOWN_SAMPLES_PER_S), (2, UNKNOWN_SAMPLES_PER_S)]);
        let preprocessing = decoding.unwrap_or_else(|| Portfolio::of(unknown().expect("two numbers of threads")));
        (LoadModel { origins }, preprocessing)
    }
}

fn throughput(measured: &BTreeMap<u32, MeasuredReads>) -> ThroughputCurve {
    let rates = measured
        .iter()
        .map(|(&threads, read)| (threads, f64::from(threads) * read.bytes / read.seconds));
    let rates: Vec<(u32, f64)> = rates.collect();
    ThroughputCurve::new(&rates)
        .or_else(|_| ThroughputCurve::new(&[(1, UNKNOWN_BYTES_PER_S)]))
        .expect("a rate above zero")
}

#[cfg(test)]
mod tests {
    use forebay_policy::models::LearnedDecoding;

    use super::*;

    #[test]
    fn throughput_is_that_of_all_threads_together() {
        let mut speeds = Speeds::default();
        for _ in 0..10 {
            speeds.observe(true, 1, 1000, 0.1);
            speeds.observe(true, 4, 1000, 0.2);
            speeds.observe(true, 4, 0, 5.0);
        }
        let mut learned = LearnedDecoding::new(1);
        learned.observe(0, 1000, 0.002, Some(4));
        let (load, preprocessing) = speeds.models(learned.portfolio(4));
        let [disk, peers, source] = &load.origins;
        assert!((source.bytes_per_s(1.0) - 10_000.0).abs() < 1.0);
        assert!((source.bytes_per_s(4.0) - 20_000.0).abs() < 1.0);
        assert_eq!(source, peers);
        assert!((disk.bytes_per_s(1.0) - UNKNOWN_BYTES_PER_S).abs() < 1.0);
        let model = preprocessing.nearest(1000);
        assert_eq!(model.threads_enough(), 4);
        assert!((model.seconds_a_sample(1) - 0.002).abs() < 1e-9);
        assert_eq!(speeds.models(None).1.nearest(1000).threads_enough(), 1, "nothing was measured");
    }

    #[test]
    fn other_nodes_count_the_bytes_that_came_while_any_was_asked() {
        let mut speeds = Speeds::default();
        speeds.observe(true, 1, 1000, 0.1);
        // Nothing came of a request that nobody answered.
        speeds.peer_asked(0.0);
        speeds.peer_ended(0, 1.0);
        let peers = |speeds: &Speeds| speeds.models(None).0.origins[1].bytes_per_s(1.0);
        assert!((peers(&speeds) - 10_000.0).abs() < 1.0, "as fast as the source");
        let mut speeds = Speeds::default();
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
        let mut speeds = Speeds::default();
        for nth in 0..2000 {
            speeds.observe(false, 2, 1000, if nth < 1000 { 1.0 } else { 0.1 });
        }
        let (load, _) = speeds.models(None);
        assert!((load.origins[0].bytes_per_s(2.0) - 20_000.0).abs() < 100.0);
    }
}
