//! Hedged reads: the time at which one is due, and the budgets.

use forebay_policy::schedule::Hedge;
use proptest::prelude::*;

const ASAP: f64 = f64::NEG_INFINITY;

/// Returns a hedge that has seen reads of `bytes` with these latencies, one after the other.
fn after(budget: f64, bytes: u64, latencies_s: impl IntoIterator<Item = f64>) -> Hedge {
    let mut hedge = Hedge::new(budget);
    for latency_s in latencies_s {
        let read = hedge.begun(0.0, bytes, ASAP);
        hedge.ended(latency_s, read);
    }
    hedge
}

#[derive(Clone, Debug)]
enum HedgeMove {
    Begin { bytes: u64, slack_s: f64 },
    End(usize),
    Abandon(usize),
    Wait(f64),
    Ask,
}

fn moves() -> impl Strategy<Value = Vec<HedgeMove>> {
    let one = prop_oneof![
        6 => (prop_oneof![Just(0), 1..4_u64, 1024..2048_u64], -1.0..1.0_f64).prop_map(|(bytes, slack_s)| HedgeMove::Begin { bytes, slack_s }),
        5 => any::<usize>().prop_map(HedgeMove::End),
        1 => any::<usize>().prop_map(HedgeMove::Abandon),
        5 => (0.0..0.2_f64).prop_map(HedgeMove::Wait),
        5 => Just(HedgeMove::Ask),
    ];
    proptest::collection::vec(one, 0..1500)
}

proptest! {
    #![proptest_config(crate::drawn::cases(32))]

    #[test]
    fn never_beyond_the_budget_and_only_what_is_under_way(moves in moves(), budget in prop_oneof![Just(Hedge::BUDGET), 0.0..0.5_f64]) {
        let mut hedge = Hedge::new(budget);
        let (mut now_s, mut begun, mut begun_bytes, mut hedged_bytes) = (0.0, 0_u32, 0_u64, 0_u64);
        let mut under_way = Vec::new();
        let mut hedged = Vec::new();
        for one in moves {
            match one {
                HedgeMove::Begin { bytes, slack_s } => {
                    under_way.push((hedge.begun(now_s, bytes, now_s + slack_s), bytes));
                    begun += 1;
                    begun_bytes += bytes;
                }
                HedgeMove::End(nth) if !under_way.is_empty() => hedge.ended(now_s, under_way.swap_remove(nth % under_way.len()).0),
                HedgeMove::Abandon(nth) if !under_way.is_empty() => hedge.abandoned(under_way.swap_remove(nth % under_way.len()).0),
                HedgeMove::Wait(seconds) => now_s += seconds,
                HedgeMove::Ask => {
                    while let Some(read) = hedge.due(now_s) {
                        let &(_, bytes) = under_way.iter().find(|(id, _)| *id == read).expect("under way");
                        prop_assert!(hedged.last() != Some(&(read, now_s)), "twice at once");
                        hedged.push((read, now_s));
                        hedged_bytes += bytes;
                    }
                    prop_assert!(hedge.next_s().is_none_or(|next_s| next_s > now_s), "asked for nothing");
                }
                _ => {}
            }
            prop_assert!(hedged.len() as f64 <= budget * f64::from(begun));
            prop_assert!(hedged_bytes as f64 <= budget * begun_bytes as f64);
            prop_assert_eq!((hedge.hedged_requests(), hedge.hedged_bytes()), (hedged.len() as u64, hedged_bytes));
        }
    }

    #[test]
    fn the_percentile_is_at_most_nine_per_cent_above_the_true_one(latencies in proptest::collection::vec(1e-5..100.0_f64, 64..400)) {
        let mut sorted = latencies.clone();
        sorted.sort_by(f64::total_cmp);
        let truth_s = sorted[(latencies.len() as f64 * 0.95).ceil() as usize - 1];
        let mut hedge = after(1.0, 1000, latencies);
        hedge.begun(0.0, 1000, ASAP);
        let due_s = hedge.next_s().expect("enough are known");
        prop_assert!((truth_s * (1.0 - 1e-9)..=truth_s * 1.0906).contains(&due_s), "{due_s} for {truth_s}");
    }
}

