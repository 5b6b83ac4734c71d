//! Freshness: which directories are swept when, and what a sweep changes.

use std::time::{Duration, Instant};

use forebay_contract::run::use_stamp;

use crate::{
    clock::boot_ns,
    limits::{SWEEP_AT, SWEEP_SHARE, SWEEP_UNUSED_MAX},
    protocol::RunFreshness,
    sweeper::{Request, Swept},
};

use super::Clerk;

/// Time that sweeps may take: [`SWEEP_SHARE`] of all time, saved up for one validity at most.
#[derive(Debug)]
pub(super) struct Budget {
    left: Duration,
    at: Instant,
}

impl Default for Budget {
    fn default() -> Self {
        // A warm tier is of use once its directories have been swept: the first sweeps need not wait.
        Self {
            left: Duration::from_secs(1),
            at: Instant::now(),
        }
    }
}

impl Budget {
    fn refill(&mut self, ttl: Duration) {
        let now = Instant::now();
        self.left = (self.left + (now - self.at).mul_f64(SWEEP_SHARE)).min(ttl.mul_f64(SWEEP_SHARE).max(Duration::from_millis(100)));
        self.at = now;
    }

    fn spend(&mut self, took: Duration) {
        self.left = self.left.saturating_sub(took);
    }
}

impl Clerk {
    /// The shortest validity among the runs; `None` if none has one.
    fn ttl(&self) -> Option<Duration> {
        let seconds = self.runs.values().filter_map(|run| match run.freshness {
            RunFreshness::Ttl(seconds) => Some(seconds),
            RunFreshness::Immutable | RunFreshness::OnOpen => None,
        });
        seconds.min().map(Duration::from_secs)
    }

    /// Asks for the sweep of one directory that is due: one at a time, those that programs wait for first.
    pub(super) fn ask_for_sweeps(&mut self) {
        let Some(ttl) = self.ttl() else { return };
        self.sweep_budget.refill(ttl);
        if self.sweep_budget.left.is_zero() || self.directory_states.iter().any(|state| state.sweeping) {
            return;
        }
        let now = boot_ns();
        let due = self.directory_states.iter().enumerate().filter(|(number, state)| {
            let unused_s = use_stamp(self.started_at, now).saturating_sub(self.control.directory_stamp(*number as u32));
            let used = u64::from(unused_s) <= SWEEP_UNUSED_MAX.as_secs();
            state.names > 0 && (state.wanted || (used && state.due_at != 0 && state.due_at <= now))
        });
        let next = due
            .min_by_key(|(_, state)| (!state.wanted, state.due_at))
            .map(|found| found.0 as u32);
        if let Some(number) = next {
            self.request_sweep(number, false);
        }
    }

    /// A directory was renamed or a link changed somewhere: looks where each path leads now. Those that lead where they led before are
    /// valid again at once; a question a directory, whatever it holds.
    pub(super) fn answer_void(&mut self) {
        let void_since = self.control.void_since();
        // One round of looks at a time, however often directories are renamed.
        if void_since <= self.void_answered || self.looks > 0 {
            return;
        }
        self.void_answered = void_since;
        for number in 0..self.directory_states.len() {
            if self.directory_states.get(number).is_some_and(|state| state.names > 0) {
                self.request_sweep(number as u32, true);
            }
        }
    }

    fn detach_all(&self, directory: u32) {
        let index = self.pages.index();
        let all = 0..self.pages.writer_ref().records();
        for number in all.filter(|number| index.record(*number).is_some_and(|record| record.directory() == directory)) {
            self.pages.writer_ref().detach(number);
        }
    }

