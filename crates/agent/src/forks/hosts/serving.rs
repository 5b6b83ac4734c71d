//! Serves the state of a job to clones on other hosts.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Instant,
};

use forebay_contract::CONTRACT_VERSION;
use forebay_peers::{Blob, BlobId, BlobRequest, Found, Holder, Kind, Members, PeersError, Reply, Server};

use super::{
    ASKERS, Ticket,
    filled::FilledMemory,
    message::{ClaimedParts, ForkObject, HostFailure, HostNote, HostRequest, HostView, RankView},
    object_part::ObjectPart,
    served_object::{HeardBlob, LastHeard, ServedObject, Text},
    sharing::PartClaims,
    stage::{Stage, reserve},
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
        let job = Arc::new(ServedJob::new(forks_dir, ticket.job.clone())?);
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
    name: String,
    forks: Mutex<BTreeMap<u64, Arc<ServedFork>>>,
    /// Forks whose states are to be taken.
    begun: mpsc::Sender<Arc<ServedFork>>,
}

/// A fork of a served job for a clone on another host.
#[derive(Debug)]
struct ServedFork {
    number: u64,
    at: Option<u64>,
    is_meeting: bool,
    /// Notes of the clone's hosts, by their numbers, and when they came.
    board: Mutex<BTreeMap<u64, (HostNote, Instant)>>,
    /// Askers that have not ended the fork.
    askers: Mutex<BTreeSet<u64>>,
    claims: Mutex<PartClaims>,
    heard: Arc<LastHeard>,
    is_awaited: AtomicBool,
    is_ended: AtomicBool,
    view: Mutex<HostView>,
    objects: Mutex<HashMap<BlobId, ServedObject>>,
}

impl Holder for ServedJob {
    fn asked(&self, request: BlobRequest, reply: Reply) {
        reply.send(match &request.name {
            Some(name) => match serde_json::from_slice(&name.name) {
                Ok(request) => Found::Blob(self.answer(request)),
                Err(_) => Found::Absent,
            },
            None => match self.find(request.id) {
                // The asker asks again. An answer that waited would keep others from theirs.
                Some(object) if object.stage.as_ref().is_some_and(|stage| !stage.has(&request.range)) => Found::Busy,
                Some(object) => Found::Blob(object.blob),
                None => Found::Absent,
            },
        });
    }
}

impl ServedJob {
    /// Makes ready to serve a job of this host. States are taken in threads that a thread of its own starts: those of
    /// the data plane yield to all others of the host, and so would what they start. But a state has to be taken before
    /// the job's next step.
    fn new(dir: PathBuf, name: String) -> io::Result<Self> {
        let (begun, forks) = mpsc::channel::<Arc<ServedFork>>();
        let job = name.clone();
        thread::Builder::new().name("forks".into()).spawn(move || {
            for fork in forks {
                let (made, dir, job) = (Arc::clone(&fork), dir.clone(), job.clone());
                let make = move || {
                    if let Err(failure) = made.make(&dir, &job) {
                        made.refuse(failure);
                    }
                };
                if let Err(error) = thread::Builder::new().name("fork".into()).spawn(make) {
                    fork.refuse(format!("the job's host has no thread for this fork: {error}").into());
                }
            }
        })?;
        let forks = Mutex::default();
        Ok(Self { name, forks, begun })
    }

