//! Validation of scenarios, and values derived from their fields.

use std::fmt::Display;

use forebay_policy::ids::{Cluster, Rank};
use forebay_policy::order::{self, Deal};
use forebay_policy::residency::{PolicyInput, Residency};
use forebay_policy::schedule::{NodeModel, ScheduleName, Scheduler};

use crate::scenario::{Decoders, Preprocessing, Scenario, ScenarioError, Sizes};

/// Epochs of the training that NoPFS counts uses over: the Lobster paper's.
const TRAINING_EPOCHS: u32 = 50;

type CheckResult = Result<(), ScenarioError>;

fn refuse(key: &'static str, value: impl Display, allowed: impl Into<String>) -> ScenarioError {
    ScenarioError {
        key,
        value: value.to_string(),
        allowed: allowed.into(),
    }
}

/// Refuses zero.
fn some(key: &'static str, value: u64) -> CheckResult {
    if value == 0 { Err(refuse(key, value, "1 or more")) } else { Ok(()) }
}

/// Refuses a rate that is not above zero; it may be infinite, for no limit.
fn rate(key: &'static str, value: f64) -> CheckResult {
    if value > 0.0 {
        Ok(())
    } else {
        Err(refuse(key, value, "a number above 0"))
    }
}

/// Refuses a time, or another number, that is negative or not finite.
fn finite(key: &'static str, value: f64) -> CheckResult {
    if value.is_finite() && value >= 0.0 {
        Ok(())
    } else {
        Err(refuse(key, value, "a number of 0 or more"))
    }
}

fn share(key: &'static str, value: f64) -> CheckResult {
    if (0.0..=1.0).contains(&value) {
        Ok(())
    } else {
        Err(refuse(key, value, "a share from 0 to 1"))
    }
}

impl Scenario {
    /// Ranks of all nodes.
    pub fn world(&self) -> u32 {
        u32::from(self.machines.nodes) * self.machines.gpus
    }

    /// The job's shape.
    pub fn cluster(&self) -> Cluster {
        Cluster {
            nodes: self.machines.nodes,
            gpus: self.machines.gpus,
            cache_bytes: self.machines.cache_bytes,
            reserved_bytes: self.machines.reserved_bytes,
        }
    }

    /// Steps ahead that are read for a rank.
    pub(crate) fn window_of(&self, rank: Rank) -> u64 {
        u64::from(if self.loader.window.len() == 1 {
            self.loader.window[0]
        } else {
            self.loader.window[rank as usize]
        })
    }

    /// The widest of all ranks' windows.
    pub(crate) fn widest_window(&self) -> u32 {
        self.loader.window.iter().copied().max().unwrap_or(0)
    }

    pub(crate) fn slowness_of(&self, rank: Rank) -> f64 {
        self.job
            .slow_ranks
            .iter()
            .find(|(slow, _)| *slow == rank)
            .map_or(1.0, |(_, slowness)| *slowness)
    }

    /// Returns the order of all epochs.
    ///
    /// # Errors
    /// If ranks and batches leave no full step.
    pub fn order(&self) -> Result<order::Order, ScenarioError> {
        let deal = Deal::new(self.dataset.samples, self.world(), self.job.batch)
            .and_then(|deal| deal.sampler_drop_last(self.job.drop_last))
            .and_then(|deal| deal.loader_drop_last(self.job.drop_last))
            .map_err(|_| self.batch_too_large())?;
        Ok(order::Order {
            permutation: self.job.order,
            seed: self.job.seed,
            deal,
        })
    }

    /// Builds the policy of the scenario; `order` is [`Self::order`].
    pub fn residency(&self, order: &order::Order) -> Box<dyn Residency> {
        self.loader.policy.build(PolicyInput {
            cluster: self.cluster(),
            ranks_before: 0,
            samples: self.dataset.samples,
            window: self.widest_window(),
            order,
            training_epochs: TRAINING_EPOCHS.max(self.job.epochs),
            epochs_ahead: self.loader.horizon,
        })
    }

    /// Queues of reads of a node: one a rank, or one a worker process.
    pub(crate) fn lanes(&self) -> u32 {
        match self.loader.decoders {
            Decoders::Workers(workers) => self.machines.gpus * workers,
            Decoders::Pool | Decoders::OfRank(_) => self.machines.gpus,
        }
    }

    /// Builds the scheduler of one node. Worker processes need none: each reads what it was given, in order.
    pub(crate) fn scheduler(&self, node: &NodeModel) -> Box<dyn Scheduler> {
        if let Decoders::Workers(_) = self.loader.decoders {
            return ScheduleName::Static.build(self.lanes(), self.lanes(), || node.clone());
        }
        self.loader
            .schedule
            .build(self.machines.loading_threads, self.machines.gpus, || node.clone())
    }

    fn batch_too_large(&self) -> ScenarioError {
        let most = self.dataset.samples / self.world();
        refuse("job.batch", self.job.batch, format!("1 to {most} (dataset.samples / ranks)"))
    }

