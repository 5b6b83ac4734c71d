//! The loader agent's role: registers ranks, prepares their loaders, and gives each running loader its turns.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use forebay_store::Secret;

use super::{
    LoaderConfig,
    disks::Disks,
    prepare::{DatasetExtents, Preparations, PreparedLoader},
    protocol::{LoaderRequest, LoaderResponse},
    rendezvous::{Rendezvous, RendezvousAction},
    run::RunningLoader,
    socket_path,
    status::{SampleTotals, SamplesStatus},
};

use crate::{
    host::{
        doorbell::Doorbell,
        driver::{Host, HostSettings},
        error::AgentError,
        lifecycle::live,
        log,
        peer_table::PeerTable,
        refusal::Refusal,
        role::{Peer, Peers, Role, Turn},
    },
    samples::limits::{LOADER_ALIVE_EVERY, LOADER_IDLE_MAX, LOADER_PEERS_MAX, LOADERS_SHOWN_MAX},
};

/// Runs the loader agent until no peer has been connected for a while.
///
/// # Errors
/// [`AgentError::AlreadyRunning`] if another one runs; else the error that ended it, which is also the last line of its
/// log.
pub fn serve(config: &LoaderConfig) -> Result<(), AgentError> {
    live(&config.loaders_dir, || {
        let (secret, why_ephemeral) = Secret::kept_or_ephemeral(&config.state_dir);
        if let Some(why) = why_ephemeral {
            log::fallback(&format!("samples on disks will not serve later jobs: {why}"));
        }
        let host = Host::open(HostSettings {
            socket: socket_path(&config.loaders_dir),
            peers_max: LOADER_PEERS_MAX,
            idle_max: LOADER_IDLE_MAX,
            sleep_max: LOADER_ALIVE_EVERY,
        })?;
        tracing::info!("serving loaders");
        let mut loaders = Loaders::new(Disks::new(secret), host.doorbell());
        host.run(&mut loaders)
    })
}

struct Loaders {
    doorbell: Arc<Doorbell>,
    /// DatasetExtents that a rank has sent, until its loader begins.
    datasets: BTreeMap<Peer, DatasetExtents>,
    rendezvous: Rendezvous,
    runs: BTreeMap<String, RunningLoader>,
    /// Totals of loaders that have ended.
    ended: SampleTotals,
    preparations: Preparations,
    /// Names of the loaders that are being prepared, by number. No number is used twice.
    beginning: BTreeMap<u64, String>,
    next_beginning: u64,
    began: Instant,
}

impl Role for Loaders {
    type Request = LoaderRequest;
    type Response = LoaderResponse;

    fn hear(&mut self, peer: Peer, request: LoaderRequest, descriptors: Vec<OwnedFd>, peers: &mut Peers) {
        match request {
            LoaderRequest::Register { settings, variables, .. } => {
                if let Some(table) = descriptors.into_iter().next() {
                    self.datasets.insert(peer, DatasetExtents { table, variables });
                }
                let now_s = self.now_s();
                let effects = self.rendezvous.register(peer, &settings, now_s);
                self.carry_out(effects, peers);
            }
            LoaderRequest::Share => {
                let loader = self.rendezvous.role_of(peer).map(|(loader, _)| loader);
                let known = loader.and_then(|loader| Some((self.rendezvous.alike(loader)?, self.runs.get_mut(loader)?)));
                if let (Some((alike, run)), Ok([listener, table])) = (known, <[OwnedFd; 2]>::try_from(descriptors)) {
                    match PeerTable::open(table) {
                        Ok(table) => run.share(alike.clone(), table, listener, &self.doorbell),
                        Err(error) => run.stay_alone(&format!("the table of nodes can't be read: {error}")),
                    }
                }
            }
            LoaderRequest::Alone { why } => {
                let loader = self.rendezvous.role_of(peer).map(|(loader, _)| loader);
                if let Some(run) = loader.and_then(|loader| self.runs.get_mut(loader)) {
                    run.set_alone(&why);
                }
            }
            LoaderRequest::Figures => peers.send(peer, &self.figures(peer), &[]),
            LoaderRequest::Status { .. } => peers.send(peer, &LoaderResponse::Status(Box::new(self.status())), &[]),
        }
    }

    fn gone(&mut self, peer: Peer, peers: &mut Peers) {
        self.datasets.remove(&peer);
        let effects = self.rendezvous.gone(peer);
        self.carry_out(effects, peers);
    }

    fn turn(&mut self, peers: &mut Peers) -> Turn {
        while let Some((number, prepared)) = self.preparations.done() {
            if let Some(loader) = self.beginning.remove(&number)
                && let Err(why) = prepared.and_then(|prepared| self.begin(&loader, prepared, peers))
            {
                self.fail(&loader, &why, peers);
            }
        }
        let now_s = self.now_s();
        self.rendezvous.forget_failures(now_s);
        let next_s = self.runs.values_mut().filter_map(|run| run.turn(now_s)).reduce(f64::min);
        let left = next_s.and_then(|next_s| Duration::try_from_secs_f64((next_s - now_s).max(0.0)).ok());
        left.map_or(Turn::WaitForPeers, |left| {
            Turn::WaitUntil(Instant::now() + left.min(LOADER_ALIVE_EVERY))
        })
    }

