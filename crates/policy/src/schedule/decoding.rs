//! Division of a node's decoding threads among its ranks.
//!
//! Each rank begins with threads of its own. The sum of these is the node's budget, which [`DecodingThreads::divide`]
//! shares out: the longest decoding of a rank's batch is as short as possible (Lobster, Equation 3). No rank is
//! left without a thread.

/// Decoding threads of a node's ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodingThreads {
    own: Vec<u32>,
    given: Vec<u32>,
    tau: f64,
}

impl DecodingThreads {
    /// Starts with one thread for each of `ranks`, until they say how many they have. `tau` is the share of the longest
    /// decoding that a new division must gain.
    pub fn new(ranks: u32, tau: f64) -> Self {
        let own = vec![1; ranks as usize];
        Self {
            given: own.clone(),
            own,
            tau,
        }
    }

    /// Sets the threads that each rank has of its own, and returns each rank to them if they have changed.
    pub fn set_own(&mut self, own: &[u32]) {
        let own: Vec<u32> = own.iter().map(|&threads| threads.max(1)).collect();
        if own != self.own {
            self.given.clone_from(&own);
            self.own = own;
        }
    }

    /// Returns the own threads of all ranks together.
    pub fn budget(&self) -> u32 {
        self.own.iter().sum()
    }

    /// Returns the threads of each rank, as last divided.
    pub fn given(&self) -> &[u32] {
        &self.given
    }

    /// Divides `threads` among the ranks. `work_s` is the time in seconds in which one thread decodes each rank's next
    /// batch; 0 for a rank that has not measured it, which counts as the mean of the others. While no rank has measured
    /// it, each keeps its own threads.
    ///
    /// A division that shortens the longest decoding by less than tau changes nothing: threads do not move for noise.
    pub fn divide(&mut self, threads: u32, work_s: &[f64]) {
        let Some(work_s) = known(work_s) else { return };
        let threads = threads.max(work_s.len() as u32);
        let divided = shortest(threads, &work_s);
        let is_budget_kept = self.given.iter().sum::<u32>() == threads;
        if !is_budget_kept || longest_s(&divided, &work_s) < (1.0 - self.tau) * longest_s(&self.given, &work_s) {
            self.given = divided;
        }
    }

    /// Gives each rank its own threads, and returns true, if none then decodes a batch for `limit_s` seconds or longer.
    pub fn keep_own(&mut self, work_s: &[f64], limit_s: f64) -> bool {
        let is_short = known(work_s).is_some_and(|work_s| longest_s(&self.own, &work_s) < limit_s);
        if is_short {
            self.given.clone_from(&self.own);
        }
        is_short
    }

    /// Returns the longest decoding of a rank's batch, in seconds, with `threads` divided among all ranks; `None` while
    /// no rank has measured it. `work_s` is that of [`DecodingThreads::divide`].
    pub fn longest_s(threads: u32, work_s: &[f64]) -> Option<f64> {
        known(work_s).map(|work_s| longest_s(&shortest(threads, &work_s), &work_s))
    }
}

/// Returns work with the mean of others for ranks that have not measured theirs; `None` if no rank has.
fn known(work_s: &[f64]) -> Option<Vec<f64>> {
    let measured: Vec<f64> = work_s.iter().copied().filter(|seconds| *seconds > 0.0).collect();
    let mean_s = measured.iter().sum::<f64>() / measured.len() as f64;
    let of_rank = |&seconds: &f64| if seconds > 0.0 { seconds } else { mean_s };
    (!measured.is_empty()).then(|| work_s.iter().map(of_rank).collect())
}

/// Returns the division of at least as many threads as ranks with the shortest longest time: one each, and each further
/// one to the rank that takes longest. Of equal ones, the first has it.
fn shortest(threads: u32, work_s: &[f64]) -> Vec<u32> {
    let mut given = vec![1_u32; work_s.len()];
    for _ in given.len() as u32..threads {
        let seconds = |rank: usize| work_s[rank] / f64::from(given[rank]);
        let Some(rank) = (0..given.len()).rev().max_by(|&a, &b| seconds(a).total_cmp(&seconds(b))) else {
            break;
        };
        given[rank] += 1;
    }
    given
}

fn longest_s(given: &[u32], work_s: &[f64]) -> f64 {
    let seconds = |(&threads, &work_s): (&u32, &f64)| work_s / f64::from(threads);
    given.iter().zip(work_s).map(seconds).fold(0.0, f64::max)
}
