//! State of the tiering role, cut into parts that each own their fields. The event loop owns one of each and tells it
//! what it needs.

pub(crate) mod cached_directories;
pub(crate) mod clock_skew;
pub(crate) mod copies;
pub(crate) mod copy_index;
pub(crate) mod eviction;
pub(crate) mod flights;
pub(crate) mod making;
pub(crate) mod nodes;
pub(crate) mod open_orders;
pub(crate) mod prefetching;
pub(crate) mod read_lists;
pub(crate) mod records;
pub(crate) mod recovery;
pub(crate) mod replicas;
pub(crate) mod runs;
mod shared_copies;
pub(crate) mod source_files;
pub(crate) mod sweeps;
pub(crate) mod tier_set;
pub(crate) mod tier_speed;
