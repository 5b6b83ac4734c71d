//! Copies of files that other nodes own, in the order in which they were made. They make room for owned files and for
//! newer replicas.

use std::collections::{HashMap, VecDeque};

use forebay_policy::peers::files::may_own;

/// A replica, and its name in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replica {
    pub(crate) path: Vec<u8>,
    pub(crate) copy: u64,
    pub(crate) bytes: u64,
}

/// All replicas.
#[derive(Debug, Default)]
pub(crate) struct Replicas {
    by_copy: HashMap<u64, Replica>,
    /// Copies in the order in which they were made. One that was removed stays until its turn comes.
    oldest_first: VecDeque<u64>,
    bytes: u64,
}

impl Replicas {
    /// Adds a replica, unless it is known.
    pub(crate) fn add(&mut self, replica: Replica) {
        let (copy, bytes) = (replica.copy, replica.bytes);
        if let std::collections::hash_map::Entry::Vacant(vacant) = self.by_copy.entry(copy) {
            vacant.insert(replica);
            self.bytes += bytes;
            self.oldest_first.push_back(copy);
        }
    }

    pub(crate) fn take_oldest(&mut self) -> Option<Replica> {
        loop {
            let copy = self.oldest_first.pop_front()?;
            if let Some(replica) = self.remove(copy) {
                return Some(replica);
            }
        }
    }

    /// Forgets a copy, if it is a replica.
    pub(crate) fn remove(&mut self, copy: u64) -> Option<Replica> {
        let replica = self.by_copy.remove(&copy)?;
        self.bytes -= replica.bytes;
        if self.oldest_first.len() > 2 * self.by_copy.len() + 64 {
            let by_copy = &self.by_copy;
            self.oldest_first.retain(|copy| by_copy.contains_key(copy));
        }
        Some(replica)
    }

    /// Bytes of all replicas.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns true if an owned file of `bytes` may take room, where the tiers have `quota_bytes` and hold
    /// `used_bytes`.
    pub(crate) const fn may_own(&self, quota_bytes: u64, used_bytes: u64, bytes: u64) -> bool {
        may_own(quota_bytes, used_bytes.saturating_sub(self.bytes), bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(copy: u64, bytes: u64) -> Replica {
        Replica {
            path: vec![b'/'],
            copy,
            bytes,
        }
    }

    #[test]
    fn the_oldest_replica_goes_first_and_owned_files_count_without_them() {
        let mut replicas = Replicas::default();
        replicas.add(replica(1, 100));
        replicas.add(replica(2, 50));
        assert_eq!(replicas.bytes(), 150);
        assert!(replicas.may_own(1600, 1600, 50), "owned files take 1450");
        assert!(!replicas.may_own(1600, 1600, 51));
        assert_eq!(replicas.take_oldest().map(|replica| replica.copy), Some(1));
        assert_eq!(
            (replicas.bytes(), replicas.take_oldest().map(|replica| replica.copy)),
            (50, Some(2))
        );
        assert!(replicas.take_oldest().is_none());
    }

    #[test]
    fn a_replica_counts_once_until_it_is_removed() {
        let mut replicas = Replicas::default();
        replicas.add(replica(1, 100));
        replicas.add(replica(1, 100));
        replicas.add(replica(2, 50));
        assert_eq!(replicas.bytes(), 150);
        assert!(replicas.remove(1).is_some() && replicas.remove(1).is_none());
        assert_eq!((replicas.bytes(), replicas.take_oldest()), (50, Some(replica(2, 50))));
        for copy in 10..1000 {
            replicas.add(replica(copy, 1));
            replicas.remove(copy);
        }
        assert!(replicas.oldest_first.len() < 100, "what was removed takes no memory");
    }
}
