//! State of a process: its mode, and the mappings of the run's and the agent's pages.
//!
//! The constructor writes it before anybody reads it, with two exceptions. The first user of a newer index maps it, and
//! unmaps the older ones. And a process that moves to another root or mount namespace switches itself to passing.

use core::{
    cell::UnsafeCell,
    ffi::{CStr, c_char},
    mem::MaybeUninit,
    sync::atomic::{
        AtomicU8, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use forebay_contract::{Control, Counter, Index, IndexReader, Mappings, Region, Run, control::CONTROL_BYTES, env, run::RUN_BYTES};

use crate::{
    children,
    path::{Digits, ShortBuffer},
    real, sys,
};

/// Mode: not started, or switched off; every call passes, and nobody counts.
const INERT: u8 = 0;
/// Mode: serving.
const ACTIVE: u8 = 1;
/// Mode: passing, since the root or mount namespace is not the run's.
const ELSEWHERE: u8 = 2;
/// Mode: passing, since the agent's pages could not be mapped.
const BLIND: u8 = 3;

/// Number of attempts to map the current index while the agent replaces it.
const INDEX_TRIES_MAX: u32 = 4;
/// Pause before the next attempt after a lasting failure (no agent, no index), in nanoseconds.
const RETRY_NS: u64 = 1_000_000_000;

static PHASE: AtomicU8 = AtomicU8::new(INERT);
static PAGES: OnceSlot<ProcessPages> = OnceSlot(UnsafeCell::new(MaybeUninit::uninit()));
static INDICES: Mappings = Mappings::new();

/// Room for a value that is written once, before [`PHASE`] permits reading it.
struct OnceSlot<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: written by the constructor alone, before PHASE is stored with Release; only read afterwards.
unsafe impl<T: Sync> Sync for OnceSlot<T> {}

/// The pages that a process works with.
pub(crate) struct ProcessPages {
    pub(crate) run: Run<'static>,
    /// Absent only in a process that passes.
    control: Option<Control<'static>>,
    shard: u64,
    /// Time before which another attempt (the index, the agent's socket) would fail again.
    index_retry_at: AtomicU64,
    agent_retry_at: AtomicU64,
}

/// AttributeAccess for a process that serves.
#[derive(Clone, Copy)]
pub(crate) struct Serving {
    pub(crate) pages: &'static ProcessPages,
    pub(crate) control: Control<'static>,
}

/// Returns access, if this process serves.
#[inline]
pub(crate) fn serving() -> Option<Serving> {
    if PHASE.load(Acquire) != ACTIVE {
        return None;
    }
    let pages = pages();
    Some(Serving {
        pages,
        control: pages.control?,
    })
}

/// Returns access for an open, if this process serves; counts the open if the process passes for a reason of its own.
#[inline]
pub(crate) fn serving_open() -> Option<Serving> {
    match PHASE.load(Acquire) {
        ACTIVE => serving(),
        INERT => None,
        ELSEWHERE => {
            pages().count(Counter::OtherNamespace, 1);
            None
        }
        _ => {
            pages().count(Counter::NoPage, 1);
            None
        }
    }
}

/// Returns the directory of the run's agent, also in a process that passes; `None` outside of a run.
pub(crate) fn agent_dir() -> Option<&'static [u8]> {
    (PHASE.load(Acquire) != INERT).then(|| pages().run.agent_dir())
}

fn pages() -> &'static ProcessPages {
    // SAFETY: callers have seen PHASE past INERT, which is stored after the pages has been written.
    unsafe { (*PAGES.0.get()).assume_init_ref() }
}

impl ProcessPages {
    /// Adds to a counter.
    #[inline]
    pub(crate) fn count(&self, counter: Counter, by: u64) {
        self.run.count(self.shard, counter, by);
    }

    /// Counts an open, at `now` and by the name `spelled`, that a copy has answered.
    #[inline]
    pub(crate) fn count_hit(&self, spelled: &[u8], now: u64, tier: usize, bytes: u64) {
        self.run.count_hit(self.shard, tier, bytes);
        let startup = self.run.startup();
        if !startup.is_over() {
            startup.count_hit(self.shard, spelled, now, (tier, bytes));
        }
    }

    /// Counts an open that the source has just answered, begun at `begun`. Returns the nanoseconds that it took.
    #[inline]
    pub(crate) fn count_source_open(&self, begun: u64) -> u64 {
        let took = real::now().saturating_sub(begun);
        self.run.count_source_open(self.shard, took);
        took
    }

    /// Counts a file of `bytes`, if the first step is still to come, whose open at the source at `now` took `ns`.
    pub(crate) fn count_startup_source(&self, spelled: &[u8], now: u64, (ns, bytes): (u64, u64)) {
        self.run.startup().count_source(self.shard, spelled, now, (ns, bytes));
    }

    /// Counts, if the first step is still to come, the wait since `begun` for a file that a copy answered in the end,
    /// or that could not be opened.
    pub(crate) fn count_startup_wait(&self, spelled: &[u8], begun: u64) {
        let ns = real::now().saturating_sub(begun);
        self.run.startup().count_wait(self.shard, spelled, begun, ns);
    }

    /// Counts that the file with this spelled name was opened for reading.
    #[inline]
    pub(crate) fn note_open(&self, spelled: &[u8]) {
        self.run.opens().note(spelled);
    }

    /// Returns whether the agent did not answer a moment ago.
    pub(crate) fn agent_is_away(&self, now: u64) -> bool {
        now < self.agent_retry_at.load(Relaxed)
    }

