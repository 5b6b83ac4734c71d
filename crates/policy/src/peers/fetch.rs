//! One range on its way from other nodes: whom to ask, in which order, and when to give up.

/// PeerAnswer of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAnswer {
    /// The range, whole and with the right digest.
    Whole {
        /// Its length in bytes.
        bytes: u64,
    },
    /// It has the object, whose length is not the one that was asked for.
    OtherLength(u64),
    /// It has no such object.
    Absent,
    /// It had the object at another version, or has given it up while it answered.
    Gone,
    /// It has too much to do. `holders` may have the range instead.
    Busy {
        /// Nodes that were given the range last.
        holders: Vec<u16>,
    },
    /// No connection, no first byte in time, no progress, or an end in the middle.
    Failed,
    /// Bytes came, and their digest was wrong.
    Corrupt,
}

/// Next step of a fetch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FetchStep {
    /// Ask this node.
    Ask(u16),
    /// Wait for the answers of the nodes that were asked.
    Wait,
    /// All nodes that may have the range are busy: call [`PeerFetch::again`] at this time, in seconds.
    Later(f64),
    /// The range is here.
    Done,
    /// No node is left to ask in time: read the source.
    Source,
}

/// Nodes that are asked for one range at most without an answer of theirs, so that a range that nobody has costs
/// little.
const ASKED_MAX: usize = 4;
/// Nodes that are asked at the same moment at most: one, and one more that may be faster.
const AT_ONCE_MAX: usize = 2;
/// First pause before busy nodes are asked again, in seconds; it doubles up to [`PAUSE_MAX_S`].
const PAUSE_FIRST_S: f64 = 0.01;
/// Longest pause before busy nodes are asked again, in seconds.
const PAUSE_MAX_S: f64 = 0.1;

/// A range that is wanted.
///
/// A node that did not answer is not taken for one that lacks the range: it is only asked no more *for this range*. A
/// busy node is asked again.
#[derive(Clone, Debug)]
pub struct PeerFetch {
    /// Nodes still to be asked, the best last.
    left: Vec<u16>,
    /// Nodes that are asked no more.
    asked: Vec<u16>,
    /// Nodes that were busy.
    busy: Vec<u16>,
    pause_s: f64,
    /// Requests that got no range, and no word that the node is busy.
    failed: usize,
    under_way: usize,
    deadline_s: f64,
    done: bool,
}

impl PeerFetch {
    /// Begins a fetch. `holders` are nodes that may have the range, the best first; after `deadline_s` the range is
    /// useless from a node.
    pub fn new(holders: &[u16], deadline_s: f64) -> Self {
        let mut fetch = Self {
            left: Vec::new(),
            asked: Vec::new(),
            busy: Vec::new(),
            pause_s: PAUSE_FIRST_S,
            failed: 0,
            under_way: 0,
            deadline_s,
            done: false,
        };
        fetch.prefer(holders);
        fetch
    }

    fn prefer(&mut self, holders: &[u16]) {
        for holder in holders.iter().rev() {
            self.left.retain(|left| left != holder);
            if !self.asked.contains(holder) && !self.busy.contains(holder) {
                self.left.push(*holder);
            }
        }
    }

    /// Returns the first step. `is_suspected` tells of a node whether it is not to be asked now.
    pub fn begin(&mut self, now_s: f64, is_suspected: impl Fn(u16) -> bool) -> FetchStep {
        self.next(now_s, is_suspected)
    }

    /// Returns the step that follows from the answer of a node.
    pub fn answered(&mut self, node: u16, answer: &PeerAnswer, now_s: f64, is_suspected: impl Fn(u16) -> bool) -> FetchStep {
        self.under_way = self.under_way.saturating_sub(1);
        match answer {
            PeerAnswer::Whole { .. } | PeerAnswer::OtherLength(_) => self.done = true,
            PeerAnswer::Busy { holders } => {
                self.asked.retain(|asked| *asked != node);
                self.busy.push(node);
                self.prefer(holders);
            }
            PeerAnswer::Absent | PeerAnswer::Gone | PeerAnswer::Failed | PeerAnswer::Corrupt => self.failed += 1,
        }
        self.next(now_s, is_suspected)
    }

