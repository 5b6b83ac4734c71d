//! Pulls copies from other nodes into the tiers of this one. Threads of their own, since each waits for its file.

use std::{
    any::Any,
    fmt,
    ops::Range,
    os::fd::AsFd,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Instant,
};

use forebay_peers::{BlobName, FetchEnd, Fetched, Kind, Wanted};
use forebay_policy::{read_list::ReadParts, wake::SMALL_BYTES_MAX};
use forebay_store::{Finished, StatFrom, StoreError};

use crate::{
    host::{
        error::{AgentError, io_error},
        peer_table::PeerLinks,
        shared::{set_thread_nice, write_back},
    },
    tiering::{
        ahead::file::AheadUse,
        copy_job::{Copied, CopyJob, CopyOutcome, CopyTarget},
        limits::{BUFFER_BYTES, EVENT_LOOP_NICE, FETCH_LOOK, FETCH_WAIT_MAX, NODE_FETCHERS},
        nodes::{partial::PieceGrid, pulled::PulledCopy},
        worker_flags::WorkerFlags,
    },
};

/// Nodes that have a file, and its objects.
pub(crate) struct FetchPlan {
    pub(crate) peers: Arc<PeerLinks>,
    /// Nodes to ask, the owner first. The next one is asked only once the one before has failed.
    pub(crate) holders: Vec<u16>,
    /// Place of this node among those of its job, and their number.
    pub(crate) place: (u16, u16),
    /// The file's bytes.
    pub(crate) bytes: Arc<BlobName>,
    /// Their digest.
    pub(crate) digest: Arc<BlobName>,
}

impl fmt::Debug for FetchPlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "FetchPlan(of {:?})", self.holders)
    }
}

/// A copy to pull.
#[derive(Debug)]
pub(crate) struct FetchJob {
    pub(crate) job: CopyJob,
    pub(crate) plan: FetchPlan,
    /// True once no opener waits for the copy any more.
    pub(crate) is_late: Arc<AtomicBool>,
}

/// Handle of the threads. They end with it. Copies that nodes of this group wait for have threads of their own: behind
/// copies that wait for nodes of the group, these could wait for each other.
#[derive(Debug)]
pub(crate) struct FetchPool(Sender<FetchJob>);

impl FetchPool {
    /// Starts the threads, each of which passes its reports to `deliver`.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn start(
        name: &str,
        deliver: &(impl Fn(Copied) + Clone + Send + 'static),
        flags: &Arc<WorkerFlags>,
    ) -> Result<Self, AgentError> {
        let (jobs, received) = channel();
        let received = Arc::new(Mutex::new(received));
        for number in 0..NODE_FETCHERS {
            let (received, deliver, flags) = (Arc::clone(&received), deliver.clone(), Arc::clone(flags));
            thread::Builder::new()
                .name(format!("{name}-{number}"))
                .spawn(move || work(&received, &deliver, &flags))
                .map_err(io_error("start a thread", Path::new("fetcher")))?;
        }
        Ok(Self(jobs))
    }

    /// Pulls a copy. A report follows.
    pub(crate) fn add(&self, job: FetchJob) {
        let _ = self.0.send(job);
    }
}

fn work(jobs: &Mutex<Receiver<FetchJob>>, deliver: &impl Fn(Copied), flags: &WorkerFlags) {
    set_thread_nice(EVENT_LOOP_NICE);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(fetch) = next else { return };
        let number = fetch.job.number;
        let outcome = match pull(&fetch, &mut buffer, flags) {
            Ok(finished) => CopyOutcome::Whole(finished, None),
            Err(PullError::NotCame) => CopyOutcome::LeftToSource(Box::new(fetch.job)),
            Err(PullError::Ended(outcome)) => *outcome,
        };
        deliver(Copied {
            number,
            outcome,
            read_bytes: 0,
            ahead: AheadUse::Followed,
            parts: ReadParts::NONE,
        });
    }
}

/// Reason why a copy was not pulled.
#[derive(Debug)]
enum PullError {
    /// No node gave the file in time, or not the whole of it.
    NotCame,
    /// For another reason, which ends the copy.
    Ended(Box<CopyOutcome>),
}

impl From<StoreError> for PullError {
    fn from(error: StoreError) -> Self {
        Self::Ended(Box::new(CopyOutcome::Failed(error)))
    }
}

