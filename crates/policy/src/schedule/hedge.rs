//! Hedged reads: a read that is under way for longer than the 95th percentile of its kind is made again, and the
//! first answer counts.
//!
//! Second reads cost bytes, and there are budgets for them: at most [`Hedge::BUDGET`] of the bytes, and of the
//! requests. With one in a hundred allowed and one in twenty late, most late reads can't be hedged; so the budget is
//! kept for those that would delay a step. A second read is due when
//!
//! - the read is under way for longer than the 95th percentile of reads of its size, and
//! - no more time is left before its deadline than that percentile: a later second read would likely be late too.
//!   While the last of the budget is being spent, the required time left shrinks to zero: then only reads that are
//!   late already are made again.
//!
//! If the second read does not answer within the percentile either, a third is due, and so on. After the third, each
//! waits twice as long as the one before, so that a source which answers nothing does not use up the budget of other
//! reads.
//!
//! Latencies are kept by size (powers of two), since a large read takes longer without being late. [`Hedge`] has
//! neither clock nor timer: its driver reports the beginning and end of each read with the time, and asks
//! [`due`](Hedge::due) when something ends and at [`next_s`](Hedge::next_s).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Identifies a read under way over all its tries; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(u64);

/// Latencies by their logarithm: each bucket ends at 1.09 times the end of the one before it, so a percentile is
/// never below the true one, and at most 9 % above it.
#[derive(Clone, Debug)]
struct Latencies {
    /// Counts by bucket; the first ends at a microsecond, the last takes all above.
    counts: Vec<u32>,
    observed: u32,
}

const BUCKETS: usize = 256;
const BUCKETS_PER_DOUBLING: f64 = 8.0;
const SHORTEST_S: f64 = 1e-6;
/// Number of known latencies at which all counts are halved, so that the percentile follows the last few thousand.
const OBSERVED_MAX: u32 = 8192;
/// Share of the budget below which reads are made again closer to their deadline.
const RESERVE: f64 = 1.0 / 16.0;
/// Tries that each wait for one percentile; each later try waits twice as long as the one before.
const PATIENT_TRIES: i32 = 3;
/// Fewest latencies that allow an estimate of the 95th percentile.
const OBSERVED_MIN: u32 = 64;

impl Latencies {
    fn new() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            observed: 0,
        }
    }

    fn observe(&mut self, latency_s: f64) {
        let bucket = (latency_s.max(SHORTEST_S) / SHORTEST_S).log2() * BUCKETS_PER_DOUBLING;
        self.counts[(bucket.ceil() as usize).min(BUCKETS - 1)] += 1;
        self.observed += 1;
        if self.observed == OBSERVED_MAX {
            for count in &mut self.counts {
                *count /= 2;
            }
            self.observed = self.counts.iter().sum();
        }
    }

    /// The latency that a share of reads does not exceed; `None` while too few are known.
    fn quantile_s(&self, share: f64) -> Option<f64> {
        let rank = (share * f64::from(self.observed)).ceil() as u32;
        let mut below = 0;
        let bucket = self.counts.iter().position(|count| {
            below += count;
            below >= rank
        })?;
        (self.observed >= OBSERVED_MIN).then(|| SHORTEST_S * (bucket as f64 / BUCKETS_PER_DOUBLING).exp2())
    }
}

/// A read under way.
#[derive(Clone, Copy, Debug)]
struct HedgedRead {
    bytes: u64,
    began_s: f64,
    deadline_s: f64,
    /// Time of the latest try, and number of tries.
    made_s: f64,
    tries: i32,
}

/// Seconds, in the order of `f64::total_cmp`.
#[derive(Clone, Copy, Debug)]
struct OrderedSeconds(f64);

impl Ord for OrderedSeconds {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for OrderedSeconds {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for OrderedSeconds {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for OrderedSeconds {}

/// Reads under way on a node, their latencies, and the budget that is left.
#[derive(Clone, Debug)]
pub struct Hedge {
    budget: f64,
    /// Latencies by size class: the number of bits of the size.
    latencies: Vec<Latencies>,
    begun: u64,
    begun_bytes: u64,
    hedged: u64,
    hedged_bytes: u64,
    under_way: BTreeMap<ReadId, HedgedRead>,
    /// Predicted times at which reads fall due; entries of ended reads stay until they come up. A read that began
    /// while no percentile was known has no entry.
    dues: BinaryHeap<Reverse<(OrderedSeconds, ReadId)>>,
}

impl Hedge {
    /// Share of bytes and of requests that may be made again, unless said otherwise.
    pub const BUDGET: f64 = 0.01;
    /// The percentile after which a read is late.
    pub const QUANTILE: f64 = 0.95;

