//! Residency policies that give up the least valuable copy: their closed forms, their limits, and the cost of the
//! Lobster text's errors. `residency.rs` holds the tests for every policy.

use std::collections::BTreeSet;

use forebay_policy::ids::{Cluster, Node, Sample};
use forebay_policy::order::{Deal, Epoch, Order, Permutation};
use forebay_policy::residency::future::{Future, Use};
use forebay_policy::residency::nopfs::Uses;
use forebay_policy::residency::replay::ReplayTraffic;
use forebay_policy::residency::{Access, Belady, Fetch, FirstKept, Forebay, Lobster, Lru, Nopfs, Replay, Residency};
use proptest::prelude::*;

const SAMPLES: u32 = 20_000;
const BYTES: u32 = 1_000;
const LOCAL: usize = 0;
const PEER: usize = 1;
const SOURCE: usize = 2;

/// Nodes of one rank each whose memories hold this share of the dataset in all.
fn cluster(nodes: Node, share: f64) -> Cluster {
    Cluster {
        nodes,
        gpus: 1,
        cache_bytes: (f64::from(SAMPLES) * f64::from(BYTES) * share / f64::from(nodes)) as u64,
        reserved_bytes: 0,
    }
}

fn order(cluster: Cluster, batch: u32) -> Order {
    Order {
        permutation: Permutation::Torch,
        seed: 1,
        deal: Deal::new(SAMPLES, cluster.world(), batch).expect("a deal"),
    }
}

/// Runs some epochs with samples of equal size, and returns the last one with its shares by origin.
fn last_epoch(policy: &mut dyn Residency, cluster: Cluster, order: Order, epochs: u32) -> (ReplayTraffic, [f64; 3]) {
    let mut replay = Replay::new(cluster, order, epochs, |_| BYTES);
    let traffic = std::iter::from_fn(|| replay.epoch(policy)).last().expect("an epoch");
    (traffic, traffic.samples.map(|samples| samples as f64 / f64::from(SAMPLES)))
}

fn assert_near(found: [f64; 3], expected: [f64; 3], off: f64) {
    let near = found.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() <= off);
    assert!(near, "{found:?} found, {expected:?} expected (local, peer, source)");
}

#[test]
fn lru_finds_what_its_closed_form_says() {
    for share in [0.1, 0.296, 0.5, 0.7, 0.9_f64] {
        let cluster = cluster(1, share);
        let (_, found) = last_epoch(&mut Lru::new(cluster, SAMPLES, 0), cluster, order(cluster, 1), 4);
        let expected = share + (1.0 - share) * (1.0 - share).ln();
        assert_near(found, [expected, 0.0, 1.0 - expected], 0.01);
    }
}

/// Returns the misses of one node that uses one sample a step and gives up the one used furthest away, by a search
/// through all future uses.
fn fewest_misses(uses: &[Sample], room: usize) -> usize {
    let (mut held, mut misses) = (Vec::new(), 0);
    for (now, sample) in uses.iter().enumerate() {
        if held.contains(sample) {
            continue;
        }
        misses += 1;
        if held.len() == room {
            let next_use = |held: &Sample| uses[now..].iter().position(|later| later == held).unwrap_or(usize::MAX);
            let furthest = (0..room).max_by_key(|&at| next_use(&held[at])).expect("room for one");
            held.swap_remove(furthest);
        }
        held.push(*sample);
    }
    misses
}