#[test]
fn a_read_is_due_past_the_percentile_of_its_size_and_when_its_deadline_is_near() {
    let latencies = || std::iter::repeat_n(0.1, 1000);
    let percentile_s = |hedge: &mut Hedge| {
        hedge.begun(0.0, 1000, ASAP);
        hedge.next_s().expect("a thousand are known")
    };
    let late_s = percentile_s(&mut after(1.0, 1000, latencies()));
    assert!((0.1..0.11).contains(&late_s));

    let mut hedge = after(1.0, 1000, latencies());
    let soon = hedge.begun(5.0, 1000, 5.0);
    let later = hedge.begun(5.0, 1000, 9.0);
    assert_eq!(hedge.due(5.0 + late_s - 1e-6), None, "not late yet");
    assert_eq!(hedge.due(5.0 + late_s), Some(soon));
    assert_eq!(hedge.due(5.0 + late_s), None);
    hedge.ended(5.0 + late_s, soon);
    assert_eq!(hedge.next_s(), Some(9.0 - late_s), "late, but there is time left");
    assert_eq!(hedge.due(9.0 - late_s), Some(later));
    hedge.ended(9.1, later);
    assert_eq!((hedge.next_s(), hedge.hedged_requests(), hedge.hedged_bytes()), (None, 2, 2000));
}

#[test]
fn what_is_due_for_longest_is_made_first() {
    let mut hedge = after(1.0, 1000, std::iter::repeat_n(0.1, 1000));
    let second = hedge.begun(0.0, 1000, 3.0);
    let first = hedge.begun(0.5, 1000, 2.0);
    assert_eq!(
        (hedge.due(10.0), hedge.due(10.0), hedge.due(10.0)),
        (Some(first), Some(second), None)
    );
}

#[test]
fn what_does_not_answer_again_is_made_again_and_after_the_third_time_later_and_later() {
    let mut hedge = after(1.0, 1000, std::iter::repeat_n(0.1, 1000));
    let read = hedge.begun(0.0, 1000, ASAP);
    let late_s = hedge.next_s().expect("a thousand are known");
    let mut made_s = 0.0;
    for patience in [1.0, 1.0, 1.0, 2.0, 4.0, 8.0] {
        let due_s = made_s + late_s * patience;
        assert!(hedge.next_s().is_some_and(|next_s| (next_s - due_s).abs() < 1e-9), "{due_s}");
        assert_eq!(hedge.due(due_s - 1e-6), None);
        assert_eq!(hedge.due(due_s + 1e-6), Some(read));
        made_s = due_s + 1e-6;
    }
    hedge.ended(9.0, read);
    assert_eq!((hedge.next_s(), hedge.hedged_requests()), (None, 6));
}

#[test]
fn the_last_of_the_budget_is_for_what_is_late_already() {
    // All but one part in 32 of the budget is spent, of 3104 or of 32 requests: half of the last sixteenth is left.
    for (budget, begun, hedged) in [(1.0, 3007, 3007), (0.01, 3103, 31)] {
        let mut hedge = after(budget, 1000, std::iter::repeat_n(0.1, 96));
        let reads: Vec<_> = (0..begun).map(|_| hedge.begun(0.0, 1000, ASAP)).collect();
        let late_s = hedge.next_s().expect("enough are known");
        while hedge.due(late_s).is_some() {}
        assert_eq!(hedge.hedged_requests(), hedged);
        for read in reads {
            hedge.abandoned(read);
        }
        hedge.begun(0.0, 1000, 5.0);
        assert!(hedge.next_s().is_some_and(|next_s| (next_s - (5.0 - late_s / 2.0)).abs() < 1e-6));
    }
}

#[test]
fn sizes_have_percentiles_of_their_own() {
    let mut hedge = after(1.0, 1000, std::iter::repeat_n(0.1, 1000));
    let unknown = hedge.begun(0.0, 1_000_000, ASAP);
    assert_eq!((hedge.next_s(), hedge.due(1e9)), (None, None), "nothing is known of large reads");
    hedge.ended(60.0, unknown);
    for _ in 0..1000 {
        let read = hedge.begun(0.0, 1_000_000, ASAP);
        hedge.ended(60.0, read);
    }
    hedge.begun(0.0, 1_000_000, ASAP);
    assert!(hedge.next_s().is_some_and(|due_s| due_s >= 60.0));
    hedge.begun(0.0, 1000, ASAP);
    assert!(hedge.next_s().is_some_and(|due_s| due_s < 0.11));
}

#[test]
fn a_few_reads_say_nothing() {
    let mut hedge = after(1.0, 1000, std::iter::repeat_n(0.1, 63));
    let read = hedge.begun(0.0, 1000, ASAP);
    assert_eq!(hedge.next_s(), None);
    hedge.ended(0.1, read);
    hedge.begun(0.0, 1000, ASAP);
    assert!(hedge.next_s().is_some());
}

#[test]
fn no_latency_is_too_short_or_too_long() {
    for (latency_s, percentile_s) in [(0.0, 0.0..2e-6), (1e-9, 0.0..2e-6), (1e9, 1e3..f64::INFINITY)] {
        let mut hedge = after(1.0, 1000, std::iter::repeat_n(latency_s, 100));
        hedge.begun(0.0, 1000, ASAP);
        let due_s = hedge.next_s().expect("a hundred are known");
        assert!(percentile_s.contains(&due_s), "{due_s} for {latency_s}");
    }
}

