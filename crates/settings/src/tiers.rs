//! Choice of tiers for copies: the named ones, or one that is found. Never on a network, never inside a source.

pub mod used;

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use forebay_agent::{host::memory::Gauge, tiering::TierSetting};
use forebay_contract::TIERS_MAX;
use forebay_store::Lack;
use rustix::{fs::statvfs, process::geteuid};
use serde::{Deserialize, Serialize};

use crate::{
    config::{Config, Setting, SettingOrigin},
    environment::Environment,
    mounts::{FsKind, Mounts, kind_of},
    places::{anybody_may_rename, writable},
    sources::{SourceDir, Sources},
    text,
    user_error::UserError,
};
use used::ReadTime;

/// Share of a file system that a tier that was found leaves free, in percent.
const FLOOR_PERCENT: u64 = 10;
/// Share of what is free above the floor that a tier that was found takes, in percent.
const TAKE_PERCENT: u64 = 80;
/// Less than this is not worth a tier.
const FOUND_BYTES_MIN: u64 = 1 << 30;

/// Variables in which schedulers and sites announce a job's own local directory, best first.
const SCRATCH_VARIABLES: &[&str] = &[
    "SLURM_TMPDIR",
    "PBS_JOBFS",
    "LOCAL_SCRATCH",
    "LOCALSCRATCH",
    "LSCRATCH",
    "L_SCRATCH_JOB",
    "JOB_SCRATCH_DIR",
    "SLURM_SCRATCH",
    "SNIC_TMP",
    "NVME_SCRATCH",
    "SCRATCHDIR",
];
/// With one of these set, a scheduler has made `TMPDIR` for the job.
const SCHEDULERS: &[&str] = &[
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "SGE_TASK_ID",
    "COBALT_JOBID",
    "FLUX_JOB_ID",
    "OAR_JOB_ID",
];
/// Mount points below these belong to the system.
const SYSTEM: &[&str] = &[
    "/boot",
    "/dev",
    "/efi",
    "/etc",
    "/proc",
    "/run",
    "/snap",
    "/sys",
    "/usr",
    "/var/lib",
    "/var/run",
    "/var/snap",
];

/// A tier that a run uses, or that an earlier run has used: then its texts are empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chosen {
    /// Directory without links, and quota.
    #[serde(flatten)]
    pub setting: TierSetting,
    /// True if it was found, not named. Known of tiers of earlier runs only.
    pub was_found: bool,
    /// Type of its file system.
    #[serde(skip)]
    pub fs_type: String,
    /// Reason of the choice.
    #[serde(skip)]
    pub why: String,
    /// Note for the user.
    #[serde(skip)]
    pub note: Option<String>,
    /// Measured time of a read, if the order of tiers needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_time: Option<ReadTime>,
}

impl Chosen {
    /// Returns a tier without a note, and with a read time that is still to be measured.
    pub const fn new(setting: TierSetting, fs_type: String, why: String) -> Self {
        Self {
            setting,
            was_found: false,
            fs_type,
            why,
            note: None,
            read_time: None,
        }
    }
}

/// The tiers that were named.
///
/// # Errors
/// A tier that is missing, not writable, on a network file system, a source or inside one, twice there, or larger
/// than memory.
pub fn named(wish: &Setting<Vec<TierSetting>>, sources: &[SourceDir], mounts: &Mounts) -> Result<Vec<Chosen>, UserError> {
    if wish.value.len() > TIERS_MAX {
        return Err(UserError::bad_input(format_args!(
            "{}: {} tiers are too many; the most is {TIERS_MAX}",
            wish.origin,
            wish.value.len()
        )));
    }
    let mut chosen: Vec<Chosen> = Vec::new();
    for tier in &wish.value {
        let one = check(tier, &wish.origin, sources, mounts)?;
        if chosen.iter().any(|other| other.setting.dir == one.setting.dir) {
            return Err(UserError::bad_input(format_args!(
                "{}: {} is there twice; name it once",
                wish.origin,
                tier.dir.display()
            )));
        }
        chosen.push(one);
    }
    let in_memory: u64 = chosen
        .iter()
        .filter(|tier| tier.note.is_some())
        .map(|tier| tier.setting.bytes)
        .sum();
    let found = Gauge::find().look();
    if in_memory > found.memory.limit_bytes {
        let (asked, limit) = (text::bytes(in_memory), text::bytes(found.memory.limit_bytes));
        let line = format!(
            "{}: {asked} in memory are more than {}, {limit}; give less, or a directory on a disk",
            wish.origin, found.what
        );
        return Err(UserError::bad_input(line));
    }
    Ok(chosen)
}

