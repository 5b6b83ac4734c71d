//! Copies ahead of programs, of files beside those that they have opened, while the source is idle (`--prefetch idle`). What comes when,
//! [`forebay_policy::prefetch`] decides.
//!
//! A file that is copied ahead goes the way of one that was handed over, with the same tests; but it is read without a reader to follow,
//! makes no copy go, and is counted apart.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    os::unix::fs::MetadataExt,
};

use forebay_contract::{Run, index::split};
use forebay_policy::prefetch::{Next, Prefetch, Seen};

use crate::{
    host::{clock::boot_ms, shared::SharedFile},
    tiering::{
        copier::PrefetchGate,
        handoff::Handoff,
        limits::AHEAD_DIRECTORIES_MAX,
        prefetcher::{PrefetchAnswer, PrefetchRequest, PrefetchedFiles, Prefetcher},
    },
};

use super::{Clerk, flight::Flight};

/// What is kept for it.
#[derive(Debug)]
pub(super) struct Prefetching {
    /// Some run asks for it.
    is_on: bool,
    policy: Prefetch,
    prefetcher: Prefetcher,
    numbers: HashMap<Vec<u8>, u32>,
    /// By number: the path, and the run that has opened a file there last.
    directories: Vec<(Vec<u8>, u64)>,
    /// The run for which a directory was listed, and the files there that are still to be copied.
    run: u64,
    names: VecDeque<Vec<u8>>,
    /// Files of the last batch, by device and inode: one that a program opens now was read twice.
    batch: HashSet<(u64, u64)>,
    in_vain_bytes: u64,
}

impl Prefetching {
    pub(super) fn new(prefetcher: Prefetcher) -> Self {
        Self {
            is_on: false,
            policy: Prefetch::default(),
            prefetcher,
            numbers: HashMap::new(),
            directories: Vec::new(),
            run: 0,
            names: VecDeque::new(),
            batch: HashSet::new(),
            in_vain_bytes: 0,
        }
    }
}

impl Clerk {
    /// A run has joined.
    pub(super) fn begin_prefetch(&mut self) {
        self.prefetch.is_on = self.runs.values().any(|run| run.prefetch);
        if self.prefetch.is_on {
            if let Err(error) = self.prefetch.prefetcher.start() {
                self.log.line(&format!("nothing is read ahead: {error}"));
            }
            self.prefetch.policy.asked(boot_ms());
            self.copier.set_ahead(PrefetchGate::Hold);
        }
    }

    /// A run has left: without one that asks for it, what is under way ends.
    pub(super) fn end_prefetch(&mut self) {
        self.prefetch.is_on = self.runs.values().any(|run| run.prefetch);
        if !self.prefetch.is_on {
            self.copier.set_ahead(PrefetchGate::End);
        }
    }

    /// A program has asked the source: nothing is read ahead now.
    pub(super) fn hold_prefetch(&mut self, handed: &Handoff) {
        if !self.prefetch.is_on {
            return;
        }
        self.copier.set_ahead(PrefetchGate::Hold);
        let now_ms = boot_ms();
        self.prefetch.policy.asked(now_ms);
        let identity = handed.stat.identity;
        let file = (identity.dev, identity.ino);
        if self.prefetch.batch.remove(&file) {
            self.count_in_vain(handed.run, identity.size);
        }
        // Who lists a directory has not opened a file beside it.
        if handed.stat.is_regular() {
            self.note_directory(handed, now_ms);
        }
    }

    /// Remembers where a program has opened a file.
    fn note_directory(&mut self, handed: &Handoff, now_ms: u64) {
        let Some((path, _)) = split(&handed.path) else { return };
        let known = self.prefetch.numbers.get(path).copied();
        let number = match known {
            Some(number) => number,
            None if self.prefetch.directories.len() < AHEAD_DIRECTORIES_MAX && self.may_prefetch_for(handed.run) => {
                let number = self.prefetch.directories.len() as u32;
                self.prefetch.numbers.insert(path.to_vec(), number);
                self.prefetch.directories.push((path.to_vec(), handed.run));
                number
            }
            None => return,
        };
        if self.runs.get(&handed.run).is_some_and(|run| run.prefetch)
            && let Some((_, run)) = self.prefetch.directories.get_mut(number as usize)
            && *run != handed.run
        {
            *run = handed.run;
            self.prefetch.policy.list_again(number);
        }
        self.prefetch.policy.asked_in(number, now_ms);
    }

    /// Whether a run asks for it, and paths mean to its programs what they mean here.
    fn may_prefetch_for(&self, run: u64) -> bool {
        if self.runs.get(&run).is_none_or(|run| !run.prefetch) {
            return false;
        }
        let Ok(page) = SharedFile::open(&self.config.dir.join(format!("run.{run}"))) else {
            return false;
        };
        let here = |path| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
        Run::open(page.region()).is_some_and(|page| {
            here("/").is_ok_and(|root| root == page.root())
                && here("/proc/self/ns/mnt").is_ok_and(|(_, inode)| inode == page.mount_namespace())
        })
    }

