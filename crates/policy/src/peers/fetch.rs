//! One range on its way from other nodes: whom to ask, in which order, and when to give up.

/// Answer of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The range, whole and with the right digest.
    Whole,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask this node.
    Ask(u16),
    /// Wait for what was asked.
    Wait,
    /// The range is here.
    Done,
    /// No node is left to ask in time: read the source.
    Source,
}

/// Nodes that are asked for one range at most, so that a range that nobody has costs little.
const ASKED_MAX: usize = 4;
/// Nodes that are asked at the same moment at most: one, and one more that may be faster.
const AT_ONCE_MAX: usize = 2;

/// A range that is wanted.
///
/// A node that did not answer is not taken for one that lacks the range: it is only asked no more *for this range*.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// Nodes still to be asked, the best last.
    left: Vec<u16>,
    asked: Vec<u16>,
    under_way: usize,
    deadline_s: f64,
    done: bool,
}

impl Fetch {
    /// Begins a fetch. `holders` are nodes that may have the range, the best first; after `deadline_s` the range is
    /// useless from a node.
    pub fn new(holders: &[u16], deadline_s: f64) -> Self {
        let mut fetch = Self {
            left: Vec::new(),
            asked: Vec::new(),
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
            if !self.asked.contains(holder) {
                self.left.push(*holder);
            }
        }
    }

    /// Returns the first step. `is_suspected` tells of a node whether it is not to be asked now.
    pub fn begin(&mut self, now_s: f64, is_suspected: impl Fn(u16) -> bool) -> Step {
        self.next(now_s, is_suspected)
    }

    /// Returns what follows from an answer.
    pub fn answered(&mut self, answer: &Answer, now_s: f64, is_suspected: impl Fn(u16) -> bool) -> Step {
        self.under_way = self.under_way.saturating_sub(1);
        match answer {
            Answer::Whole => self.done = true,
            Answer::Busy { holders } => self.prefer(holders),
            Answer::Absent | Answer::Gone | Answer::Failed | Answer::Corrupt => {}
        }
        self.next(now_s, is_suspected)
    }

    /// Returns whom else to ask when the first answer takes longer than it should: [`Step::Wait`] if nobody.
    pub fn hedge(&mut self, now_s: f64, is_suspected: impl Fn(u16) -> bool) -> Step {
        if self.done || self.under_way == 0 || self.under_way >= AT_ONCE_MAX {
            return if self.done { Step::Done } else { Step::Wait };
        }
        self.ask(now_s, is_suspected).unwrap_or(Step::Wait)
    }

    fn next(&mut self, now_s: f64, is_suspected: impl Fn(u16) -> bool) -> Step {
        if self.done {
            return Step::Done;
        }
        if self.under_way > 0 {
            return Step::Wait;
        }
        self.ask(now_s, is_suspected).unwrap_or(Step::Source)
    }

    fn ask(&mut self, now_s: f64, is_suspected: impl Fn(u16) -> bool) -> Option<Step> {
        if now_s >= self.deadline_s || self.asked.len() >= ASKED_MAX {
            return None;
        }
        while let Some(node) = self.left.pop() {
            if !is_suspected(node) {
                self.asked.push(node);
                self.under_way += 1;
                return Some(Step::Ask(node));
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
        let mut fetch = Fetch::new(&[3, 1], 10.0);
        assert_eq!(fetch.begin(0.0, nobody), Step::Ask(3));
        assert_eq!(fetch.answered(&Answer::Failed, 1.0, nobody), Step::Ask(1));
        assert_eq!(fetch.answered(&Answer::Absent, 2.0, nobody), Step::Source);
    }

    #[test]
    fn a_busy_node_names_others_and_nobody_is_asked_twice() {
        let mut fetch = Fetch::new(&[3, 1], 10.0);
        assert_eq!(fetch.begin(0.0, nobody), Step::Ask(3));
        let busy = Answer::Busy { holders: vec![7, 3] };
        assert_eq!(fetch.answered(&busy, 0.1, nobody), Step::Ask(7));
        assert_eq!(fetch.answered(&Answer::Whole, 0.2, nobody), Step::Done);
    }

    #[test]
    fn a_suspected_node_is_passed_by() {
        let mut fetch = Fetch::new(&[3, 1], 10.0);
        assert_eq!(fetch.begin(0.0, |node| node == 3), Step::Ask(1));
    }

    #[test]
    fn a_second_node_is_asked_once_and_the_first_answer_counts() {
        let mut fetch = Fetch::new(&[3, 1, 2], 10.0);
        assert_eq!(fetch.hedge(0.0, nobody), Step::Wait, "nothing is under way");
        assert_eq!(fetch.begin(0.0, nobody), Step::Ask(3));
        assert_eq!(fetch.hedge(0.5, nobody), Step::Ask(1));
        assert_eq!(fetch.hedge(0.6, nobody), Step::Wait);
        assert_eq!(
            fetch.answered(&Answer::Failed, 0.7, nobody),
            Step::Wait,
            "the other may still answer"
        );
        assert_eq!(fetch.answered(&Answer::Whole, 0.8, nobody), Step::Done);
    }

    #[test]
    fn after_the_deadline_it_is_the_source() {
        let mut fetch = Fetch::new(&[3, 1], 10.0);
        assert_eq!(fetch.begin(0.0, nobody), Step::Ask(3));
        assert_eq!(fetch.answered(&Answer::Failed, 10.0, nobody), Step::Source);
    }

    fn answers() -> impl Strategy<Value = Answer> {
        prop_oneof![
            Just(Answer::Whole),
            Just(Answer::Absent),
            Just(Answer::Gone),
            Just(Answer::Failed),
            Just(Answer::Corrupt),
            prop::collection::vec(0u16..9, 0..4).prop_map(|holders| Answer::Busy { holders }),
        ]
    }

    proptest! {
        /// Whatever is answered in whatever order: it ends with the range or the source, within four requests, no
        /// node is asked twice, no suspected one at all, and no more than two at a time.
        #[test]
        fn it_comes_to_an_end(
            holders in prop::collection::vec(0u16..9, 0..9),
            events in prop::collection::vec((answers(), any::<bool>()), 0..40),
            suspected in prop::collection::hash_set(0u16..9, 0..4),
        ) {
            let is_suspected = |node| suspected.contains(&node);
            let mut fetch = Fetch::new(&holders, 100.0);
            let mut asked = Vec::new();
            let mut under_way = 0;
            let mut step = fetch.begin(0.0, is_suspected);
            for (now_s, (answer, hedged)) in (1u32..).zip(events) {
                if let Step::Ask(node) = step {
                    prop_assert!(!asked.contains(&node) && !is_suspected(node));
                    asked.push(node);
                    under_way += 1;
                }
                prop_assert!(asked.len() <= ASKED_MAX && under_way <= AT_ONCE_MAX);
                if matches!(step, Step::Done | Step::Source) {
                    break;
                }
                let now_s = f64::from(now_s);
                step = if hedged && under_way > 0 {
                    fetch.hedge(now_s, is_suspected)
                } else if under_way > 0 {
                    under_way -= 1;
                    fetch.answered(&answer, now_s, is_suspected)
                } else {
                    Step::Source
                };
            }
            if under_way == 0 {
                prop_assert!(!matches!(step, Step::Wait), "nothing would ever come");
            }
        }
    }
}
