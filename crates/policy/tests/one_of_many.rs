//! One node among others, which decides on its own memory only: it uses samples that others keep, and reads samples for
//! others.

use forebay_policy::ids::{Cluster, Sample};
use forebay_policy::order::{Deal, Epoch, Order, Permutation};
use forebay_policy::peers::{NodeGroups, SampleShares};
use forebay_policy::residency::{Access, Fetch, Origin, PolicyInput, PolicyName, future::EPOCHS_AHEAD};

/// Samples of a job on several nodes, and the size of each.
const JOB_SAMPLES: u32 = 600;
const BYTES: u64 = 100;

#[test]
fn a_node_keeps_no_sample_of_another_and_may_keep_what_it_reads_for_another() {
    const SAMPLES: u32 = 200;
    let cluster = Cluster {
        nodes: 1,
        gpus: 1,
        cache_bytes: 60 * 100,
        reserved_bytes: 0,
    };
    let order = Order {
        permutation: Permutation::Torch,
        seed: 5,
        deal: Deal::new(SAMPLES, 1, 4).expect("a deal"),
    };
    let is_ours = |sample: Sample| sample.is_multiple_of(4);
    for name in PolicyName::ALL.into_iter().filter(|name| !name.looks_ahead()) {
        let mut policy = name.build(PolicyInput {
            cluster,
            ranks_before: 0,
            samples: SAMPLES,
            window: 1,
            order: &order,
            training_epochs: 2,
            epochs_ahead: EPOCHS_AHEAD,
        });
        let name = policy.name();
        for epoch in 0..2 {
            let epochs: Vec<_> = (epoch..epoch + policy.horizon()).map(|epoch| order.epoch(epoch)).collect();
            policy.begin(epoch, &epochs);
            for iteration in 0..epochs[0].iterations() {
                for sample in epochs[0].batch(0, iteration) {
                    let access = Access {
                        node: 0,
                        sample,
                        iteration,
                        epoch,
                    };
                    assert_ne!(policy.fetch(access), Fetch::Wait, "{name}: what is due is let in");
                    policy.arrived(access, 100);
                    if is_ours(sample) {
                        policy.consumed(access);
                    } else {
                        policy.passed(access);
                        assert!(!policy.holds(0, sample), "{name} keeps sample {sample} of another node");
                    }
                    let offered = Access {
                        sample: sample / 4 * 4,
                        ..access
                    };
                    if !policy.holds(0, offered.sample) {
                        policy.offered(offered, 100);
                    }
                    assert!(policy.held_bytes(0) <= cluster.cache_bytes, "{name}");
                }
            }
        }
        let held: Vec<Sample> = (0..SAMPLES).filter(|sample| policy.holds(0, *sample)).collect();
        assert!(held.iter().all(|sample| is_ours(*sample)), "{name}");
        assert_eq!(held.len() > 40, name != "none", "{name} holds {} of 50", held.len());
    }
}

