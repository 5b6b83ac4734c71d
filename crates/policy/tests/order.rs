//! Orders: equal to torch's, and each sample exactly once an epoch.

use forebay_policy::order::{Blocks, Counter, Deal, Epoch, Order, OrderError, Permutation, Rest, sample_key};
use proptest::prelude::*;

/// Orders computed by torch; `vectors/torch_order.py` writes them.
const VECTORS: &str = include_str!("vectors/torch_order.txt");

fn vectors(kind: &str) -> impl Iterator<Item = Vec<u64>> {
    let rows = VECTORS.lines().filter_map(move |line| line.strip_prefix(kind));
    rows.map(|row| row.split_whitespace().map(|word| word.parse().expect("a number")).collect())
}

fn torch(samples: u32, seed: u64) -> Order {
    Order {
        permutation: Permutation::Torch,
        seed,
        deal: Deal::new(samples, 1, 1).expect("a deal"),
    }
}

fn sequential(deal: Deal) -> Epoch {
    Order {
        permutation: Permutation::Sequential,
        seed: 0,
        deal,
    }
    .epoch(0)
}

/// Returns a block order for one rank.
fn blocks(samples: u32, ends: &[u32], at_once: u32) -> Result<Blocks, OrderError> {
    Blocks::new(Deal::new(samples, 1, 1).expect("a deal"), ends.to_vec(), at_once)
}

fn permutation_of(epoch: &Epoch) -> Vec<u32> {
    epoch
        .samples(0..u64::from(epoch.deal().samples()))
        .map(|(_, sample)| sample)
        .collect()
}

/// Returns the samples that no rank uses: the tail that the deal drops.
fn dropped(samples: u32, rest: &Rest) -> u32 {
    samples - rest.used_after(rest.iterations())
}

fn check_permutation(row: &[u64]) {
    let [len, seed, digest, first @ ..] = row else { panic!("{row:?}") };
    let epoch = torch(*len as u32, *seed).epoch(0);
    let ours: Vec<u64> = epoch.samples(0..first.len() as u64).map(|(_, sample)| u64::from(sample)).collect();
    assert_eq!(ours, first, "{len} samples, seed {seed}");
    let sum = epoch.samples(0..*len).fold(0_u64, |sum, (at, sample)| {
        sum.wrapping_add((at + 1).wrapping_mul(u64::from(sample)))
    });
    assert_eq!(sum, *digest, "{len} samples, seed {seed}");
}

/// torch's other algorithm begins at 214,748,364 samples.
const WIDE: u64 = 214_748_364;

#[test]
fn permutations_are_those_of_torch() {
    let rows: Vec<_> = vectors("permutation ").filter(|row| row[0] < WIDE - 1).collect();
    assert!(rows.len() >= 40);
    for row in rows {
        check_permutation(&row);
    }
}

#[test]
#[ignore = "half a minute and 1 GB"]
fn permutations_are_those_of_torch_where_it_changes_its_way() {
    let rows: Vec<_> = vectors("permutation ").filter(|row| row[0] >= WIDE - 1).collect();
    assert!(rows.iter().any(|row| row[0] == WIDE - 1) && rows.iter().any(|row| row[0] == WIDE));
    for row in rows {
        check_permutation(&row);
    }
}

#[test]
fn ranks_get_what_the_distributed_sampler_gives_them() {
    let (mut dealt, mut refused) = (0, 0);
    for row in vectors("sampler ") {
        let [samples, world, rank, seed, epoch, drop, indices @ ..] = row.as_slice() else {
            panic!("{row:?}")
        };
        let deal = Deal::new(*samples as u32, *world as u32, 1)
            .expect("a deal")
            .sampler_drop_last(*drop == 1);
        let Ok(deal) = deal else {
            assert!(indices.is_empty(), "{row:?}");
            refused += 1;
            continue;
        };
        let epoch = Order {
            permutation: Permutation::Torch,
            seed: *seed,
            deal,
        }
        .epoch(*epoch as u32);
        let ours: Vec<u64> = (0..deal.iterations())
            .flat_map(|step| epoch.batch(*rank as u32, step))
            .map(u64::from)
            .collect();
        assert_eq!(ours, indices, "{row:?}");
        dealt += 1;
    }
    assert!(dealt > 100 && refused > 10);
}

