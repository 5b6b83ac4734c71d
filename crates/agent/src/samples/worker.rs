//! A worker process of a rank: sees what the agent answers the rank, in the rank's memory, and tells the rank when it is done.
//!
//! It asks for nothing itself and holds nothing: what it looks at are uses of the rank's, which the rank does not release before the worker is done with them, or has
//! ended. So the agent knows of ranks only, and a worker that dies leaves nothing behind that anybody would have to find out. (One that dies while it waits is counted
//! on among those that wait: the agent then makes a system call too many with its answers.)
//!
//! It comes to the memory by the rank's descriptors in `/proc`: the same way for a process that was forked, spawned, or has lived since before the rank came to this
//! agent.

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

use super::answers::{Answers, Told, Watch};

use crate::host::{clock::timespec, error::AgentError};

/// Where a rank's workers find what it looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The rank's process.
    pub rank: i32,
    /// The agent's; 0 where that is not known.
    pub agent: i32,
    /// The rank's descriptor of its board, and the number of that file: the descriptor may be another file's by now.
    pub board: (i32, u64),
    /// The same of the arena.
    pub arena: (i32, u64),
}

/// A worker of a rank. All of its threads may use it at once.
#[derive(Debug)]
pub struct Worker {
    answers: Answers,
    /// Of the agent; `None` where the kernel has no such thing, or does not show the agent to this process.
    agent: Option<OwnedFd>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    lost: Option<String>,
    watch: Watch,
}

impl Worker {
    /// Takes a seat of the rank's.
    ///
    /// # Errors
    /// What lies there can't be reached, or is no more what is meant.
    pub fn new(seat: &Seat) -> Result<Self, AgentError> {
        let board = file_of(seat.rank, seat.board, OFlags::RDWR)?;
        let arena = file_of(seat.rank, seat.arena, OFlags::RDONLY)?;
        Ok(Self {
            answers: Answers::new(board, arena)?,
            agent: Pid::from_raw(seat.agent).and_then(|agent| pidfd_open(agent, PidfdFlags::empty()).ok()),
            state: Mutex::default(),
        })
    }

    /// The memory in which samples lie.
    pub fn arena(&self) -> Region<'_> {
        self.answers.arena()
    }

    /// What has become of a use that the rank has given, without waiting.
    pub fn look(&self, turn: u64) -> Told {
        match self.answers.look(turn) {
            Told::Pending if self.lost().is_some() => Told::ReadYourself,
            told => told,
        }
    }

    /// What has become of a use, waited for no longer than this. Where the agent is gone, or stands still, the worker is to read by itself from then on.
    pub fn wait(&self, turn: u64, wait: Duration) -> Told {
        self.answers.wait(wait, || self.look(turn), || self.look_after_agent())
    }

    /// The bytes of what was given together with this use are looked at no more.
    pub fn done(&self, turn: u64) {
        self.answers.board.set_done(turn);
    }

    /// Why the worker reads by itself; `None` as long as there is an agent, by all that it knows.
    pub fn lost(&self) -> Option<String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).lost.clone()
    }

    fn look_after_agent(&self) {
        // A process that has ended can be read of.
        let has_ended = |agent: &OwnedFd| {
            let mut polled = [PollFd::new(agent, PollFlags::IN)];
            poll(&mut polled, Some(&timespec(Duration::ZERO))).is_ok_and(|ended| ended > 0)
        };
        let is_gone = self.agent.as_ref().is_some_and(has_ended);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let stands_still = state.watch.look(&self.answers.board);
        if state.lost.is_none() {
            state.lost = if is_gone {
                Some("the loader agent is gone: its process has ended".into())
            } else {
                stands_still
            };
        }
    }
}

/// A file that another process of this user has open, and its length in bytes.
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