    /// Creates a hedge that makes at most `budget` (a share) of the bytes and of the requests again.
    pub fn new(budget: f64) -> Self {
        Self {
            budget,
            latencies: vec![Latencies::new(); u64::BITS as usize + 1],
            begun: 0,
            begun_bytes: 0,
            hedged: 0,
            hedged_bytes: 0,
            under_way: BTreeMap::new(),
            dues: BinaryHeap::new(),
        }
    }

    /// Records the beginning of a first read. `deadline_s` is the time at which its bytes are needed; with negative
    /// infinity it is made again as soon as it is late.
    pub fn begun(&mut self, now_s: f64, bytes: u64, deadline_s: f64) -> ReadId {
        let read = ReadId(self.begun);
        self.begun += 1;
        self.begun_bytes += bytes;
        let under_way = HedgedRead {
            bytes,
            began_s: now_s,
            deadline_s,
            made_s: now_s,
            tries: 1,
        };
        self.wait_for(read, under_way);
        read
    }

    /// Records the first whole answer of a read, by any try. A hedged read counts as having taken until now: it was
    /// late in any case.
    pub fn ended(&mut self, now_s: f64, read: ReadId) {
        if let Some(under_way) = self.under_way.remove(&read) {
            self.latencies[size_class(under_way.bytes)].observe(now_s - under_way.began_s);
        }
    }

    /// Forgets a read that failed or was given up: its time says nothing about others.
    pub fn abandoned(&mut self, read: ReadId) {
        self.under_way.remove(&read);
    }

    /// Returns the read that is to be made again now, within the budget; of several the one due for longest. Call it
    /// until `None`.
    pub fn due(&mut self, now_s: f64) -> Option<ReadId> {
        while let Some(&Reverse((OrderedSeconds(known_s), read))) = self.dues.peek() {
            if known_s > now_s {
                return None;
            }
            let Some(&under_way) = self.under_way.get(&read) else {
                self.dues.pop();
                continue;
            };
            // Reads have become slower since the entry was made: it is not due yet.
            if let Some(due_s) = self.due_s(&under_way).filter(|due_s| *due_s > now_s) {
                self.dues.pop();
                self.dues.push(Reverse((OrderedSeconds(due_s), read)));
                continue;
            }
            if !self.affords(under_way.bytes) {
                return None;
            }
            self.dues.pop();
            self.hedged += 1;
            self.hedged_bytes += under_way.bytes;
            self.wait_for(
                read,
                HedgedRead {
                    made_s: now_s,
                    tries: under_way.tries + 1,
                    ..under_way
                },
            );
            return Some(read);
        }
        None
    }

    /// Returns the time at which to ask again, if nothing begins or ends before; `None` if no read can fall due.
    pub fn next_s(&mut self) -> Option<f64> {
        while let Some(&Reverse((OrderedSeconds(due_s), read))) = self.dues.peek() {
            if let Some(under_way) = self.under_way.get(&read) {
                return self.affords(under_way.bytes).then_some(due_s);
            }
            self.dues.pop();
        }
        None
    }

    /// Bytes that were read again; never more than the budget's share of those whose first read has begun.
    pub const fn hedged_bytes(&self) -> u64 {
        self.hedged_bytes
    }

    /// Requests that were made again; never more than the budget's share of first requests.
    pub const fn hedged_requests(&self) -> u64 {
        self.hedged
    }

    fn wait_for(&mut self, read: ReadId, under_way: HedgedRead) {
        self.under_way.insert(read, under_way);
        if let Some(due_s) = self.due_s(&under_way) {
            self.dues.push(Reverse((OrderedSeconds(due_s), read)));
        }
    }

    fn due_s(&self, read: &HedgedRead) -> Option<f64> {
        let quantile_s = self.latencies[size_class(read.bytes)].quantile_s(Self::QUANTILE)?;
        let patience_s = quantile_s * f64::from((read.tries - PATIENT_TRIES).max(0)).exp2();
        let margin_s = quantile_s * (self.budget_left() / RESERVE).min(1.0);
        Some((read.made_s + patience_s).max(read.deadline_s - margin_s))
    }

    /// The share of the budget that is not spent, of requests or of bytes, whichever is less.
    fn budget_left(&self) -> f64 {
        let left = |spent: u64, of: u64| 1.0 - spent as f64 / (self.budget * of as f64).max(f64::MIN_POSITIVE);
        left(self.hedged, self.begun).min(left(self.hedged_bytes, self.begun_bytes))
    }

    fn affords(&self, bytes: u64) -> bool {
        (self.hedged + 1) as f64 <= self.budget * self.begun as f64
            && (self.hedged_bytes + bytes) as f64 <= self.budget * self.begun_bytes as f64
    }
}

/// Sizes of one class differ by less than a factor of two.
const fn size_class(bytes: u64) -> usize {
    (u64::BITS - bytes.leading_zeros()) as usize
}
