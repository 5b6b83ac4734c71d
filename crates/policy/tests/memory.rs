//! Admission to nodes' memories, and the copies given up for it.

use std::collections::{BTreeMap, BTreeSet};

use forebay_policy::ids::{Cluster, EpochNumber, Iteration, Node, Sample};
use forebay_policy::order::{self, Deal, Order, Permutation};
use forebay_policy::residency::{
    Access, Belady, Fetch, FirstKept, Forebay, Handover, Lobster, Lru, Nopfs, Origin, Replay, Residency, nopfs,
};
use proptest::prelude::*;

const EPOCHS: EpochNumber = 4;

type FreshPolicy = fn(&MemoryJob) -> Box<dyn Residency>;

fn samples(job: &MemoryJob) -> u32 {
    job.order.deal.samples()
}

const LRU: FreshPolicy = |job| Box::new(Lru::new(job.cluster, samples(job), job.ahead));
const BELADY: FreshPolicy = |job| Box::new(Belady::new(job.cluster, samples(job), job.ahead));
const NOPFS: FreshPolicy = |job| Box::new(Nopfs::new(job.cluster, samples(job), job.ahead, job.uses()));
const LOBSTER: FreshPolicy = |job| Box::new(Lobster::corrected(job.cluster, samples(job), job.ahead));
const LOBSTER_AS_WRITTEN: FreshPolicy = |job| Box::new(Lobster::as_written(job.cluster, samples(job)));

const POLICIES: [FreshPolicy; 11] = [
    LRU,
    BELADY,
    NOPFS,
    LOBSTER,
    LOBSTER_AS_WRITTEN,
    |job| Box::new(Lobster::as_written_within(job.cluster, samples(job), job.ahead)),
    |job| Box::new(FirstKept::nothing(job.cluster, samples(job), job.ahead)),
    |job| Box::new(FirstKept::fill_first(job.cluster, samples(job), job.ahead)),
    |job| Box::new(FirstKept::pinned(job.cluster, samples(job), job.ahead)),
    |job| Box::new(Forebay::new(job.cluster, samples(job), job.ahead)),
    |job| Box::new(Forebay::rotating(job.cluster, samples(job), job.ahead)),
];

/// A job small enough to look at everything after every call.
#[derive(Clone, Debug)]
struct MemoryJob {
    cluster: Cluster,
    order: Order,
    sizes: Vec<u32>,
    ahead: Iteration,
}

impl MemoryJob {
    fn uses(&self) -> nopfs::Uses {
        nopfs::Uses::count(self.cluster, samples(self), (0..EPOCHS).map(|number| self.order.epoch(number)))
    }

    fn total_bytes(&self) -> u64 {
        self.sizes.iter().map(|&bytes| u64::from(bytes)).sum()
    }

    fn step(&self, access: Access) -> u64 {
        u64::from(access.epoch * self.order.deal.iterations() + access.iteration)
    }

    fn run(&self, policy: &mut dyn Residency) {
        let mut replay = Replay::new(self.cluster, self.order, EPOCHS, |sample| self.sizes[sample as usize]);
        while replay.epoch(policy).is_some() {}
    }
}

/// Memories that together hold this percentage of the data.
fn jobs(sizes: impl Strategy<Value = Vec<u32>>, percent: std::ops::Range<u64>) -> impl Strategy<Value = MemoryJob> {
    let reserved = prop_oneof![Just(0), 1..60_u64];
    let shape = (1..4_u16, 1..3_u32, 1..4_u32, 0..3_u32, percent, reserved);
    (shape, sizes, any::<u64>(), any::<bool>()).prop_map(|((nodes, gpus, batch, ahead, percent, reserved), sizes, seed, drop)| {
        let total: u64 = sizes.iter().map(|&bytes| u64::from(bytes)).sum();
        let cache_bytes = (total * percent / 100 / u64::from(nodes)).max(1);
        let cluster = Cluster {
            nodes,
            gpus,
            cache_bytes,
            reserved_bytes: cache_bytes * reserved / 100,
        };
        let deal = Deal::new(sizes.len() as u32, cluster.world(), batch).expect("a deal");
        let deal = deal.sampler_drop_last(drop).unwrap_or(deal);
        let permutation = Permutation::Counter;
        MemoryJob {
            cluster,
            order: Order { permutation, seed, deal },
            sizes,
            ahead,
        }
    })
}

