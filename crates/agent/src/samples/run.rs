//! A running loader: its machine, its memory, its threads and the request rings of its ranks.

use std::{
    os::fd::{BorrowedFd, OwnedFd},
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
    thread,
};

use forebay_contract::{RequestRing, request_ring::RingReader};
use forebay_policy::peers::SampleShares;
use rustix::thread::futex;

use super::{
    Figures, RankFigures,
    arena::Arena,
    build,
    homes::Homes,
    machine::{LoaderMachine, MachineAction, MachineEvent, RankStep, ReadFrom},
    nodes::PeerNodes,
    prepare::PreparedLoader,
    protocol::Alike,
    reading::{ReaderJob, Readers, Tools},
    status::{LoaderStatus, SampleTotals},
};

use crate::host::doorbell::Doorbell;
use crate::host::{clock::boot_ns, limits::SETTLED_AFTER, log, memory::Gauge, peer_table::PeerTable, shared::SharedFile, text};
use crate::samples::limits::ALONE_CHARS_MAX;

/// Nodes that were joined, and the owners of samples among them; or the reason why they were not, for a person.
type JoinedNodes = Result<(PeerNodes, SampleShares), String>;

/// A rank's request ring, and the position up to which it was read.
#[derive(Debug)]
struct RankRing {
    // Declared before the page, whose memory it borrows.
    ring: RequestRing<'static>,
    page: SharedFile,
    hearing: RingReader,
    is_gone: bool,
}

/// A running loader.
pub(crate) struct RunningLoader {
    machine: LoaderMachine,
    rings: Vec<RankRing>,
    readers: Readers,
    /// The other nodes of the job, if they share their samples.
    peers: Option<PeerNodes>,
    /// Other nodes that will be joined.
    joining: Option<Receiver<JoinedNodes>>,
    /// Reason why no other nodes are joined, if there is one.
    alone: Option<String>,
    slots: u32,
    actions: Vec<MachineAction>,
}

impl RunningLoader {
    /// Begins a loader of ranks on their NUMA nodes, beside others that may still take `promised_bytes` of memory.
    /// Returns it with remarks.
    ///
    /// # Errors
    /// Message for a person.
    pub(crate) fn begin(
        prepared: PreparedLoader,
        homes: Homes,
        doorbell: &Arc<Doorbell>,
        promised_bytes: u64,
    ) -> Result<(Self, Vec<String>), String> {
        let PreparedLoader {
            machine,
            table,
            disks,
            stores,
            arena_bytes,
            slots,
            threads_max,
            notes,
        } = prepared;
        fits(arena_bytes, promised_bytes)?;
        homes.log();
        let arena = Arena::create(arena_bytes, homes.count())
            .map_err(|error| format!("there is no memory for {}: {error}", text::bytes(arena_bytes)))?;
        let rings = (0..homes.ranks())
            .map(|_| RankRing::create(slots))
            .collect::<Result<Vec<_>, String>>()?;
        let tools = Tools {
            table,
            arena: Arc::new(arena),
            disks,
            stores,
            doorbell: Arc::clone(doorbell),
            settled_after: SETTLED_AFTER,
        };
        let run = Self {
            machine,
            rings,
            readers: Readers::new(tools, homes, threads_max),
            peers: None,
            joining: None,
            alone: None,
            slots,
            actions: Vec::new(),
        };
        Ok((run, notes))
    }

    /// Descriptors for a rank: the arena, and its request ring.
    pub(crate) fn descriptors(&self, local_rank: usize) -> [BorrowedFd<'_>; 2] {
        [self.readers.tools().arena.descriptor(), self.rings[local_rank].page.descriptor()]
    }

    pub(crate) fn arena_bytes(&self) -> u64 {
        self.readers.tools().arena.length()
    }

