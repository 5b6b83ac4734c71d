//! The copies that nodes gave up last, for the driver that frees them: see [`super::Residency::given_up`].

use std::collections::VecDeque;

use crate::ids::{Node, Sample};

/// Most copies that are remembered. One decision gives up few, and a driver that never asks, such as the simulator,
/// should cost nothing.
const REMEMBERED: usize = 64;

/// The last copies that were given up, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct GivenUp {
    last: VecDeque<(Node, Sample)>,
}

impl GivenUp {
    /// Records that a node gave up its copy; the oldest record is forgotten if there are too many.
    pub(super) fn note(&mut self, node: Node, sample: Sample) {
        if self.last.len() == REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back((node, sample));
    }

    /// Takes the oldest record.
    pub(super) fn take(&mut self) -> Option<(Node, Sample)> {
        self.last.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_told_once_each_in_their_order() {
        let mut given_up = GivenUp::default();
        assert_eq!(given_up.take(), None);
        let all = 0..REMEMBERED as Sample + 3;
        all.clone().for_each(|sample| given_up.note(1, sample));
        let told: Vec<(Node, Sample)> = std::iter::from_fn(|| given_up.take()).collect();
        let last: Vec<(Node, Sample)> = all.skip(3).map(|sample| (1, sample)).collect();
        assert_eq!(told, last);
    }
}
