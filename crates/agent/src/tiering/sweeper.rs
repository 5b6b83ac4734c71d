//! Compares whole directories with the source. A listing brings the attributes of its files along (readdirplus), so a
//! `statx` right after it costs no round trip, while separate checks of the names would cost one each.

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

/// Request to compare a directory with the source.
#[derive(Debug)]
pub(crate) struct SweepRequest {
    pub(crate) directory: u32,
    pub(crate) path: Vec<u8>,
    pub(crate) index: Arc<IndexFile>,
    /// Number of names that the directory has in the index.
    pub(crate) names: u32,
    /// Number of records at the time of the request.
    pub(crate) records: u32,
    /// True to look up only the inode to which the path leads.
    pub(crate) inode_only: bool,
}

#[derive(Debug, Default)]
pub(crate) struct SweepResult {
    pub(crate) directory: u32,
    /// Generation of the index to which the record numbers belong.
    pub(crate) generation: u64,
    /// Boot time of the start in nanoseconds; 0 if the sweep could not be completed.
    pub(crate) started_at: u64,
    /// Device and inode of the directory, if it could be opened.
    pub(crate) inode: Option<(u64, u64)>,
    /// Records whose name now leads to another version or to no file.
    pub(crate) changed: Vec<u32>,
    /// Records of files that were opened for writing since they were checked, so that their contents may change unseen.
    pub(crate) written: Vec<u32>,
    /// Duration of the sweep.
    pub(crate) took: Duration,
    /// True for a complete sweep.
    pub(crate) complete: bool,
    /// True if only the inode was looked up.
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
        // Its files must be reachable, too, so its own permissions count.
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
        // The directory is gone, and so are its names.
        Err(Errno::NOENT | Errno::NOTDIR) => {
            swept.changed = records_of(&index, request.directory, |_| true);
            swept.started_at = started_at;
            swept.complete = true;
        }
        // The source can't answer, so the names run out of time.
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
        // At least one name is gone.
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

/// Returns the kept records of a directory that satisfy `wanted`. Looks at all records, so it is for rare cases only.
fn records_of(index: &Index<'_>, directory: u32, wanted: impl Fn(u32) -> bool) -> Vec<u32> {
    (0..)
        .map_while(|number| index.record(number).map(|record| (number, record)))
        .take_while(|(_, record)| record.is_written())
        .filter(|(number, record)| record.is_kept() && record.directory() == directory && wanted(*number))
        .map(|found| found.0)
        .collect()
}

/// Returns the records of a directory whose file a covered program has opened for writing since the record was checked.
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
