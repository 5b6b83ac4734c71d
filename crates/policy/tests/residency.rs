//! Rules for every residency policy, and the limits of `forebay`. `caches.rs` holds those for caches that evict.

use std::collections::BTreeMap;

use forebay_policy::bounds;
use forebay_policy::ids::{Cluster, EpochNumber, Iteration, Node, Sample};
use forebay_policy::order::{self, Deal, Order, Permutation};
use forebay_policy::residency::replay::ReplayTraffic;
use forebay_policy::residency::{
    Access, Belady, Fetch, FirstKept, Forebay, Handover, Lobster, Lru, Nopfs, Origin, Replay, Residency, nopfs,
};
use proptest::prelude::*;

const LOCAL: usize = 0;
const PEER: usize = 1;
const SOURCE: usize = 2;

type New = fn(Cluster, Order, Iteration) -> Box<dyn Residency>;

const POLICIES: [New; 10] = [
    |cluster, order, ahead| Box::new(FirstKept::nothing(cluster, order.deal.samples(), ahead)),
    |cluster, order, ahead| Box::new(FirstKept::fill_first(cluster, order.deal.samples(), ahead)),
    |cluster, order, ahead| Box::new(FirstKept::pinned(cluster, order.deal.samples(), ahead)),
    |cluster, order, ahead| Box::new(Lru::new(cluster, order.deal.samples(), ahead)),
    |cluster, order, ahead| Box::new(Belady::new(cluster, order.deal.samples(), ahead)),
    |cluster, order, _| Box::new(Lobster::as_written(cluster, order.deal.samples())),
    |cluster, order, ahead| Box::new(Lobster::corrected(cluster, order.deal.samples(), ahead)),
    |cluster, order, ahead| {
        let samples = order.deal.samples();
        let uses = nopfs::Uses::count(cluster, samples, (0..EPOCHS).map(|number| order.epoch(number)));
        Box::new(Nopfs::new(cluster, samples, ahead, uses))
    },
    |cluster, order, ahead| Box::new(Forebay::new(cluster, order.deal.samples(), ahead)),
    |cluster, order, ahead| Box::new(Forebay::rotating(cluster, order.deal.samples(), ahead)),
];

/// Uses of a sample by a node that were fetched and not consumed.
#[derive(Default)]
struct OpenUses {
    uses: u32,
    /// Nodes that keep the copies used.
    kept_by: Vec<Node>,
}

/// Passes every call on to a policy, and checks each answer. Bytes may arrive as late as possible: just before the
/// next use ends.
struct CheckedPolicy<'a> {
    policy: Box<dyn Residency>,
    cluster: Cluster,
    sizes: &'a [u32],
    late: bool,
    arriving: Vec<(Access, u32)>,
    under_way: BTreeMap<(Node, Sample), OpenUses>,
}

impl<'a> CheckedPolicy<'a> {
    fn new(policy: Box<dyn Residency>, cluster: Cluster, sizes: &'a [u32], late: bool) -> Self {
        Self {
            policy,
            cluster,
            sizes,
            late,
            arriving: Vec::new(),
            under_way: BTreeMap::new(),
        }
    }

    fn arrive(&mut self) {
        for (access, bytes) in std::mem::take(&mut self.arriving) {
            self.policy.arrived(access, bytes);
        }
    }

    /// Checks that the node's memory is not exceeded, unless no kept copy may go because it is under way to a rank or
    /// to a peer.
    fn check_quota(&self, node: Node) {
        let (held, window) = (self.policy.held_bytes(node), self.policy.window_bytes(node));
        assert!(window <= held);
        if held > self.cluster.cache_bytes && self.arriving.is_empty() {
            let used: Vec<Sample> = self.under_way.keys().map(|&(_, sample)| sample).collect();
            let kept = (0..).zip(self.sizes).filter(|&(sample, _)| self.policy.holds(node, sample));
            let unused: u64 = kept
                .filter(|(sample, _)| !used.contains(sample))
                .map(|(_, &bytes)| u64::from(bytes))
                .sum();
            assert_eq!(
                unused,
                0,
                "{} holds {held} bytes of {}",
                self.policy.name(),
                self.cluster.cache_bytes
            );
        }
    }
}

