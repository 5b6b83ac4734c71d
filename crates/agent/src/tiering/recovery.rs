//! Brings the copies of earlier runs to the clerk: one directory at a time, those first that programs ask for, and the others within a
//! budget so small that no program notices. What was written in an earlier boot is read and checked first. In the end it removes what no
//! record leads to.

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
use forebay_store::{Adopted, AdoptedCopy, Adoption, StoreError, Tier, limits::READ_PIECE_BYTES};

use crate::{
    host::{
        clock::thread_cpu,
        error::{AgentError, io_error},
        shared::set_thread_nice,
    },
    tiering::{
        limits::{ADOPT_AT_ONCE, ADOPT_BATCH, ADOPT_BYTES_PER_S, ADOPT_SHARE, COPY_NICE, REAP_MAX, VERIFY_AT_ONCE_BYTES},
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
    pub(crate) last_used_unix_s: i64,
    /// Its bytes are not what was written.
    pub(crate) damaged: bool,
    /// Counted against the quota already.
    pub(crate) counted: bool,
}

/// Another spelling of a copy that was brought before.
#[derive(Debug)]
pub(crate) struct RecoveredName {
    pub(crate) copy: u64,
    /// Inode of the source file.
    pub(crate) ino: u64,
    pub(crate) dir: Arc<[u8]>,
    pub(crate) name: Vec<u8>,
}

/// How far the adoption of a tier has come.
#[derive(Debug)]
pub(crate) enum RecoveryStage {
    /// The catalogue was read: what it speaks of will be brought.
    Catalogued {
        copies: u64,
        bytes: u64,
        directories: Vec<Arc<[u8]>>,
    },
    /// All was brought, or as much as could be.
    Told,
    /// Leftovers were removed too: what happened, for the log, and the copies whose file is not there.
    Ended { report: String, missing: Vec<u64> },
}

/// Some of what was found.
#[derive(Debug)]
pub(crate) struct RecoveryBatch {
    pub(crate) tier: usize,
    pub(crate) found: Vec<RecoveredCopy>,
    pub(crate) aliases: Vec<RecoveredName>,
    /// Directories of which nothing is left to bring.
    pub(crate) brought: Vec<Arc<[u8]>>,
    /// What has been reached with this batch.
    pub(crate) stage: Option<RecoveryStage>,
    /// Told how much of a processor's time the batch took, once it was taken.
    pub(crate) taken: Sender<Duration>,
}

/// What the clerk asks of an adopter.
#[derive(Debug, Default)]
pub(crate) struct RecoveryDemand {
    state: Mutex<DemandState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct DemandState {
    directories: VecDeque<Arc<[u8]>>,
    /// Nobody minds what adoption costs, or everybody waits for it.
    hurried: bool,
}

impl RecoveryDemand {
    fn state(&self) -> MutexGuard<'_, DemandState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A program has opened a file of this directory.
    pub(crate) fn want(&self, directory: Arc<[u8]>) {
        self.state().directories.push_back(directory);
        self.changed.notify_all();
    }

    /// Lifts the budget, or sets it again.
    pub(crate) fn set_hurried(&self, hurried: bool) {
        self.state().hurried = hurried;
        self.changed.notify_all();
    }

    fn next(&self) -> Option<Arc<[u8]>> {
        self.state().directories.pop_front()
    }

    /// Sleeps, until something is wanted at the latest.
    fn rest(&self, pause: Duration) {
        let is_idle = |wanted: &mut DemandState| wanted.directories.is_empty() && !wanted.hurried;
        // A waker that has panicked while it held the lock would have been a bug of ours; then there is no pause.
        drop(self.changed.wait_timeout_while(self.state(), pause, is_idle));
    }
}

/// Starts the adoption of a tier.
pub(crate) fn start(
    number: usize,
    tier: Arc<Tier>,
    demand: Arc<RecoveryDemand>,
    deliver: impl Fn(RecoveryBatch) + Send + 'static,
) -> Result<(), AgentError> {
    let run = move || {
        set_thread_nice(COPY_NICE);
        let is_small = tier.expected_copies() <= ADOPT_AT_ONCE;
        CatalogueRecovery::new(number, &tier, &deliver, &demand, is_small).run();
    };
    thread::Builder::new()
        .name("adopter".into())
        .spawn(run)
        .map(drop)
        .map_err(io_error("start a thread", Path::new("adopter")))
}

struct CatalogueRecovery<'a> {
    number: usize,
    tier: &'a Tier,
    deliver: &'a dyn Fn(RecoveryBatch),
    demand: &'a RecoveryDemand,
    /// So few copies that they are brought at once.
    is_small: bool,
    /// Read of copies of earlier boots.
    verified_bytes: u64,
    /// What is brought now was asked for.
    is_wanted: bool,
    /// Processor time of this thread when it last rested, and of the clerk since then.
    begun: Duration,
    clerk: Duration,
    found: Vec<RecoveredCopy>,
    aliases: Vec<RecoveredName>,
    brought: Vec<Arc<[u8]>>,
    /// The last batch, while the clerk has not taken it.
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
            clerk: Duration::ZERO,
            found: Vec::new(),
            aliases: Vec::new(),
            brought: Vec::new(),
            untaken: None,
            mount: None,
        }
    }

    fn run(mut self) {
        let ended = self.adopt();
        self.send(Some(ended));
    }

    /// Does all of it; gives the last stage.
    fn adopt(&mut self) -> RecoveryStage {
        let ended = |report: String| RecoveryStage::Ended {
            report,
            missing: Vec::new(),
        };
        let begun = Instant::now();
        let mut adoption = match self.tier.begin_adoption(&mut || self.rest(READ_PIECE_BYTES as u64)) {
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
            // What was not told must not be taken for leftovers.
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

    /// Directory by directory; what is wanted comes first.
    fn tell_all(&mut self, adoption: &mut Adoption, directories: Vec<(u32, Arc<[u8]>)>) -> Result<(), StoreError> {
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
            if self.is_wanted || self.brought.len() >= ADOPT_BATCH {
                self.send(None);
            }
        }
    }

    fn take(&mut self, adopted: Adopted<'_>) {
        if self.found.len() + self.aliases.len() >= ADOPT_BATCH {
            self.send(None);
        }
        match adopted {
            Adopted::Copy(copy) => {
                let found = self.found_of(copy);
                self.found.push(found);
            }
            Adopted::Alias(alias) => self.aliases.push(RecoveredName {
                copy: alias.id,
                ino: alias.ino,
                dir: Arc::clone(alias.dir),
                name: alias.name.to_vec(),
            }),
        }
    }

    fn found_of(&mut self, copy: &AdoptedCopy<'_>) -> RecoveredCopy {
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
            last_used_unix_s: copy.last_used_unix_s,
            damaged,
            counted: false,
        }
    }

    /// Sends what there is, once the batch before was taken: a million records must not wait in memory.
    fn send(&mut self, stage: Option<RecoveryStage>) {
        if let Some(untaken) = self.untaken.take() {
            // An error: the clerk has ended, and with it soon this process.
            self.clerk += untaken.recv().unwrap_or_default();
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

    /// Keeps to the budget: of processor time, the clerk's for adoption included, and of the disk's, `read` bytes having been read since
    /// the last rest.
    fn rest(&mut self, read: u64) {
        let used = thread_cpu().saturating_sub(self.begun) + self.clerk;
        let is_little = self.is_small && self.verified_bytes <= VERIFY_AT_ONCE_BYTES;
        if !is_little && !self.is_wanted {
            let for_cpu = used.div_f64(ADOPT_SHARE).saturating_sub(used);
            let for_disk = Duration::from_micros(read.saturating_mul(1_000_000) / ADOPT_BYTES_PER_S);
            self.demand.rest(for_cpu.max(for_disk));
        }
        self.begun = thread_cpu();
        self.clerk = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use forebay_store::{Ask, BootId, Entry, FreeFloor, Mount, Secret, TierConfig, disk::MemoryDisk, testing::MemorySource};

    use super::*;

    const DIRECTORIES: u64 = 4;
    const COPIES: u64 = 4000;

    fn open(disk: &Arc<MemoryDisk>) -> Tier {
        let config = TierConfig {
            dir: "/tier".into(),
            quota_bytes: 1 << 30,
            quota_inodes: 1 << 20,
            free_floor: FreeFloor::default(),
        };
        Tier::open_on(disk.clone(), "/tier".into(), config, &Secret::from_bytes([7; 32]), BootId([1; 16])).expect("it opens")
    }

    fn directory(number: u64) -> Arc<[u8]> {
        format!("/source/{number}").into_bytes().into()
    }

    /// A tier whose directories' records lie mixed in the catalogue.
    fn warm_tier() -> Tier {
        let disk = Arc::new(MemoryDisk::new(64 << 20, 10_000));
        let tier = open(&disk);
        for number in 0..COPIES {
            let source = MemorySource::new(number + 1, b"bytes");
            let id = tier.next_id();
            let mut writer = tier.begin(id, &source.identity()).expect("begun");
            writer.advance(&source, u64::MAX, &mut [0; 8]).expect("copied");
            let finished = writer.finish(&source, Ask::Kernel).expect("finished");
            let name = number.to_string();
            let entry = Entry {
                id,
                dir: &directory(number % DIRECTORIES),
                name: name.as_bytes(),
                mount: Mount {
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
    struct Came {
        brought: Vec<Arc<[u8]>>,
        copies: u64,
        batches: u32,
    }

    /// Adopts within the budget, for a clerk that takes so long over each batch.
    fn adopt(tier: &Tier, demand: &RecoveryDemand, clerk: Duration) -> Came {
        let (batches, received) = channel::<RecoveryBatch>();
        thread::scope(|scope| {
            scope.spawn(|| {
                let deliver = move |batch| drop(batches.send(batch));
                CatalogueRecovery::new(0, tier, &deliver, demand, false).run();
            });
            let mut came = Came::default();
            while let Ok(batch) = received.recv() {
                came.batches += 1;
                came.copies += batch.found.len() as u64;
                came.brought.extend(batch.brought);
                let _ = batch.taken.send(clerk);
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
        let came = adopt(&tier, &demand, Duration::ZERO);
        assert_eq!(came.copies, COPIES);
        assert_eq!(came.brought[..2], [directory(2), directory(1)]);
        assert!((0..DIRECTORIES).all(|number| came.brought.contains(&directory(number))));
    }

    #[test]
    fn it_keeps_to_its_budget_of_which_the_clerk_is_a_part() {
        let tier = warm_tier();
        let clerk = Duration::from_millis(2);
        let begun = Instant::now();
        let came = adopt(&tier, &RecoveryDemand::default(), clerk);
        // Nobody rests after the last batches.
        let least = clerk.div_f64(ADOPT_SHARE) * (came.batches - 2);
        assert!(came.batches > 4 && begun.elapsed() >= least, "{came:?} in {:?}", begun.elapsed());
    }
}
