//! Removes copies that earlier openings never published, and copies that could not be removed before.

use forebay_policy::Space;

use crate::catalogue::KnownCopies;
use crate::clean::remove_object;
use crate::disk::{Folder, Name, uninterrupted};
use crate::error::StoreError;
use crate::leased::{LeasedRoot, guard};
use crate::tier::Tier;

/// Result of reaping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReapReport {
    /// Number of files removed.
    pub removed: u64,
    /// Sizes of the files removed, in bytes.
    pub removed_bytes: u64,
    /// Number of entries left, since they are foreign or could not be removed.
    pub left: u64,
    /// True if the limit was reached, so that there may be more.
    pub is_partial: bool,
    /// Known copies without a file: removed since recovery, or lost.
    pub missing: Vec<u64>,
}

impl Tier {
    /// Tries again to remove files that this opening could not remove. Returns the room of those that are left.
    pub fn retry_leftovers(&self) -> Space {
        self.remove_leftovers(&mut ReapReport::default());
        let disk = &self.shared().disk;
        let mut left = Space::default();
        for id in guard(&self.shared().leftovers).iter() {
            left.inodes += 1;
            left.bytes += uninterrupted(|| disk.stat(Name::Object(*id))).map_or(0, |stat| stat.identity.size);
        }
        left
    }

    fn remove_leftovers(&self, report: &mut ReapReport) {
        let left = std::mem::take(&mut *guard(&self.shared().leftovers));
        for id in left {
            report.take(self.shared(), id);
        }
    }

    /// Removes up to `limit` files that earlier openings left and that `known` does not list: copies that were never
    /// published. Call it after recovery. It takes no lock, so copies may be made and removed meanwhile. Calls `rest`
    /// after each part of `objects`.
    pub fn reap(&self, known: &KnownCopies, limit: u64, rest: &mut dyn FnMut()) -> Result<ReapReport, StoreError> {
        let shared = self.shared();
        let mut report = ReapReport::default();
        self.remove_leftovers(&mut report);
        let parts = shared.list_shards()?;
        for shard in 0..=u8::MAX {
            let of_shard = known.of_shard(shard);
            let mut is_there = vec![false; of_shard.len()];
            let mut unknown = Vec::new();
            if parts.contains(&shard) {
                shared.list(Folder::Shard(shard), &mut |entry| match Name::parse_object(shard, entry) {
                    Some(id) if self.is_ours(id) => {}
                    Some(id) => match of_shard.binary_search(&id) {
                        Ok(nth) => is_there[nth] = true,
                        Err(_) => unknown.push(id),
                    },
                    None => report.left += 1,
                })?;
            }
            let missing = of_shard.iter().zip(is_there).filter(|(_, there)| !there).map(|(id, _)| *id);
            report.missing.extend(missing);
            for id in unknown {
                if report.removed >= limit {
                    report.is_partial = true;
                    return Ok(report);
                }
                report.take(shared, id);
            }
            rest();
        }
        Ok(report)
    }
}

impl ReapReport {
    fn take(&mut self, shared: &LeasedRoot, id: u64) {
        if let Ok(bytes) = remove_object(&*shared.disk, id) {
            self.removed += 1;
            self.removed_bytes += bytes;
        } else {
            self.left += 1;
            guard(&shared.leftovers).insert(id);
        }
    }
}
