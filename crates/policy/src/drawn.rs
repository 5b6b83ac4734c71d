//! Cases of property tests.

use proptest::test_runner::{Config, RngSeed};

/// Returns the configuration for `cases` cases, the same in each run: a test that passes once passes always.
pub(crate) fn cases(cases: u32) -> Config {
    Config {
        rng_seed: RngSeed::Fixed(0),
        failure_persistence: None,
        ..Config::with_cases(cases)
    }
}