    /// Validates the scenario.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn check(&self) -> CheckResult {
        self.check_cluster()?;
        self.check_dataset()?;
        self.check_job()?;
        self.check_loader()?;
        self.order().map(|_| ())
    }

    fn check_cluster(&self) -> CheckResult {
        some("cluster.nodes", self.machines.nodes.into())?;
        some("cluster.gpus", self.machines.gpus.into())?;
        if u64::from(self.machines.nodes) * u64::from(self.machines.gpus) > u64::from(u16::MAX) {
            return Err(refuse(
                "cluster.gpus",
                self.machines.gpus,
                format!(
                    "at most {} (65,535 ranks in all)",
                    u32::from(u16::MAX) / u32::from(self.machines.nodes)
                ),
            ));
        }
        if self.machines.reserved_bytes > self.machines.cache_bytes {
            let allowed = format!("at most cluster.cache ({})", self.machines.cache_bytes);
            return Err(refuse("cluster.reserved", self.machines.reserved_bytes, allowed));
        }
        if self.machines.threads < 2 {
            return Err(refuse(
                "cluster.threads",
                self.machines.threads,
                "2 or more: one that loads, one that preprocesses",
            ));
        }
        if self.machines.loading_threads == 0 || self.machines.loading_threads >= self.machines.threads {
            let allowed = format!("1 to {} (one fewer than cluster.threads)", self.machines.threads - 1);
            return Err(refuse("cluster.loading_threads", self.machines.loading_threads, allowed));
        }
        rate("cluster.memory", self.machines.local_bytes_per_s)?;
        rate("cluster.link", self.machines.link.bytes_per_s)?;
        finite("cluster.link_latency", self.machines.link.latency_s)?;
        rate("source.bandwidth", self.source.bytes_per_s)?;
        rate("source.requests", self.source.requests_per_s)?;
        rate("source.stream", self.source.stream_bytes_per_s)?;
        finite("source.latency", self.source.latency.median_s)?;
        finite("source.tail", self.source.latency.sigma)
    }

    fn check_dataset(&self) -> CheckResult {
        let samples = self.dataset.samples;
        some("dataset.samples", samples.into())?;
        if samples == u32::MAX {
            return Err(refuse("dataset.samples", samples, "at most 4,294,967,294"));
        }
        match &self.dataset.sizes {
            Sizes::Equal(bytes) => some("dataset.size", u64::from(*bytes)),
            Sizes::Lognormal { mean, sigma } => {
                some("dataset.size", u64::from(*mean))?;
                finite("dataset.sigma", *sigma)
            }
            Sizes::Listed(listed) if listed.len() != samples as usize => Err(refuse(
                "dataset.listing",
                format!("{} sizes", listed.len()),
                format!("as many as dataset.samples ({samples})"),
            )),
            Sizes::Listed(listed) => match listed.iter().position(|&bytes| bytes == 0) {
                Some(empty) => Err(refuse("dataset.listing", format!("0 bytes for sample {empty}"), "1 byte or more")),
                None => Ok(()),
            },
        }
    }

    fn check_job(&self) -> CheckResult {
        some("job.batch", self.job.batch.into())?;
        if u64::from(self.job.batch) * u64::from(self.world()) > u64::from(self.dataset.samples) {
            return Err(self.batch_too_large());
        }
        rate("job.step", self.job.step_s)?;
        finite("job.step", self.job.step_s)?;
        some("job.epochs", self.job.epochs.into())?;
        for &(rank, slowness) in &self.job.slow_ranks {
            if rank >= self.world() {
                return Err(refuse("job.slow_ranks", rank, format!("a rank from 0 to {}", self.world() - 1)));
            }
            if !slowness.is_finite() || slowness < 1.0 {
                return Err(refuse("job.slow_ranks", slowness, "a factor of 1 or more"));
            }
        }
        finite("preprocessing.seconds", self.preprocessing.seconds_a_sample)?;
        some("preprocessing.saturates_at", self.preprocessing.saturates_at.into())?;
        share("preprocessing.decline", self.preprocessing.decline)
    }

    fn check_loader(&self) -> CheckResult {
        if self.loader.window.len() != 1 && self.loader.window.len() != self.world() as usize {
            let allowed = format!("one number, or one for each of {} ranks", self.world());
            return Err(refuse("loader.window", format!("{} numbers", self.loader.window.len()), allowed));
        }
        for &window in &self.loader.window {
            some("loader.window", window.into())?;
        }
        some("loader.horizon", self.loader.horizon.into())?;
        some("loader.prepared", self.loader.prepared.into())?;
        match self.loader.decoders {
            Decoders::Pool => {}
            Decoders::OfRank(threads) => some("loader.decoders", threads.into())?,
            Decoders::Workers(workers) => some("loader.workers", workers.into())?,
        }
        share("loader.hedge", self.loader.hedge_budget)?;
        some("cluster.cache", self.machines.cache_bytes)
    }

    /// Returns the error of a job that never ends, since nothing more can be read into the cache.
    pub(crate) fn stuck(&self, largest: u32) -> ScenarioError {
        let step_bytes = u64::from(self.job.batch) * u64::from(self.machines.gpus) * u64::from(largest);
        let allowed = format!("room for a node's samples of one step ({step_bytes} bytes would do), and what the policy keeps besides");
        refuse("cluster.cache", self.machines.cache_bytes, allowed)
    }
}

impl Preprocessing {
    /// Returns the factor by which a sample takes longer on one of `threads` than alone: their number over the
    /// throughput that they reach together, in threads.
    pub fn slowdown(&self, threads: u32) -> f64 {
        let most = f64::from(self.saturates_at);
        let beyond = f64::from(threads.saturating_sub(self.saturates_at));
        // Throughput never falls below that of one thread, however many compete for the memory.
        let reached = (most * (1.0 - self.decline * beyond)).max(1.0);
        if threads <= self.saturates_at {
            1.0
        } else {
            f64::from(threads) / reached
        }
    }
}
