//! Revalidation sweeps: which directory is compared with the source next, and how much of the source's time sweeps may
//! take.

use std::{
    sync::mpsc::Sender,
    time::{Duration, Instant},
};

use forebay_contract::{Control, run::use_stamp};

use crate::{
    host::clock::boot_ns,
    tiering::{
        limits::{FIRST_SWEEPS, SWEEP_AT, SWEEP_PRESSING_AT, SWEEP_SHARE, SWEEP_UNUSED_MAX, SWEEP_WANTED_SAVED, SWEEP_WANTED_SHARE},
        state::copy_index::CopyIndex,
        sweeper::{SweepRequest, SweepResult},
    },
};

/// Pause before a directory is swept again after the source could not answer.
const FAILED_SWEEP_PAUSE: Duration = Duration::from_secs(5);

/// A directory as programs spell it, with what decides about its sweeps.
#[derive(Debug, Default)]
struct SweptDirectory {
    /// Number of names in the index.
    names: u32,
    /// Number of those that are cached directories. Preload libraries validate these alone, so they need no sweep.
    cached_directories: u32,
    /// Boot time of the next sweep in nanoseconds; 0 before the first name is checked.
    due_at: u64,
    /// Last use of its copies in earlier runs, in seconds since 1970; 0 if unknown.
    used_before_unix_s: i64,
    /// True after a program found a name of the directory out of time.
    wanted: bool,
    sweeping: bool,
}

/// Time that sweeps may take: a share of all time. A sweep can't be cut short, so it may leave a debt, which is paid
/// off before the next.
#[derive(Debug)]
struct SweepBudget {
    share: f64,
    /// Seconds; a debt is negative.
    left_s: f64,
    at: Instant,
}

impl SweepBudget {
    /// Starts with the time for the first sweeps: a warm tier is useful only once its directories have been swept.
    fn new(share: f64, now: Instant) -> Self {
        Self {
            share,
            left_s: FIRST_SWEEPS.as_secs_f64(),
            at: now,
        }
    }

