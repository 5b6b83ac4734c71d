//! Openers that wait for a copy of another node.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use forebay_contract::{Run, open_waits::longest_wait_ns};
use rustix::thread::futex;

use crate::{
    host::{clock::boot_ns, shared::SharedFile},
    tiering::limits::{COMING_WAITS, OPENER_LEASE, OPENER_MARGIN},
};

/// Run pages of the runs whose openers wait. Empty while no node shares its files.
#[derive(Clone, Debug)]
pub(crate) struct WaitPages {
    /// Directory of all run pages.
    dir: PathBuf,
    known: Arc<Mutex<HashMap<u64, Arc<SharedFile>>>>,
}

impl WaitPages {
    /// Begins without a run; run pages are in `dir`.
    pub(crate) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            known: Arc::default(),
        }
    }

    fn pages(&self) -> MutexGuard<'_, HashMap<u64, Arc<SharedFile>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pages().is_empty()
    }

    pub(crate) fn contains(&self, run: u64) -> bool {
        self.pages().contains_key(&run)
    }

    /// Has the openers of a run wait from now on.
    pub(crate) fn add(&self, run: u64, page: SharedFile) {
        set_waiting(&page, true);
        self.pages().insert(run, Arc::new(page));
    }

    /// Has no opener of a run wait any more.
    pub(crate) fn remove(&self, run: u64) {
        if let Some(page) = self.pages().remove(&run) {
            set_waiting(&page, false);
        }
    }

    /// Returns the opener of a run that waits on a word, for a file of `bytes`.
    ///
    /// A run that does not share its files has openers for a moment: since it has just ended, or since its agent was
    /// replaced.
    pub(crate) fn opener(&self, run: u64, number: u32, bytes: u64) -> Option<WaitingOpener> {
        let known = self.pages().get(&run).map(Arc::clone);
        let page = known.or_else(|| SharedFile::open(&self.dir.join(format!("run.{run}"))).ok().map(Arc::new))?;
        Some(WaitingOpener {
            page,
            number,
            began: Instant::now(),
            together: bytes,
        })
    }
}

fn set_waiting(page: &SharedFile, is_waiting: bool) {
    if let Some(run) = Run::open(page.region()) {
        run.open_waits().set_waiting(is_waiting);
    }
}

/// An opener that waits. It goes on when this is dropped.
#[derive(Debug)]
pub(crate) struct WaitingOpener {
    page: Arc<SharedFile>,
    number: u32,
    began: Instant,
    /// Most bytes of files, its own among them, that the node's programs waited for or read at the same moment.
    together: u64,
}

impl WaitingOpener {
    /// Returns true if the opener may wait on, and tells it so. `together` are the bytes of all files that the node's
    /// programs wait for or read now; `are_pieces_coming` and `bytes_per_s` are as for [`longest_wait`].
    pub(crate) fn waits_on(&mut self, now: Instant, together: u64, (are_pieces_coming, bytes_per_s): (bool, Option<u64>)) -> bool {
        self.together = self.together.max(together);
        let most = longest_wait(self.together, are_pieces_coming, bytes_per_s);
        let waits_on = now < self.began + most.saturating_sub(OPENER_MARGIN);
        if waits_on && let Some(run) = Run::open(self.page.region()) {
            run.open_waits().prolong(boot_ns() + OPENER_LEASE.as_nanos() as u64);
        }
        waits_on
    }
}

/// Returns the longest wait of an opener: as long as its own read of the source may take, which would share the source
/// with all files of `together` bytes.
///
/// A source gives 10 MB/s, or less if this node has measured so: `bytes_per_s`, of which 1 MB/s is the least that
/// counts. While nothing is measured and pieces come, the source may be as slow as they are: their owner reads it.
fn longest_wait(together: u64, are_pieces_coming: bool, bytes_per_s: Option<u64>) -> Duration {
    let usual = Duration::from_nanos(longest_wait_ns(together));
    let most = Duration::from_nanos(longest_wait_ns(together.saturating_mul(COMING_WAITS)));
    match bytes_per_s {
        Some(bytes_per_s) => {
            let takes_ms = together.saturating_mul(1000) / bytes_per_s.max(1);
            let measured = Duration::from_nanos(longest_wait_ns(0)).saturating_add(Duration::from_millis(takes_ms));
            measured.clamp(usual, most)
        }
        None if are_pieces_coming => most,
        None => usual,
    }
}

impl Drop for WaitingOpener {
    fn drop(&mut self) {
        if let Some(word) = Run::open(self.page.region()).and_then(|run| run.open_waits().end(self.number)) {
            let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_contract::{
        Freshness,
        run::{RUN_BYTES, RunSettings},
    };

    use super::*;

    #[test]
    fn p13_an_opener_waits_no_longer_than_its_own_read_of_a_source_that_was_measured() {
        const MB: u64 = 1_000_000;
        let waits_s = |are_coming, speed| longest_wait(100 * MB, are_coming, speed).as_secs();
        for are_coming in [false, true] {
            assert_eq!(waits_s(are_coming, Some(5 * MB)), 1 + 20, "100 MB at 5 MB/s");
            assert_eq!(waits_s(are_coming, Some(500 * MB)), 1 + 10, "not less than at 10 MB/s");
            assert_eq!(
                waits_s(are_coming, Some(1)),
                1 + 100,
                "a source that hung is waited for no longer than at 1 MB/s"
            );
        }
        assert_eq!([waits_s(false, None), waits_s(true, None)], [1 + 10, 1 + 100]);
    }

    #[test]
    fn an_opener_goes_on_when_its_handoff_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let file = SharedFile::create(&dir.path().join("run.7"), RUN_BYTES).unwrap();
        let settings = RunSettings {
            run: 7,
            freshness: Freshness::Immutable,
            mount_namespace: 1,
            root: (1, 1),
            agent_dir: b"/run",
            agent_started_at: 1,
            roots: &[],
            excludes: b"",
        };
        let run = Run::create(file.region(), &settings).unwrap();
        let pages = WaitPages::new(dir.path());
        assert!(run.open_waits().begin().is_none(), "nobody waits before nodes share files");
        pages.add(7, SharedFile::open(&dir.path().join("run.7")).unwrap());
        let wait = run.open_waits().begin().unwrap();
        assert!(pages.opener(8, wait.number, 1).is_none(), "there is no such run");
        let mut opener = pages.opener(7, wait.number, 1).unwrap();
        assert!(!wait.is_over());
        let now = Instant::now();
        assert!(opener.waits_on(now, 1, (false, None)) && run.open_waits().prolonged_until() > boot_ns());
        let later = now + Duration::from_secs(5);
        assert!(
            opener.waits_on(later, 100_000_000, (false, None)),
            "files of 100 MB together take 11 s"
        );
        assert!(opener.waits_on(later, 1, (false, None)), "and were read with this one");
        let much_later = now + Duration::from_secs(12);
        assert!(!opener.waits_on(much_later, 1, (false, None)));
        assert!(
            opener.waits_on(much_later, 1, (true, None)),
            "pieces come as slowly as the source gives them"
        );
        assert!(!opener.waits_on(now + Duration::from_secs(102), 1, (true, None)));
        drop(opener);
        assert!(wait.is_over());
        let wait = run.open_waits().begin().unwrap();
        pages.remove(7);
        assert!(pages.is_empty() && run.open_waits().begin().is_none());
        assert!(!run.open_waits().is_waiting() && !wait.is_over());
        // Also where the agent does not know the run any more.
        drop(pages.opener(7, wait.number, 1));
        assert!(wait.is_over());
    }
}