#[test]
fn belady_misses_as_little_as_can_be() {
    let (samples, epochs) = (60_u32, 6);
    for (room, seed) in [(1, 0), (7, 1), (20, 2), (45, 3), (59, 4), (60, 5)] {
        let cluster = Cluster {
            nodes: 1,
            gpus: 1,
            cache_bytes: room * u64::from(BYTES),
            reserved_bytes: 0,
        };
        let order = Order {
            permutation: Permutation::Counter,
            seed,
            deal: Deal::new(samples, 1, 1).expect("a deal"),
        };
        // One epoch more than is counted, so that nothing is given up for the end.
        let mut replay = Replay::new(cluster, order, epochs + 3, |_| BYTES);
        let mut policy = Belady::new(cluster, samples, 0);
        let read: u64 = (0..epochs)
            .map(|_| replay.epoch(&mut policy).expect("an epoch").samples[SOURCE])
            .sum();
        let uses: Vec<Sample> = (0..epochs)
            .flat_map(|number| order.epoch(number).samples(0..60).map(|(_, sample)| sample).collect::<Vec<_>>())
            .collect();
        assert_eq!(read as usize, fewest_misses(&uses, room as usize), "room for {room}");
    }
}

#[test]
fn on_one_node_belady_pinned_and_nopfs_are_at_the_bound() {
    for share in [0.1, 0.296, 0.6, 0.95] {
        let cluster = cluster(1, share);
        let order = order(cluster, 10);
        let window = u64::from(BYTES) * 10 * 3;
        let bound = u64::from(SAMPLES) * u64::from(BYTES) - cluster.cache_bytes;
        let uses = Uses::count(cluster, SAMPLES, (0..4).map(|number| order.epoch(number)));
        let policies: [&mut dyn Residency; 4] = [
            &mut Belady::new(cluster, SAMPLES, 2),
            &mut Nopfs::new(cluster, SAMPLES, 2, uses),
            &mut Lobster::corrected(cluster, SAMPLES, 2),
            &mut FirstKept::pinned(cluster, SAMPLES, 2),
        ];
        for policy in policies {
            let (traffic, _) = last_epoch(policy, cluster, order, 4);
            // Pinned reserves its window's most bytes, the others what is in it.
            let window = if policy.name() == "pinned" {
                window.max(cluster.cache_bytes / 50) * 2
            } else {
                window
            };
            assert!(
                (bound..=bound + window).contains(&traffic.bytes[SOURCE]),
                "{}: {traffic:?}, bound {bound}",
                policy.name()
            );
        }
    }
}

/// The set-up of the paper's ImageNet-1K on eight nodes: together they hold the dataset 2.37 times.
fn eight() -> Cluster {
    cluster(8, 2.37)
}

#[test]
fn lobster_as_written_gives_up_useful_copies_while_memory_is_free() {
    let cluster = eight();
    let order = order(cluster, 10);
    let (written, found) = last_epoch(&mut Lobster::as_written_within(cluster, SAMPLES, 2), cluster, order, 8);
    // A node has one in eight as the last copy, and of the rest one in eight because it uses it again within the next
    // epoch.
    assert_near(found, [1.0 / 8.0 + 7.0 / 64.0, 1.0 - 1.0 / 8.0 - 7.0 / 64.0, 0.0], 0.01);
    assert!(written.held_bytes_max < cluster.cache_bytes * 6 / 10, "{written:?}");
    let (corrected, found) = last_epoch(&mut Lobster::corrected(cluster, SAMPLES, 2), cluster, order, 8);
    assert!(found[LOCAL] > 0.4 && corrected.samples[SOURCE] == 0, "{found:?}");
    assert!(corrected.held_bytes_max > cluster.cache_bytes * 99 / 100, "{corrected:?}");
}

#[test]
fn lobster_as_written_reads_everything_where_the_source_is_fast() {
    let cluster = cluster(1, 0.296);
    let order = order(cluster, 10);
    let (_, written) = last_epoch(&mut Lobster::as_written(cluster, SAMPLES), cluster, order, 5);
    assert!(written[SOURCE] > 0.94, "{written:?}");
    let (_, corrected) = last_epoch(&mut Lobster::corrected(cluster, SAMPLES, 2), cluster, order, 5);
    assert!(corrected[SOURCE] < 0.71, "{corrected:?}");
}

