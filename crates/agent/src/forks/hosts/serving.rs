//! Serves the state of a job to clones on other hosts.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use forebay_contract::CONTRACT_VERSION;
use forebay_peers::{Blob, BlobId, BlobRequest, Found, Holder, Kind, Members, PeersError, Reply, Server};

use super::{
    ASKERS, Ticket,
    message::{ForkObject, HostNote, HostRequest, HostView, RankView},
    stage::{Stage, StageMemory},
    staging::{RankStages, StageEvents, reason, stage},
};

use crate::forks::{
    client::{Forking, Taking, ranks_here},
    limits::{FORKS_PER_JOB_MAX, HOST_LOOK_EVERY, HOST_SILENT_MAX, HOST_STEP_EVERY},
    protocol::{ForkScope, JobRanks},
};

/// Serves the states of one job's ranks on this host to whoever has its ticket, until it is dropped.
#[derive(Debug)]
pub struct ForkServer {
    server: Server,
    job: Arc<ServedJob>,
}

impl ForkServer {
    /// Starts to serve the job of a ticket, which trains on this host, on a listening socket. `forks_dir` is the
    /// directory of the host's fork agent.
    ///
    /// # Errors
    /// The socket can't be used, keys can't be made, or there is no thread.
    pub fn start(forks_dir: PathBuf, ticket: &Ticket, listener: TcpListener) -> Result<Self, PeersError> {
        let members = Members::of_server(listener.local_addr()?, ASKERS, 0).map_err(io::Error::other)?;
        let job = Arc::new(ServedJob {
            dir: forks_dir,
            name: ticket.job.clone(),
            forks: Mutex::default(),
        });
        let holder = Arc::clone(&job);
        let server = Server::start(Kind::Forks, &ticket.secret(), &members, listener, holder)?;
        Ok(Self { server, job })
    }

    /// Returns the address on which it listens.
    pub const fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns the bytes that were sent.
    pub fn sent_bytes(&self) -> u64 {
        self.server.served().bytes.load(Relaxed)
    }

    /// Ends forks of which nobody has asked for a while. Returns the number of the others.
    pub fn sweep(&self) -> usize {
        let mut forks = self.job.forks.lock().unwrap_or_else(PoisonError::into_inner);
        forks.retain(|_, fork| {
            let is_heard = fork.heard.since() < HOST_SILENT_MAX;
            if !is_heard {
                fork.end();
            }
            is_heard
        });
        forks.len()
    }
}

impl Drop for ForkServer {
    fn drop(&mut self) {
        let mut forks = self.job.forks.lock().unwrap_or_else(PoisonError::into_inner);
        for fork in std::mem::take(&mut *forks).values() {
            fork.end();
        }
    }
}

/// A job whose state other hosts may read.
#[derive(Debug)]
struct ServedJob {
    dir: PathBuf,
    name: String,
    forks: Mutex<BTreeMap<u64, Arc<ServedFork>>>,
}

/// A fork of a served job for a clone on another host.
#[derive(Debug)]
struct ServedFork {
    number: u64,
    at: Option<u64>,
    is_meeting: bool,
    /// Notes of the clone's hosts, by their numbers, and when they came.
    board: Mutex<BTreeMap<u64, (HostNote, Instant)>>,
    heard: Arc<LastHeard>,
    is_awaited: AtomicBool,
    is_ended: AtomicBool,
    view: Mutex<HostView>,
    objects: Mutex<HashMap<BlobId, Arc<dyn Blob>>>,
}

/// Time at which an asker was last heard, or was sent bytes.
#[derive(Debug)]
struct LastHeard(Mutex<Instant>);