#[test]
fn batches_are_those_of_the_loader() {
    let mut partial = 0;
    for row in vectors("batches ") {
        let [samples, world, batch, sampler, loader, lengths @ ..] = row.as_slice() else {
            panic!("{row:?}")
        };
        let deal = Deal::new(*samples as u32, *world as u32, *batch as u32).and_then(|deal| deal.sampler_drop_last(*sampler == 1));
        let Ok(deal) = deal.and_then(|deal| deal.loader_drop_last(*loader == 1)) else {
            assert!(lengths.is_empty(), "{row:?}");
            continue;
        };
        let ours: Vec<u64> = (0..deal.iterations()).map(|step| u64::from(deal.batch_len(step))).collect();
        assert_eq!(ours, lengths, "{row:?}");
        partial += usize::from(lengths.iter().any(|length| length != batch));
    }
    assert!(partial > 4);
}

#[test]
fn the_seed_of_an_epoch_is_the_sum() {
    assert_eq!(torch(1000, 7).epoch(3), torch(1000, 10).epoch(0));
    assert_ne!(torch(1000, 7).epoch(3), torch(1000, 7).epoch(4));
    let last = torch(1000, u64::MAX).epoch(1);
    assert_eq!(last, torch(1000, 0).epoch(0), "a sum beyond 64 bits wraps");
}

#[test]
fn what_cannot_be_is_refused() {
    assert_eq!(Deal::new(0, 1, 1), Err(OrderError::Zero("samples")));
    assert_eq!(Deal::new(1, 0, 1), Err(OrderError::Zero("world")));
    assert_eq!(Deal::new(1, 1, 0), Err(OrderError::Zero("batch")));
    assert_eq!(Deal::new(u32::MAX, 1, 1), Err(OrderError::TooManySamples));
    let deal = Deal::new(10, 4, 3).expect("a deal");
    assert!(deal.loader_drop_last(true).is_ok(), "padded, each rank has three");
    let dropped = deal.sampler_drop_last(true).and_then(|deal| deal.loader_drop_last(true));
    assert_eq!(
        dropped,
        Err(OrderError::NoBatch {
            samples: 10,
            world: 4,
            batch: 3
        })
    );
    assert_eq!(
        dropped.expect_err("refused").to_string(),
        "10 samples give 4 ranks no full batch of 3, and what is not full is dropped"
    );
    assert_eq!(OrderError::Zero("batch").to_string(), "batch must be at least 1");
    assert_eq!(OrderError::TooManySamples.to_string(), "at most 4294967294 samples can be counted");
}

#[test]
fn an_epoch_is_padded_from_its_start() {
    let epoch = sequential(Deal::new(4, 3, 1).expect("a deal"));
    let dealt: Vec<_> = (0..epoch.iterations()).flat_map(|step| epoch.step(step)).collect();
    assert_eq!(dealt, [(0, 0), (1, 1), (2, 2), (0, 3), (1, 0), (2, 1)]);
}

#[test]
fn the_rest_is_padded_from_the_epochs_start_and_says_so() {
    let deal = Deal::new(10, 3, 2).expect("a deal");
    let rest = sequential(deal).rest(6);
    let batches: Vec<Vec<u32>> = (0..3).map(|rank| rest.batch(rank, 0).collect()).collect();
    assert_eq!(batches, [[6, 9], [7, 0], [8, 1]]);
    assert_eq!([0, 1, 2].map(|rank| rest.padding_of(rank, 0)), [0, 1, 1]);
    assert_eq!((rest.iterations(), dropped(10, &rest)), (1, 0));
    assert_eq!([0, 1, 2].map(|steps| rest.used_after(steps)), [6, 10, 10]);
    assert_eq!((rest.batch(0, 1).len(), rest.padding_of(0, 1)), (0, 0));
}

