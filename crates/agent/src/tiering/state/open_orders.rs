//! Orders in which programs open the large files of directories, by which the next file is read ahead.

use std::collections::{HashMap, VecDeque};

use forebay_contract::index::split;
use forebay_policy::{
    file_order::{FileOrder, files_ahead, opens_needed},
    read_ahead::AheadMode,
};

use crate::tiering::limits::{ORDERED_DIRECTORIES_MAX, ORDERED_NAMES_MAX};

/// Orders, by program and directory.
#[derive(Debug, Default)]
pub(crate) struct OpenOrders {
    by_reader: HashMap<u64, OpenOrder>,
}

#[derive(Debug, Default)]
struct OpenOrder {
    /// The directory as the program spells it.
    directory: Vec<u8>,
    /// Names of the last files, the latest last.
    opened: VecDeque<Vec<u8>>,
    /// Number of the latest ones that were opened ahead of the program, and that it has not been seen to open.
    ahead: usize,
    /// Files that have to be opened until the next one is known.
    needed: usize,
    opener: FileOpener,
    names: DirectoryNames,
}

/// Facts about the program that has opened a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileOpener {
    /// Its run.
    pub(crate) run: u64,
    /// How far files are read ahead of it.
    pub(crate) mode: AheadMode,
    /// True if the file's name is that of a format of which programs mostly read all.
    pub(crate) has_known_name: bool,
}

#[derive(Debug, Default)]
enum DirectoryNames {
    #[default]
    Unknown,
    /// Being listed.
    Asked,
    Known(FileOrder),
}

/// Step towards the next file of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NextFile {
    /// The program follows no order, or its order has ended.
    Unknown,
    /// The directory is to be listed.
    List(Vec<u8>),
    /// The file at this path.
    Open(Vec<u8>),
}

/// Files that a program has opened last, of which the next one follows.
const OPENED: usize = 3;
/// Last files that are remembered: processes of a program may be some files apart. A program that begins a directory of
/// no more files again is not followed.
const REMEMBERED: usize = 5;

impl OpenOrders {
    /// Notes that a program has opened a file. `reader` names the program and the directory. Returns false if it had
    /// opened that one before.
    pub(crate) fn note(&mut self, reader: u64, path: &[u8], opener: FileOpener) -> bool {
        let Some((directory, name)) = split(path) else { return false };
        if self.by_reader.len() >= ORDERED_DIRECTORIES_MAX && !self.by_reader.contains_key(&reader) {
            self.by_reader.clear();
        }
        let order = self.by_reader.entry(reader).or_default();
        if order.directory != directory {
            *order = OpenOrder {
                directory: directory.to_vec(),
                ..OpenOrder::default()
            };
        }
        order.needed = opens_needed(name, opener.has_known_name);
        order.opener = opener;
        order.note(name)
    }

    /// Returns true if a reader's next files can be known without a further open: its directory is listed, or one file
    /// is enough. Listing takes threads, which a program that opens all of its files at once needs not have.
    pub(crate) fn is_followed(&self, reader: u64) -> bool {
        let order = self.by_reader.get(&reader);
        order.is_some_and(|order| order.needed == 1 || matches!(order.names, DirectoryNames::Known(_)))
    }

    /// Returns the facts about a reader.
    pub(crate) fn opener(&self, reader: u64) -> Option<FileOpener> {
        Some(self.by_reader.get(&reader)?.opener)
    }

    /// Returns the step towards the next file of a reader. `has_room` tells whether a tier has. A file that is opened
    /// ahead counts as opened by the program, which may find it in a tier without a word.
    pub(crate) fn next(&mut self, reader: u64, has_room: bool) -> NextFile {
        let Some(order) = self.by_reader.get_mut(&reader) else {
            return NextFile::Unknown;
        };
        let files_max = files_ahead(order.opened.len() - order.ahead, has_room);
        if order.opened.len() < order.needed || order.ahead >= files_max {
            return NextFile::Unknown;
        }
        if matches!(order.names, DirectoryNames::Unknown) {
            order.names = DirectoryNames::Asked;
            return NextFile::List(order.directory.clone());
        }
        let Some(name) = order.next().map(<[u8]>::to_vec) else {
            return NextFile::Unknown;
        };
        let path = [&order.directory, b"/".as_slice(), &name].concat();
        order.add(name);
        order.ahead += 1;
        NextFile::Open(path)
    }

