//! Lists directories that programs have listed, and writes the listings to a tier. A thread of its own, since the event
//! loop never waits for the source.
//!
//! The lister reopens the directory through the program's descriptor: a duplicate would share the read position with
//! the program.

use std::{
    collections::{HashSet, VecDeque},
    mem::MaybeUninit,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel},
    },
    thread,
};

use forebay_contract::{
    NotCached,
    cached_directory::{CachedDirectoryEntry, CachedDirectoryHeader, ENTRY_BYTES_MAX, HEADER_BYTES},
};
use forebay_policy::read_list::ReadParts;
use forebay_store::{CopySource, Finished, SourceFile, SourceStat, StatFrom, StoreError, Tier};
use rustix::{
    fs::{FileType, Mode, OFlags, RawDir, openat},
    io::Errno,
};

use crate::{
    host::{
        error::{AgentError, io_error},
        shared::set_thread_nice,
    },
    tiering::{
        ahead::file::AheadUse,
        copy_job::{Copied, CopyOutcome},
        handoff::Handoff,
        limits::{BATCH_PAUSE, BUFFER_BYTES, COPY_NICE, LISTING_BYTES, LISTING_BYTES_MAX, LISTINGS_HELD_BYTES},
    },
};

#[derive(Debug)]
pub(crate) enum ListerRequest {
    /// Lists the directory that a program has opened.
    List(Box<Handoff>),
    /// ListingWrite a listing to a tier.
    Write(ListingWrite),
}

/// A listing to write to a tier.
#[derive(Debug)]
pub(crate) struct ListingWrite {
    /// Number of the flight.
    pub(crate) number: u64,
    /// Name of the copy.
    pub(crate) copy: u64,
    pub(crate) tier: Arc<Tier>,
    pub(crate) listing: Box<DirectoryListing>,
}

/// Result of listing a directory.
#[derive(Debug)]
pub(crate) struct ListedDirectory {
    /// Device and inode, as they were handoff over.
    pub(crate) directory: (u64, u64),
    pub(crate) run: u64,
    /// The listing, or the reason for none.
    pub(crate) listing: Result<Box<DirectoryListing>, NotCached>,
}

/// A listing in memory, with the bytes of its copy. It is read like a file that has the version of the directory,
/// except for the size, which is the listing's.
#[derive(Debug)]
pub(crate) struct DirectoryListing {
    /// Handoff of the program, with a descriptor of our own and the attributes from the server right before the
    /// listing.
    pub(crate) handoff: Handoff,
    bytes: Vec<u8>,
    /// Counts the bytes while they are in memory.
    _held: HeldBytes,
}

/// Share of a listing in the bytes of all listings in memory, given back when it is dropped.
#[derive(Debug)]
struct HeldBytes {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl HeldBytes {
    fn of(bytes: usize, all: &Arc<AtomicUsize>) -> Self {
        all.fetch_add(bytes, Relaxed);
        Self {
            bytes,
            all: Arc::clone(all),
        }
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Relaxed);
    }
}

impl DirectoryListing {
    fn sized(&self, mut stat: SourceStat) -> SourceStat {
        stat.identity.size = self.bytes.len() as u64;
        stat
    }
}

impl CopySource for DirectoryListing {
    fn stat(&self, ask: StatFrom) -> Result<SourceStat, Errno> {
        self.handoff.source.stat(ask).map(|stat| self.sized(stat))
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let from = self.bytes.get(offset as usize..).unwrap_or_default();
        let len = from.len().min(bytes.len());
        bytes[..len].copy_from_slice(&from[..len]);
        Ok(len)
    }

    fn forget_pages(&self, _: u64) -> Result<(), Errno> {
        Ok(())
    }
}

/// Starts the thread, which ends with the process. Returns the sender of requests.
pub(crate) fn start(
    listed: impl Fn(ListedDirectory) + Send + 'static,
    written: impl Fn(Copied) + Send + 'static,
) -> Result<Sender<ListerRequest>, AgentError> {
    let (requests, received) = channel();
    thread::Builder::new()
        .name("lister".into())
        .spawn(move || run(&received, &listed, &written))
        .map_err(io_error("start a thread", Path::new("lister")))?;
    Ok(requests)
}