impl LastHeard {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Instant::now())))
    }

    fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn since(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

/// An object of a fork. A slow link takes long for a range: the asker is there as long as parts of it are sent.
#[derive(Debug)]
struct HeardBlob {
    blob: Arc<dyn Blob>,
    heard: Arc<LastHeard>,
}

impl Blob for HeardBlob {
    fn length(&self) -> u64 {
        self.blob.length()
    }

    fn read(&self, offset: u64, room: &mut [u8]) -> io::Result<()> {
        self.heard.note();
        self.blob.read(offset, room)
    }

    fn may_wait(&self) -> bool {
        self.blob.may_wait()
    }
}

/// Bytes of an answer or a manifest.
#[derive(Debug)]
struct Text(Vec<u8>);

impl Blob for Text {
    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, room: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let part = self.0.get(from..).and_then(|rest| rest.get(..room.len()));
        room.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl Holder for ServedJob {
    fn asked(&self, request: BlobRequest, reply: Reply) {
        let found = match &request.name {
            Some(name) => serde_json::from_slice(&name.name).ok().map(|request| self.answer(request)),
            None => self.find(request.id),
        };
        reply.send(found.map_or(Found::Absent, Found::Blob));
    }
}

impl ServedJob {
    fn find(&self, id: BlobId) -> Option<Arc<dyn Blob>> {
        let forks = self.forks.lock().unwrap_or_else(PoisonError::into_inner);
        forks.values().find_map(|fork| {
            let found = fork.objects.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
            if found.is_some() {
                fork.heard.note();
            }
            found
        })
    }

    fn answer(&self, request: HostRequest) -> Arc<dyn Blob> {
        let view = match request {
            HostRequest::Begin {
                version,
                fork,
                job,
                at,
                is_meeting,
            } => self.begin(version, fork, &job, (at, is_meeting)),
            HostRequest::Post { fork, note } => {
                let mut board = Vec::new();
                let view = self.view(fork, |fork| board = fork.post(note));
                HostView { board, ..view }
            }
            HostRequest::Take { fork } => self.view(fork, |fork| fork.is_awaited.store(true, Relaxed)),
            HostRequest::Look { fork } => self.view(fork, |_| ()),
            HostRequest::End { fork } => {
                let ended = self.forks.lock().unwrap_or_else(PoisonError::into_inner).remove(&fork);
                if let Some(fork) = ended {
                    fork.end();
                }
                HostView::default()
            }
        };
        Arc::new(Text(serde_json::to_vec(&view).unwrap_or_default()))
    }

    fn begin(&self, version: u32, number: u64, job: &str, (at, is_meeting): (Option<u64>, bool)) -> HostView {
        if version != CONTRACT_VERSION {
            return refused(format!(
                "the job's host has version {CONTRACT_VERSION} of Forebay's messages, this one {version}: install the same Forebay on both"
            ));
        }
        if job != self.name {
            return refused(format!(
                "the host serves the state of {}, not of {job}: use the ticket of {job}",
                self.name
            ));
        }
        let mut forks = self.forks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fork) = forks.get(&number) {
            return fork.look();
        }
        if forks.len() >= FORKS_PER_JOB_MAX {
            return refused(format!(
                "{FORKS_PER_JOB_MAX} clones of {job} on other hosts are being made already; wait until one has its state"
            ));
        }
        let fork = Arc::new(ServedFork {
            number,
            at,
            is_meeting,
            board: Mutex::default(),
            heard: LastHeard::new(),
            is_awaited: AtomicBool::new(false),
            is_ended: AtomicBool::new(false),
            view: Mutex::default(),
            objects: Mutex::default(),
        });
        let (made, dir, name) = (Arc::clone(&fork), self.dir.clone(), self.name.clone());
        let begun = thread::Builder::new().name("fork".into()).spawn(move || {
            if let Err(why) = made.make(&dir, &name) {
                made.view.lock().unwrap_or_else(PoisonError::into_inner).refused = Some(why);
            }
        });
        if let Err(error) = begun {
            return refused(format!("the job's host has no thread for this fork: {error}"));
        }
        forks.insert(number, fork);
        HostView::default()
    }

    fn view(&self, number: u64, note: impl FnOnce(&ServedFork)) -> HostView {
        let forks = self.forks.lock().unwrap_or_else(PoisonError::into_inner);
        match forks.get(&number) {
            Some(fork) => {
                note(fork);
                fork.look()
            }
            None => refused("the job's host has given this fork up: nobody asked for it in time; try again".into()),
        }
    }
}

fn refused(why: String) -> HostView {
    HostView {
        refused: Some(why),
        ..HostView::default()
    }
}

impl ServedFork {
    /// Keeps the note of a host of the clone. Returns those of all.
    fn post(&self, note: HostNote) -> Vec<HostNote> {
        let mut board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        if board.len() < usize::from(ASKERS) || board.contains_key(&note.host) {
            board.insert(note.host, (note, Instant::now()));
        }
        let told = |(note, since): &(HostNote, Instant)| HostNote {
            silent_ms: u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
            ..note.clone()
        };
        board.values().map(told).collect()
    }

    fn look(&self) -> HostView {
        self.heard.note();
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn end(&self) {
        self.is_ended.store(true, Relaxed);
        self.objects.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Has the state of each rank on this host taken.
    fn make(&self, dir: &Path, job: &str) -> Result<(), String> {
        let found = ranks_here(dir, job).map_err(reason)?;
        let scope = if found.here.len() == found.ranks as usize {
            ForkScope::All
        } else {
            ForkScope::Registered
        };
        if self.is_meeting || (scope == ForkScope::Registered && self.at.is_none()) {
            return self.tell_progress(dir, job, found);
        }
        let forking = Forking::begin(dir, job, self.at, Some(0), scope).map_err(reason)?;
        let secret = std::fs::read(&forking.secret).map_err(|error| format!("the secret of {job} can't be read: {error}"))?;
        let (ranks, here) = (forking.ranks, forking.here.clone());
        // A shard of each state, most of which all ranks hold alike.
        let part = found.bytes / (here.len().max(1) as u64 * u64::from(ranks.max(1)));
        let memory: Vec<_> = here.iter().map(|_| StageMemory::make(part).ok()).collect();
        self.note(&JobRanks {
            ranks,
            here: here.clone(),
            ..found
        });
        while !self.is_awaited.load(Relaxed) {
            if self.is_ended.load(Relaxed) {
                return Ok(());
            }
            thread::sleep(HOST_LOOK_EVERY);
        }
        let stage_rank = |rank: u32, memory: Option<StageMemory>| {
            let taking = Taking::begin(dir, forking.fork, rank, ranks).map_err(reason)?;
            stage(&taking, &secret, memory, &ServedRank { fork: self, rank })
        };
        thread::scope(|scope| {
            let staging: Vec<_> = here
                .into_iter()
                .zip(memory)
                .map(|(rank, memory)| scope.spawn(move || stage_rank(rank, memory)))
                .collect();
            let ended: Vec<_> = staging
                .into_iter()
                .map(|one| one.join().unwrap_or_else(|_| Err("a thread failed".into())))
                .collect();
            ended.into_iter().collect()
        })
    }

    /// Keeps the view of a job up to date, until the fork is ended: by its steps hosts agree on that of a fork.
    fn tell_progress(&self, dir: &Path, job: &str, mut found: JobRanks) -> Result<(), String> {
        while !self.is_ended.load(Relaxed) {
            if found.here.is_empty() {
                return Err(format!("no job '{job}' that can be forked trains on this host: it has ended"));
            }
            self.note(&found);
            thread::sleep(HOST_STEP_EVERY);
            found = ranks_here(dir, job).map_err(reason)?;
        }
        Ok(())
    }

    fn note(&self, found: &JobRanks) {
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        (view.ranks, view.step) = (found.ranks, found.step);
        view.states = found
            .here
            .iter()
            .map(|rank| RankView {
                rank: *rank,
                ..RankView::default()
            })
            .collect();
    }

    /// Changes the view of a rank's state.
    fn note_state(&self, rank: u32, change: impl FnOnce(&mut RankView)) {
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = view.states.iter_mut().find(|state| state.rank == rank) {
            change(state);
        }
    }

    fn publish(&self, id: BlobId, object: Arc<dyn Blob>) {
        if !self.is_ended.load(Relaxed) {
            let heard = Arc::clone(&self.heard);
            let object = Arc::new(HeardBlob { blob: object, heard });
            self.objects.lock().unwrap_or_else(PoisonError::into_inner).insert(id, object);
        }
    }
}

/// A rank of a served fork.
struct ServedRank<'a> {
    fork: &'a ServedFork,
    rank: u32,
}

impl ServedRank<'_> {
    fn publish(&self, object: ForkObject, blob: Arc<dyn Blob>) -> u64 {
        let length = blob.length();
        self.fork.publish(object.id(self.fork.number, self.rank), blob);
        length
    }
}

impl StageEvents for ServedRank<'_> {
    fn taken(&self, manifest: Vec<u8>, stages: &RankStages) {
        let shard = self.publish(ForkObject::Shard, Arc::<Stage>::clone(&stages.shard));
        let own = self.publish(ForkObject::Own, Arc::<Stage>::clone(&stages.own));
        let taken = self.publish(ForkObject::Taken, Arc::new(Text(manifest)));
        self.fork
            .note_state(self.rank, |state| (state.taken, state.shard, state.own) = (taken, shard, own));
    }

    fn verified(&self, manifest: Vec<u8>) {
        let verified = self.publish(ForkObject::Verified, Arc::new(Text(manifest)));
        self.fork.note_state(self.rank, |state| state.verified = verified);
    }

    fn is_unwanted(&self) -> bool {
        self.fork.is_ended.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served() -> ServedJob {
        ServedJob {
            dir: "/nonexistent".into(),
            name: "trunk".into(),
            forks: Mutex::default(),
        }
    }

    fn why(view: HostView) -> String {
        view.refused.unwrap_or_default()
    }

    #[test]
    fn f52_another_version_or_job_is_refused_before_anything_is_taken() {
        let job = served();
        let other = why(job.begin(CONTRACT_VERSION + 1, 1, "trunk", (None, false)));
        assert!(other.contains("install the same Forebay on both"), "{other}");
        assert!(why(job.begin(CONTRACT_VERSION, 1, "twig", (None, false))).contains("use the ticket of twig"));
        assert!(job.forks.lock().unwrap().is_empty());
    }

    #[test]
    fn a_request_that_is_repeated_begins_one_fork_and_forks_are_bounded() {
        let job = served();
        for number in 0..FORKS_PER_JOB_MAX as u64 {
            for _ in 0..2 {
                job.begin(CONTRACT_VERSION, number, "trunk", (None, false));
            }
        }
        assert_eq!(job.forks.lock().unwrap().len(), FORKS_PER_JOB_MAX);
        assert!(why(job.begin(CONTRACT_VERSION, 99, "trunk", (None, false))).contains("wait until one has its state"));
        assert!(why(job.view(99, |_| ())).contains("given this fork up"));
    }

    #[test]
    fn bytes_are_sent_of_what_is_there_and_nothing_past_it() {
        let text = Text(b"manifest".to_vec());
        let mut room = [0; 4];
        text.read(4, &mut room).unwrap();
        assert_eq!(&room, b"fest");
        assert!(text.read(5, &mut room).is_err());
        assert!(text.read(u64::MAX, &mut room).is_err());
    }
}
