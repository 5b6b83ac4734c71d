//! Memory shared with preload libraries: the control page, and the index through its generations.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use forebay_contract::{
    Control, Entry, INSERTION_BYTES_MAX, Index, IndexFull, IndexLayout, IndexWriter, Record, Region, Tier, control::CONTROL_BYTES,
    libraries::MIRROR,
};
use rustix::fs;

use crate::host::{
    error::{AgentError, io_error},
    shared::SharedFile,
};

use crate::tiering::limits::BACKED_STEP_BYTES;

/// An index file, mapped while any thread holds it, and then removed.
#[derive(Debug)]
pub(crate) struct IndexFile {
    file: SharedFile,
    path: PathBuf,
}

impl IndexFile {
    /// Returns read access to the index.
    pub(crate) fn index(&self) -> Option<Index<'_>> {
        Index::open(self.file.region())
    }
}

impl Drop for IndexFile {
    fn drop(&mut self) {
        let _ = fs::unlink(&self.path);
    }
}

/// Failure to add to the index: a table that does not grow is full, or there is no memory for a larger index. Existing
/// records are still served.
#[derive(Debug)]
pub(crate) struct NoRoom {
    /// True if the index has grown all the same, so record numbers have changed.
    pub(crate) grown: bool,
    pub(crate) why: AgentError,
}

impl NoRoom {
    fn as_it_was(why: AgentError) -> Self {
        Self { grown: false, why }
    }

    fn grown_in_vain(what: &'static str) -> Self {
        Self {
            grown: true,
            why: AgentError::TooLarge { what },
        }
    }
}

/// Control page and current index, as the event loop writes them.
#[derive(Debug)]
pub(crate) struct Pages {
    dir: PathBuf,
    control: Control<'static>,
    tiers: Vec<Tier>,
    seed: u64,
    /// Room of each index, in files, in addition to those that it is made for.
    spare: u64,
    writer: IndexWriter<'static>,
    // After the writer, which points into it.
    current: Arc<IndexFile>,
    backed: Backed,
}

/// Function that returns the copies that processes have open; `None` if they can't be known now. When the index grows,
/// the records of dropped copies stay while the copies are open.
pub(crate) type OpenCopies<'a> = &'a dyn Fn() -> Option<HashSet<u64>>;

impl Pages {
    /// Makes both files in the agent's directory, and removes the files of a dead agent. The index has room for
    /// `expected` files, or `spare` ones. To grow, it takes memory for the old and the new index together.
    pub(crate) fn create(dir: &Path, tiers: Vec<Tier>, expected: u64, spare: u64) -> Result<Self, AgentError> {
        remove_old(dir);
        let control_path = dir.join("control");
        let control = SharedFile::create(&control_path, CONTROL_BYTES)
            .map_err(io_error("make", &control_path))?
            .leak();
        let seed = random_u64(&control_path)?;
        let layout = IndexLayout::for_files(expected + expected / 8, spare);
        let (current, writer) = new_index(dir, &layout, 1, seed, &tiers)?;
        let control = Control::create(control).ok_or(AgentError::TooLarge { what: "the control page" })?;
        control.set_generation(1);
        Ok(Self {
            dir: dir.to_owned(),
            control,
            tiers,
            seed,
            spare,
            writer,
            current,
            backed: Backed::default(),
        })
    }

    /// Removes all shared files except the log and the lock. Programs keep the files that they have mapped.
    pub(crate) fn remove(&self) {
        remove_old(&self.dir);
    }