/// Waits for the next request; `None` when no sender is left. Writes come first, and no directory is listed while the
/// listings in memory take too many bytes.
fn next(requests: &Receiver<ListerRequest>, waiting: &mut VecDeque<Box<Handoff>>, held: &AtomicUsize) -> Option<ListerRequest> {
    loop {
        let request = match requests.try_recv() {
            Ok(request) => request,
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) if waiting.is_empty() => requests.recv().ok()?,
            Err(TryRecvError::Empty) if held.load(Relaxed) <= LISTINGS_HELD_BYTES => return waiting.pop_front().map(ListerRequest::List),
            // The event loop is about to have some written, or drops them.
            Err(TryRecvError::Empty) => match requests.recv_timeout(BATCH_PAUSE) {
                Ok(request) => request,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return None,
            },
        };
        match request {
            ListerRequest::List(handoff) => waiting.push_back(handoff),
            ListerRequest::Write(_) => return Some(request),
        }
    }
}

fn run(requests: &Receiver<ListerRequest>, listed: &impl Fn(ListedDirectory), written: &impl Fn(Copied)) {
    set_thread_nice(COPY_NICE);
    let (mut waiting, held) = (VecDeque::new(), Arc::default());
    let mut entries = vec![MaybeUninit::uninit(); LISTING_BYTES];
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Some(request) = next(requests, &mut waiting, &held) {
        match request {
            ListerRequest::List(handoff) => {
                let identity = handoff.stat.identity;
                listed(ListedDirectory {
                    directory: (identity.dev, identity.ino),
                    run: handoff.run,
                    listing: list(*handoff, &mut entries, &held).map(Box::new),
                });
            }
            ListerRequest::Write(ListingWrite {
                number,
                copy,
                tier,
                listing,
            }) => {
                let result = write(&tier, copy, &listing, &mut buffer);
                // Closed before the report: whoever waits for the listing may unmount the source then.
                drop(listing);
                written(Copied {
                    number,
                    outcome: result.map_or_else(CopyOutcome::Failed, |finished| CopyOutcome::Whole(finished, None)),
                    read_bytes: 0,
                    ahead: AheadUse::Followed,
                    parts: ReadParts::WHOLE,
                });
            }
        }
    }
}

