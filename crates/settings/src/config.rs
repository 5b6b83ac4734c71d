//! Settings, resolved once: flags, then the environment, then the user's configuration file, then the site's, then
//! defaults. Each value knows its origin. No code below reads the environment again.

pub mod peers;
mod values;
pub mod views;

use std::{
    ffi::{OsStr, OsString},
    fmt, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use forebay_agent::tiering::TierSetting;
use forebay_contract::{Freshness, env};
use forebay_policy::eviction::TierPolicy;
use serde::{Deserialize, Deserializer};

use peers::{PeerSettings, PeersLayer, WrittenPeers};
pub(crate) use values::parse_ram;
pub use values::{PrefetchMode, TierOrder, freshness_text};
use values::{parse_exclude, parse_freshness, parse_policy, parse_prefetch, parse_tier_order};
pub use views::ViewWish;

use crate::{environment::Environment, size::parse_size, user_error::UserError};

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
pub enum SettingOrigin {
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

impl fmt::Display for SettingOrigin {
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
    pub origin: SettingOrigin,
}

impl<T> Setting<T> {
    /// Joins a value and its origin.
    pub const fn new(value: T, origin: SettingOrigin) -> Self {
        Self { value, origin }
    }

    const fn default(value: T) -> Self {
        Self::new(value, SettingOrigin::Default)
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
    pub prefetch: Setting<PrefetchMode>,
    /// Patterns of files that are the source's alone.
    pub excludes: Setting<Vec<OsString>>,
    /// Freshness.
    pub freshness: Setting<Freshness>,
    /// Keep the agent.
    pub keep: Setting<bool>,
    /// True if shared libraries are served.
    pub libraries: Setting<bool>,
    /// The record's file, absolute; `None`: one in the state directory.
    pub record: Setting<Option<PathBuf>>,
    /// Print no summary.
    pub quiet: Setting<bool>,
    /// Nodes of a job that share what they keep.
    pub peers: PeerSettings,
    /// Our own files.
    pub own_paths: OwnPaths,
    /// The configuration files that were read, the user's before the site's.
    pub files: Vec<PathBuf>,
}

/// Places of Forebay's own files; `None`: the usual ones.
#[derive(Clone, Debug)]
pub struct OwnPaths {
    /// Directory for sockets and shared memory.
    pub runtime: Setting<Option<PathBuf>>,
    /// Directory for records and the user's secret.
    pub state: Setting<Option<PathBuf>>,
    /// The preload library; `None`: beside the command.
    pub preload: Setting<Option<PathBuf>>,
}

/// Returns whether the environment switches everything off.
///
/// # Errors
/// A value that is neither on nor off.
pub fn is_off(environment: &Environment) -> Result<bool, UserError> {
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
    prefetch: Option<Setting<PrefetchMode>>,
    excludes: Option<Setting<Vec<OsString>>>,
    freshness: Option<Setting<Freshness>>,
    keep: Option<Setting<bool>>,
    libraries: Option<Setting<bool>>,
    record: Option<Setting<PathBuf>>,
    quiet: Option<Setting<bool>>,
    peers: PeersLayer,
    runtime_dir: Option<Setting<PathBuf>>,
    state_dir: Option<Setting<PathBuf>>,
}

/// Settings of one origin as they were written: options of a command line, variables, or a configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WrittenSettings {
    /// Sources.
    pub source: Vec<PathBuf>,
    /// Tiers, each `DIR=SIZE`.
    #[serde(deserialize_with = "texts")]
    pub tier: Vec<OsString>,
    /// Views, each `ADDRESS=DIR`.
    #[serde(deserialize_with = "texts")]
    pub view: Vec<OsString>,
    /// Size of the tier in memory.
    #[serde(deserialize_with = "text")]
    pub ram: Option<OsString>,
    /// Order of tiers.
    #[serde(deserialize_with = "text")]
    pub tier_order: Option<OsString>,
    /// Policy for full tiers.
    #[serde(deserialize_with = "text")]
    pub policy: Option<OsString>,
    /// Kind of prefetch.
    #[serde(deserialize_with = "text")]
    pub prefetch: Option<OsString>,
    /// Patterns of excluded files.
    #[serde(deserialize_with = "texts")]
    pub exclude: Vec<OsString>,
    /// Freshness.
    #[serde(deserialize_with = "text")]
    pub freshness: Option<OsString>,
    /// Keep the agent.
    pub keep: Option<bool>,
    /// Serve shared libraries.
    pub libraries: Option<bool>,
    /// The record's file.
    pub record: Option<PathBuf>,
    /// Print no summary.
    pub quiet: Option<bool>,
    /// Nodes of a job that share what they keep.
    pub peers: WrittenPeers,
    /// Directory for sockets and shared memory; no option sets it.
    pub runtime_dir: Option<PathBuf>,
    /// Directory for records and the user's secret; no option sets it.
    pub state_dir: Option<PathBuf>,
}

fn text<'de, D: Deserializer<'de>>(value: D) -> Result<Option<OsString>, D::Error> {
    String::deserialize(value).map(|text| Some(text.into()))
}

fn texts<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<OsString>, D::Error> {
    Vec::<String>::deserialize(value).map(|texts| texts.into_iter().map(OsString::from).collect())
}

/// Names of a setting: as an option, as a variable, and as a key of a configuration file.
struct Names(&'static str, &'static str, &'static str);

const SOURCE: Names = Names("--source", env::SOURCE, "source");
const TIER: Names = Names("--tier", env::TIER, "tier");
const VIEW: Names = Names("--view", env::VIEW, "view");
const RAM: Names = Names("--ram", env::RAM, "ram");
const TIER_ORDER: Names = Names("--tier-order", env::TIER_ORDER, "tier_order");
const POLICY: Names = Names("--policy", env::POLICY, "policy");
const PREFETCH: Names = Names("--prefetch", env::PREFETCH, "prefetch");
const EXCLUDE: Names = Names("--exclude", env::EXCLUDE, "exclude");
const FRESHNESS: Names = Names("--freshness", env::FRESHNESS, "freshness");
const KEEP: Names = Names("--keep", env::KEEP, "keep");
const LIBRARIES: Names = Names("--libraries", env::LIBRARIES, "libraries");
const RECORD: Names = Names("--record", env::RECORD, "record");
const QUIET: Names = Names("--quiet", env::QUIET, "quiet");
const RUNTIME_DIR: Names = Names("", env::RUNTIME_DIR, "runtime_dir");
const STATE_DIR: Names = Names("", env::STATE_DIR, "state_dir");

impl WrittenSettings {
    /// Reads all values. `origin` returns the origin of a setting.
    fn parse(&self, environment: &Environment, origin: impl Fn(&Names) -> SettingOrigin) -> Result<Layer, UserError> {
        let path = |names, path: &Option<PathBuf>| -> Result<_, UserError> {
            let (origin, Some(path)) = (origin(names), path) else {
                return Ok(None);
            };
            Ok(Some(Setting::new(absolute(&origin, environment, path)?, origin)))
        };
        let source = |origin: &SettingOrigin, dir: &PathBuf| {
            if dir.as_os_str().is_empty() {
                return Err(UserError::bad_input(format_args!("{origin}: there is no directory; name one")));
            }
            absolute(origin, environment, dir)
        };
        let tier = |origin: &SettingOrigin, text: &OsString| {
            let wish = parse_tier(origin, environment, text)?;
            absolute(origin, environment, &wish.dir).map(|dir| TierSetting { dir, ..wish })
        };
        let view = |origin: &SettingOrigin, text: &OsString| {
            let wish = views::parse(origin, environment, text)?;
            absolute(origin, environment, &wish.dir).map(|dir| ViewWish { dir, ..wish })
        };
        Ok(Layer {
            sources: all(origin(&SOURCE), &self.source, source)?,
            tiers: all(origin(&TIER), &self.tier, tier)?,
            views: all(origin(&VIEW), &self.view, view)?,
            ram: one(origin(&RAM), self.ram.as_ref(), parse_ram)?,
            tier_order: one(origin(&TIER_ORDER), self.tier_order.as_ref(), parse_tier_order)?,
            policy: one(origin(&POLICY), self.policy.as_ref(), parse_policy)?,
            prefetch: one(origin(&PREFETCH), self.prefetch.as_ref(), parse_prefetch)?,
            excludes: all(origin(&EXCLUDE), &self.exclude, |origin, text| parse_exclude(origin, text))?,
            freshness: one(origin(&FRESHNESS), self.freshness.as_ref(), parse_freshness)?,
            keep: self.keep.map(|keep| Setting::new(keep, origin(&KEEP))),
            libraries: self.libraries.map(|libraries| Setting::new(libraries, origin(&LIBRARIES))),
            record: path(&RECORD, &self.record)?,
            quiet: self.quiet.map(|quiet| Setting::new(quiet, origin(&QUIET))),
            peers: self.peers.parse(environment, &origin)?,
            runtime_dir: path(&RUNTIME_DIR, &self.runtime_dir)?,
            state_dir: path(&STATE_DIR, &self.state_dir)?,
        })
    }

    /// Returns the values of variables.
    fn from_environment(environment: &Environment) -> Result<Self, UserError> {
        let text = |name| environment.get(name).map(OsStr::to_owned);
        let pieces = |name| environment.get(name).map(split_colons).unwrap_or_default();
        Ok(Self {
            source: pieces(env::SOURCE).into_iter().map(PathBuf::from).collect(),
            tier: pieces(env::TIER),
            view: environment.get(env::VIEW).map(views::split).unwrap_or_default(),
            ram: text(env::RAM),
            tier_order: text(env::TIER_ORDER),
            policy: text(env::POLICY),
            prefetch: text(env::PREFETCH),
            exclude: pieces(env::EXCLUDE),
            freshness: text(env::FRESHNESS),
            keep: switch(environment, env::KEEP)?,
            libraries: switch(environment, env::LIBRARIES)?,
            record: text(env::RECORD).map(PathBuf::from),
            quiet: switch(environment, env::QUIET)?,
            peers: WrittenPeers::from_environment(environment),
            runtime_dir: text(env::RUNTIME_DIR).map(PathBuf::from),
            state_dir: text(env::STATE_DIR).map(PathBuf::from),
        })
    }
}

fn all<I, T>(
    origin: SettingOrigin,
    items: &[I],
    parse: impl Fn(&SettingOrigin, &I) -> Result<T, UserError>,
) -> Result<Option<Setting<Vec<T>>>, UserError> {
    let values = items.iter().map(|item| parse(&origin, item)).collect::<Result<Vec<_>, _>>()?;
    Ok((!values.is_empty()).then_some(Setting::new(values, origin)))
}

fn one<T>(
    origin: SettingOrigin,
    text: Option<&OsString>,
    parse: fn(&SettingOrigin, &OsStr) -> Result<T, UserError>,
) -> Result<Option<Setting<T>>, UserError> {
    let value = text.map(|text| parse(&origin, text)).transpose()?;
    Ok(value.map(|value| Setting::new(value, origin)))
}

/// Makes a path absolute in the current directory. A file has none.
fn absolute(origin: &SettingOrigin, environment: &Environment, path: &Path) -> Result<PathBuf, UserError> {
    let path = environment.make_absolute(path);
    if matches!(origin, SettingOrigin::File(..)) && !path.is_absolute() {
        let line = format_args!("{origin}: '{}' must be an absolute path", path.display());
        return Err(UserError::bad_input(line));
    }
    Ok(path)
}

impl Config {
    /// Resolves what was asked for.
    ///
    /// # Errors
    /// A value without meaning, an unknown key, a configuration file that others can write.
    pub fn resolve(options: &WrittenSettings, environment: &Environment) -> Result<Self, UserError> {
        let files = find_files(environment)?;
        let variables = WrittenSettings::from_environment(environment)?;
        let mut layers = vec![
            options.parse(environment, |names| SettingOrigin::Flag(names.0))?,
            variables.parse(environment, |names| SettingOrigin::Environment(names.1))?,
        ];
        for path in &files {
            // A file has no current directory.
            layers.push(read_file(path)?.parse(&Environment::default(), |names| SettingOrigin::File(path.clone(), names.2))?);
        }
        let mut of = Layer::default();
        for layer in layers {
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
            of.libraries = of.libraries.or(layer.libraries);
            of.record = of.record.or(layer.record);
            of.quiet = of.quiet.or(layer.quiet);
            of.peers = of.peers.or(layer.peers);
            of.runtime_dir = of.runtime_dir.or(layer.runtime_dir);
            of.state_dir = of.state_dir.or(layer.state_dir);
        }
        let preload = environment.get(env::PRELOAD).map(|path| environment.make_absolute(Path::new(path)));
        let preload = preload.map(|path| Setting::new(path, SettingOrigin::Environment(env::PRELOAD)));
        Ok(Self {
            sources: of.sources.unwrap_or_else(|| Setting::default(Vec::new())),
            tiers: of.tiers.unwrap_or_else(|| Setting::default(Vec::new())),
            views: of.views.unwrap_or_else(|| Setting::default(Vec::new())),
            ram: optional(of.ram),
            tier_order: of.tier_order.unwrap_or_else(|| Setting::default(TierOrder::default())),
            policy: of.policy.unwrap_or_else(|| Setting::default(TierPolicy::default())),
            prefetch: of.prefetch.unwrap_or_else(|| Setting::default(PrefetchMode::default())),
            excludes: of.excludes.unwrap_or_else(|| Setting::default(Vec::new())),
            freshness: of
                .freshness
                .unwrap_or_else(|| Setting::default(Freshness::of_seconds(TTL_DEFAULT_S))),
            keep: of.keep.unwrap_or_else(|| Setting::default(false)),
            libraries: of.libraries.unwrap_or_else(|| Setting::default(false)),
            record: optional(of.record),
            quiet: of.quiet.unwrap_or_else(|| quiet_rank(environment)),
            peers: of.peers.resolve(),
            own_paths: OwnPaths {
                runtime: optional(of.runtime_dir),
                state: optional(of.state_dir),
                preload: optional(preload),
            },
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
        Some(name) => Setting::new(true, SettingOrigin::Environment(name)),
        None => Setting::default(false),
    }
}

fn optional<T>(setting: Option<Setting<T>>) -> Setting<Option<T>> {
    setting.map_or_else(
        || Setting::default(None),
        |setting| Setting::new(Some(setting.value), setting.origin),
    )
}

fn split_colons(text: &OsStr) -> Vec<OsString> {
    let pieces = text.as_bytes().split(|byte| *byte == b':');
    pieces
        .filter(|piece| !piece.is_empty())
        .map(|piece| OsStr::from_bytes(piece).to_owned())
        .collect()
}

/// `on`, `off` and what people write for these.
fn switch(environment: &Environment, name: &'static str) -> Result<Option<bool>, UserError> {
    let Some(value) = environment.get(name) else { return Ok(None) };
    match value.to_string_lossy().to_ascii_lowercase().as_str() {
        "1" | "on" | "yes" | "true" => Ok(Some(true)),
        "0" | "off" | "no" | "false" => Ok(Some(false)),
        other => Err(UserError::bad_input(format_args!(
            "${name}: '{other}' is neither on nor off; write one of them"
        ))),
    }
}

pub(crate) fn parse_tier(origin: &SettingOrigin, environment: &Environment, text: &OsStr) -> Result<TierSetting, UserError> {
    let bytes = text.as_bytes();
    let shown = text.to_string_lossy();
    let Some(at) = bytes.iter().rposition(|byte| *byte == b'=') else {
        return Err(UserError::bad_input(format_args!(
            "{origin}: {shown} has no size; write DIR=SIZE, such as {shown}=200G"
        )));
    };
    let (dir, size) = (bytes.get(..at).unwrap_or_default(), bytes.get(at + 1..).unwrap_or_default());
    if dir.is_empty() {
        return Err(UserError::bad_input(format_args!(
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
fn find_files(environment: &Environment) -> Result<Vec<PathBuf>, UserError> {
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
fn named_file(environment: &Environment, variable: &str) -> Result<Option<PathBuf>, UserError> {
    let Some(named) = environment.get(variable) else { return Ok(None) };
    let path = environment.make_absolute(Path::new(named));
    if path.exists() {
        return Ok(Some(path));
    }
    Err(UserError::bad_input(format_args!(
        "${variable}: {} does not exist; create it or unset the variable",
        path.display()
    )))
}

fn read_file(path: &Path) -> Result<WrittenSettings, UserError> {
    let text = read_trusted(path)?;
    toml::from_str(&text).map_err(|error| {
        let line = error
            .span()
            .map_or(1, |span| text.get(..span.start).unwrap_or_default().matches('\n').count() + 1);
        let why = error
            .message()
            .replace("unknown field", "unknown key")
            .replace("a sequence", r#"a list, such as ["/lustre"]"#)
            .replace("struct WrittenPeers", r#"a table, such as peers.nodes = "auto""#);
        UserError::bad_input(format_args!("{}:{line}: {why} (docs/guides.md lists the keys)", path.display()))
    })
}

/// The text of a file that nobody but this user and root can have written (S6).
fn read_trusted(path: &Path) -> Result<String, UserError> {
    let refuse = |why: &dyn fmt::Display| UserError::bad_input(format_args!("{}: {why}", path.display()));
    let file = std::fs::File::open(path).map_err(|error| refuse(&error))?;
    let meta = file.metadata().map_err(|error| refuse(&error))?;
    let user = rustix::process::geteuid().as_raw();
    if !meta.is_file() {
        return Err(refuse(&"the configuration is not a file; remove it"));
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
