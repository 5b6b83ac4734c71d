//! Reads the catalogue of a tier in the background and brings its copies to the clerk, a batch at a time; what was written in an earlier
//! boot is read and checked first. Then removes what no record leads to.

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
    thread,
    time::Instant,
};

use forebay_contract::{Attributes, Identity};
use forebay_store::{Adopted, AdoptedCopy, Tier};

use crate::{
    clerk::Event,
    error::{AgentError, io_error},
    limits::{ADOPT_BATCH, ADOPT_NICE, ADOPT_PAUSE_MAX, REAP_MAX},
    mounts::MountSource,
    shared::set_thread_nice,
};

/// A copy of an earlier run.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) copy: u64,
    pub(crate) dir: Vec<u8>,
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
pub(crate) struct FoundAlias {
    pub(crate) copy: u64,
    /// Inode of the source file.
    pub(crate) ino: u64,
    pub(crate) dir: Vec<u8>,
    pub(crate) name: Vec<u8>,
}

/// Some of them.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) tier: usize,
    pub(crate) found: Vec<Found>,
    pub(crate) aliases: Vec<FoundAlias>,
    /// The last batch: what happened, for the log.
    pub(crate) ended: Option<String>,
    /// Dropped when the batch has been taken.
    pub(crate) _taken: Sender<()>,
}

/// Starts the adoption of a tier.
pub(crate) fn start(number: usize, tier: Arc<Tier>, events: Sender<Event>) -> Result<(), AgentError> {
    let run = move || {
        set_thread_nice(ADOPT_NICE);
        adopt(number, &tier, &events);
    };
    thread::Builder::new()
        .name("adopter".into())
        .spawn(run)
        .map(drop)
        .map_err(io_error("start a thread", Path::new("adopter")))
}

fn adopt(number: usize, tier: &Tier, events: &Sender<Event>) {
    let mut collecting = Collecting {
        number,
        tier,
        events,
        found: Vec::new(),
        aliases: Vec::new(),
        known: HashMap::new(),
        mount: None,
    };
    let report = tier.adopt(|adopted| collecting.take(adopted));
    let ended = match report {
        Ok(report) => {
            let known = std::mem::take(&mut collecting.known);
            let reaped = tier.reap(&|copy| known.contains_key(&copy), REAP_MAX);
            format!("{report:?}, {reaped:?}")
        }
        Err(error) => format!("stopped: {error}"),
    };
    collecting.send(Some(ended));
}

struct Collecting<'a> {
    number: usize,
    tier: &'a Tier,
    events: &'a Sender<Event>,
    found: Vec<Found>,
    aliases: Vec<FoundAlias>,
    /// Source inode of each copy that was told.
    known: HashMap<u64, u64>,
    mount: Option<Arc<MountSource>>,
}

impl Collecting<'_> {
    fn take(&mut self, adopted: Adopted<'_>) {
        match adopted {
            Adopted::Copy(copy) => {
                if self.found.len() >= ADOPT_BATCH {
                    self.send(None);
                }
                self.known.insert(copy.id, copy.identity.ino);
                let found = self.found_of(copy);
                self.found.push(found);
            }
            Adopted::Alias(alias) => {
                if self.aliases.len() >= ADOPT_BATCH {
                    self.send(None);
                }
                if let Some(ino) = self.known.get(&alias.id) {
                    self.aliases.push(FoundAlias {
                        copy: alias.id,
                        ino: *ino,
                        dir: alias.dir.to_vec(),
                        name: alias.name.to_vec(),
                    });
                }
            }
        }
    }

    fn found_of(&mut self, copy: &AdoptedCopy<'_>) -> Found {
        let mount = match &self.mount {
            Some(mount) if mount.is(&copy.mount) => Arc::clone(mount),
            _ => Arc::clone(self.mount.insert(Arc::new(MountSource::of(&copy.mount)))),
        };
        let damaged = !copy.trusted && self.tier.verify(copy.id, copy.checksum, &copy.object).is_err();
        Found {
            copy: copy.id,
            dir: copy.dir.to_vec(),
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

    fn send(&mut self, ended: Option<String>) {
        let (found, aliases) = (std::mem::take(&mut self.found), std::mem::take(&mut self.aliases));
        let (taken, until_taken) = channel();
        let batch = Batch {
            tier: self.number,
            found,
            aliases,
            ended,
            _taken: taken,
        };
        if self.events.send(Event::Adopted(batch)).is_ok() {
            // A million records must not wait in memory: the clerk drops its end when it has taken these.
            let begun = Instant::now();
            let _ = until_taken.recv();
            // Nobody waits for adoption, and the program wants its cores: the clerk rests as long as it works.
            thread::sleep(begun.elapsed().min(ADOPT_PAUSE_MAX));
        }
    }
}
