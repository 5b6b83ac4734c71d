//! Models of a machine: lines through measurements, preprocessing by threads, reading by threads.

use forebay_policy::models::{FitError, LoadModel, PiecewiseLinear, Portfolio, Preprocessing, ThroughputCurve, extrapolated};
use proptest::prelude::*;

fn broken(x: f64, knot: f64, y: f64, before: f64, after: f64) -> f64 {
    y + if x < knot { before } else { after } * (x - knot)
}

fn squared_error(points: &[(f64, f64)], line: impl Fn(f64) -> f64) -> f64 {
    points.iter().map(|&(x, y)| (y - line(x)).powi(2)).sum()
}

proptest! {
    #![proptest_config(crate::drawn::cases(300))]

    #[test]
    fn exact_data_gives_back_the_lines_and_their_break(
        last in 4_u32..40, share in 0.0_f64..1.0, y in -50.0_f64..50.0, before in -9.0_f64..9.0, turn in 0.1_f64..9.0, down in any::<bool>(),
    ) {
        let knot = 2.0 + share * f64::from(last - 3);
        let after = before + if down { -turn } else { turn };
        let points: Vec<_> = (1..=last).map(|x| (f64::from(x), broken(f64::from(x), knot, y, before, after))).collect();
        let line = PiecewiseLinear::fit(&points).expect("enough points");
        prop_assert!((line.break_at().expect("two slopes") - knot).abs() < 1e-6, "{line:?} for a break at {knot}");
        for x in [-3.0, 1.0, 2.5, knot, f64::from(last) + 7.0] {
            prop_assert!((line.at(x) - broken(x, knot, y, before, after)).abs() < 1e-5, "{line:?} at {x}");
        }
    }

    #[test]
    fn one_line_has_no_break(last in 2_u32..40, y in -50.0_f64..50.0, slope in -9.0_f64..9.0) {
        let points: Vec<_> = (1..=last).map(|x| (f64::from(x), y + slope * f64::from(x))).collect();
        let line = PiecewiseLinear::fit(&points).expect("enough points");
        prop_assert_eq!(line.break_at(), None);
        prop_assert!((line.at(100.0) - y - 100.0 * slope).abs() < 1e-8);
    }

    #[test]
    fn no_other_lines_fit_noisy_data_better(
        noise in proptest::collection::vec(-1.0_f64..1.0, 4..24), repeat in 1_usize..4,
        knot_share in 0.0_f64..1.0, change in proptest::collection::vec(-0.5_f64..0.5, 4),
    ) {
        let points: Vec<_> = noise.iter().enumerate().map(|(i, noise)| {
            let x = (i / repeat) as f64;
            (x, x.min(5.0) + noise)
        }).collect();
        let last = points[points.len() - 1].0;
        prop_assume!(last >= 3.0);
        let line = PiecewiseLinear::fit(&points).expect("enough points");
        let error = squared_error(&points, |x| line.at(x));
        // Any break inside, with lines near those found.
        let knot = 1.0 + knot_share * (last - 2.0);
        let (y, before, after) = (line.at(knot), line.at(knot) - line.at(knot - 1.0), line.at(knot + 1.0) - line.at(knot));
        for scale in [0.0, 1e-3, 0.1, 1.0] {
            let other = squared_error(&points, |x| {
                broken(x, knot + scale * change[0], y + scale * change[1], before + scale * change[2], after + scale * change[3])
            });
            prop_assert!(error <= other + 1e-9, "{error} is more than {other}");
        }
    }

    #[test]
    fn nearest_size_is_chosen(sizes in proptest::collection::vec(0_u64..1000, 1..8), asked in 0_u64..1200) {
        let model = |size: u64| Preprocessing::fit(&[(1, size as f64 + 1.0), (2, size as f64 + 1.0)]).expect("two points");
        let portfolio = Portfolio::new(sizes.iter().map(|&size| (size, model(size)))).expect("not empty");
        let nearest = sizes.iter().copied().min_by_key(|size| (size.abs_diff(asked), *size)).expect("not empty");
        prop_assert_eq!(portfolio.nearest(asked), &model(nearest));
    }
}

