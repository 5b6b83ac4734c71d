//! A worker process of a rank: reads the agent's answers to the rank in the rank's memory, and tells the rank when it
//! is done.
//!
//! It requests nothing itself and holds nothing. It reads samples of the rank's requests, which the rank does not
//! release before the worker is done with them, or has ended. So the agent knows ranks only, and a worker that dies
//! leaves nothing behind. (One that dies while it waits still counts as waiting: the agent then makes an unneeded
//! system call with its answers.)
//!
//! It opens the memory by the rank's descriptors in `/proc`. That works alike for a process that was forked, spawned,
//! or started before the rank registered.

use std::{
    os::fd::OwnedFd,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use forebay_contract::Region;
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{Mode, OFlags, fstat, open},
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::shared_memory::{AgentWatch, Answers, SampleStatus};

use crate::host::{clock::timespec, error::AgentError};

/// Address of a rank's shared memory, for its workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Process number of the rank.
    pub rank: i32,
    /// Process number of the agent; 0 if unknown.
    pub agent: i32,
    /// The rank's descriptor of its request ring, and the number of that file, by which a reused descriptor is
    /// detected.
    pub ring: (i32, u64),
    /// The rank's descriptor of the arena, and the number of that file.
    pub arena: (i32, u64),
}

/// A worker of a rank. All of its threads may use it concurrently.
#[derive(Debug)]
pub struct Worker {
    answers: Answers,
    /// Process descriptor of the agent; `None` if the kernel has none, or hides the agent from this process.
    agent: Option<OwnedFd>,
    state: Mutex<WorkerState>,
}

#[derive(Debug, Default)]
struct WorkerState {
    lost: Option<String>,
    watch: AgentWatch,
}

impl Worker {
    /// Opens the memory at a rank's address.
    ///
    /// # Errors
    /// It can't be opened, or is no longer the rank's.
    pub fn new(seat: &Seat) -> Result<Self, AgentError> {
        let ring = file_of(seat.rank, seat.ring, OFlags::RDWR)?;
        let arena = file_of(seat.rank, seat.arena, OFlags::RDONLY)?;
        Ok(Self {
            answers: Answers::new(ring, arena)?,
            agent: Pid::from_raw(seat.agent).and_then(|agent| pidfd_open(agent, PidfdFlags::empty()).ok()),
            state: Mutex::default(),
        })
    }

    /// The memory that holds the samples.
    pub fn arena(&self) -> Region<'_> {
        self.answers.arena()
    }

    /// Returns the status of a request that the rank has passed on, without waiting.
    pub fn look(&self, turn: u64) -> SampleStatus {
        match self.answers.look(turn) {
            SampleStatus::Pending if self.lost().is_some() => SampleStatus::ReadYourself,
            told => told,
        }
    }

    /// Waits for the status of a request, at most for `wait`. If the agent is gone, or stands still, the worker reads
    /// by itself from then on.
    pub fn wait(&self, turn: u64, wait: Duration) -> SampleStatus {
        self.answers.wait(wait, || self.look(turn), || self.look_after_agent())
    }

    /// Marks the bytes of all samples that were passed on with this request as no longer in use.
    pub fn done(&self, turn: u64) {
        self.answers.ring.set_done(turn);
    }

    /// Reason why the worker reads by itself; `None` as long as the agent seems to run.
    pub fn lost(&self) -> Option<String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).lost.clone()
    }

    fn look_after_agent(&self) {
        // The descriptor of a process that has ended becomes readable.
        let has_ended = |agent: &OwnedFd| {
            let mut polled = [PollFd::new(agent, PollFlags::IN)];
            poll(&mut polled, Some(&timespec(Duration::ZERO))).is_ok_and(|ended| ended > 0)
        };
        let is_gone = self.agent.as_ref().is_some_and(has_ended);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let stands_still = state.watch.look(&self.answers.ring);
        if state.lost.is_none() {
            state.lost = if is_gone {
                Some("the loader agent is gone: its process has ended".into())
            } else {
                stands_still
            };
        }
    }
}

/// Opens a file that another process of this user has open; returns it with its length in bytes.
fn file_of(process: i32, (descriptor, number): (i32, u64), access: OFlags) -> Result<(OwnedFd, usize), AgentError> {
    let path = format!("/proc/{process}/fd/{descriptor}");
    let file = open(&path, access | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| AgentError::Protocol(format!("a worker process can't open {path}: {errno}")))?;
    let found = fstat(&file).map_err(|errno| AgentError::Protocol(errno.to_string()))?;
    if found.st_ino != number {
        return Err(AgentError::Protocol(format!("{path} is another file by now")));
    }
    Ok((file, found.st_size as usize))
}
