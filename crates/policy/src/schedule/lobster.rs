//! Lobster's thread assignment: divides a node's threads between loading and preprocessing (Section 4.1), and the
//! loading threads among the ranks' queues (Section 4.2, Algorithm 1 with Equations 1 to 3).
//!
//! The text has errors. [`Erratum`] names those that change the assignment; each can be left in or corrected by
//! itself, to show its cost. [`LobsterSchedule::as_written`] has all of them, [`LobsterSchedule::corrected`] none.
//!
//! Both variants settle alike what the text leaves open:
//!
//! - The preprocessing time T_p of a rank's batch: where preprocessing threads serve all ranks of a node, it is that of
//!   all their batches. Where each rank has threads of its own, it is that of the rank that takes longest.
//! - The initial allocation of line 1, "proportional to the number of pending requests": a divisor method in whole
//!   threads ([`proportional`]), so that the sum is right and no rank with requests has none while another has two.
//! - The condition for Algorithm 1: a rank is predicted to be late by tau or more (Section 4.2: a straggler).
//!   Otherwise line 1 stands.
//! - `IsConsistent` of line 10 is not defined; Section 4.4 says that the search ends when the array W is full, after
//!   T_L entries.
//! - Line 23 stands inside the condition of line 5, so that a rank that is in time would be given nothing: it keeps
//!   its initial number.
//! - tau: a share of the training step, [`TAU`] unless set otherwise.

use super::decoding::DecodingThreads;
use super::queues::RankQueues;
use super::{ReadRequest, Scheduler, StepLoad};
use crate::models::{LoadModel, Portfolio};

/// Share of a training step by which loading and preprocessing may differ from it: tau of Algorithm 1.
pub const TAU: f64 = 0.05;

/// An error of the paper's text that changes how threads are assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Erratum {
    /// Equation 1 multiplies a throughput of all threads by their number, and adds times that overlap; see
    /// [`crate::models::load`].
    Equation1,
    /// Algorithm 1, lines 12 to 15: a rank that is early (T_dif < 0) has the *lower* bound of its threads raised, a
    /// late one the upper bound lowered. Mended: the other way round.
    InvertedBounds,
    /// Lines 13 and 15: the bound is set to the initial number of threads whatever candidate was tried last, so the
    /// search never leaves its first midpoint, and only W ends it. Mended: the candidate is the bound; T_L itself can
    /// be reached, and the search ends when it comes to the same number twice.
    StaleCandidate,
    /// Line 18 keeps the candidate with the larger difference. Mended: one that is in time is kept over one that is
    /// late; of two alike, that with the smaller difference (Equation 2).
    KeepsWorse,
    /// Nothing keeps the sum within T_L. Mended: while there are too many, one is taken where the rank's time
    /// afterwards is the least (Equation 3). What is left over goes to the ranks by their pending requests.
    UnboundedSum,
    /// Section 4.1, step 2: threads are taken from preprocessing as long as it is not the bottleneck, even where
    /// loading gains nothing by them. Mended: of the numbers that step 2 goes through, that with which loading and
    /// preprocessing together are shortest.
    TakesWithoutGain,
}

/// All of them: the text as it is.
pub const AS_WRITTEN: [Erratum; 6] = [
    Erratum::Equation1,
    Erratum::InvertedBounds,
    Erratum::StaleCandidate,
    Erratum::KeepsWorse,
    Erratum::UnboundedSum,
    Erratum::TakesWithoutGain,
];

/// A node as the thread assignment sees it.
#[derive(Clone, Debug)]
pub struct NodeModel {
    /// Threads for loading and preprocessing together. There is always one of each, so fewer than two count as two.
    pub threads: u32,
    /// Ranks.
    pub ranks: u32,
    /// Model of reading.
    pub load: LoadModel,
    /// Model of preprocessing.
    pub preprocessing: Portfolio,
    /// Share of a training step that counts as no difference; [`TAU`].
    pub tau: f64,
}

