//! Other nodes, in the random world: what they ask for is answered once, with the sample's own bytes, and each sample
//! is read where it should be.

use std::sync::{Arc, Mutex};

use forebay_policy::models::{LoadModel, Portfolio};
use forebay_policy::peers::{NodeGroups, SampleShares};
use forebay_policy::schedule::{ReadRequest, StepLoad};

use super::*;

/// Other nodes, as they ask this one.
#[derive(Debug, Default)]
pub(super) struct OtherNodes {
    next: Ticket,
    asked: BTreeMap<Ticket, u32>,
    sent: BTreeMap<Ticket, ArenaRange>,
    declined: u32,
}

impl OtherNodes {
    pub(super) fn served(&mut self, ticket: Ticket, place: ArenaRange) -> u32 {
        self.sent.insert(ticket, place);
        self.asked.remove(&ticket).expect("it is answered once")
    }

    pub(super) fn declined(&mut self, ticket: Ticket) {
        self.asked.remove(&ticket).expect("it is answered once");
        self.declined += 1;
    }

    pub(super) fn have(&self, place: ArenaRange) -> bool {
        self.sent.values().any(|sent| *sent == place)
    }

    pub(super) fn are_idle(&self) -> bool {
        self.asked.is_empty() && self.sent.is_empty()
    }
}

/// Returns the outcome of asking another node, if it gives no bytes.
pub(super) fn without_bytes(from: ReadFrom, bytes: u32, (chance, faults): (u32, u32)) -> Option<ReadOutcome> {
    let ReadFrom::Peer {
        bytes: known, guess_bytes, ..
    } = from
    else {
        return None;
    };
    if chance % 100 < faults {
        return Some(if chance.is_multiple_of(2) {
            ReadOutcome::Late
        } else {
            ReadOutcome::Gone
        });
    }
    // A size that is taken for known may be wrong: a sample that could not be read counts as large as others.
    let is_other = bytes > known.unwrap_or(guess_bytes) || (bytes == 0 && known != Some(0));
    is_other.then_some(ReadOutcome::OtherSize { bytes })
}

impl MachineWorld {
    pub(super) fn groups(self) -> NodeGroups {
        NodeGroups::of_at_most(self.nodes, self.group_max)
    }

    pub(super) fn shares(self) -> Option<SampleShares> {
        (self.nodes > 1).then(|| SampleShares::by_hash(self.groups(), self.here))
    }
}

impl Play {
    /// Lets another node ask for a sample, or finishes one that is being sent.
    pub(super) fn move_others(&mut self, chance: u32) -> bool {
        let has_begun = self.seen.iter().any(|seen| !seen.is_empty());
        if self.world.nodes == 1 || !has_begun || (chance.is_multiple_of(2) && self.release_others()) {
            return self.world.nodes > 1 && has_begun;
        }
        if self.others.next >= 100 {
            return false;
        }
        let from = (self.world.here + 1 + (chance / 7 % u32::from(self.world.nodes - 1)) as u16) % self.world.nodes;
        self.ask_from_elsewhere(from, chance / 2 % SAMPLES);
        true
    }

    /// Lets another node ask for a sample. Returns the number of its request.
    pub(super) fn ask_from_elsewhere(&mut self, from: u16, sample: u32) -> Ticket {
        let ticket = self.others.next;
        self.others.next += 1;
        self.others.asked.insert(ticket, sample);
        self.happen(&[MachineEvent::PeerAsked { ticket, sample, from }]);
        ticket
    }

    /// Returns true if another node is being sent the sample that it asked for, and false if it was refused; `None`
    /// while it has no answer.
    pub(super) fn answer_to(&self, ticket: Ticket) -> Option<bool> {
        let is_open = self.others.asked.contains_key(&ticket);
        (!is_open).then(|| self.others.sent.contains_key(&ticket))
    }

    /// Ends the sending of a sample to another node.
    pub(super) fn was_sent(&mut self, ticket: Ticket) {
        self.others.sent.remove(&ticket).expect("it is being sent");
        self.happen(&[MachineEvent::PeerReleased { ticket }]);
    }

    pub(super) fn release_others(&mut self) -> bool {
        let Some((ticket, _)) = self.others.sent.pop_first() else {
            return false;
        };
        self.happen(&[MachineEvent::PeerReleased { ticket }]);
        true
    }

    /// Lets the first rank ask for one sample, and for nothing else.
    fn wants_only(&mut self, sample: u32) {
        let wanted = SampleRequest {
            sample,
            epoch: 0,
            iteration: 0,
        };
        self.wanted[0] = vec![wanted];
        self.seen[0] = vec![RequestView::Nothing];
        self.happen(&[MachineEvent::Asked { rank: 0, wanted }]);
    }

    /// Ends all reads that are under way.
    fn end_reads(&mut self) {
        while !self.reads.is_empty() {
            self.end_read(0, 99);
        }
    }
}

