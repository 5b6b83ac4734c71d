//! NUMA nodes of a loader's ranks: reading threads, and the memory that they fill, are on the node of the rank that
//! asked.
//!
//! A rank says which processors its node has, if it stays on one of several. Memory belongs to the node whose thread
//! reserves it, and each node has a part of the arena where its ranks' samples go first.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// NUMA nodes that ranks stay on; none on a machine with one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Homes {
    /// Processors of each node.
    nodes: Vec<Vec<u32>>,
    /// Number of each rank's node among these.
    of_ranks: Vec<Option<usize>>,
}

impl Homes {
    /// Creates the nodes of ranks, each with the processors of its node; none for a rank that stays on no node.
    pub(crate) fn of(processors: Vec<Vec<u32>>) -> Self {
        let mut homes = Self::default();
        for of_rank in processors {
            let known = homes.nodes.iter().position(|node| *node == of_rank);
            let home = known.or_else(|| (!of_rank.is_empty()).then_some(homes.nodes.len()));
            if known.is_none() && home.is_some() {
                homes.nodes.push(of_rank);
            }
            homes.of_ranks.push(home);
        }
        homes
    }

    /// Returns the number of ranks.
    pub(crate) const fn ranks(&self) -> usize {
        self.of_ranks.len()
    }

    /// Returns the number of nodes.
    pub(crate) const fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the number of a rank's node.
    pub(crate) fn of_rank(&self, rank: usize) -> Option<usize> {
        self.of_ranks.get(rank).copied().flatten()
    }

    /// Logs what is bound, if anything is.
    pub(crate) fn log(&self) {
        if let Some(words) = self.words() {
            tracing::info!("{words}");
        }
    }

    fn words(&self) -> Option<String> {
        let of_node = |(node, processors): (usize, &Vec<u32>)| {
            let ranks: Vec<String> = (0..self.of_ranks.len())
                .filter(|rank| self.of_ranks[*rank] == Some(node))
                .map(|rank| rank.to_string())
                .collect();
            format!("local ranks {} on processors {}", ranks.join(","), runs(processors))
        };
        let nodes: Vec<String> = self.nodes.iter().enumerate().map(of_node).collect();
        (!nodes.is_empty()).then(|| format!("reading threads and memory are on the rank's NUMA node: {}", nodes.join("; ")))
    }
}

/// The binding of a reading thread.
#[derive(Debug)]
pub(crate) struct ThreadHome {
    /// Processors that the thread began with; none if the kernel did not say.
    usual: Option<CpuSet>,
    home: Option<usize>,
}

impl ThreadHome {
    /// Creates the binding of the calling thread, which is bound to no node yet.
    pub(crate) fn of_this_thread() -> Self {
        Self {
            usual: sched_getaffinity(None).ok(),
            home: None,
        }
    }

    /// Moves the calling thread to a node, or back to all processors. Does nothing if it is there. If the kernel
    /// refuses, since processors were taken away, the thread reads from where it is.
    pub(crate) fn move_to(&mut self, home: Option<usize>, homes: &Homes) {
        let Some(usual) = self.usual.filter(|_| home != self.home) else {
            return;
        };
        let mut set = usual;
        if let Some(processors) = home.and_then(|home| homes.nodes.get(home)) {
            set.clear();
            for processor in processors.iter().map(|number| *number as usize) {
                if processor < CpuSet::MAX_CPU && usual.is_set(processor) {
                    set.set(processor);
                }
            }
        }
        let _ = sched_setaffinity(None, &set);
        self.home = home;
    }
}

/// Returns numbers as the kernel lists them: `0-3,8`.
fn runs(numbers: &[u32]) -> String {
    let mut found: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match found.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => found.push((number, number)),
        }
    }
    let words = found.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    });
    words.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn processors() -> Vec<usize> {
        let usual = sched_getaffinity(None).expect("the kernel says it");
        (0..CpuSet::MAX_CPU).filter(|processor| usual.is_set(*processor)).collect()
    }

    #[test]
    fn ranks_of_one_node_share_it_and_a_rank_may_have_none() {
        let homes = Homes::of(vec![vec![0, 1, 2, 8], vec![4, 5], vec![0, 1, 2, 8], Vec::new()]);
        assert_eq!(
            [0, 1, 2, 3, 4].map(|rank| homes.of_rank(rank)),
            [Some(0), Some(1), Some(0), None, None]
        );
        assert_eq!(homes.count(), 2);
        assert_eq!(
            homes.words().expect("two nodes"),
            "reading threads and memory are on the rank's NUMA node: local ranks 0,2 on processors 0-2,8; local ranks 1 on processors 4-5"
        );
    }

    #[test]
    fn on_one_node_nothing_is_bound() {
        let homes = Homes::of(vec![Vec::new(); 4]);
        assert_eq!((homes.count(), homes.of_rank(2), homes.words()), (0, None, None));
    }

    #[test]
    fn a_thread_goes_to_a_node_and_back_and_stays_where_it_is_if_the_node_has_no_processor_any_more() {
        let before = processors();
        let nodes = Homes::of(vec![vec![before[0] as u32], vec![*before.last().unwrap() as u32], vec![100_000]]);
        let found = thread::spawn(move || {
            let mut home = ThreadHome::of_this_thread();
            [Some(0), Some(1), Some(2), None].map(|to| {
                home.move_to(to, &nodes);
                processors()
            })
        });
        let (first, last) = (vec![before[0]], vec![*before.last().unwrap()]);
        assert_eq!(found.join().unwrap(), [first, last.clone(), last, before]);
    }
}