/// Lobster's thread assignment for one node.
#[derive(Clone, Debug)]
pub struct LobsterSchedule {
    name: &'static str,
    node: NodeModel,
    errata: Vec<Erratum>,
    loading: u32,
    assigned: Vec<u32>,
    /// Preprocessing threads by rank, where each rank has its own; none in a node whose threads preprocess for all.
    decoding: Option<DecodingThreads>,
    queues: RankQueues,
}

impl LobsterSchedule {
    /// Creates the assignment with all errors corrected.
    pub fn corrected(node: NodeModel) -> Self {
        Self::with("lobster", node, &[])
    }

    /// Creates the assignment with all errors of the text.
    pub fn as_written(node: NodeModel) -> Self {
        Self::with("lobster_as_written", node, &AS_WRITTEN)
    }

    /// Creates the assignment with the given errors of the text left in.
    pub fn with(name: &'static str, mut node: NodeModel, errata: &[Erratum]) -> Self {
        node.threads = node.threads.max(2);
        let enough = node.preprocessing.nearest(0).threads_enough();
        let loading = node.threads - enough.clamp(1, node.threads - 1);
        Self {
            name,
            errata: errata.to_vec(),
            loading,
            assigned: proportional(&vec![1; node.ranks as usize], loading),
            decoding: None,
            queues: RankQueues::new(node.ranks),
            node,
        }
    }

    /// Threads by rank, as last assigned. Their sum is at most [`Scheduler::loading_threads`], but for
    /// [`Erratum::UnboundedSum`].
    pub fn assigned(&self) -> &[u32] {
        &self.assigned
    }

    /// Fewest threads that preprocess: each rank with threads of its own keeps one.
    fn preprocessing_min(&self) -> u32 {
        self.decoding.as_ref().map_or(1, |_| self.node.ranks)
    }

    fn has(&self, erratum: Erratum) -> bool {
        self.errata.contains(&erratum)
    }

    /// T_p with `threads` preprocessing, in seconds. Where each rank has its own, it is that of the rank that takes
    /// longest with the whole threads that it is given: of four ranks alike, nine threads are no quicker than eight.
    fn preprocess_s(&self, load: &StepLoad, threads: u32) -> f64 {
        let model = self.node.preprocessing.nearest(load.mean_bytes());
        let of_ranks = self.decoding.as_ref().and_then(|own| {
            let work_s = self.work_s(own, load, threads);
            DecodingThreads::longest_s(threads, &work_s)
        });
        let samples: u64 = load.samples.iter().copied().map(u64::from).sum();
        of_ranks.unwrap_or_else(|| samples as f64 * model.seconds_a_sample(threads))
    }

    /// Seconds in which one thread decodes each rank's batch beside `threads`, from what was measured beside others.
    fn work_s(&self, own: &DecodingThreads, load: &StepLoad, threads: u32) -> Vec<f64> {
        let model = self.node.preprocessing.nearest(load.mean_bytes());
        let thread_s = |threads: u32| f64::from(threads) * model.seconds_a_sample(threads);
        let present: u32 = own.given().iter().sum();
        let measured = |rank: usize| load.decode_threads.get(rank).copied().filter(|&threads| threads > 0);
        let work_s = |(rank, &seconds): (usize, &f64)| {
            let beside = measured(rank).unwrap_or(present);
            seconds * thread_s(threads) / thread_s(beside)
        };
        load.decode_s.iter().enumerate().map(work_s).collect()
    }

    /// Division with as many threads as decode now, if they may stay as many and ranks have threads of their own.
    fn present(&self, load: &StepLoad, pending: &[u64], least: u32, most: u32) -> Option<Division> {
        let now: u32 = self.decoding.as_ref()?.given().iter().sum();
        let may_stay = !self.has(Erratum::TakesWithoutGain) && (least..=most).contains(&now);
        may_stay.then(|| self.divide(load, pending, now))
    }

    /// Divides the node's threads with `preprocessing` of them preprocessing.
    fn divide(&self, load: &StepLoad, pending: &[u64], preprocessing: u32) -> Division {
        let step = Predicted::new(self, load, preprocessing);
        let assigned = self.share_out(&step, pending);
        let loads = assigned.iter().enumerate().map(|(rank, &threads)| step.load_s(rank, threads));
        Division {
            loading: step.threads,
            load_s: loads.fold(0.0, f64::max),
            preprocess_s: step.preprocess_s,
            assigned,
        }
    }