fn any_sizes() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec((0..6_u32, 1..10_u32).prop_map(|(bits, bytes)| bytes << bits), 1..80)
}

fn equal_sizes() -> impl Strategy<Value = Vec<u32>> {
    (1..80_usize, 1..5000_u32).prop_map(|(samples, bytes)| vec![bytes; samples])
}

/// Grade of a node's copy by the policy's criterion: the highest goes first.
type Worth = fn(&WatchedPolicy, Node, Sample) -> u64;

/// Passes every call on to a policy, and checks admissions and removals.
struct WatchedPolicy<'a> {
    job: &'a MemoryJob,
    policy: Box<dyn Residency>,
    /// True if samples are fetched as far ahead as memory allows, as background fill does.
    fills: bool,
    worth: Option<Worth>,
    uses_of: nopfs::Uses,
    /// All uses of the epochs that the policy was told of: step, node, sample.
    told: Vec<(u64, Node, Sample)>,
    known: BTreeSet<Sample>,
    due: Vec<u64>,
    /// First step in which nothing was used yet.
    from: u64,
    under_way: BTreeMap<(Node, Sample), u32>,
    used_at: BTreeMap<(Node, Sample), u64>,
    clock: u64,
    /// Fetches of samples that were not due and had to wait, once a size was known.
    waits: u32,
    /// True if a node keeps less after a use by another one.
    shrank: bool,
}

impl<'a> WatchedPolicy<'a> {
    fn new(job: &'a MemoryJob, new: FreshPolicy, fills: bool) -> Self {
        Self {
            job,
            policy: new(job),
            fills,
            worth: None,
            uses_of: job.uses(),
            told: Vec::new(),
            known: BTreeSet::new(),
            due: vec![0; usize::from(job.cluster.nodes)],
            from: 0,
            under_way: BTreeMap::new(),
            used_at: BTreeMap::new(),
            clock: 0,
            waits: 0,
            shrank: false,
        }
    }

    /// Returns the next step in which one of these nodes uses the sample.
    fn next_use(&self, sample: Sample, by: impl Fn(Node) -> bool) -> u64 {
        let uses = self
            .told
            .iter()
            .filter(|(step, node, used)| *used == sample && by(*node) && *step >= self.from);
        uses.map(|(step, ..)| *step).min().unwrap_or(u64::MAX)
    }

    /// Returns the copies of a node that may go.
    fn idle(&self, node: Node) -> BTreeSet<Sample> {
        let is_idle = |sample: &Sample| self.policy.holds(node, *sample) && !self.under_way.contains_key(&(node, *sample));
        (0..samples(self.job)).filter(is_idle).collect()
    }

    /// Checks that no copy went that was worth more than one that stayed.
    fn check_worth(&self, node: Node, before: &BTreeSet<Sample>) {
        let Some(worth) = self.worth else { return };
        let after = self.idle(node);
        for gone in before
            .difference(&after)
            .filter(|sample| !self.under_way.contains_key(&(node, **sample)))
        {
            let little = worth(self, node, *gone);
            for stayed in &after {
                let name = self.name();
                assert!(
                    worth(self, node, *stayed) <= little,
                    "{name}: {gone} goes from {node}, {stayed} stays"
                );
            }
        }
    }

    /// Returns the number of samples that each node but this one keeps.
    fn kept_by_others(&self, node: Node) -> Vec<usize> {
        let others = (0..self.job.cluster.nodes).filter(|&other| other != node);
        let kept = |other: Node| (0..samples(self.job)).filter(move |&sample| self.policy.holds(other, sample));
        others.map(|other| kept(other).count()).collect()
    }

