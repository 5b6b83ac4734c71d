use super::*;

const FAULTS: [ClusterFault; 4] = [ClusterFault::Slow, ClusterFault::Dead, ClusterFault::Flapping, ClusterFault::CutOff];

fn job(nodes: Node, fault: ClusterFault) -> ClusterJob {
    ClusterJob::new(nodes, 32, fault)
}

#[test]
fn a_job_reads_each_sample_from_the_source_once_and_each_node_has_one_connection_to_each_other() {
    for nodes in [1, 2, 8, 64] {
        let job = job(nodes, ClusterFault::Healthy);
        let outcome = job.simulate();
        let shares: Vec<f64> = (0..3).map(|epoch| outcome.source_share(job, epoch)).collect();
        assert_eq!(shares, [1.0, 0.0, 0.0], "{nodes} nodes");
        let requests = outcome.requests;
        assert_eq!(
            (requests.sent, requests.came, requests.failed),
            (requests.wanted, requests.wanted, 0)
        );
        let pairs = u32::from(nodes) * u32::from(nodes - 1);
        assert!(requests.handshakes <= u64::from(pairs) && outcome.connections_max <= 2 * u32::from(nodes - 1));
        assert!(nodes == 64 || requests.handshakes == u64::from(pairs), "few nodes meet each other");
        for epoch in &outcome.epochs[1..] {
            assert!(epoch.seconds < 1.001 * f64::from(job.steps) * job.step_s && epoch.wait_max_s < 0.01);
        }
    }
}

/// Returns a job of eight groups of eight nodes, each of which holds all.
fn grouped(fault: ClusterFault) -> ClusterJob {
    ClusterJob {
        group_max: 8,
        kept: 8.8,
        epochs: 4,
        ..job(64, fault)
    }
}

#[test]
fn nodes_in_groups_read_each_sample_once_and_are_connected_with_few_others() {
    let scarce = ClusterJob {
        kept: 1.1,
        ..grouped(ClusterFault::Healthy)
    };
    for job in [grouped(ClusterFault::Healthy), scarce] {
        let outcome = job.simulate();
        let shares: Vec<f64> = (0..4).map(|epoch| outcome.source_share(job, epoch)).collect();
        assert_eq!(shares, [1.0, 0.0, 0.0, 0.0], "groups that hold {} of all", job.kept / 8.0);
        assert_eq!(outcome.requests.failed, 0);
        for epoch in &outcome.epochs[1..] {
            assert!(epoch.seconds < 1.001 * f64::from(job.steps) * job.step_s && epoch.wait_max_s < 0.01);
        }
        // In both directions: its own group, and the nodes with its place in the others.
        assert!(
            job.kept < 8.0 || outcome.connections_max <= 28,
            "{} connections",
            outcome.connections_max
        );
    }
}

#[test]
fn a_node_of_a_group_that_fails_delays_nobody() {
    let healthy = grouped(ClusterFault::Healthy).simulate();
    for fault in FAULTS {
        let job = grouped(fault);
        let outcome = job.simulate();
        for (epoch, well) in outcome.epochs.iter().zip(&healthy.epochs) {
            assert!(epoch.seconds <= 1.05 * well.seconds, "{fault:?}: {epoch:?}");
        }
        assert!(outcome.tries() <= 1.02, "{fault:?}: {} requests a sample", outcome.tries());
        assert!(outcome.oldest_s <= outcome.oldest_allowed_s(), "{fault:?}: {outcome:?}");
    }
}

