//! The loader agent's one thread: hears ranks, lets loaders have their turns, sleeps when nothing is to be done.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use forebay_store::Secret;
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{Mode, unlink},
    io::Errno,
};

use super::{
    LoaderConfig,
    disks::Disks,
    doorbell::Doorbell,
    prepare::{DatasetExtents, Preparations, PreparedLoader, PreparedResult},
    protocol::{Ask, Tell, VERSION},
    rendezvous::{ConnectionId, Rendezvous, RendezvousAction},
    run::RunningLoader,
    socket_path,
};

use crate::{
    host::lock::lock,
    host::{
        admission::Admission,
        clock::timespec,
        connection::listening,
        error::{AgentError, io_error},
        log::Log,
        packet,
        private_dir::private_dir,
        shared::raise_descriptor_limit,
    },
    samples::limits::{LOADER_ALIVE_EVERY, LOADER_IDLE_MAX, LOADER_PEERS_MAX},
};

const OTHER_VERSION: &str = "the loader agent is of another version of Forebay: use one version, or wait until its jobs have ended";

/// A connection, and the dataset that came by it, until its loader begins.
#[derive(Debug)]
struct Connected {
    socket: OwnedFd,
    dataset: Option<DatasetExtents>,
}

/// Runs the loader agent until nobody has been connected for a while.
///
/// # Errors
/// [`AgentError::AlreadyRunning`] if one stands; else what kept it from starting, which is also the last line of its log.
pub fn serve(config: &LoaderConfig) -> Result<(), AgentError> {
    let dir = &config.loaders_dir;
    let _ = rustix::process::setsid();
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    raise_descriptor_limit();
    private_dir(dir)?;
    let _lock = lock(dir)?;
    let log = Log::create(dir)?;
    let result = Service::open(config, log.clone()).and_then(Service::run);
    if let Err(error) = &result {
        log.line(&error.to_string());
    }
    let _ = unlink(socket_path(dir));
    result
}

struct Service<'a> {
    dir: &'a Path,
    log: Log,
    listener: OwnedFd,
    admission: Admission,
    doorbell: Arc<Doorbell>,
    peers: BTreeMap<ConnectionId, Connected>,
    next_peer: ConnectionId,
    agreement: Rendezvous,
    runs: BTreeMap<String, RunningLoader>,
    preparations: Preparations,
    /// Loaders that are being prepared, by a number that none has had before.
    beginning: BTreeMap<u64, String>,
    next_beginning: u64,
    began: Instant,
}

impl<'a> Service<'a> {
    fn open(config: &'a LoaderConfig, log: Log) -> Result<Self, AgentError> {
        let dir = config.loaders_dir.as_path();
        let (secret, why_ephemeral) = Secret::kept_or_ephemeral(&config.state_dir);
        if let Some(why) = why_ephemeral {
            log.line(&format!("samples on disks will not serve later jobs: {why}"));
        }
        let path = socket_path(dir);
        let listener = listening(&path)?;
        let doorbell = Arc::new(Doorbell::create().map_err(io_error("make a doorbell beside", &path))?);
        log.line("serving loaders");
        Ok(Self {
            dir,
            log,
            listener,
            admission: Admission::new(LOADER_PEERS_MAX),
            preparations: Preparations::new(Disks::new(secret), Arc::clone(&doorbell)),
            doorbell,
            peers: BTreeMap::new(),
            next_peer: 0,
            agreement: Rendezvous::default(),
            runs: BTreeMap::new(),
            beginning: BTreeMap::new(),
            next_beginning: 0,
            began: Instant::now(),
        })
    }

    fn run(mut self) -> Result<(), AgentError> {
        let mut idle_since = Instant::now();
        let mut next_s = None;
        loop {
            let ready = self.wait(next_s)?;
            self.doorbell.hush();
            // Those who have gone first: one that comes may be their successor, under the same name.
            for peer in ready {
                self.hear(peer);
            }
            self.accept();
            while let Some((number, prepared)) = self.preparations.done() {
                if let Some(loader) = self.beginning.remove(&number) {
                    self.go_on_with(&loader, prepared);
                }
            }
            let now_s = self.now_s();
            self.agreement.forget_failures(now_s);
            next_s = self.runs.values_mut().filter_map(|run| run.turn(now_s)).reduce(f64::min);
            if !self.peers.is_empty() {
                idle_since = Instant::now();
            } else if idle_since.elapsed() >= LOADER_IDLE_MAX {
                return Ok(());
            }
        }
    }