impl Residency for CheckedPolicy<'_> {
    forwarded_to_policy!();

    fn window(&self) -> Option<Iteration> {
        self.policy.window()
    }

    fn begin(&mut self, epoch: EpochNumber, orders: &[order::Epoch]) {
        self.policy.begin(epoch, orders);
    }

    fn fetch(&mut self, access: Access) -> Fetch {
        let Access { node, sample, .. } = access;
        let held: Vec<Node> = (0..self.cluster.nodes).filter(|&node| self.policy.holds(node, sample)).collect();
        let fetch = self.policy.fetch(access);
        if let Fetch::From(origin) = fetch {
            let from = match origin {
                Origin::Local => node,
                Origin::Peer(peer) => {
                    assert_ne!(peer, node, "{} asks the node itself as a peer", self.name());
                    peer
                }
                Origin::Source => Node::MAX,
            };
            // A copy in the window of a node may serve another use before it goes.
            let kept = held.contains(&from);
            let is_there = kept || self.under_way.contains_key(&(from, sample));
            assert!(
                origin == Origin::Source || is_there,
                "{} finds a sample where it is not",
                self.name()
            );
            let under_way = self.under_way.entry((node, sample)).or_default();
            under_way.uses += 1;
            under_way.kept_by.extend(kept.then_some(from));
        }
        self.check_quota(node);
        fetch
    }

    fn arrived(&mut self, access: Access, bytes: u32) {
        if self.late {
            self.arriving.push((access, bytes));
            return;
        }
        self.policy.arrived(access, bytes);
        self.check_quota(access.node);
    }

    fn consumed(&mut self, access: Access) {
        self.arrive();
        let Access { node, sample, .. } = access;
        let Some(under_way) = self.under_way.get_mut(&(node, sample)) else {
            panic!("a use ends that never began")
        };
        // Caches that evict may turn a copy that is in use into one of the window.
        if matches!(self.policy.name(), "fill_first" | "pinned" | "forebay" | "forebay_rotating") {
            for &keeper in &under_way.kept_by {
                assert!(self.policy.holds(keeper, sample), "{} gave up what is in use", self.policy.name());
            }
        }
        under_way.uses -= 1;
        if under_way.uses == 0 {
            self.under_way.remove(&(node, sample));
        }
        self.policy.consumed(access);
        self.check_quota(node);
    }

    fn handover(&mut self) -> Option<Handover> {
        let given = self.policy.handover()?;
        assert!(given.from != given.to && self.holds(given.to, given.sample) && !self.holds(given.from, given.sample));
        self.check_quota(given.to);
        Some(given)
    }
}

/// A job small enough to check everything after every call.
#[derive(Clone, Debug)]
struct SmallJob {
    cluster: Cluster,
    order: Order,
    sizes: Vec<u32>,
    ahead: Iteration,
    late: bool,
}

const EPOCHS: EpochNumber = 4;

fn any_small(sizes: impl Strategy<Value = Vec<u32>>) -> impl Strategy<Value = SmallJob> {
    let cluster = (1..6u16, 1..4u32, 0..300u64);
    let order = (1..6u32, any::<u64>(), any::<[bool; 3]>());
    (cluster, order, sizes, 0..5u32).prop_map(|((nodes, gpus, percent), (batch, seed, [drop, torch, late]), sizes, ahead)| {
        let total: u64 = sizes.iter().map(|&bytes| u64::from(bytes)).sum();
        let cluster = Cluster {
            nodes,
            gpus,
            cache_bytes: (total * percent / 100 / u64::from(nodes)).max(1),
            reserved_bytes: 0,
        };
        let deal = Deal::new(sizes.len() as u32, cluster.world(), batch).expect("a deal");
        let deal = deal.sampler_drop_last(drop).unwrap_or(deal);
        let permutation = if torch { Permutation::Torch } else { Permutation::Counter };
        SmallJob {
            cluster,
            order: Order { permutation, seed, deal },
            sizes,
            ahead,
            late,
        }
    })
}

