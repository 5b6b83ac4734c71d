//! The table of extents that a rank makes: sample by sample, each extent and each path once.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    io,
    os::fd::OwnedFd,
};

use forebay_contract::{Extents, PATH_BYTES_MAX, extents::TO_THE_END};
use forebay_objects::Scheme;
use hashbrown::HashTable;
use twox_hash::XxHash3_128;

use crate::host::shared;

/// Stands for no extent.
const NONE: u32 = u32::MAX;

/// Location of a sample: path, offset, length or up to the file's end, and mark.
pub type SampleLocation<'a> = (&'a [u8], u64, Option<u64>, u64);

/// Locations of the samples of a dataset.
pub struct Table {
    paths: Vec<u8>,
    /// End of each path.
    ends: Vec<u64>,
    /// Mark of each file; empty as long as none has one.
    marks: Vec<u64>,
    /// Files by path, and the hasher of paths.
    files: HashTable<u32>,
    hasher: RandomState,
    /// Extent of each whole file, by file.
    whole: Vec<u32>,
    /// Extents of parts, by file, offset and length.
    parts: HashMap<[u64; 3], u32>,
    spans: Vec<[u64; 3]>,
    /// Boxed: it needs an alignment that Python's memory does not have.
    digest: Box<XxHash3_128>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (files, extents) = (self.ends.len(), self.spans.len());
        f.debug_struct("Table")
            .field("files", &files)
            .field("extents", &extents)
            .finish_non_exhaustive()
    }
}

impl Default for Table {
    fn default() -> Self {
        Self {
            paths: Vec::new(),
            ends: Vec::new(),
            marks: Vec::new(),
            files: HashTable::new(),
            hasher: RandomState::new(),
            whole: Vec::new(),
            parts: HashMap::new(),
            spans: Vec::new(),
            digest: Box::new(XxHash3_128::new()),
        }
    }
}

