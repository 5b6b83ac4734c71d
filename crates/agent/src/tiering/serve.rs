//! The tiering role: puts its parts together and serves until its last run has ended.

use std::{
    os::unix::ffi::OsStrExt,
    sync::{Arc, mpsc::channel},
};

use crate::{
    host::{
        error::AgentError,
        lifecycle::live,
        log::{self, Log},
        private_dir::private_dir,
        shared::raise_descriptor_limit,
    },
    tiering::{
        config::AgentConfig,
        control,
        copier::Copier,
        event_loop::{EventLoop, LoopEvent, LoopParts, deliver},
        handoff::{self, DescriptorBudget},
        limits::{DESCRIPTOR_SHARE, HANDOFF_DESCRIPTORS_MAX},
        lister,
        nodes::open_waits::WaitPages,
        pages::Pages,
        prefetcher::Prefetcher,
        ram,
        read_lists::{openers::Openers, recorder},
        sweeper,
    },
};
use forebay_contract::Tier as TierInIndex;
use forebay_policy::{FillFirst, Space};
use forebay_store::{Secret, Tier};

/// Bytes of a tier for each file in it: copies are many small files, and a tier may have as many as its quota has
/// blocks.
const INODE_BYTES: u64 = 4096;

/// Runs an agent until its last run has ended.
///
/// # Errors
/// [`AgentError::AlreadyRunning`] if another one serves these tiers; else the error that kept it from starting, which
/// is also the last line of its log.
pub fn serve(config: AgentConfig) -> Result<(), AgentError> {
    let dir = config.dir.clone();
    live(&dir, || {
        let result = open(config, Log).map(|(event_loop, events)| event_loop.serve(&events));
        if result.is_err() {
            // No client may wait for a socket that nobody serves.
            for name in ["control.sock", "door.sock"] {
                let _ = rustix::fs::unlink(dir.join(name));
            }
        }
        result
    })
}

fn open(config: AgentConfig, log: Log) -> Result<(EventLoop, std::sync::mpsc::Receiver<LoopEvent>), AgentError> {
    let descriptors = raise_descriptor_limit();
    let (secret, why_ephemeral) = Secret::kept_or_ephemeral(&config.state_dir);
    if let Some(why) = why_ephemeral {
        log::fallback(&format!("copies will not serve later runs: {why}"));
    }
    let uid = rustix::process::geteuid().as_raw();
    let mut tiers = Vec::new();
    let reaped = ram::reap(&config.dir);
    if reaped.removed > 0 {
        log.line(&format!(
            "{} bytes that dead agents left in memory were removed",
            reaped.removed_bytes
        ));
    }
    for setting in &config.tiers {
        if setting.ram {
            private_dir(&setting.dir)?;
        }
        let quota = Space {
            bytes: setting.bytes,
            inodes: (setting.bytes / INODE_BYTES).max(1024),
        };
        tiers.push(Arc::new(Tier::open(&setting.dir, quota, &secret, uid)?));
    }
    let in_index: Option<Vec<_>> = tiers
        .iter()
        .map(|tier| TierInIndex::new(tier.device(), tier.objects_path().as_os_str().as_bytes()))
        .collect();
    let in_index = in_index.ok_or(AgentError::TooLarge {
        what: "the path of a tier",
    })?;
    let expected = tiers.iter().map(|tier| tier.expected_copies()).sum();
    // Where memory is short for all of them, a smaller index serves some.
    let spare = config.index_spare;
    let pages =
        Pages::create(&config.dir, in_index.clone(), expected, spare).or_else(|_| Pages::create(&config.dir, in_index, 0, spare))?;
    let policy = FillFirst::new(tiers.iter().map(|tier| tier.quota()));
    let (events, received) = channel();
    let (sweeps, sweep_requests) = channel();
    sweeper::start(sweep_requests, pages.control(), deliver(&events, LoopEvent::Swept))?;
    let recorder = recorder::start(config.state_dir.clone(), deliver(&events, LoopEvent::ListLoaded))?;
    let copier = Copier::start(&deliver(&events, LoopEvent::Copied))?;
    let held = DescriptorBudget::new(((descriptors / DESCRIPTOR_SHARE) as usize).min(HANDOFF_DESCRIPTORS_MAX));
    let openers = Openers::new(held.clone(), copier.read_ahead(), Arc::new(deliver(&events, LoopEvent::Listed)));
    let (dir, waits) = (config.dir.clone(), WaitPages::new(&config.dir));
    let event_loop = EventLoop::new(LoopParts {
        config,
        pages,
        policy,
        tiers,
        copier,
        sweeps,
        lister: lister::start(deliver(&events, LoopEvent::ListedDirectory), deliver(&events, LoopEvent::Copied))?,
        prefetcher: Prefetcher::new(held.clone(), Box::new(deliver(&events, LoopEvent::Prefetch))),
        recorder,
        openers,
        waits: waits.clone(),
        held: held.clone(),
        events: events.clone(),
    });
    let queue = handoff::start(&dir, held, waits, deliver(&events, LoopEvent::Handoff))?;
    // Last: a command that can connect finds all the rest in place.
    control::start(&dir, queue, deliver(&events, LoopEvent::Command))?;
    Ok((event_loop, received))
}