/// Sizes that differ by a factor of up to a thousand.
fn any_sizes() -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![
        (1..200usize, 1..5_000u32).prop_map(|(samples, bytes)| vec![bytes; samples]),
        prop::collection::vec((0..10u32, 1..10u32).prop_map(|(bits, bytes)| bytes << bits), 1..200),
    ]
}

fn replayed(job: &SmallJob, policy: &mut dyn Residency) -> Vec<ReplayTraffic> {
    let mut replay = Replay::new(job.cluster, job.order, EPOCHS, |sample| job.sizes[sample as usize]);
    std::iter::from_fn(|| replay.epoch(policy)).collect()
}

/// Bytes of all samples that an epoch uses.
fn used_bytes(job: &SmallJob, epoch: EpochNumber) -> u64 {
    let mut used = vec![false; job.sizes.len()];
    let order = job.order.epoch(epoch);
    order
        .samples(0..order.deal().positions())
        .for_each(|(_, sample)| used[sample as usize] = true);
    used.iter()
        .zip(&job.sizes)
        .filter(|(used, _)| **used)
        .map(|(_, &bytes)| u64::from(bytes))
        .sum()
}

proptest! {
    #![proptest_config(crate::drawn::cases(150))]

    /// Each use is served exactly once, from a place that has the sample; memories are not exceeded; the source is
    /// never read less than the bound; and a second run gives the same.
    #[test]
    fn every_policy_keeps_the_promises_of_residency(job in any_small(any_sizes())) {
        for new in POLICIES {
            let policy = || CheckedPolicy::new(new(job.cluster, job.order, job.ahead), job.cluster, &job.sizes, job.late);
            let mut checked = policy();
            let epochs = replayed(&job, &mut checked);
            prop_assert!(checked.under_way.is_empty());
            // Due samples may exceed a memory that is too small for a step; then more than the memory can be held
            // when an epoch begins.
            let held_bytes_max = epochs.iter().map(|traffic| traffic.held_bytes_max).max().unwrap_or(0);
            let cluster = Cluster { cache_bytes: job.cluster.cache_bytes.max(held_bytes_max), ..job.cluster };
            // Summed over epochs: a read for a use in the next epoch may serve another node in this one.
            let (mut read, mut bound) = (0, 0);
            for (epoch, traffic) in (0..).zip(&epochs) {
                prop_assert_eq!(traffic.samples.iter().sum::<u64>(), job.order.deal.positions());
                let bytes = used_bytes(&job, epoch);
                bound += if epoch == 0 { bytes } else { bounds::source_bytes(bytes, cluster) };
                read += traffic.bytes[SOURCE];
            }
            prop_assert!(read >= bound, "{} read {read} of {bound} bytes", checked.name());
            prop_assert_eq!(epochs, replayed(&job, &mut policy()));
        }
    }

    /// A sample that any node holds when an epoch begins is not read from the source in it: the last copy stays while
    /// a use is to come.
    #[test]
    fn forebay_never_gives_up_a_last_copy_that_is_still_to_be_used(
        job in any_small(prop::collection::vec(1_000..1_900u32, 1..300)), rotating: bool
    ) {
        // Where an epoch is padded, a sample is used again after it was consumed.
        let Ok(deal) = job.order.deal.sampler_drop_last(true) else { return Ok(()) };
        let job = SmallJob { ahead: job.ahead + 2, order: Order { deal, ..job.order }, ..job };
        let samples = job.sizes.len() as u32;
        let mut policy = Forebay::new(job.cluster, samples, job.ahead);
        if rotating {
            policy = Forebay::rotating(job.cluster, samples, job.ahead);
        }
        // A memory smaller than the due steps is another case.
        let step = u64::from(job.order.deal.batch() * job.cluster.gpus) * 1_900;
        prop_assume!(job.cluster.cache_bytes > 4 * step);
        let mut watched = WatchedReads { policy, cluster: job.cluster, epoch: 0, held: Vec::new() };
        replayed(&job, &mut watched);
    }
}

