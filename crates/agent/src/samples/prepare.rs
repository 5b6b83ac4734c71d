//! Slow preparations of a loader: opening disks, whose catalogues may have millions of records, and building a policy
//! that looks ahead over epochs. They run in threads of their own: the agent's one thread has other loaders to serve.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use forebay_contract::{Extents, request_ring::SLOTS_MAX};
use forebay_objects::Stores;
use forebay_policy::{FillFirst, Space, ids::Cluster};
use forebay_store::Segments;

use super::{
    build,
    disks::{Disks, OpenedDisk},
    machine::{LoaderMachine, MachineInput},
    protocol::{Alike, DiskSetting, ThreadSettings, Variables},
    rendezvous::LocalRanks,
};

use crate::host::doorbell::Doorbell;
use crate::host::{shared::SharedFile, text};
use crate::samples::limits::{LOADER_PEER_ROOM_BYTES, LOADER_READS_MAX, LOADER_SPARE_STEPS};

/// Most steps ahead for which samples can be fetched.
const WINDOW_MAX: u32 = 1024;

/// Description of a loader's samples, from the first rank of a node.
#[derive(Debug)]
pub(crate) struct DatasetExtents {
    /// Table of extents.
    pub(crate) table: OwnedFd,
    /// Environment variables for access to the stores of objects.
    pub(crate) variables: Variables,
}

/// A loader that can begin.
pub(crate) struct PreparedLoader {
    pub(crate) machine: LoaderMachine,
    /// The list of files.
    pub(crate) table: SharedFile,
    pub(crate) disks: Vec<Arc<Segments>>,
    /// Stores of the objects in it.
    pub(crate) stores: Stores,
    /// Memory for window and residents.
    pub(crate) arena_bytes: u64,
    /// Slots of each rank's request ring.
    pub(crate) slots: u32,
    /// Most threads that read and write concurrently.
    pub(crate) threads_max: usize,
    /// Remarks about it, for a person.
    pub(crate) notes: Vec<String>,
}

/// A prepared loader; or the reason why it failed, for a person.
pub(crate) type PreparedResult = Result<PreparedLoader, String>;

/// Loaders that are being prepared.
pub(crate) struct Preparations {
    disks: Arc<Disks>,
    doorbell: Arc<Doorbell>,
    sender: Sender<(u64, PreparedResult)>,
    done: Receiver<(u64, PreparedResult)>,
}

impl Preparations {
    pub(crate) fn new(disks: Disks, doorbell: Arc<Doorbell>) -> Self {
        let (sender, done) = channel();
        Self {
            disks: Arc::new(disks),
            doorbell,
            sender,
            done,
        }
    }

    /// Prepares a loader of these ranks on this node. At the end the doorbell rings, and [`Self::done`] returns it
    /// with this number.
    pub(crate) fn begin(&self, number: u64, alike: Alike, local_ranks: LocalRanks, dataset: DatasetExtents) {
        let (disks, doorbell, sender) = (Arc::clone(&self.disks), Arc::clone(&self.doorbell), self.sender.clone());
        let work = move || {
            // It fails only if the agent has ended.
            let _ = sender.send((number, prepare(&alike, local_ranks, dataset, &disks)));
            doorbell.ring();
        };
        if let Err(error) = thread::Builder::new().name("loader-begin".into()).spawn(work) {
            let _ = self.sender.send((number, Err(format!("there is no thread to begin it: {error}"))));
            self.doorbell.ring();
        }
    }

    /// Returns a loader that is done, and its number.
    pub(crate) fn done(&self) -> Option<(u64, PreparedResult)> {
        self.done.try_recv().ok()
    }
}

