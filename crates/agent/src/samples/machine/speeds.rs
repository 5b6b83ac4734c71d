//! Throughput of a disk, of other nodes and of the source by the number of concurrent threads, for Lobster's thread
//! assignment.

use std::collections::BTreeMap;

use forebay_policy::models::{LoadModel, Portfolio, Preprocessing, ThroughputCurve};
use forebay_policy::residency::Origin;

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
    /// Other nodes, which take no thread: all counts as one.
    peers: BTreeMap<u32, MeasuredReads>,
    source: BTreeMap<u32, MeasuredReads>,
}

impl Speeds {
    /// Records a read of `bytes` that took `seconds`, with `threads` at work.
    pub(crate) fn observe(&mut self, origin: Origin, threads: u32, bytes: u64, seconds: f64) {
        if bytes == 0 || seconds <= 0.0 {
            return;
        }
        let measured = match origin {
            Origin::Local => &mut self.disk,
            Origin::Peer(_) => &mut self.peers,
            Origin::Source => &mut self.source,
        };
        let read = measured.entry(threads).or_default();
        read.bytes = read.bytes.mul_add(FADING, bytes as f64);
        read.seconds = read.seconds.mul_add(FADING, seconds);
    }

    /// Returns the models, given the seconds that decoding takes a sample; 0 if unknown.
    ///
    /// # Panics
    /// Never: throughputs are above zero, and there are two measurements of preprocessing.
    pub(crate) fn models(&self, decoding_s: f64) -> (LoadModel, Portfolio) {
        let source = throughput(&self.source);
        // Before anything came from another node, it is taken for as fast as the source.
        let peers = if self.peers.is_empty() {
            source.clone()
        } else {
            throughput(&self.peers)
        };
        let origins = [throughput(&self.disk), peers, source];
        let samples_per_s = if decoding_s > 0.0 {
            decoding_s.recip()
        } else {
            UNKNOWN_SAMPLES_PER_S
        };
        // Flat: a second thread gains nothing.
        let preprocessing = Preprocessing::fit(&[(1, samples_per_s), (2, samples_per_s)]).expect("two numbers of threads");
        (LoadModel { origins }, Portfolio::of(preprocessing))
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
    use super::*;

    #[test]
    fn throughput_is_that_of_all_threads_together() {
        let mut speeds = Speeds::default();
        for _ in 0..10 {
            speeds.observe(Origin::Source, 1, 1000, 0.1);
            speeds.observe(Origin::Source, 4, 1000, 0.2);
            speeds.observe(Origin::Source, 4, 0, 5.0);
        }
        let (load, preprocessing) = speeds.models(0.002);
        let [disk, peers, source] = &load.origins;
        assert!((source.bytes_per_s(1.0) - 10_000.0).abs() < 1.0);
        assert!((source.bytes_per_s(4.0) - 20_000.0).abs() < 1.0);
        assert_eq!(source, peers);
        assert!((disk.bytes_per_s(1.0) - UNKNOWN_BYTES_PER_S).abs() < 1.0);
        let model = preprocessing.nearest(1000);
        assert_eq!(model.threads_enough(), 1);
        assert!((model.seconds_a_sample(1) - 0.002).abs() < 1e-9);
    }

    #[test]
    fn what_is_long_past_is_forgotten() {
        let mut speeds = Speeds::default();
        for nth in 0..2000 {
            speeds.observe(Origin::Local, 2, 1000, if nth < 1000 { 1.0 } else { 0.1 });
        }
        let (load, _) = speeds.models(0.0);
        assert!((load.origins[0].bytes_per_s(2.0) - 20_000.0).abs() < 100.0);
    }
}