/// Says that a directory is on the source, where copies would gain nothing.
fn inside(source: &SourceDir) -> String {
    format!("is inside the source {}; name a directory on a local disk", source.dir.display())
}

fn check(tier: &TierSetting, origin: &SettingOrigin, sources: &[SourceDir], mounts: &Mounts) -> Result<Chosen, UserError> {
    let shown = tier.dir.display();
    let refuse = |why: String| UserError::bad_input(format_args!("{origin}: {shown} {why}"));
    let dir = tier.dir.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => match sources.iter().find(|source| tier.dir.starts_with(&source.dir)) {
            Some(source) => refuse(inside(source)),
            None => refuse(format!("does not exist: mount it, correct its name, or type mkdir -p {shown}")),
        },
        _ => refuse(format!("can't be used: {error}; name a directory of yours on a local disk")),
    })?;
    if !dir.is_dir() {
        return Err(refuse("is not a directory; name one on a local disk".into()));
    }
    for source in sources {
        if dir == source.dir {
            return Err(refuse("is the source itself; name a directory on a local disk".into()));
        }
        if dir.starts_with(&source.dir) {
            return Err(refuse(inside(source)));
        }
        if source.dir.starts_with(forebay_store::root_path(&dir, geteuid().as_raw())) {
            return Err(refuse(format!(
                "holds the source {} among its copies; name another directory",
                source.dir.display()
            )));
        }
    }
    let (kind, fs_type) = kind_of(&dir, mounts);
    match kind {
        FsKind::Network => {
            return Err(refuse(format!(
                "is on a network file system ({fs_type}); name a directory on a local disk"
            )));
        }
        FsKind::Kernel => {
            return Err(refuse(format!(
                "is on {fs_type}, which holds no files; name a directory on a local disk"
            )));
        }
        FsKind::Memory | FsKind::Local => {}
    }
    writable(&dir).map_err(|why| refuse(format!("can't be written: {why}; name a directory that you can write")))?;
    if anybody_may_rename(&dir) {
        return Err(refuse(
            "can be emptied by everybody; name a directory of your own, or set its sticky bit (chmod +t)".into(),
        ));
    }
    let note = (kind == FsKind::Memory).then(|| format!("{shown} is in memory: its copies count against this job's memory"));
    Ok(Chosen {
        note,
        ..Chosen::new(TierSetting::kept(dir, tier.bytes), fs_type, format!("named by {origin}"))
    })
}

/// A tier where nobody named one: the scheduler's local directory, else the largest local disk. `Err` says in words
/// why there is none.
pub fn find(environment: &Environment, sources: &Sources, mounts: &Mounts, state_dir: &Path) -> Result<Chosen, String> {
    let usable = |dir: &Path| usable(dir, &sources.found, mounts);
    let mut passed_over = None;
    let mut is_fit = |tier: &Chosen| match lack(&tier.setting.dir) {
        None => true,
        Some(lack) => {
            passed_over.get_or_insert(format!("; {} was passed over: its file system {lack}", tier.setting.dir.display()));
            false
        }
    };
    for (variable, dir) in announced(environment) {
        if let Some(mut tier) = usable(&dir).filter(&mut is_fit) {
            tier.why = format!("${variable}, {}", tier.why);
            return Ok(recall(state_dir, tier));
        }
    }
    let mut found: Vec<(u64, Chosen)> = Vec::new();
    for dir in places(environment, mounts) {
        let Some(tier) = usable(&dir) else { continue };
        let dev = fs::metadata(&dir).map_or(0, |meta| meta.dev());
        // Of several directories of one file system the first is the best, though a few bytes may have come free
        // meanwhile.
        if found.iter().all(|(of, _)| *of != dev) {
            found.push((dev, tier));
        }
    }
    // The largest; of equal ones the first.
    found.sort_by_key(|(_, tier)| std::cmp::Reverse(tier.setting.bytes));
    let Some(mut tier) = found.into_iter().map(|(_, tier)| tier).find(is_fit) else {
        return Err(format!(
            "no local disk was found that can be written and has {} to spare above {FLOOR_PERCENT} % kept free{}",
            text::bytes(FOUND_BYTES_MIN),
            passed_over.unwrap_or_default()
        ));
    };
    tier.why = format!("the largest local disk, {}", tier.why);
    Ok(recall(state_dir, tier))
}

