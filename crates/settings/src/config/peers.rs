//! Settings of the nodes of a job that share what they keep.

use std::{
    ffi::{OsStr, OsString},
    fmt,
    path::PathBuf,
};

use forebay_contract::env;
use forebay_policy::peers::JOB_NODES_MAX;
use serde::{Deserialize, Deserializer};

use super::{Names, Setting, SettingOrigin, absolute, text};
use crate::{environment::Environment, user_error::UserError};

const NODES: Names = Names("--peers", env::PEERS, "peers.nodes");
const DIR: Names = Names("", env::PEERS_DIR, "peers.dir");
const INTERFACE: Names = Names("--peers-interface", env::PEERS_INTERFACE, "peers.interface");
const SECRET: Names = Names("", env::PEERS_SECRET, "peers.secret");
const GROUP: Names = Names("", env::PEERS_GROUP, "peers.group");

/// Most nodes of a group, if nobody says another number: a server has at most 1,024 connections, and a node may have
/// several to it.
const GROUP_MAX: u16 = 500;

/// Nodes that share what they keep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PeerNodes {
    /// All nodes of the job, as its launcher says.
    #[default]
    Auto,
    /// Each node stays alone.
    Off,
    /// Hosts in the order of the nodes, by name or address.
    Hosts(Vec<String>),
}

impl fmt::Display for PeerNodes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => formatter.write_str("auto"),
            Self::Off => formatter.write_str("off"),
            Self::Hosts(hosts) => formatter.write_str(&hosts.join(",")),
        }
    }
}

/// Way by which the job's secret reaches all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PeerSecretSource {
    /// A file of this user in the directory in which nodes meet.
    #[default]
    Meeting,
    /// The job's store, which everybody who reaches its port can read.
    Store,
    /// A file that all nodes have, absolute.
    File(PathBuf),
}

impl PeerSecretSource {
    /// Returns the form in which it is written; `None` for the default.
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Meeting => None,
            Self::Store => Some("store".into()),
            Self::File(path) => Some(path.display().to_string()),
        }
    }
}

/// The settings, with their origins.
#[derive(Clone, Debug)]
pub struct PeerSettings {
    /// Nodes that share.
    pub nodes: Setting<PeerNodes>,
    /// Directory in which nodes meet, absolute; `None`: one in the state directory.
    pub dir: Setting<Option<PathBuf>>,
    /// Interface, an address of one, or a network; `None`: the one that leads to the first node.
    pub interface: Setting<Option<String>>,
    /// Way of the secret.
    pub secret: Setting<PeerSecretSource>,
    /// Most nodes of a group that keeps everything once.
    pub group_max: Setting<u16>,
}

impl PeerSettings {
    /// Returns true if a run must not begin before its nodes share their files: an option asks for it.
    pub fn are_required(&self) -> bool {
        matches!(self.nodes.origin, SettingOrigin::Flag(_)) && self.nodes.value != PeerNodes::Off
    }

    /// Returns the variables by which a program's loaders get what options have set.
    pub fn variables_of_options(&self) -> Vec<(&'static str, OsString)> {
        let is_option = |origin: &SettingOrigin| matches!(origin, SettingOrigin::Flag(_));
        let nodes = is_option(&self.nodes.origin).then(|| (env::PEERS, self.nodes.value.to_string().into()));
        let interface = self.interface.value.as_ref().filter(|_| is_option(&self.interface.origin));
        nodes
            .into_iter()
            .chain(interface.map(|choice| (env::PEERS_INTERFACE, choice.into())))
            .collect()
    }
}

/// Settings of one origin as they were written: options, variables, or the table `peers` of a configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WrittenPeers {
    /// `auto`, `off`, or hosts with commas between them.
    #[serde(deserialize_with = "text")]
    pub nodes: Option<OsString>,
    /// Directory in which nodes meet.
    pub dir: Option<PathBuf>,
    /// Interface, an address of one, or a network.
    #[serde(deserialize_with = "text")]
    pub interface: Option<OsString>,
    /// `store`, or the path of a file.
    #[serde(deserialize_with = "text")]
    pub secret: Option<OsString>,
    /// Most nodes of a group.
    #[serde(deserialize_with = "number")]
    pub group: Option<OsString>,
}