    /// Section 4.2, and Algorithm 1 where a rank is late.
    fn share_out(&self, step: &Predicted<'_>, pending: &[u64]) -> Vec<u32> {
        let tau_s = self.node.tau * step.load.train_s;
        let initial = proportional(pending, step.threads);
        if (0..initial.len()).all(|rank| step.difference_s(rank, initial[rank]) < tau_s) {
            return initial;
        }
        let mut threads: Vec<u32> = initial
            .iter()
            .enumerate()
            .map(|(rank, &first)| self.search(first, step.threads, tau_s, |threads| step.difference_s(rank, threads)))
            .collect();
        if !self.has(Erratum::UnboundedSum) {
            keep_sum(&mut threads, step, pending);
        }
        threads
    }

    /// Lines 4 to 20 for one rank: bisection for the number of threads at which the difference is below tau.
    fn search(&self, first: u32, threads_max: u32, tau_s: f64, difference_s: impl Fn(u32) -> f64) -> u32 {
        let stale = self.has(Erratum::StaleCandidate);
        // The upper bound is itself never tried where bounds move: midpoints are rounded down.
        let (mut low, mut high) = (0, if stale { threads_max } else { threads_max + 1 });
        let (mut candidate, mut difference) = (first, difference_s(first));
        let (mut best, mut best_difference) = (candidate, difference);
        for _ in 0..threads_max {
            if difference.abs() < tau_s {
                break;
            }
            let bound = if stale { first } else { candidate };
            if (difference < 0.0) == self.has(Erratum::InvertedBounds) {
                low = bound;
            } else {
                high = bound;
            }
            let next = low + (high - low) / 2;
            if next == candidate && !stale {
                break;
            }
            candidate = next;
            difference = difference_s(candidate);
            let keep = if self.has(Erratum::KeepsWorse) {
                best_difference <= difference
            } else {
                is_better(difference, best_difference, tau_s)
            };
            if keep {
                (best, best_difference) = (candidate, difference);
            }
        }
        best
    }
}

/// Returns true if a difference is better than another: in time rather than late, and then the smaller.
fn is_better(difference: f64, than: f64, tau_s: f64) -> bool {
    match (difference < tau_s, than < tau_s) {
        (true, false) => true,
        (false, true) => false,
        _ => difference.abs() < than.abs(),
    }
}

/// A step with a number of loading threads.
struct Predicted<'a> {
    load: &'a StepLoad,
    /// Threads that load: T_L.
    threads: u32,
    /// T_p: the ranks' batches by the other threads.
    preprocess_s: f64,
    reading: LoadTimes<'a>,
}

/// A node's threads divided between loading, by rank, and preprocessing.
#[derive(Clone)]
struct Division {
    loading: u32,
    assigned: Vec<u32>,
    /// Loading of the rank that takes longest.
    load_s: f64,
    preprocess_s: f64,
}

impl Division {
    fn seconds(&self) -> f64 {
        self.load_s + self.preprocess_s
    }
}

/// Equation 1, by rank.
enum LoadTimes<'a> {
    /// Bytes are put into the text's formula.
    AsWritten(&'a LoadModel),
    /// Seconds of one thread by rank.
    Corrected(Vec<f64>),
}

impl<'a> Predicted<'a> {
    fn new(lobster: &'a LobsterSchedule, load: &'a StepLoad, preprocessing_threads: u32) -> Self {
        let node = &lobster.node;
        let threads = node.threads - preprocessing_threads;
        let bytes: [u64; 3] = std::array::from_fn(|origin| load.bytes.iter().map(|bytes| bytes[origin]).sum());
        let reading = if lobster.has(Erratum::Equation1) {
            LoadTimes::AsWritten(&node.load)
        } else {
            let shares = node.load.shares(bytes, threads);
            LoadTimes::Corrected(load.bytes.iter().map(|&bytes| shares.thread_seconds(bytes)).collect())
        };
        Self {
            load,
            threads,
            preprocess_s: lobster.preprocess_s(load, preprocessing_threads),
            reading,
        }
    }