    /// Has a directory looked at: as a whole, or only which inode its path leads to.
    pub(super) fn request_sweep(&mut self, number: u32, inode_only: bool) {
        let index = self.pages.index();
        let Some(path) = index
            .directory(number)
            .and_then(|directory| index.directory_path(directory))
            .map(<[u8]>::to_vec)
        else {
            return;
        };
        let Some(state) = self.directory_states.get_mut(number as usize) else {
            return;
        };
        let request = Request {
            directory: number,
            path,
            index: self.pages.current(),
            names: state.names,
            records: self.pages.writer_ref().records(),
            inode_only,
        };
        if inode_only {
            self.looks += 1;
        } else {
            state.sweeping = true;
            state.wanted = false;
        }
        // The sweeper ends with the process; without it names run out of time.
        let _ = self.sweeps.send(request);
    }

    /// A program found a name of this record's directory out of time, or asked the source for it.
    pub(super) fn want_directory_of(&mut self, record: u32) {
        let Some(directory) = self.pages.index().record(record).map(forebay_contract::Record::directory) else {
            return;
        };
        let swept_at = self
            .pages
            .index()
            .directory(directory)
            .map_or(0, forebay_contract::Directory::swept_at);
        let Some(ttl) = self.ttl() else { return };
        // Within its validity another reason led the program to the source; a sweep would not change that.
        let stale = boot_ns().saturating_sub(swept_at) >= ttl.as_nanos() as u64;
        if stale && let Some(state) = self.directory_states.get_mut(directory as usize) {
            state.wanted = !state.sweeping;
        }
    }

    /// When a directory's first name is published, its first sweep is due before that name runs out of time.
    pub(super) fn schedule_first_sweep(&mut self, directory: u32, checked_at: u64) {
        let Some(ttl) = self.ttl() else { return };
        if let Some(state) = self.directory_states.get_mut(directory as usize)
            && state.due_at == 0
        {
            state.due_at = checked_at + ttl.mul_f64(SWEEP_AT).as_nanos() as u64;
        }
    }

    /// A directory was compared with the source.
    pub(super) fn swept(&mut self, swept: &Swept) {
        if swept.inode_only {
            self.looks = self.looks.saturating_sub(1);
        }
        if let Some((dev, ino)) = swept.inode {
            let known = self
                .pages
                .index()
                .directory(swept.directory)
                .map(|directory| (directory.dev(), directory.ino()));
            if known == Some((dev, ino)) && swept.started_at != 0 {
                self.pages.writer().set_way_checked(swept.directory, swept.started_at);
            } else if !swept.complete && (known != Some((0, 0)) || self.control.void_since() != 0) {
                // Another directory than the records were made from, or perhaps so: each is checked by its next open.
                self.detach_all(swept.directory);
            }
            self.pages.writer().set_directory_inode(swept.directory, dev, ino);
        }
        self.sweep_budget.spend(swept.took);
        let ttl = self.ttl();
        let Some(state) = self.directory_states.get_mut(swept.directory as usize) else {
            return;
        };
        if !swept.complete {
            if state.sweeping && !swept.inode_only {
                state.sweeping = false;
                // The source could not say: not at once again.
                state.due_at = boot_ns() + Duration::from_secs(5).as_nanos() as u64;
            }
            return;
        }
        state.sweeping = false;
        if let Some(ttl) = ttl {
            state.due_at = swept.started_at + ttl.mul_f64(SWEEP_AT).as_nanos() as u64;
        }
        self.total.sweeps += 1;
        for run in self.runs.values_mut() {
            run.tally.sweeps += 1;
        }
        if self.pages.index().generation() != swept.generation {
            // The index has grown meanwhile and the numbers are others: sweep again.
            state.wanted = true;
            return;
        }
        for number in &swept.written {
            self.pages.writer().detach(*number);
        }
        for number in &swept.changed {
            self.drop_record(*number);
        }
        let changed = swept.changed.len() as u64;
        self.total.invalidated += changed;
        for run in self.runs.values_mut() {
            run.tally.invalidated += changed;
        }
        // Last: from now on the rest is valid from the start of the sweep on.
        self.pages.writer().set_swept(swept.directory, swept.started_at);
        self.ask_for_sweeps();
    }
}
