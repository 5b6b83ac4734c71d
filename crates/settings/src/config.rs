//! Settings, resolved once: flags, then the environment, then the user's configuration file, then the site's, then
//! defaults. Each value knows its origin. No code below reads the environment again.

mod values;
pub mod views;

use std::{
    ffi::{OsStr, OsString},
    fmt, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use forebay_agent::tiering::{TierSetting, protocol::RunFreshness};
use forebay_contract::env;
use forebay_policy::eviction::TierPolicy;
use serde::Deserialize;

pub(crate) use values::parse_ram;
pub use values::{Prefetch, TierOrder, freshness_text};
use values::{parse_exclude, parse_freshness, parse_policy, parse_prefetch, parse_tier_order};
pub use views::ViewWish;

use crate::{environment::Environment, refusal::Refusal, size::parse_size};

/// Freshness unless told otherwise: seconds.
const TTL_DEFAULT_S: u64 = 60;
/// Variables in which launchers tell a process its rank in the job.
const RANKS: &[&str] = &["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"];
/// Configuration file of the site for all users, unless `FOREBAY_SITE_CONFIG` names another one.
const SITE_FILE: &str = "/etc/forebay/config.toml";
/// A configuration file is not longer.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An option of the command line.
    Flag(&'static str),
    /// An argument of a Python function, with its value.
    Argument(String),
    /// An environment variable.
    Environment(&'static str),
    /// A key of the configuration file.
    File(PathBuf, &'static str),
    /// Nobody asked for anything else.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => f.write_str(name),
            Self::Argument(text) => f.write_str(text),
            Self::Environment(name) => write!(f, "${name}"),
            Self::File(path, key) => write!(f, "{key} in {}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A value and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Origin of the value.
    pub origin: Origin,
}

impl<T> Setting<T> {
    fn default(value: T) -> Self {
        Self {
            value,
            origin: Origin::Default,
        }
    }
}

/// Everything that was asked for.
#[derive(Clone, Debug)]
pub struct Config {
    /// Source directories, absolute; none: they are found.
    pub sources: Setting<Vec<PathBuf>>,
    /// Tiers, each with an absolute path, not checked yet; none: they are found.
    pub tiers: Setting<Vec<TierSetting>>,
    /// Object stores, and the directories that they are fetched into.
    pub views: Setting<Vec<ViewWish>>,
    /// Bytes of the tier in memory; `None`: there is none.
    pub ram: Setting<Option<u64>>,
    /// Order in which tiers are used.
    pub tier_order: Setting<TierOrder>,
    /// Policy that makes room.
    pub policy: Setting<TierPolicy>,
    /// Copies that are made before a program has opened a file.
    pub prefetch: Setting<Prefetch>,
    /// Patterns of files that are the source's alone.
    pub excludes: Setting<Vec<OsString>>,
    /// Freshness.
    pub freshness: Setting<RunFreshness>,
    /// Keep the agent.
    pub keep: Setting<bool>,
    /// The record's file, absolute; `None`: one in the state directory.
    pub record: Setting<Option<PathBuf>>,
    /// Print no summary.
    pub quiet: Setting<bool>,
    /// Directory for sockets and shared memory; `None`: the usual one.
    pub runtime_dir: Setting<Option<PathBuf>>,
    /// Directory for records and the user's secret; `None`: the usual one.
    pub state_dir: Setting<Option<PathBuf>>,
    /// The preload library; `None`: beside the command.
    pub preload: Setting<Option<PathBuf>>,
    /// The configuration files that were read, the user's before the site's.
    pub files: Vec<PathBuf>,
}

/// Returns whether the environment switches everything off.
///
/// # Errors
/// A value that is neither on nor off.
pub fn is_off(environment: &Environment) -> Result<bool, Refusal> {
    Ok(!switch(environment, env::FOREBAY)?.unwrap_or(true))
}

/// Settings of one origin; `None` if it does not set a value.
#[derive(Debug, Default)]
struct Layer {
    sources: Option<Setting<Vec<PathBuf>>>,
    tiers: Option<Setting<Vec<TierSetting>>>,
    views: Option<Setting<Vec<ViewWish>>>,
    ram: Option<Setting<u64>>,
    tier_order: Option<Setting<TierOrder>>,
    policy: Option<Setting<TierPolicy>>,
    prefetch: Option<Setting<Prefetch>>,
    excludes: Option<Setting<Vec<OsString>>>,
    freshness: Option<Setting<RunFreshness>>,
    keep: Option<Setting<bool>>,
    record: Option<Setting<PathBuf>>,
    quiet: Option<Setting<bool>>,
    runtime_dir: Option<Setting<PathBuf>>,
    state_dir: Option<Setting<PathBuf>>,
}

/// Options of a command line, as they were typed; each overrides the environment and the configuration files.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--source`.
    pub source: Vec<PathBuf>,
    /// `--tier`, each `DIR=SIZE`.
    pub tier: Vec<OsString>,
    /// `--tier-order`.
    pub tier_order: Option<OsString>,
    /// `--ram`.
    pub ram: Option<OsString>,
    /// `--policy`.
    pub policy: Option<OsString>,
    /// `--prefetch`.
    pub prefetch: Option<OsString>,
    /// `--exclude`.
    pub exclude: Vec<OsString>,
    /// `--freshness`.
    pub freshness: Option<OsString>,
    /// `--view`, each `ADDRESS=DIR`.
    pub view: Vec<OsString>,
    /// `--keep`.
    pub keep: bool,
    /// `--record`.
    pub record: Option<PathBuf>,
    /// `--quiet`.
    pub quiet: bool,
}

impl Config {
    /// Resolves what was asked for.
    ///
    /// # Errors
    /// A value without meaning, an unknown key, a configuration file that others can write.
    pub fn resolve(flags: &Flags, environment: &Environment) -> Result<Self, Refusal> {
        let files = find_files(environment)?;
        let typed = [from_flags(flags, environment)?, from_environment(environment)?];
        let written = files.iter().map(|path| read_file(path)).collect::<Result<Vec<_>, _>>()?;
        let mut of = Layer::default();
        for layer in typed.into_iter().chain(written) {
            of.sources = of.sources.or(layer.sources);
            of.tiers = of.tiers.or(layer.tiers);
            of.views = of.views.or(layer.views);
            of.ram = of.ram.or(layer.ram);
            of.tier_order = of.tier_order.or(layer.tier_order);
            of.policy = of.policy.or(layer.policy);
            of.prefetch = of.prefetch.or(layer.prefetch);
            of.excludes = of.excludes.or(layer.excludes);
            of.freshness = of.freshness.or(layer.freshness);
            of.keep = of.keep.or(layer.keep);
            of.record = of.record.or(layer.record);
            of.quiet = of.quiet.or(layer.quiet);
            of.runtime_dir = of.runtime_dir.or(layer.runtime_dir);
            of.state_dir = of.state_dir.or(layer.state_dir);
        }
        let preload = environment.get(env::PRELOAD).map(|path| Setting {
            value: environment.make_absolute(Path::new(path)),
            origin: Origin::Environment(env::PRELOAD),
        });
        Ok(Self {
            sources: of.sources.unwrap_or_else(|| Setting::default(Vec::new())),
            tiers: of.tiers.unwrap_or_else(|| Setting::default(Vec::new())),
            views: of.views.unwrap_or_else(|| Setting::default(Vec::new())),
            ram: optional(of.ram),
            tier_order: of.tier_order.unwrap_or_else(|| Setting::default(TierOrder::default())),
            policy: of.policy.unwrap_or_else(|| Setting::default(TierPolicy::default())),
            prefetch: of.prefetch.unwrap_or_else(|| Setting::default(Prefetch::default())),
            excludes: of.excludes.unwrap_or_else(|| Setting::default(Vec::new())),
            freshness: of.freshness.unwrap_or_else(|| Setting::default(RunFreshness::Ttl(TTL_DEFAULT_S))),
            keep: of.keep.unwrap_or_else(|| Setting::default(false)),
            record: optional(of.record),
            quiet: of.quiet.unwrap_or_else(|| quiet_rank(environment)),
            runtime_dir: optional(of.runtime_dir),
            state_dir: optional(of.state_dir),
            preload: optional(preload),
            files,
        })
    }
}

/// Returns the default of `quiet`: true for all ranks but the first of a parallel job in which each rank has a run of
/// its own. The other ranks would print the same.
fn quiet_rank(environment: &Environment) -> Setting<bool> {
    let is_later = |name: &&&str| {
        environment
            .get(name)
            .is_some_and(|rank| rank.to_string_lossy().parse::<u32>().is_ok_and(|rank| rank > 0))
    };
    match RANKS.iter().find(is_later) {
        Some(name) => Setting {
            value: true,
            origin: Origin::Environment(name),
        },
        None => Setting::default(false),
    }
}

fn optional<T>(setting: Option<Setting<T>>) -> Setting<Option<T>> {
    setting.map_or_else(
        || Setting::default(None),
        |setting| Setting {
            value: Some(setting.value),
            origin: setting.origin,
        },
    )
}

fn from_flags(flags: &Flags, environment: &Environment) -> Result<Layer, Refusal> {
    let source = Origin::Flag("--source");
    let tier = Origin::Flag("--tier");
    let view = Origin::Flag("--view");
    let ram = Origin::Flag("--ram");
    let tier_order = Origin::Flag("--tier-order");
    let policy = Origin::Flag("--policy");
    let prefetch = Origin::Flag("--prefetch");
    let exclude = Origin::Flag("--exclude");
    let freshness = Origin::Flag("--freshness");
    Ok(Layer {
        sources: list(&flags.source, &source, |dir| source_dir(&source, environment, dir))?,
        tiers: list(&flags.tier, &tier, |text| parse_tier(&tier, environment, text))?,
        views: list(&flags.view, &view, |text| views::parse(&view, environment, text))?,
        ram: flags.ram.as_deref().map(|text| parse_ram(&ram, text)).transpose()?,
        tier_order: flags
            .tier_order
            .as_deref()
            .map(|text| parse_tier_order(&tier_order, text))
            .transpose()?,
        policy: flags.policy.as_deref().map(|text| parse_policy(&policy, text)).transpose()?,
        prefetch: flags.prefetch.as_deref().map(|text| parse_prefetch(&prefetch, text)).transpose()?,
        excludes: list(&flags.exclude, &exclude, |text| parse_exclude(&exclude, text))?,
        freshness: flags
            .freshness
            .as_deref()
            .map(|text| parse_freshness(&freshness, text))
            .transpose()?,
        keep: flags.keep.then_some(Setting {
            value: true,
            origin: Origin::Flag("--keep"),
        }),
        record: flags.record.as_ref().map(|path| Setting {
            value: environment.make_absolute(path),
            origin: Origin::Flag("--record"),
        }),
        quiet: flags.quiet.then_some(Setting {
            value: true,
            origin: Origin::Flag("--quiet"),
        }),
        ..Layer::default()
    })
}

fn from_environment(environment: &Environment) -> Result<Layer, Refusal> {
    let pieces = |name| environment.get(name).map(split_colons).unwrap_or_default();
    let path = |name| {
        let value = environment.get(name).map(|path| environment.make_absolute(Path::new(path)));
        value.map(|value| Setting {
            value,
            origin: Origin::Environment(name),
        })
    };
    let flag = |name| -> Result<_, Refusal> {
        Ok(switch(environment, name)?.map(|value| Setting {
            value,
            origin: Origin::Environment(name),
        }))
    };
    let source = Origin::Environment(env::SOURCE);
    let tier = Origin::Environment(env::TIER);
    let view = Origin::Environment(env::VIEW);
    let views = environment.get(env::VIEW).map(views::split).unwrap_or_default();
    let ram = Origin::Environment(env::RAM);
    let tier_order = Origin::Environment(env::TIER_ORDER);
    let policy = Origin::Environment(env::POLICY);
    let prefetch = Origin::Environment(env::PREFETCH);
    let exclude = Origin::Environment(env::EXCLUDE);
    let freshness = Origin::Environment(env::FRESHNESS);
    Ok(Layer {
        sources: list(&pieces(env::SOURCE), &source, |dir| {
            source_dir(&source, environment, Path::new(dir))
        })?,
        tiers: list(&pieces(env::TIER), &tier, |text| parse_tier(&tier, environment, text))?,
        views: list(&views, &view, |text| views::parse(&view, environment, text))?,
        ram: environment.get(env::RAM).map(|text| parse_ram(&ram, text)).transpose()?,
        tier_order: environment
            .get(env::TIER_ORDER)
            .map(|text| parse_tier_order(&tier_order, text))
            .transpose()?,
        policy: environment.get(env::POLICY).map(|text| parse_policy(&policy, text)).transpose()?,
        prefetch: environment
            .get(env::PREFETCH)
            .map(|text| parse_prefetch(&prefetch, text))
            .transpose()?,
        excludes: list(&pieces(env::EXCLUDE), &exclude, |text| parse_exclude(&exclude, text))?,
        freshness: environment
            .get(env::FRESHNESS)
            .map(|text| parse_freshness(&freshness, text))
            .transpose()?,
        keep: flag(env::KEEP)?,
        record: path(env::RECORD),
        quiet: flag(env::QUIET)?,
        runtime_dir: path(env::RUNTIME_DIR),
        state_dir: path(env::STATE_DIR),
    })
}

fn list<I, T>(items: &[I], origin: &Origin, parse: impl Fn(&I) -> Result<T, Refusal>) -> Result<Option<Setting<Vec<T>>>, Refusal> {
    if items.is_empty() {
        return Ok(None);
    }
    let value = items.iter().map(parse).collect::<Result<_, _>>()?;
    Ok(Some(Setting {
        value,
        origin: origin.clone(),
    }))
}

fn split_colons(text: &OsStr) -> Vec<OsString> {
    let pieces = text.as_bytes().split(|byte| *byte == b':');
    pieces
        .filter(|piece| !piece.is_empty())
        .map(|piece| OsStr::from_bytes(piece).to_owned())
        .collect()
}

/// `on`, `off` and what people write for these.
fn switch(environment: &Environment, name: &'static str) -> Result<Option<bool>, Refusal> {
    let Some(value) = environment.get(name) else { return Ok(None) };
    match value.to_string_lossy().to_ascii_lowercase().as_str() {
        "1" | "on" | "yes" | "true" => Ok(Some(true)),
        "0" | "off" | "no" | "false" => Ok(Some(false)),
        other => Err(Refusal::bad_input(format_args!(
            "${name}: '{other}' is neither on nor off; write one of them"
        ))),
    }
}

fn source_dir(origin: &Origin, environment: &Environment, dir: &Path) -> Result<PathBuf, Refusal> {
    if dir.as_os_str().is_empty() {
        return Err(Refusal::bad_input(format_args!("{origin}: there is no directory; name one")));
    }
    Ok(environment.make_absolute(dir))
}

pub(crate) fn parse_tier(origin: &Origin, environment: &Environment, text: &OsStr) -> Result<TierSetting, Refusal> {
    let bytes = text.as_bytes();
    let shown = text.to_string_lossy();
    let Some(at) = bytes.iter().rposition(|byte| *byte == b'=') else {
        return Err(Refusal::bad_input(format_args!(
            "{origin}: {shown} has no size; write DIR=SIZE, such as {shown}=200G"
        )));
    };
    let (dir, size) = (bytes.get(..at).unwrap_or_default(), bytes.get(at + 1..).unwrap_or_default());
    if dir.is_empty() {
        return Err(Refusal::bad_input(format_args!(
            "{origin}: '{shown}' names no directory; write DIR=SIZE, such as /scratch=200G"
        )));
    }
    let bytes = parse_size(&format!("{origin} {shown}"), &String::from_utf8_lossy(size))?;
    Ok(TierSetting::kept(
        environment.make_absolute(Path::new(OsStr::from_bytes(dir))),
        bytes,
    ))
}

/// The configuration files that there are: the user's, then the site's. Never in the current directory: that may be
/// anybody's (S6).
fn find_files(environment: &Environment) -> Result<Vec<PathBuf>, Refusal> {
    let in_home = || {
        let place = environment
            .absolute("XDG_CONFIG_HOME")
            .or_else(|| Some(environment.home()?.join(".config")));
        place.map(|dir| dir.join("forebay/config.toml"))
    };
    let user = match named_file(environment, env::CONFIG)? {
        Some(named) => Some(named),
        None => in_home().filter(|path| path.exists()),
    };
    let site = match named_file(environment, env::SITE_CONFIG)? {
        Some(named) => Some(named),
        None => Some(PathBuf::from(SITE_FILE)).filter(|path| path.exists()),
    };
    Ok(user.into_iter().chain(site).collect())
}

/// The configuration file that a variable names. It must be there: a run that leaves it out would not be what was
/// asked for.
fn named_file(environment: &Environment, variable: &str) -> Result<Option<PathBuf>, Refusal> {
    let Some(named) = environment.get(variable) else { return Ok(None) };
    let path = environment.make_absolute(Path::new(named));
    if path.exists() {
        return Ok(Some(path));
    }
    Err(Refusal::bad_input(format_args!(
        "${variable}: {} does not exist; create it or unset the variable",
        path.display()
    )))
}

/// Keys of the configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    source: Option<Vec<String>>,
    tier: Option<Vec<String>>,
    view: Option<Vec<String>>,
    ram: Option<String>,
    tier_order: Option<String>,
    policy: Option<String>,
    prefetch: Option<String>,
    exclude: Option<Vec<String>>,
    freshness: Option<String>,
    keep: Option<bool>,
    record: Option<PathBuf>,
    quiet: Option<bool>,
    runtime_dir: Option<PathBuf>,
    state_dir: Option<PathBuf>,
}

fn read_file(path: &Path) -> Result<Layer, Refusal> {
    let text = read_trusted(path)?;
    let file: ConfigFile = toml::from_str(&text).map_err(|error| {
        let line = error
            .span()
            .map_or(1, |span| text.get(..span.start).unwrap_or_default().matches('\n').count() + 1);
        Refusal::bad_input(format_args!("{}:{line}: {}", path.display(), error.message()))
    })?;
    let origin = |key| Origin::File(path.to_owned(), key);
    // A file has no current directory.
    let nowhere = Environment::default();
    let absolute = |key, dir: &Path| {
        if dir.is_absolute() {
            return Ok(nowhere.make_absolute(dir));
        }
        Err(Refusal::bad_input(format_args!(
            "{}: '{}' must be an absolute path",
            origin(key),
            dir.display()
        )))
    };
    let path_of = |key, value: Option<PathBuf>| -> Result<_, Refusal> {
        value
            .map(|value| {
                Ok(Setting {
                    value: absolute(key, &value)?,
                    origin: origin(key),
                })
            })
            .transpose()
    };
    let tier = |text: &String| {
        let wish = parse_tier(&origin("tier"), &nowhere, OsStr::new(text))?;
        absolute("tier", &wish.dir).map(|dir| TierSetting { dir, ..wish })
    };
    Ok(Layer {
        sources: list(&file.source.unwrap_or_default(), &origin("source"), |dir| {
            absolute("source", Path::new(dir))
        })?,
        tiers: list(&file.tier.unwrap_or_default(), &origin("tier"), tier)?,
        views: list(&file.view.unwrap_or_default(), &origin("view"), |text| {
            let wish = views::parse(&origin("view"), &nowhere, OsStr::new(text))?;
            absolute("view", &wish.dir).map(|dir| ViewWish { dir, ..wish })
        })?,
        ram: parsed(&origin("ram"), file.ram, parse_ram)?,
        tier_order: parsed(&origin("tier_order"), file.tier_order, parse_tier_order)?,
        policy: parsed(&origin("policy"), file.policy, parse_policy)?,
        prefetch: parsed(&origin("prefetch"), file.prefetch, parse_prefetch)?,
        excludes: list(&file.exclude.unwrap_or_default(), &origin("exclude"), |text| {
            parse_exclude(&origin("exclude"), OsStr::new(text))
        })?,
        freshness: parsed(&origin("freshness"), file.freshness, parse_freshness)?,
        keep: file.keep.map(|value| Setting {
            value,
            origin: origin("keep"),
        }),
        record: path_of("record", file.record)?,
        quiet: file.quiet.map(|value| Setting {
            value,
            origin: origin("quiet"),
        }),
        runtime_dir: path_of("runtime_dir", file.runtime_dir)?,
        state_dir: path_of("state_dir", file.state_dir)?,
    })
}

/// A value that a file has as text.
fn parsed<T>(origin: &Origin, text: Option<String>, parse: fn(&Origin, &OsStr) -> Result<T, Refusal>) -> Result<Option<T>, Refusal> {
    text.map(|text| parse(origin, OsStr::new(&text))).transpose()
}

/// The text of a file that nobody but this user and root can have written (S6).
fn read_trusted(path: &Path) -> Result<String, Refusal> {
    let refuse = |why: &dyn fmt::Display| Refusal::bad_input(format_args!("{}: {why}", path.display()));
    let file = std::fs::File::open(path).map_err(|error| refuse(&error))?;
    let meta = file.metadata().map_err(|error| refuse(&error))?;
    let user = rustix::process::geteuid().as_raw();
    if !meta.is_file() {
        return Err(refuse(&"the configuration is no file; remove it"));
    }
    if meta.uid() != user && meta.uid() != 0 {
        return Err(refuse(
            &"the configuration belongs to another user, who could choose what runs here; use a file of your own",
        ));
    }
    if meta.mode() & 0o022 != 0 {
        return Err(refuse(&format_args!(
            "others can write the configuration; chmod go-w {}",
            path.display()
        )));
    }
    if meta.len() > FILE_BYTES_MAX {
        return Err(refuse(&"the configuration is longer than 1 MiB"));
    }
    io::read_to_string(file).map_err(|error| refuse(&error))
}