/// Runs a job of `nodes` nodes whose policies each see their own node only, and returns the samples that are read from
/// the source in each epoch. A sample that its owner lacks is read by the node that needs it.
fn source_reads(name: PolicyName, nodes: u16, kept: u32, epochs: u32) -> Vec<u32> {
    let (gpus, epochs_known) = (2, epochs + EPOCHS_AHEAD);
    let cluster = Cluster {
        nodes,
        gpus,
        cache_bytes: u64::from(kept) * BYTES,
        reserved_bytes: 0,
    };
    let order = Order {
        permutation: Permutation::Torch,
        seed: 5,
        deal: Deal::new(JOB_SAMPLES, cluster.world(), 4).expect("a deal"),
    };
    let orders: Vec<Epoch> = (0..epochs_known).map(|epoch| order.epoch(epoch)).collect();
    let shares = SampleShares::by_first_use(&orders[0], cluster, NodeGroups::of_at_most(nodes, 0), 0);
    let one_node = |node: u16| {
        let mut policy = name.build(PolicyInput {
            cluster: Cluster { nodes: 1, ..cluster },
            ranks_before: u32::from(node) * gpus,
            samples: JOB_SAMPLES,
            window: 1,
            order: &order,
            training_epochs: epochs,
            epochs_ahead: EPOCHS_AHEAD,
        });
        policy.serve_others();
        policy
    };
    let mut policies: Vec<_> = (0..nodes).map(one_node).collect();
    let mut reads = Vec::new();
    for epoch in 0..epochs {
        let known = &orders[epoch as usize..];
        for policy in &mut policies {
            policy.begin(epoch, &known[..policy.horizon().min(known.len() as u32) as usize]);
        }
        let mut from_source = 0;
        for iteration in 0..known[0].iterations() {
            for (rank, sample) in known[0].step(iteration) {
                let (node, owner) = (cluster.node_of(rank), shares.of(sample));
                let access = Access {
                    node: 0,
                    sample,
                    iteration,
                    epoch,
                };
                let is_there = node != owner && policies[usize::from(owner)].holds(0, sample);
                let policy = &mut policies[usize::from(node)];
                let fetch = policy.fetch(access);
                assert_ne!(fetch, Fetch::Wait, "what is due is let in");
                policy.arrived(access, BYTES as u32);
                if node == owner {
                    policy.consumed(access);
                } else {
                    policy.passed(access);
                }
                from_source += u32::from(fetch == Fetch::From(Origin::Source) && !is_there);
                assert!(policy.held_bytes(0) <= cluster.cache_bytes, "{}", policy.name());
            }
        }
        reads.push(from_source);
    }
    reads
}

#[test]
fn last_copies_outlive_replicas_so_that_what_all_nodes_can_hold_is_read_once() {
    // Each node owns 150, and has room for two batches and some replicas beside.
    let reads = source_reads(PolicyName::Lobster, 4, 180, 5);
    assert_eq!(reads, [JOB_SAMPLES, 0, 0, 0, 0]);
    // The text gives up what is used furthest away when memory is full, be it the last copy.
    let reads = source_reads(PolicyName::LobsterAsWritten, 4, 180, 5);
    assert!(reads[1..].iter().all(|reads| *reads < JOB_SAMPLES / 20), "{reads:?}");
}

#[test]
fn a_policy_without_last_copies_reads_again_what_replicas_displaced() {
    let reads = source_reads(PolicyName::Belady, 4, 180, 5);
    assert!(reads[1..].iter().sum::<u32>() > JOB_SAMPLES / 10, "{reads:?}");
}

#[test]
fn all_policies_that_look_ahead_read_less_than_without_a_cache_on_several_nodes() {
    for name in PolicyName::ALL.into_iter().filter(|name| name.looks_ahead()) {
        for (nodes, kept) in [(1, 300), (2, 150), (3, 100), (5, 80)] {
            let reads = source_reads(name, nodes, kept, 4);
            let later: u32 = reads[1..].iter().sum();
            // At best half of the samples, and with room that changes hands no worse than three of four.
            assert!(later <= 3 * JOB_SAMPLES * 3 / 4, "{} on {nodes} nodes: {reads:?}", name.name());
        }
    }
}

#[test]
fn f47_a_set_a_little_larger_than_all_memory_is_not_read_again_and_again() {
    for (nodes, kept) in [(2, 297), (4, 148), (6, 99)] {
        let lacking = JOB_SAMPLES - u32::from(nodes) * kept;
        for name in PolicyName::ALL {
            let reads = source_reads(name, nodes, kept, 5);
            assert!(
                reads.iter().all(|reads| *reads <= JOB_SAMPLES),
                "{} on {nodes} nodes reads more than no cache would: {reads:?}",
                name.name()
            );
            // Samples in use take room of those that are kept: of each of two ranks a batch, and the next one.
            let most = lacking + u32::from(nodes) * 2 * 2 * 4;
            if name == PolicyName::Forebay {
                assert!(
                    reads[1..].iter().all(|reads| *reads <= most),
                    "{lacking} have no room, {nodes} nodes: {reads:?}"
                );
            }
        }
    }
}