fn number<'de, D: Deserializer<'de>>(value: D) -> Result<Option<OsString>, D::Error> {
    i64::deserialize(value).map(|number| Some(number.to_string().into()))
}

/// Settings of one origin; `None` if it does not set a value.
#[derive(Debug, Default)]
pub(super) struct PeersLayer {
    nodes: Option<Setting<PeerNodes>>,
    dir: Option<Setting<PathBuf>>,
    interface: Option<Setting<String>>,
    secret: Option<Setting<PeerSecretSource>>,
    group_max: Option<Setting<u16>>,
}

impl WrittenPeers {
    pub(super) fn from_environment(environment: &Environment) -> Self {
        let text = |name| environment.get(name).map(OsStr::to_owned);
        Self {
            nodes: text(env::PEERS),
            dir: text(env::PEERS_DIR).map(PathBuf::from),
            interface: text(env::PEERS_INTERFACE),
            secret: text(env::PEERS_SECRET),
            group: text(env::PEERS_GROUP),
        }
    }

    pub(super) fn parse(&self, environment: &Environment, origin: impl Fn(&Names) -> SettingOrigin) -> Result<PeersLayer, UserError> {
        let nodes = self.nodes.as_ref().map(|text| parse_nodes(origin(&NODES), text)).transpose()?;
        let dir = self.dir.as_ref().map(|dir| {
            let origin = origin(&DIR);
            Ok(Setting::new(absolute(&origin, environment, dir)?, origin))
        });
        let interface = self
            .interface
            .as_ref()
            .map(|text| Setting::new(text.to_string_lossy().into_owned(), origin(&INTERFACE)));
        let secret = self.secret.as_ref().map(|text| {
            let origin = origin(&SECRET);
            let value = match text.to_str() {
                Some("store") => PeerSecretSource::Store,
                _ => PeerSecretSource::File(absolute(&origin, environment, text.as_ref())?),
            };
            Ok(Setting::new(value, origin))
        });
        let group_max = self.group.as_ref().map(|text| parse_group(origin(&GROUP), text)).transpose()?;
        Ok(PeersLayer {
            nodes,
            dir: dir.transpose()?,
            interface,
            secret: secret.transpose()?,
            group_max,
        })
    }
}

impl PeersLayer {
    /// Returns these settings, and those of a later layer where these set nothing.
    pub(super) fn or(self, later: Self) -> Self {
        Self {
            nodes: self.nodes.or(later.nodes),
            dir: self.dir.or(later.dir),
            interface: self.interface.or(later.interface),
            secret: self.secret.or(later.secret),
            group_max: self.group_max.or(later.group_max),
        }
    }

    pub(super) fn resolve(self) -> PeerSettings {
        PeerSettings {
            nodes: self.nodes.unwrap_or_else(|| Setting::default(PeerNodes::default())),
            dir: super::optional(self.dir),
            interface: super::optional(self.interface),
            secret: self.secret.unwrap_or_else(|| Setting::default(PeerSecretSource::default())),
            group_max: self.group_max.unwrap_or_else(|| Setting::default(GROUP_MAX)),
        }
    }
}

fn parse_group(origin: SettingOrigin, text: &OsStr) -> Result<Setting<u16>, UserError> {
    let shown = text.to_string_lossy();
    match shown.trim().parse() {
        Ok(nodes @ 1..=JOB_NODES_MAX) => Ok(Setting::new(nodes, origin)),
        _ => Err(UserError::bad_input(format_args!(
            "{origin}: invalid number of nodes '{shown}'; give 1 to {JOB_NODES_MAX}, as many as can hold all data together"
        ))),
    }
}

