//! Orders in which programs open the large files of directories, by which the next file is read ahead.

use std::collections::{HashMap, VecDeque};

use forebay_contract::index::split;
use forebay_policy::file_order::FileOrder;

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
    names: DirectoryNames,
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

const OPENED: usize = 3;

impl OpenOrders {
    /// Notes that a program has opened a file. `reader` names the program and the directory.
    pub(crate) fn note(&mut self, reader: u64, path: &[u8]) {
        let Some((directory, name)) = split(path) else { return };
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
        order.add(name.to_vec());
    }

    /// Returns the step towards the next file of a reader. A file that is opened ahead counts as opened by the
    /// program, which may find it in a tier without a word.
    pub(crate) fn next(&mut self, reader: u64) -> NextFile {
        let Some(order) = self.by_reader.get_mut(&reader) else {
            return NextFile::Unknown;
        };
        let opened: Vec<&[u8]> = order.opened.iter().map(Vec::as_slice).collect();
        let Ok(opened) = <&[&[u8]; OPENED]>::try_from(opened.as_slice()) else {
            return NextFile::Unknown;
        };
        let name = match &order.names {
            DirectoryNames::Unknown => {
                order.names = DirectoryNames::Asked;
                return NextFile::List(order.directory.clone());
            }
            DirectoryNames::Asked => return NextFile::Unknown,
            DirectoryNames::Known(names) => names.next(opened).map(<[u8]>::to_vec),
        };
        let Some(name) = name else { return NextFile::Unknown };
        let path = [&order.directory, b"/".as_slice(), &name].concat();
        order.add(name);
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
    fn add(&mut self, name: Vec<u8>) {
        if self.opened.back() == Some(&name) {
            return;
        }
        if self.opened.len() == OPENED {
            self.opened.pop_front();
        }
        self.opened.push_back(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(of: &[&str]) -> Vec<Vec<u8>> {
        of.iter().map(|name| name.as_bytes().to_vec()).collect()
    }

    #[test]
    fn the_next_file_is_opened_once_a_directory_is_listed() {
        let mut orders = OpenOrders::default();
        for path in [b"/d/a", b"/d/b"] {
            orders.note(7, path);
            assert_eq!(orders.next(7), NextFile::Unknown, "too few");
        }
        orders.note(7, b"/d/c");
        assert_eq!(orders.next(7), NextFile::List(b"/d".to_vec()));
        assert_eq!(orders.next(7), NextFile::Unknown, "asked for");
        orders.take_names(7, names(&["f", "e", "d", "c", "b", "a"]));
        assert_eq!(orders.next(7), NextFile::Open(b"/d/d".to_vec()));
        // The program opens it while it is copied; or it finds the copy, and opens the one after.
        orders.note(7, b"/d/d");
        assert_eq!(orders.next(7), NextFile::Open(b"/d/e".to_vec()));
        orders.note(7, b"/d/f");
        assert_eq!(orders.next(7), NextFile::Unknown, "the last");
        orders.note(7, b"/other/a");
        assert_eq!(orders.next(7), NextFile::Unknown, "another directory");
        assert_eq!(orders.next(8), NextFile::Unknown, "another program");
    }

    #[test]
    fn memory_is_bounded() {
        let mut orders = OpenOrders::default();
        for reader in 0..2 * ORDERED_DIRECTORIES_MAX as u64 {
            orders.note(reader, b"/d/a");
        }
        assert!(orders.by_reader.len() <= ORDERED_DIRECTORIES_MAX);
        for path in [b"/d/a", b"/d/b", b"/d/c"] {
            orders.note(1, path);
        }
        assert_eq!(orders.next(1), NextFile::List(b"/d".to_vec()));
        orders.take_names(1, vec![b"d".to_vec(); ORDERED_NAMES_MAX + 1]);
        assert_eq!(orders.next(1), NextFile::Unknown);
    }
}