fn shared() -> MachineWorld {
    MachineWorld { nodes: 3, ..roomy() }
}

#[test]
fn a_sample_of_another_owner_is_asked_of_it_and_others_are_read_from_the_source() {
    let mut play = Play::new(shared(), Vec::new());
    while play.ask(0) {}
    let shares = shared().shares().unwrap();
    let mut asked = [0; 2];
    for &(_, sample, from) in &play.reads {
        match from {
            ReadFrom::Peer { node, .. } => assert_eq!(Some(node), shares.to_ask(sample).next()),
            _ => assert_eq!(shares.of(sample), 0),
        }
        asked[usize::from(matches!(from, ReadFrom::Peer { .. }))] += 1;
    }
    assert!(asked.iter().all(|count| *count > 0), "{asked:?}");
}

#[test]
fn a_node_that_does_not_answer_is_followed_by_its_substitute_and_then_by_the_source() {
    let shares = shared().shares().unwrap();
    for substitute in [0, 2] {
        let sample =
            (0..SAMPLES).find(|&sample| shares.of(sample) == 1 && shares.substitute(sample) == Some(substitute) && size_of(sample) > 0);
        let sample = sample.expect("there is one");
        let mut play = Play::new(shared(), Vec::new());
        play.wants_only(sample);
        let mut asked = Vec::new();
        while let [(flight, _, ReadFrom::Peer { node, .. })] = play.reads[..] {
            play.reads.clear();
            asked.push(node);
            let outcome = ReadOutcome::Late;
            play.happen(&[MachineEvent::Read { flight, outcome }]);
        }
        let expected: &[u16] = if substitute == 0 { &[1] } else { &[1, 2] };
        assert_eq!(asked, expected);
        assert!(matches!(play.reads[..], [(.., ReadFrom::Source)]));
        let keeps = play
            .core
            .shared
            .as_ref()
            .is_some_and(|shared| shared.keeps(sample, &play.core.storage.copies));
        assert_eq!(keeps, substitute == 0, "who stands in for the owner keeps it");
    }
}

#[test]
fn what_a_node_lacks_is_read_from_the_source_at_once() {
    let shares = shared().shares().unwrap();
    let sample = (0..SAMPLES).find(|&sample| shares.of(sample) == 1).expect("there is one");
    let mut play = Play::new(shared(), Vec::new());
    play.wants_only(sample);
    let (flight, ..) = play.reads.pop().expect("it is asked for");
    let outcome = ReadOutcome::Gone;
    play.happen(&[MachineEvent::Read { flight, outcome }]);
    assert!(matches!(play.reads[..], [(_, again, ReadFrom::Source)] if again == sample));
}

#[test]
fn room_that_another_node_has_not_filled_is_there_for_a_sample_that_lacked_some() {
    let shares = shared().shares().unwrap();
    let first = |is_it: &dyn Fn(u32) -> bool| (0..SAMPLES).find(|&sample| size_of(sample) > 0 && is_it(sample)).unwrap();
    let theirs = first(&|sample| shares.of(sample) == 1 && shares.substitute(sample) == Some(HERE));
    let own = first(&|sample| shares.of(sample) == HERE);
    let mut play = Play::new(shared(), Vec::new());
    play.wants_only(theirs);
    let wanted = SampleRequest {
        sample: own,
        epoch: 0,
        iteration: 0,
    };
    play.wanted[0].push(wanted);
    play.seen[0].push(RequestView::Nothing);
    play.happen(&[MachineEvent::Asked { rank: 0, wanted }]);
    let [(of_theirs, _, ReadFrom::Peer { .. }), (of_own, _, ReadFrom::Source)] = play.reads[..] else {
        panic!("{:?}", play.reads)
    };
    play.reads.clear();
    let ended = |flight, outcome| MachineEvent::Read { flight, outcome };
    let no_room = ReadOutcome::NoRoom { bytes: size_of(own) };
    play.happen(&[ended(of_theirs, ReadOutcome::Late), ended(of_own, no_room)]);
    assert!(play.reads.iter().any(|(flight, ..)| *flight == of_own), "it is read again");
    assert_eq!(play.core.figures().refused_no_room, 0);
}

#[test]
fn what_is_read_for_another_node_stays_where_there_is_room() {
    let mut play = Play::new(shared(), Vec::new());
    assert!(play.ask(0));
    play.end_reads();
    let is_new = |play: &Play, sample: &u32| size_of(*sample) > 0 && play.core.storage.copies.get(*sample).is_none();
    let sample = (0..SAMPLES).find(|sample| is_new(&play, sample)).expect("not all are here");
    for _ in 0..2 {
        play.ask_from_elsewhere(1, sample);
        play.end_reads();
        assert!(play.release_others());
    }
    let figures = play.core.figures();
    assert_eq!(figures.to_peers, 2);
    assert!(play.core.residency.holds(HERE, sample));
    play.play(&chances());
    assert_eq!(play.others.declined, 0);
}