#[test]
fn lobster_corrected_keeps_last_copies() {
    let cluster = cluster(8, 1.05);
    let order = order(cluster, 10);
    let (corrected, _) = last_epoch(&mut Lobster::corrected(cluster, SAMPLES, 2), cluster, order, 5);
    assert_eq!(corrected.samples[SOURCE], 0, "{corrected:?}");
    let (belady, _) = last_epoch(&mut Belady::new(cluster, SAMPLES, 2), cluster, order, 5);
    assert!(
        belady.samples[SOURCE] > u64::from(SAMPLES) / 10,
        "each node by itself gives last copies up: {belady:?}"
    );
}

#[test]
fn nodes_of_nopfs_keep_what_they_use_most() {
    let (cluster, epochs) = (cluster(8, 0.5), 20);
    let order = order(cluster, 10);
    let uses = Uses::count(cluster, SAMPLES, (0..epochs).map(|number| order.epoch(number)));
    let mut policy = Nopfs::new(cluster, SAMPLES, 2, uses.clone());
    last_epoch(&mut policy, cluster, order, epochs);
    let (mut kept, mut others) = ((0_u64, 0_u64), (0_u64, 0_u64));
    for node in 0..cluster.nodes {
        for sample in 0..SAMPLES {
            let group = if policy.holds(node, sample) { &mut kept } else { &mut others };
            *group = (group.0 + u64::from(uses.of(node, sample)), group.1 + 1);
        }
    }
    let mean = |(sum, count): (u64, u64)| sum as f64 / count as f64;
    assert!(
        mean(kept) > mean(others) + 2.0,
        "{} and {} uses of 20 epochs",
        mean(kept),
        mean(others)
    );
    let (_, lru) = last_epoch(&mut Lru::new(cluster, SAMPLES, 2), cluster, order, 8);
    let (_, nopfs) = last_epoch(&mut Nopfs::new(cluster, SAMPLES, 2, uses), cluster, order, 8);
    assert!(nopfs[LOCAL] > 2.0 * lru[LOCAL] && nopfs[SOURCE] < lru[SOURCE], "{nopfs:?} {lru:?}");
}

/// A job of any shape, and the bytes of its samples.
fn jobs() -> impl Strategy<Value = (Cluster, Order, Vec<u32>)> {
    let deal = (1_u32..300, 1_u16..5, 1_u32..3, 1_u32..6, any::<bool>(), any::<bool>());
    let memory = (0_u64..110, any::<u64>(), any::<bool>());
    (deal, memory).prop_filter_map(
        "no batch",
        |((samples, nodes, gpus, batch, sampler, loader), (percent, seed, skewed))| {
            let deal = Deal::new(samples, u32::from(nodes) * gpus, batch)
                .ok()?
                .sampler_drop_last(sampler)
                .ok()?
                .loader_drop_last(loader)
                .ok()?;
            let bytes: Vec<u32> = (0..samples)
                .map(|sample| if skewed { 1 + sample * sample % 1013 } else { 100 })
                .collect();
            let all: u64 = bytes.iter().map(|&bytes| u64::from(bytes)).sum();
            // Room for the window of three steps, so that the quota can be held.
            let window = u64::from(gpus * batch) * 3 * u64::from(*bytes.iter().max()?);
            let cluster = Cluster {
                nodes,
                gpus,
                cache_bytes: window + all * percent / 100 / u64::from(nodes),
                reserved_bytes: 0,
            };
            Some((
                cluster,
                Order {
                    permutation: Permutation::Counter,
                    seed,
                    deal,
                },
                bytes,
            ))
        },
    )
}

fn policies(cluster: Cluster, order: Order) -> Vec<Box<dyn Residency>> {
    let samples = order.deal.samples();
    let uses = Uses::count(cluster, samples, (0..4).map(|number| order.epoch(number)));
    vec![
        Box::new(Lru::new(cluster, samples, 2)),
        Box::new(Belady::new(cluster, samples, 2)),
        Box::new(Nopfs::new(cluster, samples, 2, uses)),
        Box::new(Lobster::as_written(cluster, samples)),
        Box::new(Lobster::as_written_within(cluster, samples, 2)),
        Box::new(Lobster::corrected(cluster, samples, 2)),
    ]
}

