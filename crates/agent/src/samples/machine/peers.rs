//! Other nodes of the job: the samples that are asked of them, and those that they ask of this node.

use std::collections::{BTreeMap, BTreeSet};

use forebay_policy::ids::{Node, Sample};
use forebay_policy::peers::SampleShares;
use forebay_policy::residency::Access;
use forebay_policy::schedule::ReadClass;

use super::copies::SampleCopies;
use super::flights::SampleRead;
use super::{Actions, HERE, LoaderMachine, MachineAction, ReadFrom};

use crate::samples::limits::{LOADER_PEER_AGAIN, LOADER_PEER_GUESS_BYTES, LOADER_PEER_WAIT};

/// Number of a request of another node. No number is used twice.
pub(crate) type Ticket = u64;

/// Other nodes of a loader's job, and the samples that they share with it.
#[derive(Debug)]
pub(super) struct SharedSamples {
    shares: SampleShares,
    /// Bytes that this node may keep.
    room_bytes: u64,
    /// Samples of other owners that this node read from the source, since their owners did not answer.
    taken_over: BTreeSet<Sample>,
    /// Samples whose bytes other nodes are being sent.
    lent: BTreeMap<Ticket, Sample>,
}

impl SharedSamples {
    pub(super) fn new(shares: SampleShares, room_bytes: u64) -> Self {
        Self {
            shares,
            room_bytes,
            taken_over: BTreeSet::new(),
            lent: BTreeMap::new(),
        }
    }

    /// Returns the node to ask for a sample after `last` did not answer; the first one for `None`. `None` if the
    /// source is to be read.
    pub(super) fn to_ask(&self, sample: Sample, last: Option<Node>) -> Option<Node> {
        let mut nodes = self.shares.to_ask(sample);
        match last {
            Some(last) => nodes.find(|node| *node == last).and_then(|_| nodes.next()),
            None => nodes.next(),
        }
    }

    /// Notes that this node reads a sample from the source, since its owner did not answer: it keeps the sample if it
    /// stands in for the owner.
    pub(super) fn read_instead(&mut self, sample: Sample) {
        if self.shares.is_substitute(sample) {
            self.taken_over.insert(sample);
        }
    }

    /// Returns true if a sample that was used here may be kept.
    pub(super) fn keeps(&self, sample: Sample, copies: &SampleCopies) -> bool {
        self.taken_over.contains(&sample) || self.shares.keeps(sample, self.room_bytes, copies.expected_bytes_of_all())
    }
}

impl LoaderMachine {
    /// Begins to share samples with other nodes: what is read from now on is kept by its owner.
    pub(crate) fn share(&mut self, shares: SampleShares) {
        self.figures.nodes = u64::from(shares.others()) + 1;
        self.shared = Some(SharedSamples::new(shares, self.room_bytes));
    }

    /// Takes a request of another node: answers it from memory, or reads the sample. A sample that is neither here nor
    /// would stay is declined: the other node reads the source itself.
    pub(super) fn peer_asked(&mut self, (ticket, sample): (Ticket, Sample), now_s: f64, actions: &mut Actions) {
        if sample >= self.requests.extents() || self.shared.is_none() {
            actions.push(MachineAction::Decline { ticket });
            return;
        }
        let copy = self.storage.copies.get(sample);
        if let Some((place, _)) = copy.and_then(|copy| copy.memory) {
            self.lend_to_peer(ticket, sample, actions);
            actions.push(MachineAction::Serve { ticket, place });
            return;
        }
        if let Some(read) = copy.and_then(|copy| copy.flight).and_then(|number| self.reads.flights.get(number)) {
            read.tickets.push(ticket);
            return;
        }
        let resident = copy.and_then(|copy| copy.resident);
        let expected_bytes = self.storage.copies.expected_bytes(sample);
        let would_stay = self.requests.pass().is_some() && self.storage.has_room(u64::from(expected_bytes), now_s);
        let from = match resident {
            Some((tier, bytes, version)) if tier.0 > 0 => ReadFrom::Disk {
                disk: tier.0 - 1,
                version,
                bytes,
            },
            _ if would_stay => ReadFrom::Source,
            _ => {
                actions.push(MachineAction::Decline { ticket });
                return;
            }
        };
        // Ranks of this node and other nodes share its threads, and nobody knows when the other node needs it.
        let rank = (ticket % self.requests.ranks().len() as u64) as usize;
        let step = self.requests.of(rank).oldest_step();
        let mut read = SampleRead::new((sample, expected_bytes), from, (rank, None), ReadClass::Demand, now_s);
        read.tickets.push(ticket);
        read.deadline_s = self.requests.of(rank).deadline_s(step, now_s);
        let number = self.reads.flights.add(read);
        self.storage.copies.of(sample).flight = Some(number);
        self.reads.queue(number, step, &self.storage.copies, now_s);
    }

    /// Ends the lending of a sample to another node.
    pub(super) fn peer_released(&mut self, ticket: Ticket, now_s: f64, actions: &mut Actions) {
        let lent = self.shared.as_mut().and_then(|shared| shared.lent.remove(&ticket));
        if let Some(sample) = lent {
            self.give_back(sample, now_s, actions);
        }
    }

    /// Gives other nodes a sample that has come, and offers it to the policy if it was read for them.
    pub(super) fn serve_peers(&mut self, sample: Sample, bytes: u32, tickets: &[Ticket], actions: &mut Actions) {
        let Some((place, _)) = self.storage.copies.get(sample).and_then(|copy| copy.memory) else {
            return;
        };
        for &ticket in tickets {
            self.lend_to_peer(ticket, sample, actions);
            actions.push(MachineAction::Serve { ticket, place });
        }
        if let (Some(epoch), false) = (self.requests.pass(), self.residency.holds(HERE, sample)) {
            let iteration = self.requests.iteration();
            let access = Access {
                node: HERE,
                sample,
                iteration,
                epoch,
            };
            self.residency.offered(access, bytes);
        }
    }

    fn lend_to_peer(&mut self, ticket: Ticket, sample: Sample, actions: &mut Actions) {
        let Some(shared) = &mut self.shared else {
            actions.push(MachineAction::Decline { ticket });
            return;
        };
        shared.lent.insert(ticket, sample);
        self.storage.copies.lend(sample);
        self.figures.to_peers += 1;
    }

    /// Returns the place from which to read a sample that is neither in memory nor on a disk of this node.
    pub(super) fn elsewhere(&mut self, sample: Sample, last: Option<Node>) -> ReadFrom {
        let Some(shared) = &mut self.shared else {
            return ReadFrom::Source;
        };
        match shared.to_ask(sample, last) {
            Some(node) => ReadFrom::Peer {
                node,
                bytes: self.storage.copies.known_bytes(sample),
                guess_bytes: (2 * self.storage.copies.expected_bytes(sample)).max(LOADER_PEER_GUESS_BYTES),
                within: if last.is_some() { LOADER_PEER_AGAIN } else { LOADER_PEER_WAIT },
            },
            None => ReadFrom::Source,
        }
    }
}
