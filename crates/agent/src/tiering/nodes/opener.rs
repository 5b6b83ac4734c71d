//! Opens files of the source for other nodes. Threads of their own: the event loop never waits for the source.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use crate::{
    host::{
        error::{AgentError, io_error},
        shared::set_thread_nice,
    },
    tiering::{
        handoff::DescriptorBudget,
        limits::{COPY_NICE, NODE_OPENERS},
        nodes::group::{Deliver, NodeEvent},
        prefetcher::open_one,
    },
};

/// A file to open for a run.
type OpenRequest = (u64, Vec<u8>);

/// Handle of the threads. They end with it.
#[derive(Debug)]
pub(crate) struct OpenPool(Sender<OpenRequest>);

impl OpenPool {
    /// Starts the threads.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn start(budget: &DescriptorBudget, deliver: &Deliver) -> Result<Self, AgentError> {
        let (requests, received) = channel();
        let received = Arc::new(Mutex::new(received));
        for number in 0..NODE_OPENERS {
            let (received, budget, deliver) = (Arc::clone(&received), budget.clone(), Arc::clone(deliver));
            thread::Builder::new()
                .name(format!("opener-{number}"))
                .spawn(move || work(&received, &budget, &deliver))
                .map_err(io_error("start a thread", Path::new("opener")))?;
        }
        Ok(Self(requests))
    }

    /// Opens the file at a path for a run. A [`NodeEvent::Opened`] follows.
    pub(crate) fn open(&self, run: u64, path: Vec<u8>) {
        let _ = self.0.send((run, path));
    }
}

fn work(requests: &Mutex<Receiver<OpenRequest>>, budget: &DescriptorBudget, deliver: &Deliver) {
    set_thread_nice(COPY_NICE);
    loop {
        let next = requests.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((run, path)) = next else { return };
        let file = open_one(run, &path, budget).map(Box::new);
        deliver(NodeEvent::Opened { path, file });
    }
}