fn parse_nodes(origin: SettingOrigin, text: &OsStr) -> Result<Setting<PeerNodes>, UserError> {
    let shown = text.to_string_lossy();
    let value = match &*shown {
        "auto" => PeerNodes::Auto,
        "off" => PeerNodes::Off,
        list => {
            let hosts: Vec<String> = list.split(',').map(|host| host.trim().to_owned()).collect();
            if hosts.len() < 2 || hosts.iter().any(|host| host.is_empty() || host.contains(char::is_whitespace)) {
                return Err(UserError::bad_input(format_args!(
                    "{origin}: invalid nodes '{shown}'; give auto, off, or the hosts of all nodes, such as node1,node2"
                )));
            }
            PeerNodes::Hosts(hosts)
        }
    };
    Ok(Setting::new(value, origin))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;
    use crate::config::{Config, WrittenSettings};

    fn resolve(environment: &Environment) -> Result<PeerSettings, UserError> {
        Config::resolve(&WrittenSettings::default(), environment).map(|config| config.peers)
    }

    #[test]
    fn a_variable_comes_before_a_file_and_a_file_before_the_default() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        fs::write(&file, "[peers]\nnodes = \"a, b\"\ndir = \"/shared\"\nsecret = \"/etc/secret\"\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let file = file.to_str().unwrap();
        let of_file = resolve(&Environment::of([("FOREBAY_CONFIG", file), ("FOREBAY_PEERS_DIR", "/mine")])).unwrap();
        assert_eq!(of_file.nodes.value, PeerNodes::Hosts(vec!["a".into(), "b".into()]));
        assert_eq!(of_file.nodes.origin.to_string(), format!("peers.nodes in {file}"));
        assert_eq!(of_file.dir.value, Some("/mine".into()));
        assert_eq!(of_file.secret.value, PeerSecretSource::File("/etc/secret".into()));
        let default = resolve(&Environment::default()).unwrap();
        assert_eq!((default.nodes.value, default.dir.value), (PeerNodes::Auto, None));
        assert_eq!((default.interface.value, default.secret.value), (None, PeerSecretSource::Meeting));
        assert_eq!(default.group_max.value, GROUP_MAX);
    }

    #[test]
    fn the_nodes_of_a_group_are_a_number() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        fs::write(&file, "[peers]\ngroup = 64\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let file = file.to_str().unwrap();
        let group = |variables: &[(&'static str, &str)]| {
            let peers = resolve(&Environment::of(variables.iter().map(|(name, value)| (*name, *value))));
            peers.map(|peers| peers.group_max.value).map_err(|error| error.to_string())
        };
        assert_eq!(group(&[("FOREBAY_CONFIG", file)]), Ok(64));
        assert_eq!(group(&[("FOREBAY_CONFIG", file), ("FOREBAY_PEERS_GROUP", "2")]), Ok(2));
        for wrong in ["0", "-1", "many", "4097", "1.5"] {
            let error = group(&[("FOREBAY_PEERS_GROUP", wrong)]).unwrap_err();
            let expected =
                format!("$FOREBAY_PEERS_GROUP: invalid number of nodes '{wrong}'; give 1 to 4096, as many as can hold all data together");
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn an_option_comes_first_is_a_demand_and_reaches_the_programs_loaders() {
        let with = |nodes: &str, interface: Option<&str>| {
            let peers = WrittenPeers {
                nodes: Some(nodes.into()),
                interface: interface.map(OsString::from),
                ..WrittenPeers::default()
            };
            let options = WrittenSettings {
                peers,
                ..WrittenSettings::default()
            };
            Config::resolve(
                &options,
                &Environment::of([("FOREBAY_PEERS", "c,d"), ("FOREBAY_PEERS_INTERFACE", "lo")]),
            )
            .unwrap()
            .peers
        };
        let named = with("a,b", Some("ib0"));
        assert!(named.are_required());
        let passed = [("FOREBAY_PEERS", OsString::from("a,b")), ("FOREBAY_PEERS_INTERFACE", "ib0".into())];
        assert_eq!(named.variables_of_options(), passed);
        let off = with("off", None);
        assert!(!off.are_required());
        assert_eq!(off.variables_of_options(), [("FOREBAY_PEERS", OsString::from("off"))]);
        let of_variable = resolve(&Environment::of([("FOREBAY_PEERS", "a,b")])).unwrap();
        assert!(!of_variable.are_required() && of_variable.variables_of_options().is_empty());
    }

    #[test]
    fn invalid_nodes_and_unknown_keys_are_named() {
        for wrong in ["maybe", "a,", "a,,b", "a b,c"] {
            let error = resolve(&Environment::of([("FOREBAY_PEERS", wrong)])).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("$FOREBAY_PEERS: invalid nodes '{wrong}'; give auto")),
                "{error}"
            );
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        fs::write(&file, "[peers]\nport = 1\n").unwrap();
        let error = resolve(&Environment::of([("FOREBAY_CONFIG", file.to_str().unwrap())]))
            .unwrap_err()
            .to_string();
        assert!(error.contains("unknown key `port`"), "{error}");
    }
}
