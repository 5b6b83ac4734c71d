use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::*;
use crate::drawn;

const NODES: Node = 4;
const SAMPLES: u32 = 6;
const CACHE_BYTES: u64 = 100;

/// Operations of a node on a sample, each if it is possible.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Use,
    Arrive,
    End,
    Keep,
    GiveUp,
}

fn deeds() -> impl Strategy<Value = Vec<(Deed, Node, Sample)>> {
    let deed = prop_oneof![
        4 => Just(Deed::Use),
        3 => Just(Deed::Arrive),
        3 => Just(Deed::End),
        2 => Just(Deed::Keep),
        2 => Just(Deed::GiveUp),
    ];
    proptest::collection::vec((deed, 0..NODES, 0..SAMPLES), 0..200)
}

/// A copy, in a plain list.
#[derive(Clone, Copy, Debug)]
struct PlainCopy {
    node: Node,
    sample: Sample,
    uses: u32,
    arrived: bool,
    kept: bool,
}

/// The copies beside a plain list of them.
struct CheckedCopies {
    copies: ClusterCopies,
    plain: Vec<PlainCopy>,
    sizes: Vec<u32>,
    /// Bytes reserved for each sample while its size is unknown.
    reserved: Vec<u32>,
    known: Vec<bool>,
}

fn access(node: Node, sample: Sample) -> Access {
    Access {
        node,
        sample,
        iteration: 0,
        epoch: 0,
    }
}

impl CheckedCopies {
    fn new(sizes: Vec<u32>) -> Self {
        let cluster = Cluster {
            nodes: NODES,
            gpus: 1,
            cache_bytes: CACHE_BYTES,
            reserved_bytes: 0,
        };
        Self {
            copies: ClusterCopies::new(cluster, SAMPLES),
            plain: Vec::new(),
            sizes,
            reserved: vec![0; SAMPLES as usize],
            known: vec![false; SAMPLES as usize],
        }
    }

    fn find(&mut self, node: Node, sample: Sample) -> Option<&mut PlainCopy> {
        self.plain.iter_mut().find(|copy| (copy.node, copy.sample) == (node, sample))
    }

    /// Returns the expected bytes of a sample.
    fn expected(&self, sample: Sample) -> u64 {
        let at = sample as usize;
        if self.known[at] {
            return u64::from(self.sizes[at]);
        }
        if self.plain.iter().any(|copy| copy.sample == sample) {
            return u64::from(self.reserved[at]);
        }
        let known: Vec<_> = self.sizes.iter().zip(&self.known).filter(|(_, known)| **known).collect();
        let sum: u64 = known.iter().map(|(bytes, _)| u64::from(**bytes)).sum();
        sum / known.len().max(1) as u64
    }

    fn held(&self, of: impl Fn(&PlainCopy) -> bool) -> u64 {
        self.plain
            .iter()
            .filter(|copy| of(copy))
            .map(|copy| self.expected(copy.sample))
            .sum()
    }

    fn make(&mut self, deed: Deed, node: Node, sample: Sample) -> Result<(), TestCaseError> {
        let bytes = self.sizes[sample as usize];
        let expected = self.expected(sample) as u32;
        let slot = self.copies.find(node, sample);
        let Some(copy) = self.find(node, sample) else {
            prop_assert_eq!(slot, None);
            if matches!(deed, Deed::Use) {
                self.reserved[sample as usize] = expected;
                let slot = self.copies.bring(node, sample);
                prop_assert_eq!(self.copies.what(slot), (node, sample));
                self.plain.push(PlainCopy {
                    node,
                    sample,
                    uses: 1,
                    arrived: false,
                    kept: false,
                });
            }
            return Ok(());
        };
        let slot = slot.expect("it is found");
        match deed {
            Deed::Use => {
                copy.uses += 1;
                self.copies.begin_use(slot);
            }
            Deed::Arrive => {
                copy.arrived = true;
                self.known[sample as usize] = true;
                self.copies.arrived(access(node, sample), bytes);
            }
            Deed::End if copy.uses > 0 => {
                copy.uses -= 1;
                let is_last = copy.uses == 0;
                prop_assert_eq!(self.copies.end_use(access(node, sample)), is_last.then_some(slot));
            }
            Deed::Keep => {
                copy.kept = true;
                self.copies.keep(slot);
            }
            Deed::GiveUp if copy.uses == 0 => {
                self.plain.retain(|copy| (copy.node, copy.sample) != (node, sample));
                self.copies.give_up(slot);
            }
            Deed::End | Deed::GiveUp => {}
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for node in 0..NODES {
            let held = self.held(|copy| copy.node == node);
            prop_assert_eq!(self.copies.held_bytes(node), held);
            prop_assert_eq!(self.copies.kept_bytes(node), self.held(|copy| copy.node == node && copy.kept));
            prop_assert_eq!(self.copies.excess_bytes(node), held.saturating_sub(CACHE_BYTES));
            for sample in 0..SAMPLES {
                let missing = (held + self.expected(sample)).saturating_sub(CACHE_BYTES);
                prop_assert_eq!(self.copies.missing_bytes(node, sample), missing);
            }
        }
        for sample in 0..SAMPLES {
            let copies: Vec<_> = self.plain.iter().filter(|copy| copy.sample == sample).collect();
            let slots: Vec<CopySlot> = std::iter::successors(self.copies.first(sample), |&slot| self.copies.next(slot)).collect();
            prop_assert_eq!(slots.len(), copies.len());
            for copy in &copies {
                let slot = self.copies.find(copy.node, sample).expect("it is found");
                prop_assert!(slots.contains(&slot));
                prop_assert_eq!(self.copies.what(slot), (copy.node, sample));
                prop_assert_eq!(self.copies.is_kept(slot), copy.kept);
                prop_assert_eq!(self.copies.in_use(slot), copy.uses > 0);
                prop_assert_eq!(self.copies.is_last(slot), copies.len() == 1);
            }
            for node in 0..NODES {
                let senders: Vec<Node> = copies
                    .iter()
                    .filter(|copy| copy.arrived && copy.node != node)
                    .map(|copy| copy.node)
                    .collect();
                let peer = self.copies.peer(node, sample);
                prop_assert!(
                    peer.map_or(senders.is_empty(), |peer| senders.contains(&peer)),
                    "{:?} of {:?}",
                    peer,
                    senders
                );
            }
        }
        prop_assert_eq!(self.copies.knows_sizes(), self.known.contains(&true));
        Ok(())
    }
}

proptest! {
    #![proptest_config(drawn::cases(400))]

    /// Over any sequence of operations, each copy is found, counts its bytes once on its node, and serves others once
    /// it has arrived.
    #[test]
    fn copies_are_a_list(deeds in deeds(), sizes in proptest::collection::vec(1..60_u32, SAMPLES as usize)) {
        let mut checked = CheckedCopies::new(sizes);
        for (deed, node, sample) in deeds {
            checked.make(deed, node, sample)?;
            checked.check()?;
        }
    }
}
