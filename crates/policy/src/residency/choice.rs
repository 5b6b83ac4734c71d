//! Residency policies by name, and their construction.

use super::nopfs::Uses;
use super::{Belady, FirstKept, Forebay, Lobster, Lru, Nopfs, Residency};
use crate::ids::{Cluster, Iteration, Rank};
use crate::names::named;
use crate::order::Order;

named! {
    /// A residency policy by its name in plan files, in the arguments of the data loader, and on the loader agent's
    /// socket.
    "policy" pub enum PolicyName {
        /// One owner for each sample, and replicas in the remaining room.
        Forebay = "forebay",
        /// Forebay's policy with residents that rotate to the node that uses them next.
        ForebayRotating = "forebay_rotating",
        /// Furthest next use first, with knowledge of all uses.
        Belady = "belady",
        /// Lobster with its errors corrected.
        Lobster = "lobster",
        /// Lobster with the text's errors.
        LobsterAsWritten = "lobster_as_written",
        /// NoPFS.
        Nopfs = "nopfs",
        /// MinIO: the samples that came first stay.
        Pinned = "pinned",
        /// Top tier first, no eviction.
        FillFirst = "fill_first",
        /// Least recently used.
        Lru = "lru",
        /// No cache: a window only, like the PyTorch loader.
        None = "none",
    }
}

/// Job and machine for which a policy is built.
#[derive(Clone, Copy, Debug)]
pub struct PolicyInput<'a> {
    /// Shape of the job, or of the node that the policy decides for alone.
    pub cluster: Cluster,
    /// Ranks of the job before the cluster's first: 0 if the cluster is the whole job.
    pub ranks_before: Rank,
    /// Samples of the dataset.
    pub samples: u32,
    /// Iterations that may be fetched ahead.
    pub window: Iteration,
    /// Order of all epochs.
    pub order: &'a Order,
    /// Epochs over which NoPFS counts uses.
    pub training_epochs: u32,
    /// Epochs after the current one that `belady` looks ahead.
    pub epochs_ahead: u32,
}

impl PolicyName {
    /// Returns true if the policy needs the order of later epochs on a single node. (`forebay` does so only on
    /// several nodes.)
    pub const fn looks_ahead(self) -> bool {
        matches!(self, Self::Nopfs | Self::Lobster | Self::LobsterAsWritten | Self::Belady)
    }

    /// Returns true if only memory bounds the policy's prefetch, not a window.
    pub const fn is_unbounded(self) -> bool {
        matches!(self, Self::LobsterAsWritten)
    }

    /// Returns true if the policy differs from all others on a single node, so that the data loader offers it.
    pub const fn is_for_loader(self) -> bool {
        !matches!(self, Self::ForebayRotating)
    }

    /// Builds the policy, with empty memories.
    pub fn build(self, input: PolicyInput<'_>) -> Box<dyn Residency> {
        let PolicyInput {
            cluster,
            samples,
            window,
            ranks_before,
            ..
        } = input;
        let is_one_node = cluster.nodes == 1;
        match self {
            Self::None => Box::new(FirstKept::nothing(cluster, samples, window)),
            Self::FillFirst => Box::new(FirstKept::fill_first(cluster, samples, window)),
            Self::Lru => Box::new(Lru::new(cluster, samples, window)),
            Self::Pinned => Box::new(FirstKept::pinned(cluster, samples, window)),
            Self::Nopfs => {
                let epochs = (0..input.training_epochs).map(|epoch| input.order.epoch(epoch));
                let uses = Uses::count_after(cluster, ranks_before, samples, epochs);
                Box::new(Nopfs::new(cluster, samples, window, uses))
            }
            Self::LobsterAsWritten if is_one_node => Box::new(Lobster::as_written(cluster, samples).of_one_node(ranks_before)),
            Self::LobsterAsWritten => Box::new(Lobster::as_written(cluster, samples)),
            Self::Lobster if is_one_node => Box::new(Lobster::corrected(cluster, samples, window).of_one_node(ranks_before)),
            Self::Lobster => Box::new(Lobster::corrected(cluster, samples, window)),
            Self::Belady => Box::new(Belady::looking(cluster, samples, window, input.epochs_ahead).after(ranks_before)),
            Self::Forebay => Box::new(Forebay::new(cluster, samples, window)),
            Self::ForebayRotating => Box::new(Forebay::rotating(cluster, samples, window)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::{Deal, Permutation};
    use crate::residency::future::EPOCHS_AHEAD;

    #[test]
    fn each_name_builds_its_policy() {
        let cluster = Cluster {
            nodes: 1,
            gpus: 2,
            cache_bytes: 1 << 20,
            reserved_bytes: 0,
        };
        let order = Order {
            permutation: Permutation::Torch,
            seed: 0,
            deal: Deal::new(100, 2, 5).expect("a deal"),
        };
        for name in PolicyName::ALL {
            let policy = name.build(PolicyInput {
                cluster,
                ranks_before: 0,
                samples: 100,
                window: 2,
                order: &order,
                training_epochs: 2,
                epochs_ahead: EPOCHS_AHEAD,
            });
            assert_eq!(policy.name(), name.name());
            assert_eq!(name.name().parse(), Ok(name));
            assert_eq!(policy.window().is_none(), name.is_unbounded(), "{}", name.name());
            // `forebay` looks one epoch ahead only if there are other nodes or replicas.
            assert!(name.looks_ahead() || policy.horizon() <= 2, "{}", name.name());
        }
        let why = "best".parse::<PolicyName>().expect_err("no such policy").to_string();
        assert!(
            why.starts_with("unknown policy 'best'; use one of forebay, forebay_rotating, belady"),
            "{why}"
        );
    }
}