impl Table {
    /// Adds the next sample, of `length` bytes or, with `None`, up to the file's end. Its version of the file is the
    /// one that the mark stands for, or with 0 the present one. Returns the number of its extent: that of an earlier
    /// sample at the same location, or a new one.
    ///
    /// # Errors
    /// `InvalidInput` for a path that no file or object can have, samples of two versions of one file, or too many of
    /// them.
    pub fn add(&mut self, path: &[u8], offset: u64, length: Option<u64>, mark: u64) -> io::Result<u32> {
        let refused = |why: &str| {
            let shown = String::from_utf8_lossy(path.get(..80).unwrap_or(path)).into_owned();
            io::Error::new(io::ErrorKind::InvalidInput, format!("{shown:?}: {why}"))
        };
        // The agent is in another directory.
        if !(path.starts_with(b"/") || is_object(path)) || path.len() > PATH_BYTES_MAX || path.contains(&0) {
            return Err(refused(&format!(
                "a path begins with /, s3://, gs:// or az://, and has at most {PATH_BYTES_MAX} bytes, and no zero byte"
            )));
        }
        let length = length.unwrap_or(TO_THE_END);
        self.digest.write(&(path.len() as u64).to_le_bytes());
        self.digest.write(path);
        self.digest.write(&offset.to_le_bytes());
        self.digest.write(&length.to_le_bytes());
        self.digest.write(&mark.to_le_bytes());
        let new = u32::try_from(self.spans.len()).ok().filter(|new| *new < NONE);
        let new = new.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("there are more than {NONE} extents")))?;
        let file = self.file(path, mark);
        if self.mark(file) != mark {
            return Err(refused("samples of two versions of it are there; make the dataset again"));
        }
        let span = [u64::from(file), offset, length];
        let known = if offset == 0 && length == TO_THE_END {
            &mut self.whole[file as usize]
        } else {
            self.parts.entry(span).or_insert(NONE)
        };
        if *known == NONE {
            *known = new;
            self.spans.push(span);
        }
        Ok(*known)
    }

    /// Returns the numbers of the extents at these locations, in their order: `None` for a location without a sample in
    /// this version of the file.
    pub fn find_all<'a>(&self, places: impl IntoIterator<Item = Option<SampleLocation<'a>>>) -> Vec<Option<u32>> {
        // Consecutive samples are often in one file.
        let mut last: Option<(&[u8], u64, Option<u32>)> = None;
        let mut find = |(path, offset, length, mark): SampleLocation<'a>| {
            let file = match last {
                Some((last_path, last_mark, file)) if last_path == path && last_mark == mark => file,
                _ => self.find_file(path, mark),
            };
            last = Some((path, mark, file));
            self.find_in(file?, offset, length)
        };
        places.into_iter().map(|place| find(place?)).collect()
    }

    fn find_file(&self, path: &[u8], mark: u64) -> Option<u32> {
        let hash = self.hasher.hash_one(path);
        let file = *self.files.find(hash, |file| path_of(&self.paths, &self.ends, *file) == path)?;
        (self.mark(file) == mark).then_some(file)
    }

    fn find_in(&self, file: u32, offset: u64, length: Option<u64>) -> Option<u32> {
        let length = length.unwrap_or(TO_THE_END);
        let found = if offset == 0 && length == TO_THE_END {
            self.whole[file as usize]
        } else {
            *self.parts.get(&[u64::from(file), offset, length])?
        };
        (found != NONE).then_some(found)
    }

    fn mark(&self, file: u32) -> u64 {
        self.marks.get(file as usize).copied().unwrap_or(0)
    }

    /// Returns the number of a file; a new one gets this mark.
    fn file(&mut self, path: &[u8], mark: u64) -> u32 {
        let Self {
            paths,
            ends,
            marks,
            files,
            hasher,
            whole,
            ..
        } = self;
        let hash = hasher.hash_one(path);
        if let Some(file) = files.find(hash, |file| path_of(paths, ends, *file) == path) {
            return *file;
        }
        let new = ends.len() as u32;
        paths.extend_from_slice(path);
        ends.push(paths.len() as u64);
        whole.push(NONE);
        if mark != 0 || !marks.is_empty() {
            marks.resize(new as usize, 0);
            marks.push(mark);
        }
        files.insert_unique(hash, new, |file| hasher.hash_one(path_of(paths, ends, *file)));
        new
    }

    /// Returns true if some of the files are objects of stores.
    pub fn has_objects(&self) -> bool {
        (0..self.ends.len() as u32).any(|file| is_object(path_of(&self.paths, &self.ends, file)))
    }

    /// Number of extents.
    pub fn extents(&self) -> u32 {
        self.spans.len() as u32
    }

    /// Digest over all samples, in their order: equal for datasets with equal locations.
    pub fn digest(&self) -> String {
        format!("{:032x}", self.digest.finish_128())
    }

    /// Encodes the table for `forebay_contract::extents`.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let is_whole = |(nth, span): (u64, &[u64; 3])| *span == [nth, 0, TO_THE_END];
        let are_files = (0..).zip(&self.spans).all(is_whole) && self.spans.len() == self.ends.len();
        let header = Extents::header(self.spans.len() as u64, self.ends.len() as u64, are_files, !self.marks.is_empty());
        let spans = if are_files { &[] } else { self.spans.as_slice() };
        let words = header
            .into_iter()
            .chain([0])
            .chain(self.ends.iter().copied())
            .chain(self.marks.iter().copied())
            .chain(spans.iter().flatten().copied());
        let mut bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        bytes.extend_from_slice(&self.paths);
        bytes
    }

    /// Writes the table to sealed memory, to be sent.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn seal(&self) -> io::Result<OwnedFd> {
        shared::seal("forebay-extents", &self.encode())
    }
}

/// Returns true if a path names an object of a store.
pub(crate) fn is_object(path: &[u8]) -> bool {
    Scheme::of(path).is_some()
}

