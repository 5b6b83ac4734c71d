//! Links, connections and the state of nodes: who reaches whom, and when bytes arrive.

use std::collections::{HashMap, HashSet};

use forebay_policy::ids::Node;
use forebay_policy::splitmix::{WEYL, mix};

use super::{CONNECTIONS_MAX, ClusterFault, ClusterJob};
use crate::pipe::Pipe;

/// Seconds for which a flapping node is silent, and then well.
const FLAPS_S: f64 = 5.0;
/// Slowness of a slow node's link.
const SLOWNESS: f64 = 10.0;
/// Ways that a handshake takes before a request can be sent.
const HANDSHAKE_WAYS: f64 = 2.0;
/// Nodes with a fault: one in this many, at least one.
const FAULTY_PART: u16 = 100;

/// Reaction of a node to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    /// It takes it.
    Taken,
    /// It refuses the connection.
    Refused,
    /// No answer comes back.
    Silent,
}

/// Link and connections of a node.
#[derive(Debug)]
struct NodeLink {
    sends: Pipe,
    receives: Pipe,
    latency_s: f64,
    is_faulty: bool,
    has_old_members: bool,
    /// Nodes to which it has a connection.
    made: HashSet<Node>,
    /// Nodes that have a connection to it, and when each used it last, by a count of uses.
    taken: HashMap<Node, u64>,
    most: usize,
}

/// The network of a job.
#[derive(Debug)]
pub(super) struct Network {
    fault: ClusterFault,
    links: Vec<NodeLink>,
    /// Time from which the fault is there.
    faulty_from_s: f64,
    uses: u64,
    pub(super) handshakes: u64,
}

impl Network {
    pub(super) fn new(job: ClusterJob) -> Self {
        let links = (0..job.nodes).map(|_| NodeLink {
            sends: Pipe::new(job.link_bytes_per_s),
            receives: Pipe::new(job.link_bytes_per_s),
            latency_s: job.latency_s / 2.0,
            is_faulty: false,
            has_old_members: false,
            made: HashSet::new(),
            taken: HashMap::new(),
            most: 0,
        });
        Self {
            fault: job.fault,
            links: links.collect(),
            faulty_from_s: f64::INFINITY,
            uses: 0,
            handshakes: 0,
        }
    }

    /// Begins the fault. Returns the nodes that have it.
    pub(super) fn begin_fault(&mut self, job: ClusterJob, now_s: f64) -> Vec<Node> {
        self.faulty_from_s = now_s;
        let mut nodes: Vec<Node> = (0..job.nodes).collect();
        nodes.sort_unstable_by_key(|node| mix(u64::from(*node) ^ mix(job.seed.wrapping_add(WEYL))));
        nodes.truncate(match self.fault {
            ClusterFault::Healthy | ClusterFault::WarmRestart => 0,
            ClusterFault::OldMembers => usize::from(job.nodes / 2),
            _ => usize::from((job.nodes / FAULTY_PART).max(1)),
        });
        for node in &nodes {
            let link = &mut self.links[usize::from(*node)];
            link.is_faulty = true;
            link.has_old_members = self.fault == ClusterFault::OldMembers;
            if self.fault == ClusterFault::Slow {
                link.latency_s *= SLOWNESS;
                link.sends = Pipe::new(job.link_bytes_per_s / SLOWNESS);
                link.receives = Pipe::new(job.link_bytes_per_s / SLOWNESS);
            }
        }
        nodes
    }

    /// Returns how a node reacts to a request of another at this time.
    pub(super) fn reaction(&self, asker: Node, asked: Node, now_s: f64) -> Reaction {
        let is_dead = self.fault == ClusterFault::Dead && self.links[usize::from(asked)].is_faulty;
        if is_dead {
            Reaction::Refused
        } else if self.is_silent(asker, now_s) || self.is_silent(asked, now_s) {
            Reaction::Silent
        } else {
            Reaction::Taken
        }
    }

    fn is_silent(&self, node: Node, now_s: f64) -> bool {
        let is_off = (((now_s - self.faulty_from_s) / FLAPS_S) as u64).is_multiple_of(2);
        self.links[usize::from(node)].is_faulty
            && match self.fault {
                ClusterFault::CutOff => true,
                ClusterFault::Flapping => is_off,
                _ => false,
            }
    }

    /// Returns true if the agent of a node has ended.
    pub(super) fn has_ended(&self, node: Node) -> bool {
        self.fault == ClusterFault::Dead && self.links[usize::from(node)].is_faulty
    }

    /// Returns true if two nodes have the same table of members.
    pub(super) fn agree(&self, one: Node, other: Node) -> bool {
        self.links[usize::from(one)].has_old_members == self.links[usize::from(other)].has_old_members
    }

    /// Seconds from one node to another.
    pub(super) fn latency_s(&self, one: Node, other: Node) -> f64 {
        self.links[usize::from(one)].latency_s + self.links[usize::from(other)].latency_s
    }

    pub(super) fn is_connected(&self, asker: Node, asked: Node) -> bool {
        self.links[usize::from(asker)].made.contains(&asked)
    }

    /// Uses the connection of a node to another, or makes one. Returns the seconds that a request takes.
    pub(super) fn connect(&mut self, asker: Node, asked: Node) -> f64 {
        let way_s = self.latency_s(asker, asked);
        self.uses += 1;
        let is_new = self.links[usize::from(asker)].made.insert(asked);
        let link = &mut self.links[usize::from(asked)];
        let closed = (is_new && link.taken.len() >= CONNECTIONS_MAX).then(|| {
            let idlest = link.taken.iter().min_by_key(|(_, used)| **used).map(|(node, _)| *node);
            idlest.inspect(|node| {
                link.taken.remove(node);
            })
        });
        link.taken.insert(asker, self.uses);
        if let Some(closed) = closed.flatten() {
            self.links[usize::from(closed)].made.remove(&asked);
        }
        for node in [asker, asked] {
            let link = &mut self.links[usize::from(node)];
            link.most = link.most.max(link.made.len() + link.taken.len());
        }
        if is_new {
            self.handshakes += 1;
            way_s * (1.0 + HANDSHAKE_WAYS)
        } else {
            way_s
        }
    }

    /// Closes the connection of a node to another.
    pub(super) fn disconnect(&mut self, asker: Node, asked: Node) {
        self.links[usize::from(asker)].made.remove(&asked);
        self.links[usize::from(asked)].taken.remove(&asker);
    }

    /// Seconds that bytes of a node wait until they are sent.
    pub(super) fn backlog_s(&self, node: Node, now_s: f64) -> f64 {
        self.links[usize::from(node)].sends.idle_at_s(now_s) - now_s
    }

    /// Sends bytes from one node to another. Returns the time at which the last arrives.
    pub(super) fn send(&mut self, from: Node, to: Node, bytes: u32, now_s: f64) -> f64 {
        let latency_s = self.latency_s(from, to);
        let left_s = self.links[usize::from(from)].sends.carry(now_s, bytes);
        self.links[usize::from(to)].receives.carry_on(left_s + latency_s, bytes)
    }

    /// Takes bytes of the source whose last leaves it at `left_s`. Returns the time at which the last arrives.
    pub(super) fn receive(&mut self, node: Node, bytes: u32, left_s: f64) -> f64 {
        self.links[usize::from(node)].receives.carry_on(left_s, bytes)
    }

    /// Most connections that one node had at a time.
    pub(super) fn connections_max(&self) -> u32 {
        self.links.iter().map(|link| link.most as u32).max().unwrap_or(0)
    }
}