    /// Bytes of memory that it may still take.
    pub(crate) fn promised_bytes(&self) -> u64 {
        self.readers.tools().arena.unbacked_bytes()
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

    /// Notes why the other nodes of the job are not joined.
    pub(crate) fn set_alone(&mut self, why: &str) {
        self.alone = Some(why.chars().take(ALONE_CHARS_MAX).collect());
    }

    /// Logs and notes why the other nodes of the job are not joined.
    pub(crate) fn stay_alone(&mut self, why: &str) {
        log::fallback(&format!("samples are not shared with other nodes: {why}"));
        self.set_alone(why);
    }

    /// Returns the totals since the beginning.
    pub(crate) fn totals(&self) -> SampleTotals {
        SampleTotals {
            figures: self.figures(),
            peers: self.peers.as_ref().map(PeerNodes::totals).unwrap_or_default(),
        }
    }

    /// Returns the status of the loader of this name.
    pub(crate) fn status(&self, name: &str) -> LoaderStatus {
        LoaderStatus {
            name: name.to_owned(),
            ranks: self.rings.iter().filter(|rank| !rank.is_gone).count() as u32,
            arena_bytes: self.arena_bytes(),
            totals: self.totals(),
            alone: self.alone.clone(),
            nodes: self.peers.as_ref().map(PeerNodes::nodes).unwrap_or_default(),
        }
    }

    /// Joins the other nodes of the job, in a thread of its own: to compute which samples are whose may take seconds.
    pub(crate) fn share(&mut self, alike: Alike, table: PeerTable, listener: OwnedFd, doorbell: &Arc<Doorbell>) {
        if self.peers.is_some() || self.joining.is_some() {
            return;
        }
        let (sender, receiver) = channel();
        let (ranks, bell) = (self.rings.len() as u32, Arc::clone(doorbell));
        let join = move || {
            let nodes = PeerNodes::start(&table, listener, &alike, &bell);
            let joined = nodes.and_then(|nodes| Ok((nodes, build::shares(&alike, ranks, &table)?)));
            // It fails only if the loader has ended.
            let _ = sender.send(joined);
            bell.ring();
        };
        self.joining = Some(receiver);
        if let Err(error) = thread::Builder::new().name("loader-join".into()).spawn(join) {
            self.stay_alone(&error.to_string());
        }
    }

    /// Begins to share samples with nodes that were joined.
    fn take_joined(&mut self) {
        let Some(joined) = self.joining.as_ref().and_then(|joining| joining.try_recv().ok()) else {
            return;
        };
        self.joining = None;
        match joined {
            Ok((nodes, shares)) => {
                tracing::info!("sharing samples with {} other nodes, {}", shares.others(), nodes.here());
                self.alone = None;
                self.machine.share(shares);
                self.peers = Some(nodes);
            }
            Err(why) => self.stay_alone(&why),
        }
    }

    /// Removes a rank.
    pub(crate) fn gone(&mut self, local_rank: usize, now_s: f64) {
        self.rings[local_rank].is_gone = true;
        self.machine.take(MachineEvent::Gone { rank: local_rank }, now_s, &mut self.actions);
    }

    /// Tells ranks that they have to ring from now on, or need not.
    pub(crate) fn set_sleeping(&self, is_sleeping: bool) {
        self.rings.iter().for_each(|rank| rank.ring.set_sleeping(is_sleeping));
    }

    /// Returns true if a rank has written something that was not read yet.
    pub(crate) fn has_news(&self) -> bool {
        self.rings.iter().any(RankRing::has_news)
    }

    /// Takes requests of ranks and events of threads, and carries out the actions. Returns the time at which to call
    /// again, if nothing comes before.
    pub(crate) fn turn(&mut self, now_s: f64) -> Option<f64> {
        let mut events = self.readers.done();
        for (rank, ring) in self.rings.iter_mut().enumerate() {
            ring.ring.set_alive(boot_ns());
            ring.collect(rank, &mut events);
        }
        self.take_joined();
        if let Some(peers) = &mut self.peers {
            peers.collect(&mut events);
        }
        self.machine.expect(&events);
        for event in events {
            self.machine.take(event, now_s, &mut self.actions);
        }
        self.machine.go_on(now_s, &mut self.actions);
        self.carry_out();
        self.machine.next_s()
    }

    fn carry_out(&mut self) {
        let mut answered = vec![false; self.rings.len()];
        let arena = &self.readers.tools().arena;
        for action in self.actions.drain(..) {
            match action {
                MachineAction::Read {
                    flight,
                    sample,
                    from: from @ ReadFrom::Peer { .. },
                    ..
                } => {
                    if let Some(peers) = &mut self.peers {
                        peers.ask(arena, (flight, sample), from);
                    }
                }
                MachineAction::Serve { ticket, place } => {
                    if let Some(peers) = &mut self.peers {
                        peers.serve(arena, ticket, place);
                    }
                }
                MachineAction::Decline { ticket } => {
                    if let Some(peers) = &mut self.peers {
                        peers.decline(ticket);
                    }
                }
                MachineAction::Read {
                    flight,
                    sample,
                    from,
                    rank,
                } => self.readers.submit(ReaderJob::Read {
                    flight,
                    sample,
                    from,
                    rank,
                }),
                MachineAction::Write {
                    sample,
                    disk,
                    place,
                    version,
                } => self.readers.submit(ReaderJob::Write {
                    sample,
                    disk,
                    place,
                    version,
                }),
                MachineAction::Free { place } => self.readers.tools().arena.give(place),
                MachineAction::Release { sample, disk } => self.readers.tools().release(sample, disk),
                MachineAction::GiveDecoders { rank, threads } => self.rings[rank].ring.give_decoders(threads),
                MachineAction::Answer { rank, turn, answer } => {
                    self.rings[rank].ring.set_answer(turn, answer);
                    answered[rank] = true;
                }
            }
        }
        if let Some(peers) = &mut self.peers {
            peers.send();
        }
        for (rank, _) in self.rings.iter().zip(answered).filter(|(_, answered)| *answered) {
            if rank.ring.answered() {
                let _ = futex::wake(rank.ring.answers(), futex::Flags::empty(), i32::MAX as u32);
            }
        }
    }
}

impl Drop for RunningLoader {
    fn drop(&mut self) {
        if let Some(peers) = self.peers.take() {
            peers.end();
        }
        // Copies on disks stay there, for the next job.
        self.readers.let_go(self.machine.on_disks());
    }
}

impl RankRing {
    fn create(slots: u32) -> Result<Self, String> {
        let page = SharedFile::anonymous("forebay-ring", RequestRing::bytes(slots))
            .map_err(|error| format!("there is no memory for a ring: {error}"))?;
        let ring =
            RequestRing::create(page.region_beside(), slots).ok_or("the request ring would be too large: reduce the number of requests")?;
        ring.set_alive(boot_ns());
        Ok(Self {
            ring,
            page,
            hearing: RingReader::default(),
            is_gone: false,
        })
    }