    /// Takes the names in the directory of a reader; none of one that has too many.
    pub(crate) fn take_names(&mut self, reader: u64, names: Vec<Vec<u8>>) {
        if let Some(order) = self.by_reader.get_mut(&reader)
            && let Some(last) = order.opened.back()
        {
            let few = if names.len() > ORDERED_NAMES_MAX { Vec::new() } else { names };
            order.names = DirectoryNames::Known(FileOrder::new(few, last));
        }
    }
}

impl OpenOrder {
    /// The program has opened a file: one that was opened ahead of it, or that another of its processes has opened
    /// before, or the next one, since it may have found copies without a word. Else what was opened ahead was wrong.
    /// After a single file nobody knows yet whether it leaves some out. Returns false if it was opened before.
    fn note(&mut self, name: &[u8]) -> bool {
        if let Some(behind) = self.opened.iter().rev().position(|opened| opened == name) {
            let is_first = behind < self.ahead;
            self.ahead = self.ahead.min(behind);
            return is_first;
        }
        let is_only_one = self.opened.len() == self.ahead + 1;
        if is_only_one || self.next().is_none_or(|next| next != name) {
            self.opened.truncate(self.opened.len() - self.ahead);
        }
        self.ahead = 0;
        self.add(name.to_vec());
        true
    }

    fn next(&self) -> Option<&[u8]> {
        let first = self.opened.len().saturating_sub(OPENED);
        let opened: Vec<&[u8]> = self.opened.iter().skip(first).map(Vec::as_slice).collect();
        match &self.names {
            DirectoryNames::Known(names) => names.next(&opened),
            _ => None,
        }
    }