    /// Checks that a node holds its kept copies, in the part that is not reserved, and its window; and without a cache,
    /// that the window holds the samples in use.
    fn check_bytes(&self, node: Node) {
        let kept = (0..).zip(&self.job.sizes).filter(|(sample, _)| self.policy.holds(node, *sample));
        let kept_bytes: u64 = kept.map(|(_, &bytes)| u64::from(bytes)).sum();
        let (held, window) = (self.policy.held_bytes(node), self.policy.window_bytes(node));
        assert_eq!(held - window, kept_bytes, "{}: node {node}", self.name());
        let most = self.job.cluster.room_bytes();
        assert!(
            kept_bytes <= most,
            "{}: node {node} keeps {kept_bytes} of {most} bytes",
            self.name()
        );
        let of_node = self.under_way.iter().filter(|((user, _), _)| *user == node);
        let used = of_node.map(|((_, sample), uses)| u64::from(*uses) * u64::from(self.job.sizes[*sample as usize]));
        assert!(
            self.name() != "none" || window == used.sum::<u64>(),
            "{window} bytes on node {node}"
        );
    }

    /// Returns true if no other node has the sample.
    fn is_last(&self, node: Node, sample: Sample) -> bool {
        let has = |other| self.policy.holds(other, sample) || self.under_way.contains_key(&(other, sample));
        (0..self.job.cluster.nodes).all(|other| other == node || !has(other))
    }

    /// Checks that a fetch waits only if no copy is left that may go for it.
    fn check_wait(&self, access: Access) {
        let (node, step) = (access.node, self.job.step(access));
        for idle in self.idle(node) {
            let may_go = match self.name() {
                "lru" | "nopfs" => true,
                "belady" | "lobster_as_written" => self.next_use(idle, |user| user == node) > step,
                "lobster" => !self.is_last(node, idle) || self.next_use(idle, |_| true) > step,
                _ => false,
            };
            assert!(!may_go, "{}: {access:?} waits, and {idle} may go", self.name());
        }
    }

    fn knows_all(&self) -> bool {
        self.known.len() == self.job.sizes.len()
    }

    /// Checks that a sample that is not due is let in only if it fits: beside the copies that the node keeps, and
    /// within the window's share.
    fn check_room(&self, node: Node) {
        let (held, window) = (self.policy.held_bytes(node), self.policy.window_bytes(node));
        let memory = self.job.cluster.cache_bytes;
        assert!(held <= memory, "{}: {held} bytes of {memory}", self.name());
        if matches!(self.name(), "fill_first" | "pinned" | "forebay" | "forebay_rotating") {
            let step = u64::from(self.job.cluster.gpus * self.job.order.deal.batch());
            let four_steps = 4 * step * self.job.total_bytes() / self.job.sizes.len() as u64;
            assert!(
                window <= four_steps.max(memory / 50).max(self.job.cluster.reserved_bytes),
                "{}: {window} bytes of the window",
                self.name()
            );
        }
    }
}

