//! Threads that work for other nodes. They start with the first job whose files are shared.

use std::sync::Arc;

use crate::{
    host::error::AgentError,
    tiering::{
        copier::Copier,
        copy_job::Copied,
        handoff::DescriptorBudget,
        nodes::{
            fetcher::{FetchJob, FetchPool},
            group::Deliver,
            opener::OpenPool,
        },
        state::flights::CopyGiver,
    },
};

/// Passes the report of a copy to the event loop, from any thread.
pub(crate) type DeliverCopied = Arc<dyn Fn(Copied) + Send + Sync>;

/// Handles of the threads. They end with it.
#[derive(Debug, Default)]
pub(crate) struct NodeThreads {
    fetching: Option<FetchPool>,
    /// Pulls copies from other groups; started with the first job that has several.
    relaying: Option<FetchPool>,
    opening: Option<OpenPool>,
}

impl NodeThreads {
    /// Starts the threads that a job needs, and that do not run yet.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn start(
        &mut self,
        copier: &Copier,
        (budget, events, copied): (&DescriptorBudget, &Deliver, &DeliverCopied),
        has_groups: bool,
    ) -> Result<(), AgentError> {
        let copied = Arc::clone(copied);
        let deliver = move |report| copied(report);
        if self.fetching.is_none() {
            copier.start_for_nodes(&deliver)?;
            self.opening = Some(OpenPool::start(budget, events)?);
            self.fetching = Some(FetchPool::start("fetcher", &deliver, &copier.flags())?);
        }
        if has_groups && self.relaying.is_none() {
            self.relaying = Some(FetchPool::start("relay", &deliver, &copier.flags())?);
        }
        Ok(())
    }

    /// Pulls a copy, if the threads have been started. A report follows.
    pub(crate) fn fetch(&self, giver: CopyGiver, job: FetchJob) {
        let relaying = self.relaying.as_ref().filter(|_| giver == CopyGiver::OtherGroup);
        if let Some(pool) = relaying.or(self.fetching.as_ref()) {
            pool.add(job);
        }
    }

    /// Opens the file at a path for a run, if the threads have been started. A message follows.
    pub(crate) fn open(&self, run: u64, path: Vec<u8>) {
        if let Some(opening) = &self.opening {
            opening.open(run, path);
        }
    }
}