#[test]
fn a_node_of_a_hundred_that_fails_delays_nobody_whose_window_is_longer_than_its_patience() {
    let healthy = job(64, ClusterFault::Healthy).simulate();
    for fault in FAULTS {
        let job = job(64, fault);
        let outcome = job.simulate();
        for (epoch, well) in outcome.epochs.iter().zip(&healthy.epochs) {
            assert!(epoch.seconds <= 1.05 * well.seconds, "{fault:?}: {epoch:?}");
            assert!(epoch.step_p99_s <= 1.05 * well.step_p99_s, "{fault:?}: {epoch:?}");
        }
        assert!(outcome.tries() <= 1.02, "{fault:?}: {} requests a sample", outcome.tries());
        assert!(outcome.oldest_s <= outcome.oldest_allowed_s(), "{fault:?}: {outcome:?}");
        // Its share twice at most: once by its substitutes, and once by itself, which keeps nothing or asks nobody.
        let share = outcome.source_share(job, 1);
        assert!(share <= 2.2 / 64.0, "{fault:?}: {share} of the dataset was read again");
        assert!((fault == ClusterFault::Slow) == (share == 0.0), "{fault:?}: {share}");
    }
}

#[test]
fn a_silent_node_is_found_out_within_a_window_of_two_seconds() {
    let short = |fault| ClusterJob {
        window: 4,
        ..job(64, fault)
    };
    let healthy = short(ClusterFault::Healthy).simulate();
    for fault in [ClusterFault::Flapping, ClusterFault::CutOff] {
        let outcome = short(fault).simulate();
        for (epoch, well) in outcome.epochs.iter().zip(&healthy.epochs) {
            assert!(epoch.seconds <= 1.05 * well.seconds, "{fault:?}: {epoch:?}");
        }
    }
}

#[test]
fn nodes_that_are_heard_by_nobody_are_asked_seldom_and_again_once_they_are_well() {
    for fault in [ClusterFault::Flapping, ClusterFault::CutOff] {
        let requests = job(64, fault).simulate().requests;
        assert!(requests.failed > 0 && requests.failed * 20 < requests.wanted, "{requests:?}");
        assert!(requests.probes > 0, "{requests:?}");
        let asked_again = requests.handshakes > u64::from(64_u16 * 63);
        assert_eq!(asked_again, fault == ClusterFault::Flapping, "{requests:?}");
    }
}

#[test]
fn halves_with_different_members_refuse_each_other_and_train_on() {
    let job = job(64, ClusterFault::OldMembers);
    let outcome = job.simulate();
    assert!(outcome.requests.other_members > 1000 && outcome.requests.failed == 0);
    assert!(outcome.tries() <= 1.02, "{} requests a sample", outcome.tries());
    assert!(outcome.epochs.iter().all(|epoch| epoch.seconds < 1.05 * 20.0));
    // Half of all requests go to the other half; what a substitute of the same half has kept is not read again.
    let shares: Vec<f64> = (1..3).map(|epoch| outcome.source_share(job, epoch)).collect();
    assert!(shares[0] < 0.55 && shares[1] < shares[0], "{shares:?}");
}

#[test]
fn a_job_that_starts_again_with_warm_disks_reads_nothing_from_the_source() {
    let job = job(64, ClusterFault::WarmRestart);
    let outcome = job.simulate();
    assert!(outcome.epochs.iter().all(|epoch| epoch.source_bytes == 0));
    assert!(outcome.requests.wanted > 0 && outcome.requests.left_to_source == 0);
}

#[test]
fn a_seed_gives_the_same_outcome_again_and_another_seed_another() {
    let job = job(16, ClusterFault::Flapping);
    assert_eq!(job.simulate(), job.simulate());
    let other = ClusterJob { seed: 2, ..job };
    assert_ne!(job.simulate(), other.simulate());
}

#[test]
fn a_node_that_takes_no_more_connections_closes_the_idlest() {
    let mut network = network::Network::new(job(1100, ClusterFault::Healthy));
    for asker in 1..1100 {
        network.connect(asker, 0);
    }
    assert_eq!(network.connections_max(), CONNECTIONS_MAX as u32);
    assert!(!network.is_connected(1, 0) && network.is_connected(1099, 0));
    let before = network.handshakes;
    network.connect(1, 0);
    assert_eq!(network.handshakes, before + 1);
}
