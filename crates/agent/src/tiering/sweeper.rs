//! Compares whole directories with the source, so that names need not be asked for one by one: a listing brings the attributes of its
//! files along (readdirplus), and `statx` right behind it costs no round trip.

use std::{
    collections::HashSet,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::Path,
    sync::{Arc, mpsc::Receiver},
    thread,
    time::{Duration, Instant},
};

use forebay_contract::{Control, FileTime, Identity, Index};
use rustix::{
    fs::{self, AtFlags, Mode, OFlags, RawDir, StatxFlags},
    io::Errno,
};

use crate::{
    host::{
        clock::boot_ns,
        error::{AgentError, io_error},
        shared::set_thread_nice,
    },
    tiering::{
        limits::{COPY_NICE, LISTING_BYTES},
        pages::IndexFile,
    },
};

/// A directory to look at.
#[derive(Debug)]
pub(crate) struct SweepRequest {
    pub(crate) directory: u32,
    pub(crate) path: Vec<u8>,
    pub(crate) index: Arc<IndexFile>,
    /// Names that the directory holds in the index.
    pub(crate) names: u32,
    /// Records with a number below this were there when the sweep was asked for.
    pub(crate) records: u32,
    /// Only find out which inode the path leads to.
    pub(crate) inode_only: bool,
}

/// What a sweep found.
#[derive(Debug, Default)]
pub(crate) struct SweepResult {
    pub(crate) directory: u32,
    /// Generation of the index that the numbers below belong to.
    pub(crate) generation: u64,
    /// Start of the sweep; 0 if it could not be completed.
    pub(crate) started_at: u64,
    /// The directory's own device and inode, if it could be opened.
    pub(crate) inode: Option<(u64, u64)>,
    /// Records whose name leads to another version now, or to nothing.
    pub(crate) changed: Vec<u32>,
    /// Records that were opened for writing since they were checked: their contents may change unseen.
    pub(crate) written: Vec<u32>,
    /// How long it took.
    pub(crate) took: Duration,
    /// Whether this was a sweep that came to its end.
    pub(crate) complete: bool,
    /// Whether this was only a look at the inode.
    pub(crate) inode_only: bool,
}

/// Starts the sweeper, which passes its results to `deliver`.
pub(crate) fn start(
    requests: Receiver<SweepRequest>,
    control: Control<'static>,
    deliver: impl Fn(SweepResult) + Send + 'static,
) -> Result<(), AgentError> {
    let run = move || {
        set_thread_nice(COPY_NICE);
        let mut listing = vec![MaybeUninit::uninit(); LISTING_BYTES];
        for request in requests {
            let begun = Instant::now();
            let mut swept = sweep(&request, &control, &mut listing);
            swept.took = begun.elapsed();
            deliver(swept);
        }
    };
    thread::Builder::new()
        .name("sweeper".into())
        .spawn(run)
        .map_err(io_error("start a thread", Path::new("sweeper")))?;
    Ok(())
}

fn sweep(request: &SweepRequest, control: &Control<'_>, listing: &mut [MaybeUninit<u8>]) -> SweepResult {
    let mut swept = SweepResult {
        directory: request.directory,
        inode_only: request.inode_only,
        ..SweepResult::default()
    };
    let Some(index) = request.index.index() else { return swept };
    swept.generation = index.generation();
    let started_at = boot_ns();
    let path: &[u8] = if request.path.is_empty() { b"/" } else { &request.path };
    if request.inode_only {
        // What is in it must be within reach, too: its own permissions count.
        let inside = [path, b"/."].concat();
        swept.inode = fs::stat(inside).ok().map(|stat| (stat.st_dev, stat.st_ino));
        swept.started_at = started_at;
        return swept;
    }
    let opened = fs::open(path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    match opened.and_then(|dir| compare(&dir, request, &index, started_at, listing, &mut swept).map(|()| dir)) {
        Ok(dir) => {
            swept.inode = fs::fstat(&dir).ok().map(|stat| (stat.st_dev, stat.st_ino));
            swept.written = written_since(&index, control, request.directory);
            swept.started_at = started_at;
            swept.complete = true;
        }
        // The directory is gone: so are its names.
        Err(Errno::NOENT | Errno::NOTDIR) => {
            swept.changed = records_of(&index, request.directory, |_| true);
            swept.started_at = started_at;
            swept.complete = true;
        }
        // The source can't say: the names run out of time.
        Err(_) => {}
    }
    swept
}

fn compare(
    dir: &OwnedFd,
    request: &SweepRequest,
    index: &Index<'_>,
    started_at: u64,
    listing: &mut [MaybeUninit<u8>],
    swept: &mut SweepResult,
) -> Result<(), Errno> {
    let mut spelled = request.path.clone();
    spelled.push(b'/');
    let base = spelled.len();
    let mut seen = HashSet::new();
    let mut entries = RawDir::new(dir, listing);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        spelled.truncate(base);
        spelled.extend_from_slice(entry.file_name().to_bytes());
        let Some((number, record)) = index.find_kept(&spelled) else {
            continue;
        };
        if number < request.records {
            seen.insert(number);
        }
        // Links are followed, as the program's open does.
        let now = match fs::statx(dir, entry.file_name(), AtFlags::empty(), WANTED) {
            Ok(statx) => Some(identity(&statx)),
            Err(Errno::NOENT | Errno::ACCESS | Errno::LOOP | Errno::NOTDIR) => None,
            Err(errno) => return Err(errno),
        };
        if now.is_none_or(|now| !index.is_version(record, &now)) {
            swept.changed.push(number);
        }
    }
    if (seen.len() as u32) < request.names {
        // Some name is gone.
        let gone = records_of(index, request.directory, |number| {
            number < request.records && !seen.contains(&number)
        });
        swept.changed.extend(
            gone.into_iter()
                .filter(|number| index.record(*number).is_some_and(|record| record.checked_at() < started_at)),
        );
    }
    Ok(())
}

const WANTED: StatxFlags = StatxFlags::TYPE
    .union(StatxFlags::INO)
    .union(StatxFlags::SIZE)
    .union(StatxFlags::MTIME)
    .union(StatxFlags::CTIME);

fn identity(statx: &fs::Statx) -> Identity {
    let time = |time: fs::StatxTimestamp| FileTime {
        sec: time.tv_sec,
        nsec: time.tv_nsec,
    };
    Identity {
        dev: fs::makedev(statx.stx_dev_major, statx.stx_dev_minor),
        ino: statx.stx_ino,
        size: statx.stx_size,
        mtime: time(statx.stx_mtime),
        ctime: time(statx.stx_ctime),
    }
}

/// Kept records of a directory that `wanted` takes. Looks at all records: only for what is rare.
fn records_of(index: &Index<'_>, directory: u32, wanted: impl Fn(u32) -> bool) -> Vec<u32> {
    (0..)
        .map_while(|number| index.record(number).map(|record| (number, record)))
        .take_while(|(_, record)| record.is_written())
        .filter(|(number, record)| record.is_kept() && record.directory() == directory && wanted(*number))
        .map(|found| found.0)
        .collect()
}

/// Records of a directory whose file was opened for writing through a door after the record was checked.
fn written_since(index: &Index<'_>, control: &Control<'_>, directory: u32) -> Vec<u32> {
    if control.newest_tombstone() == 0 {
        return Vec::new();
    }
    records_of(index, directory, |number| {
        index
            .record(number)
            .and_then(|record| index.identity(record).map(|identity| (record, identity)))
            .is_some_and(|(record, identity)| {
                let marked = control.file_marked_at(identity.dev, identity.ino);
                marked != 0 && marked >= record.checked_at()
            })
    })
}
