//! Samples that a node could give up at no cost in this epoch: owned samples that were consumed already. They are in
//! classes of size, so that the largest is found in constant time.

use crate::ids::{Node, Sample};

/// Sizes of a class differ by at most an eighth, so that a swap is worth its while.
const STEPS_LOG2: u32 = 3;
const STEPS: u32 = 1 << STEPS_LOG2;
const CLASSES: usize = ((u32::BITS - STEPS_LOG2 + 1) * STEPS) as usize;

/// The class of a size; larger sizes are in the same class or a later one.
pub(super) const fn class_of(bytes: u32) -> u8 {
    if bytes < STEPS {
        return bytes as u8;
    }
    let above = bytes.ilog2() - STEPS_LOG2;
    ((above + 1) * STEPS + (bytes >> above) % STEPS) as u8
}

/// Number of samples that [`Spare::pop`] announces together.
const TOLD: u8 = 64;

#[derive(Clone, Debug)]
struct NodeSpares {
    classes: Vec<Vec<Sample>>,
    /// Number of classes up to the last one that has any.
    end: usize,
    /// Announced samples that were not taken away yet.
    told: u8,
}

/// Spare samples of all nodes.
#[derive(Clone, Debug)]
pub(super) struct Spare {
    nodes: Vec<NodeSpares>,
}

impl Spare {
    /// Creates no spare samples.
    pub(super) fn new(nodes: Node) -> Self {
        Self {
            nodes: vec![
                NodeSpares {
                    classes: vec![Vec::new(); CLASSES],
                    end: 0,
                    told: 0,
                };
                usize::from(nodes)
            ],
        }
    }

    /// Begins an epoch: nothing is consumed yet.
    pub(super) fn clear(&mut self) {
        for node in &mut self.nodes {
            node.classes.iter_mut().for_each(Vec::clear);
            node.end = 0;
        }
    }

    /// Adds a consumed sample of `bytes` that the node keeps.
    pub(super) fn push(&mut self, node: Node, sample: Sample, bytes: u32) {
        let class = usize::from(class_of(bytes));
        let node = &mut self.nodes[usize::from(node)];
        node.classes[class].push(sample);
        node.end = node.end.max(class + 1);
    }

    /// Returns one of the node's largest samples, with its class. It may have left the node since it was pushed.
    pub(super) fn largest(&mut self, node: Node) -> Option<(Sample, u8)> {
        let node = &mut self.nodes[usize::from(node)];
        while node.end > 0 {
            if let Some(&sample) = node.classes[node.end - 1].last() {
                return Some((sample, (node.end - 1) as u8));
            }
            node.end -= 1;
        }
        None
    }

    /// Takes away the sample that [`Self::largest`] returned. From time to time it returns the next samples, so that
    /// the caller can touch their entries together: they are scattered over memory.
    pub(super) fn pop(&mut self, node: Node) -> &[Sample] {
        let node = &mut self.nodes[usize::from(node)];
        let Some(class) = node.end.checked_sub(1) else { return &[] };
        let class = &mut node.classes[class];
        class.pop();
        if node.told > 0 && !class.is_empty() {
            node.told -= 1;
            return &[];
        }
        node.told = TOLD;
        &class[class.len().saturating_sub(usize::from(TOLD))..]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{CLASSES, Spare, TOLD, class_of};
    use crate::drawn;
    use crate::ids::{Node, Sample};

    #[test]
    fn classes_grow_with_sizes_by_an_eighth() {
        let mut last = 0;
        for bytes in (0..4096).chain((12..32).flat_map(|bit| (0..64).map(move |part| (1 << bit) + (part << (bit - 6))))) {
            let class = class_of(bytes);
            assert!(class == last || class == last + 1, "{bytes}");
            last = class;
        }
        assert_eq!(usize::from(class_of(u32::MAX)), CLASSES - 1);
        assert_eq!(class_of(16), class_of(17));
        assert_ne!(class_of(16), class_of(18));
    }

    /// Takes all that a node has, with their classes.
    fn take_all(spare: &mut Spare, node: Node) -> Vec<(Sample, u8)> {
        std::iter::from_fn(|| {
            let found = spare.largest(node);
            assert_eq!(spare.largest(node), found, "asking takes nothing away");
            spare.pop(node);
            found
        })
        .collect()
    }

    proptest! {
        #![proptest_config(drawn::cases(100))]

        #[test]
        fn the_largest_comes_first_and_each_once(
            sizes in proptest::collection::vec((any::<u32>(), 0..32_u32).prop_map(|(bytes, shift)| bytes >> shift), 0..300), cleared: bool,
        ) {
            let mut spare = Spare::new(2);
            for (sample, &bytes) in (0..).zip(&sizes) {
                spare.push((sample % 2) as Node, sample, bytes);
            }
            if cleared {
                spare.clear();
                prop_assert_eq!((spare.largest(0), spare.largest(1)), (None, None));
                (0..).zip(&sizes).for_each(|(sample, &bytes)| spare.push((sample % 2) as Node, sample, bytes));
            }
            for node in 0..2 {
                let mut taken = take_all(&mut spare, node);
                prop_assert!(taken.is_sorted_by_key(|&(_, class)| std::cmp::Reverse(class)));
                prop_assert!(taken.iter().all(|&(sample, class)| class == class_of(sizes[sample as usize])));
                taken.sort_unstable();
                let of_node: Vec<Sample> = (0..sizes.len() as Sample).filter(|sample| sample % 2 == Sample::from(node)).collect();
                prop_assert_eq!(taken.into_iter().map(|(sample, _)| sample).collect::<Vec<_>>(), of_node);
                prop_assert!(spare.pop(node).is_empty());
            }
        }
    }

    #[test]
    fn what_is_told_comes_next() {
        let mut spare = Spare::new(1);
        (0..1000).for_each(|sample| spare.push(0, sample, 100));
        let (mut told, mut times): (Vec<Sample>, usize) = (Vec::new(), 0);
        while let Some((sample, _)) = spare.largest(0) {
            assert!(told.pop().is_none_or(|next| next == sample));
            let more = spare.pop(0);
            if !more.is_empty() {
                (told, times) = (more.to_vec(), times + 1);
            }
        }
        let most = usize::from(TOLD);
        assert!((1000 / most - 1..=1000 / most + 1).contains(&times), "{times} times");
    }
}
