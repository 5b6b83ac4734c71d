//! Shortest possible time of an epoch.

use forebay_policy::bounds::{Capacity, EpochDemand, epoch_s, source_bytes, source_requests};

use crate::scenario::Scenario;
use crate::sizes::DrawnSizes;

/// Seconds of the first epoch, which reads everything, and of each later epoch.
pub(crate) fn seconds(scenario: &Scenario, sizes: &DrawnSizes, iterations: u32) -> (f64, f64) {
    let mut bytes = sizes.all().to_vec();
    let dataset_bytes: u64 = bytes.iter().map(|&bytes| u64::from(bytes)).sum();
    let preprocessing = &scenario.preprocessing;
    let capacity = Capacity {
        bytes_per_s: scenario.source.bytes_per_s,
        requests_per_s: scenario.source.requests_per_s,
        cores: f64::from(scenario.machines.nodes) * f64::from(preprocessing.saturates_at.min(scenario.machines.threads)),
    };
    let cold = EpochDemand {
        compute_s: f64::from(iterations) * scenario.job.step_s,
        source_bytes: dataset_bytes as f64,
        source_requests: f64::from(scenario.dataset.samples),
        cpu_s: f64::from(scenario.dataset.samples) * preprocessing.seconds_a_sample,
    };
    let warm = EpochDemand {
        source_bytes: source_bytes(dataset_bytes, scenario.cluster()) as f64,
        source_requests: source_requests(&mut bytes, scenario.cluster()) as f64,
        ..cold
    };
    (epoch_s(cold, capacity).0, epoch_s(warm, capacity).0)
}
