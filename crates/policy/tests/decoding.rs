//! Decoding threads of a node: who gets them, and how many decode at all.

use forebay_policy::schedule::lobster::TAU;
use forebay_policy::schedule::{DecodingThreads, ForebaySchedule, LobsterSchedule, Scheduler, StepLoad};
use proptest::collection::vec;
use proptest::prelude::*;

use super::schedule::{node, step};

#[test]
fn a_rank_with_costly_decoding_gets_threads_and_gives_them_back() {
    let mut scheduler = ForebaySchedule::new(8, 4, TAU);
    scheduler.set_own_decoding(&[3; 4]);
    let mut decoding = |decode_s: [f64; 4]| {
        scheduler.assign(&StepLoad {
            decode_s: decode_s.to_vec(),
            ..step(1.0, &[0; 4])
        });
        scheduler.decoding().to_vec()
    };
    assert_eq!(decoding([0.0; 4]), [3; 4], "nothing was measured");
    assert_eq!(decoding([4.0, 1.0, 1.0, 1.0]), [6, 2, 2, 2]);
    assert_eq!(decoding([4.0, 1.0, 1.0, 1.1]), [6, 2, 2, 2]);
    assert_eq!(decoding([1.0, 1.0, 4.0, 1.0]), [2, 2, 6, 2]);
    assert_eq!(decoding([1.0; 4]), [3; 4]);
    assert_eq!(decoding([4.0, 1.0, 1.0, 1.0]), [6, 2, 2, 2]);
    assert_eq!(
        decoding([0.14, 0.01, 0.01, 0.01]),
        [3; 4],
        "too short to matter to a step of a second"
    );
}

#[test]
fn fewer_threads_decode_where_more_gain_nothing() {
    let model = node(12, 2, 64, 4, 1000.0);
    let mut scheduler = ForebaySchedule::new(8, 2, TAU);
    scheduler.set_own_decoding(&[6; 2]);
    scheduler.measured(model.load, model.preprocessing);
    scheduler.assign(&StepLoad {
        decode_s: vec![1.0, 3.0],
        ..step(1.0, &[0; 2])
    });
    assert_eq!(scheduler.decoding(), [1, 3]);
}

#[test]
fn lobster_moves_threads_between_decoding_and_reading() {
    let model = node(7, 2, 64, 6, 8.0);
    let mut lobster = LobsterSchedule::corrected(model);
    lobster.set_own_decoding(&[3; 2]);
    let mut assigned = |source_bytes: u64, decode_s: [f64; 2]| {
        lobster.assign(&StepLoad {
            decode_s: decode_s.to_vec(),
            ..step(1.0, &[source_bytes; 2])
        });
        (lobster.loading_threads(), lobster.decoding().to_vec())
    };
    assert_eq!(assigned(0, [1.0, 1.0]), (6, vec![3, 3]));
    let (loading, decoding) = assigned(20_000, [1.0, 1.0]);
    assert!(
        loading > 6 && loading + decoding.iter().sum::<u32>() == 12,
        "{loading} {decoding:?}"
    );
    assert_eq!(assigned(0, [4.0, 1.5]), (6, vec![4, 2]));
    for source_bytes in [0, 20_000, 1_000_000] {
        assert!(
            assigned(source_bytes, [9.0, 0.1]).1.iter().all(|&threads| threads > 0),
            "none starves"
        );
    }
}

#[test]
fn lobster_lets_reading_threads_decode_where_decoding_is_late_and_reading_is_not() {
    // A thread decodes two samples a second of the sixteen of a step, and reads 1,000 bytes a second.
    let assigned = |mut lobster: LobsterSchedule, source_bytes: u64| {
        lobster.set_own_decoding(&[3; 2]);
        lobster.assign(&StepLoad {
            decode_s: vec![4.0; 2],
            ..step(1.0, &[source_bytes; 2])
        });
        (lobster.loading_threads(), lobster.decoding().iter().sum::<u32>())
    };
    let model = || node(7, 2, 64, 12, 2.0);
    assert_eq!(
        assigned(LobsterSchedule::corrected(model()), 0),
        (2, 10),
        "five of each rank are in time; nine would leave one with four"
    );
    assert_eq!(assigned(LobsterSchedule::corrected(model()), 4000), (6, 6), "both are late");
    assert_eq!(
        assigned(LobsterSchedule::as_written(model()), 0),
        (6, 6),
        "the text moves threads to reading only"
    );
}

#[test]
fn lobster_knows_beside_how_many_threads_a_rank_measured_its_decoding() {
    // Four threads have the peak: beside twelve each takes three times as long.
    let mut lobster = LobsterSchedule::corrected(node(7, 2, 64, 4, 2.0));
    lobster.set_own_decoding(&[3; 2]);
    let mut decoding = |decode_threads: [u32; 2]| {
        lobster.assign(&StepLoad {
            decode_s: vec![1.8; 2],
            decode_threads: decode_threads.to_vec(),
            ..step(1.0, &[0; 2])
        });
        lobster.decoding().to_vec()
    };
    assert_eq!(decoding([4, 4]), [2, 2]);
    assert_eq!(decoding([4, 12]), [3, 1]);
}

#[test]
fn lobster_moves_no_decoding_threads_for_noise() {
    let model = node(7, 2, 64, 12, 2.0);
    let mut lobster = LobsterSchedule::corrected(model);
    lobster.set_own_decoding(&[3; 2]);
    let mut decoding = |seconds: f64| {
        lobster.assign(&StepLoad {
            decode_s: vec![seconds; 2],
            ..step(1.0, &[0; 2])
        });
        lobster.decoding().iter().sum::<u32>()
    };
    assert_eq!(decoding(2.9), 6);
    assert_eq!(decoding(3.1), 8, "four each are in time");
    assert_eq!(decoding(3.05), 8);
    assert_eq!(decoding(4.3), 10);
    assert_eq!(decoding(3.95), 10, "eight would be in time, but hardly");
    assert_eq!(decoding(1.0), 6);
}

proptest! {
    #[test]
    fn the_longest_decoding_is_as_short_as_any_division_makes_it(
        work_s in vec(0.1..10.0_f64, 1..4),
        threads in 1_u32..9,
    ) {
        let ranks = work_s.len() as u32;
        let mut decoding = DecodingThreads::new(ranks, 0.0);
        decoding.divide(threads, &work_s);
        let longest = |given: &[u32]| given.iter().zip(&work_s).map(|(&n, s)| s / f64::from(n)).fold(0.0, f64::max);
        prop_assert_eq!(decoding.given().iter().sum::<u32>(), threads.max(ranks));
        let spare = threads.saturating_sub(ranks);
        for first in 0..=spare {
            for second in 0..=spare - first {
                let more = [first, second, spare - first - second];
                if more[ranks as usize..].iter().any(|&threads| threads > 0) {
                    continue;
                }
                let other: Vec<u32> = more.iter().take(ranks as usize).map(|threads| 1 + threads).collect();
                prop_assert!(longest(decoding.given()) <= longest(&other) + 1e-9);
            }
        }
    }
}
