//! A loader that has begun: its machine, its memory, its threads and the boards of its ranks.

use std::{
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
};

use forebay_contract::{
    Board, Extents,
    board::{Hearing, SLOTS_MAX},
};
use forebay_policy::{FillFirst, TierSpec, ids::Cluster};
use rustix::thread::futex;

use super::{
    Figures, RankFigures,
    arena::Arena,
    cast,
    disks::{Opened, Outcome},
    doorbell::Doorbell,
    machine::{Action, Core, Event, Parts, Step},
    protocol::{Alike, DiskSetting},
    reading::{Job, Readers, Tools},
};
use crate::{
    clock::boot_ns,
    limits::{LOADER_READS_MAX, LOADER_SPARE_STEPS, SETTLED_AFTER},
    memory::Gauge,
    shared::SharedFile,
};

/// Steps ahead that samples can be fetched.
const WINDOW_MAX: u32 = 1024;

/// A rank's board, and how far it was read.
#[derive(Debug)]
struct RankBoard {
    // Before the page, in whose memory it lies.
    board: Board<'static>,
    page: SharedFile,
    hearing: Hearing,
    is_gone: bool,
}

/// A loader that has begun.
pub(crate) struct Run {
    machine: Core,
    boards: Vec<RankBoard>,
    readers: Readers,
    slots: u32,
    actions: Vec<Action>,
}

impl Run {
    /// Begins a loader; what there is to say of it.
    ///
    /// # Errors
    /// Why it can't be, in words for a person.
    pub(crate) fn begin(
        alike: &Alike,
        local_ranks: usize,
        table: OwnedFd,
        doorbell: &Arc<Doorbell>,
        opened: Vec<Outcome>,
    ) -> Result<(Self, Vec<String>), String> {
        let order = cast::order(alike)?;
        let slots = slots_of(alike)?;
        let table = SharedFile::received_sealed(table).map_err(|error| format!("the list of files can't be mapped: {error}"))?;
        let listed = Extents::open(table.region()).map(|extents| extents.samples());
        if listed != Some(u64::from(alike.extents)) {
            return Err(format!(
                "the list of files is not one of {} extents, in this version's form",
                alike.extents
            ));
        }
        let (mut disks, mut tiers, mut notes) = (Vec::new(), vec![tier(alike.memory_bytes)], Vec::new());
        for (setting, opened) in alike.disks.iter().zip(opened) {
            match opened {
                Ok(Opened { segments, bytes }) => {
                    if bytes != setting.bytes {
                        notes.push(other_size(setting, bytes));
                    }
                    disks.push(segments);
                    tiers.push(tier(setting.bytes.min(bytes)));
                }
                Err(why) => notes.push(format!("nothing is kept in {}: {why}", setting.dir.display())),
            }
        }
        let arena_bytes = alike
            .window_bytes
            .checked_add(alike.memory_bytes)
            .ok_or("window and memory together are more than can be counted")?;
        let cache_bytes = tiers
            .iter()
            .fold(alike.window_bytes, |sum, tier| sum.saturating_add(tier.quota_bytes));
        let cluster = Cluster {
            nodes: 1,
            gpus: local_ranks as u32,
            cache_bytes,
        };
        fits(arena_bytes)?;
        let arena = Arena::create(arena_bytes).map_err(|error| format!("there is no memory for {arena_bytes} bytes: {error}"))?;
        let boards = (0..local_ranks)
            .map(|_| RankBoard::create(slots))
            .collect::<Result<Vec<_>, String>>()?;
        let machine = Core::new(Parts {
            residency: cast::residency(alike, &order, cluster)?,
            scheduler: cast::scheduler(alike, cluster.gpus),
            order,
            extents: alike.extents,
            ranks: local_ranks,
            placement: FillFirst::new(tiers),
            arena_bytes,
            window: alike.window,
            fill_bytes: if cast::reads_beyond(alike) { alike.memory_bytes } else { 0 },
            reads_max: alike.reads_max,
            hedge_budget: alike.hedge_budget,
        });
        let tools = Tools {
            table,
            arena: Arc::new(arena),
            disks,
            doorbell: Arc::clone(doorbell),
            settled_after: SETTLED_AFTER,
        };
        let run = Self {
            machine,
            boards,
            // Reads, those that are made again, and writes.
            readers: Readers::new(tools, 2 * alike.reads_max as usize + 2),
            slots,
            actions: Vec::new(),
        };
        Ok((run, notes))
    }

    /// What a rank is sent: arena, its board.
    pub(crate) fn descriptors(&self, local_rank: usize) -> [BorrowedFd<'_>; 2] {
        [self.readers.tools().arena.descriptor(), self.boards[local_rank].page.descriptor()]
    }

