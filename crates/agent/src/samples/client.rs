//! Client of the loader agent: a rank of a loader.

use std::{
    collections::BTreeSet,
    io,
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
    time::{Duration, Instant},
};

use forebay_contract::{
    CONTRACT_VERSION, Region, RequestRing,
    request_ring::{RankDecoding, SLOTS_MAX, SampleRequest},
};
use rustix::process::{Pid, getpid};

use super::{
    Figures, LoaderConfig, RankFigures, SampleStatus,
    protocol::{LoaderRequest, LoaderResponse, Settings, Variables},
    shared_memory::{AgentWatch, Answers},
    socket_path,
    status::SamplesStatus,
    worker::Seat,
};

use crate::{
    host::start::{Starter, start_until},
    host::{
        connection::Connection,
        doorbell::Doorbell,
        error::{AgentError, silent},
        peer_table::PeerTable,
        private_dir::private_dir,
        refusal::Refusal,
    },
    samples::limits::LOADER_DEAD_AFTER,
};

/// Longest time to wait until the agent's socket takes a packet.
const SEND_MAX: Duration = Duration::from_secs(10);
/// Reason why a forked process reads by itself.
const FORKED: &str = "this process was forked from the one that the agent serves";

/// Creates the loader agent's directory, and starts the agent if none runs.
///
/// # Errors
/// If the directory is refused, or no agent answers in time.
pub fn start(config: &LoaderConfig, by: Starter<'_>) -> Result<(), AgentError> {
    private_dir(&config.loaders_dir)?;
    let connect = || Connection::open(&socket_path(&config.loaders_dir), SEND_MAX).ok();
    start_until(config, by, connect).map(drop)
}

/// Returns the status of the loader agent that has this directory.
///
/// # Errors
/// No agent runs there, it is of another version, or it does not answer in time.
pub fn status(dir: &Path) -> Result<SamplesStatus, AgentError> {
    let connection = Connection::open(&socket_path(dir), SEND_MAX)?;
    connection.send(&LoaderRequest::Status { version: CONTRACT_VERSION }, &[])?;
    match connection.hear::<LoaderResponse>(SEND_MAX)? {
        Some((LoaderResponse::Status(status), _)) => Ok(*status),
        Some((LoaderResponse::Refused(refusal), _)) => Err(AgentError::Refused(refusal)),
        Some((other, _)) => Err(AgentError::Protocol(format!("{other:?}"))),
        None => Err(silent(SEND_MAX, connection.pid())),
    }
}

/// A rank that has registered, and waits for the other ranks of its node.
#[derive(Debug)]
pub struct Registering(Connection);

/// A rank of a loader, for as long as this lives. All of its threads may use it concurrently.
#[derive(Debug)]
pub struct LoaderRank {
    state: Mutex<ClientState>,
    /// Connection to the agent. A thread may wait for the agent while it holds this lock, so no thread holds the lock
    /// of `state` and then takes this one.
    connection: Mutex<Connection>,
    answers: Answers,
    doorbell: Doorbell,
    notes: Vec<String>,
    /// Process that owns this: a forked child shares the memory, and has a copy of locks that may never be unlocked.
    owner: Pid,
}

#[derive(Debug)]
struct ClientState {
    /// Number of requests made, and for each slot true if its request is open.
    asked: u64,
    open: Vec<bool>,
    /// Sequence numbers of requests that are over except for their bytes.
    held: BTreeSet<u64>,
    released: u64,
    passes: u32,
    steps: u64,
    /// Reason why the agent was given up.
    lost: Option<String>,
    /// Ranks of this node that are gone.
    gone: Vec<u32>,
    watch: AgentWatch,
}

impl Registering {
    /// Registers a rank; `settings` are JSON. The first rank of the node sends `extents` along
    /// ([`super::table::Table::seal`]), and, if some extents are objects, the `variables` for access to them.
    ///
    /// # Errors
    /// No loader agent runs; or the settings are invalid.
    pub fn begin(dir: &Path, settings: &str, extents: Option<BorrowedFd<'_>>, variables: Variables) -> Result<Self, AgentError> {
        let settings: Settings = serde_json::from_str(settings).map_err(|error| {
            let why = format!("invalid settings of a loader: {error}");
            AgentError::Refused(Refusal::from(why))
        })?;
        let connection = Connection::open(&socket_path(dir), SEND_MAX)?;
        if !connection.is_of_same_files() {
            // A path that the agent opens may be another file there.
            return Err(AgentError::Protocol("it is in another mount namespace, or has another root".into()));
        }
        let ask = LoaderRequest::Register {
            version: CONTRACT_VERSION,
            settings: Box::new(settings),
            variables,
        };
        connection.send(&ask, extents.as_slice())?;
        Ok(Self(connection))
    }