    fn find(&self, id: BlobId) -> Option<ServedObject> {
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
                asker,
            } => self.begin(version, (fork, asker), &job, (at, is_meeting)),
            HostRequest::Post { fork, note } => {
                let mut board = Vec::new();
                let view = self.view(fork, |fork| board = fork.post(note));
                HostView { board, ..view }
            }
            HostRequest::Capture { fork } => self.view(fork, |fork| fork.is_awaited.store(true, Relaxed)),
            HostRequest::Claim { fork, asker, address } => {
                let mut claims = Vec::new();
                let view = self.view(fork, |fork| claims = fork.claim(asker, &address));
                HostView { claims, ..view }
            }
            HostRequest::Look { fork } => self.view(fork, |_| ()),
            HostRequest::End { fork, asker } => {
                let mut forks = self.forks.lock().unwrap_or_else(PoisonError::into_inner);
                if forks.get(&fork).is_some_and(|fork| fork.is_last(asker))
                    && let Some(fork) = forks.remove(&fork)
                {
                    fork.end();
                }
                HostView::default()
            }
        };
        Arc::new(Text(serde_json::to_vec(&view).unwrap_or_default()))
    }

    fn begin(&self, version: u32, (number, asker): (u64, u64), job: &str, (at, is_meeting): (Option<u64>, bool)) -> HostView {
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
            fork.askers.lock().unwrap_or_else(PoisonError::into_inner).insert(asker);
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
            askers: Mutex::new(BTreeSet::from([asker])),
            claims: Mutex::default(),
            heard: LastHeard::new(),
            is_awaited: AtomicBool::new(false),
            is_ended: AtomicBool::new(false),
            view: Mutex::default(),
            objects: Mutex::default(),
        });
        if self.begun.send(Arc::clone(&fork)).is_err() {
            return refused("the job's host begins no fork any more: start `forebay clone serve` again".into());
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
        refused: Some(why.into()),
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

    /// Claims further parts for an asker, once all states are captured. Returns the claims of all.
    fn claim(&self, asker: u64, address: &str) -> Vec<ClaimedParts> {
        let view = self.look();
        if view.states.iter().any(|state| state.taken == 0) {
            return Vec::new();
        }
        let parts = view
            .states
            .iter()
            .map(|state| ObjectPart::count(state.shard) + ObjectPart::count(state.own));
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims.claim(asker, address, parts.sum())
    }

    /// Removes an asker. Returns whether none is left.
    fn is_last(&self, asker: u64) -> bool {
        let mut askers = self.askers.lock().unwrap_or_else(PoisonError::into_inner);
        askers.remove(&asker);
        askers.is_empty()
    }

    fn look(&self) -> HostView {
        self.heard.note();
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn refuse(&self, why: HostFailure) {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).refused = Some(why);
    }

    fn end(&self) {
        self.is_ended.store(true, Relaxed);
        self.objects.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Has the state of each rank on this host taken.
    fn make(&self, dir: &Path, job: &str) -> Result<(), HostFailure> {
        let found = ranks_here(dir, job)?;
        let scope = if found.here.len() == found.ranks as usize {
            ForkScope::All
        } else {
            ForkScope::Registered
        };
        if self.is_meeting || (scope == ForkScope::Registered && self.at.is_none()) {
            return self.tell_progress(dir, job, found).map_err(HostFailure::from);
        }
        let forking = Forking::begin(dir, job, self.at, Some(0), scope)?;
        let secret = std::fs::read(&forking.secret).map_err(|error| format!("the secret of {job} can't be read: {error}"))?;
        let (ranks, here) = (forking.ranks, forking.here.clone());
        // A shard of each state, most of which all ranks hold alike.
        let part = found.bytes / (here.len().max(1) as u64 * u64::from(ranks.max(1)));
        let memory: Vec<_> = here.iter().map(|_| reserve(part).ok()).collect();
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
        let stage_rank = |rank: u32, memory: Option<FilledMemory>| {
            let taking = Taking::begin(dir, forking.fork, rank, ranks)?;
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

    /// Keeps the view of a job up to date, until the fork is ended: by its steps hosts agree on that of a fork. Hosts
    /// that have agreed meet here on, though the job ends: from its states on they need it no more.
    fn tell_progress(&self, dir: &Path, job: &str, found: JobRanks) -> Result<(), String> {
        let (mut found, mut seen_at) = (Ok(found), Instant::now());
        while !self.is_ended.load(Relaxed) {
            match found {
                Ok(ranks) if !ranks.here.is_empty() => {
                    self.note(&ranks);
                    seen_at = Instant::now();
                }
                // The host that has had the states taken may be about to say so.
                _ if self.is_agreed() || (self.is_meeting && seen_at.elapsed() < HOST_SILENT_MAX) => {}
                Ok(_) => return Err(format!("no job '{job}' that can be forked trains on this host: it has ended")),
                Err(error) => return Err(reason(error)),
            }
            thread::sleep(HOST_STEP_EVERY);
            found = ranks_here(dir, job);
        }
        Ok(())
    }

    /// Returns true if a host of the clone has had the states taken.
    fn is_agreed(&self) -> bool {
        let board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        board.values().any(|(note, _)| note.taken != 0)
    }

    fn note(&self, found: &JobRanks) {
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        (view.ranks, view.step, view.bytes) = (found.ranks, found.step, found.bytes);
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

    fn publish(&self, id: BlobId, blob: Arc<dyn Blob>, stage: Option<Arc<Stage>>) {
        if !self.is_ended.load(Relaxed) {
            let heard = Arc::clone(&self.heard);
            let blob = Arc::new(HeardBlob { blob, heard });
            let object = ServedObject { blob, stage };
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
    fn text(&self, object: ForkObject, text: Vec<u8>) -> u64 {
        let length = text.len() as u64;
        self.fork
            .publish(object.id(self.fork.number, self.rank), Arc::new(Text(text)), None);
        length
    }

    fn stage(&self, object: ForkObject, stage: &Arc<Stage>) -> u64 {
        let (blob, stage) = (Arc::<Stage>::clone(stage), Arc::clone(stage));
        let length = blob.length();
        self.fork.publish(object.id(self.fork.number, self.rank), blob, Some(stage));
        length
    }
}

impl StageEvents for ServedRank<'_> {
    fn taken(&self, manifest: Vec<u8>, stages: &RankStages) {
        let shard = self.stage(ForkObject::Shard, &stages.shard);
        let own = self.stage(ForkObject::Own, &stages.own);
        let taken = self.text(ForkObject::Taken, manifest);
        self.fork
            .note_state(self.rank, |state| (state.taken, state.shard, state.own) = (taken, shard, own));
    }

    fn verified(&self, manifest: Vec<u8>) {
        let verified = self.text(ForkObject::Verified, manifest);
        self.fork.note_state(self.rank, |state| state.verified = verified);
    }

    fn is_unwanted(&self) -> bool {
        self.fork.is_ended.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_state::StateStream;

    use super::{
        super::{
            pulling::{PullHosts, pull},
            source_host::SourceHost,
        },
        *,
    };

    fn served() -> ServedJob {
        ServedJob::new("/nonexistent".into(), "trunk".into()).unwrap()
    }

    fn why(view: HostView) -> String {
        view.refused.unwrap_or_default().why
    }

    #[test]
    fn f52_another_version_or_job_is_refused_before_anything_is_taken() {
        let job = served();
        let other = why(job.begin(CONTRACT_VERSION + 1, (1, 1), "trunk", (None, false)));
        assert!(other.contains("install the same Forebay on both"), "{other}");
        assert!(why(job.begin(CONTRACT_VERSION, (1, 1), "twig", (None, false))).contains("use the ticket of twig"));
        assert!(job.forks.lock().unwrap().is_empty());
    }

    #[test]
    fn a_request_that_is_repeated_begins_one_fork_and_forks_are_bounded() {
        let job = served();
        for number in 0..FORKS_PER_JOB_MAX as u64 {
            for _ in 0..2 {
                job.begin(CONTRACT_VERSION, (number, 1), "trunk", (None, false));
            }
        }
        assert_eq!(job.forks.lock().unwrap().len(), FORKS_PER_JOB_MAX);
        assert!(why(job.begin(CONTRACT_VERSION, (99, 1), "trunk", (None, false))).contains("wait until one has its state"));
        assert!(why(job.view(99, |_| ())).contains("given this fork up"));
    }

    #[test]
    fn a_fork_that_askers_share_ends_with_the_last_of_them() {
        let job = served();
        let begin = |asker| job.begin(CONTRACT_VERSION, (5, asker), "trunk", (Some(9), false));
        for asker in [1, 2, 2] {
            drop(begin(asker));
        }
        let end = |asker| drop(job.answer(HostRequest::End { fork: 5, asker }));
        end(2);
        end(3);
        assert_eq!(job.forks.lock().unwrap().len(), 1);
        end(1);
        assert!(job.forks.lock().unwrap().is_empty());
    }

    #[test]
    fn f51_a_host_whose_bytes_are_late_is_not_lost_and_one_that_answers_nothing_is() {
        let host = super::super::TicketHost {
            host: "node".into(),
            port: 1,
        };
        let ticket = Ticket::new("trunk", host).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let job = Arc::new(served());
        let members = Members::of_server(address, ASKERS, 0).unwrap();
        let holder = Arc::clone(&job);
        let server = Server::start(Kind::Forks, &ticket.secret(), &members, listener, holder).unwrap();
        job.begin(CONTRACT_VERSION, (5, 1), "trunk", (None, true));
        let fork = Arc::clone(&job.forks.lock().unwrap()[&5]);
        // There is no such job here.
        while fork.look().refused.is_none() {
            thread::sleep(HOST_LOOK_EVERY);
        }
        fork.view.lock().unwrap().refused = None;
        let stage = Arc::new(Stage::create(None, 0..8).unwrap());
        let length = ServedRank { fork: &fork, rank: 0 }.stage(ForkObject::Own, &stage);
        let parts = || ObjectPart::all(ForkObject::Own.id(5, 0), length, 0, StateStream::Own, 0).collect();
        let hosts = [SourceHost::start(&ticket, "node", address).unwrap()];
        let pulled = || {
            let from = PullHosts {
                silent_max: Duration::from_secs(3),
                ..PullHosts::of_job(&hosts, 5)
            };
            let mut came = Vec::new();
            pull(from, vec![parts()], None, &|| false, |_, bytes| {
                came.extend_from_slice(bytes);
                Ok(())
            })
            .map(|()| came)
        };
        let late = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_secs(6));
                stage.put(0, b"the rest").unwrap();
            });
            pulled()
        });
        assert_eq!(late.unwrap(), b"the rest");
        drop(server);
        let silent = pulled().unwrap_err();
        assert!(silent.contains("node has not answered for 10 s"), "{silent}");
    }
}