    fn now_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Sleeps until something comes, or the time has come; the connections on which something has.
    fn wait(&self, next_s: Option<f64>) -> Result<Vec<ConnectionId>, AgentError> {
        let now = Instant::now();
        self.runs.values().for_each(|run| run.set_sleeping(true));
        // After that ranks ring; what they wrote before is seen here.
        let pause = if self.runs.values().any(RunningLoader::has_news) {
            Duration::ZERO
        } else {
            let left_s = next_s.map_or(f64::INFINITY, |next_s| (next_s - self.now_s()).max(0.0));
            let left = Duration::try_from_secs_f64(left_s).map_or(LOADER_ALIVE_EVERY, |left| left.min(LOADER_ALIVE_EVERY));
            self.admission.wait(now, left)
        };
        let mut polled: Vec<_> = self.peers.values().map(|peer| PollFd::new(&peer.socket, PollFlags::IN)).collect();
        polled.push(PollFd::new(&*self.doorbell, PollFlags::IN));
        if self.admission.is_open(self.peers.len(), now) {
            polled.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        match poll(&mut polled, Some(&timespec(pause))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(io_error("wait on", &socket_path(self.dir))(errno.into())),
        }
        self.runs.values().for_each(|run| run.set_sleeping(false));
        let ready = self.peers.keys().zip(&polled).filter(|(_, polled)| !polled.revents().is_empty());
        Ok(ready.map(|(peer, _)| *peer).collect())
    }

    fn accept(&mut self) {
        for socket in self.admission.accept(&self.listener, self.peers.len(), &self.log) {
            self.next_peer += 1;
            self.peers.insert(self.next_peer, Connected { socket, dataset: None });
        }
    }

    fn hear(&mut self, peer: ConnectionId) {
        let Some(connected) = self.peers.get_mut(&peer) else { return };
        let effects = match packet::receive::<Ask>(&connected.socket) {
            Ok(Some((Ask::Register { version, .. }, _))) if version != VERSION => refusal(peer, OTHER_VERSION),
            Ok(Some((Ask::Register { settings, variables, .. }, descriptors))) => {
                let table = descriptors.into_iter().next();
                connected.dataset = table.map(|table| DatasetExtents { table, variables });
                let now_s = self.now_s();
                self.agreement.register(peer, &settings, now_s)
            }
            Ok(Some((Ask::Figures, _))) => {
                let role = self.agreement.role_of(peer);
                let run = role.and_then(|(loader, local_rank)| Some((self.runs.get(loader)?, local_rank)));
                match run {
                    Some((run, local_rank)) => vec![RendezvousAction::Tell {
                        to: peer,
                        tell: Tell::Figures {
                            figures: run.figures(),
                            of_rank: run.rank_figures(local_rank),
                        },
                    }],
                    None => refusal(peer, "its loader has not begun"),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.carry_out(refusal(peer, OTHER_VERSION));
                return self.part(peer);
            }
            Ok(None) | Err(_) => return self.part(peer),
        };
        self.carry_out(effects);
    }

    fn part(&mut self, peer: ConnectionId) {
        self.peers.remove(&peer);
        self.admission.resume();
        let effects = self.agreement.gone(peer);
        self.carry_out(effects);
    }

    fn carry_out(&mut self, effects: Vec<RendezvousAction>) {
        let mut lost = Vec::new();
        for effect in effects {
            match effect {
                RendezvousAction::Tell { to, tell } => lost.extend((!self.send(to, &tell, &[])).then_some(to)),
                RendezvousAction::Begin { loader } => self.prepare(loader),
                RendezvousAction::Gone { loader, local_rank } => {
                    let now_s = self.now_s();
                    if let Some(run) = self.runs.get_mut(&loader) {
                        run.gone(local_rank, now_s);
                    } else {
                        self.fail(&loader, "a rank of this node ended before the loader had begun");
                    }
                }
                RendezvousAction::End { loader } => {
                    self.beginning.retain(|_, beginning| *beginning != loader);
                    drop(self.runs.remove(&loader));
                }
            }
        }
        // Each is gone then: this comes to an end.
        for peer in lost {
            self.part(peer);
        }
    }

    fn fail(&mut self, loader: &str, why: &str) {
        self.log.line(&format!("a loader came to nothing: {why}"));
        let now_s = self.now_s();
        let effects = self.agreement.fail(loader, why, now_s, None);
        self.carry_out(effects);
    }

    /// All ranks of a loader have come.
    fn prepare(&mut self, loader: String) {
        let peers = self.agreement.peers(&loader);
        let mut dataset = None;
        for peer in &peers {
            let sent = self.peers.get_mut(peer).and_then(|connected| connected.dataset.take());
            dataset = dataset.or(sent);
        }
        let (Some(alike), Some(dataset)) = (self.agreement.alike(&loader).cloned(), dataset) else {
            return self.fail(&loader, "none of its ranks has sent the list of files");
        };
        self.next_beginning += 1;
        self.preparations.begin(self.next_beginning, alike, peers.len(), dataset);
        self.beginning.insert(self.next_beginning, loader);
    }

    /// A loader can begin, or can't.
    fn go_on_with(&mut self, loader: &str, prepared: PreparedResult) {
        match prepared.and_then(|prepared| self.begin(loader, prepared)) {
            Ok(unheard) => unheard.into_iter().for_each(|peer| self.part(peer)),
            Err(why) => self.fail(loader, &why),
        }
    }

    /// Begins a loader and tells its ranks; those that could not be told.
    fn begin(&mut self, loader: &str, prepared: PreparedLoader) -> Result<Vec<ConnectionId>, String> {
        let peers = self.agreement.peers(loader);
        let promised_bytes = self.runs.values().map(RunningLoader::promised_bytes).sum();
        let (run, notes) = RunningLoader::begin(prepared, peers.len(), &self.doorbell, promised_bytes)?;
        let tell = Tell::Registered {
            arena_bytes: run.arena_bytes(),
            slots: run.slots(),
            notes,
        };
        let mut unheard = Vec::new();
        for (local_rank, peer) in peers.into_iter().enumerate() {
            let [arena, board] = run.descriptors(local_rank);
            if !self.send(peer, &tell, &[arena, board, self.doorbell.as_fd()]) {
                unheard.push(peer);
            }
        }
        self.runs.insert(loader.to_owned(), run);
        Ok(unheard)
    }

    fn send(&self, to: ConnectionId, tell: &Tell, descriptors: &[BorrowedFd<'_>]) -> bool {
        self.peers
            .get(&to)
            .is_some_and(|connected| packet::send(&connected.socket, tell, descriptors).is_ok())
    }
}

fn refusal(to: ConnectionId, why: &str) -> Vec<RendezvousAction> {
    vec![RendezvousAction::Tell {
        to,
        tell: Tell::Refused { why: why.to_owned() },
    }]
}
