//! The other side of the loader agent: a rank of a loader.

use std::{
    collections::BTreeSet,
    io,
    ops::Range,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
    time::{Duration, Instant},
};

use forebay_contract::{
    Board, Region,
    board::{SLOTS_MAX, Use},
};
use rustix::process::{Pid, getpid};

use super::{
    Figures, LoaderConfig, RankFigures, Told,
    answers::{Answers, Watch},
    doorbell::Doorbell,
    protocol::{Ask, Settings, Tell, VERSION, Variables},
    socket_path,
    worker::Seat,
};

use crate::{
    host::start::start_until,
    host::{
        connection::{CLOSED, Connection},
        error::AgentError,
        private_dir::private_dir,
    },
    samples::limits::LOADER_DEAD_AFTER,
};

/// How long a rank may wait until the agent's socket takes its packet.
const SEND_MAX: Duration = Duration::from_secs(10);
/// Why a process that was forked reads by itself.
const FORKED: &str = "this process was forked from the one that the agent serves";

/// Makes the loader agent's directory, and starts it with `COMMAND agent` if none stands.
///
/// # Errors
/// When the directory is refused, or no agent answers in time.
pub fn start(config: &LoaderConfig, command: &Path) -> Result<(), AgentError> {
    private_dir(&config.loaders_dir)?;
    let settings = serde_json::to_string(config).map_err(|error| AgentError::Protocol(error.to_string()))?;
    let connect = || Connection::open(&socket_path(&config.loaders_dir), SEND_MAX).ok();
    start_until(&config.loaders_dir, &settings, command, connect).map(drop)
}

/// A rank that has registered, and waits for the others of its node.
#[derive(Debug)]
pub struct Registering(Connection);

/// A rank of a loader, for as long as this lives. All of its threads may use it at once.
#[derive(Debug)]
pub struct Rank {
    state: Mutex<State>,
    /// Whoever has this locked may wait for the agent; the state is locked by nobody meanwhile, but after it.
    connection: Mutex<Connection>,
    answers: Answers,
    doorbell: Doorbell,
    notes: Vec<String>,
    /// In which alone all this is of use: what is forked shares the memory, and has a copy of locks that nobody may ever open.
    owner: Pid,
}

#[derive(Debug)]
struct State {
    /// Turns that were asked for, and whether the use of each slot is open.
    asked: u64,
    open: Vec<bool>,
    /// Turns that are over but for their bytes.
    held: BTreeSet<u64>,
    released: u64,
    passes: u32,
    steps: u64,
    /// Why the agent is not waited for any more.
    lost: Option<String>,
    /// Ranks of this node that are gone.
    gone: Vec<u32>,
    watch: Watch,
}

impl Registering {
    /// Registers a rank; `settings` as JSON. From the first rank of the node, `extents` come along ([`super::table::Table::seal`]), and where some are of objects,
    /// the `variables` that lead to those.
    ///
    /// # Errors
    /// No loader agent stands; or the settings are none.
    pub fn begin(dir: &Path, settings: &str, extents: Option<BorrowedFd<'_>>, variables: Variables) -> Result<Self, AgentError> {
        let settings: Settings = serde_json::from_str(settings).map_err(|error| AgentError::Refused {
            why: format!("the loader's settings can't be: {error}"),
        })?;
        let connection = Connection::open(&socket_path(dir), SEND_MAX)?;
        if !connection.is_of_same_files() {
            // What it opens by a path need not be what is meant here.
            return Err(AgentError::Protocol("it is in another mount namespace, or has another root".into()));
        }
        let ask = Ask::Register {
            version: VERSION,
            settings: Box::new(settings),
            variables,
        };
        connection.send(&ask, extents.as_slice())?;
        Ok(Self(connection))
    }

    /// Waits until all ranks of the node have come, no longer than this; `None` if they have not, and the rank registers on.
    ///
    /// # Errors
    /// [`AgentError::Refused`] where the ranks disagree, or the loader can't be: all are told the same.
    pub fn wait(self, wait: Duration) -> Result<Result<Rank, Self>, AgentError> {
        match self.0.hear::<Tell>(wait)? {
            // Of another rank's end it is told why this one's loader can't be.
            None | Some((Tell::RankGone { .. }, _)) => Ok(Err(self)),
            Some((Tell::Refused { why }, _)) => Err(AgentError::Refused { why }),
            Some((Tell::Registered { arena_bytes, slots, notes }, descriptors)) => {
                let Ok([arena, page, doorbell]) = <[OwnedFd; 3]>::try_from(descriptors) else {
                    return Err(AgentError::Protocol("its descriptors did not come along".into()));
                };
                Rank::new(self.0, arena, arena_bytes, page, slots, Doorbell::received(doorbell), notes).map(Ok)
            }
            Some((other, _)) => Err(AgentError::Protocol(format!("{other:?}"))),
        }
    }
}