/// Checks the source's reads against the samples held when the epoch began.
struct WatchedReads {
    policy: Forebay,
    cluster: Cluster,
    epoch: EpochNumber,
    /// True for each sample that was held when the epoch began.
    held: Vec<bool>,
}

impl Residency for WatchedReads {
    forwarded_to_policy!();

    fn window(&self) -> Option<Iteration> {
        self.policy.window()
    }

    fn begin(&mut self, epoch: EpochNumber, orders: &[order::Epoch]) {
        self.epoch = epoch;
        let held = |sample| (0..self.cluster.nodes).any(|node| self.policy.holds(node, sample));
        self.held = (0..orders[0].deal().samples()).map(held).collect();
        self.policy.begin(epoch, orders);
    }

    fn fetch(&mut self, access: Access) -> Fetch {
        let fetch = self.policy.fetch(access);
        if access.epoch == self.epoch && fetch == Fetch::From(Origin::Source) {
            assert!(!self.held[access.sample as usize], "{access:?}");
        }
        fetch
    }

    fn arrived(&mut self, access: Access, bytes: u32) {
        self.policy.arrived(access, bytes);
    }

    fn consumed(&mut self, access: Access) {
        self.policy.consumed(access);
    }

    fn handover(&mut self) -> Option<Handover> {
        self.policy.handover()
    }
}

/// A job large enough for figures.
struct LargeJob {
    cluster: Cluster,
    order: Order,
    sizes: Vec<u32>,
}