fn prepare(alike: &Alike, local_ranks: LocalRanks, dataset: DatasetExtents, disks: &Disks) -> PreparedResult {
    let order = build::order(alike)?;
    let slots = slots_of(alike)?;
    let table = SharedFile::received_sealed(dataset.table).map_err(|error| format!("the list of files can't be mapped: {error}"))?;
    let listed = Extents::open(table.region()).map(|extents| extents.samples());
    if listed != Some(u64::from(alike.extents)) {
        return Err(format!(
            "the list of files is not one of {} extents, in this version's form",
            alike.extents
        ));
    }
    let arena_bytes = alike
        .room
        .window_bytes
        .checked_add(alike.room.memory_bytes)
        .ok_or("window and memory together are more than can be counted")?;
    let (segments, tiers, notes) = opened(alike, disks);
    let room_bytes = tiers.iter().fold(0, |sum: u64, tier| sum.saturating_add(tier.bytes));
    // Other nodes of the job may come later.
    let has_others = alike.deal.world > local_ranks.count;
    let arena_bytes = arena_bytes.saturating_add(if has_others { LOADER_PEER_ROOM_BYTES } else { 0 });
    let cache_bytes = alike.room.window_bytes.saturating_add(room_bytes);
    let cluster = Cluster {
        nodes: 1,
        gpus: local_ranks.count,
        cache_bytes,
        reserved_bytes: alike.room.window_bytes,
    };
    let machine = LoaderMachine::new(MachineInput {
        residency: build::residency(alike, &order, cluster, local_ranks.first)?,
        scheduler: build::scheduler(alike, cluster.gpus),
        order,
        extents: alike.extents,
        ranks: local_ranks.count as usize,
        placement: FillFirst::new(tiers),
        room_bytes,
        arena_bytes,
        window: alike.window,
        fill_bytes: if build::reads_beyond(alike) { alike.room.memory_bytes } else { 0 },
        reads_max: alike.reads_max,
        hedge_budget: alike.hedge_budget,
        thread_steps: alike.threads.steps,
        learned: build::learned(alike, local_ranks.count),
    });
    Ok(PreparedLoader {
        machine,
        table,
        disks: segments,
        stores: Stores::new(dataset.variables.0),
        arena_bytes,
        slots,
        // Reads, repeated reads, and writes.
        threads_max: 2 * alike.reads_max as usize + 2,
        notes,
    })
}

/// Returns the usable disks, memory and these as tiers, and remarks about them.
fn opened(alike: &Alike, disks: &Disks) -> (Vec<Arc<Segments>>, Vec<Space>, Vec<String>) {
    let (mut all, mut tiers, mut notes) = (Vec::new(), vec![tier(alike.room.memory_bytes)], Vec::new());
    for setting in &alike.room.disks {
        match disks.open(setting) {
            Ok(OpenedDisk { segments, bytes }) => {
                if bytes != setting.bytes {
                    notes.push(other_size(setting, bytes));
                }
                all.push(segments);
                tiers.push(tier(setting.bytes.min(bytes)));
            }
            Err(why) => notes.push(format!("nothing is kept in {}: {why}", setting.dir.display())),
        }
    }
    (all, tiers, notes)
}

fn other_size(setting: &DiskSetting, bytes: u64) -> String {
    let [holds, given] = text::bytes_apart(bytes, setting.bytes);
    let dir = setting.dir.display();
    format!("{dir}: another loader of this node has given it {holds} already, which holds, and this one {given}")
}

const fn tier(bytes: u64) -> Space {
    Space { bytes, inodes: u64::MAX }
}

fn slots_of(alike: &Alike) -> Result<u32, String> {
    let Alike {
        window,
        ahead,
        reads_max,
        hedge_budget,
        ref threads,
        ..
    } = *alike;
    let (batch, window_bytes) = (alike.deal.batch, alike.room.window_bytes);
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
    let ThreadSettings { tau, steps, .. } = threads;
    if !(0.0..1.0).contains(tau) {
        return Err(format!("thread_tau = {tau}: it is a share of a step, from 0 to below 1"));
    }
    if *steps == 0 {
        return Err("thread_steps = 0: threads are divided every step, or every few".into());
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