impl Residency for WatchedPolicy<'_> {
    forwarded_to_policy!();

    fn window(&self) -> Option<Iteration> {
        self.policy.window().filter(|_| !self.fills)
    }

    fn begin(&mut self, epoch: EpochNumber, orders: &[order::Epoch]) {
        self.told.clear();
        for (number, order) in (epoch..).zip(orders.iter().take(self.horizon() as usize)) {
            assert_eq!(*order, self.job.order.epoch(number));
            for iteration in 0..order.iterations() {
                let step = u64::from(number * order.iterations() + iteration);
                let uses = order.step(iteration);
                self.told
                    .extend(uses.map(|(rank, sample)| (step, self.job.cluster.node_of(rank), sample)));
            }
        }
        self.policy.begin(epoch, orders);
    }

    fn fetch(&mut self, access: Access) -> Fetch {
        let Access { node, sample, .. } = access;
        let is_due = self.job.step(access) <= self.due[usize::from(node)];
        let before = self.idle(node);
        let last: BTreeSet<Sample> = before.iter().copied().filter(|&sample| self.is_last(node, sample)).collect();
        let is_kept = |node| self.policy.holds(node, sample);
        let (is_here, is_elsewhere) = (
            is_kept(node),
            (0..self.job.cluster.nodes).any(|other| other != node && is_kept(other)),
        );
        let (held, others) = (self.policy.held_bytes(node), self.kept_by_others(node));
        let fetch = self.policy.fetch(access);
        assert_eq!(self.kept_by_others(node), others, "{}: room on node {node}", self.name());
        match fetch {
            Fetch::Wait => {
                assert!(!is_due, "{}: {access:?} is due, and waits", self.name());
                if !self.known.is_empty() {
                    self.waits += 1;
                    self.check_wait(access);
                }
                return fetch;
            }
            Fetch::From(origin) => {
                *self.under_way.entry((node, sample)).or_default() += 1;
                assert!(!is_here || origin == Origin::Local, "{}: {access:?} is here", self.name());
                let asks_others = !matches!(self.name(), "none" | "fill_first");
                assert!(
                    !(asks_others && is_elsewhere) || origin != Origin::Source,
                    "{}: a peer has {access:?}",
                    self.name()
                );
                if origin == Origin::Local {
                    assert_eq!(self.policy.held_bytes(node), held);
                } else if !is_due && self.knows_all() {
                    self.check_room(node);
                }
            }
        }
        if !is_due {
            // A prefetch takes only the room of copies used later, if the policy looks at uses; copies that others
            // hold too are exempt.
            for gone in before.difference(&self.idle(node)).filter(|gone| **gone != sample) {
                let next = match self.name() {
                    "belady" | "lobster_as_written" => self.next_use(*gone, |user| user == node),
                    "lobster" if last.contains(gone) => self.next_use(*gone, |_| true),
                    _ => continue,
                };
                assert!(
                    next > self.job.step(access),
                    "{}: {gone}, used at {next}, went for {access:?}",
                    self.name()
                );
            }
        }
        self.check_worth(node, &before);
        fetch
    }

    fn arrived(&mut self, access: Access, bytes: u32) {
        let (before, others) = (self.idle(access.node), self.kept_by_others(access.node));
        self.policy.arrived(access, bytes);
        assert_eq!(self.kept_by_others(access.node), others, "{}: room on {access:?}", self.name());
        self.known.insert(access.sample);
        self.check_worth(access.node, &before);
        self.check_bytes(access.node);
    }

    fn consumed(&mut self, access: Access) {
        let Access { node, sample, .. } = access;
        let mut before = self.idle(node);
        self.clock += 1;
        self.used_at.insert((node, sample), self.clock);
        let step = self.job.step(access);
        self.from = self.from.max(step + 1);
        let due = &mut self.due[usize::from(node)];
        *due = (*due).max(step + 1);
        let uses = self.under_way.get_mut(&(node, sample)).expect("under way");
        *uses -= 1;
        if *uses == 0 {
            self.under_way.remove(&(node, sample));
            before.insert(sample);
        }
        let others = self.kept_by_others(node);
        self.policy.consumed(access);
        self.shrank = self.kept_by_others(node).iter().zip(&others).any(|(after, before)| after < before);
        self.check_worth(node, &before);
        (0..self.job.cluster.nodes).for_each(|node| self.check_bytes(node));
    }

    /// Checks that a use by one node costs other nodes copies only if they take something over, or lose an ownership.
    fn handover(&mut self) -> Option<Handover> {
        let given = self.policy.handover();
        let may_shrink = given.is_some() || self.name() == "forebay_rotating";
        assert!(may_shrink || !self.shrank, "{}", self.name());
        self.shrank = false;
        given
    }
}