#[test]
fn what_the_rest_drops_was_not_used() {
    let deal = Deal::new(10, 2, 2).and_then(|deal| deal.sampler_drop_last(true));
    let deal = deal.and_then(|deal| deal.loader_drop_last(true)).expect("a deal");
    let epoch = sequential(deal);
    let rest = epoch.clone().rest(3);
    assert_eq!((rest.iterations(), rest.padding_of(1, 0), dropped(10, &rest)), (1, 0, 3));
    assert_eq!(rest.used_after(u32::MAX), 7);
    for used in [7, 10, u64::MAX] {
        let rest = epoch.clone().rest(used);
        assert_eq!((rest.iterations(), rest.batch(1, 0).len(), rest.padding_of(1, 0)), (0, 0, 0));
        assert_eq!(u64::from(rest.used_after(5)), used.min(10));
        assert_eq!(u64::from(dropped(10, &rest)), 10 - used.min(10));
    }
}

#[test]
fn blocks_come_together_and_are_mixed() {
    let ends = [3, 4, 9, 12, 20];
    let order = permutation_of(&blocks(20, &ends, 2).expect("blocks").epoch(7, 0));
    let block_of = |sample: u32| ends.iter().position(|&end| sample < end).expect("within the dataset");
    // torch's permutation of five gives the order of the blocks.
    let drawn = permutation_of(&torch(5, 7).epoch(0));
    let mut rest = order.as_slice();
    for (group, pair) in (0..).zip(drawn.chunks(2)) {
        let together: Vec<u32> = (0..20).filter(|&sample| pair.contains(&(block_of(sample) as u32))).collect();
        let (these, others) = rest.split_at(together.len());
        let mut sorted = these.to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, together, "group {group}");
        rest = others;
    }
    assert!(rest.is_empty());
    assert_eq!(permutation_of(&blocks(1, &[1], 9).expect("a block").epoch(1, 0)), [0]);
}

#[test]
fn an_epoch_of_blocks_is_that_of_the_sum() {
    let blocks = blocks(20, &[3, 4, 9, 12, 20], 2).expect("blocks");
    assert_eq!(blocks.epoch(7, 3), blocks.epoch(10, 0));
    assert_eq!(blocks.epoch(u64::MAX, 3), blocks.epoch(2, 0), "which wraps");
    assert_ne!(blocks.epoch(7, 3), blocks.epoch(7, 4));
}

#[test]
fn blocks_that_do_not_make_up_the_dataset_are_refused() {
    for (ends, index) in [
        (&[3, 3, 5][..], 1),
        (&[0, 5][..], 0),
        (&[4, 2, 5][..], 1),
        (&[3, 4][..], 2),
        (&[3, 6][..], 2),
        (&[][..], 0),
    ] {
        let wrong = OrderError::NotBlocks { index };
        assert_eq!(blocks(5, ends, 2), Err(wrong), "{ends:?}");
        assert_eq!(
            wrong.to_string(),
            format!("blocks must follow each other, none empty, and make up the dataset: they don't at block {index}")
        );
    }
    assert_eq!(blocks(5, &[5], 0), Err(OrderError::Zero("blocks at once")));
}

/// Computed by hand, from the published function of splitmix64.
#[test]
fn keys_are_what_they_always_were() {
    assert_eq!(
        [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (u64::MAX, u32::MAX, u32::MAX)]
            .map(|(seed, epoch, sample)| sample_key(seed, epoch, sample)),
        [
            5_197_578_548_964_807_871,
            11_385_487_063_155_714_807 - (1 << 63),
            1_634_042_161_233_752_293,
            15_916_886_550_466_581_944 - (1 << 63),
            5_066_756_352_113_716_771,
        ]
    );
}

