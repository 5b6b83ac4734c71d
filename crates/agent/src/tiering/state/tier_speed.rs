//! Tiers that turn out slower than the source (F12): the agent stops using them, and tries them again later.

use std::{sync::Arc, thread};

use forebay_policy::{
    TierIndex, fill_first,
    speed::{SpeedSample, Verdict},
};

use crate::{
    host::{
        clock::boot_ms,
        log::{self, Log},
    },
    tiering::{
        limits::{SAMPLED_BYTES_MAX, TIER_FAULTS_MAX},
        state::tier_set::TierSet,
    },
};

/// Report of the thread that reads sampled copies of a slow tier again.
#[derive(Debug)]
pub(crate) struct SpeedRetry {
    pub(crate) tier: usize,
    /// Times of the samples.
    pub(crate) samples: Vec<SpeedSample>,
}

impl TierSet {
    /// Returns true if the speed of a tier is to be measured with its next copy, of `size` bytes.
    pub(crate) fn is_sample_due(&mut self, tier: usize, size: u64) -> bool {
        let Some(state) = self.get_mut(tier) else { return false };
        // Memory is never slow.
        !state.tier.is_memory() && size <= SAMPLED_BYTES_MAX && state.speed.is_due(boot_ms())
    }

    /// Takes the speed that was measured with a copy, and stops the use of the tier if it is slower than the source.
    pub(crate) fn take_sample(&mut self, tier: usize, sample: Option<SpeedSample>) {
        let Some(state) = self.get_mut(tier) else { return };
        let Some(sample) = sample else { return };
        if let Verdict::SetAside { tier_us, source_us } = state.speed.take(sample, boot_ms()) {
            let why = format!("slower than the source ({} ms against {} ms)", tier_us / 1000, source_us / 1000);
            self.set_aside(tier, &why);
        }
    }

    fn set_aside(&mut self, tier: usize, why: &str) {
        let Some(state) = self.get_mut(tier).filter(|state| state.off.is_none()) else {
            return;
        };
        state.set_aside += 1;
        state.off = Some(why.to_owned());
        log::fallback(&format!("tier {tier} is set aside: {why}"));
        self.control().set_tier_off(tier, true);
        self.step(fill_first::Event::Off(TierIndex(tier)));
        self.publish_room();
    }

    /// Reads the sampled copies of slow tiers again when their retry is due, each tier in a thread of its own.
    pub(crate) fn retry_slow_tiers(&mut self, deliver: impl Fn(SpeedRetry) + Clone + Send + 'static) {
        for (number, state) in self.iter_mut().enumerate() {
            let samples = state.speed.retry(boot_ms());
            if samples.is_empty() {
                continue;
            }
            let (tier, deliver) = (Arc::clone(&state.tier), deliver.clone());
            let read_again = move || {
                let samples = samples
                    .iter()
                    .filter_map(|sample| forebay_store::read_again(&tier, sample).ok())
                    .collect();
                deliver(SpeedRetry { tier: number, samples });
            };
            // If no thread can be started, the next retry tries again.
            let _ = thread::Builder::new().name("retry".into()).spawn(read_again);
        }
    }

    /// Uses a tier again if the retry was fast.
    pub(crate) fn finish_retry(&mut self, retry: &SpeedRetry) {
        let tier = retry.tier;
        let Some(state) = self.get_mut(tier) else { return };
        if state.speed.retried(&retry.samples) != Verdict::TakeBack || state.faults >= TIER_FAULTS_MAX {
            return;
        }
        state.off = None;
        Log.line(&format!("tier {tier} is fast again"));
        self.control().set_tier_off(tier, false);
        self.step(fill_first::Event::On(TierIndex(tier)));
        self.publish_room();
    }
}