/// Returns the feature that the file system of a directory lacks to hold a tier, if any. A directory without a tier
/// is tried out; if that fails, the run itself reports the reason.
pub fn lack(dir: &Path) -> Option<Lack> {
    forebay_store::probe(dir, geteuid().as_raw()).ok().flatten()
}

/// Every directory in which copies of earlier runs may lie: what would be found today, or could have been.
pub fn possible(environment: &Environment, mounts: &Mounts) -> Vec<PathBuf> {
    let all = announced(environment)
        .into_iter()
        .map(|(_, dir)| dir)
        .chain(places(environment, mounts));
    let mut dirs: Vec<PathBuf> = all.filter_map(|dir| dir.canonicalize().ok()).collect();
    dirs.sort();
    dirs.dedup();
    dirs
}

fn announced(environment: &Environment) -> Vec<(&'static str, PathBuf)> {
    let mut dirs: Vec<_> = SCRATCH_VARIABLES
        .iter()
        .filter_map(|name| Some((*name, environment.absolute(name)?)))
        .collect();
    if SCHEDULERS.iter().any(|name| environment.get(name).is_some()) {
        dirs.extend(environment.absolute("TMPDIR").map(|dir| ("TMPDIR", dir)));
    }
    dirs
}

/// Directories on local disks where an ordinary user may be allowed to write; of each file system the best first.
fn places(environment: &Environment, mounts: &Mounts) -> Vec<PathBuf> {
    let user = ["USER", "LOGNAME"].iter().find_map(|name| environment.get(name));
    let home = environment.home();
    let cache = environment
        .absolute("XDG_CACHE_HOME")
        .or_else(|| Some(home.as_ref()?.join(".cache")));
    let mut dirs = Vec::new();
    for mount in mounts.iter() {
        let is_system = mount.point == Path::new("/") || SYSTEM.iter().any(|dir| mount.point.starts_with(dir));
        if is_system || mount.read_only || mount.kind() != FsKind::Local || home.as_ref() == Some(&mount.point) {
            continue;
        }
        let own = user.map(|user| mount.point.join(user)).filter(|dir| Some(dir) != home.as_ref());
        dirs.extend(own);
        dirs.extend([mount.point.clone(), mount.point.join("tmp")]);
    }
    for dir in [
        "/scratch",
        "/local_scratch",
        "/localscratch",
        "/local",
        "/scratch/local",
        "/nvme",
        "/ssd",
    ] {
        dirs.extend(user.map(|user| Path::new(dir).join(user)));
        dirs.push(dir.into());
    }
    dirs.push("/var/tmp".into());
    dirs.extend(cache);
    dirs.push("/tmp".into());
    dirs
}

/// Every directory that may hold a tier: those that are configured, that a run would find, and that runs on this host
/// have used.
pub fn everywhere(config: &Config, environment: &Environment, mounts: &Mounts, state_dir: &Path) -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = config.tiers.value.iter().map(|tier| tier.dir.clone()).collect();
    // Of these, the ones that were used: many are somebody else's.
    let uid = geteuid().as_raw();
    let is_used = |dir: &PathBuf| forebay_store::root_path(dir, uid).symlink_metadata().is_ok();
    dirs.extend(possible(environment, mounts).into_iter().filter(is_used));
    dirs.extend(used::known(state_dir).into_iter().map(|tier| tier.setting.dir));
    dirs
}

