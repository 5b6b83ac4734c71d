//! End of all requests, which wakes threads that pause between two attempts.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// A flag; once it is set no request is tried again.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_set: Mutex<bool>,
    wake: Condvar,
}

impl Stop {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self) {
        *self.lock() = true;
        self.wake.notify_all();
    }

    pub(crate) fn is_set(&self) -> bool {
        *self.lock()
    }

    /// Waits for this time, or until it is set. Returns whether it is.
    pub(crate) fn pause(&self, pause: Duration) -> bool {
        let waited = self.wake.wait_timeout_while(self.lock(), pause, |is_set| !*is_set);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
