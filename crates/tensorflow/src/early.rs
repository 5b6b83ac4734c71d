//! The copy of variables during a step.

use std::{
    collections::VecDeque,
    fmt, process,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};

use forebay_digest::{Digest, STRETCH_BYTES};

use crate::{api::Held, op};

/// Bytes that are copied between two looks for the end of the copy.
const PIECE_BYTES: usize = 1 << 20;
const _: () = assert!(PIECE_BYTES.is_multiple_of(STRETCH_BYTES));

/// Memory to which tensors are copied, and which is there as long as this object.
pub trait Target: Send + 'static {
    /// Returns the address of a part of it, to which nobody else writes; `None` if it is not as long.
    fn address(&self, offset: usize, length: usize) -> Option<*mut u8>;
}

/// The marked variables of one train function.
pub struct Watch {
    number: u32,
    is_armed: AtomicBool,
    early: Mutex<Weak<EarlyCopy>>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Watch")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl Watch {
    /// Creates a watch, to which operations find by its tokens.
    pub fn new() -> Arc<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new_cyclic(|watch| {
            op::add(number, watch.clone());
            Self {
                number,
                is_armed: AtomicBool::new(false),
                early: Mutex::new(Weak::new()),
            }
        })
    }

    /// Returns the operation's attribute `token` for a variable.
    pub fn token(&self, variable: u32) -> i64 {
        i64::from(self.number) << 32 | i64::from(variable)
    }

    /// Has the next step hand over its variables. A copy before this one is given up.
    ///
    /// * `variables`: their number.
    /// * `repeats`: how often the step marks each: only the last mark counts.
    pub fn arm(&self, variables: usize, repeats: u32) -> Arc<EarlyCopy> {
        let made = Arc::new(EarlyCopy::new(variables, repeats));
        let before = std::mem::replace(&mut *lock(&self.early), Arc::downgrade(&made));
        if let Some(before) = before.upgrade() {
            before.give_up();
        }
        self.is_armed.store(true, Ordering::Release);
        made
    }

    /// Notes that the step has ended.
    pub fn disarm(&self) {
        self.is_armed.store(false, Ordering::Release);
    }

    pub(crate) fn armed(&self) -> Option<Arc<EarlyCopy>> {
        if !self.is_armed.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.early).upgrade()
    }
}

/// The variables of one step, and their copies.
pub struct EarlyCopy {
    process: u32,
    repeats: u32,
    /// By variable, how often it was marked.
    marks: Vec<AtomicU32>,
    state: Mutex<State>,
    changed: Condvar,
    is_given_up: AtomicBool,
    copied_bytes: AtomicUsize,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for EarlyCopy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("EarlyCopy");
        shown.field("copied_bytes", &self.copied_bytes()).finish_non_exhaustive()
    }
}

struct State {
    /// By variable. References are kept until the comparison: a buffer that nobody holds could be written to, or used
    /// for another tensor.
    held: Vec<Option<Held>>,
    digests: Vec<Option<u128>>,
    /// Variables that wait to be copied.
    queue: VecDeque<usize>,
    /// True once the step has ended: nothing more comes.
    is_complete: bool,
}

