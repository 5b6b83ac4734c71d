//! Lists directories of the source and opens files in them for prefetching. A thread of its own, since the event loop
//! never waits for the source. It only answers requests.

use std::{
    ffi::OsStr,
    fmt,
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use forebay_store::{CopySource, SourceFile, StatFrom};
use rustix::fs::{self, Dir, DirEntry, FileType, Mode, OFlags};

use crate::{
    host::{
        clock::boot_ns,
        error::{AgentError, io_error},
        shared::set_thread_nice,
    },
    tiering::{
        handoff::{DescriptorBudget, Handoff, HeldDescriptor, names_of},
        limits::{AHEAD_NAMES_MAX, COPY_NICE},
        pages::IndexFile,
        reader::ReaderDescriptor,
    },
};

/// Request to the prefetcher.
#[derive(Debug)]
pub(crate) enum PrefetchRequest {
    /// Lists a directory.
    List {
        /// Path as programs spell it.
        path: Vec<u8>,
        /// Index of the copies, whose files are left out.
        index: Arc<IndexFile>,
    },
    /// Opens files of a directory in this order.
    Open {
        run: u64,
        /// Paths as programs would spell them.
        paths: Vec<Vec<u8>>,
        /// Bound of the files' bytes together.
        bytes: u64,
    },
}

/// Answer of the prefetcher.
#[derive(Debug)]
pub(crate) enum PrefetchAnswer {
    /// Paths of the files in the directory that have no copy, in the order of their names.
    Listed(Vec<Vec<u8>>),
    /// Requested files that were opened.
    Opened(PrefetchedFiles),
}

/// Files that were opened. Requested files in none of these lists can't be opened, or are no regular files.
#[derive(Debug, Default)]
pub(crate) struct PrefetchedFiles {
    /// Opened files, in the form of handoffs that no program reads.
    pub(crate) files: Vec<Handoff>,
    /// Files larger than the bound, before the first file that fitted.
    pub(crate) too_large: Vec<Vec<u8>>,
    /// Size of the smallest such file in bytes.
    pub(crate) smallest: u64,
    /// Files that were not looked at, or did not fit after others.
    pub(crate) rest: Vec<Vec<u8>>,
}

/// Passes an answer to the event loop.
type Deliver = Box<dyn Fn(PrefetchAnswer) + Send>;

/// Parts of the thread before its start.
struct NotStarted {
    requests: Receiver<PrefetchRequest>,
    budget: DescriptorBudget,
    deliver: Deliver,
}

/// Handle of the prefetching thread, which is started when the first run asks for prefetching.
pub(crate) struct Prefetcher {
    requests: Sender<PrefetchRequest>,
    waiting: Option<NotStarted>,
}

impl fmt::Debug for Prefetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prefetcher")
            .field("is_started", &self.waiting.is_none())
            .finish_non_exhaustive()
    }
}

impl Prefetcher {
    /// Prepares the thread, which will pass its answers to `deliver`.
    pub(crate) fn new(budget: DescriptorBudget, deliver: Deliver) -> Self {
        let (requests, received) = channel();
        Self {
            requests,
            waiting: Some(NotStarted {
                requests: received,
                budget,
                deliver,
            }),
        }
    }

    /// Starts the thread, the first time.
    pub(crate) fn start(&mut self) -> Result<(), AgentError> {
        self.waiting.take().map_or(Ok(()), start)
    }

    /// Sends a request. The thread ends with the process; without a thread there is no answer.
    pub(crate) fn ask(&self, request: PrefetchRequest) {
        let _ = self.requests.send(request);
    }
}

fn start(parts: NotStarted) -> Result<(), AgentError> {
    let NotStarted { requests, budget, deliver } = parts;
    let run = move || {
        set_thread_nice(COPY_NICE);
        for request in requests {
            deliver(match request {
                PrefetchRequest::List { path, index } => PrefetchAnswer::Listed(list(&path, &index)),
                PrefetchRequest::Open { run, paths, bytes } => PrefetchAnswer::Opened(open(run, paths, bytes, &budget)),
            });
        }
    };
    thread::Builder::new()
        .name("prefetcher".into())
        .spawn(run)
        .map_err(io_error("start a thread", Path::new("prefetcher")))?;
    Ok(())
}

/// Returns the entries of a directory, as far as it can be listed. The path of the root directory is empty.
pub(crate) fn entries_of(path: &[u8]) -> impl Iterator<Item = DirEntry> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let directory: &[u8] = if path.is_empty() { b"/" } else { path };
    let listed = fs::open(directory, flags, Mode::empty()).and_then(Dir::new);
    listed.into_iter().flatten().map_while(Result::ok)
}