impl LargeJob {
    /// Creates a job whose memories together hold `percent` of the data. Skewed sizes follow a Pareto distribution
    /// with shape 1.5, cut off at thirty times the mean.
    fn new(samples: u32, nodes: Node, batch: u32, percent: u64, skewed: bool) -> Self {
        let size = |sample: u64| {
            let mixed = (sample + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let part = ((mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f64 / f64::from(1 << 24);
            if skewed {
                (37_000.0 * (1.0 - part).powf(-1.0 / 1.5)).min(3e6) as u32
            } else {
                100_000
            }
        };
        let sizes: Vec<u32> = (0..u64::from(samples)).map(size).collect();
        let total: u64 = sizes.iter().map(|&bytes| u64::from(bytes)).sum();
        let cluster = Cluster {
            nodes,
            gpus: 4,
            cache_bytes: total * percent / 100 / u64::from(nodes),
            reserved_bytes: 0,
        };
        let deal = Deal::new(samples, cluster.world(), batch).expect("a deal");
        Self {
            cluster,
            order: Order {
                permutation: Permutation::Torch,
                seed: 3,
                deal,
            },
            sizes,
        }
    }

    fn total_bytes(&self) -> u64 {
        self.sizes.iter().map(|&bytes| u64::from(bytes)).sum()
    }

    /// W of a node: 2 % of its memory or four iterations' bytes, whichever is more.
    fn window_bytes(&self) -> f64 {
        let iteration = f64::from(self.order.deal.batch() * self.cluster.gpus) * self.total_bytes() as f64 / self.sizes.len() as f64;
        (4.0 * iteration).max(self.cluster.cache_bytes as f64 / 50.0)
    }

    fn run(&self, policy: &mut dyn Residency, epochs: EpochNumber) -> Vec<ReplayTraffic> {
        let mut replay = Replay::new(self.cluster, self.order, epochs, |sample| self.sizes[sample as usize]);
        std::iter::from_fn(|| replay.epoch(policy)).collect()
    }

    fn forebay(&self, rotating: bool) -> Forebay {
        let samples = self.sizes.len() as u32;
        if rotating {
            Forebay::rotating(self.cluster, samples, 4)
        } else {
            Forebay::new(self.cluster, samples, 4)
        }
    }
}

/// The limits of the planner: source bytes of the cold and of each warm epoch, and bytes of the window.
#[test]
fn forebay_reads_hardly_more_than_the_bound() {
    for (nodes, batch) in [(1, 8), (2, 8), (8, 8), (64, 2)] {
        for percent in [10, 25, 50, 75, 90, 95, 100, 102, 105, 110] {
            for (skewed, rotating) in [(false, false), (true, false), (false, true), (true, true)] {
                let job = LargeJob::new(20_000, nodes, batch, percent, skewed);
                let (total, window) = (job.total_bytes(), job.window_bytes());
                let bar = 1.02 * bounds::source_bytes(total, job.cluster) as f64 + f64::from(nodes) * window;
                let mut policy = job.forebay(rotating);
                for (epoch, traffic) in job.run(&mut policy, 4).iter().enumerate() {
                    let read = traffic.bytes[SOURCE] as f64;
                    let most = if epoch == 0 { 1.02 * total as f64 } else { bar };
                    let what = format!("{nodes} nodes, {percent} %, skewed {skewed}, rotating {rotating}, epoch {epoch}");
                    assert!(read <= most, "{what}: {read} bytes of {most}");
                    // Due samples exceed a memory of a few steps' largest samples.
                    let largest = u64::from(job.sizes.iter().copied().max().unwrap_or(0));
                    let is_small = job.cluster.cache_bytes < 4 * largest * u64::from(job.cluster.gpus * batch);
                    assert!(is_small || traffic.held_bytes_max <= job.cluster.cache_bytes, "{what}: {traffic:?}");
                    let limit = policy.window_limit_bytes();
                    assert!(limit as f64 <= window, "{what}: {limit}, W {window}");
                    assert!(skewed || traffic.window_bytes_max <= limit, "{what}: {traffic:?}, {limit}");
                }
            }
        }
    }
}

#[test]
fn rotating_owners_save_peer_bytes_at_equal_source_bytes() {
    let job = LargeJob::new(40_000, 8, 8, 25, false);
    let [fixed, rotating] = [false, true].map(|rotating| job.run(&mut job.forebay(rotating), 4)[3]);
    let all = job.total_bytes() as f64;
    assert!((rotating.bytes[SOURCE] as f64 - fixed.bytes[SOURCE] as f64).abs() < 0.005 * all);
    // Of a quarter of the data an eighth is local by chance; a node that keeps what it uses next finds an eighth of
    // all data.
    assert!(fixed.bytes[LOCAL] as f64 / all < 0.04, "{fixed:?}");
    assert!(rotating.bytes[LOCAL] as f64 / all > 0.11, "{rotating:?}");
}

#[test]
fn while_memory_is_short_the_smallest_samples_stay() {
    for nodes in [1, 8] {
        let job = LargeJob::new(40_000, nodes, 4, 30, true);
        let requests = job.run(&mut job.forebay(false), 4)[3].samples[SOURCE] as f64;
        let kept = Cluster {
            cache_bytes: job.cluster.cache_bytes - job.window_bytes() as u64,
            ..job.cluster
        };
        let bound = bounds::source_requests(&mut job.sizes.clone(), kept) as f64;
        let first_come = job.run(&mut FirstKept::pinned(job.cluster, 40_000, 4), 4)[3].samples[SOURCE] as f64;
        assert!(requests <= 1.05 * bound, "{nodes} nodes: {requests} requests, at least {bound}");
        assert!(
            requests < 0.7 * first_come,
            "{nodes} nodes: {requests} requests, {first_come} by what came first"
        );
    }
}

#[test]
fn room_that_is_left_holds_what_nodes_use_next() {
    let share = |percent| {
        let job = LargeJob::new(40_000, 8, 8, percent, true);
        let epochs = job.run(&mut job.forebay(false), 8);
        assert!(
            epochs[2..].iter().all(|traffic| traffic.bytes[SOURCE] == 0),
            "{percent} %: {epochs:?}"
        );
        epochs[7].bytes[LOCAL] as f64 / job.total_bytes() as f64
    };
    let [little, some, all] = [110, 150, 900].map(share);
    // An eighth is local by chance. Replicas in the remaining room are used next by their node, and in the end
    // nothing moves any more.
    assert!(little > 0.155, "{little}");
    assert!(some > 0.22, "{some}");
    assert!(all > 0.55, "{all}");
}

/// Every other sample is four times as large, and in this order one of two nodes uses all of these.
fn uneven(cache_bytes: u64) -> LargeJob {
    let cluster = Cluster {
        nodes: 2,
        gpus: 1,
        cache_bytes,
        reserved_bytes: 0,
    };
    let order = Order {
        permutation: Permutation::Sequential,
        seed: 0,
        deal: Deal::new(4_000, 2, 4).expect("a deal"),
    };
    let sizes = (0..4_000).map(|sample| if sample % 2 == 0 { 40_000 } else { 10_000 }).collect();
    LargeJob { cluster, order, sizes }
}

#[test]
fn a_node_that_others_leave_room_takes_what_does_not_fit() {
    let job = uneven(60_000_000);
    let epochs = job.run(&mut job.forebay(false), 3);
    assert!(epochs[0].handover_bytes > 20_000_000, "{epochs:?}");
    assert_eq!([epochs[1].bytes[SOURCE], epochs[2].bytes[SOURCE]], [0, 0]);
    assert!(epochs[0].held_bytes_max <= job.cluster.cache_bytes);
}

/// A sample that finds no room on the first node goes to the second one, unless the second one's own reads would fill
/// its room.
#[test]
fn a_node_is_asked_again_whether_it_has_room_to_spare() {
    let job = uneven(34_000_000);
    let epochs = job.run(&mut job.forebay(false), 2);
    assert!(epochs[0].handover_bytes > 10_000_000, "{epochs:?}");
    let bound = bounds::source_bytes(job.total_bytes(), job.cluster) as f64;
    assert!(
        epochs[1].bytes[SOURCE] as f64 <= 1.02 * bound + 2.0 * job.window_bytes(),
        "{epochs:?}"
    );
}

/// With equal sizes, on one node, no choice of samples is better than the first ones.
#[test]
fn pinned_equals_belady_on_one_node_with_equal_sizes() {
    for percent in [10, 30, 60, 90, 100, 120] {
        let job = LargeJob::new(20_000, 1, 8, percent, false);
        let samples = job.sizes.len() as u32;
        let pinned = job.run(&mut FirstKept::pinned(job.cluster, samples, 4), 4);
        let belady = job.run(&mut Belady::new(job.cluster, samples, 4), 4);
        let forebay = job.run(&mut job.forebay(false), 4);
        for (epoch, (pinned, belady)) in pinned.iter().zip(&belady).enumerate().skip(1) {
            let apart = pinned.bytes[SOURCE].abs_diff(belady.bytes[SOURCE]) as f64;
            assert!(apart <= job.window_bytes(), "{percent} %, epoch {epoch}: {pinned:?} {belady:?}");
        }
        assert_eq!(pinned, forebay, "{percent} %");
    }
}

#[test]
fn peers_serve_what_is_pinned_and_not_what_fills_first() {
    let job = LargeJob::new(20_000, 4, 8, 60, false);
    let pinned = job.run(&mut FirstKept::pinned(job.cluster, 20_000, 4), 3)[2];
    let fill_first = job.run(&mut FirstKept::fill_first(job.cluster, 20_000, 4), 3)[2];
    let none = job.run(&mut FirstKept::nothing(job.cluster, 20_000, 4), 3)[2];
    assert_eq!(pinned.bytes[LOCAL], fill_first.bytes[LOCAL]);
    assert!(pinned.bytes[PEER] > 2 * pinned.bytes[LOCAL]);
    assert_eq!([fill_first.bytes[PEER], none.bytes[PEER], none.bytes[LOCAL]], [0, 0, 0]);
    assert_eq!(none.bytes[SOURCE], job.total_bytes());
}
