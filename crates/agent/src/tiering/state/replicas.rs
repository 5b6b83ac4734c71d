//! Copies of files that other nodes own, in the order in which they were made. They make room for owned files and for
//! newer replicas, those that this node keeps for its group after all others.

use std::collections::{HashMap, VecDeque};

use forebay_policy::peers::files::may_own;

/// A replica, and its name in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replica {
    pub(crate) path: Vec<u8>,
    pub(crate) copy: u64,
    pub(crate) bytes: u64,
    /// True if this node keeps the file for its group.
    pub(crate) is_of_group: bool,
}

/// All replicas.
#[derive(Debug, Default)]
pub(crate) struct Replicas {
    by_copy: HashMap<u64, Replica>,
    /// Copies in the order in which they were made, those for the group apart. One that was removed stays until its
    /// turn comes.
    oldest_first: [VecDeque<u64>; 2],
    bytes: u64,
}

impl Replicas {
    /// Adds a replica, unless it is known.
    pub(crate) fn add(&mut self, replica: Replica) {
        let (copy, bytes, queue) = (replica.copy, replica.bytes, usize::from(replica.is_of_group));
        if let std::collections::hash_map::Entry::Vacant(vacant) = self.by_copy.entry(copy) {
            vacant.insert(replica);
            self.bytes += bytes;
            self.oldest_first[queue].push_back(copy);
        }
    }

    pub(crate) fn take_oldest(&mut self) -> Option<Replica> {
        loop {
            let copy = self.oldest_first.iter_mut().find_map(VecDeque::pop_front)?;
            if let Some(replica) = self.remove(copy) {
                return Some(replica);
            }
        }
    }

    /// Forgets a copy, if it is a replica.
    pub(crate) fn remove(&mut self, copy: u64) -> Option<Replica> {
        let replica = self.by_copy.remove(&copy)?;
        self.bytes -= replica.bytes;
        let by_copy = &self.by_copy;
        for queue in &mut self.oldest_first {
            if queue.len() > 2 * by_copy.len() + 64 {
                queue.retain(|copy| by_copy.contains_key(copy));
            }
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
            is_of_group: false,
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
    fn what_is_kept_for_the_group_goes_last() {
        let mut replicas = Replicas::default();
        for (copy, is_of_group) in [(1, true), (2, false), (3, true), (4, false)] {
            replicas.add(Replica {
                is_of_group,
                ..replica(copy, 1)
            });
        }
        let order: Vec<u64> = std::iter::from_fn(|| replicas.take_oldest()).map(|replica| replica.copy).collect();
        assert_eq!(order, [2, 4, 1, 3]);
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
        assert!(replicas.oldest_first[0].len() < 100, "what was removed takes no memory");
    }
}
