//! A node of a simulated job: its samples, and what happens to its requests.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use forebay_policy::ids::{Node, Sample};
use forebay_policy::peers::{Health, PeerFetch, Reach, SampleShares};

/// A request for a sample on its way. No number is used twice, so what happens to an older one is ignored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SampleTry {
    pub(super) node: Node,
    pub(super) sample: Sample,
    pub(super) number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ClusterEvent {
    /// A request has reached the node that is asked.
    Reached(SampleTry),
    /// The whole sample has come from the node that was asked.
    Came(SampleTry),
    /// The asked node says that it lacks the sample.
    Declined(SampleTry),
    /// The asked node says that it has too much to do.
    Busy(SampleTry),
    /// The asked node has another table of members.
    OtherMembers(SampleTry),
    /// No answer came in time.
    Late(SampleTry),
    /// There was no connection.
    NotConnected(SampleTry),
    /// Busy nodes may be asked again.
    Again(SampleTry),
    /// A node that was silent is to be probed.
    Probe { node: Node, asked: Node },
    /// A probe has no answer.
    NotCleared { node: Node, asked: Node },
    /// A node has read a sample from the source.
    Read { node: Node, sample: Sample },
    /// All ranks have computed a step.
    StepEnd,
}

/// A rank or a node that waits for a sample.
#[derive(Clone, Copy, Debug)]
pub(super) enum SampleWaiter {
    /// The rank of the node, for a step, since this time.
    Rank { step: u64, since_s: f64 },
    /// Another node.
    Peer(SampleTry),
}

/// A sample that a node asks for or reads.
#[derive(Debug)]
pub(super) struct ComingSample {
    pub(super) waiters: Vec<SampleWaiter>,
    pub(super) number: u64,
    pub(super) asked: Node,
    pub(super) deadline_s: f64,
    /// Time of the last request in seconds.
    pub(super) sent_s: f64,
    pub(super) fetch: Option<PeerFetch>,
    pub(super) is_absent: bool,
    /// True once the source is read for it.
    pub(super) is_read: bool,
    /// True if nobody who was asked has answered.
    pub(super) was_late: bool,
}

impl ComingSample {
    /// Creates a sample that a node begins to bring in.
    pub(super) fn new(node: Node, waiter: SampleWaiter) -> Self {
        Self {
            waiters: vec![waiter],
            number: 0,
            asked: node,
            deadline_s: 0.0,
            sent_s: 0.0,
            fetch: None,
            is_absent: false,
            is_read: false,
            was_late: false,
        }
    }
}

/// A node, with the samples that it keeps and those that it brings in.
#[derive(Debug)]
pub(super) struct ClusterNode {
    pub(super) shares: SampleShares,
    pub(super) kept: HashSet<Sample>,
    pub(super) coming: HashMap<Sample, ComingSample>,
    pub(super) health: HashMap<Node, Health>,
    pub(super) reach: RefCell<Reach>,
    /// Time at which the last sample of a step came, by step in turn.
    pub(super) ready_s: Vec<f64>,
}

impl ClusterNode {
    /// Creates a node that has nothing, with room for the times of `slots` steps.
    pub(super) fn new(shares: SampleShares, slots: usize) -> Self {
        Self {
            shares,
            kept: HashSet::new(),
            coming: HashMap::new(),
            health: HashMap::new(),
            reach: RefCell::default(),
            ready_s: vec![0.0; slots],
        }
    }

    pub(super) fn is_suspected(&self, node: Node, now_s: f64) -> bool {
        let is_suspected = self.health.get(&node).is_some_and(Health::is_suspected);
        is_suspected || !self.reach.borrow_mut().lets_ask(now_s)
    }

    /// Notes an answer of another node.
    pub(super) fn was_answered(&mut self, node: Node, took_s: f64) {
        self.reach.get_mut().answered();
        self.health.entry(node).or_default().answered(took_s);
    }
}