#[test]
fn too_few_or_unusable_measurements_are_refused() {
    assert_eq!(PiecewiseLinear::fit(&[]), Err(FitError::TooFew { distinct: 0 }));
    assert_eq!(
        PiecewiseLinear::fit(&[(1.0, 2.0), (1.0, 3.0)]),
        Err(FitError::TooFew { distinct: 1 })
    );
    assert!(matches!(
        PiecewiseLinear::fit(&[(1.0, f64::NAN), (2.0, 3.0)]),
        Err(FitError::Unusable { .. })
    ));
    assert!(matches!(
        PiecewiseLinear::fit(&[(f64::INFINITY, 1.0), (2.0, 3.0)]),
        Err(FitError::Unusable { .. })
    ));
    assert_eq!(Preprocessing::fit(&[(4, 10.0)]), Err(FitError::TooFew { distinct: 1 }));
    assert_eq!(
        Preprocessing::fit(&[(0, 10.0), (2, 1.0)]),
        Err(FitError::Unusable { point: (0.0, 10.0) })
    );
    assert_eq!(
        Preprocessing::fit(&[(1, 10.0), (2, 0.0)]),
        Err(FitError::Unusable { point: (2.0, 0.0) })
    );
    assert_eq!(ThroughputCurve::new(&[]), Err(FitError::TooFew { distinct: 0 }));
    for unusable in [(0, 1.0), (1, 0.0), (1, -1.0), (1, f64::INFINITY), (1, f64::NAN)] {
        assert!(
            matches!(ThroughputCurve::new(&[unusable]), Err(FitError::Unusable { .. })),
            "{unusable:?}"
        );
    }
    assert_eq!(Portfolio::new([]), None);
    assert_eq!(
        FitError::TooFew { distinct: 1 }.to_string(),
        "measured at 1 different values, and a line needs at least 2"
    );
    assert_eq!(
        FitError::Unusable { point: (2.0, 0.0) }.to_string(),
        "measured 0 at 2, which can't be"
    );
}

/// The paper's Figure 6: the throughput peaks at six threads, then is flat.
fn figure_6(threads: u32) -> f64 {
    100.0 * f64::from(threads.min(6))
}

#[test]
fn preprocessing_stops_gaining_where_its_throughput_bends() {
    let measured: Vec<_> = (1..=16).map(|threads| (threads, figure_6(threads))).collect();
    let model = Preprocessing::fit(&measured).expect("16 points");
    assert_eq!(model.threads_enough(), 6);
    for threads in 1..=30 {
        assert!((model.samples_per_s(threads) - figure_6(threads)).abs() < 1e-6);
        assert!((model.seconds_a_sample(threads) * figure_6(threads) - 1.0).abs() < 1e-9);
    }
    assert!(model.samples_per_s(0).abs() < 1e-9 && model.seconds_a_sample(0).is_infinite());

    let worse_past_six: Vec<_> = (1..=16)
        .map(|threads| (threads, figure_6(threads) - 5.0 * f64::from(threads.saturating_sub(6))))
        .collect();
    assert_eq!(Preprocessing::fit(&worse_past_six).expect("16 points").threads_enough(), 6);

    let noisy: Vec<_> = (1..=16)
        .map(|threads| (threads, figure_6(threads) * (1.0 + 0.02 * f64::from(threads * 7 % 5) - 0.04)))
        .collect();
    let enough = Preprocessing::fit(&noisy).expect("16 points").threads_enough();
    assert!((5..=7).contains(&enough), "{enough}");

    let always_rising = Preprocessing::fit(&[(1, 10.0), (2, 20.0), (4, 40.0)]).expect("three points");
    assert_eq!(always_rising.threads_enough(), 4, "no further than was measured");
    let flat = Preprocessing::fit(&[(1, 10.0), (2, 10.0), (4, 10.0)]).expect("three points");
    assert_eq!(flat.threads_enough(), 1);
    // The fourth thread still adds half of what each of the first three does; the fifth adds nothing.
    let bending = Preprocessing::fit(&[(1, 10.0), (2, 20.0), (3, 30.0), (4, 35.0), (5, 35.0), (6, 35.0)]).expect("six points");
    assert_eq!(bending.threads_enough(), 4);
    // Each of the first three adds ten. A tenth of that is enough, a twentieth is not.
    for (gain, enough) in [(0.5, 3), (1.5, 6)] {
        let measured = [1, 2, 3, 4, 5, 6].map(|threads| (threads, 10.0 * f64::from(threads.min(3)) + gain * f64::from(threads.max(3) - 3)));
        assert_eq!(
            Preprocessing::fit(&measured).expect("six points").threads_enough(),
            enough,
            "{gain}"
        );
    }
}

