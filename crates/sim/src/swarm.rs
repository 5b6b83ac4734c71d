//! An object that all nodes of a job want at the same moment, such as the weights of a model: its time to all nodes,
//! and the bytes that its owner sends.
//!
//! Nodes ask as `forebay_policy::peers` says: a piece is requested from the owner, which serves it or names nodes
//! that it gave the piece. Links carry what is under way in equal shares. Time goes in steps of a fraction of a
//! piece's transfer.

use std::collections::{HashMap, VecDeque};

use forebay_policy::peers::{Admission, FetchStep, Health, PeerAnswer, PeerFetch, admit};
use forebay_policy::splitmix::{WEYL, mix};

/// A hot object and the nodes that want it.
#[derive(Clone, Copy, Debug)]
pub struct Swarm {
    /// Number of nodes, the owner among them.
    pub nodes: u16,
    /// Pieces of the object.
    pub pieces: u16,
    /// Bytes of a piece.
    pub piece_bytes: f64,
    /// Bytes a second that each node can send, and as many that it can receive.
    pub link_bytes_per_s: f64,
    /// Pieces that a node requests at the same moment.
    pub at_once: usize,
    /// Nodes that never answer, of 1,000.
    pub dead_per_mille: u16,
    /// Seed of the order in which each node wants the pieces, and of who is dead.
    pub seed: u64,
}

/// Result of a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwarmOutcome {
    /// Seconds until all living nodes had the object.
    pub seconds: f64,
    /// Bytes that the owner sent.
    pub owner_bytes: f64,
    /// Bytes that the node which sent most sent, the owner left out.
    pub most_bytes: f64,
    /// Pieces that were read from the source instead.
    pub from_source: u64,
    /// Requests that were sent.
    pub requests: u64,
}

/// Steps of the clock in the transfer of a piece at the full rate.
const STEPS_A_PIECE: f64 = 8.0;
/// Nodes that a server remembers for a piece.
const SERVED_NODES: usize = 4;
/// Nodes that an asker remembers, and how many of them it asks for a piece if the owner is busy.
const KNOWN_MAX: usize = 8;
const KNOWN_ASKED: usize = 2;
/// Steps after which the simulation is given up.
const STEPS_MAX: u64 = 1_000_000;

#[derive(Debug)]
struct SwarmFetch {
    piece: u16,
    machine: PeerFetch,
    state: FetchState,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum FetchState {
    /// Ask this node in the next step of the clock.
    Asking(u16),
    /// A dead node was asked: it fails at this time.
    Silent(u16, f64),
    /// The bytes are coming from this node.
    Coming(u16, f64),
    Later(f64),
}

struct SwarmNode {
    has: Vec<bool>,
    wanted: Vec<u16>,
    fetching: Vec<SwarmFetch>,
    served: HashMap<u16, VecDeque<u16>>,
    sends: usize,
    receives: usize,
    sent_bytes: f64,
    is_dead: bool,
    health: HashMap<u16, Health>,
    /// Nodes that gave a piece, the last one first.
    known: VecDeque<u16>,
}

struct SwarmDraw(u64);

impl SwarmDraw {
    /// Returns the next number below `below` (SplitMix64).
    fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(WEYL);
        usize::try_from(mix(self.0) % below.max(1) as u64).unwrap_or(0)
    }

    fn shuffled(&mut self, count: u16) -> Vec<u16> {
        let mut all: Vec<u16> = (0..count).collect();
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last + 1));
        }
        all
    }
}

impl Swarm {
    /// Simulates it. `None` if it did not come to an end.
    pub fn simulate(self) -> Option<SwarmOutcome> {
        let mut draw = SwarmDraw(self.seed);
        let mut nodes: Vec<SwarmNode> = (0..self.nodes).map(|number| self.node(number, &mut draw)).collect();
        let step_s = self.piece_bytes / self.link_bytes_per_s / STEPS_A_PIECE;
        let mut outcome = SwarmOutcome {
            seconds: 0.0,
            owner_bytes: 0.0,
            most_bytes: 0.0,
            from_source: 0,
            requests: 0,
        };
        for step in 0..STEPS_MAX {
            #[expect(clippy::cast_precision_loss, reason = "at most a million")]
            let now_s = step as f64 * step_s;
            let is_over = nodes
                .iter()
                .all(|node| node.is_dead || (node.wanted.is_empty() && node.fetching.is_empty()));
            if is_over {
                outcome.seconds = now_s;
                outcome.owner_bytes = nodes.first().map_or(0.0, |owner| owner.sent_bytes);
                outcome.most_bytes = nodes.iter().skip(1).map(|node| node.sent_bytes).fold(0.0, f64::max);
                return Some(outcome);
            }
            // The order is reversed in each step, so that no node is always first.
            for turn in 0..nodes.len() {
                let number = if step % 2 == 0 { turn } else { nodes.len() - 1 - turn };
                self.ask(&mut nodes, number, now_s, &mut outcome);
            }
            self.carry(&mut nodes, step_s);
        }
        None
    }

