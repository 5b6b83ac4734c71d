//! One node among others, which decides on its own memory only: it uses samples that others keep, and reads samples for
//! others.

use forebay_policy::ids::{Cluster, Sample};
use forebay_policy::order::{Deal, Order, Permutation};
use forebay_policy::residency::{Access, Fetch, PolicyInput, PolicyName, future::EPOCHS_AHEAD};

#[test]
fn a_node_keeps_no_sample_of_another_and_may_keep_what_it_reads_for_another() {
    const SAMPLES: u32 = 200;
    let cluster = Cluster {
        nodes: 1,
        gpus: 1,
        cache_bytes: 60 * 100,
    };
    let order = Order {
        permutation: Permutation::Torch,
        seed: 5,
        deal: Deal::new(SAMPLES, 1, 4).expect("a deal"),
    };
    let is_ours = |sample: Sample| sample.is_multiple_of(4);
    for name in PolicyName::ALL {
        let mut policy = name.build(PolicyInput {
            cluster,
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