fn path_of<'a>(paths: &'a [u8], ends: &[u64], file: u32) -> &'a [u8] {
    let file = file as usize;
    let begin = if file == 0 { 0 } else { ends[file - 1] };
    &paths[begin as usize..ends[file] as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::shared::SharedFile;

    fn located(table: &Table) -> Vec<(Vec<u8>, u64, u64)> {
        let shared = SharedFile::received_sealed(table.seal().unwrap()).unwrap();
        let extents = Extents::open(shared.region()).expect("it is one");
        let all = (0..extents.samples()).map(|nth| extents.locate(nth).expect("it is whole"));
        all.map(|extent| (extent.path.to_vec(), extent.offset, extent.length)).collect()
    }

    #[test]
    fn each_file_and_each_extent_is_there_once() {
        let mut table = Table::default();
        let parts = [
            (b"/a".as_slice(), 0, Some(10)),
            (b"/b", 5, None),
            (b"/a", 10, Some(10)),
            (b"/a", 0, Some(10)),
            (b"/a", 0, None),
            (b"/b", 5, None),
        ];
        let extents = parts.map(|(path, offset, length)| table.add(path, offset, length, 0).unwrap());
        assert_eq!((extents, table.extents()), ([0, 1, 2, 0, 3, 1], 4));
        let found = |parts: &[(&[u8], u64, Option<u64>)]| {
            table.find_all(
                parts
                    .iter()
                    .flat_map(|&(path, offset, length)| [Some((path, offset, length, 0)), None]),
            )
        };
        assert_eq!(found(&parts), extents.map(|extent| [Some(extent), None]).concat());
        let others = [
            (b"/b".as_slice(), 0, None),
            (b"/a", 0, Some(11)),
            (b"/c", 0, None),
            (b"/c", 5, None),
        ];
        assert_eq!(found(&others), [None; 8]);
        let (a, b) = (b"/a".to_vec(), b"/b".to_vec());
        let expected = [(a.clone(), 0, 10), (b, 5, TO_THE_END), (a.clone(), 10, 10), (a, 0, TO_THE_END)];
        assert_eq!(located(&table), expected);
    }

    #[test]
    fn whole_files_take_no_more_than_their_paths() {
        let mut table = Table::default();
        for nth in 0..1000 {
            assert_eq!(table.add(format!("/{nth}").as_bytes(), 0, None, 0).unwrap(), nth);
        }
        let bytes = table.encode().len();
        let paths: usize = (0..1000).map(|nth: u32| format!("/{nth}").len()).sum();
        assert_eq!(bytes, 8 * (8 + 1 + 1000) + paths);
        assert_eq!(located(&table)[999], (b"/999".to_vec(), 0, TO_THE_END));
        assert_eq!(table.add(b"/7", 0, None, 0).unwrap(), 7);
    }

    #[test]
    fn the_digest_is_of_samples_in_their_order() {
        let digest = |samples: &[(&str, u64)]| {
            let mut table = Table::default();
            for (path, offset) in samples {
                table.add(path.as_bytes(), *offset, None, 0).unwrap();
            }
            table.digest()
        };
        let (a, b) = (("/a", 0), ("/b", 0));
        assert_eq!(digest(&[a, b, a]), digest(&[a, b, a]));
        let others = [digest(&[a, b]), digest(&[b, a]), digest(&[a, b, a]), digest(&[a, ("/b", 1)])];
        for (nth, one) in others.iter().enumerate() {
            assert!(!others[..nth].contains(one));
        }
    }

    #[test]
    fn an_object_is_of_one_version() {
        let mut table = Table::default();
        assert_eq!(table.add(b"/a", 0, None, 0).unwrap(), 0);
        assert!(!table.has_objects());
        assert_eq!(table.add(b"s3://data/b", 0, None, 7).unwrap(), 1);
        assert_eq!(table.add(b"/c", 0, None, 0).unwrap(), 2);
        let refused = table.add(b"s3://data/b", 5, Some(1), 8).unwrap_err().to_string();
        assert!(refused.contains("two versions"), "{refused}");
        assert_eq!(
            table.find_all([7, 8, 0].map(|mark| Some((b"s3://data/b".as_slice(), 0, None, mark)))),
            [Some(1), None, None]
        );
        let marks = |table: &Table| {
            let shared = SharedFile::received_sealed(table.seal().unwrap()).unwrap();
            let extents = Extents::open(shared.region()).expect("it is one");
            let all = (0..extents.samples()).map(|nth| extents.locate(nth).expect("it is whole").mark);
            all.collect::<Vec<_>>()
        };
        assert!(table.has_objects());
        assert_eq!(marks(&table), [0, 7, 0]);
        table.add(b"s3://data/b", 5, Some(1), 7).unwrap();
        assert_eq!(marks(&table), [0, 7, 0, 7], "parts have the mark of their file");
        assert_eq!(located(&table)[3], (b"s3://data/b".to_vec(), 5, 1));
    }

    #[test]
    fn what_is_no_path_is_refused() {
        let long = vec![b'/'; PATH_BYTES_MAX + 1];
        for path in [b"".as_slice(), b"a", b"/a\0b", &long] {
            let refused = Table::default().add(path, 0, None, 0).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