#[test]
fn a_node_without_room_reads_nothing_for_others() {
    let world = MachineWorld {
        memory_bytes: 0,
        ..shared()
    };
    let mut play = Play::new(world, Vec::new());
    assert!(play.ask(0));
    play.end_reads();
    let missing: Vec<u32> = (0..SAMPLES)
        .filter(|sample| play.core.storage.copies.get(*sample).is_none())
        .collect();
    for sample in missing {
        play.ask_from_elsewhere(1, sample);
    }
    assert!(play.reads.is_empty());
    assert!(play.others.declined > 20 && play.others.asked.is_empty());
}

/// Records the models and the loads that a schedule is given.
#[derive(Default)]
struct RecordedLoads {
    peer_bytes_per_s: f64,
    peer_bytes: u64,
}

struct RecordingScheduler {
    of: Box<dyn Scheduler>,
    recorded: Arc<Mutex<RecordedLoads>>,
}

impl Scheduler for RecordingScheduler {
    fn name(&self) -> &'static str {
        self.of.name()
    }

    fn push(&mut self, request: ReadRequest) {
        self.of.push(request);
    }

    fn pick(&mut self, busy: &[u32]) -> Option<ReadRequest> {
        self.of.pick(busy)
    }

    fn assigns(&self) -> bool {
        self.of.assigns()
    }

    fn measured(&mut self, load: LoadModel, preprocessing: Portfolio) {
        self.recorded.lock().unwrap().peer_bytes_per_s = load.origins[1].bytes_per_s(1.0);
        self.of.measured(load, preprocessing);
    }

    fn assign(&mut self, load: &StepLoad) {
        self.recorded.lock().unwrap().peer_bytes += load.bytes.iter().map(|bytes| bytes[1]).sum::<u64>();
        self.of.assign(load);
    }

    fn loading_threads(&self) -> u32 {
        self.of.loading_threads()
    }

    fn waiting(&self) -> usize {
        self.of.waiting()
    }
}

/// Returns the throughput of other nodes that Lobster's thread assignment is given, and the one that it should be
/// given: the first of them answers each request in 10 ms, the second in `second_s`.
fn peer_throughput(second_s: f64) -> (f64, f64) {
    let world = MachineWorld { scheduler: 2, ..shared() };
    let recorded = Arc::default();
    let mut play = Play::new(world, Vec::new());
    play.core = world.core_with(Box::new(RecordingScheduler {
        of: world.scheduler(),
        recorded: Arc::clone(&recorded),
    }));
    let (mut came_bytes, mut asked_s) = (0, 0.0);
    while !play.is_over() {
        while (0..2).any(|rank| play.release(rank, 49) || play.ask(rank)) {}
        while let Some(nth) = play.reads.iter().position(|(.., from)| !from.is_peer()) {
            play.end_read(nth, 99);
        }
        // One after another: each takes as long as its node does, and an event more.
        while let Some(&(_, sample, ReadFrom::Peer { node, .. })) = play.reads.first() {
            let took_s = if node == 1 { 0.01 } else { second_s };
            play.now_s += took_s;
            came_bytes += size_of(sample);
            asked_s += took_s + 0.001;
            play.end_read(0, 99);
        }
    }
    let recorded = recorded.lock().unwrap();
    assert!(recorded.peer_bytes > 0, "what others have counts as theirs");
    (recorded.peer_bytes_per_s, f64::from(came_bytes) / asked_s)
}

#[test]
fn lobster_is_given_what_a_fast_and_a_slow_node_were_measured_to_send() {
    for second_s in [0.01, 0.3] {
        let (given, expected) = peer_throughput(second_s);
        // Requests wait for each other, and the last ones weigh more.
        assert!((0.7..1.4).contains(&(given / expected)), "{given} bytes/s instead of {expected}");
    }
}

#[test]
fn a_sample_that_could_not_be_read_is_not_taken_for_an_empty_one() {
    let shares = shared().shares().unwrap();
    let sample = (0..SAMPLES).find(|&sample| shares.of(sample) == 1).expect("there is one");
    let mut play = Play::new(shared(), Vec::new());
    let fail = |play: &mut Play, outcome| {
        let (flight, ..) = play.reads.pop().expect("it is read");
        play.happen(&[MachineEvent::Read { flight, outcome }]);
    };
    play.wants_only(sample);
    fail(&mut play, ReadOutcome::Gone);
    fail(&mut play, ReadOutcome::Failed);
    assert_eq!(
        play.core.storage.copies.known_bytes(sample),
        Some(0),
        "the policy was told some size"
    );
    let again = SampleRequest {
        sample,
        epoch: 0,
        iteration: 1,
    };
    play.wanted[0].push(again);
    play.seen[0].push(RequestView::Nothing);
    play.let_go(0, 0);
    play.happen(&[MachineEvent::Asked { rank: 0, wanted: again }]);
    assert!(matches!(play.reads[..], [(_, _, ReadFrom::Peer { bytes: None, .. })]));
}