#[test]
fn preprocessing_outside_what_was_measured() {
    let model = Preprocessing::fit(&[(4, 40.0), (8, 60.0)]).expect("two points");
    assert!((model.samples_per_s(1) - 10.0).abs() < 1e-9, "in proportion below");
    assert!((model.samples_per_s(6) - 50.0).abs() < 1e-9);
    assert!((model.samples_per_s(64) - 60.0).abs() < 1e-9, "no more above");
    // A line through these would be below zero at one thread.
    let steep = Preprocessing::fit(&[(1, 1.0), (2, 1.0), (3, 50.0)]).expect("three points");
    assert!((steep.samples_per_s(1) - 1.0).abs() < 1e-9);
}

#[test]
fn the_last_model_of_a_size_counts() {
    let model = |rate: f64| Preprocessing::fit(&[(1, rate), (2, rate)]).expect("two points");
    let portfolio = Portfolio::new([(10, model(1.0)), (20, model(2.0)), (10, model(3.0))]).expect("not empty");
    assert_eq!(portfolio.nearest(10), &model(3.0));
    assert_eq!(portfolio.nearest(15), &model(3.0), "the smaller of two as close");
    assert_eq!(Portfolio::of(model(7.0)).nearest(1 << 40), &model(7.0));
}

#[test]
fn throughput_is_straight_between_measurements_and_never_falls() {
    let throughput = ThroughputCurve::new(&[(4, 90.0), (2, 50.0), (2, 40.0), (8, 80.0), (16, 100.0)]).expect("measured");
    for (threads, expected) in [
        (0.0, 0.0),
        (1.0, 20.0),
        (2.0, 40.0),
        (3.0, 65.0),
        (4.0, 90.0),
        (8.0, 90.0),
        (12.0, 95.0),
        (16.0, 100.0),
        (99.0, 100.0),
    ] {
        let rate = throughput.bytes_per_s(threads);
        assert!((rate - expected).abs() < 1e-9, "{rate} at {threads}");
    }
    assert!((throughput.bytes_per_s_max() - 100.0).abs() < 1e-9);
}

fn linear(rate: f64, threads: u32) -> ThroughputCurve {
    ThroughputCurve::new(&[(threads, rate * f64::from(threads))]).expect("measured")
}