    /// Returns the step after a pause that [`FetchStep::Later`] asked for.
    pub fn again(&mut self, now_s: f64, is_suspected: impl Fn(u16) -> bool) -> FetchStep {
        // The last comes first, and so a node that a busy one has named before that one: a hot object is to leave its
        // owner about once.
        let mut busy = std::mem::take(&mut self.busy);
        busy.reverse();
        self.prefer(&busy);
        self.next(now_s, is_suspected)
    }

    /// Returns true if there is a second node that could be asked at the same moment.
    pub const fn may_hedge(&self) -> bool {
        self.under_way < AT_ONCE_MAX && !self.left.is_empty()
    }

    /// Returns whom else to ask when the first answer takes longer than it should: [`FetchStep::Wait`] if nobody.
    pub fn hedge(&mut self, now_s: f64, is_suspected: impl Fn(u16) -> bool) -> FetchStep {
        if self.done || self.under_way == 0 || self.under_way >= AT_ONCE_MAX {
            return if self.done { FetchStep::Done } else { FetchStep::Wait };
        }
        self.ask(now_s, is_suspected).unwrap_or(FetchStep::Wait)
    }

    fn next(&mut self, now_s: f64, is_suspected: impl Fn(u16) -> bool) -> FetchStep {
        if self.done {
            return FetchStep::Done;
        }
        if self.under_way > 0 {
            return FetchStep::Wait;
        }
        if let Some(step) = self.ask(now_s, is_suspected) {
            return step;
        }
        let at_s = now_s + self.pause_s;
        if self.busy.is_empty() || self.failed >= ASKED_MAX || at_s >= self.deadline_s {
            return FetchStep::Source;
        }
        self.pause_s = (self.pause_s * 2.0).min(PAUSE_MAX_S);
        FetchStep::Later(at_s)
    }

