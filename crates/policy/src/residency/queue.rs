//! Queues of a node's copies by grade, with constant-time access to the highest one.

/// End of a queue.
pub(super) const NONE: u32 = u32::MAX;

/// A copy by its place in the slab of copies.
pub(super) type CopySlot = u32;

/// A copy's links in a queue. They are stored beside the other fields of the copy, since memory is read a cache line
/// at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueLink {
    older: CopySlot,
    newer: CopySlot,
    /// Grade under which the copy is queued; [`NONE`] if it is in no queue.
    grade: u32,
}

impl QueueLink {
    /// In no queue.
    pub(super) const NOWHERE: Self = Self {
        older: NONE,
        newer: NONE,
        grade: NONE,
    };

    /// Returns the grade under which the copy is queued.
    pub(super) const fn grade(&self) -> Option<u32> {
        if self.grade == NONE { None } else { Some(self.grade) }
    }

    /// Returns the copy that comes next, if queues are taken from one end.
    pub(super) const fn behind(&self, newest_first: bool) -> CopySlot {
        if newest_first { self.older } else { self.newer }
    }
}

/// Storage of the links of all copies.
pub(super) trait QueueLinks {
    fn link(&mut self, slot: CopySlot) -> &mut QueueLink;
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    oldest: CopySlot,
    newest: CopySlot,
}

const EMPTY: Ends = Ends {
    oldest: NONE,
    newest: NONE,
};

/// For each node a list of copies by grade, in the order in which they were queued. Eight bytes a grade and node, and
/// a [`QueueLink`] a copy.
#[derive(Clone, Debug)]
pub(super) struct GradeQueues {
    ends: Vec<Ends>,
    used: Vec<Bits>,
    grades: usize,
}

impl GradeQueues {
    /// Creates empty queues.
    pub(super) fn new(nodes: usize, grades: usize) -> Self {
        Self {
            ends: vec![EMPTY; nodes * grades],
            used: vec![Bits::new(grades); nodes],
            grades,
        }
    }

    /// Empties the queues and changes the number of grades. The caller resets the links of queued copies.
    pub(super) fn reset(&mut self, grades: usize) {
        let nodes = self.used.len();
        self.ends.clear();
        self.ends.resize(nodes * grades, EMPTY);
        if grades == self.grades {
            self.used.iter_mut().for_each(Bits::clear_all);
        } else {
            self.used = vec![Bits::new(grades); nodes];
            self.grades = grades;
        }
    }

    /// Queues a copy that is in no queue, as the newest of its grade.
    pub(super) fn push(&mut self, links: &mut impl QueueLinks, node: usize, slot: CopySlot, grade: u32) {
        let ends = &mut self.ends[node * self.grades + grade as usize];
        let older = std::mem::replace(&mut ends.newest, slot);
        if older == NONE {
            ends.oldest = slot;
            self.used[node].set(grade as usize);
        } else {
            links.link(older).newer = slot;
        }
        let link = links.link(slot);
        debug_assert_eq!(link.grade, NONE, "queued once");
        *link = QueueLink { older, newer: NONE, grade };
    }

    /// Takes a copy out, if it is in a queue.
    pub(super) fn remove(&mut self, links: &mut impl QueueLinks, node: usize, slot: CopySlot) {
        let link = std::mem::replace(links.link(slot), QueueLink::NOWHERE);
        let Some(grade) = link.grade() else { return };
        let ends = &mut self.ends[node * self.grades + grade as usize];
        match link.older {
            NONE => ends.oldest = link.newer,
            older => links.link(older).newer = link.newer,
        }
        match link.newer {
            NONE => ends.newest = link.older,
            newer => links.link(newer).older = link.older,
        }
        if ends.oldest == NONE {
            self.used[node].clear(grade as usize);
        }
    }

    /// A node's highest grade with copies, and its oldest and newest copy.
    pub(super) fn highest(&self, node: usize) -> Option<(u32, CopySlot, CopySlot)> {
        let grade = self.used[node].highest()?;
        let ends = self.ends[node * self.grades + grade];
        Some((grade as u32, ends.oldest, ends.newest))
    }
}

/// A set of small numbers with fast access to the highest: a bit each, and for each 64 bits one bit above that is set
/// if any of them is.
#[derive(Clone, Debug)]
struct Bits {
    levels: Vec<Vec<u64>>,
}

impl Bits {
    fn new(len: usize) -> Self {
        let mut levels = Vec::new();
        let mut words = len.div_ceil(64).max(1);
        loop {
            levels.push(vec![0; words]);
            if words == 1 {
                return Self { levels };
            }
            words = words.div_ceil(64);
        }
    }

    fn clear_all(&mut self) {
        self.levels.iter_mut().for_each(|level| level.fill(0));
    }

    fn set(&mut self, mut at: usize) {
        for level in &mut self.levels {
            level[at / 64] |= 1 << (at % 64);
            at /= 64;
        }
    }

    fn clear(&mut self, mut at: usize) {
        for level in &mut self.levels {
            level[at / 64] &= !(1 << (at % 64));
            if level[at / 64] != 0 {
                return;
            }
            at /= 64;
        }
    }

    fn highest(&self) -> Option<usize> {
        self.levels
            .iter()
            .rev()
            .try_fold(0, |word, level| Some(word * 64 + level[word].checked_ilog2()? as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl QueueLinks for Vec<QueueLink> {
        fn link(&mut self, slot: CopySlot) -> &mut QueueLink {
            &mut self[slot as usize]
        }
    }

    #[test]
    fn the_highest_grade_is_found_whatever_came_and_went() {
        let mut queues = GradeQueues::new(2, 300_000);
        let mut links = vec![QueueLink::NOWHERE; 20_000];
        let mut plain: std::collections::BTreeMap<u32, Vec<CopySlot>> = std::collections::BTreeMap::new();
        let mut state = 1_u64;
        for turn in 0..20_000_u32 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let drawn = (state >> 33) as u32;
            if turn % 3 == 2 {
                let (grade, oldest, newest) = queues.highest(1).expect("more came than went");
                let copies = plain.get_mut(&grade).expect("the same grade");
                assert_eq!((copies.first(), copies.last()), (Some(&oldest), Some(&newest)));
                assert_eq!(links.link(newest).grade(), Some(grade));
                queues.remove(&mut links, 1, newest);
                copies.pop();
                plain.retain(|_, copies| !copies.is_empty());
            } else {
                let grade = [drawn % 300_000, drawn % 5][drawn as usize % 2];
                queues.push(&mut links, 1, turn, grade);
                plain.entry(grade).or_default().push(turn);
            }
            assert_eq!(queues.highest(1).map(|found| found.0), plain.keys().next_back().copied());
        }
        assert_eq!(queues.highest(0), None);
        queues.reset(7);
        assert_eq!(queues.highest(1), None);
    }
}
