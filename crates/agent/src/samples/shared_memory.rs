//! Shared memory of a rank and its worker processes: the request ring with the agent's answers, and the arena with the
//! samples.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use forebay_contract::{Region, RequestRing, request_ring::SampleAnswer};
use rustix::{fs::fstat, io::Errno, thread::futex};

use crate::host::{clock::timespec, error::AgentError, shared::SharedFile};
use crate::samples::limits::LOADER_DEAD_AFTER;

/// Time that a wait for an answer may last before the agent is checked.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Status of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleStatus {
    /// No answer within the time waited.
    Pending,
    /// The bytes are in the arena, until the request is released.
    Ready {
        /// Offset from the arena's beginning.
        offset: u64,
        /// Length in bytes.
        length: u32,
    },
    /// The caller has to read the source itself.
    ReadYourself,
}

/// A rank's request ring and its loader's arena, mapped.
#[derive(Debug)]
pub(super) struct Answers {
    // Declared before the page, whose memory it borrows.
    pub(super) ring: RequestRing<'static>,
    page: SharedFile,
    arena: SharedFile,
}

impl Answers {
    /// Maps these files, given with their lengths in bytes.
    ///
    /// # Errors
    /// They can't be mapped, or are another version's.
    pub(super) fn new((page, page_bytes): (OwnedFd, usize), (arena, arena_bytes): (OwnedFd, usize)) -> Result<Self, AgentError> {
        let unusable = |why: String| AgentError::Protocol(format!("its memory {why}"));
        let mapped = |error: io::Error| unusable(format!("can't be mapped: {error}"));
        let page = SharedFile::received(page, page_bytes).map_err(mapped)?;
        let arena = SharedFile::received_for_reading(arena, arena_bytes).map_err(mapped)?;
        let ring = RequestRing::open(page.region_beside()).ok_or_else(|| unusable("is of another version".into()))?;
        Ok(Self { ring, page, arena })
    }

    /// The memory that holds the samples. Bytes of [`SampleStatus::Ready`] may be read until the rank releases the
    /// request.
    pub(super) fn arena(&self) -> Region<'_> {
        self.arena.region()
    }

    /// Returns this process's descriptors of ring and arena, and their files' numbers.
    pub(super) fn places(&self) -> io::Result<[(i32, u64); 2]> {
        let place = |file: &SharedFile| -> io::Result<(i32, u64)> { Ok((file.descriptor().as_raw_fd(), fstat(file.descriptor())?.st_ino)) };
        Ok([place(&self.page)?, place(&self.arena)?])
    }

    /// Returns the status of a request that was not released.
    pub(super) fn look(&self, turn: u64) -> SampleStatus {
        match self.ring.answer(turn) {
            SampleAnswer::Pending => SampleStatus::Pending,
            // Validates the range: an agent that writes nonsense can't lead outside the arena.
            SampleAnswer::Ready { offset, length } if self.arena().bytes(offset, u64::from(length)).is_some() => {
                SampleStatus::Ready { offset, length }
            }
            SampleAnswer::Ready { .. } | SampleAnswer::Refused => SampleStatus::ReadYourself,
        }
    }

    /// Polls `look` until it answers or `wait` is over; meanwhile `look_after_agent` is called each second.
    pub(super) fn wait(&self, wait: Duration, look: impl Fn() -> SampleStatus, look_after_agent: impl Fn()) -> SampleStatus {
        let deadline = Instant::now() + wait;
        loop {
            let seen = self.ring.wait_begins();
            let told = look();
            let left = deadline.saturating_duration_since(Instant::now());
            if told != SampleStatus::Pending || left.is_zero() {
                self.ring.wait_over();
                return told;
            }
            let pause = left.min(LOOK_EVERY);
            let waited = futex::wait(self.ring.answers(), futex::Flags::empty(), seen, Some(&timespec(pause)));
            self.ring.wait_over();
            match waited {
                Err(Errno::TIMEDOUT) => look_after_agent(),
                // Interrupted by a signal: its handler is the caller's business.
                Err(Errno::INTR) => return look(),
                Ok(()) | Err(_) => {}
            }
        }
    }
}

/// Counts checks that found the agent standing still. It counts checks and not time: a machine that was suspended, or a
/// job that was frozen together with the agent, made no checks meanwhile.
#[derive(Debug, Default)]
pub(super) struct AgentWatch {
    /// Time of the agent's last sign of life, by its own clock.
    alive_ns: u64,
    /// Time of the last check that counted.
    looked: Option<Instant>,
    /// Checks in a row, some time apart, without a new sign of life.
    in_vain: u32,
}

impl AgentWatch {
    /// Checks the agent's sign of life. Returns the reason to give it up, if it has stood still for too long.
    pub(super) fn look(&mut self, ring: &RequestRing<'_>) -> Option<String> {
        let stands_still = self.stands_still(ring.alive_ns(), Instant::now());
        stands_still.then(|| format!("the loader agent stands still since {} s", LOADER_DEAD_AFTER.as_secs()))
    }

    /// Takes a sign of life seen now. Returns true if the agent has stood still for too long.
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
        let (mut watch, begun) = (AgentWatch::default(), Instant::now());
        let mut look = |alive_ns, at_s| watch.stands_still(alive_ns, begun + Duration::from_secs_f64(at_s));
        let dead_s = LOADER_DEAD_AFTER.as_secs_f64();
        assert!(!look(5, 0.0));
        // Both were frozen; several threads check concurrently.
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