    /// Waits until all ranks of the node have come, at most for `wait`; returns the registration itself if they have
    /// not.
    ///
    /// # Errors
    /// [`AgentError::Refused`] if the ranks disagree, or the loader failed: all ranks are told the same reason.
    pub fn wait(self, wait: Duration) -> Result<Result<LoaderRank, Self>, AgentError> {
        match self.0.hear::<LoaderResponse>(wait)? {
            // The reason for the failure follows the end of another rank.
            None | Some((LoaderResponse::RankGone { .. }, _)) => Ok(Err(self)),
            Some((LoaderResponse::Refused(refusal), _)) => Err(AgentError::Refused(refusal)),
            Some((LoaderResponse::Registered { arena_bytes, slots, notes }, descriptors)) => {
                let Ok([arena, page, doorbell]) = <[OwnedFd; 3]>::try_from(descriptors) else {
                    return Err(AgentError::Protocol("its descriptors did not come along".into()));
                };
                LoaderRank::new(self.0, arena, arena_bytes, page, slots, Doorbell::received(doorbell), notes).map(Ok)
            }
            Some((other, _)) => Err(AgentError::Protocol(format!("{other:?}"))),
        }
    }
}

impl LoaderRank {
    fn new(
        connection: Connection,
        arena: OwnedFd,
        arena_bytes: u64,
        page: OwnedFd,
        slots: u32,
        doorbell: Doorbell,
        notes: Vec<String>,
    ) -> Result<Self, AgentError> {
        let answers = Answers::new((page, RequestRing::bytes(slots.min(SLOTS_MAX))), (arena, arena_bytes as usize))?;
        let state = ClientState {
            asked: 0,
            open: vec![false; answers.ring.slots() as usize],
            held: BTreeSet::new(),
            released: 0,
            passes: 0,
            steps: 0,
            lost: None,
            gone: Vec::new(),
            watch: AgentWatch::default(),
        };
        Ok(Self {
            state: Mutex::new(state),
            connection: Mutex::new(connection),
            answers,
            doorbell,
            notes,
            owner: getpid(),
        })
    }

    fn is_forked(&self) -> bool {
        self.owner != getpid()
    }