    /// Looks what programs do, and goes on if it may.
    pub(super) fn prefetch_more(&mut self) {
        if !self.prefetch.is_on || self.adoption.is_running() {
            return;
        }
        let asked = self.runs.keys().filter_map(|run| self.counted_in(*run));
        let under_way = self.under_way(None);
        // What was removed to make room may be read again, and is no part of what a data set is known to have.
        let removed: u64 = self.tiers.iter().map(|tier| tier.replaced.bytes + tier.given_back.bytes).sum();
        let seen = Seen {
            now_ms: boot_ms(),
            asked: asked.map(|counts| counts.source_open.count()).sum(),
            following: under_way.following(),
            ahead: under_way.ahead,
            copied_bytes: (self.total.bytes_copied + self.total.prefetched_bytes).saturating_sub(removed),
            wasted_bytes: self.prefetch.in_vain_bytes,
            room_bytes: self.policy.room_hint(boot_ms()),
        };
        let next = self.prefetch.policy.next(&seen);
        let may_go = self.prefetch.policy.is_idle(seen.now_ms);
        self.copier.set_ahead(if may_go { PrefetchGate::Go } else { PrefetchGate::Hold });
        match next {
            Next::Wait => {}
            Next::List(number) => self.list_directory(number),
            Next::Open { .. } if !self.runs.contains_key(&self.prefetch.run) => {
                self.prefetch.names.clear();
                self.prefetch.policy.listed(0);
            }
            Next::Open { files, bytes } => {
                let files = files.min(self.prefetch.names.len());
                let paths = self.prefetch.names.drain(..files).collect();
                let run = self.prefetch.run;
                self.prefetch.prefetcher.ask(PrefetchRequest::Open { run, paths, bytes });
            }
        }
    }

    fn list_directory(&mut self, number: u32) {
        let found = self.prefetch.directories.get(number as usize).cloned();
        let Some((path, run)) = found.filter(|(_, run)| self.runs.contains_key(run)) else {
            return self.prefetch.policy.listed(0);
        };
        self.prefetch.run = run;
        let index = self.pages.current();
        self.prefetch.prefetcher.ask(PrefetchRequest::List { path, index });
    }

    /// A directory was listed, or files of it opened.
    pub(super) fn prefetched(&mut self, answer: PrefetchAnswer) {
        match answer {
            PrefetchAnswer::Listed(mut names) => {
                if let Some(run) = self.runs.get(&self.prefetch.run) {
                    names.retain(|path| !run.excludes(path));
                }
                self.prefetch.policy.listed(names.len());
                self.prefetch.names = names.into();
            }
            PrefetchAnswer::Opened(opened) => self.opened_ahead(opened),
        }
        self.prefetch_more();
    }

    fn opened_ahead(&mut self, opened: PrefetchedFiles) {
        let PrefetchedFiles {
            files,
            too_large,
            smallest,
            rest,
        } = opened;
        for path in rest.into_iter().rev() {
            self.prefetch.names.push_front(path);
        }
        let set_back = too_large.len();
        self.prefetch.names.extend(too_large);
        self.prefetch.batch.clear();
        let now_ms = boot_ms();
        let left = self.prefetch.names.len();
        self.prefetch.policy.opened(left, set_back, smallest, now_ms);
        for file in files {
            self.copy_ahead(file, now_ms);
        }
    }

    /// Begins the copy of a file that no program has opened, if nothing is known of it yet and there is room.
    fn copy_ahead(&mut self, file: Handoff, now_ms: u64) {
        // The run may have left meanwhile, which is one of the reasons.
        if !self.prefetch.is_on || self.acceptable(&file).is_err() || self.index_has_no_room() {
            return;
        }
        let identity = file.stat.identity;
        let key = (identity.dev, identity.ino);
        let index = self.pages.index();
        let is_known = index.find_kept(&file.path).is_some()
            || self.names.of_file(&index, identity.dev, identity.ino).is_some()
            || self.flight_of_file.contains_key(&key);
        if is_known {
            return;
        }
        // No copy goes for it: who knows whether it is wanted as much.
        let Ok((number, tier)) = self.offer(identity.size) else {
            return self.prefetch.policy.full(now_ms);
        };
        self.prefetch.batch.insert(key);
        self.start_copy(file, number, tier, true);
    }

    /// A copy that was made ahead came to nothing.
    pub(super) fn read_in_vain(&mut self, flight: &Flight, bytes: u64) {
        if self.prefetch.batch.remove(&(flight.identity.dev, flight.identity.ino)) {
            self.count_in_vain(flight.run, bytes);
        }
    }

    fn count_in_vain(&mut self, run: u64, bytes: u64) {
        self.prefetch.in_vain_bytes += bytes;
        self.tally(run, |tally| tally.prefetched_in_vain_bytes += bytes);
    }
}