    /// Adds the share of the time since the last call. At most the share of `saved_up_max` is saved up.
    fn refill(&mut self, saved_up_max: Duration, now: Instant) {
        let more = now.saturating_duration_since(self.at).as_secs_f64() * self.share;
        // The initial budget may be larger, and stays.
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

/// Directories and their sweeps. At most one directory is swept at a time.
#[derive(Debug)]
pub(crate) struct Sweeps {
    requests: Sender<SweepRequest>,
    directories: Vec<SweptDirectory>,
    /// Budget of sweeps that no program waits for.
    quiet: SweepBudget,
    /// Budget of sweeps that programs wait for.
    wanted: SweepBudget,
    /// True if the second budget pays for the sweep that is under way.
    is_wanted: bool,
    /// Invalidation epoch up to which all directories have been looked at.
    void_answered: u64,
    /// Number of looks at directories' inodes that are under way.
    looks: u64,
    control: Control<'static>,
    /// Start of the agent in nanoseconds of boot time.
    started_at: u64,
}

impl Sweeps {
    pub(crate) fn new(requests: Sender<SweepRequest>, control: Control<'static>, started_at: u64, now: Instant) -> Self {
        Self {
            requests,
            directories: Vec::new(),
            quiet: SweepBudget::new(SWEEP_SHARE, now),
            wanted: SweepBudget::new(SWEEP_WANTED_SHARE, now),
            is_wanted: false,
            void_answered: 0,
            looks: 0,
            control,
            started_at,
        }
    }

    fn get(&mut self, directory: u32) -> Option<&mut SweptDirectory> {
        self.directories.get_mut(directory as usize)
    }

    /// Adds the directory with the next number, and has its inode looked up: changes are matched to it by inode and
    /// name.
    pub(crate) fn add_directory(&mut self, number: u32, index: &CopyIndex) {
        self.directories.push(SweptDirectory::default());
        self.request(number, true, index);
    }

    pub(crate) fn add_name(&mut self, directory: u32, is_directory: bool) {
        if let Some(state) = self.get(directory) {
            state.names += 1;
            state.cached_directories += u32::from(is_directory);
        }
    }

    pub(crate) fn remove_name(&mut self, directory: u32, is_directory: bool) {
        if let Some(state) = self.get(directory) {
            state.names = state.names.saturating_sub(1);
            state.cached_directories = state.cached_directories.saturating_sub(u32::from(is_directory));
        }
    }

    /// Notes when copies of a directory were last used in earlier runs.
    pub(crate) fn note_used_before(&mut self, directory: u32, unix_s: i64) {
        if let Some(state) = self.get(directory) {
            state.used_before_unix_s = state.used_before_unix_s.max(unix_s);
        }
    }

    /// Returns when copies of a directory were last used in earlier runs, in seconds since 1970; 0 if unknown.
    pub(crate) fn used_before_unix_s(&self, directory: u32) -> i64 {
        self.directories.get(directory as usize).map_or(0, |state| state.used_before_unix_s)
    }

    /// Sets the first sweep of a directory before its first name, checked at `checked_at`, runs out of time.
    pub(crate) fn schedule_first(&mut self, directory: u32, checked_at: u64, ttl: Option<Duration>) {
        let Some(ttl) = ttl else { return };
        if let Some(state) = self.get(directory)
            && state.due_at == 0
        {
            state.due_at = checked_at + ttl.mul_f64(SWEEP_AT).as_nanos() as u64;
        }
    }

    /// Notes that a program found a name of this directory out of time, or opened it at the source.
    pub(crate) fn want(&mut self, directory: u32, index: &CopyIndex, ttl: Option<Duration>) {
        let swept_at = index.index().directory(directory).map_or(0, forebay_contract::Directory::swept_at);
        let Some(ttl) = ttl else { return };
        // Within the validity the program had another reason to ask the source, and a sweep would not change that.
        let stale = boot_ns().saturating_sub(swept_at) >= ttl.as_nanos() as u64 || swept_at <= self.control.unseen_since();
        if stale && let Some(state) = self.get(directory) {
            state.wanted = !state.sweeping;
        }
    }

    /// Requests the sweep of one directory that is due. Directories that programs wait for come first.
    pub(crate) fn request_next(&mut self, index: &CopyIndex, ttl: Option<Duration>) {
        let Some(ttl) = ttl else { return };
        let now = Instant::now();
        self.quiet.refill(ttl, now);
        self.wanted.refill(SWEEP_WANTED_SAVED, now);
        if let Some((number, is_wanted)) = self.next(ttl, boot_ns()) {
            self.is_wanted = is_wanted;
            self.request(number, false, index);
        }
    }

    /// Chooses the directory to sweep next, and whether the budget of wanted sweeps pays for it.
    fn next(&self, ttl: Duration, now_ns: u64) -> Option<(u32, bool)> {
        let (quiet_left, wanted_left) = (!self.quiet.is_spent(), !self.wanted.is_spent());
        if !(quiet_left || wanted_left) || self.directories.iter().any(|state| state.sweeping) {
            return None;
        }
        // A directory in use that is about to run out of time: programs will wait for it in a moment.
        let pressing_after = ttl.mul_f64(SWEEP_PRESSING_AT - SWEEP_AT).as_nanos() as u64;
        let due = self.directories.iter().enumerate().filter_map(|(number, state)| {
            let unused_s = use_stamp(self.started_at, now_ns).saturating_sub(self.control.directory_stamp(number as u32));
            let used = u64::from(unused_s) <= SWEEP_UNUSED_MAX.as_secs();
            let due = used && state.due_at != 0 && state.due_at <= now_ns;
            let pressing = due && state.due_at + pressing_after <= now_ns && u64::from(unused_s) <= ttl.as_secs();
            let is_wanted = wanted_left && (state.wanted || pressing);
            let is_next = state.names > state.cached_directories && (is_wanted || (quiet_left && (state.wanted || due)));
            is_next.then_some((!state.wanted, state.due_at, number as u32, is_wanted))
        });
        due.min().map(|(_, _, number, is_wanted)| (number, is_wanted))
    }

    /// Requests a look at every directory's inode after a directory was renamed or a link changed anywhere. Directories
    /// whose paths lead to the same inode as before are valid again; each costs one request to the source, whatever its
    /// size.
    pub(crate) fn answer_void(&mut self, index: &CopyIndex) {
        let void_since = self.control.void_since();
        // One round of looks at a time, however often directories are renamed.
        if void_since <= self.void_answered || self.looks > 0 {
            return;
        }
        self.void_answered = void_since;
        for number in 0..self.directories.len() {
            if self.directories.get(number).is_some_and(|state| state.names > 0) {
                self.request(number as u32, true, index);
            }
        }
    }

    /// Requests a sweep of a directory, or only a look at the inode to which its path leads.
    fn request(&mut self, number: u32, inode_only: bool, index: &CopyIndex) {
        let pages = index.index();
        let path = pages.directory(number).and_then(|directory| pages.directory_path(directory));
        let Some(path) = path.map(<[u8]>::to_vec) else { return };
        let Some(state) = self.directories.get_mut(number as usize) else {
            return;
        };
        let request = SweepRequest {
            directory: number,
            path,
            index: index.current(),
            names: state.names,
            records: index.records(),
            inode_only,
        };
        if inode_only {
            self.looks += 1;
        } else {
            state.sweeping = true;
            state.wanted = false;
        }
        // The sweeper ends with the process. Without it, names run out of time.
        let _ = self.requests.send(request);
    }

    /// Takes the time and the end of a sweep. Returns true if the sweep was complete, and has results for the index of
    /// generation `generation`.
    pub(crate) fn finish(&mut self, swept: &SweepResult, generation: u64, ttl: Option<Duration>) -> FinishedSweep {
        if swept.inode_only {
            self.looks = self.looks.saturating_sub(1);
        }
        let payer = if self.is_wanted && !swept.inode_only {
            &mut self.wanted
        } else {
            &mut self.quiet
        };
        payer.spend(swept.took);
        let Some(state) = self.get(swept.directory) else {
            return FinishedSweep::Incomplete;
        };
        if !swept.complete {
            if state.sweeping && !swept.inode_only {
                state.sweeping = false;
                state.due_at = boot_ns() + FAILED_SWEEP_PAUSE.as_nanos() as u64;
            }
            return FinishedSweep::Incomplete;
        }
        state.sweeping = false;
        if let Some(ttl) = ttl {
            state.due_at = swept.started_at + ttl.mul_f64(SWEEP_AT).as_nanos() as u64;
        }
        if generation != swept.generation {
            state.wanted = true;
            return FinishedSweep::OutOfDate;
        }
        FinishedSweep::Complete
    }
}

/// End of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinishedSweep {
    /// Only the inode was looked up, or the source could not answer.
    Incomplete,
    /// The index grew meanwhile, which changed all record numbers: the directory is swept again.
    OutOfDate,
    Complete,
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use forebay_contract::control::CONTROL_BYTES;

    use super::*;
    use crate::host::shared::SharedFile;

    const SAVED: Duration = Duration::from_secs(60);

    #[test]
    fn a_sweep_that_took_long_is_paid_off_before_the_next() {
        let begun = Instant::now();
        let mut budget = SweepBudget::new(0.05, begun);
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
        let mut budget = SweepBudget::new(0.5, begun);
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
        let mut budget = SweepBudget::new(0.05, begun);
        budget.refill(SAVED, begun + Duration::from_secs(100_000));
        budget.spend(Duration::from_secs(3));
        assert!(budget.is_spent(), "the share of one minute");
    }

    const SECOND: u64 = 1_000_000_000;

    /// Returns sweeps of three directories with one file each, which are due after 10, 20 and 30 seconds.
    fn sweeps(dir: &std::path::Path) -> Sweeps {
        let file = SharedFile::create(&dir.join("control"), CONTROL_BYTES).unwrap();
        let control = Control::create(file.leak()).unwrap();
        let (requests, _) = channel();
        let mut sweeps = Sweeps::new(requests, control, 0, Instant::now());
        for due_at in [10, 20, 30] {
            sweeps.directories.push(SweptDirectory {
                names: 1,
                due_at: due_at * SECOND,
                ..SweptDirectory::default()
            });
        }
        sweeps
    }

    #[test]
    fn the_directory_that_programs_wait_for_is_swept_before_the_one_that_is_due_longest() {
        let dir = tempfile::tempdir().unwrap();
        let mut sweeps = sweeps(dir.path());
        let ttl = Duration::from_secs(60);
        assert_eq!(sweeps.next(ttl, 5 * SECOND), None);
        assert_eq!(sweeps.next(ttl, 25 * SECOND), Some((0, true)), "in use and about to run out");
        sweeps.directories[2].wanted = true;
        assert_eq!(sweeps.next(ttl, 25 * SECOND), Some((2, true)));
        sweeps.directories[1].sweeping = true;
        assert_eq!(sweeps.next(ttl, 25 * SECOND), None, "one at a time");
    }

    #[test]
    fn a_directory_of_cached_directories_alone_is_not_swept() {
        let dir = tempfile::tempdir().unwrap();
        let mut sweeps = sweeps(dir.path());
        sweeps.directories.truncate(1);
        sweeps.add_name(0, true);
        assert_eq!(sweeps.next(SAVED, 15 * SECOND), Some((0, false)));
        sweeps.remove_name(0, false);
        assert_eq!(sweeps.next(SAVED, 15 * SECOND), None);
    }

    #[test]
    fn a_sweep_that_failed_or_is_out_of_date_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut sweeps = sweeps(dir.path());
        let swept = |complete, generation| SweepResult {
            directory: 0,
            started_at: 7,
            complete,
            generation,
            ..SweepResult::default()
        };
        sweeps.directories[0].sweeping = true;
        assert_eq!(sweeps.finish(&swept(false, 1), 1, Some(SAVED)), FinishedSweep::Incomplete);
        assert!(!sweeps.directories[0].sweeping && sweeps.directories[0].due_at > boot_ns());
        assert_eq!(sweeps.finish(&swept(true, 1), 2, Some(SAVED)), FinishedSweep::OutOfDate);
        assert!(sweeps.directories[0].wanted);
        assert_eq!(sweeps.finish(&swept(true, 2), 2, Some(SAVED)), FinishedSweep::Complete);
        assert_eq!(sweeps.directories[0].due_at, 7 + SAVED.mul_f64(SWEEP_AT).as_nanos() as u64);
    }
}