#[test]
fn counted_orders_spread_evenly() {
    // The first sample, and the distance to its successor, over many seeds: chi-squared with 63 degrees of freedom
    // stays below its 99.99th percentile (113).
    let (bins, seeds) = (64, 64_000);
    let (mut lands, mut follows) = (vec![0_u32; bins], vec![0_u32; bins]);
    for seed in 0..seeds {
        let counter = Counter::new(bins as u32, seed);
        lands[counter.at(0) as usize] += 1;
        follows[(counter.at(1) as usize + bins - counter.at(0) as usize) % bins] += 1;
    }
    let chi = |counts: &[u32], expected: f64| {
        counts
            .iter()
            .map(|&count| (f64::from(count) - expected).powi(2) / expected)
            .sum::<f64>()
    };
    assert!(chi(&lands, seeds as f64 / bins as f64) < 113.0, "{lands:?}");
    assert_eq!(follows[0], 0, "no sample follows itself");
    assert!(chi(&follows[1..], seeds as f64 / (bins - 1) as f64) < 113.0, "{follows:?}");
}

#[test]
fn permutations_of_three_are_equally_likely() {
    let mut seen = std::collections::BTreeMap::new();
    for seed in 0..6000 {
        let counter = Counter::new(3, seed);
        *seen.entry([counter.at(0), counter.at(1), counter.at(2)]).or_insert(0_u32) += 1;
    }
    assert_eq!(seen.len(), 6);
    assert!(seen.values().all(|&count| (850..1150).contains(&count)), "{seen:?}");
}

fn deals() -> impl Strategy<Value = Deal> {
    let shape = (1_u32..200, 1_u32..40, 1_u32..20, any::<bool>(), any::<bool>());
    shape.prop_filter_map("no batch", |(samples, world, batch, sampler, loader)| {
        Deal::new(samples, world, batch)
            .ok()?
            .sampler_drop_last(sampler)
            .ok()?
            .loader_drop_last(loader)
            .ok()
    })
}

fn permutations() -> impl Strategy<Value = Permutation> {
    prop_oneof![Just(Permutation::Sequential), Just(Permutation::Torch), Just(Permutation::Counter)]
}