    fn node(self, number: u16, draw: &mut SwarmDraw) -> SwarmNode {
        let is_owner = number == 0;
        SwarmNode {
            has: vec![is_owner; usize::from(self.pieces)],
            wanted: if is_owner { Vec::new() } else { draw.shuffled(self.pieces) },
            fetching: Vec::new(),
            served: HashMap::new(),
            sends: 0,
            receives: 0,
            sent_bytes: 0.0,
            is_dead: !is_owner && draw.below(1000) < usize::from(self.dead_per_mille),
            health: HashMap::new(),
            known: VecDeque::new(),
        }
    }

    /// Begins fetches of a node, and sends its requests.
    fn ask(self, nodes: &mut [SwarmNode], number: usize, now_s: f64, outcome: &mut SwarmOutcome) {
        let Some(node) = nodes.get_mut(number).filter(|node| !node.is_dead) else {
            return;
        };
        while node.fetching.len() < self.at_once
            && let Some(piece) = node.wanted.pop()
        {
            let mut holders = vec![0];
            holders.extend(node.known.iter().take(KNOWN_ASKED));
            let mut machine = PeerFetch::new(&holders, f64::INFINITY);
            let state = state_of(machine.begin(now_s, |_| false), now_s);
            node.fetching.push(SwarmFetch { piece, machine, state });
        }
        for index in 0..node.fetching.len() {
            self.ask_one(nodes, number, index, now_s, outcome);
        }
        if let Some(node) = nodes.get_mut(number) {
            let came = |fetching: &SwarmFetch| fetching.state == FetchState::Later(f64::INFINITY);
            node.fetching.retain(|fetching| !came(fetching));
        }
    }

    fn ask_one(self, nodes: &mut [SwarmNode], number: usize, index: usize, now_s: f64, outcome: &mut SwarmOutcome) {
        let here = u16::try_from(number).unwrap_or(u16::MAX);
        let Some((piece, state)) = nodes
            .get(number)
            .and_then(|node| node.fetching.get(index))
            .map(|f| (f.piece, f.state))
        else {
            return;
        };
        let (asked, answer) = match state {
            FetchState::Asking(asked) => {
                outcome.requests += 1;
                let Some(server) = nodes.get_mut(usize::from(asked)) else { return };
                if server.is_dead {
                    set(nodes, number, index, FetchState::Silent(asked, now_s + 1.0));
                    return;
                }
                let holders: Vec<u16> = server
                    .served
                    .get(&piece)
                    .into_iter()
                    .flatten()
                    .copied()
                    .filter(|holder| *holder != here)
                    .collect();
                let has = server.has.get(usize::from(piece)).copied().unwrap_or(false);
                match (has, admit(server.sends, !holders.is_empty())) {
                    (true, Admission::Serve) => {
                        server.sends += 1;
                        let served = server.served.entry(piece).or_default();
                        served.push_front(here);
                        served.truncate(SERVED_NODES);
                        set(nodes, number, index, FetchState::Coming(asked, self.piece_bytes));
                        if let Some(node) = nodes.get_mut(number) {
                            node.receives += 1;
                        }
                        return;
                    }
                    // A node that is still receiving the piece will have it soon.
                    (true, Admission::Redirect) | (false, _) => (asked, PeerAnswer::Busy { holders }),
                }
            }
            FetchState::Silent(asked, until_s) if now_s >= until_s => (asked, PeerAnswer::Failed),
            FetchState::Later(at_s) if now_s >= at_s => {
                let Some(node) = nodes.get_mut(number) else { return };
                let health = &node.health;
                if let Some(fetching) = node.fetching.get_mut(index) {
                    fetching.state = state_of(fetching.machine.again(now_s, |other| is_suspected(health, other)), now_s);
                }
                return;
            }
            _ => return,
        };
        let Some(node) = nodes.get_mut(number) else { return };
        let health = node.health.entry(asked).or_default();
        if answer == PeerAnswer::Failed {
            health.silent(now_s);
        } else {
            health.answered(0.001);
        }
        let health = &node.health;
        let Some(fetching) = node.fetching.get_mut(index) else { return };
        let step = fetching
            .machine
            .answered(asked, &answer, now_s, |other| is_suspected(health, other));
        if step == FetchStep::Source {
            outcome.from_source += 1;
            if let Some(has) = node.has.get_mut(usize::from(piece)) {
                *has = true;
            }
        }
        set(nodes, number, index, state_of(step, now_s));
    }

