//! `--ram SIZE`: a tier in memory above all others, for as long as its agent lives. It must fit into what the job's
//! limit leaves now.

use std::{path::Path, time::Duration};

use forebay_agent::{
    host::memory::{Gauge, MemoryReading, Promise},
    tiering::{AgentConfig, TierSetting, TieringConnection, ram},
};
use forebay_contract::{TIERS_MAX, env};
use forebay_policy::eviction::TierPolicy;
use forebay_settings::{
    config::Setting,
    mounts::{FsKind, Mounts, kind_of},
    text,
    tiers::Chosen,
    user_error::UserError,
};
use rustix::{fs::statvfs, process::geteuid};

/// An agent that does not say within this time what it has promised, has promised nothing.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Puts the tier above `tiers`; `runtime_dir` is where agents have their directories, which need not be there yet.
///
/// # Errors
/// A runtime directory that is not in memory or too small, a size that does not fit, one tier too many.
pub fn put_above(tiers: &mut Vec<Chosen>, wish: &Setting<u64>, runtime_dir: &Path, mounts: &Mounts) -> Result<(), UserError> {
    let refuse = |why: String| UserError::bad_input(format_args!("{}: {why}", wish.origin));
    if tiers.len() >= TIERS_MAX {
        return Err(refuse(format!(
            "with RAM there are {} tiers; the most is {TIERS_MAX}",
            tiers.len() + 1
        )));
    }
    let settings = [TierSetting::in_ram(wish.value)]
        .into_iter()
        .chain(tiers.iter().map(|tier| tier.setting.clone()));
    // Of all that is decided there only the place of this one matters here.
    let decided = AgentConfig::for_tiers(
        runtime_dir,
        Path::new(""),
        &settings.collect::<Vec<_>>(),
        TierPolicy::default(),
        false,
    )
    .tiers;
    let Some(setting) = decided.into_iter().next() else { return Ok(()) };
    let place = setting.dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
    let (kind, fs_type) = kind_of(place, mounts);
    if kind != FsKind::Memory {
        return Err(refuse(format!(
            "{} is on {fs_type}, not in memory; set {} to a directory of yours on tmpfs, such as /dev/shm",
            runtime_dir.display(),
            env::RUNTIME_DIR
        )));
    }
    // The size of a tier is that of the run that has started its agent; an agent that was killed has left what the
    // new one takes over.
    if !ram::is_live(&setting.dir) {
        let beside = tiers.iter().filter(|tier| tier.note.is_some()).map(|tier| tier.setting.bytes).sum();
        fits(wish.value, beside, place, runtime_dir).map_err(refuse)?;
    }
    tiers.insert(
        0,
        Chosen {
            note: Some("copies in RAM count against this job's memory, and go when its last run ends".into()),
            ..Chosen::new(setting, fs_type, format!("asked for by {}", wish.origin))
        },
    );
    Ok(())
}

/// Checks that a number of bytes fits into memory, in addition to `beside` bytes of other tiers; `Err` is the reason
/// in words.
fn fits(bytes: u64, beside: u64, place: &Path, runtime_dir: &Path) -> Result<(), String> {
    let (left, promises) = (left_bytes(runtime_dir), promises(runtime_dir));
    let room = statvfs(place).map_err(|error| format!("{}: {error}", place.display()))?;
    let size = room.f_blocks.saturating_mul(room.f_frsize);
    if bytes > size {
        return Err(format!(
            "{} do not fit into {}, a file system in memory of {}; give less, or have it made larger (mount -o remount,size=, docker run --shm-size)",
            text::bytes(bytes),
            place.display(),
            text::bytes(size),
        ));
    }
    let (MemoryReading { memory, what }, promised) = Gauge::find().look_beside(&promises);
    let floor = 2 * memory.floor_bytes();
    let spoken_for = beside.saturating_add(promised).saturating_add(floor);
    let most = memory.free_bytes.saturating_add(left).saturating_sub(spoken_for);
    if bytes <= most {
        return Ok(());
    }
    let of = format!(
        "of {what}, {}, {} are free",
        text::bytes(memory.limit_bytes),
        text::bytes(memory.free_bytes)
    );
    let others = match promised {
        0 => String::new(),
        promised => format!(", {} are promised to other runs' RAM", text::bytes(promised)),
    };
    // In words that can be typed again.
    let mend = match most >> 20 {
        0 => "leave it out".into(),
        mebibytes => format!("give at most {mebibytes}M"),
    };
    Err(format!(
        "{} do not fit: {of}{others}, and {} stay free for the job; {mend}",
        text::bytes(bytes),
        text::bytes(floor)
    ))
}

/// Returns the memory that running agents may still take for copies: each agent looks at the free memory only, not at
/// the promises of the others.
fn promises(runtime_dir: &Path) -> Vec<Promise> {
    let living = ram::tiers_in(runtime_dir).into_iter().filter(|tier| ram::is_live(tier));
    let promise = |tier: &Path| {
        let mut connection = TieringConnection::open_for(tier.parent()?, ANSWER_MAX).ok()?;
        let told = connection.totals().ok()?;
        let in_ram = told.status.tiers.into_iter().filter(|tier| tier.ram);
        let bytes = in_ram.map(|tier| tier.quota_bytes.saturating_sub(tier.used_bytes)).sum();
        Some(Promise::of(connection.pid().unwrap_or(0), bytes))
    };
    living.filter_map(|tier| promise(&tier)).collect()
}

/// Returns the bytes in memory that killed agents left: the next agent frees or recovers them when it starts.
fn left_bytes(runtime_dir: &Path) -> u64 {
    let dead = ram::tiers_in(runtime_dir).into_iter().filter(|tier| !ram::is_live(tier));
    let bytes = |tier: &Path| Some(forebay_store::inspect(tier, geteuid().as_raw()).ok()??.bytes);
    dead.filter_map(|tier| bytes(&tier)).sum()
}
