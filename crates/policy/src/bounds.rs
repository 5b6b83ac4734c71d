//! Lower bounds that no policy, scheduler or loader can beat; every result is measured against them.
//!
//! *Bytes.* Each sample is used once an epoch. A sample that is not read from the source in an epoch was in the
//! memory of some node when the epoch began, and all memories together hold N * C bytes. So an epoch reads at least
//! max(0, S - N * C) bytes, with any order, prefetching and eviction; the first epoch, with empty memories, reads all
//! S.
//!
//! *Requests.* A request brings one sample. The samples that are not read fill at most N * C bytes, so their number
//! is largest when the smallest samples are kept.
//!
//! *Time.* An epoch lasts at least as long as each of its resources is busy: the accelerators for all steps, the
//! source for its bytes and for its requests, the cores for the preprocessing. No overlap makes it shorter than the
//! longest of these. Stall is the excess over the accelerators' own time.
//!
//! *LRU* has a closed form for orders drawn at random in each epoch (the interval between two uses of a sample has
//! triangular density); it is here for comparison.

use crate::ids::Cluster;

/// Fewest bytes that are read from the source in an epoch that began with all memories full; the first reads all
/// `dataset_bytes`.
pub const fn source_bytes(dataset_bytes: u64, cluster: Cluster) -> u64 {
    dataset_bytes.saturating_sub(memory_bytes(cluster))
}

/// Fewest requests to the source in such an epoch, given the sizes of all samples in bytes. Sorts the sizes.
pub fn source_requests(sizes: &mut [u32], cluster: Cluster) -> u64 {
    sizes.sort_unstable();
    let mut room = memory_bytes(cluster);
    let kept = sizes.iter().take_while(|&&bytes| {
        let fits = u64::from(bytes) <= room;
        room = room.saturating_sub(u64::from(bytes));
        fits
    });
    (sizes.len() - kept.count()) as u64
}

const fn memory_bytes(cluster: Cluster) -> u64 {
    (cluster.nodes as u64).saturating_mul(cluster.cache_bytes)
}

/// Resources that one epoch needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EpochDemand {
    /// Steps times the duration of a step (forward, backward, update) in seconds.
    pub compute_s: f64,
    /// Bytes from the source.
    pub source_bytes: f64,
    /// Requests to the source.
    pub source_requests: f64,
    /// Preprocessing of all samples in CPU seconds.
    pub cpu_s: f64,
}

/// Resources available in all nodes together. Infinite for a resource without a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Bytes a second of the source.
    pub bytes_per_s: f64,
    /// Requests a second of the source.
    pub requests_per_s: f64,
    /// Cores that preprocess, or fewer where more of them gain nothing.
    pub cores: f64,
}

/// Resource that limits an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochLimit {
    /// The accelerators.
    Compute,
    /// The source's bandwidth.
    Bytes,
    /// The source's rate of requests.
    Requests,
    /// The preprocessing.
    Cpu,
}

/// Returns the shortest time of an epoch in seconds, and the resource that takes it (the first in the order of
/// [`EpochLimit`] of several).
pub fn epoch_s(work: EpochDemand, capacity: Capacity) -> (f64, EpochLimit) {
    // Nothing to do takes no time, whatever the rate.
    let time = |amount: f64, rate: f64| if amount == 0.0 { 0.0 } else { amount / rate };
    let mut longest = (work.compute_s, EpochLimit::Compute);
    for (seconds, limit) in [
        (time(work.source_bytes, capacity.bytes_per_s), EpochLimit::Bytes),
        (time(work.source_requests, capacity.requests_per_s), EpochLimit::Requests),
        (time(work.cpu_s, capacity.cores), EpochLimit::Cpu),
    ] {
        if seconds > longest.0 {
            longest = (seconds, limit);
        }
    }
    longest
}

/// Least time in seconds that the accelerators wait for data in an epoch.
pub fn stall_s(work: EpochDemand, capacity: Capacity) -> f64 {
    epoch_s(work, capacity).0 - work.compute_s
}

/// Returns the share of uses that LRU finds in memory on one node, once the memory is full: f + (1 - f) ln(1 - f),
/// with f the share of the dataset that fits.
pub fn lru_share(fits: f64) -> f64 {
    if fits >= 1.0 {
        1.0
    } else {
        fits + (1.0 - fits) * (1.0 - fits).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::{Capacity, EpochDemand, EpochLimit, epoch_s, lru_share, source_bytes, source_requests, stall_s};
    use crate::ids::Cluster;

    const fn memory(nodes: u16, cache_bytes: u64) -> Cluster {
        Cluster {
            nodes,
            gpus: 1,
            cache_bytes,
            reserved_bytes: 0,
        }
    }

    #[test]
    fn bytes_beyond_all_memories_are_read() {
        assert_eq!(source_bytes(100, memory(2, 30)), 40);
        assert_eq!(source_bytes(100, memory(4, 30)), 0);
        assert_eq!(source_bytes(100, memory(4, u64::MAX)), 0);
    }

    #[test]
    fn most_requests_are_saved_by_the_smallest() {
        assert_eq!(source_requests(&mut [5, 1, 9, 2, 3], memory(1, 6)), 2);
        assert_eq!(source_requests(&mut [5, 1, 9, 2, 3], memory(1, 10)), 2);
        assert_eq!(source_requests(&mut [5, 1, 9, 2, 3], memory(2, 10)), 0);
        assert_eq!(source_requests(&mut [5, 9], memory(1, 0)), 2);
        assert_eq!(source_requests(&mut [4, 4, 4], memory(1, 7)), 2);
    }

    #[test]
    fn an_epoch_takes_what_its_scarcest_resource_takes() {
        let work = EpochDemand {
            compute_s: 10.0,
            source_bytes: 1e9,
            source_requests: 1e4,
            cpu_s: 60.0,
        };
        let ample = Capacity {
            bytes_per_s: 1e9,
            requests_per_s: f64::INFINITY,
            cores: 8.0,
        };
        assert_eq!(epoch_s(work, ample), (10.0, EpochLimit::Compute));
        assert_eq!(epoch_s(work, Capacity { bytes_per_s: 5e7, ..ample }), (20.0, EpochLimit::Bytes));
        assert_eq!(
            epoch_s(
                work,
                Capacity {
                    requests_per_s: 400.0,
                    ..ample
                }
            ),
            (25.0, EpochLimit::Requests)
        );
        assert_eq!(epoch_s(work, Capacity { cores: 2.0, ..ample }), (30.0, EpochLimit::Cpu));
        assert!((stall_s(work, Capacity { cores: 2.0, ..ample }) - 20.0).abs() < 1e-9);
        let tied = Capacity {
            bytes_per_s: 1e8,
            requests_per_s: 1e3,
            cores: 6.0,
        };
        assert_eq!(epoch_s(work, tied), (10.0, EpochLimit::Compute), "the first of several");
        let idle = EpochDemand {
            source_bytes: 0.0,
            source_requests: 0.0,
            ..work
        };
        assert_eq!(
            epoch_s(
                idle,
                Capacity {
                    bytes_per_s: 0.0,
                    requests_per_s: 0.0,
                    cores: 8.0
                }
            ),
            (10.0, EpochLimit::Compute)
        );
    }

    #[test]
    fn lru_keeps_little_of_what_fits() {
        // 4.9 % of uses with 29.6 % of the data in memory: the Lobster paper's 40 of 135 GB.
        assert!((lru_share(0.296) - 0.049).abs() < 5e-4);
        assert!(lru_share(0.0).abs() < 1e-12);
        assert!((lru_share(1.0) - 1.0).abs() < 1e-12);
    }
}