    fn add(&mut self, name: Vec<u8>) {
        if self.opened.len() == REMEMBERED {
            self.opened.pop_front();
        }
        self.opened.push_back(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENER: FileOpener = FileOpener {
        run: 1,
        mode: AheadMode::Auto,
        has_known_name: false,
    };

    fn names(of: &[&str]) -> Vec<Vec<u8>> {
        of.iter().map(|name| name.as_bytes().to_vec()).collect()
    }

    #[test]
    fn the_next_file_is_opened_once_a_directory_is_listed() {
        let mut orders = OpenOrders::default();
        for path in [b"/d/a", b"/d/b"] {
            orders.note(7, path, OPENER);
            assert_eq!(orders.next(7, true), NextFile::Unknown, "too few");
        }
        orders.note(7, b"/d/c", OPENER);
        assert_eq!(orders.next(7, true), NextFile::List(b"/d".to_vec()));
        assert_eq!(orders.next(7, true), NextFile::Unknown, "asked for");
        orders.take_names(7, names(&["f", "e", "d", "c", "b", "a"]));
        assert_eq!(orders.next(7, true), NextFile::Open(b"/d/d".to_vec()));
        // The program opens it while it is copied; or it finds the copy, and opens the one after.
        orders.note(7, b"/d/d", OPENER);
        assert_eq!(orders.next(7, true), NextFile::Open(b"/d/e".to_vec()));
        orders.note(7, b"/d/f", OPENER);
        assert_eq!(orders.next(7, true), NextFile::Unknown, "the last");
        orders.note(7, b"/other/a", OPENER);
        assert_eq!(orders.next(7, true), NextFile::Unknown, "another directory");
        assert_eq!(orders.next(8, true), NextFile::Unknown, "another program");
    }

    #[test]
    fn two_files_are_opened_ahead_of_a_program_and_no_more() {
        let mut orders = OpenOrders::default();
        for path in [b"/d/a", b"/d/b", b"/d/c"] {
            orders.note(7, path, OPENER);
        }
        assert_eq!(orders.next(7, true), NextFile::List(b"/d".to_vec()));
        orders.take_names(7, names(&["a", "b", "c", "d", "e", "f", "g", "h", "i"]));
        assert_eq!(orders.next(7, true), NextFile::Open(b"/d/d".to_vec()));
        assert_eq!(orders.next(7, true), NextFile::Open(b"/d/e".to_vec()));
        assert_eq!(orders.next(7, true), NextFile::Unknown, "the program is at the third");
        orders.note(7, b"/d/d", OPENER);
        assert_eq!(orders.next(7, true), NextFile::Open(b"/d/f".to_vec()));
        assert_eq!(orders.next(7, true), NextFile::Unknown);
        orders.note(7, b"/d/g", OPENER);
        assert_eq!(
            orders.next(7, true),
            NextFile::Open(b"/d/h".to_vec()),
            "it found two copies without a word"
        );
    }

    #[test]
    fn a_part_of_weights_tells_the_next_one_and_a_rank_that_leaves_some_out_is_followed() {
        let mut orders = OpenOrders::default();
        let part = |number: usize| format!("/d/model-{number}-of-9.safetensors").into_bytes();
        let weights = FileOpener {
            has_known_name: true,
            ..OPENER
        };
        orders.note(7, &part(1), weights);
        assert!(orders.is_followed(7), "its name tells");
        assert_eq!(orders.next(7, true), NextFile::List(b"/d".to_vec()));
        let all: Vec<String> = (1..=9).map(|number| format!("model-{number}-of-9.safetensors")).collect();
        orders.take_names(7, names(&all.iter().map(String::as_str).collect::<Vec<_>>()));
        assert_eq!(orders.next(7, true), NextFile::Open(part(2)));
        orders.note(7, &part(4), weights);
        assert_eq!(orders.next(7, true), NextFile::Open(part(7)), "it reads every third");
        orders.note(8, &part(1), weights);
        assert_eq!(orders.next(8, true), NextFile::List(b"/d".to_vec()));
        orders.take_names(8, names(&all.iter().map(String::as_str).collect::<Vec<_>>()));
        assert_eq!(orders.next(8, true), NextFile::Open(part(2)));
        orders.note(8, &part(3), weights);
        assert_eq!(orders.next(8, false), NextFile::Open(part(5)), "it reads every second");
        assert_eq!(orders.next(8, false), NextFile::Unknown, "one is ahead");
    }

    #[test]
    fn a_rank_that_comes_later_changes_no_order() {
        let mut orders = OpenOrders::default();
        for (path, is_new) in [
            (b"/d/a", true),
            (b"/d/b", true),
            (b"/d/a", false),
            (b"/d/c", true),
            (b"/d/b", false),
        ] {
            assert_eq!(orders.note(7, path, OPENER), is_new);
        }
        assert_eq!(orders.next(7, true), NextFile::List(b"/d".to_vec()));
        assert!(!orders.is_followed(7), "its directory is being listed");
        orders.take_names(7, names(&["a", "b", "c", "d", "e", "f"]));
        assert!(orders.is_followed(7));
        assert_eq!(orders.next(7, true), NextFile::Open(b"/d/d".to_vec()));
        assert_eq!(orders.next(7, true), NextFile::Open(b"/d/e".to_vec()));
        assert!(!orders.note(7, b"/d/b", OPENER));
        assert_eq!(orders.next(7, true), NextFile::Unknown, "two are ahead of the first rank");
        assert!(orders.note(7, b"/d/d", OPENER));
        assert_eq!(orders.next(7, true), NextFile::Open(b"/d/f".to_vec()));
    }

    #[test]
    fn memory_is_bounded() {
        let mut orders = OpenOrders::default();
        for reader in 0..2 * ORDERED_DIRECTORIES_MAX as u64 {
            orders.note(reader, b"/d/a", OPENER);
        }
        assert!(orders.by_reader.len() <= ORDERED_DIRECTORIES_MAX);
        for path in [b"/d/a", b"/d/b", b"/d/c"] {
            orders.note(1, path, OPENER);
        }
        assert_eq!(orders.next(1, true), NextFile::List(b"/d".to_vec()));
        orders.take_names(1, vec![b"d".to_vec(); ORDERED_NAMES_MAX + 1]);
        assert_eq!(orders.next(1, true), NextFile::Unknown);
    }
}
