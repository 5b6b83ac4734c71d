//! Every environment variable that Forebay reads or sets, once.

/// Set to `off` (or `0`): the program runs untouched. Read by the command and by the door.
pub const FOREBAY: &str = "FOREBAY";
/// Path of the run page; set by `forebay run` for the program and read by the door. Sessions of jobs tell of forks in a file beside it.
pub const RUN: &str = "FOREBAY_RUN";
/// Path of the preload library, where the command does not find it beside itself.
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
/// In which order tiers are used; as `--tier-order`.
pub const TIER_ORDER: &str = "FOREBAY_TIER_ORDER";
/// Views `s3://BUCKET/PREFIX=DIR`, separated by `:`; as `--view`.
pub const VIEW: &str = "FOREBAY_VIEW";
/// Memory for copies; as `--ram`.
pub const RAM: &str = "FOREBAY_RAM";
/// What makes room when the tiers are full; as `--policy`.
pub const POLICY: &str = "FOREBAY_POLICY";
/// What is copied before a program has opened it; as `--prefetch`.
pub const PREFETCH: &str = "FOREBAY_PREFETCH";
/// Patterns of files that are the source's alone, separated by `:`; as `--exclude`.
pub const EXCLUDE: &str = "FOREBAY_EXCLUDE";
/// Freshness; as `--freshness`.
pub const FRESHNESS: &str = "FOREBAY_FRESHNESS";
/// `1` keeps the agent after the last run; as `--keep`.
pub const KEEP: &str = "FOREBAY_KEEP";
/// Where the run's JSON record goes; as `--record`.
pub const RECORD: &str = "FOREBAY_RECORD";
/// `1` prints no summary; as `--quiet`.
pub const QUIET: &str = "FOREBAY_QUIET";
/// Name under which a job can be forked; as `forebay.clone.session(job=...)`.
pub const JOB: &str = "FOREBAY_JOB";
/// Which fork a program is to become a clone by, and what to change in it, as JSON; set by `forebay clone` and read by `forebay.clone.session`.
pub const CLONE: &str = "FOREBAY_CLONE";