fn list(path: &[u8], index: &IndexFile) -> Vec<Vec<u8>> {
    let index = index.index();
    let files = entries_of(path)
        .map(|entry| (entry.file_type(), [path, b"/", entry.file_name().to_bytes()].concat()))
        .filter(|(kind, path)| is_file(*kind, path) && index.as_ref().is_none_or(|index| index.find_kept(path).is_none()))
        .map(|(_, path)| path);
    let mut files: Vec<Vec<u8>> = files.take(AHEAD_NAMES_MAX).collect();
    files.sort_unstable();
    files
}

/// Returns true for a regular file. Links are not followed: their targets are prefetched in their own directories, or
/// not at all. Some file systems do not give types in a listing.
fn is_file(kind: FileType, path: &[u8]) -> bool {
    match kind {
        FileType::Unknown => fs::lstat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile),
        kind => kind == FileType::RegularFile,
    }
}

fn open(run: u64, paths: Vec<Vec<u8>>, bytes: u64, budget: &DescriptorBudget) -> PrefetchedFiles {
    let mut opened = PrefetchedFiles {
        smallest: u64::MAX,
        ..PrefetchedFiles::default()
    };
    let mut left = bytes;
    let mut paths = paths.into_iter();
    for path in paths.by_ref() {
        let Some(handed) = open_one(run, &path, budget) else { continue };
        let size = handed.stat.identity.size;
        if size <= left {
            left -= size;
            opened.files.push(handed);
        } else if opened.files.is_empty() {
            opened.smallest = opened.smallest.min(size);
            opened.too_large.push(path);
        } else {
            opened.rest.push(path);
            break;
        }
    }
    opened.rest.extend(paths);
    opened
}

/// Opens a file and returns it in the form of a handoff. Does not wait for a pipe in its place, and does not follow a
/// link.
pub(crate) fn open_one(run: u64, path: &[u8], budget: &DescriptorBudget) -> Option<Handoff> {
    open_as(run, path, OFlags::NOFOLLOW, budget.take()?).filter(|handoff| handoff.stat.is_regular())
}

/// Opens a file or directory with these flags beside the usual ones, and returns it in the form of a handoff. Does not
/// wait for a pipe in its place.
pub(crate) fn open_as(run: u64, path: &[u8], flags: OFlags, place: HeldDescriptor) -> Option<Handoff> {
    let opened_at = boot_ns();
    let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let source = SourceFile::new(fs::open(OsStr::from_bytes(path), flags, Mode::empty()).ok()?);
    let stat = source.stat(StatFrom::Kernel).ok()?;
    let (plain, other_name) = names_of(&source, path);
    Some(Handoff {
        run,
        opened_at,
        // No program has the descriptor.
        reader: ReaderDescriptor {
            pid: rustix::process::getpid().as_raw_nonzero().get(),
            number: -1,
            read_bytes: None,
        },
        path: path.to_vec(),
        plain,
        other_name,
        waited: None,
        source,
        stat,
        place,
        waiting: None,
        is_library: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(dir: &Path, names: &[&str]) -> Vec<Vec<u8>> {
        names
            .iter()
            .map(|name| dir.join(name).into_os_string().into_encoded_bytes())
            .collect()
    }

    #[test]
    fn files_are_opened_as_far_as_the_bytes_go() {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in [("a", 900), ("b", 100), ("c", 700), ("d", 300), ("e", 1)] {
            std::fs::write(dir.path().join(name), vec![1; bytes]).unwrap();
        }
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::os::unix::fs::symlink("b", dir.path().join("link")).unwrap();
        let budget = DescriptorBudget::new(100);
        let of = |names: &[&str], bytes| open(7, paths(dir.path(), names), bytes, &budget);
        let opened = of(&["a", "gone", "sub", "link", "b", "d", "c", "e"], 800);
        let names: Vec<&[u8]> = opened.files.iter().map(|file| file.path.as_slice()).collect();
        assert_eq!(names, paths(dir.path(), &["b", "d"]));
        assert_eq!(opened.too_large, paths(dir.path(), &["a"]));
        assert_eq!(opened.smallest, 900);
        assert_eq!(opened.rest, paths(dir.path(), &["c", "e"]));
        assert!(
            opened
                .files
                .iter()
                .all(|file| file.run == 7 && file.plain && file.reader.number == -1)
        );
        let opened = of(&["a", "c"], 99);
        assert!(opened.files.is_empty() && opened.rest.is_empty());
        assert_eq!((opened.too_large.len(), opened.smallest), (2, 700));
    }

    #[test]
    fn descriptors_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            std::fs::write(dir.path().join(name), b"x").unwrap();
        }
        let opened = open(7, paths(dir.path(), &["a", "b", "c"]), 100, &DescriptorBudget::new(2));
        assert_eq!(opened.files.len(), 2);
    }
}
