//! Bounds of the samples role, each with its unit.

use std::time::Duration;

/// Connections to the loader agent, one a rank and loader.
pub(crate) const LOADER_PEERS_MAX: usize = 4096;
/// Time without connections after which the loader agent ends.
pub(crate) const LOADER_IDLE_MAX: Duration = Duration::from_secs(5);
/// Interval of the agent's sign of life in the ranks' request rings, if nothing else happens.
pub(crate) const LOADER_ALIVE_EVERY: Duration = Duration::from_secs(1);
/// Time without a sign of life after which a rank takes the loader agent for dead, and reads by itself.
pub(crate) const LOADER_DEAD_AFTER: Duration = Duration::from_secs(10);
/// Seconds for which late ranks are told why a loader failed.
pub(crate) const LOADER_FAILED_KEPT_S: f64 = 60.0;
/// Longest name of a loader in bytes.
pub(crate) const LOADER_NAME_BYTES_MAX: usize = 200;
/// Ranks of a loader on one node.
pub(crate) const LOADER_RANKS_MAX: u32 = 256;
/// Most concurrent reads of a loader, and so threads.
pub(crate) const LOADER_READS_MAX: u32 = 256;
/// Seconds after which a read counts as hanging, and the interval of the search for such reads.
pub(crate) const LOADER_HANGS_AFTER_S: f64 = 10.0;
pub(crate) const LOADER_LOOK_FOR_HUNG_S: f64 = 1.0;
/// Steps of room in a request ring beyond the window, with one spare slot for each request in them: batches are
/// released one by one.
pub(crate) const LOADER_SPARE_STEPS: u64 = 4;
/// Part of a loader's memory that may wait to be written to disks: one in this many.
pub(crate) const LOADER_WRITES_PART: u64 = 4;
/// Residents to look at for one that the policy has given up, when room is needed; and the number of samples that go
/// without such a search after a fruitless one.
pub(crate) const LOADER_SWEEP_LOOKS: u32 = 256;
pub(crate) const LOADER_SWEEP_PAUSE: u32 = 64;
/// Failures of a disk in a row after which it is not written to any more.
pub(crate) const LOADER_DISK_FAULTS_MAX: u32 = 3;
/// Largest sample that other nodes are asked for, in bytes: that of one request.
pub(crate) const LOADER_PEER_BYTES_MAX: u32 = forebay_peers::limits::RANGE_BYTES_MAX as u32;
/// Bytes that are asked of another node for a sample while no size is known.
pub(crate) const LOADER_PEER_GUESS_BYTES: u32 = 128 << 10;
/// Time in which a sample's owner has to give it to this node.
pub(crate) const LOADER_PEER_WAIT: Duration = Duration::from_secs(4);
/// Time of each further try: alone after it was asked for together with others, and of the owner's substitute. After
/// these the source is read.
pub(crate) const LOADER_PEER_AGAIN: Duration = Duration::from_secs(1);
/// Memory for samples that other nodes ask for and this one does not keep, in bytes.
pub(crate) const LOADER_PEER_ROOM_BYTES: u64 = 32 << 20;
/// Loaders of which the role's status tells, and nodes of each. A packet has room for no more.
pub(crate) const LOADERS_SHOWN_MAX: usize = 8;
pub(crate) const NODES_SHOWN_MAX: usize = 8;
/// Longest reason for which a loader is alone, in characters.
pub(crate) const ALONE_CHARS_MAX: usize = 500;

const _: () = assert!(LOADER_ALIVE_EVERY.as_secs() * 5 <= LOADER_DEAD_AFTER.as_secs());