/// Lists a directory.
///
/// # Errors
/// The reason to count.
fn list(handoff: Handoff, buffer: &mut [MaybeUninit<u8>], held: &Arc<AtomicUsize>) -> Result<DirectoryListing, NotCached> {
    let failed = |_| NotCached::SourceError;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let source = SourceFile::new(openat(&handoff.source, c".", flags, Mode::empty()).map_err(failed)?);
    let stat = source.stat(StatFrom::Server).map_err(failed)?;
    let mut bytes = vec![0; HEADER_BYTES];
    append_entries(&source, buffer, &mut bytes)?;
    let header = CachedDirectoryHeader::of(stat.identity.size, &bytes[HEADER_BYTES..]);
    bytes[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
    bytes.shrink_to_fit();
    let mut listing = DirectoryListing {
        handoff: Handoff { source, ..handoff },
        _held: HeldBytes::of(bytes.len(), held),
        bytes,
    };
    listing.handoff.stat = listing.sized(stat);
    Ok(listing)
}

/// Appends all entries of a directory in the kernel's order and form.
fn append_entries(source: &SourceFile, buffer: &mut [MaybeUninit<u8>], bytes: &mut Vec<u8>) -> Result<(), NotCached> {
    let mut offsets = HashSet::new();
    let mut entries = RawDir::new(source, buffer);
    while let Some(entry) = entries.next() {
        let entry = entry.map_err(|_| NotCached::SourceError)?;
        let offset = entry.next_entry_cookie();
        // Libc's `readdir` skips inode 0, and `seekdir` needs distinct positions.
        if entry.ino() == 0 || offset == 0 || !offsets.insert(offset) {
            return Err(NotCached::OddDirectory);
        }
        let entry = CachedDirectoryEntry {
            inode: entry.ino(),
            offset,
            kind: kind_of(entry.file_type()),
            name: entry.file_name().to_bytes(),
        };
        let mut room = [0; ENTRY_BYTES_MAX];
        let len = entry.write(&mut room).ok_or(NotCached::OddDirectory)?;
        if bytes.len() + len > LISTING_BYTES_MAX {
            return Err(NotCached::LargeDirectory);
        }
        bytes.extend_from_slice(&room[..len]);
    }
    Ok(())
}

/// Returns the `d_type` of a file type.
const fn kind_of(kind: FileType) -> u8 {
    match kind {
        FileType::RegularFile => libc::DT_REG,
        FileType::Directory => libc::DT_DIR,
        FileType::Symlink => libc::DT_LNK,
        FileType::Fifo => libc::DT_FIFO,
        FileType::Socket => libc::DT_SOCK,
        FileType::CharacterDevice => libc::DT_CHR,
        FileType::BlockDevice => libc::DT_BLK,
        FileType::Unknown => libc::DT_UNKNOWN,
    }
}

/// Writes a listing, unless the directory has changed since before it was listed.
fn write(tier: &Tier, copy: u64, listing: &DirectoryListing, buffer: &mut [u8]) -> Result<Finished, StoreError> {
    let mut writer = tier.begin(copy, &listing.handoff.stat.identity)?;
    writer.advance(listing, u64::MAX, buffer)?;
    writer.finish(listing, StatFrom::Server)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use forebay_policy::Space;
    use forebay_store::{BootId, Secret, disk::MemoryDisk};

    use super::*;
    use crate::tiering::handoff::handoff_of;

    fn list_with(dir: &Path, buffer_bytes: usize) -> Result<DirectoryListing, NotCached> {
        list(handoff_of(dir), &mut vec![MaybeUninit::uninit(); buffer_bytes], &Arc::default())
    }

    /// A directory with entries of every kind that can be made without rights, and more than one buffer of them.
    fn directory() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..300 {
            fs::write(dir.path().join(format!("file-{number}{}", "x".repeat(number % 90))), b"").unwrap();
        }
        fs::create_dir(dir.path().join("directory")).unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("link")).unwrap();
        std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        fs::write(dir.path().join("n".repeat(255)), b"").unwrap();
        dir
    }

    #[test]
    fn a_listing_is_what_the_kernel_gives_byte_for_byte() {
        let dir = directory();
        let listing = list_with(dir.path(), 1024).unwrap();
        let (header, entries) = listing.bytes.split_at(HEADER_BYTES);
        let header = CachedDirectoryHeader::parse(header).unwrap();
        assert!(header.is_of(entries));
        assert_eq!(header.directory_size(), fs::metadata(dir.path()).unwrap().len());
        // As another parser of the kernel's own bytes reads them.
        let opened = File::open(dir.path()).unwrap();
        let mut buffer = vec![MaybeUninit::uninit(); 1 << 20];
        let mut raw = RawDir::new(&opened, &mut buffer);
        let mut at = 0;
        while let Some(entry) = raw.next() {
            let entry = entry.unwrap();
            let len = usize::from(u16::from_le_bytes(entries[at + 16..at + 18].try_into().unwrap()));
            let here = &entries[at..at + len];
            let name = entry.file_name().to_bytes_with_nul();
            assert_eq!(here[..8], entry.ino().to_le_bytes());
            assert_eq!(here[8..16], entry.next_entry_cookie().to_le_bytes());
            assert_eq!(FileType::from_raw_mode(u32::from(here[18]) << 12), entry.file_type());
            assert_eq!(&here[19..19 + name.len()], name);
            assert_eq!(len, (19 + name.len()).next_multiple_of(8));
            at += len;
        }
        assert_eq!(at, entries.len());
    }

    #[test]
    fn it_is_of_the_version_that_the_server_told_with_a_size_of_its_own() {
        let dir = directory();
        let listing = list_with(dir.path(), 4096).unwrap();
        let now = handoff_of(dir.path()).stat;
        let identity = listing.handoff.stat.identity;
        assert_eq!(identity.size, listing.bytes.len() as u64);
        assert_eq!(
            (identity.ino, identity.mtime, identity.ctime),
            (now.identity.ino, now.identity.mtime, now.identity.ctime)
        );
        assert_eq!(listing.stat(StatFrom::Kernel).unwrap().identity, identity);
        fs::write(dir.path().join("another"), b"").unwrap();
        assert_ne!(listing.stat(StatFrom::Kernel).unwrap().identity, identity);
    }

    #[test]
    fn it_is_read_in_pieces() {
        let dir = directory();
        let listing = list_with(dir.path(), 4096).unwrap();
        let (mut read, mut piece) = (Vec::new(), [0; 100]);
        while let Ok(len @ 1..) = listing.read_at(&mut piece, read.len() as u64) {
            read.extend_from_slice(&piece[..len]);
        }
        assert_eq!(read, listing.bytes);
        assert_eq!(listing.read_at(&mut piece, read.len() as u64 + 9), Ok(0));
    }

    #[test]
    fn it_is_written_whole_and_not_at_all_once_the_directory_has_changed() {
        let quota = Space {
            bytes: 1 << 30,
            inodes: 1 << 20,
        };
        let disk = Arc::new(MemoryDisk::new(64 << 20, 10_000));
        let secret = Secret::from_bytes([7; 32]);
        let tier = Arc::new(Tier::open_on(disk, "/tier".into(), quota, &secret, BootId([1; 16])).unwrap());
        let dir = directory();
        let listing = list_with(dir.path(), 4096).unwrap();
        let copy = tier.next_id();
        let finished = write(&tier, copy, &listing, &mut [0; 1000]).unwrap();
        assert_eq!(finished.object.size, listing.bytes.len() as u64);
        let mut written = vec![0; listing.bytes.len() + 1];
        let read = tier.open_copy(copy).unwrap().read_at(&mut written, 0).unwrap();
        assert_eq!(written[..read], listing.bytes);
        fs::remove_file(dir.path().join("link")).unwrap();
        let copy = tier.next_id();
        let refused = write(&tier, copy, &listing, &mut [0; 1000]);
        assert!(matches!(refused, Err(StoreError::Changed { .. })), "{refused:?}");
        assert!(tier.open_copy(copy).is_err());
    }

    #[test]
    fn the_program_goes_on_reading_where_it_was() {
        let dir = directory();
        let handoff = handoff_of(dir.path());
        let program = SourceFile::new(rustix::io::dup(&handoff.source).unwrap());
        let before = rustix::fs::seek(&program, rustix::fs::SeekFrom::Current(0)).unwrap();
        list(handoff, &mut vec![MaybeUninit::uninit(); 4096], &Arc::default()).unwrap();
        assert_eq!(rustix::fs::seek(&program, rustix::fs::SeekFrom::Current(0)).unwrap(), before);
    }

    #[test]
    fn nothing_is_listed_while_listings_wait_in_memory() {
        let dir = directory();
        let held = Arc::default();
        let listing = Box::new(list(handoff_of(dir.path()), &mut vec![MaybeUninit::uninit(); 4096], &held).unwrap());
        let bytes = held.load(Relaxed);
        assert_eq!(bytes, listing.bytes.len());
        let much = HeldBytes::of(LISTINGS_HELD_BYTES, &held);
        let (requests, received) = channel();
        let mut waiting = VecDeque::new();
        requests.send(ListerRequest::List(Box::new(handoff_of(dir.path())))).unwrap();
        let later = thread::spawn(move || {
            thread::sleep(10 * BATCH_PAUSE);
            drop(listing);
        });
        // As soon as some of it is given back, by whomever.
        assert!(matches!(next(&received, &mut waiting, &held), Some(ListerRequest::List(_))));
        assert_eq!(held.load(Relaxed), LISTINGS_HELD_BYTES);
        later.join().unwrap();
        drop(much);
        assert_eq!(held.load(Relaxed), 0);
        drop(requests);
        assert!(next(&received, &mut waiting, &held).is_none());
    }

    #[test]
    fn what_is_no_directory_any_more_is_an_error_of_the_source() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, b"").unwrap();
        assert_eq!(list_with(&file, 4096).map(drop), Err(NotCached::SourceError));
    }
}
