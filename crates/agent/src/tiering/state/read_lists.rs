//! Lists of what connected runs read, and reading ahead by those of earlier runs and by the order of a program's opens.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Sender, channel},
    },
};

use forebay_policy::read_list::{ReadEntry, ReadList, ReadParts};

use crate::{
    host::{clock::boot_ns, error::AgentError},
    tiering::{
        handoff::Handoff,
        limits::LISTS_WRITTEN_MAX,
        pages::IndexFile,
        read_lists::{
            openers::{ListedRequest, NotOpened, Openers, version_of},
            recorder::{LoadedList, RecorderRequest},
        },
        state::{
            flights::CopyFlight,
            open_orders::{FileOpener, NextFile, OpenOrders},
        },
    },
};

/// Reads of all runs.
#[derive(Debug)]
pub(crate) struct ReadLists {
    recorder: Sender<RecorderRequest>,
    openers: Openers,
    runs: HashMap<u64, RunReads>,
    orders: OpenOrders,
    has_started: bool,
}

/// Reads of a run, whose command has a key.
#[derive(Debug)]
struct RunReads {
    key: String,
    /// Boot time of the run's start in nanoseconds.
    begun_ns: u64,
    reads: ReadList,
    /// Paths of the list that are missing or changed.
    gone: Vec<String>,
    ahead: ListedAhead,
    has_left: bool,
}

/// Reading ahead by the list of a command.
#[derive(Debug)]
struct ListedAhead {
    /// Entries that were not opened yet, in order.
    entries: VecDeque<ReadEntry>,
    /// False once the run has left.
    is_wanted: Arc<AtomicBool>,
    /// Entries that were sent to the openers.
    asked: u64,
    /// Entries whose answers were taken.
    taken: u64,
    /// Answers that came before an earlier one.
    opened: BTreeMap<u64, (ReadEntry, Result<Box<Handoff>, NotOpened>)>,
    /// Copies that are being made, by number.
    copying: HashSet<u64>,
    /// Files whose parts are being read into the page cache.
    pages: usize,
}

impl ListedAhead {
    fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            is_wanted: Arc::new(AtomicBool::new(true)),
            asked: 0,
            taken: 0,
            opened: BTreeMap::new(),
            copying: HashSet::new(),
            pages: 0,
        }
    }

    fn under_way(&self) -> usize {
        (self.asked - self.taken) as usize + self.copying.len() + self.pages
    }
}

impl ReadLists {
    pub(crate) fn new(recorder: Sender<RecorderRequest>, openers: Openers) -> Self {
        Self {
            recorder,
            openers,
            runs: HashMap::new(),
            orders: OpenOrders::default(),
            has_started: false,
        }
    }

    /// Collects from now on what a run reads. With the path of its page, the list of its command is read, too.
    pub(crate) fn begin(&mut self, run: u64, key: String, page: Option<PathBuf>) {
        if let Some(page) = page {
            // The thread ends with the process.
            let _ = self.recorder.send(RecorderRequest::Load {
                run,
                key: key.clone(),
                page,
            });
        }
        let reads = RunReads {
            key,
            begun_ns: boot_ns(),
            reads: ReadList::default(),
            gone: Vec::new(),
            ahead: ListedAhead::new(),
            has_left: false,
        };
        self.runs.insert(run, reads);
    }

    /// Returns true once [`Self::start`] was called.
    pub(crate) const fn has_started(&self) -> bool {
        self.has_started
    }