impl Rank {
    fn new(
        connection: Connection,
        arena: OwnedFd,
        arena_bytes: u64,
        page: OwnedFd,
        slots: u32,
        doorbell: Doorbell,
        notes: Vec<String>,
    ) -> Result<Self, AgentError> {
        let answers = Answers::new((page, Board::bytes(slots.min(SLOTS_MAX))), (arena, arena_bytes as usize))?;
        let state = State {
            asked: 0,
            open: vec![false; answers.board.slots() as usize],
            held: BTreeSet::new(),
            released: 0,
            passes: 0,
            steps: 0,
            lost: None,
            gone: Vec::new(),
            watch: Watch::default(),
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

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in it can be left half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory in which samples lie. What is there may be looked at from [`Told::Ready`] to [`Self::release`].
    pub fn arena(&self) -> Region<'_> {
        self.answers.arena()
    }

    /// Uses that can be under way at once: [`Self::ask`] never has room for more.
    pub fn slots(&self) -> u32 {
        self.answers.board.slots()
    }

    /// What there is to say of the loader, for a person.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Asks for samples that a step will use, in the order of their use; the turn of the first. The others follow. `None`, and nothing is asked for, where there is
    /// no room on the board: some have to be released first, and the agent to have heard of it. Nor where it is lost.
    pub fn ask(&self, samples: &[u32], epoch: u32, iteration: u32) -> Option<u64> {
        if self.is_forked() {
            return None;
        }
        let mut state = self.state();
        let first = state.asked;
        let end = first + samples.len() as u64;
        let is_room = state.lost.is_none() && self.answers.board.may_put_to(end);
        if !is_room || (first..end).any(|turn| state.open[state.slot(turn)]) {
            return None;
        }
        for (turn, &sample) in (first..).zip(samples) {
            let wanted = Use { sample, epoch, iteration };
            self.answers.board.put(turn, wanted);
            let slot = state.slot(turn);
            state.open[slot] = true;
        }
        state.asked = end;
        self.ring_if(self.answers.board.set_asked(end));
        Some(first)
    }

    /// What has become of a use, without waiting. One that is not open is to be read by the rank itself.
    pub fn look(&self, turn: u64) -> Told {
        if self.is_forked() {
            return Told::ReadYourself;
        }
        self.look_in(&self.state(), turn)
    }

    /// The same of many, at once.
    pub fn look_all(&self, turns: impl IntoIterator<Item = u64>) -> Vec<Told> {
        if self.is_forked() {
            return turns.into_iter().map(|_| Told::ReadYourself).collect();
        }
        let state = self.state();
        turns.into_iter().map(|turn| self.look_in(&state, turn)).collect()
    }

    fn look_in(&self, state: &State, turn: u64) -> Told {
        if !state.is_open(turn) {
            return Told::ReadYourself;
        }
        match self.answers.look(turn) {
            Told::Pending if state.lost.is_some() => Told::ReadYourself,
            told => told,
        }
    }

    /// What has become of a use, waited for no longer than this. Where the agent is gone, or stands still, the rank is to read by itself from then on.
    pub fn wait(&self, turn: u64, wait: Duration) -> Told {
        if self.is_forked() {
            return Told::ReadYourself;
        }
        self.answers.wait(wait, || self.look(turn), || self.look_after_agent())
    }

    /// Where worker processes of this rank find what it looks at.
    ///
    /// # Errors
    /// The files can't be asked what they are.
    pub fn seat(&self) -> io::Result<Seat> {
        let [board, arena] = self.answers.places()?;
        let agent = self.connection.lock().unwrap_or_else(PoisonError::into_inner).pid().unwrap_or(0);
        let rank = self.owner.as_raw_nonzero().get();
        Ok(Seat { rank, agent, board, arena })
    }

    /// Whether the worker that was given this use, which is not released, is done with it.
    pub fn is_done(&self, turn: u64) -> bool {
        self.answers.board.is_done(turn)
    }

    /// Whether it is known of all these uses what has become of them, waited for no longer than this in all.
    pub fn wait_all(&self, mut turns: Range<u64>, wait: Duration) -> bool {
        let deadline = Instant::now() + wait;
        // Who has waited for one finds most of the others answered, too.
        while let Some(turn) = self.first_pending(turns.clone()) {
            if self.wait(turn, deadline.saturating_duration_since(Instant::now())) == Told::Pending {
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
        turns.find(|turn| self.look_in(&state, *turn) == Told::Pending)
    }

    /// Copies the bytes of uses, `row_bytes` of each, one after the other. Gives the places of those, counted from 0, that the rank is to read itself, for there is
    /// nothing of them, or something of another size.
    pub fn gather(&self, turns: Range<u64>, row_bytes: usize, rows: &mut [u8]) -> Vec<u32> {
        if self.is_forked() {
            return (0..).zip(turns).map(|(nth, _)| nth).collect();
        }
        let arena = self.arena();
        let copied = |told: Told, row: &mut [u8]| {
            let Told::Ready { offset, length } = told else { return false };
            let found = arena.bytes(offset, u64::from(length)).filter(|bytes| bytes.len() == row.len());
            found.is_some_and(|bytes| {
                row.copy_from_slice(bytes);
                true
            })
        };
        let told = self.look_all(turns.clone());
        let rows = told.into_iter().zip(rows.chunks_exact_mut(row_bytes));
        let copied: Vec<bool> = rows.map(|(told, row)| copied(told, row)).collect();
        // Another thread may have let some of them go meanwhile, and their memory be another's by now. What is open still was open all the time.
        let state = self.state();
        let is_right = |turn: u64, is_copied: bool| is_copied && state.is_open(turn);
        (0..)
            .zip(turns.zip(copied))
            .filter_map(|(nth, (turn, is_copied))| (!is_right(turn, is_copied)).then_some(nth))
            .collect()
    }

    /// Whether there still is an agent that works.
    fn look_after_agent(&self) {
        self.hear();
        let mut state = self.state();
        let stands_still = state.watch.look(&self.answers.board);
        if state.lost.is_none() {
            state.lost = stands_still;
        }
    }

    /// Hears what the agent has said beside the board. Where somebody waits for an answer of it, that one does.
    fn hear(&self) {
        let connection = match self.connection.try_lock() {
            Ok(connection) => connection,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        while self.state().lost.is_none() {
            match connection.hear::<Tell>(Duration::ZERO) {
                Ok(None) => return,
                Ok(Some((tell, _))) => self.state().told(tell),
                Err(error) => self.state().lost = Some(is_gone(&error)),
            }
        }
    }

    /// A use is over, but its bytes are still looked at, perhaps for long: until [`Self::release`] they stay, and hold nothing else up.
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

    /// A use is over: its bytes are looked at no more. Once for each.
    pub fn release(&self, turns: impl IntoIterator<Item = u64>) {
        // What was forked shares the board, and must not speak on it.
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
            self.answers.board.release(state.released, turn);
            state.released += 1;
        }
        self.ring_if(self.answers.board.set_released(state.released));
    }

    /// The rank begins an epoch of its order, perhaps the same once more: what [`Self::ask`] and [`Self::begin_step`] are to call it.
    pub fn begin_epoch(&self, number: u32) -> u32 {
        if self.is_forked() {
            return number;
        }
        let mut state = self.state();
        state.passes = state.passes.wrapping_add(1);
        Use::pass(number, state.passes)
    }

    /// The rank begins a step of an epoch.
    pub fn begin_step(&self, epoch: u32, iteration: u32) {
        if self.is_forked() {
            return;
        }
        let mut state = self.state();
        state.steps += 1;
        self.ring_if(self.answers.board.begin_step(state.steps, epoch, iteration));
    }

    /// The rank's threads together take so long to decode a sample.
    pub fn set_decoding(&self, took: Duration) {
        if !self.is_forked() {
            self.answers
                .board
                .set_decoding_ns(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    /// Why the rank reads by itself; `None` as long as there is an agent.
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

    /// What was done for all ranks of the node, and for this one; `None` where there is no agent any more.
    pub fn figures(&self) -> Option<(Figures, RankFigures)> {
        if self.is_forked() {
            return None;
        }
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let is_asked = self.state().lost.is_none() && connection.send(&Ask::Figures, &[]).is_ok();
        while is_asked && self.state().lost.is_none() {
            match connection.hear::<Tell>(LOADER_DEAD_AFTER) {
                Ok(Some((Tell::Figures { figures, of_rank }, _))) => return Some((figures, of_rank)),
                Ok(Some((tell, _))) => self.state().told(tell),
                // Its answer would be taken for that to the next question.
                Ok(None) => self.state().lost = Some("the loader agent does not answer".into()),
                Err(error) => self.state().lost = Some(is_gone(&error)),
            }
        }
        None
    }

    fn ring_if(&self, is_asleep: bool) {
        if is_asleep {
            self.doorbell.ring();
        }
    }
}

impl State {
    fn slot(&self, turn: u64) -> usize {
        (turn & (self.open.len() as u64 - 1)) as usize
    }

    /// Whether a turn is one that was asked for and not released.
    fn is_open(&self, turn: u64) -> bool {
        turn < self.asked && self.asked - turn <= self.open.len() as u64 && self.open[self.slot(turn)]
    }

    /// What the agent has said beside the board.
    fn told(&mut self, tell: Tell) {
        match tell {
            Tell::RankGone { rank } => self.gone.push(rank),
            Tell::Refused { why } => self.lost = Some(why),
            Tell::Registered { .. } | Tell::Figures { .. } => {}
        }
    }
}

fn is_gone(error: &AgentError) -> String {
    match error {
        // No answer came, so there was none to read.
        AgentError::Protocol(why) if why == CLOSED => format!("the loader agent is gone: {why}"),
        error => format!("the loader agent is gone: {error}"),
    }
}
