//! Runs that the agent serves, and the counts of each and of all.

use std::{
    collections::{HashMap, HashSet},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use forebay_contract::{Excludes, Freshness, NotCached, Run};
use forebay_policy::{
    read_ahead::AheadMode,
    read_list::{ReadEntry, ReadList, ReadParts, ReadVersion},
};
use forebay_store::SourceStat;

use crate::{
    host::{clock::boot_ns, shared::SharedFile},
    tiering::{
        counts::Counts,
        protocol::{SourceSetting, Status},
        read_lists::openers::version_of,
    },
};

/// A run that is served.
#[derive(Debug)]
pub(crate) struct RunState {
    pub(crate) freshness: Freshness,
    pub(crate) sources: Vec<SourceSetting>,
    pub(crate) prefetch: bool,
    pub(crate) ahead: AheadMode,
    /// Patterns of files that are never copied, each with a NUL behind it.
    pub(crate) excludes: Vec<u8>,
    /// Name of the job whose nodes share their files, if there are several.
    pub(crate) job: Option<String>,
    pub(crate) tally: Status,
}

impl RunState {
    /// Returns true if an absolute path is under a source of the run.
    pub(crate) fn covers(&self, path: &[u8]) -> bool {
        let roots = self.sources.iter().map(|source| source.path.as_os_str().as_bytes());
        roots
            .filter_map(|root| path.strip_prefix(root))
            .any(|rest| rest.first() == Some(&b'/'))
    }

    /// Returns true if the run excludes the file at an absolute path from copying.
    pub(crate) fn excludes(&self, path: &[u8]) -> bool {
        let roots = self.sources.iter().map(|source| source.path.as_os_str().as_bytes());
        Excludes::new(&self.excludes).matches(path, &roots)
    }
}

/// Runs that are connected, and the counts of all runs since the agent's start.
#[derive(Debug)]
pub(crate) struct ServedRuns {
    /// Directory of the run pages.
    dir: PathBuf,
    tiers: usize,
    started_at: u64,
    connected: HashMap<u64, RunState>,
    last_run: u64,
    total: Status,
    /// Counts by the preload libraries of runs that have ended.
    counts_of_ended: Counts,
    /// Start of the time without any run; `None` while a run is connected.
    idle_since: Option<Instant>,
    /// Runs that have left while their connection is still open: their command may not have read the answer yet.
    leaving: HashSet<u64>,
    /// Files of which earlier runs of a run's command have read a part alone, and the version that they had.
    read_in_part: HashMap<u64, HashMap<Vec<u8>, ReadVersion>>,
}

impl ServedRuns {
    /// Starts without a run, at `started_at` in nanoseconds of boot time. Run pages are in `dir`.
    pub(crate) fn new(dir: PathBuf, tiers: usize, started_at: u64) -> Self {
        Self {
            dir,
            tiers,
            started_at,
            connected: HashMap::new(),
            // The name of a run page must not be reused while a late child of an ended run may look for it.
            last_run: started_at,
            total: Status::default(),
            counts_of_ended: Counts::none(tiers),
            idle_since: Some(Instant::now()),
            leaving: HashSet::new(),
            read_in_part: HashMap::new(),
        }
    }

    /// Adds a run and returns its number.
    pub(crate) fn join(&mut self, run: RunState) -> u64 {
        self.last_run += 1;
        self.idle_since = None;
        self.connected.insert(self.last_run, run);
        self.last_run
    }

    /// Removes a run, and keeps the counts of its preload libraries.
    pub(crate) fn leave(&mut self, run: u64) {
        self.read_in_part.remove(&run);
        if self.connected.remove(&run).is_some()
            && let Some(counts) = self.counted_in(run)
        {
            self.counts_of_ended.add(&counts);
        }
        if self.connected.is_empty() {
            self.idle_since = Some(Instant::now());
        }
    }

    /// Notes that a run has asked to leave, until [`Self::disconnected`].
    pub(crate) fn answer_leaving(&mut self, run: u64) {
        self.leaving.insert(run);
    }

    /// Notes that the connection of a run has closed.
    pub(crate) fn disconnected(&mut self, run: u64) {
        self.leaving.remove(&run);
    }

    /// Returns true while the answer to a run that leaves may be unread.
    pub(crate) fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Returns true once a run has joined since the agent's start.
    pub(crate) const fn has_served(&self) -> bool {
        self.last_run > self.started_at
    }

    pub(crate) const fn started_at(&self) -> u64 {
        self.started_at
    }

    pub(crate) const fn idle_since(&self) -> Option<Instant> {
        self.idle_since
    }

    pub(crate) fn get(&self, run: u64) -> Option<&RunState> {
        self.connected.get(&run)
    }

    /// Takes the list of what earlier runs of a run's command have read.
    pub(crate) fn take_list(&mut self, run: u64, list: &ReadList) {
        let in_part = |entry: &&ReadEntry| entry.parts != ReadParts::WHOLE;
        let files = list.in_order().into_iter().filter(in_part);
        let files = files.filter_map(|entry| Some((entry.path.clone().into_bytes(), entry.version?)));
        if self.connected.contains_key(&run) {
            self.read_in_part.insert(run, files.collect());
        }
    }

    /// Returns how far a file is read ahead of a run. What the run's command has read of it before is the strongest
    /// evidence: if that was a part, the copy follows its reader.
    pub(crate) fn ahead_of(&self, run: u64, path: &[u8], stat: &SourceStat) -> AheadMode {
        let is_read_in_part = self
            .read_in_part
            .get(&run)
            .and_then(|files| files.get(path))
            .is_some_and(|version| *version == version_of(stat));
        match self.get(run).map(|run| run.ahead) {
            Some(AheadMode::Auto) if is_read_in_part => AheadMode::Follow,
            mode => mode.unwrap_or_default(),
        }
    }

    /// Returns true if a connected run is of a job.
    pub(crate) fn is_of_job(&self, job: &str) -> bool {
        self.connected.values().any(|run| run.job.as_deref() == Some(job))
    }

    /// Returns the connected runs of the wanted jobs.
    pub(crate) fn of_jobs(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<u64> {
        let of_job = |(number, run): (&u64, &RunState)| run.job.as_deref().is_some_and(&is_wanted).then_some(*number);
        self.connected.iter().filter_map(of_job).collect()
    }

    pub(crate) fn contains(&self, run: u64) -> bool {
        self.connected.contains_key(&run)
    }

    pub(crate) fn len(&self) -> usize {
        self.connected.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.connected.is_empty()
    }

    /// Returns true if a connected run asks for prefetching.
    pub(crate) fn want_prefetch(&self) -> bool {
        self.connected.values().any(|run| run.prefetch)
    }

    /// Returns true if files are read ahead for a connected run.
    pub(crate) fn want_ahead(&self) -> bool {
        self.connected.values().any(|run| run.ahead != AheadMode::Follow)
    }

    /// Returns the shortest validity of a checked name among the runs; `None` if no run has a time to live.
    pub(crate) fn ttl(&self) -> Option<Duration> {
        let seconds = self.connected.values().filter_map(|run| run.freshness.seconds());
        seconds.min().map(Duration::from_secs)
    }

    /// Returns the counts of a run, or of all runs since the agent's start if `run` is `None` or has ended.
    pub(crate) fn tally_of(&self, run: Option<u64>) -> &Status {
        run.and_then(|run| self.connected.get(&run)).map_or(&self.total, |run| &run.tally)
    }

    pub(crate) const fn total_mut(&mut self) -> &mut Status {
        &mut self.total
    }

    /// Counts in the total and, if it is still connected, in the run.
    pub(crate) fn tally(&mut self, run: u64, count: impl Fn(&mut Status)) {
        count(&mut self.total);
        if let Some(run) = self.connected.get_mut(&run) {
            count(&mut run.tally);
        }
    }

    /// Counts in the total and in every connected run.
    pub(crate) fn tally_all(&mut self, count: impl Fn(&mut Status)) {
        count(&mut self.total);
        for run in self.connected.values_mut() {
            count(&mut run.tally);
        }
    }

    /// Counts a handoff of a file or a directory.
    pub(crate) fn count_handoff(&mut self, run: u64, stat: &SourceStat) {
        let is_directory = stat.is_directory();
        self.tally(run, |tally| {
            if is_directory {
                tally.listings.listings_handed_over += 1;
            } else {
                tally.files.handed_over += 1;
            }
        });
    }

    /// Counts a handoff for which a copy was there already.
    pub(crate) fn count_confirmed(&mut self, run: u64, stat: &SourceStat) {
        let is_directory = stat.is_directory();
        self.tally(run, |tally| {
            if is_directory {
                tally.listings.listings_confirmed += 1;
            } else {
                tally.files.files_confirmed += 1;
            }
        });
    }

    /// Counts a handoff that led to no copy, with the reason.
    pub(crate) fn count_refused(&mut self, run: u64, stat: &SourceStat, reason: NotCached) {
        if stat.is_directory() {
            self.count_listing_refused(run, reason);
        } else {
            self.count_not_copied(run, reason);
        }
    }

    /// Counts a handoff of a directory that led to no copy, with the reason.
    pub(crate) fn count_listing_refused(&mut self, run: u64, reason: NotCached) {
        self.tally(run, |tally| {
            *tally.listings.listings_not_kept.entry(reason.name().to_owned()).or_default() += 1;
        });
    }

    /// Counts a handoff of a file that led to no copy, with the reason.
    pub(crate) fn count_not_copied(&mut self, run: u64, reason: NotCached) {
        self.tally(run, |tally| {
            *tally.skipped.not_copied.entry(reason.name().to_owned()).or_default() += 1;
        });
    }

    /// Returns the path of a run's page.
    pub(crate) fn page_path(&self, run: u64) -> PathBuf {
        self.dir.join(format!("run.{run}"))
    }

    /// Maps the page of a run; `None` before its command has made it.
    pub(crate) fn page(&self, run: u64) -> Option<SharedFile> {
        SharedFile::open(&self.page_path(run)).ok()
    }

    /// Notes for a run that has not begun its first step that a file of weights has been read to its end.
    pub(crate) fn note_weights_read(&self, run: u64) {
        let page = self.page(run);
        if let Some(page) = page.as_ref().and_then(|page| Run::open(page.region())) {
            page.startup().note_weights_read(boot_ns());
        }
    }

    /// Reads the counts by the preload libraries of a run.
    fn counted_in(&self, run: u64) -> Option<Counts> {
        let page = self.page(run)?;
        Some(Counts::read(&Run::open(page.region())?, self.tiers))
    }

    /// Reads the counts by the preload libraries of each connected run.
    pub(crate) fn counted(&self) -> impl Iterator<Item = Counts> {
        self.connected.keys().filter_map(|run| self.counted_in(*run))
    }

    /// Returns the counts by the preload libraries of all runs since the agent's start. Counts of ended runs stay in
    /// the sum, so it never falls.
    pub(crate) fn counted_in_all(&self) -> Counts {
        let mut all = self.counts_of_ended.clone();
        for counts in self.counted() {
            all.add(&counts);
        }
        all
    }
}

/// Returns true if the programs of a run, by its page, share the agent's root directory and mounts, so that paths mean
/// the same to both. `None` before the command has made the page.
pub(crate) fn shares_paths(page: &Path) -> Option<bool> {
    let file = SharedFile::open(page).ok()?;
    let page = Run::open(file.region())?;
    let here = |path| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    let has_root = here("/").is_ok_and(|root| root == page.root());
    Some(has_root && here("/proc/self/ns/mnt").is_ok_and(|(_, inode)| inode == page.mount_namespace()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiering::handoff::handoff_of;

    fn run(freshness: Freshness) -> RunState {
        RunState {
            freshness,
            sources: vec![SourceSetting {
                path: "/data".into(),
                dev: 1,
            }],
            prefetch: freshness == Freshness::Immutable,
            ahead: AheadMode::Follow,
            excludes: b"*.tmp\0".to_vec(),
            job: None,
            tally: Status::default(),
        }
    }

    #[test]
    fn the_shortest_time_to_live_counts_and_only_of_runs_that_are_there() {
        let mut runs = ServedRuns::new("/nowhere".into(), 1, 100);
        assert!(!runs.has_served() && runs.idle_since().is_some() && runs.ttl().is_none());
        let first = runs.join(run(Freshness::of_seconds(60)));
        let second = runs.join(run(Freshness::of_seconds(20)));
        runs.join(run(Freshness::Immutable));
        assert_eq!(runs.ttl(), Some(Duration::from_secs(20)));
        assert!(runs.want_prefetch() && runs.idle_since().is_none());
        runs.leave(second);
        assert_eq!(runs.ttl(), Some(Duration::from_secs(60)));
        runs.leave(first);
        assert_eq!((runs.ttl(), runs.len(), runs.idle_since()), (None, 1, None));
    }

    #[test]
    fn a_file_that_the_command_has_read_in_part_is_not_read_whole() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let handoff = handoff_of(file.path());
        let mut runs = ServedRuns::new("/nowhere".into(), 1, 100);
        let [auto, other] = [(); 2].map(|()| {
            runs.join(RunState {
                ahead: AheadMode::Auto,
                ..run(Freshness::Immutable)
            })
        });
        let mut list = ReadList::default();
        let entry = |path: &str, parts, version| ReadEntry {
            path: path.into(),
            at_ms: 0,
            version: Some(version),
            parts,
        };
        let version = version_of(&handoff.stat);
        let in_part = ReadParts::of_first(64, 16);
        list.add(entry("/part", in_part, version));
        list.add(entry("/whole", ReadParts::WHOLE, version));
        list.add(entry("/changed", in_part, ReadVersion { size: 9, ..version }));
        runs.take_list(auto, &list);
        let modes = |run| [b"/part".as_slice(), b"/whole", b"/changed", b"/new"].map(|path| runs.ahead_of(run, path, &handoff.stat));
        let auto_mode = AheadMode::Auto;
        assert_eq!(modes(auto), [AheadMode::Follow, auto_mode, auto_mode, auto_mode]);
        assert_eq!(modes(other), [auto_mode; 4], "another command");
    }

    #[test]
    fn counts_of_a_run_that_has_left_stay_in_the_total() {
        let mut runs = ServedRuns::new("/nowhere".into(), 1, 100);
        let [first, second] = [(); 2].map(|()| runs.join(run(Freshness::OnOpen)));
        runs.count_not_copied(first, NotCached::Live);
        runs.tally_all(|tally| tally.sweeps += 1);
        assert_eq!(runs.tally_of(Some(first)).skipped.not_copied["live"], 1);
        assert!(runs.tally_of(Some(second)).skipped.not_copied.is_empty());
        runs.leave(first);
        runs.count_not_copied(first, NotCached::Live);
        assert_eq!((runs.tally_of(None).skipped.not_copied["live"], runs.tally_of(None).sweeps), (2, 1));
        assert_eq!(runs.tally_of(Some(second)).sweeps, 1);
    }

    #[test]
    fn patterns_exclude_files_of_the_run() {
        let run = run(Freshness::OnOpen);
        assert!(run.excludes(b"/data/a.tmp") && !run.excludes(b"/data/a.bin"));
    }
}