    /// T_L of Equation 1: infinite where there is something to read and no thread.
    fn load_s(&self, rank: usize, threads: u32) -> f64 {
        match &self.reading {
            LoadTimes::AsWritten(model) => model.as_written(self.load.bytes[rank], threads),
            LoadTimes::Corrected(thread_seconds) if thread_seconds[rank] > 0.0 => thread_seconds[rank] / f64::from(threads),
            LoadTimes::Corrected(_) => 0.0,
        }
    }

    /// T_dif: Equation 2 without the bars.
    fn difference_s(&self, rank: usize, threads: u32) -> f64 {
        self.load_s(rank, threads) + self.preprocess_s - self.load.train_s
    }
}

/// Brings the sum to the number of loading threads. Surplus threads are taken from the rank that is fastest
/// afterwards, which keeps the longest time as short as possible. Missing threads go to the ranks by the length of
/// their queues, as in [`proportional`].
fn keep_sum(threads: &mut [u32], step: &Predicted<'_>, pending: &[u64]) {
    let mut sum: u32 = threads.iter().sum();
    while sum > step.threads {
        let after_s = |rank: usize| step.load_s(rank, threads[rank] - 1);
        let given = (0..threads.len()).filter(|&rank| threads[rank] > 0);
        let Some(rank) = given.min_by(|&a, &b| after_s(a).total_cmp(&after_s(b))) else {
            break;
        };
        threads[rank] -= 1;
        sum -= 1;
    }
    give(threads, pending, step.threads - sum);
}

/// Returns threads for ranks in proportion to their pending requests, by Adams's divisor method: one by one, each to
/// the rank with most requests a thread. No rank with requests has none while another has two; ranks without requests
/// have none. If no rank has requests, all count alike.
pub fn proportional(pending: &[u64], threads: u32) -> Vec<u32> {
    let mut given = vec![0; pending.len()];
    give(&mut given, pending, threads);
    given
}

/// Gives `threads` more, one by one, each to the rank with most requests a thread; of equal ones to that with most
/// requests, then the first.
fn give(given: &mut [u32], pending: &[u64], threads: u32) {
    let nothing_waits = pending.iter().all(|&requests| requests == 0);
    let requests = |rank: usize| if nothing_waits { 1 } else { pending[rank] };
    for _ in 0..threads {
        let per_thread = |&a: &usize, &b: &usize| {
            let (a_scaled, b_scaled) = (requests(a) * u64::from(given[b]), requests(b) * u64::from(given[a]));
            a_scaled.cmp(&b_scaled).then(requests(a).cmp(&requests(b)))
        };
        let Some(rank) = (0..given.len()).rev().filter(|&rank| requests(rank) > 0).max_by(per_thread) else {
            break;
        };
        given[rank] += 1;
    }
}

