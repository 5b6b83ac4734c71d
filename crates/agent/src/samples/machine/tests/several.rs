//! A job of several nodes that share their samples, each with a machine of its own. Under each policy each rank gets
//! its own samples, and a cache that holds the dataset reads it from the source once for all.

use forebay_policy::peers::SampleShares;

use super::schedules::step_of;
use super::*;

/// A sample that one node has asked another for.
#[derive(Clone, Copy, Debug)]
struct AskedSample {
    from: usize,
    read: (u32, u32, ReadFrom),
    to: usize,
    ticket: Ticket,
}

/// The nodes of a job, whose ranks train in step.
struct SharingJob {
    nodes: Vec<Play>,
    asked: Vec<AskedSample>,
    /// Requests that were made: the node that asked, the one that was asked, and the sample.
    requests: Vec<(u16, u16, u32)>,
}

impl SharingJob {
    fn new(world: MachineWorld) -> Self {
        let cluster = Cluster {
            nodes: world.nodes,
            gpus: world.ranks,
            cache_bytes: 0,
            reserved_bytes: 0,
        };
        let shares = SampleShares::by_first_use(&world.order().epoch(0), cluster, world.groups(), 0);
        Self::with(world, &shares)
    }

    /// Creates a job whose samples have these owners.
    fn with(world: MachineWorld, shares: &SampleShares) -> Self {
        let node = |here| {
            let world = MachineWorld { here, ..world };
            let mut play = Play::new(world, Vec::new());
            play.core = world.core_alone(world.scheduler());
            play.core.share(shares.seen_by(here));
            play
        };
        Self {
            nodes: (0..world.nodes).map(node).collect(),
            asked: Vec::new(),
            requests: Vec::new(),
        }
    }

    /// Runs all epochs. Returns the bytes that all nodes read from the source.
    fn run(&mut self) -> u64 {
        let mut rounds = 0;
        while !self.nodes.iter().all(Play::is_over) {
            while self.go_on() {}
            self.end_reads();
            rounds += 1;
            assert!(rounds < 10_000, "it stands still");
        }
        self.nodes.iter().map(|play| play.core.figures().source_bytes).sum()
    }

    /// Lets each rank release the samples of the step that all are in, and ask for more. Returns false if none could.
    fn go_on(&mut self) -> bool {
        let ranks = self.nodes[0].world.ranks as usize;
        let steps = self.nodes.iter().flat_map(|play| (0..ranks).map(|rank| step_of(play, rank)));
        let step = steps.min().unwrap_or(0);
        let mut moved = false;
        for play in &mut self.nodes {
            for rank in 0..ranks {
                moved |= step_of(play, rank) == step && play.release(rank, 49);
                moved |= play.ask(rank);
            }
        }
        moved
    }

    /// Ends the reads of disks and the source, and those of other nodes that have an answer.
    fn end_reads(&mut self) {
        for from in 0..self.nodes.len() {
            let (others, own): (Vec<_>, Vec<_>) = std::mem::take(&mut self.nodes[from].reads)
                .into_iter()
                .partition(|(.., from)| from.is_peer());
            self.nodes[from].reads = own;
            for read in others {
                let ReadFrom::Peer { node, .. } = read.2 else { continue };
                let to = usize::from(node);
                assert_ne!(from, to, "no node asks itself");
                self.requests.push((from as u16, node, read.1));
                let ticket = self.nodes[to].ask_from_elsewhere(from as u16, read.1);
                self.asked.push(AskedSample { from, read, to, ticket });
            }
        }
        for play in &mut self.nodes {
            (0..play.reads.len()).for_each(|_| {
                // A read that another node is to answer waits for its turn.
                if let Some(nth) = play.reads.iter().position(|(.., from)| !from.is_peer()) {
                    play.end_read(nth, 99);
                }
            });
            (0..play.writes.len()).for_each(|_| play.end_write(0, 99));
        }
        for asked in std::mem::take(&mut self.asked) {
            let flight = asked.read.0;
            match self.nodes[asked.to].answer_to(asked.ticket) {
                None => self.asked.push(asked),
                Some(false) => self.nodes[asked.from].happen(&[MachineEvent::Read {
                    flight,
                    outcome: ReadOutcome::Gone,
                }]),
                Some(true) => {
                    let play = &mut self.nodes[asked.from];
                    play.reads.push(asked.read);
                    play.end_read(play.reads.len() - 1, 99);
                    self.nodes[asked.to].was_sent(asked.ticket);
                }
            }
        }
    }
}

