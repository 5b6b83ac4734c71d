//! A fork of this host that waits for the state of a job on other hosts.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::{
    forks::{client::Forking, protocol::ForkProgress},
    host::error::AgentError,
};

/// Interval of looks for the end of a fork.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A fork of this host, and whether its program has ended.
#[derive(Debug)]
pub struct CloneUnderWay<'a> {
    forking: &'a Mutex<&'a Forking>,
    has_ended: &'a AtomicBool,
    looked: Mutex<Instant>,
}

impl<'a> CloneUnderWay<'a> {
    /// Takes the fork, whose connection others use as well, and a word that tells that its program has ended.
    pub fn new(forking: &'a Mutex<&'a Forking>, has_ended: &'a AtomicBool) -> Self {
        let looked = Mutex::new(Instant::now());
        Self {
            forking,
            has_ended,
            looked,
        }
    }

    /// Returns the number of the fork.
    pub(super) fn fork(&self) -> u64 {
        self.with(|forking| forking.fork)
    }

    /// Returns whether the program has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Relaxed)
    }

    /// Asks for the progress of the fork.
    pub(super) fn progress(&self) -> Result<ForkProgress, AgentError> {
        self.with(Forking::outcome)
    }

    /// Calls a function with the fork.
    pub(super) fn with<T>(&self, call: impl FnOnce(&Forking) -> T) -> T {
        call(&self.forking.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns whether nobody waits for the state any more. Asks the fork agent now and then only.
    pub(super) fn is_over(&self) -> bool {
        if self.has_ended.load(Relaxed) {
            return true;
        }
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.elapsed() < LOOK_EVERY {
            return false;
        }
        *looked = Instant::now();
        drop(looked);
        self.progress().map_or(true, |progress| progress.is_over)
    }
}
