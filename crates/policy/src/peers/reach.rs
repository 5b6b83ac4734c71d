//! Reach of a node: whether any other node answers it.

use std::collections::BTreeSet;

/// Nodes that are silent one after another, without an answer of any in between, from which on a node takes itself for
/// cut off.
const SILENT_MAX: usize = 3;
/// Time until a node that takes itself for cut off tries a request, in seconds; it doubles up to [`PAUSE_MAX_S`].
const PAUSE_FIRST_S: f64 = 1.0;
/// Longest time between two such requests, in seconds.
const PAUSE_MAX_S: f64 = 30.0;

/// Nodes that were silent since the last answer of any node.
///
/// Each silent node costs a wait of its own. A node that nobody answers any more is cut off itself most likely: it asks
/// nobody until some node has answered, but for one request now and then.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    silent: BTreeSet<u16>,
    try_at_s: f64,
    pause_s: f64,
}

impl Reach {
    /// Notes an answer of any node, also of a probe.
    pub fn answered(&mut self) {
        self.silent.clear();
    }

    /// Notes that a node was silent.
    pub fn silent(&mut self, node: u16, now_s: f64) {
        if self.silent.len() < SILENT_MAX && self.silent.insert(node) && self.silent.len() == SILENT_MAX {
            self.pause_s = PAUSE_FIRST_S;
            self.try_at_s = now_s + self.pause_s;
        }
    }

    /// Returns true if a node may be asked now. For a node that is cut off that is so once in a pause, so each call is
    /// for a request that is sent then.
    pub fn lets_ask(&mut self, now_s: f64) -> bool {
        if self.silent.len() < SILENT_MAX {
            return true;
        }
        let is_due = now_s >= self.try_at_s;
        if is_due {
            self.pause_s = (2.0 * self.pause_s).min(PAUSE_MAX_S);
            self.try_at_s = now_s + self.pause_s;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_cut_off_once_several_others_were_silent_and_none_has_answered() {
        let mut reach = Reach::default();
        for node in [3, 3, 3, 3, 5] {
            reach.silent(node, 0.0);
            assert!(reach.lets_ask(0.0), "two nodes");
        }
        reach.answered();
        reach.silent(1, 0.0);
        reach.silent(2, 0.0);
        assert!(reach.lets_ask(0.0), "one has answered in between");
        reach.silent(4, 0.0);
        assert!(!reach.lets_ask(0.0));
        reach.answered();
        assert!(reach.lets_ask(0.0));
    }

    #[test]
    fn a_node_that_is_cut_off_tries_one_request_in_each_pause() {
        let mut reach = Reach::default();
        (1..4).for_each(|node| reach.silent(node, 0.0));
        let mut now_s = 0.0;
        for pause_s in [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0] {
            assert!(!reach.lets_ask(now_s + pause_s - 0.1), "{pause_s}");
            now_s += pause_s;
            assert!(reach.lets_ask(now_s), "{pause_s}");
            reach.silent(9, now_s + 0.5);
            assert!(!reach.lets_ask(now_s), "once");
        }
    }
}