    fn has_news(&self) -> bool {
        !self.is_gone && self.hearing.has_news(&self.ring)
    }

    /// Collects the requests of a rank since the last call. A rank that writes invalid ones is removed.
    fn collect(&mut self, rank: usize, events: &mut Vec<MachineEvent>) {
        if self.is_gone {
            return;
        }
        let asked = self.ring.asked();
        let Some(news) = self.hearing.look(&self.ring, asked) else {
            self.is_gone = true;
            events.push(MachineEvent::Gone { rank });
            return;
        };
        // Requests first: some of them may be released already.
        events.extend(news.asked.map(|turn| MachineEvent::Asked {
            rank,
            wanted: self.ring.wanted(turn),
        }));
        events.extend(news.released.map(|nth| MachineEvent::Released {
            rank,
            turn: self.ring.released_sequence(nth),
        }));
        if let Some((steps, epoch, iteration)) = news.step {
            let decoding = self.ring.decoding();
            events.push(MachineEvent::Decodes { rank, decoding });
            let step = RankStep { steps, epoch, iteration };
            events.push(MachineEvent::Stepped { rank, step });
        }
        self.hearing.heard(&self.ring);
    }
}

/// Checks that there is enough memory beside the promised bytes: the kernel would kill processes otherwise.
fn fits(arena_bytes: u64, promised_bytes: u64) -> Result<(), String> {
    let found = Gauge::find().look();
    let free_bytes = found.memory.free_bytes.saturating_sub(promised_bytes);
    if arena_bytes > free_bytes {
        let others = if promised_bytes > 0 { "beside other loaders " } else { "" };
        let [taken, free] = text::bytes_apart(arena_bytes, free_bytes);
        return Err(format!(
            "cache: with samples under way its memory takes {taken}, and of {} {others}{free} are free; give a smaller ram=, or end what takes the rest",
            found.what
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_promised_once() {
        assert!(fits(1, 0).is_ok());
        let refused = fits(1, u64::MAX).unwrap_err();
        assert!(
            refused.contains("takes 1 B, and of ") && refused.contains("beside other loaders 0 B are free; give a smaller ram="),
            "{refused}"
        );
    }
}