    fn ask(&mut self, now_s: f64, is_suspected: impl Fn(u16) -> bool) -> Option<FetchStep> {
        if now_s >= self.deadline_s || self.failed + self.under_way >= ASKED_MAX {
            return None;
        }
        while let Some(node) = self.left.pop() {
            if !is_suspected(node) {
                self.asked.push(node);
                self.under_way += 1;
                return Some(FetchStep::Ask(node));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn nobody(_: u16) -> bool {
        false
    }

    #[test]
    fn holders_are_asked_in_their_order_and_then_the_source() {
        let mut fetch = PeerFetch::new(&[3, 1], 10.0);
        assert_eq!(fetch.begin(0.0, nobody), FetchStep::Ask(3));
        assert_eq!(fetch.answered(3, &PeerAnswer::Failed, 1.0, nobody), FetchStep::Ask(1));
        assert_eq!(fetch.answered(1, &PeerAnswer::Absent, 2.0, nobody), FetchStep::Source);
    }

    #[test]
    fn a_busy_node_names_others_and_is_asked_again_after_a_pause() {
        let mut fetch = PeerFetch::new(&[3], 10.0);
        assert_eq!(fetch.begin(0.0, nobody), FetchStep::Ask(3));
        let busy = |holders| PeerAnswer::Busy { holders };
        assert_eq!(fetch.answered(3, &busy(vec![7, 3]), 0.1, nobody), FetchStep::Ask(7));
        let later = |step, pause_s: f64| matches!(step, FetchStep::Later(at_s) if (at_s - pause_s).abs() < 1e-9);
        assert!(later(fetch.answered(7, &busy(vec![]), 0.2, nobody), 0.21));
        assert_eq!(fetch.again(0.21, nobody), FetchStep::Ask(7), "the one that was named comes first");
        assert_eq!(fetch.answered(7, &busy(vec![]), 0.3, nobody), FetchStep::Ask(3));
        assert!(later(fetch.answered(3, &busy(vec![]), 0.4, nobody), 0.42), "twice as long");
        assert_eq!(fetch.again(0.42, nobody), FetchStep::Ask(3), "and the one that was busy last");
        assert_eq!(fetch.answered(3, &PeerAnswer::Whole { bytes: 1 }, 0.5, nobody), FetchStep::Done);
    }

    #[test]
    fn a_pause_does_not_reach_beyond_the_deadline() {
        let mut fetch = PeerFetch::new(&[3], 0.1);
        assert_eq!(fetch.begin(0.0, nobody), FetchStep::Ask(3));
        assert_eq!(
            fetch.answered(3, &PeerAnswer::Busy { holders: vec![] }, 0.096, nobody),
            FetchStep::Source
        );
    }

    #[test]
    fn a_suspected_node_is_passed_by() {
        let mut fetch = PeerFetch::new(&[3, 1], 10.0);
        assert_eq!(fetch.begin(0.0, |node| node == 3), FetchStep::Ask(1));
    }

    #[test]
    fn a_second_node_is_asked_once_and_the_first_answer_counts() {
        let mut fetch = PeerFetch::new(&[3, 1, 2], 10.0);
        assert_eq!(fetch.hedge(0.0, nobody), FetchStep::Wait, "nothing is under way");
        assert_eq!(fetch.begin(0.0, nobody), FetchStep::Ask(3));
        assert_eq!(fetch.hedge(0.5, nobody), FetchStep::Ask(1));
        assert_eq!(fetch.hedge(0.6, nobody), FetchStep::Wait);
        assert_eq!(
            fetch.answered(3, &PeerAnswer::Failed, 0.7, nobody),
            FetchStep::Wait,
            "the other may still answer"
        );
        assert_eq!(fetch.answered(1, &PeerAnswer::Whole { bytes: 1 }, 0.8, nobody), FetchStep::Done);
    }

    #[test]
    fn after_the_deadline_it_is_the_source() {
        let mut fetch = PeerFetch::new(&[3, 1], 10.0);
        assert_eq!(fetch.begin(0.0, nobody), FetchStep::Ask(3));
        assert_eq!(fetch.answered(3, &PeerAnswer::Failed, 10.0, nobody), FetchStep::Source);
    }

    fn answers() -> impl Strategy<Value = PeerAnswer> {
        prop_oneof![
            Just(PeerAnswer::Whole { bytes: 1 }),
            Just(PeerAnswer::OtherLength(5)),
            Just(PeerAnswer::Absent),
            Just(PeerAnswer::Gone),
            Just(PeerAnswer::Failed),
            Just(PeerAnswer::Corrupt),
            prop::collection::vec(0u16..9, 0..4).prop_map(|holders| PeerAnswer::Busy { holders }),
        ]
    }

    proptest! {
        /// Whatever is answered in whatever order: it ends with the range or the source before the deadline, no node
        /// that failed is asked again, no suspected one at all, and no more than two at a time.
        #[test]
        fn it_comes_to_an_end(
            holders in prop::collection::vec(0u16..9, 0..9),
            events in prop::collection::vec((answers(), any::<bool>()), 0..60),
            suspected in prop::collection::hash_set(0u16..9, 0..4),
        ) {
            let is_suspected = |node| suspected.contains(&node);
            let mut fetch = PeerFetch::new(&holders, 3.0);
            let (mut failed, mut under_way) = (Vec::new(), Vec::new());
            let mut now_s = 0.0;
            let mut step = fetch.begin(now_s, is_suspected);
            for (answer, hedged) in events {
                if let FetchStep::Ask(node) = step {
                    prop_assert!(!failed.contains(&node) && !under_way.contains(&node) && !is_suspected(node));
                    under_way.push(node);
                }
                prop_assert!(under_way.len() <= AT_ONCE_MAX && failed.len() <= ASKED_MAX && now_s < 3.0);
                now_s += 0.01;
                step = match step {
                    FetchStep::Done | FetchStep::Source => break,
                    FetchStep::Later(at_s) => {
                        prop_assert!(under_way.is_empty() && at_s > now_s - 0.01 && at_s < 3.0);
                        now_s = at_s;
                        fetch.again(now_s, is_suspected)
                    }
                    FetchStep::Ask(_) | FetchStep::Wait if hedged => fetch.hedge(now_s, is_suspected),
                    FetchStep::Ask(_) | FetchStep::Wait => {
                        let node = under_way.remove(0);
                        if !matches!(answer, PeerAnswer::Busy { .. } | PeerAnswer::Whole { .. } | PeerAnswer::OtherLength(_)) {
                            failed.push(node);
                        }
                        fetch.answered(node, &answer, now_s, is_suspected)
                    }
                };
            }
            prop_assert!(!matches!(step, FetchStep::Wait) || !under_way.is_empty(), "nothing would ever come");
        }
    }
}
