//! Reading ahead of files that no program has opened yet: by the lists of what earlier runs of a command have read, and
//! by the order in which a program goes through a directory.

use forebay_policy::{
    read_ahead::{AheadMode, reads_next},
    read_list::ReadParts,
    wake::SMALL_BYTES_MAX,
};

use crate::{
    host::log,
    tiering::{
        ahead::{formats::has_known_name, programs::key_of},
        copy_job::CopyPace,
        handoff::Handoff,
        nodes::group::FileShare,
        open_files::name_of,
        read_lists::{openers::ListedAnswer, recorder::LoadedList},
        state::{
            flights::{CopyFlight, FlightOfNodes},
            open_orders::FileOpener,
            runs::shares_paths,
        },
    },
};

use super::{EventLoop, LoopEvent, deliver};

impl EventLoop {
    /// Takes the list of a run's command, and begins to read ahead by it.
    pub(super) fn take_list(&mut self, loaded: LoadedList) {
        if !self.runs.contains(loaded.run) {
            return;
        }
        self.runs.take_list(loaded.run, &loaded.list);
        if self.start_listed() {
            self.read_lists.load(loaded);
            self.read_listed();
        }
    }

    /// Starts the threads that open and copy files before programs open them. Returns false if there are none.
    fn start_listed(&mut self) -> bool {
        if self.read_lists.has_started() {
            return true;
        }
        let started = self.copier.start_listed(&deliver(&self.events, LoopEvent::Copied));
        match started.and_then(|()| self.read_lists.start()) {
            Ok(()) => true,
            Err(error) => {
                log::fallback(&format!("no file is read before a program opens it: {error}"));
                false
            }
        }
    }

    /// Reads ahead the file that a program opens next, if it reads large files of a directory whole and in order.
    pub(super) fn read_next(&mut self, handoff: &Handoff) {
        let mode = self.runs.ahead_of(handoff.run, &handoff.path, &handoff.stat);
        if !handoff.stat.is_regular() || handoff.stat.identity.size <= SMALL_BYTES_MAX || mode == AheadMode::Follow {
            return;
        }
        // A run that warms the tiers reads all files, several at a time.
        if self.read_lists.is_wanted(handoff.run).is_none() {
            return;
        }
        let Some(name) = name_of(&handoff.source) else { return };
        let Some(reader) = key_of(handoff.reader.pid, &name) else { return };
        let opener = FileOpener {
            run: handoff.run,
            mode,
            // By the path that the program opened: a link may lead to a name without an extension.
            has_known_name: has_known_name(&handoff.path),
        };
        if self.read_lists.note_open(reader, &handoff.path, opener) {
            self.open_next(reader);
        }
    }

    /// Reads ahead the next files of programs that are done with one.
    pub(super) fn read_on(&mut self) {
        for reader in self.copier.read_ahead().take_done() {
            if self.read_lists.is_followed(reader) {
                self.open_next(reader);
            }
        }
    }

    /// Has the next file of a program opened, if it is expected to read that whole.
    fn open_next(&mut self, reader: u64) {
        let Some(FileOpener { run, mode, has_known_name }) = self.read_lists.opener(reader) else {
            return;
        };
        let streak = self.copier.read_ahead().streak(reader);
        let is_expected = reads_next(mode, streak, has_known_name) && self.read_lists.is_wanted(run).is_some();
        if is_expected && shares_paths(&self.runs.page_path(run)) == Some(true) && self.start_listed() {
            self.read_lists.open_next(run, reader, self.copies.tiers.room() > 0);
        }
    }

    /// Begins the copy of a file that a program opens next.
    fn begin_next(&mut self, file: Box<Handoff>) {
        let (run, size) = (file.run, file.stat.identity.size);
        let Some(of) = self.runs.get(run) else { return };
        let is_served = of.covers(&file.path) && !of.excludes(&file.path);
        let room = self.copies.tiers.room().max(self.copier.read_ahead().page_cache_bytes());
        if is_served && size > SMALL_BYTES_MAX && size <= room {
            self.begin_listed(run, ReadParts::WHOLE, file);
        }
    }

    /// Has more of the lists opened, as far as the source's answers, memory and recovery allow.
    pub(super) fn read_listed(&mut self) {
        if !self.recovery.is_running() {
            let index = self.copies.index.current();
            self.read_lists.open_more(&index);
        }
    }

    /// Takes what an opener has done. Entries are taken in the order of their list.
    pub(super) fn take_listed(&mut self, answer: ListedAnswer) {
        match answer {
            ListedAnswer::Opened { run, at, entry, opened } => {
                for (entry, file) in self.read_lists.opened(run, at, entry, opened) {
                    self.begin_listed(run, entry.parts, file);
                }
            }
            ListedAnswer::Pages { run, bytes } => {
                self.read_lists.pages_ended(run);
                self.runs.tally(run, |tally| tally.files.source_bytes_read += bytes);
            }
            ListedAnswer::Names { reader, names } => {
                self.read_lists.take_names(reader, names);
                self.open_next(reader);
            }
            ListedAnswer::Next(file) => {
                if let Some(file) = file {
                    self.begin_next(file);
                }
            }
        }
        self.read_listed();
    }

    /// Begins the copy of a file or directory that earlier runs have read, or reads its parts into the page cache.
    fn begin_listed(&mut self, run: u64, parts: ReadParts, file: Box<Handoff>) {
        if !self.may_copy_ahead(&file) {
            return;
        }
        if file.stat.is_directory() {
            return self.list(*file);
        }
        let is_other = match self.nodes.share_of(&file, &self.runs) {
            FileShare::Other(_) | FileShare::Keeper(_) => true,
            FileShare::Owner => !self.copies.may_own(file.stat.identity.size),
            FileShare::Alone => false,
        };
        if is_other {
            return;
        }
        if !parts.is_whole() || self.copies.tiers.room() < file.stat.identity.size {
            return self.read_lists.read_pages(run, parts, file);
        }
        let wanted = self.read_lists.is_wanted(run);
        let (_, mut making) = self.making();
        if let Ok(mut job) = making.prepare(*file, CopyPace::Listed, FlightOfNodes::default()) {
            let number = job.number;
            job.is_wanted = wanted;
            making.copier.add(job);
            self.read_lists.copying(run, number);
        }
    }

    /// Notes what the program of a copy has read.
    pub(super) fn note_read(&mut self, flight: &CopyFlight, number: u64, parts: ReadParts) {
        if !flight.ahead {
            self.read_lists.note(flight, parts);
        }
        if self.read_lists.copied(flight.run, number) {
            self.read_listed();
        }
    }

    /// Keeps what runs have read that have left and whose copies have ended.
    pub(super) fn save_reads(&mut self) {
        for run in self.read_lists.left() {
            if self.under_way(Some(run)).is_nothing() {
                self.read_lists.save(run);
            }
        }
    }
}