impl Scheduler for LobsterSchedule {
    fn name(&self) -> &'static str {
        self.name
    }

    fn push(&mut self, request: ReadRequest) {
        self.queues.push(request);
    }

    fn pick(&mut self, busy: &[u32]) -> Option<ReadRequest> {
        self.queues.pick(&self.assigned, busy)
    }

    fn assigns(&self) -> bool {
        true
    }

    fn measured(&mut self, load: LoadModel, preprocessing: Portfolio) {
        (self.node.load, self.node.preprocessing) = (load, preprocessing);
    }

    /// Assigns threads as in Section 4.1. Step 1: as many threads preprocess as gain by it, and the others load. Step
    /// 2: one thread goes over to loading as long as a rank's loading and preprocessing take longer than training,
    /// and preprocessing with one thread fewer would not take longest of the three stages.
    ///
    /// Ranks that have threads of their own begin step 1 with these, since as many as gain would take those of loading
    /// where no rank is late. So step 2 also goes the other way, unless the text is taken as it is
    /// ([`Erratum::TakesWithoutGain`]): one thread goes over to preprocessing, while loading would not take longest.
    ///
    /// Their number also stays as it is unless another is quicker than it, or in time, by tau. Else the noise of each
    /// step would move threads to and fro where one of two numbers is just in time.
    ///
    /// A rank's pending requests are those in its queue, or one batch if they are fewer: the next step's come in
    /// while this one runs.
    fn assign(&mut self, load: &StepLoad) {
        let queued = self.queues.lengths().zip(&load.samples);
        let pending: Vec<u64> = queued.map(|(queued, &batch)| (queued as u64).max(u64::from(batch))).collect();
        let enough = self.node.preprocessing.nearest(load.mean_bytes()).threads_enough();
        let least = self.preprocessing_min();
        let most = enough.clamp(least, self.node.threads - 1);
        let first = self.decoding.as_ref().map_or(most, |own| own.budget().clamp(least, most));
        let mut preprocessing = first;
        let mut tried = self.divide(load, &pending, preprocessing);
        let mut chosen = tried.clone();
        while preprocessing > least && tried.seconds() >= load.train_s {
            preprocessing -= 1;
            tried = self.divide(load, &pending, preprocessing);
            if tried.preprocess_s > tried.load_s.max(load.train_s) {
                break;
            }
            if self.has(Erratum::TakesWithoutGain) || tried.seconds() < chosen.seconds() {
                chosen = tried.clone();
            }
        }
        if !self.has(Erratum::TakesWithoutGain) {
            for preprocessing in first + 1..=most {
                if chosen.seconds() < load.train_s {
                    break;
                }
                let more = self.divide(load, &pending, preprocessing);
                if more.load_s > more.preprocess_s.max(load.train_s) {
                    break;
                }
                if more.seconds() < chosen.seconds() {
                    chosen = more;
                }
            }
        }
        if let Some(present) = self.present(load, &pending, least, most)
            && chosen.seconds() >= (1.0 - self.node.tau) * present.seconds().max(load.train_s)
        {
            chosen = present;
        }
        self.loading = chosen.loading;
        self.assigned = chosen.assigned;
        if let Some(mut decoding) = self.decoding.take() {
            let threads = self.node.threads - self.loading;
            let work_s = self.work_s(&decoding, load, threads);
            decoding.divide(threads, &work_s);
            self.decoding = Some(decoding);
        }
    }

    /// Adds the ranks' own threads to those that load, so that the budget is that of both.
    fn set_own_decoding(&mut self, own: &[u32]) {
        let decoding = self.decoding.get_or_insert_with(|| {
            // The thread that preprocessed for all ranks goes; each rank has its own.
            self.node.threads -= 1;
            DecodingThreads::new(0, self.node.tau)
        });
        self.node.threads -= decoding.budget();
        decoding.set_own(own);
        self.node.threads += decoding.budget();
    }

    fn decoding(&self) -> &[u32] {
        self.decoding.as_ref().map_or(&[], DecodingThreads::given)
    }

    fn loading_threads(&self) -> u32 {
        self.loading
    }

    fn divides_loading(&self) -> bool {
        true
    }

    fn waiting(&self) -> usize {
        self.queues.waiting()
    }
}

#[cfg(test)]
mod tests {
    use super::is_better;

    #[test]
    fn in_time_is_better_than_late_and_then_the_smaller_difference() {
        let tau_s = 0.05;
        assert!(is_better(-0.9, 0.2, tau_s) && !is_better(0.2, -0.9, tau_s), "however early");
        assert!(is_better(0.01, -0.9, tau_s) && !is_better(-0.9, 0.01, tau_s), "both in time");
        assert!(is_better(0.2, 0.9, tau_s) && !is_better(0.9, 0.2, tau_s), "both late");
        assert!(!is_better(0.2, 0.2, tau_s) && !is_better(-0.2, -0.2, tau_s), "what came first");
        assert!(
            is_better(-0.9, tau_s, tau_s) && !is_better(tau_s, -0.9, tau_s),
            "late by tau is late"
        );
    }
}