#[test]
fn equation_1_as_written_and_corrected() {
    // 100 bytes a second a thread; local and peer 10 and 2 times that.
    let model = LoadModel {
        origins: [linear(1000.0, 8), linear(200.0, 8), linear(100.0, 4)],
    };
    // One origin: the text multiplies the throughput of all threads by their number once more.
    assert!((model.as_written([0, 0, 800], 4) - 800.0 / (4.0 * 400.0)).abs() < 1e-12);
    assert!((model.shares([0, 0, 800], 4).seconds - 800.0 / 400.0).abs() < 1e-12);
    // The source is at its limit with four threads.
    assert!((model.shares([0, 0, 800], 64).seconds - 2.0).abs() < 1e-12);
    // 400 from peers take as long as 200 from the source: two threads each, at the same time.
    let shares = model.shares([0, 400, 200], 4);
    assert!((shares.seconds - 1.0).abs() < 1e-9, "{shares:?}");
    assert!((shares.threads[1] - 2.0).abs() < 1e-9 && shares.threads[0].abs() < 1e-9);
    // As written: 8/3 and 4/3 threads, one term after the other.
    let (peers, source) = (400.0 / (8.0 / 3.0 * 200.0 * 8.0 / 3.0), 200.0 / (4.0 / 3.0 * 100.0 * 4.0 / 3.0));
    assert!((model.as_written([0, 400, 200], 4) - peers - source).abs() < 1e-12);
    assert!(model.as_written([0, 0, 1], 0).is_infinite());
    assert!(model.as_written([0, 0, 0], 0).abs() < 1e-12 && model.shares([0, 0, 0], 4).seconds.abs() < 1e-12);
    assert!(model.shares([0, 0, 0], 4).thread_seconds([0, 0, 0]).abs() < 1e-12);
}

proptest! {
    #![proptest_config(crate::drawn::cases(300))]

    #[test]
    fn no_other_shares_of_threads_read_sooner(
        bytes in proptest::array::uniform3(0_u64..5000), threads in 1_u32..40,
        rates in proptest::collection::vec((1_u32..32, 1.0_f64..500.0), 9), cut in proptest::array::uniform2(0.0_f64..1.0),
    ) {
        let model = LoadModel { origins: std::array::from_fn(|origin| ThroughputCurve::new(&rates[3 * origin..3 * origin + 3]).expect("measured")) };
        let shares = model.shares(bytes, threads);
        let n = f64::from(threads);
        // They are shares of all threads, each reads its origin's bytes in that time, and no faster than is possible.
        let read: u64 = bytes.iter().sum();
        prop_assert!(read == 0 || (shares.threads.iter().sum::<f64>() - n).abs() < 1e-6 * n);
        prop_assert!((shares.thread_seconds(bytes) - n * shares.seconds).abs() <= 1e-9 * n * shares.seconds);
        for (nth, origin) in model.origins.iter().enumerate() {
            let rate = shares.threads[nth] * shares.thread_bytes_per_s[nth];
            prop_assert!(bytes[nth] == 0 || rate <= origin.bytes_per_s(shares.threads[nth]) * (1.0 + 1e-9));
        }
        // Any other split ends no sooner.
        let (a, b) = (cut[0].min(cut[1]), cut[0].max(cut[1]));
        let other = [a * n, (b - a) * n, (1.0 - b) * n];
        let seconds = |origin: usize| if bytes[origin] == 0 { 0.0 } else { bytes[origin] as f64 / model.origins[origin].bytes_per_s(other[origin]) };
        let longest = (0..3).map(seconds).fold(0.0, f64::max);
        prop_assert!(shares.seconds <= longest * (1.0 + 1e-9), "{shares:?}, and {longest} s with {other:?}");
    }
}

#[test]
fn more_threads_than_were_measured_gain_until_the_most_measured_gain_less() {
    assert_eq!(extrapolated(&[], 8), None);
    assert_eq!(extrapolated(&[(4, 40.0)], 4), None, "measured already");
    assert_eq!(extrapolated(&[(4, 40.0)], 8), Some((8, 80.0)));
    assert_eq!(extrapolated(&[(8, 64.0), (4, 40.0)], 16), Some((16, 128.0)), "a fifth less each");
    assert_eq!(extrapolated(&[(4, 40.0), (8, 48.0)], 16), None, "two fifths less each");
    assert_eq!(
        extrapolated(&[(7, 70.0), (8, 48.0)], 16),
        Some((16, 96.0)),
        "7 threads are too near to tell"
    );
}