proptest! {
    #![proptest_config(crate::drawn::cases(60))]

    /// At any distance of prefetch, due samples never wait, others are let in only if they fit (once sizes are
    /// known), and kept copies are counted.
    #[test]
    fn what_is_not_due_is_let_in_only_where_it_fits(job in jobs(any_sizes(), 1..250), fills: bool) {
        for new in POLICIES {
            job.run(&mut WatchedPolicy::new(&job, new, fills));
        }
    }

    /// Samples of one size, with room for all of them and a window on each node.
    #[test]
    fn where_there_is_room_nothing_waits(job in jobs(equal_sizes(), 100..101)) {
        let cache_bytes = 2 * job.total_bytes() + 20 * u64::from(job.cluster.gpus * job.order.deal.batch() * job.sizes[0]);
        let job = MemoryJob { cluster: Cluster { cache_bytes, ..job.cluster }, ..job };
        for new in POLICIES {
            let mut watched = WatchedPolicy::new(&job, new, false);
            job.run(&mut watched);
            prop_assert_eq!(watched.waits, 0, "{}", watched.name());
        }
    }

    /// A copy that a node gives up is worth no more to it than those it keeps: it is used later, was used longer ago,
    /// or is used less often.
    #[test]
    fn what_is_worth_least_goes(job in jobs(any_sizes(), 10..90)) {
        let used_later: Worth = |watched, node, sample| watched.next_use(sample, |user| user == node);
        let used_before: Worth = |watched, node, sample| u64::MAX - watched.used_at[&(node, sample)];
        let used_seldom: Worth = |watched, node, sample| u64::from(u8::MAX - watched.uses_of.of(node, sample));
        for (new, worth) in [(BELADY, used_later), (LRU, used_before), (NOPFS, used_seldom)] {
            let mut watched = WatchedPolicy::new(&job, new, false);
            watched.worth = Some(worth);
            job.run(&mut watched);
        }
    }
}

#[test]
fn each_policy_says_what_it_is_and_how_far_it_looks() {
    let cluster = Cluster {
        nodes: 2,
        gpus: 1,
        cache_bytes: 100,
        reserved_bytes: 0,
    };
    let order = Order {
        permutation: Permutation::Sequential,
        seed: 0,
        deal: Deal::new(10, 2, 1).expect("a deal"),
    };
    let job = MemoryJob {
        cluster,
        order,
        sizes: vec![10; 10],
        ahead: 3,
    };
    let said = POLICIES
        .map(|new| new(&job))
        .map(|policy| (policy.name(), policy.horizon(), policy.window()));
    let within = Some(3);
    let expected = [
        ("lru", 1, within),
        ("belady", 3, within),
        ("nopfs", 1, within),
        ("lobster", 3, within),
        ("lobster_as_written", 3, None),
        ("lobster_as_written", 3, within),
        ("none", 1, within),
        ("fill_first", 1, within),
        ("pinned", 1, within),
        ("forebay", 2, within),
        ("forebay_rotating", 2, within),
    ];
    assert_eq!(said, expected);
    assert_eq!(Belady::looking(cluster, 10, 3, 5).horizon(), 6);
}

/// Counted from the orders themselves.
#[test]
fn uses_are_counted_by_node() {
    let cluster = Cluster {
        nodes: 3,
        gpus: 2,
        cache_bytes: 1,
        reserved_bytes: 0,
    };
    let deal = Deal::new(40, cluster.world(), 3).expect("a deal");
    let permutation = Permutation::Counter;
    let order = Order {
        permutation,
        seed: 1,
        deal,
    };
    let count = |epochs: EpochNumber| nopfs::Uses::count(cluster, 40, (0..epochs).map(|number| order.epoch(number)));
    let mut plain: BTreeMap<(Node, Sample), u8> = BTreeMap::new();
    for number in 0..30 {
        let uses = order.epoch(number);
        for (position, sample) in uses.samples(0..deal.positions()) {
            let place = deal.place(position).expect("within the epoch");
            *plain.entry((cluster.node_of(place.rank), sample)).or_default() += 1;
        }
    }
    let uses = count(30);
    for node in 0..3 {
        for sample in 0..40 {
            assert_eq!(uses.of(node, sample), plain.get(&(node, sample)).copied().unwrap_or(0));
        }
    }
    let one = Cluster { nodes: 1, ..cluster };
    let padded = Order {
        deal: Deal::new(1, 2, 1).expect("a deal"),
        ..order
    };
    let many = nopfs::Uses::count(one, 1, (0..300).map(|number| padded.epoch(number)));
    assert_eq!(many.of(0, 0), u8::MAX, "as many as can be counted");
}