    /// Moves the bytes that are under way for one step of the clock.
    fn carry(self, nodes: &mut [SwarmNode], step_s: f64) {
        let sends: Vec<usize> = nodes.iter().map(|node| node.sends).collect();
        for number in 0..nodes.len() {
            let receives = nodes.get(number).map_or(0, |node| node.receives);
            let mut index = 0;
            while let Some(fetching) = nodes.get(number).and_then(|node| node.fetching.get(index)) {
                let FetchState::Coming(from, left) = fetching.state else {
                    index += 1;
                    continue;
                };
                let sharing = sends.get(usize::from(from)).copied().unwrap_or(1).max(receives).max(1);
                #[expect(clippy::cast_precision_loss, reason = "a few")]
                let moved = (self.link_bytes_per_s * step_s / sharing as f64).min(left);
                if let Some(server) = nodes.get_mut(usize::from(from)) {
                    server.sent_bytes += moved;
                }
                if left - moved > 1e-6 {
                    set(nodes, number, index, FetchState::Coming(from, left - moved));
                    index += 1;
                    continue;
                }
                if let Some(server) = nodes.get_mut(usize::from(from)) {
                    server.sends -= 1;
                }
                if let Some(node) = nodes.get_mut(number) {
                    let fetching = node.fetching.swap_remove(index);
                    node.receives -= 1;
                    node.health.entry(from).or_default().answered(step_s);
                    if from != 0 {
                        node.known.retain(|known| *known != from);
                        node.known.push_front(from);
                        node.known.truncate(KNOWN_MAX);
                    }
                    if let Some(has) = node.has.get_mut(usize::from(fetching.piece)) {
                        *has = true;
                    }
                }
            }
        }
    }
}

fn set(nodes: &mut [SwarmNode], number: usize, index: usize, state: FetchState) {
    if let Some(fetching) = nodes.get_mut(number).and_then(|node| node.fetching.get_mut(index)) {
        fetching.state = state;
    }
}

fn is_suspected(health: &HashMap<u16, Health>, node: u16) -> bool {
    health.get(&node).is_some_and(Health::is_suspected)
}

/// Returns the state of a fetch after a step. A fetch that is over waits for ever, and is removed.
fn state_of(step: FetchStep, now_s: f64) -> FetchState {
    match step {
        FetchStep::Ask(node) => FetchState::Asking(node),
        FetchStep::Later(at_s) => FetchState::Later(at_s),
        FetchStep::Wait => FetchState::Later(now_s),
        FetchStep::Done | FetchStep::Source => FetchState::Later(f64::INFINITY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: f64 = (1 << 20) as f64;

    fn swarm(nodes: u16) -> Swarm {
        Swarm {
            nodes,
            pieces: 64,
            piece_bytes: 4.0 * MIB,
            link_bytes_per_s: 125e6,
            at_once: 8,
            dead_per_mille: 0,
            seed: 1,
        }
    }

    #[test]
    fn a_hot_object_leaves_its_owner_about_once() {
        for nodes in [8, 64] {
            let swarm = swarm(nodes);
            let outcome = swarm.simulate().unwrap();
            let bytes = f64::from(swarm.pieces) * swarm.piece_bytes;
            let ideal_s = bytes / swarm.link_bytes_per_s;
            assert_eq!(outcome.from_source, 0);
            assert!(
                outcome.owner_bytes <= 2.0 * bytes,
                "{nodes} nodes: the owner sent {} x S",
                outcome.owner_bytes / bytes
            );
            assert!(
                outcome.seconds <= 2.5 * ideal_s,
                "{nodes} nodes: {} x S/B",
                outcome.seconds / ideal_s
            );
        }
    }
}