#[test]
fn the_percentile_follows_what_changes() {
    let due_s = |hedge: &mut Hedge| {
        hedge.begun(0.0, 1000, ASAP);
        hedge.next_s().expect("many are known")
    };
    let slow_then_fast = [1.0, 0.001]
        .into_iter()
        .flat_map(|latency_s| std::iter::repeat_n(latency_s, 30_000));
    assert!(due_s(&mut after(1.0, 1000, slow_then_fast)) < 0.002);
    let fast_then_slow = [0.001, 1.0].into_iter().flat_map(|latency_s| std::iter::repeat_n(latency_s, 3_000));
    assert!(due_s(&mut after(1.0, 1000, fast_then_slow)) >= 1.0);

    // When the oldest of them are forgotten, the remaining ones are enough.
    for latencies in (8000..8400).step_by(16) {
        assert!(due_s(&mut after(1.0, 1000, std::iter::repeat_n(0.1, latencies))) < 0.11);
    }

    // A read that began while reads were fast is not late when they have become slow.
    let mut hedge = after(1.0, 1000, std::iter::repeat_n(0.1, 100));
    let read = hedge.begun(0.0, 1000, ASAP);
    for _ in 0..100 {
        let slow = hedge.begun(0.0, 1000, ASAP);
        hedge.ended(1.0, slow);
    }
    assert_eq!(hedge.due(0.5), None);
    assert!(hedge.next_s().is_some_and(|due_s| due_s >= 1.0));
    assert_eq!(hedge.due(1.1), Some(read));
}

#[test]
fn a_spent_budget_is_filled_by_what_is_read() {
    // Two hundred requests allow for two.
    let mut hedge = after(Hedge::BUDGET, 1000, std::iter::repeat_n(0.1, 197));
    let reads = [(); 3].map(|()| hedge.begun(0.0, 1000, ASAP));
    assert_eq!([(); 3].map(|()| hedge.due(1.0)), [Some(reads[0]), Some(reads[1]), None]);
    assert_eq!(hedge.next_s(), None, "nothing is due until more is read");
    for _ in 0..100 {
        assert_eq!(hedge.due(1.0), None);
        let read = hedge.begun(1.0, 1000, ASAP);
        hedge.ended(1.1, read);
    }
    assert_eq!((hedge.due(1.2), hedge.hedged_requests()), (Some(reads[2]), 3));
}

#[test]
fn bytes_are_a_budget_too() {
    let mut hedge = after(Hedge::BUDGET, 512, std::iter::repeat_n(0.1, 100));
    let large = hedge.begun(0.0, 1000, ASAP);
    assert_eq!(
        (hedge.due(1.0), hedge.next_s()),
        (None, None),
        "one request of 101, but twice its share of the bytes"
    );
    for _ in 0..100 {
        let read = hedge.begun(1.0, 512, ASAP);
        hedge.ended(1.1, read);
    }
    assert_eq!((hedge.due(1.2), hedge.hedged_bytes()), (Some(large), 1000));
}

#[test]
fn requests_are_a_budget_too() {
    // Bytes are no limit: a large read is under way. Of 202 requests two may be made again.
    let mut hedge = after(Hedge::BUDGET, 1, std::iter::repeat_n(0.1, 198));
    hedge.begun(0.0, 1 << 30, ASAP);
    let reads = [(); 3].map(|()| hedge.begun(0.0, 1, ASAP));
    assert_eq!([(); 3].map(|()| hedge.due(1.0)), [Some(reads[0]), Some(reads[1]), None]);
    assert_eq!(hedge.next_s(), None, "nothing is due until more is read");
}

#[test]
fn a_budget_of_nothing_hedges_nothing() {
    let mut hedge = after(0.0, 1000, std::iter::repeat_n(0.1, 1000));
    hedge.begun(0.0, 1000, ASAP);
    assert_eq!((hedge.next_s(), hedge.due(100.0)), (None, None));
}

#[test]
fn an_abandoned_read_is_not_made_again_and_its_time_says_nothing() {
    let mut hedge = after(1.0, 1000, std::iter::repeat_n(0.1, 1000));
    for _ in 0..1000 {
        let read = hedge.begun(0.0, 1000, ASAP);
        hedge.abandoned(read);
        hedge.ended(50.0, read);
    }
    assert_eq!(hedge.due(100.0), None);
    hedge.begun(0.0, 1000, ASAP);
    assert!(hedge.next_s().is_some_and(|due_s| due_s < 0.11));
}