proptest! {
    #![proptest_config(crate::drawn::cases(300))]

    /// Each sample is used exactly once, except for the padding, which repeats from the start, and for dropped
    /// samples.
    #[test]
    fn each_sample_once_an_epoch(deal in deals(), permutation in permutations(), seed: u64, number in 0_u32..5) {
        let epoch = Order { permutation, seed, deal }.epoch(number);
        let mut uses = vec![0_u64; deal.samples() as usize];
        let mut position = 0;
        for step in 0..epoch.iterations() {
            prop_assert!(deal.batch_len(step) > 0);
            for (rank, sample) in epoch.step(step) {
                let place = deal.place(position).expect("within the epoch");
                prop_assert_eq!((place.rank, place.iteration), (rank, step));
                prop_assert_eq!(deal.position(place), position);
                prop_assert_eq!(epoch.batch(rank, step).nth(place.nth as usize), Some(sample));
                prop_assert_eq!(epoch.sample_at(position), sample);
                uses[sample as usize] += 1;
                position += 1;
            }
        }
        prop_assert_eq!(position, deal.positions());
        prop_assert_eq!(deal.place(position), None);
        prop_assert_eq!(epoch.step(epoch.iterations()).count(), 0);
        let (least, most) = (position / u64::from(deal.samples()), position.div_ceil(u64::from(deal.samples())));
        prop_assert!(uses.iter().all(|&count| count == least || count == most));
    }

    /// Ranks that go on as before get the same samples as without an interruption.
    #[test]
    fn the_rest_is_the_end_of_the_whole(deal in deals(), permutation in permutations(), seed: u64, done: u32) {
        let epoch = Order { permutation, seed, deal }.epoch(0);
        let done = done % (epoch.iterations() + 1);
        let used = epoch.clone().rest(0).used_after(done);
        let rest = epoch.clone().rest(u64::from(used));
        prop_assert_eq!(rest.iterations(), epoch.iterations() - done);
        for rank in 0..deal.world() {
            for step in 0..rest.iterations() {
                prop_assert!(rest.batch(rank, step).eq(epoch.batch(rank, done + step)));
            }
        }
    }

    /// Over any changes of the number of ranks and of the batch size within an epoch, each sample comes once, except
    /// for reported padding and a reported tail.
    #[test]
    fn each_sample_once_however_often_ranks_change(
        samples in 1_u32..200,
        stages in proptest::collection::vec((1_u32..12, 1_u32..12, 0_u32..4), 1..5),
        permutation in permutations(),
        seed: u64,
        drop: bool,
    ) {
        let (mut uses, mut used, mut last) = (vec![0_u32; samples as usize], 0, None);
        for (stage, &(world, batch, steps)) in (1..).zip(&stages) {
            let deal = Deal::new(samples, world, batch).expect("a deal");
            let Ok(deal) = deal.sampler_drop_last(drop).and_then(|deal| deal.loader_drop_last(drop)) else { continue };
            let rest = Order { permutation, seed, deal }.epoch(0).rest(used);
            let steps = if stage == stages.len() { rest.iterations() } else { steps.min(rest.iterations()) };
            for (rank, step) in (0..steps).flat_map(|step| (0..world).map(move |rank| (rank, step))) {
                let fresh = rest.batch(rank, step).len() - rest.padding_of(rank, step) as usize;
                for sample in rest.batch(rank, step).take(fresh) {
                    uses[sample as usize] += 1;
                }
            }
            used = u64::from(rest.used_after(steps));
            last = Some((stage, rest));
        }
        prop_assert!(uses.iter().all(|&count| count <= 1));
        prop_assert_eq!(uses.iter().sum::<u32>(), used as u32);
        if let Some((stage, rest)) = last && stage == stages.len() {
            prop_assert_eq!(uses.iter().filter(|&&count| count == 0).count() as u32, dropped(samples, &rest));
            prop_assert!(drop || dropped(samples, &rest) == 0);
        }
    }

    /// Each sample comes once, for any blocks.
    #[test]
    fn blocks_make_a_permutation(lengths in proptest::collection::vec(1_u32..9, 1..30), at_once in 1_u32..9, seed: u64) {
        let ends: Vec<u32> = lengths.iter().scan(0, |end, length| { *end += length; Some(*end) }).collect();
        let samples = *ends.last().expect("a block");
        let mut order = permutation_of(&blocks(samples, &ends, at_once).expect("blocks").epoch(seed, 0));
        order.sort_unstable();
        prop_assert!(order.into_iter().eq(0..samples));
    }

    /// Samples have different keys, except for one pair in 2^63, which no test meets; each fits a signed number.
    #[test]
    fn keys_differ(seed: u64, one: (u32, u32), other: (u32, u32)) {
        prop_assert_eq!(sample_key(seed, one.0, one.1) == sample_key(seed, other.0, other.1), one == other);
        prop_assert!(i64::try_from(sample_key(seed, one.0, one.1)).is_ok());
    }

    /// A counted order is a bijection, of any size.
    #[test]
    fn counted_orders_are_bijections(len in 1_u32..3000, seed: u64) {
        let counter = Counter::new(len, seed);
        prop_assert!(counter.len() == len && !counter.is_empty());
        let mut seen = vec![false; len as usize];
        for index in 0..len {
            let value = counter.at(index);
            prop_assert!(value < len && !std::mem::replace(&mut seen[value as usize], true));
        }
    }

    /// Also where a table would not fit.
    #[test]
    fn counted_orders_of_any_size_repeat_no_value(len in 1_u32..u32::MAX, one: u32, other: u32, seed: u64) {
        let counter = Counter::new(len, seed);
        let (one, other) = (one % len, other % len);
        prop_assert!(counter.at(one) < len);
        prop_assert_eq!(counter.at(one) == counter.at(other), one == other);
    }
}
