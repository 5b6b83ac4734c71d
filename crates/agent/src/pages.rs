//! The memory shared with doors: the control page, and the index through its generations.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use forebay_contract::{
    Control, Entry, INSERTION_BYTES_MAX, Index, IndexFull, IndexLayout, IndexWriter, Region, Tier, control::CONTROL_BYTES,
};
use rustix::fs;

use crate::{
    error::{AgentError, io_error},
    limits::{BACKED_STEP_BYTES, FIRST_RECORDS},
    shared::SharedFile,
};

/// An index file, mapped for as long as anybody holds it.
#[derive(Debug)]
pub(crate) struct IndexFile {
    file: SharedFile,
    path: PathBuf,
}

impl IndexFile {
    /// Read access.
    pub(crate) fn index(&self) -> Option<Index<'_>> {
        Index::open(self.file.region())
    }
}

impl Drop for IndexFile {
    fn drop(&mut self) {
        let _ = fs::unlink(&self.path);
    }
}

/// Control page and current index; the clerk's.
#[derive(Debug)]
pub(crate) struct Pages {
    dir: PathBuf,
    control: Control<'static>,
    tiers: Vec<Tier>,
    seed: u64,
    writer: IndexWriter<'static>,
    // After the writer, which points into it.
    current: Arc<IndexFile>,
    backed: Backed,
}

impl Pages {
    /// Makes both files in the agent's directory, removing what a dead agent left there.
    /// There is room for `expected` files before the index has to grow, which takes memory for both at once.
    pub(crate) fn create(dir: &Path, tiers: Vec<Tier>, expected: u64) -> Result<Self, AgentError> {
        remove_old(dir);
        let control_path = dir.join("control");
        let control = SharedFile::create(&control_path, CONTROL_BYTES)
            .map_err(io_error("make", &control_path))?
            .leak();
        let seed = random_u64(&control_path)?;
        let records = FIRST_RECORDS.max(expected + expected / 8);
        let layout = IndexLayout::with_room(records, FIRST_RECORDS / 4, records * 32);
        let (current, writer) = new_index(dir, &layout, 1, seed, &tiers)?;
        let control = Control::create(control).ok_or(AgentError::TooLarge { what: "the control page" })?;
        control.set_generation(1);
        Ok(Self {
            dir: dir.to_owned(),
            control,
            tiers,
            seed,
            writer,
            current,
            backed: Backed::default(),
        })
    }

    /// Takes everything shared away, the log and the lock excepted. Programs that have it mapped keep it.
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

    /// The current index, for another thread to read.
    pub(crate) fn current(&self) -> Arc<IndexFile> {
        Arc::clone(&self.current)
    }

    /// Publishes an entry, growing the index if it is full. Record numbers are new after growth: the second value says so.
    pub(crate) fn insert(&mut self, entry: &Entry<'_>) -> Result<(u32, bool), AgentError> {
        self.backed.ensure(&self.current, &self.writer, [0; 4])?;
        if let Ok(number) = self.writer.insert(entry) {
            return Ok((number, false));
        }
        self.grow()?;
        let number = self
            .writer
            .insert(entry)
            .map_err(|IndexFull| AgentError::TooLarge { what: "one more file" })?;
        Ok((number, true))
    }

    /// Adds a directory, growing the index if it is full; the second value as for [`Self::insert`].
    pub(crate) fn add_directory(&mut self, path: &[u8]) -> Result<(u32, bool), AgentError> {
        self.backed.ensure(&self.current, &self.writer, [0; 4])?;
        if let Ok(number) = self.writer.add_directory(path, 0, 0) {
            return Ok((number, false));
        }
        self.grow()?;
        let number = self.writer.add_directory(path, 0, 0).map_err(|IndexFull| AgentError::TooLarge {
            what: "one more directory",
        })?;
        Ok((number, true))
    }

    fn grow(&mut self) -> Result<(), AgentError> {
        let generation = self.control.generation() + 1;
        let (file, mut writer) = new_index(&self.dir, &self.writer.next_layout(), generation, self.seed, &self.tiers)?;
        let mut backed = Backed::default();
        backed.ensure(&file, &writer, self.writer.parts().map(|part| part.1))?;
        self.writer
            .copy_into(&mut writer)
            .map_err(|IndexFull| AgentError::TooLarge { what: "a larger index" })?;
        self.control.set_generation(generation);
        self.writer = writer;
        // Doors keep their mapping of the old one until they look again; so may the sweeper.
        self.current = file;
        self.backed = backed;
        Ok(())
    }
}

/// How much of each part of the index has memory behind it, in bytes from the part's start.
#[derive(Debug, Default)]
struct Backed([u64; 4]);

impl Backed {
    /// Has memory behind what is used, `more` bytes of each part, and one insertion.
    fn ensure(&mut self, file: &IndexFile, writer: &IndexWriter<'_>, more: [u64; 4]) -> Result<(), AgentError> {
        for (((start, used), more), backed) in writer.parts().into_iter().zip(more).zip(&mut self.0) {
            let wanted = used + more + INSERTION_BYTES_MAX;
            if wanted <= *backed {
                continue;
            }
            let step = (wanted - *backed).next_multiple_of(BACKED_STEP_BYTES);
            // The last step may reach past the file, which then grows; nobody looks there.
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
    file.reserve(0, layout.tables_bytes()).map_err(io_error("get memory for", &path))?;
    let region: Region<'static> = file.region_beside();
    let writer = IndexWriter::create(region, layout, generation, seed, tiers).ok_or(AgentError::TooLarge { what: "the index" })?;
    Ok((Arc::new(IndexFile { file, path }), writer))
}

/// Removes what an agent shares from our own, locked directory. Mappings that programs hold stay valid.
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
            || name.starts_with(b"run.");
        if ours && let Ok(name) = std::str::from_utf8(name) {
            let _ = fs::unlink(dir.join(name));
        }
    }
}

fn random_u64(path: &Path) -> Result<u64, AgentError> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| io_error("get random bytes for", path)(e.into()))?;
    Ok(u64::from_le_bytes(bytes))
}