fn all_bytes() -> u64 {
    (0..SAMPLES).map(|sample| u64::from(size_of(sample))).sum()
}

/// Returns a job whose nodes have room for this share of their samples beside a window.
fn job(policy: u8, nodes: u16, share: f64) -> MachineWorld {
    let own_bytes = all_bytes() as f64 / f64::from(nodes);
    MachineWorld {
        ranks: 2,
        batch: 3,
        window: 2,
        window_bytes: 20_000,
        memory_bytes: (share * own_bytes) as u64,
        policy,
        nodes,
        ..roomy()
    }
}

#[test]
fn what_all_nodes_can_hold_is_read_from_the_source_once() {
    for nodes in 2..5 {
        for policy in [0, 1, 2, 5] {
            let world = job(policy, nodes, 1.6);
            let name = world.residency().name();
            assert_eq!(SharingJob::new(world).run(), all_bytes(), "{name} on {nodes} nodes");
        }
    }
}

#[test]
fn nodes_in_groups_read_from_the_source_once_whether_or_not_a_group_can_hold_all() {
    for (nodes, group_max) in [(4, 2), (5, 3), (6, 2)] {
        // A hash gives one of six nodes 1.4 times its share of so few samples.
        for (policy, share) in [(0, 1.8), (0, 8.0), (1, 1.8), (1, 8.0), (5, 8.0)] {
            let world = MachineWorld {
                group_max,
                ..job(policy, nodes, share)
            };
            let name = world.residency().name();
            let by_hash = SampleShares::by_hash(world.groups(), 0);
            for mut job in [SharingJob::new(world), SharingJob::with(world, &by_hash)] {
                assert_eq!(job.run(), all_bytes(), "{name} on {nodes} nodes, groups of {group_max}, {share}");
            }
        }
    }
}

#[test]
fn a_group_that_can_hold_all_asks_other_groups_for_each_sample_once() {
    let world = MachineWorld {
        group_max: 3,
        ..job(0, 6, 4.0)
    };
    let mut job = SharingJob::new(world);
    job.run();
    let groups = world.groups();
    let group = |(from, _, sample): &(u16, u16, u32)| (groups.group_of(*from), *sample);
    // An empty sample is asked for once more: it was asked for with room for some bytes.
    let is_of_another = |(from, to, sample): &&(u16, u16, u32)| size_of(*sample) > 0 && !groups.are_together(*from, *to);
    let mut asked: Vec<(u16, u32)> = job.requests.iter().filter(is_of_another).map(group).collect();
    let count = asked.len();
    asked.sort_unstable();
    asked.dedup();
    assert!(count > 20 && asked.len() == count, "{count} requests for {} samples", asked.len());
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0), failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    /// The machines check that each request is answered once, with its own sample's bytes (P12).
    #[test]
    fn each_rank_gets_its_own_samples_on_any_number_of_nodes(
        policy in 0..9_u8, scheduler in 0..7_u8, nodes in 1..6_u16, group_max in 0..3_u16, share in 0.0..2.0, fills: bool, is_unknown: bool,
    ) {
        let world = MachineWorld { scheduler, is_unknown, fills, group_max, ..job(policy, nodes, share) };
        let source_bytes = SharingJob::new(world).run();
        prop_assert!(source_bytes >= all_bytes() && source_bytes <= u64::from(EPOCHS + 1) * all_bytes());
    }
}
