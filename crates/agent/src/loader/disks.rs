//! The disks of loaders. They are opened in threads of their own: a catalogue of millions of extents takes seconds to read, and the agent's one thread has
//! other loaders to see to.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use forebay_store::{FreeFloor, Secret, Segments, SegmentsConfig, StoreError, limits::SEGMENT_BYTES};

use super::{disk_dir, doorbell::Doorbell, protocol::DiskSetting};
use crate::private_dir::private_dir;

/// How often a disk is asked for that another thread of this process has, and the pause between.
const LEASE_ATTEMPTS_MAX: u32 = 100;
const LEASE_PAUSE: Duration = Duration::from_millis(10);

/// A disk that loaders use.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) segments: Arc<Segments>,
    /// Most bytes there, as the loader gave it that came first.
    pub(crate) bytes: u64,
}

/// A disk; or why it can't be used, in words for a person.
pub(crate) type Outcome = Result<Opened, String>;

/// Segments by their directory, as long as a loader uses them: loaders of one agent share them.
type Known = BTreeMap<PathBuf, (Weak<Segments>, u64)>;

/// All disks of this agent.
pub(crate) struct Disks {
    secret: Arc<Secret>,
    doorbell: Arc<Doorbell>,
    /// Held while a disk is opened: who wants the same one waits, and shares it.
    known: Arc<Mutex<Known>>,
    sender: Sender<(u64, Vec<Outcome>)>,
    done: Receiver<(u64, Vec<Outcome>)>,
}

impl Disks {
    pub(crate) fn new(secret: Secret, doorbell: Arc<Doorbell>) -> Self {
        let (sender, done) = channel();
        Self {
            secret: Arc::new(secret),
            doorbell,
            known: Arc::default(),
            sender,
            done,
        }
    }

    /// Opens disks. When that is done the doorbell rings, and [`Self::opened`] gives them by this number.
    pub(crate) fn open(&self, number: u64, settings: Vec<DiskSetting>) {
        let count = settings.len();
        let (secret, doorbell, known, sender) = (
            Arc::clone(&self.secret),
            Arc::clone(&self.doorbell),
            Arc::clone(&self.known),
            self.sender.clone(),
        );
        let work = move || {
            let opened = settings.iter().map(|setting| {
                let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                open_one(setting, &secret, &mut known)
            });
            // Nobody is there any more where that fails.
            let _ = sender.send((number, opened.collect()));
            doorbell.ring();
        };
        if let Err(error) = thread::Builder::new().name("forebay-open".into()).spawn(work) {
            let why = format!("there is no thread to open it: {error}");
            let _ = self.sender.send((number, vec![Err(why); count]));
            self.doorbell.ring();
        }
    }

    /// Disks that were opened, in the order of their settings.
    pub(crate) fn opened(&self) -> Option<(u64, Vec<Outcome>)> {
        self.done.try_recv().ok()
    }
}

fn open_one(setting: &DiskSetting, secret: &Secret, known: &mut Known) -> Outcome {
    if let Some((segments, bytes)) = known.get(&setting.dir)
        && let Some(segments) = segments.upgrade()
    {
        return Ok(Opened { segments, bytes: *bytes });
    }
    let uid = rustix::process::geteuid();
    let dir = disk_dir(&setting.dir);
    private_dir(&dir).map_err(|error| error.to_string())?;
    let config = SegmentsConfig {
        dir,
        quota_bytes: setting.bytes,
        segment_bytes: SEGMENT_BYTES,
        free_floor: FreeFloor::default(),
    };
    let mut attempts = 0;
    let segments = loop {
        match Segments::open(config.clone(), secret, uid.as_raw()) {
            Ok(segments) => break segments,
            // The last thread of a loader that has just ended may be about to let it go.
            Err(StoreError::InUse { holder, .. }) if holder == Some(std::process::id()) && attempts < LEASE_ATTEMPTS_MAX => {
                attempts += 1;
                thread::sleep(LEASE_PAUSE);
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    let segments = Arc::new(segments);
    known.insert(setting.dir.clone(), (Arc::downgrade(&segments), setting.bytes));
    let bytes = setting.bytes;
    Ok(Opened { segments, bytes })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn opened(disks: &Disks) -> (u64, Vec<Outcome>) {
        let begun = Instant::now();
        loop {
            if let Some(opened) = disks.opened() {
                return opened;
            }
            assert!(begun.elapsed() < LONG);
            thread::yield_now();
        }
    }

    #[test]
    fn loaders_share_a_disk_and_the_size_that_the_first_gave_holds() {
        let root = tempfile::tempdir().unwrap();
        let doorbell = Arc::new(Doorbell::create().unwrap());
        let disks = Disks::new(Secret::from_bytes([7; 32]), doorbell);
        let setting = |bytes| DiskSetting {
            dir: root.path().to_owned(),
            bytes,
        };
        let nowhere = DiskSetting {
            dir: root.path().join("no"),
            bytes: 1,
        };
        disks.open(1, vec![setting(1 << 30), nowhere]);
        let (number, mut first) = opened(&disks);
        assert_eq!((number, first.len()), (1, 2));
        assert!(first.pop().unwrap().is_err());
        let first = first.pop().unwrap().unwrap();
        disks.open(2, vec![setting(1 << 20)]);
        let (number, mut second) = opened(&disks);
        let second = second.pop().unwrap().unwrap();
        assert_eq!((number, second.bytes), (2, 1 << 30));
        assert!(Arc::ptr_eq(&first.segments, &second.segments));
        // When nobody has it any more the next one's holds.
        drop((first, second));
        disks.open(3, vec![setting(1 << 20)]);
        let (_, mut third) = opened(&disks);
        assert_eq!(third.pop().unwrap().unwrap().bytes, 1 << 20);
        disks.open(4, Vec::new());
        assert_eq!(opened(&disks).0, 4);
    }
}
