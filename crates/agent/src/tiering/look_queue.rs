//! Queue of copies that workers look at again and again, each at its time.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Instant,
};

#[derive(Debug)]
struct ScheduledLook<T> {
    due: Instant,
    job: Box<T>,
}

impl<T> PartialEq for ScheduledLook<T> {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}
impl<T> Eq for ScheduledLook<T> {}
impl<T> PartialOrd for ScheduledLook<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for ScheduledLook<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.due.cmp(&other.due)
    }
}

/// Jobs by the time of their next look. One idle worker at a time, the leader, waits for the first job. When the leader
/// gets a job it wakes another worker to lead, so that a due job wakes one worker and not all.
#[derive(Debug)]
pub(crate) struct LookQueue<T> {
    /// Number of jobs that one worker takes together.
    at_once: usize,
    state: Mutex<LookQueueState<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct LookQueueState<T> {
    waiting: BinaryHeap<Reverse<ScheduledLook<T>>>,
    has_leader: bool,
}

impl<T> LookQueue<T> {
    /// Returns an empty queue, of which one worker takes at most `at_once` jobs together.
    pub(crate) fn new(at_once: usize) -> Arc<Self> {
        Arc::new(Self {
            at_once,
            state: Mutex::new(LookQueueState {
                waiting: BinaryHeap::new(),
                has_leader: false,
            }),
            changed: Condvar::new(),
        })
    }

    /// Adds a job that is due at a time.
    pub(crate) fn put(&self, due: Instant, job: Box<T>) {
        let waiting = ScheduledLook { due, job };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = state.waiting.peek().is_none_or(|Reverse(first)| waiting.due < first.due);
        state.waiting.push(Reverse(waiting));
        drop(state);
        // A job behind the first one needs no wake-up.
        if is_first {
            self.changed.notify_all();
        }
    }

    /// Waits until a job is due, and takes all due ones up to a bound.
    pub(crate) fn take(&self) -> Vec<Box<T>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let now = Instant::now();
            let mut due = Vec::new();
            while due.len() < self.at_once
                && state.waiting.peek().is_some_and(|Reverse(first)| first.due <= now)
                && let Some(Reverse(first)) = state.waiting.pop()
            {
                due.push(first.job);
            }
            if !due.is_empty() {
                if state.waiting.peek().is_some() {
                    self.changed.notify_one();
                }
                return due;
            }
            let pause = state.waiting.peek().map(|Reverse(first)| first.due - now);
            state = match pause.filter(|_| !state.has_leader) {
                Some(pause) => {
                    state.has_leader = true;
                    let mut state = self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
                    state.has_leader = false;
                    state
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}