    fn before_sleep(&mut self) -> bool {
        self.runs.values().for_each(|run| run.set_sleeping(true));
        // Ranks ring from here on; requests that they wrote before are seen here.
        self.runs.values().any(RunningLoader::has_news)
    }

    fn after_sleep(&mut self) {
        self.runs.values().for_each(|run| run.set_sleeping(false));
    }
}

impl Loaders {
    fn new(disks: Disks, doorbell: Arc<Doorbell>) -> Self {
        Self {
            preparations: Preparations::new(disks, Arc::clone(&doorbell)),
            doorbell,
            datasets: BTreeMap::new(),
            rendezvous: Rendezvous::default(),
            runs: BTreeMap::new(),
            ended: SampleTotals::default(),
            beginning: BTreeMap::new(),
            next_beginning: 0,
            began: Instant::now(),
        }
    }

    fn now_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    fn figures(&self, peer: Peer) -> LoaderResponse {
        let role = self.rendezvous.role_of(peer);
        match role.and_then(|(loader, local_rank)| Some((self.runs.get(loader)?, local_rank))) {
            Some((run, local_rank)) => LoaderResponse::Figures {
                figures: run.figures(),
                of_rank: run.rank_figures(local_rank),
            },
            None => Refusal::from("its loader has not begun").into(),
        }
    }

    fn status(&self) -> SamplesStatus {
        let mut totals = self.ended.clone();
        self.runs.values().for_each(|run| totals.add(&run.totals()));
        let shown = self.runs.iter().take(LOADERS_SHOWN_MAX);
        SamplesStatus {
            running: self.runs.len() as u64,
            loaders: shown.map(|(name, run)| run.status(name)).collect(),
            totals,
        }
    }

    fn carry_out(&mut self, effects: Vec<RendezvousAction>, peers: &mut Peers) {
        for effect in effects {
            match effect {
                RendezvousAction::Tell { to, tell } => peers.send(to, &tell, &[]),
                RendezvousAction::Begin { loader } => self.prepare(loader, peers),
                RendezvousAction::Gone { loader, local_rank } => {
                    log::lost(None, &format!("local rank {local_rank} ended before the other ranks of its loader"));
                    let now_s = self.now_s();
                    if let Some(run) = self.runs.get_mut(&loader) {
                        run.gone(local_rank, now_s);
                    } else {
                        self.fail(&loader, "a rank of this node ended before the loader had begun", peers);
                    }
                }
                RendezvousAction::End { loader } => {
                    self.beginning.retain(|_, beginning| *beginning != loader);
                    if let Some(run) = self.runs.remove(&loader) {
                        self.ended.add(&run.totals());
                    }
                }
            }
        }
    }

    /// Refuses a loader to all of its ranks.
    fn fail(&mut self, loader: &str, why: &str, peers: &mut Peers) {
        let now_s = self.now_s();
        let effects = self.rendezvous.fail(loader, why, now_s, None);
        self.carry_out(effects, peers);
    }

    /// Starts to prepare a loader, once all of its ranks have come.
    fn prepare(&mut self, loader: String, peers: &mut Peers) {
        let ranks = self.rendezvous.peers(&loader);
        // All ranks may have sent one; the first serves.
        let sent: Vec<_> = ranks.iter().filter_map(|rank| self.datasets.remove(rank)).collect();
        let (Some(alike), Some(dataset)) = (self.rendezvous.alike(&loader).cloned(), sent.into_iter().next()) else {
            return self.fail(&loader, "none of its ranks has sent the list of files", peers);
        };
        self.next_beginning += 1;
        let ranks = self.rendezvous.ranks(&loader);
        self.preparations.begin(self.next_beginning, alike, ranks, dataset);
        self.beginning.insert(self.next_beginning, loader);
    }

    /// Begins a prepared loader, and tells its ranks.
    fn begin(&mut self, loader: &str, prepared: PreparedLoader, peers: &mut Peers) -> Result<(), String> {
        let ranks = self.rendezvous.peers(loader);
        let promised_bytes = self.runs.values().map(RunningLoader::promised_bytes).sum();
        let (run, notes) = RunningLoader::begin(prepared, self.rendezvous.homes(loader), &self.doorbell, promised_bytes)?;
        let registered = LoaderResponse::Registered {
            arena_bytes: run.arena_bytes(),
            slots: run.slots(),
            notes,
        };
        for (local_rank, rank) in ranks.into_iter().enumerate() {
            let [arena, ring] = run.descriptors(local_rank);
            peers.send(rank, &registered, &[arena, ring, self.doorbell.as_fd()]);
        }
        self.runs.insert(loader.to_owned(), run);
        Ok(())
    }
}
