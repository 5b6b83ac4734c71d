//! All tests of the crate, in one program: each program would be optimised and linked by itself.

/// Implements the methods of `Residency` that a test does not look at: they are those of the policy that it watches.
macro_rules! forwarded_to_policy {
    () => {
        fn name(&self) -> &'static str {
            self.policy.name()
        }

        fn horizon(&self) -> u32 {
            self.policy.horizon()
        }

        fn holds(&self, node: forebay_policy::ids::Node, sample: forebay_policy::ids::Sample) -> bool {
            self.policy.holds(node, sample)
        }

        fn held_bytes(&self, node: forebay_policy::ids::Node) -> u64 {
            self.policy.held_bytes(node)
        }

        fn window_bytes(&self, node: forebay_policy::ids::Node) -> u64 {
            self.policy.window_bytes(node)
        }
    };
}

mod caches;
mod concurrency;
mod decoding;
mod drawn;
mod eviction;
mod fill_first;
mod hedge;
mod memory;
mod models;
mod one_of_many;
mod order;
mod ranges;
mod residency;
mod schedule;
mod starving;
