//! The environment variables that Forebay reads or sets.

/// Set to `off` (or `0`), it leaves the program untouched. Read by the command and by the preload library.
pub const FOREBAY: &str = "FOREBAY";
/// Path of the run page. `forebay run` sets it for the program, and the preload library reads it. Jobs record their
/// forks in a file beside it.
pub const RUN: &str = "FOREBAY_RUN";
/// Path of the preload library, if it is not beside the command.
pub const PRELOAD: &str = "FOREBAY_PRELOAD";
/// Directory for sockets and shared memory; default `/dev/shm/forebay-run-UID`.
pub const RUNTIME_DIR: &str = "FOREBAY_RUNTIME_DIR";
/// Directory for run records and the secret of the user; default `$XDG_STATE_HOME/forebay`.
pub const STATE_DIR: &str = "FOREBAY_STATE_DIR";
/// Configuration file; default `$XDG_CONFIG_HOME/forebay/config.toml`.
pub const CONFIG: &str = "FOREBAY_CONFIG";
/// The site's configuration file, which comes after the user's; default `/etc/forebay/config.toml`.
pub const SITE_CONFIG: &str = "FOREBAY_SITE_CONFIG";
/// Sources, separated by `:`; as `--source`.
pub const SOURCE: &str = "FOREBAY_SOURCE";
/// Tiers `DIR=SIZE`, separated by `:`; as `--tier`.
pub const TIER: &str = "FOREBAY_TIER";
/// Order in which tiers are used; as `--tier-order`.
pub const TIER_ORDER: &str = "FOREBAY_TIER_ORDER";
/// Views `s3://BUCKET/PREFIX=DIR`, separated by `:`; as `--view`.
pub const VIEW: &str = "FOREBAY_VIEW";
/// Memory for copies; as `--ram`.
pub const RAM: &str = "FOREBAY_RAM";
/// Policy that makes room when the tiers are full; as `--policy`.
pub const POLICY: &str = "FOREBAY_POLICY";
/// Choice of files to copy before a program has opened them; as `--prefetch`.
pub const PREFETCH: &str = "FOREBAY_PREFETCH";
/// Patterns of files that are never copied, separated by `:`; as `--exclude`.
pub const EXCLUDE: &str = "FOREBAY_EXCLUDE";
/// Freshness; as `--freshness`.
pub const FRESHNESS: &str = "FOREBAY_FRESHNESS";
/// `1` keeps the agent after the last run; as `--keep`.
pub const KEEP: &str = "FOREBAY_KEEP";
/// Serve shared libraries: `1` or `0`.
pub const LIBRARIES: &str = "FOREBAY_LIBRARIES";
/// Path of the run's JSON record; as `--record`.
pub const RECORD: &str = "FOREBAY_RECORD";
/// `1` prints no summary; as `--quiet`.
pub const QUIET: &str = "FOREBAY_QUIET";
/// `off` keeps each node of a job alone; `auto`, the default, has loaders share their samples with other nodes; or the
/// hosts of all nodes, with commas between them.
pub const PEERS: &str = "FOREBAY_PEERS";
/// Directory in which the nodes of a job find each other, and which all of them see; default
/// `$XDG_STATE_HOME/forebay/peers`.
pub const PEERS_DIR: &str = "FOREBAY_PEERS_DIR";
/// Way of the secret that the nodes of a job share: `store`, or the path of a file that all nodes have; default a file
/// in the directory in which they find each other.
pub const PEERS_SECRET: &str = "FOREBAY_PEERS_SECRET";
/// Network interface on which nodes reach each other: its name, an address or a network.
pub const PEERS_INTERFACE: &str = "FOREBAY_PEERS_INTERFACE";
/// Most nodes of a group of a job's nodes that keeps everything once.
pub const PEERS_GROUP: &str = "FOREBAY_PEERS_GROUP";
/// Name under which a job can be forked; as `forebay.clone.session(job=...)`.
pub const JOB: &str = "FOREBAY_JOB";
/// The fork that a program is to continue, and the changes to make in it, as JSON; set by `forebay clone` and read by
/// `forebay.clone.session`.
pub const CLONE: &str = "FOREBAY_CLONE";
/// Names of all these variables.
pub const NAMES: [&str; 27] = [
    FOREBAY,
    RUN,
    PRELOAD,
    RUNTIME_DIR,
    STATE_DIR,
    CONFIG,
    SITE_CONFIG,
    SOURCE,
    TIER,
    TIER_ORDER,
    VIEW,
    RAM,
    POLICY,
    PREFETCH,
    EXCLUDE,
    FRESHNESS,
    KEEP,
    LIBRARIES,
    RECORD,
    QUIET,
    PEERS,
    PEERS_DIR,
    PEERS_SECRET,
    PEERS_INTERFACE,
    PEERS_GROUP,
    JOB,
    CLONE,
];