    /// Records that no agent answers.
    pub(crate) fn set_agent_away(&self, now: u64) {
        self.agent_retry_at.store(now + RETRY_NS, Relaxed);
    }
}

impl Serving {
    /// Returns the current index, which stays mapped while it is being read.
    #[inline]
    pub(crate) fn read(&self) -> Option<IndexReader> {
        INDICES.read(self.control.generation()).or_else(|| self.read_new())
    }

    /// Returns every index that this process has mapped, the current one first. Only an older one may list the copy of
    /// a descriptor.
    pub(crate) fn read_all(self) -> impl Iterator<Item = IndexReader> {
        self.read();
        INDICES.read_all(self.control.generation())
    }

    /// Returns the current index after mapping it.
    #[cold]
    #[inline(never)]
    fn read_new(&self) -> Option<IndexReader> {
        let now = real::now();
        if now < self.pages.index_retry_at.load(Relaxed) {
            return None;
        }
        for _ in 0..INDEX_TRIES_MAX {
            let generation = self.control.generation();
            if let Some(reading) = INDICES.read(generation) {
                return Some(reading);
            }
            if let Some(region) = self.map_generation(generation) {
                for older in INDICES.take_older(generation) {
                    sys::unmap(older.base(), older.len());
                }
                // SAFETY: the mapping of a moment ago, which only `take_older` gives back.
                if !unsafe { INDICES.keep(region) } {
                    sys::unmap(region.base(), region.len());
                }
            } else if self.control.generation() == generation {
                break;
            }
        }
        self.pages.index_retry_at.store(now + RETRY_NS, Relaxed);
        None
    }

    fn map_generation(&self, generation: u64) -> Option<Region<'static>> {
        let mut path = ShortBuffer::new();
        path.push(self.pages.run.agent_dir())?;
        path.push(b"/index.")?;
        path.push(Digits::of(generation).bytes())?;
        let (base, len) = sys::map_file(path.c_str(), 1, false)?;
        // SAFETY: the mapping of a moment ago.
        let region = unsafe { Region::new(base, len) };
        let is_it = Index::open(region).is_some_and(|index| index.generation() == generation);
        if !is_it {
            sys::unmap(base, len);
        }
        is_it.then_some(region)
    }
}

/// Switches to passing if the process has moved so that paths no longer have the meaning of the run's.
pub(crate) fn check_place() {
    if PHASE.load(Acquire) == ACTIVE && !is_at_home(&pages().run) {
        children::leave();
        PHASE.store(ELSEWHERE, Release);
    }
}

/// Returns whether this process has the run's root and mount namespace.
fn is_at_home(run: &Run<'_>) -> bool {
    let root = sys::stat_at(libc::AT_FDCWD, c"/", 0).map(|stat| (stat.st_dev, stat.st_ino));
    let namespace = sys::stat_at(libc::AT_FDCWD, c"/proc/self/ns/mnt", 0).map(|stat| stat.st_ino);
    root.is_ok_and(|root| root == run.root()) && namespace.is_ok_and(|inode| inode == run.mount_namespace())
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Runs as the library's constructor.
extern "C" fn start() {
    real::resolve_all();
    if let Some((phase, pages)) = connect() {
        pages.count(Counter::Processes, 1);
        // SAFETY: constructors run once, and nobody reads the pages before PHASE is stored.
        unsafe { (*PAGES.0.get()).write(pages) };
        PHASE.store(phase, Release);
        if let Some(serving) = serving().filter(|_| !children::is_go()) {
            children::enter(serving);
        }
    }
}

/// Maps the pages that the environment names; `None`: switched off, or not part of a run.
fn connect() -> Option<(u8, ProcessPages)> {
    if variable(env::FOREBAY).is_some_and(|value| matches!(value.to_bytes(), b"off" | b"0")) {
        return None;
    }
    let (base, len) = sys::map_file(variable(env::RUN)?, RUN_BYTES, true)?;
    // SAFETY: the mapping of a moment ago, which is never taken away.
    let run = Run::open(unsafe { Region::new(base, len) })?;
    let control = map_control(&run);
    let phase = match control {
        None => BLIND,
        Some(_) if is_at_home(&run) => ACTIVE,
        Some(_) => ELSEWHERE,
    };
    let pages = ProcessPages {
        run,
        control,
        shard: sys::process_id(),
        index_retry_at: AtomicU64::new(0),
        agent_retry_at: AtomicU64::new(0),
    };
    Some((phase, pages))
}

fn map_control(run: &Run<'_>) -> Option<Control<'static>> {
    let mut path = ShortBuffer::new();
    path.push(run.agent_dir())?;
    path.push(b"/control")?;
    let (base, len) = sys::map_file(path.c_str(), CONTROL_BYTES, true)?;
    // SAFETY: the mapping of a moment ago, which is never taken away.
    Control::open(unsafe { Region::new(base, len) })
}

/// Returns a variable of the environment with which the program was started. It does not use `getenv`, which other
/// libraries replace.
fn variable(name: &str) -> Option<&'static CStr> {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: libc sets it before any constructor of a library that needs libc.
    let mut entry = unsafe { environ };
    if entry.is_null() {
        return None;
    }
    loop {
        // SAFETY: a list of strings that ends with a null pointer; nobody else runs yet who could change it.
        let text = unsafe { *entry };
        if text.is_null() {
            return None;
        }
        // SAFETY: a string of the environment.
        let bytes = unsafe { CStr::from_ptr(text) }.to_bytes_with_nul();
        if let Some(value) = bytes.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")) {
            return CStr::from_bytes_with_nul(value).ok();
        }
        // SAFETY: not yet at the end.
        entry = unsafe { entry.add(1) };
    }
}
