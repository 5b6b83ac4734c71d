//! Tests of tiers that start other programs, one at a time: until such a program runs it is a copy of this process, and
//! holds the leases that this one has just given up.

#[expect(dead_code, reason = "the other tests of tiers need more of it")]
mod common;

mod processes {
    mod kill;
    mod programs;
}

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keeps the other tests of this file waiting while it lives.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
