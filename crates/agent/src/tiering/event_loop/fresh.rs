//! Freshness: which directories are swept when, and what a sweep changes.

use std::time::{Duration, Instant};

use forebay_contract::{index::split, run::use_stamp};

use crate::{
    host::clock::{boot_ns, unix_s},
    tiering::{
        handoff::Handoff,
        limits::{FIRST_SWEEPS, SWEEP_AT, SWEEP_PRESSING_AT, SWEEP_SHARE, SWEEP_UNUSED_MAX, SWEEP_WANTED_SAVED, SWEEP_WANTED_SHARE},
        protocol::RunFreshness,
        sweeper::{SweepRequest, SweepResult},
    },
};

use super::{
    Clerk,
    ahead_of_clock::{self, Age, FROM_THE_FUTURE},
};

/// Time that sweeps may take: a share of all time. One sweep can't be cut short, so it may leave a debt, which is paid off before
/// the next.
#[derive(Debug)]
pub(super) struct Budget {
    share: f64,
    /// Seconds; a debt is negative.
    left_s: f64,
    at: Instant,
}

impl Budget {
    /// A warm tier is of use once its directories have been swept: the first sweeps need not wait.
    pub(super) fn new(share: f64, now: Instant) -> Self {
        Self {
            share,
            left_s: FIRST_SWEEPS.as_secs_f64(),
            at: now,
        }
    }

    /// Adds the share of the time that went by; what is saved up is that of `saved_up_max` at most.
    fn refill(&mut self, saved_up_max: Duration, now: Instant) {
        let more = now.saturating_duration_since(self.at).as_secs_f64() * self.share;
        // What was given at first may be more, and is not taken away.
        let most = (saved_up_max.as_secs_f64() * self.share).max(self.left_s);
        self.left_s = (self.left_s + more).min(most);
        self.at = now;
    }

    const fn is_spent(&self) -> bool {
        self.left_s <= 0.0
    }

    fn spend(&mut self, took: Duration) {
        self.left_s -= took.as_secs_f64();
    }
}

/// The two budgets of sweeps.
#[derive(Debug)]
pub(super) struct Budgets {
    /// Of what nobody waits for.
    quiet: Budget,
    /// Of directories that programs wait for.
    wanted: Budget,
    /// The sweep that is under way is paid by the second.
    is_wanted: bool,
}

impl Budgets {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            quiet: Budget::new(SWEEP_SHARE, now),
            wanted: Budget::new(SWEEP_WANTED_SHARE, now),
            is_wanted: false,
        }
    }
}

impl Clerk {
    /// Whether what was handed over is old enough for its times to tell its next change, and was not changed through a door since it was
    /// opened.
    ///
    /// # Errors
    /// The reason to count.
    pub(super) fn is_settled(&self, handed: &Handoff) -> Result<(), &'static str> {
        let identity = &handed.stat.identity;
        let (dir, name) = split(&handed.path).ok_or("malformed")?;
        match ahead_of_clock::age_of(identity, unix_s()) {
            Age::Settled => {}
            Age::Recent => return Err("recently_modified"),
            // Two looks by our own clock tell as much as a comparison of two clocks.
            Age::Ahead(_)
                if handed
                    .waited
                    .is_some_and(|before| before.mtime == identity.mtime && before.ctime == identity.ctime) => {}
            Age::Ahead(_) => return Err(FROM_THE_FUTURE),
        }
        if self.control.newest_tombstone() != 0 {
            let index = self.pages.index();
            let directory = self.directories.get(dir).and_then(|number| index.directory(*number));
            let name_marked = directory.map_or(0, |d| self.control.name_marked_at(d.dev(), d.ino(), name));
            let file_marked = self.control.file_marked_at(identity.dev, identity.ino);
            if handed.opened_at <= self.control.void_since().max(name_marked).max(file_marked) {
                return Err("changed_meanwhile");
            }
        }
        Ok(())
    }

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
        let now = Instant::now();
        let Budgets { quiet, wanted, .. } = &mut self.sweep_budgets;
        quiet.refill(ttl, now);
        wanted.refill(SWEEP_WANTED_SAVED, now);
        let (quiet_left, wanted_left) = (!quiet.is_spent(), !wanted.is_spent());
        if !(quiet_left || wanted_left) || self.directory_states.iter().any(|state| state.sweeping) {
            return;
        }
        let now = boot_ns();
        // In use, and about to run out of time: programs will wait for it in a moment.
        let pressing_after = ttl.mul_f64(SWEEP_PRESSING_AT - SWEEP_AT).as_nanos() as u64;
        let due = self.directory_states.iter().enumerate().filter_map(|(number, state)| {
            let unused_s = use_stamp(self.started_at, now).saturating_sub(self.control.directory_stamp(number as u32));
            let used = u64::from(unused_s) <= SWEEP_UNUSED_MAX.as_secs();
            let due = used && state.due_at != 0 && state.due_at <= now;
            let pressing = due && state.due_at + pressing_after <= now && u64::from(unused_s) <= ttl.as_secs();
            let is_wanted = wanted_left && (state.wanted || pressing);
            let is_next = state.names > state.listings && (is_wanted || (quiet_left && (state.wanted || due)));
            is_next.then_some((!state.wanted, state.due_at, number as u32, is_wanted))
        });
        if let Some((_, _, number, is_wanted)) = due.min() {
            self.sweep_budgets.is_wanted = is_wanted;
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
        let request = SweepRequest {
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
        let stale = boot_ns().saturating_sub(swept_at) >= ttl.as_nanos() as u64 || swept_at <= self.control.unseen_since();
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
    pub(super) fn swept(&mut self, swept: &SweepResult) {
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
        let Budgets { quiet, wanted, is_wanted } = &mut self.sweep_budgets;
        let payer = if *is_wanted && !swept.inode_only { wanted } else { quiet };
        payer.spend(swept.took);
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

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: Duration = Duration::from_secs(60);

    #[test]
    fn a_sweep_that_took_long_is_paid_off_before_the_next() {
        let begun = Instant::now();
        let mut budget = Budget::new(0.05, begun);
        budget.spend(FIRST_SWEEPS + Duration::from_secs(2));
        let after = |seconds| begun + Duration::from_secs(seconds);
        budget.refill(SAVED, after(39));
        assert!(budget.is_spent(), "two seconds are a twentieth of forty");
        budget.refill(SAVED, after(41));
        assert!(!budget.is_spent());
    }

    #[test]
    fn over_a_long_time_sweeps_take_their_share_and_no_more() {
        let begun = Instant::now();
        let mut budget = Budget::new(0.5, begun);
        let (mut at, mut swept) = (Duration::ZERO, Duration::ZERO);
        while at < Duration::from_secs(1000) {
            budget.refill(SAVED, begun + at);
            if budget.is_spent() {
                at += Duration::from_millis(10);
            } else {
                let took = Duration::from_millis(700);
                budget.spend(took);
                swept += took;
                at += took;
            }
        }
        let share = swept.as_secs_f64() / at.as_secs_f64();
        assert!((0.49..0.51).contains(&share), "{share}");
    }

    #[test]
    fn little_is_saved_up() {
        let begun = Instant::now();
        let mut budget = Budget::new(0.05, begun);
        budget.refill(SAVED, begun + Duration::from_secs(100_000));
        budget.spend(Duration::from_secs(3));
        assert!(budget.is_spent(), "the share of one minute");
    }
}