impl EarlyCopy {
    fn new(variables: usize, repeats: u32) -> Self {
        let state = State {
            held: (0..variables).map(|_| None).collect(),
            digests: vec![None; variables],
            queue: VecDeque::new(),
            is_complete: false,
        };
        Self {
            process: process::id(),
            repeats,
            marks: (0..variables).map(|_| AtomicU32::new(0)).collect(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            is_given_up: AtomicBool::new(false),
            copied_bytes: AtomicUsize::new(0),
            thread: Mutex::new(None),
        }
    }

    /// Counts a mark of a variable; returns whether it is the step's last.
    pub(crate) fn is_final(&self, variable: u32) -> bool {
        let marks = self.marks.get(variable as usize);
        marks.is_some_and(|marks| marks.fetch_add(1, Ordering::Relaxed) + 1 == self.repeats)
    }

    /// Takes over a variable's value.
    pub(crate) fn add(&self, variable: u32, held: Held) {
        let at = variable as usize;
        let mut state = lock(&self.state);
        if !state.is_complete && state.held[at].is_none() {
            state.held[at] = Some(held);
            state.queue.push_back(at);
            self.changed.notify_one();
        }
    }

    /// Begins to copy in a thread of its own, each variable to its offset. Returns whether there is a thread.
    pub fn copy(self: &Arc<Self>, target: impl Target, offsets: Vec<usize>) -> bool {
        let early = Arc::clone(self);
        let copying = move || early.copy_all(&target, &offsets);
        let thread = thread::Builder::new().name("forebay-early".into()).spawn(copying).ok();
        let is_there = thread.is_some();
        *lock(&self.thread) = thread;
        is_there
    }

    fn copy_all(&self, target: &impl Target, offsets: &[usize]) {
        while let Some((variable, source, length)) = self.next() {
            let Some(&offset) = offsets.get(variable) else { continue };
            let digest = self.copy_one(target, source, offset, length);
            lock(&self.state).digests[variable] = digest;
        }
    }

    /// Waits for a variable; `None` after the last one.
    fn next(&self) -> Option<(usize, usize, usize)> {
        let mut state = lock(&self.state);
        loop {
            if self.is_given_up.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(variable) = state.queue.pop_front() {
                let held = state.held[variable].as_ref()?;
                return Some((variable, held.address, held.length));
            }
            if state.is_complete {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Copies a buffer, and returns the digest of the copy; `None` if it was given up, or there is no room.
    fn copy_one(&self, target: &impl Target, source: usize, offset: usize, length: usize) -> Option<u128> {
        let address = target.address(offset, length)?;
        let mut digest = Digest::new(length);
        for at in (0..length).step_by(PIECE_BYTES) {
            if self.is_given_up.load(Ordering::Relaxed) {
                return None;
            }
            let part = PIECE_BYTES.min(length - at);
            // SAFETY: the buffer is held until `finish`, which waits for this thread, or until this object goes, which
            // this thread has, too; nobody writes to it. The target is there, and nobody else's.
            unsafe { digest.copy((source + at) as *const u8, address.add(at), part) };
            self.copied_bytes.fetch_add(part, Ordering::Relaxed);
        }
        // SAFETY: all of it was just written.
        Some(digest.finish(unsafe { std::slice::from_raw_parts(address, length) }))
    }

    /// Returns the bytes that were copied so far.
    pub fn copied_bytes(&self) -> usize {
        self.copied_bytes.load(Ordering::Relaxed)
    }

    /// Ends the copy after the step. Of the variables that still have the buffer that was marked, copies those that
    /// wait, and returns the digests of all.
    ///
    /// * `now`: variables, and the address and length of the buffer that each has now, which the caller holds.
    pub fn finish(&self, now: &[(usize, usize, usize)]) -> Vec<(usize, u128)> {
        let mut state = lock(&self.state);
        let is_still = |&(variable, address, length): &(usize, usize, usize)| {
            let held = state.held.get(variable).and_then(Option::as_ref);
            held.is_some_and(|held| held.address == address && held.length == length)
        };
        let still: Vec<_> = now.iter().filter(|one| is_still(one)).map(|one| one.0).collect();
        state.queue.retain(|variable| still.contains(variable));
        state.is_complete = true;
        self.changed.notify_all();
        drop(state);
        self.join();
        let mut state = lock(&self.state);
        let found = still
            .iter()
            .filter_map(|&variable| Some((variable, state.digests[variable]?)))
            .collect();
        state.held.iter_mut().for_each(|held| *held = None);
        found
    }

    /// Ends the copy without a result. Nothing is written to its memory any more. Waits for at most one piece.
    pub fn give_up(&self) {
        if process::id() != self.process {
            // A forked process has neither the thread nor what the thread may have locked.
            return;
        }
        self.is_given_up.store(true, Ordering::Relaxed);
        lock(&self.state).is_complete = true;
        self.changed.notify_all();
        self.join();
    }

    fn join(&self) {
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // A thread that has panicked leaves its variable without a digest.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fake::{DELETED, held};

    const LENGTH: usize = 3 << 20;

    /// Memory that is never freed, so that threads of other tests may still use it.
    #[derive(Clone, Copy)]
    struct Leaked(usize);

    impl Target for Leaked {
        fn address(&self, offset: usize, length: usize) -> Option<*mut u8> {
            (offset + length <= 2 * LENGTH).then_some((self.0 + offset) as *mut u8)
        }
    }

    fn bytes(seed: u8, length: usize) -> &'static [u8] {
        (0..length).map(|at| (at as u8).wrapping_mul(seed)).collect::<Vec<_>>().leak()
    }

    fn target() -> Leaked {
        Leaked(vec![0; 2 * LENGTH].leak().as_ptr() as usize)
    }

    fn now(variable: usize, bytes: &[u8]) -> (usize, usize, usize) {
        (variable, bytes.as_ptr() as usize, bytes.len())
    }

    #[test]
    fn what_is_still_there_has_the_digest_of_its_copy_and_what_moved_has_none() {
        let (first, second, other) = (bytes(3, LENGTH), bytes(5, 1000), bytes(7, 1000));
        let (early, target) = (Arc::new(EarlyCopy::new(2, 1)), target());
        assert!(early.copy(target, vec![0, LENGTH]));
        early.add(0, held(first));
        early.add(1, held(second));
        let found = early.finish(&[now(0, first), now(1, other)]);
        assert_eq!(found, [(0, forebay_digest::of(first))]);
        // SAFETY: leaked, and written to by nobody now.
        let copy = unsafe { std::slice::from_raw_parts(target.0 as *const u8, LENGTH) };
        assert!(copy == first);
        let before = DELETED.load(Ordering::Relaxed);
        assert!(before >= 2, "references go with the comparison");
        early.add(0, held(first));
        assert!(early.finish(&[now(0, first)]).is_empty(), "nothing is taken after it");
    }

    #[test]
    fn a_variable_without_a_place_or_without_a_thread_is_not_copied() {
        let first = bytes(3, 100);
        let early = Arc::new(EarlyCopy::new(1, 1));
        early.add(0, held(first));
        assert!(early.finish(&[now(0, first)]).is_empty());
        let early = Arc::new(EarlyCopy::new(1, 1));
        assert!(early.copy(target(), vec![1 << 40]));
        early.add(0, held(first));
        assert!(early.finish(&[now(0, first)]).is_empty());
    }

    #[test]
    fn only_the_last_mark_of_several_steps_counts() {
        let early = EarlyCopy::new(1, 3);
        assert_eq!([0; 4].map(|_| early.is_final(0)), [false, false, true, false]);
        assert!(!early.is_final(1), "there is no such variable");
    }

    #[test]
    fn a_step_that_is_armed_again_gives_the_copy_before_up() {
        let watch = Watch::new();
        assert!(watch.armed().is_none());
        let before = watch.arm(1, 1);
        assert!(before.copy(target(), vec![0]));
        let early = watch.arm(1, 1);
        assert!(lock(&before.thread).is_none(), "its thread has ended");
        assert!(Arc::ptr_eq(&watch.armed().unwrap(), &early));
        watch.disarm();
        assert!(watch.armed().is_none());
        early.give_up();
    }

    #[test]
    fn tokens_name_a_watch_and_a_variable() {
        let (one, other) = (Watch::new(), Watch::new());
        let tokens = [one.token(0), one.token(1), other.token(0)];
        assert!(tokens[0] != tokens[2] && tokens[1] == tokens[0] + 1);
    }
}