    /// Starts the openers, the first time.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start(&mut self) -> Result<(), AgentError> {
        self.openers.start()?;
        self.has_started = true;
        Ok(())
    }

    /// Notes that a program has opened a large file. `reader` names the program and the directory.
    /// Returns false if it had opened that file before.
    pub(crate) fn note_open(&mut self, reader: u64, path: &[u8], opener: FileOpener) -> bool {
        self.orders.note(reader, path, opener)
    }

    /// Returns true if a reader's next files can be known without a further open.
    pub(crate) fn is_followed(&self, reader: u64) -> bool {
        self.orders.is_followed(reader)
    }

    /// Returns the facts about a reader.
    pub(crate) fn opener(&self, reader: u64) -> Option<FileOpener> {
        self.orders.opener(reader)
    }

    /// Has the file opened that a reader opens next, if it goes through a directory in order. `has_room` tells whether
    /// a tier has.
    pub(crate) fn open_next(&mut self, run: u64, reader: u64, has_room: bool) {
        match self.orders.next(reader, has_room) {
            NextFile::Unknown => {}
            NextFile::List(directory) => self.openers.ask(ListedRequest::Names { reader, directory }),
            NextFile::Open(path) => self.openers.ask(ListedRequest::Next { run, path }),
        }
    }

    /// Takes the names in the directory of a reader.
    pub(crate) fn take_names(&mut self, reader: u64, names: Vec<Vec<u8>>) {
        self.orders.take_names(reader, names);
    }

    /// Takes the list of a run's command, unless another run of it is read ahead.
    pub(crate) fn load(&mut self, loaded: LoadedList) {
        let LoadedList { run, mut list } = loaded;
        let Some(key) = self.runs.get(&run).map(|reads| reads.key.clone()) else {
            return;
        };
        let same = || self.runs.values().filter(|reads| reads.key == key);
        if same().any(|reads| !reads.ahead.entries.is_empty()) {
            return;
        }
        // Runs that were not saved yet.
        same().for_each(|reads| list.merge(&reads.reads));
        let entries = list.in_order().into_iter().cloned().collect();
        if let Some(reads) = self.runs.get_mut(&run) {
            reads.ahead.entries = entries;
        }
    }

    /// Sends further entries to the openers, but for those with a copy.
    pub(crate) fn open_more(&mut self, index: &IndexFile) {
        let Self { openers, runs, .. } = self;
        let mut waiting: Vec<_> = runs.iter_mut().filter(|(_, reads)| !reads.ahead.entries.is_empty()).collect();
        if waiting.is_empty() || openers.is_memory_short() {
            return;
        }
        waiting.sort_by_key(|(run, _)| **run);
        let most = openers.files_at_once();
        let Some(index) = index.index() else { return };
        let mut free = most.saturating_sub(waiting.iter().map(|(_, reads)| reads.ahead.under_way()).sum());
        for (run, reads) in waiting {
            while free > 0
                && let Some(entry) = reads.ahead.entries.pop_front()
            {
                if entry.parts.is_none() || index.find_kept(entry.path.as_bytes()).is_some() {
                    continue;
                }
                let at = reads.ahead.asked;
                openers.ask(ListedRequest::Open { run: *run, at, entry });
                reads.ahead.asked += 1;
                free -= 1;
            }
        }
    }

    /// Takes an entry that was opened, or not. Returns the files that come next in the order of the list.
    pub(crate) fn opened(
        &mut self,
        run: u64,
        at: u64,
        entry: ReadEntry,
        opened: Result<Box<Handoff>, NotOpened>,
    ) -> Vec<(ReadEntry, Box<Handoff>)> {
        let Some(reads) = self.runs.get_mut(&run).filter(|reads| !reads.has_left) else {
            return Vec::new();
        };
        let ahead = &mut reads.ahead;
        ahead.opened.insert(at, (entry, opened));
        let mut files = Vec::new();
        while let Some((entry, opened)) = ahead.opened.remove(&ahead.taken) {
            ahead.taken += 1;
            match opened {
                Ok(file) => files.push((entry, file)),
                Err(NotOpened::Gone) => reads.gone.push(entry.path),
                Err(NotOpened::TooManyDescriptors) => {}
            }
        }
        files
    }

    /// Has the parts of a file read into the page cache.
    pub(crate) fn read_pages(&mut self, run: u64, parts: ReadParts, file: Box<Handoff>) {
        if let Some(reads) = self.runs.get_mut(&run) {
            reads.ahead.pages += 1;
            let is_wanted = Arc::clone(&reads.ahead.is_wanted);
            self.openers.ask(ListedRequest::Pages {
                run,
                parts,
                file,
                is_wanted,
            });
        }
    }

    /// Notes that the parts of a file were read.
    pub(crate) fn pages_ended(&mut self, run: u64) {
        if let Some(reads) = self.runs.get_mut(&run) {
            reads.ahead.pages = reads.ahead.pages.saturating_sub(1);
        }
    }

    /// Returns the flag of a run that is false once it has left.
    pub(crate) fn is_wanted(&self, run: u64) -> Option<Arc<AtomicBool>> {
        self.runs.get(&run).map(|reads| Arc::clone(&reads.ahead.is_wanted))
    }

    /// Notes that the copy of a listed file is being made.
    pub(crate) fn copying(&mut self, run: u64, number: u64) {
        if let Some(reads) = self.runs.get_mut(&run) {
            reads.ahead.copying.insert(number);
        }
    }

    /// Notes the end of a copy. Returns true if it was of a listed file.
    pub(crate) fn copied(&mut self, run: u64, number: u64) -> bool {
        self.runs.get_mut(&run).is_some_and(|reads| reads.ahead.copying.remove(&number))
    }

    /// Notes that a program has read parts of a file, or has listed a directory.
    pub(crate) fn note(&mut self, flight: &CopyFlight, parts: ReadParts) {
        let (Some(reads), Some(name)) = (self.runs.get_mut(&flight.run), flight.names.first()) else {
            return;
        };
        // A list is text.
        let Ok(path) = String::from_utf8(name.path.clone()) else { return };
        if !parts.is_none() {
            reads.reads.add(ReadEntry {
                path,
                at_ms: name.opened_at.saturating_sub(reads.begun_ns) / 1_000_000,
                version: (!flight.stat.is_directory()).then(|| version_of(&flight.stat)),
                parts,
            });
        }
    }

    /// Ends reading ahead for a run that has left.
    pub(crate) fn leave(&mut self, run: u64) {
        if let Some(reads) = self.runs.get_mut(&run) {
            reads.has_left = true;
            reads.ahead.is_wanted.store(false, Relaxed);
            reads.ahead.entries.clear();
            reads.ahead.opened.clear();
        }
    }

    /// Returns the runs that have left and are not saved.
    pub(crate) fn left(&self) -> Vec<u64> {
        let left = self.runs.iter().filter(|(_, reads)| reads.has_left);
        left.map(|(run, _)| *run).collect()
    }

    /// Has kept what a run has read.
    pub(crate) fn save(&mut self, run: u64) {
        let Some(RunReads { key, reads, gone, .. }) = self.runs.remove(&run) else {
            return;
        };
        if !reads.is_empty() || !gone.is_empty() {
            let _ = self.recorder.send(RecorderRequest::Save { key, reads, gone });
        }
    }

    /// Has kept what all runs have read, and waits until that is written.
    pub(crate) fn end(&mut self) {
        let runs: Vec<u64> = self.runs.keys().copied().collect();
        for run in runs {
            self.save(run);
        }
        let (done, finished) = channel();
        if self.recorder.send(RecorderRequest::Finish(done)).is_ok() {
            let _ = finished.recv_timeout(LISTS_WRITTEN_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;

    use forebay_policy::read_list::ReadVersion;

    use super::*;
    use crate::tiering::{ahead::programs::ReadAhead, handoff::DescriptorBudget, handoff::handoff_of};

    fn lists() -> (ReadLists, Receiver<RecorderRequest>) {
        let (recorder, requests) = channel();
        let openers = Openers::new(DescriptorBudget::new(9), Arc::new(ReadAhead::default()), Arc::new(drop));
        (ReadLists::new(recorder, openers), requests)
    }

    fn entry(path: &str) -> ReadEntry {
        ReadEntry {
            path: path.into(),
            at_ms: 0,
            version: Some(ReadVersion { size: 1, changed: (1, 2) }),
            parts: ReadParts::WHOLE,
        }
    }

    #[test]
    fn files_are_taken_in_the_order_of_the_list() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, b"1").unwrap();
        let (mut lists, requests) = lists();
        lists.begin(7, "key".into(), None);
        lists.runs.get_mut(&7).unwrap().ahead.asked = 3;
        let opened = || Ok(Box::new(handoff_of(&file)));
        assert!(lists.opened(7, 2, entry("c"), opened()).is_empty());
        assert!(lists.opened(7, 1, entry("b"), Err(NotOpened::Gone)).is_empty());
        let files = lists.opened(7, 0, entry("a"), opened());
        let paths: Vec<_> = files.iter().map(|(entry, _)| entry.path.as_str()).collect();
        assert_eq!(paths, ["a", "c"]);
        lists.leave(7);
        assert_eq!(lists.left(), [7]);
        lists.save(7);
        let saved = requests.recv().unwrap();
        assert!(matches!(saved, RecorderRequest::Save { gone, .. } if gone == ["b"]));
    }

    #[test]
    fn a_command_is_read_ahead_of_once() {
        let (mut lists, _requests) = lists();
        let mut list = ReadList::default();
        list.add(entry("a"));
        for run in [1, 2] {
            lists.begin(run, "key".into(), None);
            lists.load(LoadedList { run, list: list.clone() });
        }
        let entries = |run: u64| lists.runs[&run].ahead.entries.len();
        assert_eq!([entries(1), entries(2)], [1, 0]);
    }
}