/// Directories that were named by `--tier`, each as `DIR` or, as for a run, `DIR=SIZE`.
///
/// # Errors
/// One that is not a directory.
pub fn directories_of(words: &[OsString], environment: &Environment) -> Result<Vec<PathBuf>, UserError> {
    let check = |word: &OsString| {
        let dir = environment.make_absolute(directory_of(word));
        if dir.is_dir() {
            return Ok(dir);
        }
        Err(UserError::bad_input(format_args!(
            "--tier: {} is not a directory; name the directory of a tier",
            dir.display()
        )))
    };
    words.iter().map(check).collect()
}

fn directory_of(word: &OsStr) -> &Path {
    let bytes = word.as_bytes();
    let end = bytes
        .iter()
        .rposition(|byte| *byte == b'=')
        .filter(|_| !Path::new(word).is_dir())
        .unwrap_or(bytes.len());
    Path::new(OsStr::from_bytes(bytes.get(..end).unwrap_or(bytes)))
}

/// Without links, each once; what does not exist is left out.
pub fn distinct(dirs: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = dirs.into_iter().filter_map(|dir| dir.canonicalize().ok()).collect();
    dirs.sort();
    dirs.dedup();
    dirs
}

/// `dir` as a tier with what room there is, if it can be one.
fn usable(dir: &Path, sources: &[SourceDir], mounts: &Mounts) -> Option<Chosen> {
    // A path that leads onto a network file system is not touched: it may hang.
    let networks: Vec<PathBuf> = mounts
        .iter()
        .filter(|mount| mount.kind() == FsKind::Network)
        .map(|mount| mount.point.clone())
        .collect();
    if crate::mounts::reach(dir, &networks).is_some_and(|(at, _)| networks.get(at).is_some_and(|point| point != Path::new("/"))) {
        return None;
    }
    let dir = dir.canonicalize().ok().filter(|dir| dir.is_dir())?;
    let (kind, fs_type) = kind_of(&dir, mounts);
    let in_source = sources.iter().any(|source| dir.starts_with(&source.dir));
    if kind != FsKind::Local || in_source || writable(&dir).is_err() || anybody_may_rename(&dir) {
        return None;
    }
    let room = statvfs(&dir).ok()?;
    let (free, total) = (
        room.f_bavail.saturating_mul(room.f_frsize),
        room.f_blocks.saturating_mul(room.f_frsize),
    );
    let floor = total / 100 * FLOOR_PERCENT;
    let bytes = round_down(free.saturating_sub(floor) / 100 * TAKE_PERCENT);
    let has_own = forebay_store::root_path(&dir, geteuid().as_raw()).is_dir();
    if bytes < FOUND_BYTES_MIN && !has_own {
        return None;
    }
    let why = format!(
        "{fs_type}, {} free of {}: {TAKE_PERCENT} % of what is above {FLOOR_PERCENT} %",
        text::bytes(free),
        text::bytes(total)
    );
    Some(Chosen::new(TierSetting::kept(dir, bytes), fs_type, why))
}

/// To a number that reads well: whole GiB, or tenths of one.
fn round_down(bytes: u64) -> u64 {
    let step = if bytes >= 10 << 30 { 1 << 30 } else { 100 << 20 };
    bytes / step * step
}

fn recall(state_dir: &Path, mut tier: Chosen) -> Chosen {
    let has_own = forebay_store::root_path(&tier.setting.dir, geteuid().as_raw()).is_dir();
    // What is free has shrunk by the room that its own copies take; fewer of them would not help.
    let known = used::known(state_dir)
        .into_iter()
        .find(|known| has_own && known.was_found && known.setting.dir == tier.setting.dir);
    if let Some(known) = known {
        tier.setting.bytes = tier.setting.bytes.max(known.setting.bytes);
    }
    tier
}
