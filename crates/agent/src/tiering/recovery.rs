//! Reads the copies of earlier runs from a tier's catalogue and sends them to the event loop, one directory at a time.
//! Directories that programs ask for come first, the others within a budget so small that no program notices. Copies
//! from an earlier boot are verified first. In the end the thread removes the files that no record leads to.

use std::{
    collections::VecDeque,
    path::Path,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use forebay_contract::{Attributes, Identity};
use forebay_store::{CatalogueCopy, CatalogueItem, Recovery, StoreError, Tier, limits::READ_PIECE_BYTES};

use crate::{
    host::{
        clock::thread_cpu,
        error::{AgentError, io_error},
        shared::set_thread_nice,
    },
    tiering::{
        limits::{
            COPY_NICE, REAP_MAX, RECOVERY_BATCH_COPIES, RECOVERY_BYTES_PER_S, RECOVERY_SHARE, RECOVERY_SMALL_COPIES,
            RECOVERY_SMALL_VERIFIED_BYTES,
        },
        mounts::MountSource,
    },
};

/// A copy of an earlier run.
#[derive(Debug)]
pub(crate) struct RecoveredCopy {
    pub(crate) copy: u64,
    pub(crate) dir: Arc<[u8]>,
    pub(crate) name: Vec<u8>,
    pub(crate) mount: Arc<MountSource>,
    pub(crate) identity: Identity,
    pub(crate) attributes: Attributes,
    pub(crate) object: Identity,
    /// XXH3-128 of the copy.
    pub(crate) checksum: u128,
    pub(crate) last_used_unix_s: i64,
    /// True if its bytes differ from those that were written.
    pub(crate) damaged: bool,
    /// True if it counts against the quota already.
    pub(crate) counted: bool,
}

/// Another name of a copy that was sent before.
#[derive(Debug)]
pub(crate) struct RecoveredName {
    pub(crate) copy: u64,
    /// Inode of the source file.
    pub(crate) ino: u64,
    pub(crate) dir: Arc<[u8]>,
    pub(crate) name: Vec<u8>,
}

/// Stage of a tier's recovery.
#[derive(Debug)]
pub(crate) enum RecoveryStage {
    /// The catalogue has been read, and its copies will follow.
    Catalogued {
        copies: u64,
        bytes: u64,
        directories: Vec<Arc<[u8]>>,
    },
    /// All copies that could be read have been sent.
    Told,
    /// Leftovers have been removed. Has a report for the log, and the copies whose file is missing.
    Ended { report: String, missing: Vec<u64> },
}

/// Recovered copies and names that are sent together.
#[derive(Debug)]
pub(crate) struct RecoveryBatch {
    pub(crate) tier: usize,
    pub(crate) found: Vec<RecoveredCopy>,
    pub(crate) aliases: Vec<RecoveredName>,
    /// Directories whose copies have all been sent.
    pub(crate) brought: Vec<Arc<[u8]>>,
    /// Stage that this batch completes.
    pub(crate) stage: Option<RecoveryStage>,
    /// Channel for the processor time that the event loop spent on the batch.
    pub(crate) taken: Sender<Duration>,
}

/// Requests of the event loop to the recovery of a tier.
#[derive(Debug, Default)]
pub(crate) struct RecoveryDemand {
    state: Mutex<DemandState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct DemandState {
    directories: VecDeque<Arc<[u8]>>,
    /// True if recovery may use any time, since no program runs or all wait for it.
    hurried: bool,
}

impl RecoveryDemand {
    fn state(&self) -> MutexGuard<'_, DemandState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a directory, since a program has opened a file in it.
    pub(crate) fn want(&self, directory: Arc<[u8]>) {
        self.state().directories.push_back(directory);
        self.changed.notify_all();
    }

    /// Lifts the budget, or restores it.
    pub(crate) fn set_hurried(&self, hurried: bool) {
        self.state().hurried = hurried;
        self.changed.notify_all();
    }

    fn next(&self) -> Option<Arc<[u8]>> {
        self.state().directories.pop_front()
    }

    /// Sleeps for `pause`, or until a directory is requested or the budget is lifted.
    fn rest(&self, pause: Duration) {
        let is_idle = |wanted: &mut DemandState| wanted.directories.is_empty() && !wanted.hurried;
        // If a thread has panicked while it held the lock, which would be a bug, there is no pause.
        drop(self.changed.wait_timeout_while(self.state(), pause, is_idle));
    }
}

/// Starts the recovery of a tier, which passes its batches to `deliver`.
pub(crate) fn start(
    number: usize,
    tier: Arc<Tier>,
    demand: Arc<RecoveryDemand>,
    deliver: impl Fn(RecoveryBatch) + Send + 'static,
) -> Result<(), AgentError> {
    let run = move || {
        set_thread_nice(COPY_NICE);
        let is_small = tier.expected_copies() <= RECOVERY_SMALL_COPIES;
        CatalogueRecovery::new(number, &tier, &deliver, &demand, is_small).run();
    };
    thread::Builder::new()
        .name("recovery".into())
        .spawn(run)
        .map(drop)
        .map_err(io_error("start a thread", Path::new("recovery")))
}

struct CatalogueRecovery<'a> {
    number: usize,
    tier: &'a Tier,
    deliver: &'a dyn Fn(RecoveryBatch),
    demand: &'a RecoveryDemand,
    /// True for so few copies that they are sent without rests.
    is_small: bool,
    /// Bytes of copies of earlier boots that were verified.
    verified_bytes: u64,
    /// True while a requested directory is sent.
    is_wanted: bool,
    /// Processor time of this thread at its last rest.
    begun: Duration,
    /// Processor time of the event loop for batches since the last rest.
    event_loop: Duration,
    found: Vec<RecoveredCopy>,
    aliases: Vec<RecoveredName>,
    brought: Vec<Arc<[u8]>>,
    /// Answer to the last batch, while the event loop has not taken it.
    untaken: Option<Receiver<Duration>>,
    mount: Option<Arc<MountSource>>,
}

impl<'a> CatalogueRecovery<'a> {
    fn new(number: usize, tier: &'a Tier, deliver: &'a dyn Fn(RecoveryBatch), demand: &'a RecoveryDemand, is_small: bool) -> Self {
        Self {
            number,
            tier,
            deliver,
            demand,
            is_small,
            verified_bytes: 0,
            is_wanted: false,
            begun: thread_cpu(),
            event_loop: Duration::ZERO,
            found: Vec::new(),
            aliases: Vec::new(),
            brought: Vec::new(),
            untaken: None,
            mount: None,
        }
    }

    fn run(mut self) {
        let ended = self.recover();
        self.send(Some(ended));
    }

    /// Sends all copies and removes leftovers. Returns the last stage.
    fn recover(&mut self) -> RecoveryStage {
        let ended = |report: String| RecoveryStage::Ended {
            report,
            missing: Vec::new(),
        };
        let begun = Instant::now();
        let mut adoption = match self.tier.begin_recovery(&mut || self.rest(READ_PIECE_BYTES as u64)) {
            Ok(adoption) => adoption,
            Err(error) => return ended(format!("stopped: {error}")),
        };
        let report = adoption.report();
        let directories = adoption.directories();
        self.send(Some(RecoveryStage::Catalogued {
            copies: report.copies,
            bytes: report.bytes,
            directories: directories.iter().map(|(_, path)| Arc::clone(path)).collect(),
        }));
        let told = self.tell_all(&mut adoption, directories);
        self.send(Some(RecoveryStage::Told));
        if let Err(error) = told {
            // Copies that were not sent must not be removed as leftovers.
            return ended(format!("stopped: {error}"));
        }
        let known = adoption.into_known();
        let told_after = begun.elapsed();
        match self.tier.reap(&known, REAP_MAX, &mut || self.rest(0)) {
            Ok(mut reaped) => {
                let missing = std::mem::take(&mut reaped.missing);
                RecoveryStage::Ended {
                    report: format!("{report:?} after {told_after:.1?}, {reaped:?}, {} files not there", missing.len()),
                    missing,
                }
            }
            Err(error) => ended(format!("{report:?}, leftovers stay: {error}")),
        }
    }

    /// Sends all directories, requested ones first.
    fn tell_all(&mut self, adoption: &mut Recovery, directories: Vec<(u32, Arc<[u8]>)>) -> Result<(), StoreError> {
        let mut others = directories.into_iter();
        loop {
            let wanted = self.demand.next();
            self.is_wanted = wanted.is_some();
            let next = match wanted {
                Some(path) => adoption.directory(&path).map(|number| (number, path)),
                None => match others.next() {
                    None => return Ok(()),
                    other => other,
                },
            };
            let Some((number, path)) = next else { continue };
            adoption.tell(number, &mut |adopted| self.take(adopted))?;
            self.brought.push(path);
            if self.is_wanted || self.brought.len() >= RECOVERY_BATCH_COPIES {
                self.send(None);
            }
        }
    }

    fn take(&mut self, adopted: CatalogueItem<'_>) {
        if self.found.len() + self.aliases.len() >= RECOVERY_BATCH_COPIES {
            self.send(None);
        }
        match adopted {
            CatalogueItem::Copy(copy) => {
                let found = self.found_of(copy);
                self.found.push(found);
            }
            CatalogueItem::Alias(alias) => self.aliases.push(RecoveredName {
                copy: alias.id,
                ino: alias.ino,
                dir: Arc::clone(alias.dir),
                name: alias.name.to_vec(),
            }),
        }
    }

    fn found_of(&mut self, copy: &CatalogueCopy<'_>) -> RecoveredCopy {
        let mount = match &self.mount {
            Some(mount) if mount.is(&copy.mount) => Arc::clone(mount),
            _ => Arc::clone(self.mount.insert(Arc::new(MountSource::of(&copy.mount)))),
        };
        let damaged = !copy.trusted && self.tier.verify(copy.id, copy.checksum, &copy.object).is_err();
        if !copy.trusted {
            self.verified_bytes += copy.identity.size;
            self.rest(copy.identity.size);
        }
        RecoveredCopy {
            copy: copy.id,
            dir: Arc::clone(copy.dir),
            name: copy.name.to_vec(),
            mount,
            identity: copy.identity,
            attributes: copy.attributes,
            object: copy.object,
            checksum: copy.checksum,
            last_used_unix_s: copy.last_used_unix_s,
            damaged,
            counted: false,
        }
    }

    /// Sends a batch once the event loop has taken the one before, so that a million records do not wait in memory.
    fn send(&mut self, stage: Option<RecoveryStage>) {
        if let Some(untaken) = self.untaken.take() {
            // An error means that the event loop has ended, and the process is about to.
            self.event_loop += untaken.recv().unwrap_or_default();
        }
        self.rest(0);
        let (taken, untaken) = channel();
        let batch = RecoveryBatch {
            tier: self.number,
            found: std::mem::take(&mut self.found),
            aliases: std::mem::take(&mut self.aliases),
            brought: std::mem::take(&mut self.brought),
            stage,
            taken,
        };
        self.untaken = Some(untaken);
        (self.deliver)(batch);
    }

    /// Rests as long as the budget demands: for the processor time since the last rest, with the event loop's, and for
    /// the `read` bytes of the disk.
    fn rest(&mut self, read: u64) {
        let used = thread_cpu().saturating_sub(self.begun) + self.event_loop;
        let is_little = self.is_small && self.verified_bytes <= RECOVERY_SMALL_VERIFIED_BYTES;
        if !is_little && !self.is_wanted {
            let for_cpu = used.div_f64(RECOVERY_SHARE).saturating_sub(used);
            let for_disk = Duration::from_micros(read.saturating_mul(1_000_000) / RECOVERY_BYTES_PER_S);
            self.demand.rest(for_cpu.max(for_disk));
        }
        self.begun = thread_cpu();
        self.event_loop = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use forebay_policy::Space;
    use forebay_store::{BootId, CatalogueEntry, Secret, SourceMount, StatFrom, disk::MemoryDisk, testing::MemorySource};

    use super::*;

    const DIRECTORIES: u64 = 4;
    const COPIES: u64 = 4000;

    fn open(disk: &Arc<MemoryDisk>) -> Tier {
        let quota = Space {
            bytes: 1 << 30,
            inodes: 1 << 20,
        };
        Tier::open_on(disk.clone(), "/tier".into(), quota, &Secret::from_bytes([7; 32]), BootId([1; 16])).expect("it opens")
    }

    fn directory(number: u64) -> Arc<[u8]> {
        format!("/source/{number}").into_bytes().into()
    }

    /// Returns a tier with the records of several directories mixed in its catalogue.
    fn warm_tier() -> Tier {
        let disk = Arc::new(MemoryDisk::new(64 << 20, 10_000));
        let tier = open(&disk);
        for number in 0..COPIES {
            let source = MemorySource::new(number + 1, b"bytes");
            let id = tier.next_id();
            let mut writer = tier.begin(id, &source.identity()).expect("begun");
            writer.advance(&source, u64::MAX, &mut [0; 8]).expect("copied");
            let finished = writer.finish(&source, StatFrom::Kernel).expect("finished");
            let name = number.to_string();
            let entry = CatalogueEntry {
                id,
                dir: &directory(number % DIRECTORIES),
                name: name.as_bytes(),
                mount: SourceMount {
                    source: b"server",
                    fs_type: b"nfs4",
                },
                identity: source.identity(),
                attributes: Attributes::default(),
                object: finished.object,
                checksum: finished.checksum,
                created_unix_s: 1,
            };
            tier.publish(&entry).expect("published");
        }
        drop(tier);
        open(&disk)
    }

    #[derive(Debug, Default)]
    struct RecoveredTier {
        brought: Vec<Arc<[u8]>>,
        copies: u64,
        batches: u32,
    }

    /// Recovers a tier within the budget while the event loop spends `event_loop` on each batch.
    fn recover(tier: &Tier, demand: &RecoveryDemand, event_loop: Duration) -> RecoveredTier {
        let (batches, received) = channel::<RecoveryBatch>();
        thread::scope(|scope| {
            scope.spawn(|| {
                let deliver = move |batch| drop(batches.send(batch));
                CatalogueRecovery::new(0, tier, &deliver, demand, false).run();
            });
            let mut came = RecoveredTier::default();
            while let Ok(batch) = received.recv() {
                came.batches += 1;
                came.copies += batch.found.len() as u64;
                came.brought.extend(batch.brought);
                let _ = batch.taken.send(event_loop);
            }
            came
        })
    }

    #[test]
    fn what_a_program_asks_for_comes_first_and_everything_comes_once() {
        let tier = warm_tier();
        let demand = RecoveryDemand::default();
        demand.want(directory(2));
        demand.want(directory(1));
        demand.want(directory(2));
        let came = recover(&tier, &demand, Duration::ZERO);
        assert_eq!(came.copies, COPIES);
        assert_eq!(came.brought[..2], [directory(2), directory(1)]);
        assert!((0..DIRECTORIES).all(|number| came.brought.contains(&directory(number))));
    }

    #[test]
    fn it_keeps_to_its_budget_with_the_event_loops_part() {
        let tier = warm_tier();
        let event_loop = Duration::from_millis(2);
        let begun = Instant::now();
        let came = recover(&tier, &RecoveryDemand::default(), event_loop);
        // There is no rest after the last batches.
        let least = event_loop.div_f64(RECOVERY_SHARE) * (came.batches - 2);
        assert!(came.batches > 4 && begun.elapsed() >= least, "{came:?} in {:?}", begun.elapsed());
    }
}