    pub(crate) const fn control(&self) -> Control<'static> {
        self.control
    }

    pub(crate) const fn writer(&mut self) -> &mut IndexWriter<'static> {
        &mut self.writer
    }

    pub(crate) const fn writer_ref(&self) -> &IndexWriter<'static> {
        &self.writer
    }

    pub(crate) fn index(&self) -> Index<'_> {
        self.writer.index()
    }

    /// Returns the current index, for another thread to read.
    pub(crate) fn current(&self) -> Arc<IndexFile> {
        Arc::clone(&self.current)
    }

    /// Publishes an entry, and lets the index grow if it is full. Returns the record number, and true if the index has
    /// grown and all record numbers have changed.
    pub(crate) fn insert(&mut self, entry: &Entry<'_>, open: OpenCopies<'_>) -> Result<(u32, bool), NoRoom> {
        self.ensure()?;
        if let Ok(number) = self.writer.insert(entry) {
            return Ok((number, false));
        }
        self.grow(open).map_err(NoRoom::as_it_was)?;
        let number = self
            .writer
            .insert(entry)
            .map_err(|IndexFull| NoRoom::grown_in_vain("one more file"))?;
        Ok((number, true))
    }

    /// Adds a directory, and lets the index grow if it is full. Returns its number, and true if the index has grown and
    /// all record numbers have changed.
    pub(crate) fn add_directory(&mut self, path: &[u8], open: OpenCopies<'_>) -> Result<(u32, bool), NoRoom> {
        self.ensure()?;
        if let Ok(number) = self.writer.add_directory(path, 0, 0) {
            return Ok((number, false));
        }
        self.grow(open).map_err(NoRoom::as_it_was)?;
        let added = self.writer.add_directory(path, 0, 0);
        let number = added.map_err(|IndexFull| NoRoom::grown_in_vain("one more directory"))?;
        Ok((number, true))
    }

    /// Reserves memory for one more insertion.
    fn ensure(&mut self) -> Result<(), NoRoom> {
        self.backed.ensure(&self.current, &self.writer, [0; 4]).map_err(NoRoom::as_it_was)
    }

    /// Returns the dropped copies that may still be open if nobody knows the open ones: the newest, up to the spare
    /// room of the new index, so that the index does not grow for ever.
    fn dropped_last(&self) -> HashSet<u64> {
        let index = self.index();
        let records = (0..self.writer.records()).rev().filter_map(|number| index.record(number));
        let dropped = records.filter(|record| !record.is_kept()).take(self.spare as usize);
        dropped.map(Record::copy).collect()
    }

    /// Replaces the full index by a larger one.
    fn grow(&mut self, open: OpenCopies<'_>) -> Result<(), AgentError> {
        let has_dropped = self.writer.records() > self.writer.live();
        let open = if has_dropped {
            open().unwrap_or_else(|| self.dropped_last())
        } else {
            HashSet::new()
        };
        let still_open = |record: &Record| open.contains(&record.copy());
        let generation = self.control.generation() + 1;
        let (layout, filled) = self.writer.next_layout(self.spare, still_open);
        let (file, mut writer) = new_index(&self.dir, &layout, generation, self.seed, &self.tiers)?;
        let mut backed = Backed::default();
        backed.ensure(&file, &writer, filled)?;
        self.writer
            .copy_into(&mut writer, still_open)
            .map_err(|IndexFull| AgentError::TooLarge { what: "a larger index" })?;
        self.control.set_generation(generation);
        self.writer = writer;
        // The sweeper may be reading the old index. Preload libraries map the new one at their next lookup; the memory
        // of the old one is free when the last of them has.
        self.current = file;
        self.backed = backed;
        Ok(())
    }
}

/// Bytes from the start of each part of the index for which memory is reserved.
#[derive(Debug, Default)]
struct Backed([u64; 4]);

impl Backed {
    /// Reserves memory for the used bytes, `more` bytes of each part, and one insertion.
    fn ensure(&mut self, file: &IndexFile, writer: &IndexWriter<'_>, more: [u64; 4]) -> Result<(), AgentError> {
        for (((start, used), more), backed) in writer.parts().into_iter().zip(more).zip(&mut self.0) {
            let wanted = used + more + INSERTION_BYTES_MAX;
            if wanted <= *backed {
                continue;
            }
            let step = (wanted - *backed).next_multiple_of(BACKED_STEP_BYTES);
            // The last step may reach past the end of the file, which then grows; no reader looks there.
            file.file
                .reserve(start + *backed, step)
                .map_err(io_error("get memory for", &file.path))?;
            *backed += step;
        }
        Ok(())
    }
}

fn new_index(
    dir: &Path,
    layout: &IndexLayout,
    generation: u64,
    seed: u64,
    tiers: &[Tier],
) -> Result<(Arc<IndexFile>, IndexWriter<'static>), AgentError> {
    let path = dir.join(format!("index.{generation}"));
    let file = SharedFile::create_sparse(&path, layout.file_bytes() as usize).map_err(io_error("make", &path))?;
    // From here on the file is removed with the value, since the next try takes the same name.
    let made = Arc::new(IndexFile { file, path });
    made.file
        .reserve(0, layout.tables_bytes())
        .map_err(io_error("get memory for", &made.path))?;
    let region: Region<'static> = made.file.region_beside();
    let writer = IndexWriter::create(region, layout, generation, seed, tiers).ok_or(AgentError::TooLarge { what: "the index" })?;
    Ok((made, writer))
}

/// Removes an agent's shared files from our own, locked directory. Mappings that programs hold stay valid.
fn remove_old(dir: &Path) {
    let Ok(listing) = fs::open(
        dir,
        fs::OFlags::DIRECTORY | fs::OFlags::RDONLY | fs::OFlags::CLOEXEC,
        fs::Mode::empty(),
    )
    .and_then(fs::Dir::new) else {
        return;
    };
    for entry in listing.flatten() {
        let name = entry.file_name().to_bytes();
        let ours = name == b"control"
            || name == b"door.sock"
            || name == b"control.sock"
            || name.starts_with(b"index.")
            || name.starts_with(b"forks.")
            || name.starts_with(b"loaders.")
            || name.starts_with(b"run.");
        if ours && let Ok(name) = std::str::from_utf8(name) {
            let _ = fs::unlink(dir.join(name));
        }
    }
    let _ = std::fs::remove_dir_all(dir.join(MIRROR));
}