fn replay(policy: &mut dyn Residency, cluster: Cluster, order: Order, bytes: &[u32]) -> Vec<ReplayTraffic> {
    let mut replay = Replay::new(cluster, order, 4, |sample| bytes[sample as usize]);
    std::iter::from_fn(|| replay.epoch(policy)).collect()
}

proptest! {
    #![proptest_config(crate::drawn::cases(80))]

    /// Every use is served once, memory stays within its limits, no warm epoch reads less than is possible, and a
    /// second run gives the same.
    #[test]
    fn limits_hold_whatever_the_job((cluster, order, bytes) in jobs()) {
        let dealt: u64 = order.epoch(1).samples(0..order.deal.positions()).map(|(_, sample)| u64::from(bytes[sample as usize])).sum();
        let used: std::collections::BTreeSet<Sample> = order.epoch(1).samples(0..order.deal.positions()).map(|(_, sample)| sample).collect();
        let needed: u64 = used.iter().map(|&sample| u64::from(bytes[sample as usize])).sum();
        for (mut policy, mut again) in policies(cluster, order).into_iter().zip(policies(cluster, order)) {
            let epochs = replay(policy.as_mut(), cluster, order, &bytes);
            for (number, traffic) in epochs.iter().enumerate() {
                let name = policy.name();
                prop_assert_eq!(traffic.samples.iter().sum::<u64>(), order.deal.positions(), "{}", name);
                // While sizes are learned, samples under way may be larger than expected.
                if number > 0 && dealt == needed && used.len() == bytes.len() {
                    prop_assert!(traffic.held_bytes_max <= cluster.cache_bytes, "{} epoch {}: {:?} {:?}", name, number, traffic, cluster);
                    let bound = needed.saturating_sub(u64::from(cluster.nodes) * cluster.cache_bytes);
                    prop_assert!(traffic.bytes[SOURCE] >= bound, "{} epoch {}: {:?}, bound {}", name, number, traffic, bound);
                }
            }
            prop_assert_eq!(epochs, replay(again.as_mut(), cluster, order, &bytes));
        }
    }

    /// The next use is the one that a search through all epochs finds.
    #[test]
    fn the_future_is_what_the_orders_say((cluster, order, _) in jobs(), ahead in 0_u32..4, epoch in 0_u32..5, from in 0_u64..200, jump: bool) {
        let mut future = Future::new(cluster, ahead);
        let known = |first: u32| (first..=first + ahead).map(|number| order.epoch(number)).collect::<Vec<Epoch>>();
        for first in if jump { epoch..=epoch } else { 0..=epoch } {
            future.begin(first, &known(first));
        }
        let iterations = u64::from(order.deal.iterations());
        let from = u64::from(epoch) * iterations + from % (iterations * 2);
        for sample in 0..order.deal.samples().min(40) {
            let mut all = Vec::new();
            for (number, epoch) in (u64::from(epoch)..).zip(known(epoch)) {
                for iteration in 0..epoch.iterations() {
                    let step = number * iterations + u64::from(iteration);
                    let uses = epoch.step(iteration).filter(|&(_, used)| used == sample && step >= from);
                    all.extend(uses.map(|(rank, _)| Use { step, node: cluster.node_of(rank) }));
                }
            }
            prop_assert_eq!(future.next_use(sample, from), all.first().copied());
            for node in 0..cluster.nodes {
                let on_node = all.iter().find(|next| next.node == node).map(|next| next.step);
                prop_assert_eq!(future.next_use_on(node, sample, from), on_node);
            }
        }
    }
}