/// Pulls a file in pieces, some at a time.
fn pull(fetch: &FetchJob, buffer: &mut [u8], flags: &WorkerFlags) -> Result<Finished, PullError> {
    let job = &fetch.job;
    // As before each copy: every later change of the file shall move its times.
    write_back(job.opened.source.as_fd(), job.pages).map_err(|_| PullError::NotCame)?;
    // A file without a place is not pulled: its program reads the source.
    let CopyTarget::Tier(target) = &job.target else {
        return Err(PullError::NotCame);
    };
    let tier = (Arc::clone(&target.tier), target.copy);
    let order = (PieceGrid::of(job.identity.size), fetch.plan.place);
    let mut pulled = PulledCopy::new(tier, job.identity, job.sparse, job.partial.clone(), order);
    let (sender, receiver) = channel();
    // Place of the node that is asked, among the holders.
    let mut asked = 0;
    while !pulled.is_complete() {
        fetch.look(flags)?;
        while let Some((piece, range)) = pulled.ask() {
            fetch.ask(&fetch.plan.bytes, (asked, piece), range, &sender);
        }
        let Ok(came) = receiver.recv_timeout(FETCH_LOOK) else { continue };
        match came.content {
            CameContent::Bytes(bytes) => pulled.take(came.piece, &bytes, came.has, buffer)?,
            CameContent::Nothing => {
                pulled.lost(came.piece);
                // Other requests to this node may have failed before.
                asked = asked.max(came.asked + 1);
                if asked == fetch.plan.holders.len() {
                    return Err(PullError::NotCame);
                }
            }
        }
    }
    let ask = if job.identity.size <= SMALL_BYTES_MAX {
        job.ask
    } else {
        StatFrom::Server
    };
    let finished = pulled.finish(&job.opened.source, ask, |checksum| fetch.is_digest_of_holder(asked, checksum))?;
    finished.ok_or(PullError::NotCame)
}

impl FetchJob {
    /// Looks whether the copy is still wanted.
    fn look(&self, flags: &WorkerFlags) -> Result<(), PullError> {
        if self.job.target.is_memory() && flags.is_memory_short() {
            return Err(PullError::Ended(Box::new(CopyOutcome::MemoryShort)));
        }
        if self.job.is_marked() {
            return Err(PullError::Ended(Box::new(CopyOutcome::Marked)));
        }
        if self.is_late.load(Relaxed) {
            return Err(PullError::NotCame);
        }
        Ok(())
    }

    /// Compares the digest of the whole with that of a node whose copy is published. A node that is still making its
    /// copy answers once that has ended.
    fn is_digest_of_holder(&self, asked: usize, checksum: u128) -> bool {
        let expected = checksum.to_le_bytes();
        (asked..self.plan.holders.len()).any(|asked| {
            let (sender, receiver) = channel();
            self.ask(&self.plan.digest, (asked, 0), 0..expected.len() as u64, &sender);
            let came = receiver.recv_timeout(FETCH_WAIT_MAX + FETCH_LOOK);
            matches!(came, Ok(CamePiece { content: CameContent::Bytes(digest), .. }) if digest == expected)
        })
    }

    /// Asks a node for a piece of an object. The data plane ends each request at its deadline.
    fn ask(&self, name: &Arc<BlobName>, (asked, piece): (usize, u32), range: Range<u64>, came: &Sender<CamePiece>) {
        let came = came.clone();
        let Some(&holder) = self.plan.holders.get(asked) else {
            let _ = came.send(CamePiece {
                piece,
                asked,
                content: CameContent::Nothing,
                has: 0,
            });
            return;
        };
        self.plan.peers.to(holder).fetch(Wanted {
            id: name.id(Kind::Files),
            name: Some(Arc::clone(name)),
            offset: range.start,
            holders: vec![holder],
            deadline: Instant::now() + FETCH_WAIT_MAX,
            turn: 0,
            is_whole: false,
            digest: None,
            room: Box::new(vec![0; (range.end - range.start) as usize]),
            done: Box::new(move |fetched| {
                let has = fetched.has;
                let content = CameContent::of(fetched);
                let _ = came.send(CamePiece {
                    piece,
                    asked,
                    content,
                    has,
                });
            }),
        });
    }
}

/// End of a request for a piece.
#[derive(Debug)]
struct CamePiece {
    piece: u32,
    /// Place of the node that was asked among the holders.
    asked: usize,
    content: CameContent,
    /// Bytes of the object that the node which answered has, from the beginning on.
    has: u64,
}

/// Bytes of a piece that was asked for.
#[derive(Debug)]
enum CameContent {
    Bytes(Vec<u8>),
    /// The node does not have it, or did not give it in time.
    Nothing,
}

impl CameContent {
    fn of(fetched: Fetched) -> Self {
        let room: Box<dyn Any> = fetched.room;
        match fetched.end {
            FetchEnd::Came { .. } => room.downcast::<Vec<u8>>().map_or(Self::Nothing, |bytes| Self::Bytes(*bytes)),
            FetchEnd::OtherLength(_) | FetchEnd::Absent | FetchEnd::Late => Self::Nothing,
        }
    }
}
