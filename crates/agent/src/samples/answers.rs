//! What a rank and its worker processes look at: the board with the agent's answers, and the memory in which samples lie.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use forebay_contract::{Board, Region, board::Answer};
use rustix::{fs::fstat, io::Errno, thread::futex};

use crate::host::{clock::timespec, error::AgentError, shared::SharedFile};
use crate::samples::limits::LOADER_DEAD_AFTER;

/// How long who waits for an answer does so before it looks whether there still is an agent.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What is told of a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Nothing, within the time that was waited.
    Pending,
    /// Its bytes lie in the arena, until it is released.
    Ready {
        /// From the arena's beginning.
        offset: u64,
        /// In bytes.
        length: u32,
    },
    /// Who asks is to read the source himself.
    ReadYourself,
}

/// A rank's board and its loader's arena, mapped.
#[derive(Debug)]
pub(super) struct Answers {
    // Before the page, in whose memory it lies.
    pub(super) board: Board<'static>,
    page: SharedFile,
    arena: SharedFile,
}

impl Answers {
    /// Of these files and lengths in bytes.
    ///
    /// # Errors
    /// They can't be mapped, or are another version's.
    pub(super) fn new((page, page_bytes): (OwnedFd, usize), (arena, arena_bytes): (OwnedFd, usize)) -> Result<Self, AgentError> {
        let unusable = |why: String| AgentError::Protocol(format!("its memory {why}"));
        let mapped = |error: io::Error| unusable(format!("can't be mapped: {error}"));
        let page = SharedFile::received(page, page_bytes).map_err(mapped)?;
        let arena = SharedFile::received_for_reading(arena, arena_bytes).map_err(mapped)?;
        let board = Board::open(page.region_beside()).ok_or_else(|| unusable("is of another version".into()))?;
        Ok(Self { board, page, arena })
    }

    /// The memory in which samples lie. What is there may be looked at from [`Told::Ready`] until the rank releases it.
    pub(super) fn arena(&self) -> Region<'_> {
        self.arena.region()
    }

    /// Descriptors of this process, of board and arena, and their files' numbers.
    pub(super) fn places(&self) -> io::Result<[(i32, u64); 2]> {
        let place = |file: &SharedFile| -> io::Result<(i32, u64)> { Ok((file.descriptor().as_raw_fd(), fstat(file.descriptor())?.st_ino)) };
        Ok([place(&self.page)?, place(&self.arena)?])
    }

    /// What has become of a use that was not released.
    pub(super) fn look(&self, turn: u64) -> Told {
        match self.board.answer(turn) {
            Answer::Pending => Told::Pending,
            // Whatever the agent writes, it leads nowhere else.
            Answer::Ready { offset, length } if self.arena().bytes(offset, u64::from(length)).is_some() => Told::Ready { offset, length },
            Answer::Ready { .. } | Answer::Refused => Told::ReadYourself,
        }
    }

    /// What `look` tells, waited for no longer than this; where nothing comes, `look_after_agent` is called each second.
    pub(super) fn wait(&self, wait: Duration, look: impl Fn() -> Told, look_after_agent: impl Fn()) -> Told {
        let deadline = Instant::now() + wait;
        loop {
            let seen = self.board.wait_begins();
            let told = look();
            let left = deadline.saturating_duration_since(Instant::now());
            if told != Told::Pending || left.is_zero() {
                self.board.wait_over();
                return told;
            }
            let pause = left.min(LOOK_EVERY);
            let waited = futex::wait(self.board.answers(), futex::Flags::empty(), seen, Some(&timespec(pause)));
            self.board.wait_over();
            match waited {
                Err(Errno::TIMEDOUT) => look_after_agent(),
                // A signal: its handler is the caller's.
                Err(Errno::INTR) => return look(),
                Ok(()) | Err(_) => {}
            }
        }
    }
}

/// How often the agent was found standing still. Looks are counted, and not the time: a machine that was suspended, or a job that was frozen together with the agent, has
/// not looked meanwhile.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// When it was last seen to work, by its own account.
    alive_ns: u64,
    /// The last look that counted.
    looked: Option<Instant>,
    /// Looks in a row, a while apart, that have found it so.
    in_vain: u32,
}

impl Watch {
    /// A look at the agent's board: why it is not waited for any more, if it has stood still for too long.
    pub(super) fn look(&mut self, board: &Board<'_>) -> Option<String> {
        let stands_still = self.stands_still(board.alive_ns(), Instant::now());
        stands_still.then(|| format!("the loader agent stands still since {} s", LOADER_DEAD_AFTER.as_secs()))
    }

    /// The agent says that it worked then, as is seen now. Whether it has stood still for too long.
    fn stands_still(&mut self, alive_ns: u64, now: Instant) -> bool {
        match self.looked {
            Some(looked) if alive_ns == self.alive_ns => {
                if now.saturating_duration_since(looked) >= LOOK_EVERY {
                    self.looked = Some(now);
                    self.in_vain += 1;
                }
            }
            _ => {
                let looked = Some(now);
                let in_vain = 0;
                *self = Self { alive_ns, looked, in_vain };
            }
        }
        LOOK_EVERY * self.in_vain >= LOADER_DEAD_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_stands_still_when_it_was_looked_at_for_long_and_not_when_time_has_jumped() {
        let (mut watch, begun) = (Watch::default(), Instant::now());
        let mut look = |alive_ns, at_s| watch.stands_still(alive_ns, begun + Duration::from_secs_f64(at_s));
        let dead_s = LOADER_DEAD_AFTER.as_secs_f64();
        assert!(!look(5, 0.0));
        // Both were frozen; several threads look at once.
        assert!(![1000.0, 1000.1, 1000.2].map(|at_s| look(5, at_s)).contains(&true));
        for second in 1..LOADER_DEAD_AFTER.as_secs() - 1 {
            assert!(!look(5, 1000.0 + second as f64));
        }
        assert!(!look(6, 1000.0 + dead_s), "it works again");
        for half in 1..2 * LOADER_DEAD_AFTER.as_secs() {
            assert!(!look(6, 1000.0 + dead_s + 0.5 * half as f64));
        }
        assert!(look(6, 1000.0 + 2.0 * dead_s));
    }
}