    fn state(&self) -> MutexGuard<'_, ClientState> {
        // A panic can't leave it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory that holds the samples. Bytes of [`SampleStatus::Ready`] may be read until [`Self::release`].
    pub fn arena(&self) -> Region<'_> {
        self.answers.arena()
    }

    /// Number of requests that can be open: [`Self::ask`] never has room for more.
    pub fn slots(&self) -> u32 {
        self.answers.ring.slots()
    }

    /// Remarks about the loader, for a person.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Requests the samples of a step, in the order of their use. Returns the sequence number of the first; the others
    /// follow. `None`, with nothing requested, if the ring has no room until requests are released and the agent has
    /// seen that, or if the agent is lost.
    pub fn ask(&self, samples: &[u32], epoch: u32, iteration: u32) -> Option<u64> {
        if self.is_forked() {
            return None;
        }
        let mut state = self.state();
        let first = state.asked;
        let end = first + samples.len() as u64;
        let is_room = state.lost.is_none() && self.answers.ring.may_put_to(end);
        if !is_room || (first..end).any(|turn| state.open[state.slot(turn)]) {
            return None;
        }
        for (turn, &sample) in (first..).zip(samples) {
            let wanted = SampleRequest { sample, epoch, iteration };
            self.answers.ring.put(turn, wanted);
            let slot = state.slot(turn);
            state.open[slot] = true;
        }
        state.asked = end;
        self.ring_if(self.answers.ring.set_asked(end));
        Some(first)
    }

    /// Returns the status of a request, without waiting. A request that is not open is for the rank itself to read.
    pub fn look(&self, turn: u64) -> SampleStatus {
        if self.is_forked() {
            return SampleStatus::ReadYourself;
        }
        self.look_in(&self.state(), turn)
    }

    /// Returns the status of several requests.
    pub fn look_all(&self, turns: impl IntoIterator<Item = u64>) -> Vec<SampleStatus> {
        if self.is_forked() {
            return turns.into_iter().map(|_| SampleStatus::ReadYourself).collect();
        }
        let state = self.state();
        turns.into_iter().map(|turn| self.look_in(&state, turn)).collect()
    }

    fn look_in(&self, state: &ClientState, turn: u64) -> SampleStatus {
        if !state.is_open(turn) {
            return SampleStatus::ReadYourself;
        }
        match self.answers.look(turn) {
            SampleStatus::Pending if state.lost.is_some() => SampleStatus::ReadYourself,
            told => told,
        }
    }

    /// Waits for the status of a request, at most for `wait`. If the agent is gone, or stands still, the rank reads by
    /// itself from then on.
    pub fn wait(&self, turn: u64, wait: Duration) -> SampleStatus {
        if self.is_forked() {
            return SampleStatus::ReadYourself;
        }
        self.answers.wait(wait, || self.look(turn), || self.look_after_agent())
    }

    /// Returns the address of this rank's shared memory, for its worker processes.
    ///
    /// # Errors
    /// The files can't be inspected.
    pub fn seat(&self) -> io::Result<Seat> {
        let [ring, arena] = self.answers.places()?;
        let agent = self.connection.lock().unwrap_or_else(PoisonError::into_inner).pid().unwrap_or(0);
        let rank = self.owner.as_raw_nonzero().get();
        Ok(Seat { rank, agent, ring, arena })
    }

    /// Returns true if the worker that was given this request, which is not released, is done with it.
    pub fn is_done(&self, turn: u64) -> bool {
        self.answers.ring.is_done(turn)
    }

    /// Returns true if the status of all these requests is known, after waiting at most for `wait` in all.
    pub fn wait_all(&self, mut turns: Range<u64>, wait: Duration) -> bool {
        let deadline = Instant::now() + wait;
        // After a wait for one request, most others are answered too.
        while let Some(turn) = self.first_pending(turns.clone()) {
            if self.wait(turn, deadline.saturating_duration_since(Instant::now())) == SampleStatus::Pending {
                return false;
            }
            turns.start = turn + 1;
        }
        true
    }

    fn first_pending(&self, mut turns: Range<u64>) -> Option<u64> {
        if self.is_forked() {
            return None;
        }
        let state = self.state();
        turns.find(|turn| self.look_in(&state, *turn) == SampleStatus::Pending)
    }

    /// Copies the bytes of requests, `row_bytes` of each, one after the other. Returns the indices, counted from 0, of
    /// requests without bytes or with another size: the rank has to read these itself.
    pub fn gather(&self, turns: Range<u64>, row_bytes: usize, rows: &mut [u8]) -> Vec<u32> {
        if self.is_forked() {
            return (0..).zip(turns).map(|(nth, _)| nth).collect();
        }
        let arena = self.arena();
        let copied = |told: SampleStatus, row: &mut [u8]| {
            let SampleStatus::Ready { offset, length } = told else {
                return false;
            };
            let found = arena.bytes(offset, u64::from(length)).filter(|bytes| bytes.len() == row.len());
            found.is_some_and(|bytes| {
                row.copy_from_slice(bytes);
                true
            })
        };
        let told = self.look_all(turns.clone());
        let rows = told.into_iter().zip(rows.chunks_exact_mut(row_bytes));
        let copied: Vec<bool> = rows.map(|(told, row)| copied(told, row)).collect();
        // Another thread may have released some of them meanwhile, and their memory may have a new owner. A request
        // that is still open was open all the time.
        let state = self.state();
        let is_right = |turn: u64, is_copied: bool| is_copied && state.is_open(turn);
        (0..)
            .zip(turns.zip(copied))
            .filter_map(|(nth, (turn, is_copied))| (!is_right(turn, is_copied)).then_some(nth))
            .collect()
    }

    /// Checks that the agent still works.
    fn look_after_agent(&self) {
        self.hear();
        let mut state = self.state();
        let stands_still = state.watch.look(&self.answers.ring);
        if state.lost.is_none() {
            state.lost = stands_still;
        }
    }

    /// Receives packets that the agent has sent besides the ring. A thread that waits for a response receives it
    /// instead.
    fn hear(&self) {
        let connection = match self.connection.try_lock() {
            Ok(connection) => connection,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        while self.state().lost.is_none() {
            match connection.hear::<LoaderResponse>(Duration::ZERO) {
                Ok(None) => return,
                Ok(Some((tell, _))) => self.state().told(tell),
                Err(error) => self.state().lost = Some(is_gone(&error)),
            }
        }
    }

    /// Ends requests whose bytes are still in use, perhaps for long: the bytes stay until [`Self::release`], and delay
    /// no other request.
    pub fn hold(&self, turns: impl IntoIterator<Item = u64>) {
        if self.is_forked() {
            return;
        }
        let mut state = self.state();
        for turn in turns {
            if state.is_open(turn) {
                let slot = state.slot(turn);
                state.open[slot] = false;
                state.held.insert(turn);
            }
        }
    }

    /// Releases requests: their bytes are no longer in use. Once for each.
    pub fn release(&self, turns: impl IntoIterator<Item = u64>) {
        // A forked child shares the ring, and must not write to it.
        if self.is_forked() {
            return;
        }
        let mut state = self.state();
        for turn in turns {
            if state.is_open(turn) {
                let slot = state.slot(turn);
                state.open[slot] = false;
            } else if !state.held.remove(&turn) {
                continue;
            }
            self.answers.ring.release(state.released, turn);
            state.released += 1;
        }
        self.ring_if(self.answers.ring.set_released(state.released));
    }

    /// Begins an epoch of the rank's order, possibly one more time. Returns the number to use in [`Self::ask`] and
    /// [`Self::begin_step`].
    pub fn begin_epoch(&self, number: u32) -> u32 {
        if self.is_forked() {
            return number;
        }
        let mut state = self.state();
        state.passes = state.passes.wrapping_add(1);
        SampleRequest::pass(number, state.passes)
    }

    /// Begins a step of an epoch.
    pub fn begin_step(&self, epoch: u32, iteration: u32) {
        if self.is_forked() {
            return;
        }
        let mut state = self.state();
        state.steps += 1;
        self.ring_if(self.answers.ring.begin_step(state.steps, epoch, iteration));
    }

    /// Reports what the rank measured of its decoding.
    pub fn set_decoding(&self, decoding: RankDecoding) {
        if !self.is_forked() {
            self.answers.ring.set_decoding(decoding);
        }
    }

    /// Number of threads with which the rank is to decode; `None` if the agent has chosen none, or is lost.
    pub fn decoders(&self) -> Option<u32> {
        if self.is_forked() || self.state().lost.is_some() {
            return None;
        }
        self.answers.ring.decoders_given()
    }

    /// Reason why the rank reads by itself; `None` as long as there is an agent.
    pub fn lost(&self) -> Option<String> {
        if self.is_forked() {
            return Some(FORKED.into());
        }
        self.hear();
        self.state().lost.clone()
    }

    /// Ranks of this loader and node that are gone, by their number in the whole job.
    pub fn gone(&self) -> Vec<u32> {
        if self.is_forked() {
            return Vec::new();
        }
        self.hear();
        self.state().gone.clone()
    }

    /// Figures of all ranks of the node, and of this one; `None` if the agent is gone.
    pub fn figures(&self) -> Option<(Figures, RankFigures)> {
        if self.is_forked() {
            return None;
        }
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let is_asked = self.state().lost.is_none() && connection.send(&LoaderRequest::Figures, &[]).is_ok();
        while is_asked && self.state().lost.is_none() {
            match connection.hear::<LoaderResponse>(LOADER_DEAD_AFTER) {
                Ok(Some((LoaderResponse::Figures { figures, of_rank }, _))) => return Some((figures, of_rank)),
                Ok(Some((tell, _))) => self.state().told(tell),
                // A late response would be taken for that to the next request.
                Ok(None) => self.state().lost = Some("the loader agent does not answer".into()),
                Err(error) => self.state().lost = Some(is_gone(&error)),
            }
        }
        None
    }

    /// Tells the agent of the other nodes of the job, and gives it a socket that listens for them. From then on the
    /// nodes share the samples of this loader. Figures say whether they do.
    ///
    /// # Errors
    /// The agent is gone, or there is no memory.
    pub fn share(&self, peers: &PeerTable, listener: BorrowedFd<'_>) -> Result<(), AgentError> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let table = peers.seal().map_err(|error| AgentError::Protocol(error.to_string()))?;
        connection.send(&LoaderRequest::Share, &[listener, table.as_fd()])
    }

    /// Tells the agent why this loader does not share its samples with the other nodes of the job.
    ///
    /// # Errors
    /// The agent is gone.
    pub fn alone(&self, why: &str) -> Result<(), AgentError> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        connection.send(&LoaderRequest::Alone { why: why.to_owned() }, &[])
    }

    fn ring_if(&self, is_asleep: bool) {
        if is_asleep {
            self.doorbell.ring();
        }
    }
}

impl ClientState {
    fn slot(&self, turn: u64) -> usize {
        (turn & (self.open.len() as u64 - 1)) as usize
    }

    /// Returns true if a request was made and not released.
    fn is_open(&self, turn: u64) -> bool {
        turn < self.asked && self.asked - turn <= self.open.len() as u64 && self.open[self.slot(turn)]
    }

    /// Takes a packet that the agent has sent besides the ring.
    fn told(&mut self, tell: LoaderResponse) {
        match tell {
            LoaderResponse::RankGone { rank } => self.gone.push(rank),
            LoaderResponse::Refused(refusal) => self.lost = Some(refusal.why),
            LoaderResponse::Registered { .. } | LoaderResponse::Figures { .. } | LoaderResponse::Status(_) => {}
        }
    }
}

fn is_gone(error: &AgentError) -> String {
    match error {
        // No answer came, so there was none to read.
        AgentError::Lost(why) => format!("the loader agent is gone: {why}"),
        error => format!("the loader agent is gone: {error}"),
    }
}
