//! Reads and writes lists of what runs have read. A thread of its own, since the state directory may be on a slow file
//! system.

use std::{
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use forebay_policy::read_list::ReadList;

use crate::{
    host::{
        error::{AgentError, io_error},
        log,
        shared::set_thread_nice,
    },
    tiering::{
        limits::{COPY_NICE, RUN_PAGE_WAIT_MAX},
        read_lists::file::{self, ReadListError},
        state::runs::shares_paths,
    },
};

/// Request to the recorder.
#[derive(Debug)]
pub(crate) enum RecorderRequest {
    /// Reads the list of a run's command.
    Load {
        run: u64,
        key: String,
        /// Path of the run's page, which its command may not have made yet.
        page: PathBuf,
    },
    /// Adds what a run has read to the list of its command.
    Save {
        key: String,
        reads: ReadList,
        /// Paths of the list that were missing or changed.
        gone: Vec<String>,
    },
    /// Answers once all earlier requests are done.
    Finish(Sender<()>),
}

/// A list that was read for a run.
#[derive(Debug)]
pub(crate) struct LoadedList {
    pub(crate) run: u64,
    pub(crate) list: ReadList,
}

/// Starts the thread, which ends with the process. Returns the sender of requests.
pub(crate) fn start(state_dir: PathBuf, deliver: impl Fn(LoadedList) + Send + 'static) -> Result<Sender<RecorderRequest>, AgentError> {
    let (requests, received) = channel();
    thread::Builder::new()
        .name("recorder".into())
        .spawn(move || serve(&state_dir, &received, &deliver))
        .map_err(io_error("start a thread", Path::new("recorder")))?;
    Ok(requests)
}

fn serve(state_dir: &Path, requests: &Receiver<RecorderRequest>, deliver: &impl Fn(LoadedList)) {
    set_thread_nice(COPY_NICE);
    for request in requests {
        match request {
            RecorderRequest::Load { run, key, page } => match file::load(state_dir, &key) {
                Ok(list) if has_own_paths(&page) => deliver(LoadedList { run, list }),
                Ok(_) | Err(ReadListError::Missing) => {}
                Err(why) => log::fallback(&format!("nothing is read ahead by what earlier runs have read: {why}")),
            },
            RecorderRequest::Save { key, reads, gone } => {
                if let Err(error) = file::merge(state_dir, &key, &reads, &gone) {
                    log::fallback(&format!("what a run has read was not kept: {error}"));
                }
            }
            RecorderRequest::Finish(done) => drop(done.send(())),
        }
    }
}

/// Waits for the page of a run, and returns true if paths mean the same to its programs and to the agent.
fn has_own_paths(page: &Path) -> bool {
    let begun = Instant::now();
    loop {
        if let Some(shares) = shares_paths(page) {
            return shares;
        }
        if begun.elapsed() >= RUN_PAGE_WAIT_MAX {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
}
