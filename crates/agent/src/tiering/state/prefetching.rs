//! Copies of files beside those that programs have opened, made while the source is idle (`--prefetch idle`).
//! [`forebay_policy::prefetch`] decides which directory and file come next.
//!
//! A prefetched file passes the same checks as one from a handoff. But it is read without a reader to follow, replaces
//! no copy, and is counted apart.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use forebay_contract::index::split;
use forebay_policy::prefetch::{PrefetchPlan, PrefetchStep, Seen};

use crate::{
    host::{clock::boot_ms, error::AgentError},
    tiering::{
        handoff::Handoff,
        limits::AHEAD_DIRECTORIES_MAX,
        pages::IndexFile,
        prefetcher::{PrefetchRequest, PrefetchedFiles, Prefetcher},
        state::runs::{ServedRuns, shares_paths},
    },
};

/// Directories known for prefetching, and the files of the current one.
#[derive(Debug)]
pub(crate) struct Prefetching {
    /// True while a run asks for it.
    is_on: bool,
    policy: PrefetchPlan,
    prefetcher: Prefetcher,
    numbers: HashMap<Vec<u8>, u32>,
    /// Path of each directory by number, and the run that has opened a file there last.
    directories: Vec<(Vec<u8>, u64)>,
    /// Run for which the current directory was listed.
    run: u64,
    /// Files of the current directory that are still to be copied.
    names: VecDeque<Vec<u8>>,
    /// Files of the last batch, by device and inode. If a program opens one of them now, it was read twice.
    batch: HashSet<(u64, u64)>,
    wasted_bytes: u64,
}

impl Prefetching {
    pub(crate) fn new(prefetcher: Prefetcher) -> Self {
        Self {
            is_on: false,
            policy: PrefetchPlan::default(),
            prefetcher,
            numbers: HashMap::new(),
            directories: Vec::new(),
            run: 0,
            names: VecDeque::new(),
            batch: HashSet::new(),
            wasted_bytes: 0,
        }
    }

    pub(crate) const fn is_on(&self) -> bool {
        self.is_on
    }

    pub(crate) const fn set_on(&mut self, is_on: bool) {
        self.is_on = is_on;
    }

