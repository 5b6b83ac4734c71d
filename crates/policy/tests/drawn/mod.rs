//! Cases of property tests.

use proptest::test_runner::{Config, RngSeed};

/// So many cases, the same ones in each run: what passes once, passes always.
pub(crate) fn cases(cases: u32) -> Config {
    Config {
        rng_seed: RngSeed::Fixed(0),
        failure_persistence: None,
        ..Config::with_cases(cases)
    }
}