/// Later steps have higher grades, and no use has the highest; if there are very many steps, neighbours share one.
#[test]
fn grades_rise_with_steps() {
    for (samples, first_epoch) in [(1_000_u32, 0), (1_000, 7), (700_000, 3)] {
        let order = Order {
            permutation: Permutation::Sequential,
            seed: 0,
            deal: Deal::new(samples, 1, 1).expect("a deal"),
        };
        let mut future = Future::new(cluster(1, 0.1), 2);
        assert_eq!(
            (future.horizon(), future.iterations(), future.grades()),
            (3, 0, 1),
            "nothing is known"
        );
        let known: Vec<Epoch> = (first_epoch..first_epoch + 3).map(|number| order.epoch(number)).collect();
        future.begin(first_epoch, &known);
        let first = u64::from(first_epoch * samples);
        let steps = 3 * u64::from(samples);
        assert_eq!((future.first_step(), future.iterations()), (first, u64::from(samples)));
        assert!(u64::from(future.grades()) <= steps.min(1 << 20) + 1);
        assert_eq!(future.grade(None), future.grades() - 1);
        assert_eq!([first, first.saturating_sub(1), 0].map(|step| future.grade(Some(step))), [0; 3]);
        let shared = steps.div_ceil(1 << 20);
        for step in 0..steps {
            let grade = future.grade(Some(first + step));
            assert_eq!(u64::from(grade), step / shared, "{step} of {steps}");
            assert!(grade < future.grade(None));
        }
        assert_eq!(future.grade(Some(first + steps)), future.grade(None), "not within sight");
    }
}

#[test]
fn peers_serve_what_they_hold() {
    let cluster = cluster(4, 1.5);
    let (traffic, found) = last_epoch(&mut Lru::new(cluster, SAMPLES, 0), cluster, order(cluster, 5), 6);
    assert!(found[PEER] > 0.4, "{found:?}");
    assert_eq!(traffic.bytes[PEER], traffic.samples[PEER] * u64::from(BYTES));
}

/// Samples of different sizes in a memory for a part of them: exactly the copies that a node loses by a use are
/// reported as given up.
#[test]
fn what_a_policy_gives_up_it_tells() {
    let samples = 200;
    let bytes = |sample: Sample| 500 + sample * 37 % 1_000;
    let cluster = Cluster {
        nodes: 1,
        gpus: 1,
        cache_bytes: 80_000,
        reserved_bytes: 0,
    };
    let order = Order {
        permutation: Permutation::Torch,
        seed: 2,
        deal: Deal::new(samples, 1, 4).expect("a deal"),
    };
    let policies: [Box<dyn Residency>; 4] = [
        Box::new(Forebay::new(cluster, samples, 2)),
        Box::new(Lru::new(cluster, samples, 2)),
        Box::new(Belady::new(cluster, samples, 2)),
        Box::new(Lobster::corrected(cluster, samples, 2)),
    ];
    for mut policy in policies {
        let held = |policy: &dyn Residency| -> BTreeSet<Sample> { (0..samples).filter(|&sample| policy.holds(0, sample)).collect() };
        let mut told_in_all = 0;
        for epoch in 0..3 {
            let orders: Vec<Epoch> = (epoch..epoch + policy.horizon()).map(|epoch| order.epoch(epoch)).collect();
            policy.begin(epoch, &orders);
            let uses =
                (0..orders[0].iterations()).flat_map(|iteration| orders[0].step(iteration).map(move |(_, sample)| (iteration, sample)));
            for (iteration, sample) in uses.collect::<Vec<_>>() {
                let access = Access {
                    node: 0,
                    sample,
                    iteration,
                    epoch,
                };
                let before = held(&*policy);
                assert!(matches!(policy.fetch(access), Fetch::From(_)), "a use at a time is due");
                policy.arrived(access, bytes(sample));
                policy.consumed(access);
                let after = held(&*policy);
                let told: BTreeSet<Sample> = std::iter::from_fn(|| policy.given_up()).map(|(_, sample)| sample).collect();
                told_in_all += told.len();
                assert!(
                    before.difference(&after).all(|gone| told.contains(gone)),
                    "{} told all",
                    policy.name()
                );
                // Given up is the used sample, or one that came in its place.
                assert!(
                    told.iter().all(|sample| !after.contains(sample)),
                    "{} told of nothing else",
                    policy.name()
                );
            }
        }
        assert!(told_in_all > 20, "{} gives up some for others: {told_in_all}", policy.name());
    }
}