/// Draws a number for the name or content of the file at a path.
///
/// # Errors
/// The kernel gives no random bytes.
pub(crate) fn random_u64(path: &Path) -> Result<u64, AgentError> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| io_error("get random bytes for", path)(e.into()))?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use forebay_contract::{Attributes, FileTime, Identity};

    use super::*;

    const SPARE: u64 = 1024;

    fn pages(dir: &Path) -> (Pages, u32) {
        let tier = Tier::new(1, b"/tier/objects").expect("short enough");
        let mut pages = Pages::create(dir, vec![tier], 0, SPARE).expect("made");
        let (directory, _) = pages.add_directory(b"/source", &|| Some(HashSet::new())).expect("room");
        (pages, directory)
    }

    fn entry(directory: u32, number: u32, owner: u32, name: &str) -> Entry<'_> {
        Entry {
            directory,
            name: name.as_bytes(),
            identity: Identity {
                ino: u64::from(number) + 1,
                ..Identity::default()
            },
            attributes: Attributes {
                uid: owner,
                ..Attributes::default()
            },
            copy: u64::from(number),
            tier: 0,
            copy_ino: u64::from(number) + 1,
            copy_ctime: FileTime::default(),
            plain: true,
            inserted_at: 1,
            checked_at: 1,
        }
    }

    #[test]
    fn s9_a_table_that_is_full_for_good_refuses_and_serves_on() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (mut pages, directory) = pages(dir.path());
        // Each file of another owner: what files have in common is kept in a table of its own.
        let mut insert = |number: u32, owner: u32| {
            let name = number.to_string();
            let inserted = pages.insert(&entry(directory, number, owner, &name), &|| Some(HashSet::new()));
            inserted.map(|(_, grown)| grown)
        };
        let full = (0..10_000).find(|number| insert(*number, *number).is_err()).expect("a bound");
        assert!(full >= 4096);
        assert!(insert(full + 1, full + 1).is_err());
        assert!(!insert(full + 2, 7).expect("of an owner that is known"));
        for number in (0..full).chain([full + 2]) {
            assert!(pages.index().find(format!("/source/{number}").as_bytes()).is_some(), "{number}");
        }
        assert!(pages.index().find(format!("/source/{full}").as_bytes()).is_none());
    }

    #[test]
    fn p8_copies_that_come_and_go_leave_one_index_of_their_size() {
        const LIVE: u32 = 100;
        const CHURN: u32 = 40 * SPARE as u32;
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (mut pages, directory) = pages(dir.path());
        // A process holds one of the copies that were dropped.
        let held = || Some(HashSet::from([7]));
        for number in 0..CHURN {
            let name = number.to_string();
            pages.insert(&entry(directory, number, 0, &name), &held).expect("room");
            if let Some(old) = number.checked_sub(LIVE) {
                let path = format!("/source/{old}");
                let (gone, _) = pages.index().find_kept(path.as_bytes()).expect("it is there");
                pages.writer().kill(gone);
            }
        }
        assert!(pages.control().generation() > 30);
        let files: Vec<_> = std::fs::read_dir(dir.path()).expect("listed").map(Result::unwrap).collect();
        let indices = files
            .iter()
            .filter(|file| file.file_name().as_encoded_bytes().starts_with(b"index."));
        let bytes: Vec<u64> = indices.map(|file| file.metadata().expect("there").blocks() * 512).collect();
        assert!(bytes.len() == 1 && bytes[0] < 8 << 20, "{bytes:?}");
        for number in CHURN - LIVE..CHURN {
            assert!(pages.index().find(format!("/source/{number}").as_bytes()).is_some(), "{number}");
        }
        let of_copy = |number: u64| pages.index().find_copy(1, number + 1, FileTime::default());
        assert_eq!(
            of_copy(7).map(|(_, record)| record.is_kept()),
            Some(false),
            "its descriptor leads back"
        );
        assert!(of_copy(8).is_none());
    }

    #[test]
    fn p8_where_nobody_knows_what_is_open_the_newest_that_were_dropped_stay() {
        const LIVE: u32 = 100;
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (mut pages, directory) = pages(dir.path());
        let is_there = |pages: &Pages, number: u32| {
            let copy = pages.index().find_copy(1, u64::from(number) + 1, FileTime::default());
            copy.is_some()
        };
        for number in 0..40 * SPARE as u32 {
            let name = number.to_string();
            let (_, grown) = pages.insert(&entry(directory, number, 0, &name), &|| None).expect("room");
            if let Some(old) = number.checked_sub(LIVE) {
                if grown {
                    let first = old.saturating_sub(SPARE as u32);
                    assert!((first..old).all(|dropped| is_there(&pages, dropped)));
                    assert!(first == 0 || !is_there(&pages, first - 1), "no more than those");
                }
                let path = format!("/source/{old}");
                let (gone, _) = pages.index().find_kept(path.as_bytes()).expect("it is there");
                pages.writer().kill(gone);
            }
        }
        assert!(pages.control().generation() > 10);
    }
}