    pub(crate) fn arena_bytes(&self) -> u64 {
        self.readers.tools().arena.length()
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    pub(crate) fn figures(&self) -> Figures {
        self.machine.figures()
    }

    pub(crate) fn rank_figures(&self, local_rank: usize) -> RankFigures {
        self.machine.rank_figures(local_rank)
    }

    /// A rank is gone.
    pub(crate) fn gone(&mut self, local_rank: usize, now_s: f64) {
        self.boards[local_rank].is_gone = true;
        self.machine.take(Event::Gone { rank: local_rank }, now_s, &mut self.actions);
    }

    /// Ranks are to ring from now on, or need not.
    pub(crate) fn set_sleeping(&self, is_sleeping: bool) {
        self.boards.iter().for_each(|rank| rank.board.set_sleeping(is_sleeping));
    }

    /// Whether a rank has written something that was not read yet.
    pub(crate) fn has_news(&self) -> bool {
        self.boards.iter().any(RankBoard::has_news)
    }

    /// Takes what has come from ranks and threads, and does what follows. Gives when to come again, if nothing comes before.
    pub(crate) fn turn(&mut self, now_s: f64) -> Option<f64> {
        let mut events = self.readers.done();
        for (rank, board) in self.boards.iter_mut().enumerate() {
            board.board.set_alive(boot_ns());
            board.collect(rank, &mut events);
        }
        for event in events {
            self.machine.take(event, now_s, &mut self.actions);
        }
        self.machine.go_on(now_s, &mut self.actions);
        self.carry_out();
        self.machine.next_s()
    }

    fn carry_out(&mut self) {
        let mut answered = vec![false; self.boards.len()];
        for action in self.actions.drain(..) {
            match action {
                Action::Read { flight, sample, from } => self.readers.submit(Job::Read { flight, sample, from }),
                Action::Write {
                    sample,
                    disk,
                    place,
                    version,
                } => self.readers.submit(Job::Write {
                    sample,
                    disk,
                    place,
                    version,
                }),
                Action::Free { place } => self.readers.tools().arena.give(place),
                Action::Release { sample, disk } => self.readers.tools().release(sample, disk),
                Action::Answer { rank, turn, answer } => {
                    self.boards[rank].board.set_answer(turn, answer);
                    answered[rank] = true;
                }
            }
        }
        for (rank, _) in self.boards.iter().zip(answered).filter(|(_, answered)| *answered) {
            if rank.board.answered() {
                let _ = futex::wake(rank.board.answers(), futex::Flags::empty(), i32::MAX as u32);
            }
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // What lies on disks stays there, for the next job.
        for (sample, disk) in self.machine.on_disks() {
            self.readers.tools().release(sample, disk);
        }
    }
}

impl RankBoard {
    fn create(slots: u32) -> Result<Self, String> {
        let page = SharedFile::anonymous("forebay-board", Board::bytes(slots))
            .map_err(|error| format!("there is no memory for a board: {error}"))?;
        let board = Board::create(page.region_beside(), slots).ok_or("a board can't be so large")?;
        board.set_alive(boot_ns());
        Ok(Self {
            board,
            page,
            hearing: Hearing::default(),
            is_gone: false,
        })
    }

    fn has_news(&self) -> bool {
        !self.is_gone && self.hearing.has_news(&self.board)
    }

    /// What the rank has written since the last look. A rank that writes what can't be is none any more.
    fn collect(&mut self, rank: usize, events: &mut Vec<Event>) {
        if self.is_gone {
            return;
        }
        let asked = self.board.asked();
        let Some(news) = self.hearing.look(&self.board, asked) else {
            self.is_gone = true;
            events.push(Event::Gone { rank });
            return;
        };
        // First what was asked for: some of it may be over already.
        events.extend(news.asked.map(|turn| Event::Asked {
            rank,
            wanted: self.board.wanted(turn),
        }));
        events.extend(news.released.map(|nth| Event::Released {
            rank,
            turn: self.board.released_turn(nth),
        }));
        if let Some((steps, epoch, iteration)) = news.step {
            let ns = self.board.decoding_ns();
            events.push(Event::Decodes { rank, ns });
            let step = Step { steps, epoch, iteration };
            events.push(Event::Stepped { rank, step });
        }
        self.hearing.heard(&self.board);
    }
}

/// Whether there is so much memory now: the kernel ends processes where there is not.
fn fits(arena_bytes: u64) -> Result<(), String> {
    let found = Gauge::find().look();
    if arena_bytes > found.memory.free_bytes {
        return Err(format!(
            "window and memory of the loader are {arena_bytes} bytes, and of {} {} are free; give less",
            found.what, found.memory.free_bytes
        ));
    }
    Ok(())
}

fn other_size(setting: &DiskSetting, bytes: u64) -> String {
    let (dir, given) = (setting.dir.display(), setting.bytes);
    format!("{dir}: another loader of this node has given it {bytes} bytes already, which holds, and this one {given}")
}

const fn tier(bytes: u64) -> TierSpec {
    TierSpec {
        quota_bytes: bytes,
        quota_inodes: u64::MAX,
    }
}

fn slots_of(alike: &Alike) -> Result<u32, String> {
    let Alike {
        window,
        ahead,
        window_bytes,
        reads_max,
        hedge_budget,
        batch,
        ..
    } = *alike;
    if window == 0 || window > WINDOW_MAX {
        return Err(format!("window = {window}: samples are fetched 1 to {WINDOW_MAX} steps ahead"));
    }
    if window_bytes == 0 {
        return Err("window_bytes = 0: samples need memory to pass through; give some batches' bytes".into());
    }
    if reads_max == 0 || reads_max > LOADER_READS_MAX {
        return Err(format!("reads_max = {reads_max}: there are 1 to {LOADER_READS_MAX} reads at once"));
    }
    if !(0.0..=1.0).contains(&hedge_budget) {
        return Err(format!("hedge_budget = {hedge_budget}: it is a share, from 0 to 1"));
    }
    let steps = window.max(ahead);
    let uses = (u64::from(steps) + LOADER_SPARE_STEPS) * u64::from(batch);
    let slots = u32::try_from(uses.next_power_of_two()).ok().filter(|slots| *slots <= SLOTS_MAX);
    slots.ok_or_else(|| {
        format!(
            "{steps} steps ahead with batches of {batch} is {uses} samples, and at most {SLOTS_MAX} can be under way; look less far ahead"
        )
    })
}
