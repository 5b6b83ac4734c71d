//! Threads as in NVIDIA DALI, for comparison: few that read for all ranks in order of arrival, the others decode.

use super::{FirstCome, ReadRequest, Scheduler, StepLoad};

/// Reading threads of DALI's file reader in the Lobster paper's comparison.
const READING: u32 = 3;

/// Three reading threads, first come, first served. Each rank decodes with threads of its own.
#[derive(Clone, Debug)]
pub struct DaliLike {
    reads: FirstCome,
}

impl DaliLike {
    /// Creates a pool of three loading threads, or of fewer if `threads` are fewer.
    pub const fn new(threads: u32) -> Self {
        let threads = if threads < READING { threads } else { READING };
        Self {
            reads: FirstCome::new(threads),
        }
    }
}

impl Scheduler for DaliLike {
    fn name(&self) -> &'static str {
        "dali_like"
    }

    fn push(&mut self, request: ReadRequest) {
        self.reads.push(request);
    }

    fn pick(&mut self, busy: &[u32]) -> Option<ReadRequest> {
        self.reads.pick(busy)
    }

    fn assign(&mut self, _load: &StepLoad) {}

    fn loading_threads(&self) -> u32 {
        self.reads.loading_threads()
    }

    fn waiting(&self) -> usize {
        self.reads.waiting()
    }
}
