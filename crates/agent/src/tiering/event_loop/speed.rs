//! Tiers that turn out slower than the source (F12): set aside for placement and for reads, and tried again later.

use std::{sync::Arc, thread};

use forebay_policy::{
    TierIndex, fill_first,
    speed::{Sample, Verdict},
};

use crate::host::clock::boot_ms;
use crate::tiering::limits::{SAMPLED_BYTES_MAX, TIER_FAULTS_MAX};

use super::{Clerk, Event};

impl Clerk {
    /// Whether the speed of a tier is to be measured with its next copy, which has `size` bytes.
    pub(super) fn is_sample_due(&mut self, tier: usize, size: u64) -> bool {
        let Some(state) = self.tiers.get_mut(tier) else { return false };
        // Nothing that lies in memory is slow.
        !state.tier.is_memory() && size <= SAMPLED_BYTES_MAX && state.speed.is_due(boot_ms())
    }

    /// Takes what was measured with a copy.
    pub(super) fn sampled(&mut self, tier: usize, sample: Option<Sample>) {
        let Some(state) = self.tiers.get_mut(tier) else { return };
        let Some(sample) = sample else { return };
        if let Verdict::SetAside { tier_us, source_us } = state.speed.take(sample, boot_ms()) {
            self.set_aside(
                tier,
                format!("slower than the source ({} ms against {} ms)", tier_us / 1000, source_us / 1000),
            );
        }
    }

    fn set_aside(&mut self, tier: usize, why: String) {
        let Some(state) = self.tiers.get_mut(tier).filter(|state| state.off.is_none()) else {
            return;
        };
        self.log.line(&format!("tier {tier} is set aside: {why}"));
        state.set_aside += 1;
        state.off = Some(why);
        self.control.set_tier_off(tier, true);
        fill_first::step(&mut self.policy, fill_first::Event::Off { tier: TierIndex(tier) });
        self.publish_room();
    }

    /// Has those read again that were set aside, when it is time.
    pub(super) fn retry_slow_tiers(&mut self) {
        for (number, state) in self.tiers.iter_mut().enumerate() {
            let samples = state.speed.retry(boot_ms());
            if samples.is_empty() {
                continue;
            }
            let (tier, events) = (Arc::clone(&state.tier), self.events.clone());
            let read_again = move || {
                let samples = samples
                    .iter()
                    .filter_map(|sample| forebay_store::read_again(&tier, sample).ok())
                    .collect();
                // The clerk has ended, and with it everything else.
                let _ = events.send(Event::ReadAgain { tier: number, samples });
            };
            // Without a thread it is tried at the next time.
            let _ = thread::Builder::new().name("retry".into()).spawn(read_again);
        }
    }

    /// Takes what a retry has measured.
    pub(super) fn read_again(&mut self, tier: usize, samples: &[Sample]) {
        let Some(state) = self.tiers.get_mut(tier) else { return };
        if state.speed.retried(samples) != Verdict::TakeBack || state.faults >= TIER_FAULTS_MAX {
            return;
        }
        state.off = None;
        self.log.line(&format!("tier {tier} is fast again"));
        self.control.set_tier_off(tier, false);
        fill_first::step(&mut self.policy, fill_first::Event::On { tier: TierIndex(tier) });
        self.publish_room();
    }
}
