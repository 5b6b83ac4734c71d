//! Bounds of the samples role, each with its unit.

use std::time::Duration;

/// Connections to the loader agent, one a rank and loader.
pub(crate) const LOADER_PEERS_MAX: usize = 4096;
/// The loader agent ends when nobody has been connected for so long.
pub(crate) const LOADER_IDLE_MAX: Duration = Duration::from_secs(5);
/// How often it says on the boards of ranks that it works, where nothing else happens.
pub(crate) const LOADER_ALIVE_EVERY: Duration = Duration::from_secs(1);
/// A rank takes the loader agent for dead that was not seen to work for so long, and reads itself.
pub(crate) const LOADER_DEAD_AFTER: Duration = Duration::from_secs(10);
/// For how long ranks that come late are told why a loader came to nothing.
pub(crate) const LOADER_FAILED_KEPT_S: f64 = 60.0;
/// Longest name of a loader in bytes.
pub(crate) const LOADER_NAME_BYTES_MAX: usize = 200;
/// Ranks of a loader on one node.
pub(crate) const LOADER_RANKS_MAX: u32 = 256;
/// Most reads of a loader at once, and so threads.
pub(crate) const LOADER_READS_MAX: u32 = 256;
/// A read of a loader that takes longer hangs, by all appearances; how often such are looked for.
pub(crate) const LOADER_HANGS_AFTER_S: f64 = 10.0;
pub(crate) const LOADER_LOOK_FOR_HUNG_S: f64 = 1.0;
/// Steps that a board has room for beyond the window, and for each use in them another one: batches are released one by one.
pub(crate) const LOADER_SPARE_STEPS: u64 = 4;
/// At most this part of a loader's memory waits to be written to disks.
pub(crate) const LOADER_WRITES_PART: u64 = 4;
/// Residents that are looked at for one that the policy has given up, when room is needed; and how many samples go without such a look after one in vain.
pub(crate) const LOADER_SWEEP_LOOKS: u32 = 256;
pub(crate) const LOADER_SWEEP_PAUSE: u32 = 64;
/// A disk that has failed so often in a row is not written to any more.
pub(crate) const LOADER_DISK_FAULTS_MAX: u32 = 3;

const _: () = assert!(LOADER_ALIVE_EVERY.as_secs() * 5 <= LOADER_DEAD_AFTER.as_secs());