    /// Starts the prefetcher, the first time.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start(&mut self) -> Result<(), AgentError> {
        let started = self.prefetcher.start();
        self.policy.asked(boot_ms());
        started
    }

    /// Notes that a program has asked the source for a file or a directory.
    pub(crate) fn note_handoff(&mut self, handoff: &Handoff, runs: &mut ServedRuns) {
        let now_ms = boot_ms();
        self.policy.asked(now_ms);
        let identity = handoff.stat.identity;
        if self.batch.remove(&(identity.dev, identity.ino)) {
            self.count_wasted(handoff.run, identity.size, runs);
        }
        // A program that lists a directory has not opened a file in it.
        if handoff.stat.is_regular() {
            self.note_directory(handoff, now_ms, runs);
        }
    }

    /// Remembers the directory of a file that a program has opened.
    fn note_directory(&mut self, handoff: &Handoff, now_ms: u64, runs: &ServedRuns) {
        let Some((path, _)) = split(&handoff.path) else { return };
        let known = self.numbers.get(path).copied();
        let number = match known {
            Some(number) => number,
            None if self.directories.len() < AHEAD_DIRECTORIES_MAX && may_prefetch_for(handoff.run, runs) => {
                let number = self.directories.len() as u32;
                self.numbers.insert(path.to_vec(), number);
                self.directories.push((path.to_vec(), handoff.run));
                number
            }
            None => return,
        };
        if runs.get(handoff.run).is_some_and(|run| run.prefetch)
            && let Some((_, run)) = self.directories.get_mut(number as usize)
            && *run != handoff.run
        {
            *run = handoff.run;
            self.policy.list_again(number);
        }
        self.policy.asked_in(number, now_ms);
    }

    /// Returns the bytes that were prefetched and not used.
    pub(crate) const fn wasted_bytes(&self) -> u64 {
        self.wasted_bytes
    }

    /// Requests the next listing or files if the source is idle. Returns true if prefetched copies may go on.
    pub(crate) fn next(&mut self, seen: &Seen, runs: &ServedRuns, index: &dyn Fn() -> Arc<IndexFile>) -> bool {
        let next = self.policy.next(seen);
        let may_go_on = self.policy.is_idle(seen.now_ms);
        match next {
            PrefetchStep::Wait => {}
            PrefetchStep::List(number) => self.list(number, runs, index),
            PrefetchStep::Open { .. } if !runs.contains(self.run) => {
                self.names.clear();
                self.policy.listed(0);
            }
            PrefetchStep::Open { files, bytes } => {
                let files = files.min(self.names.len());
                let paths = self.names.drain(..files).collect();
                let run = self.run;
                self.prefetcher.ask(PrefetchRequest::Open { run, paths, bytes });
            }
        }
        may_go_on
    }

    fn list(&mut self, number: u32, runs: &ServedRuns, index: &dyn Fn() -> Arc<IndexFile>) {
        let found = self.directories.get(number as usize).cloned();
        let Some((path, run)) = found.filter(|(_, run)| runs.contains(*run)) else {
            return self.policy.listed(0);
        };
        self.run = run;
        self.prefetcher.ask(PrefetchRequest::List { path, index: index() });
    }

    /// Takes the names in a directory that was listed.
    pub(crate) fn take_names(&mut self, mut names: Vec<Vec<u8>>, runs: &ServedRuns) {
        if let Some(run) = runs.get(self.run) {
            names.retain(|path| !run.excludes(path));
        }
        self.policy.listed(names.len());
        self.names = names.into();
    }

    /// Takes the files that were opened. Returns those that can be copied now.
    pub(crate) fn take_files(&mut self, opened: PrefetchedFiles, now_ms: u64) -> Vec<Handoff> {
        let PrefetchedFiles {
            files,
            too_large,
            smallest,
            rest,
        } = opened;
        for path in rest.into_iter().rev() {
            self.names.push_front(path);
        }
        let set_back = too_large.len();
        self.names.extend(too_large);
        self.batch.clear();
        let left = self.names.len();
        self.policy.opened(left, set_back, smallest, now_ms);
        files
    }

    /// Notes that a file of the batch is being copied.
    pub(crate) fn add_to_batch(&mut self, file: (u64, u64)) {
        self.batch.insert(file);
    }

    /// Notes that no tier has room for a prefetched file.
    pub(crate) fn note_full(&mut self, now_ms: u64) {
        self.policy.full(now_ms);
    }

    /// Counts bytes of a file that was prefetched without leading to a copy.
    pub(crate) fn note_dropped(&mut self, file: (u64, u64), run: u64, bytes: u64, runs: &mut ServedRuns) {
        if self.batch.remove(&file) {
            self.count_wasted(run, bytes, runs);
        }
    }

    fn count_wasted(&mut self, run: u64, bytes: u64, runs: &mut ServedRuns) {
        self.wasted_bytes += bytes;
        runs.tally(run, |tally| tally.prefetch.prefetched_in_vain_bytes += bytes);
    }
}

/// Returns true if a run asks for prefetching, and its programs share the agent's root directory and mounts, so that
/// paths mean the same to both.
fn may_prefetch_for(run: u64, runs: &ServedRuns) -> bool {
    if runs.get(run).is_none_or(|run| !run.prefetch) {
        return false;
    }
    shares_paths(&runs.page_path(run)) == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiering::{
        handoff::{DescriptorBudget, handoff_of},
        prefetcher::Prefetcher,
    };

    #[test]
    fn a_prefetched_file_that_a_program_opens_was_read_twice_once() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), b"12345").unwrap();
        let mut runs = ServedRuns::new(dir.path().into(), 1, 1);
        let mut prefetching = Prefetching::new(Prefetcher::new(DescriptorBudget::new(1), Box::new(drop)));
        let handoff = handoff_of(&dir.path().join("file"));
        let identity = handoff.stat.identity;
        prefetching.add_to_batch((identity.dev, identity.ino));
        for _ in 0..2 {
            prefetching.note_handoff(&handoff, &mut runs);
            assert_eq!(prefetching.wasted_bytes(), 5);
        }
        assert_eq!(runs.tally_of(None).prefetch.prefetched_in_vain_bytes, 5);
    }

    #[test]
    fn files_that_did_not_fit_come_again_and_the_large_ones_last() {
        let dir = tempfile::tempdir().unwrap();
        let runs = ServedRuns::new(dir.path().into(), 1, 1);
        let mut prefetching = Prefetching::new(Prefetcher::new(DescriptorBudget::new(1), Box::new(drop)));
        let names = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>();
        prefetching.take_names(names(&["d"]), &runs);
        let opened = PrefetchedFiles {
            files: Vec::new(),
            too_large: names(&["a"]),
            smallest: 900,
            rest: names(&["b", "c"]),
        };
        assert!(prefetching.take_files(opened, 1).is_empty());
        assert_eq!(prefetching.names, names(&["b", "c", "d", "a"]));
    }
}
