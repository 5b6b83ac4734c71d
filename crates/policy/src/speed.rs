//! Whether a tier serves faster than the source (fault F12): one that does not is set aside, for placement and for reads.
//!
//! What is compared is the same bytes of the same file, read once from its copy and once from the source, neither from a cache. A tier that
//! answers as local disks do is not compared at all: the source is asked a second time only where there is a suspicion. One slow answer
//! shows nothing, for disks have such moments; nearly all of several that lie a second apart do.

use std::collections::VecDeque;

/// The same bytes, read from a copy and from its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The copy.
    pub copy: u64,
    /// How much was read.
    pub bytes: u64,
    /// Opening the copy and reading it, in microseconds.
    pub tier_us: u64,
    /// Reading the source, in microseconds; `None` where the tier was fast enough not to ask.
    pub source_us: Option<u64>,
}

/// How long a local disk may take for the first byte, in microseconds: even a busy one with a moving arm takes less.
const FIRST_BYTE_US: u64 = 30_000;
/// Bytes a microsecond that it reads at the least.
const BYTES_PER_US: u64 = 20;
/// A tier is slower when it takes so many times as long as the source.
const TIMES: u64 = 2;
/// Of the last so many samples
const SAMPLES: usize = 8;
/// so many have to be slower.
const SLOWER_MIN: usize = 7;
/// Pause between samples of a tier that is fast, in milliseconds,
const CALM_MS: u64 = 30_000;
/// and after one that was slow.
const ALERT_MS: u64 = 1_000;
/// A tier that was set aside is tried again after this time, and each time after twice as long,
const RETRY_FIRST_MS: u64 = 10_000;
/// up to this.
const RETRY_MAX_MS: u64 = 600_000;

impl Sample {
    /// Whether it is worth a read of the source to know more.
    pub const fn is_suspicious(bytes: u64, tier_us: u64) -> bool {
        tier_us > FIRST_BYTE_US + bytes / BYTES_PER_US
    }

    fn is_slower(&self) -> bool {
        Self::is_suspicious(self.bytes, self.tier_us) && self.source_us.is_some_and(|us| us.saturating_mul(TIMES) <= self.tier_us)
    }
}

/// What a sample changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Same,
    /// The tier is to be set aside: what its samples took in all, in microseconds.
    SetAside {
        /// From the tier.
        tier_us: u64,
        /// From the source.
        source_us: u64,
    },
    /// It may be used again.
    TakeBack,
}

/// What is known of one tier. Times are milliseconds on any clock that does not run backwards.
#[derive(Clone, Debug, Default)]
pub struct Speed {
    samples: VecDeque<Sample>,
    next_ms: u64,
    /// When it is tried again, and the pause before that; `None`: it is in use.
    aside: Option<(u64, u64)>,
    /// The pause when it is set aside again; 0: it never was.
    next_pause_ms: u64,
}

impl Speed {
    /// Whether the next copy is to be measured; `true` begins a pause.
    pub fn is_due(&mut self, now_ms: u64) -> bool {
        let due = self.aside.is_none() && now_ms >= self.next_ms;
        if due {
            self.next_ms = now_ms + CALM_MS;
        }
        due
    }

    /// Takes a sample of a tier in use.
    pub fn take(&mut self, sample: Sample, now_ms: u64) -> Verdict {
        if self.aside.is_some() {
            return Verdict::Same;
        }
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        if sample.is_slower() {
            self.next_ms = now_ms + ALERT_MS;
        }
        if self.samples.len() < SAMPLES || self.samples.iter().filter(|sample| sample.is_slower()).count() < SLOWER_MIN {
            return Verdict::Same;
        }
        let pause_ms = self.next_pause_ms.max(RETRY_FIRST_MS);
        self.aside = Some((now_ms + pause_ms, pause_ms));
        let compared = self.samples.iter().filter(|sample| sample.source_us.is_some());
        let (tier_us, source_us) = compared.fold((0, 0), |(tier, source), sample| {
            (tier + sample.tier_us, source + sample.source_us.unwrap_or(0))
        });
        Verdict::SetAside { tier_us, source_us }
    }

    /// Whether the tier is set aside.
    pub fn is_aside(&self) -> bool {
        self.aside.is_some()
    }

    /// The samples that are to be read again from the tier, when it is time to try one that was set aside; else none.
    pub fn retry(&mut self, now_ms: u64) -> Vec<Sample> {
        let Some((at, pause_ms)) = self.aside.filter(|(at, _)| now_ms >= *at) else {
            return Vec::new();
        };
        let pause_ms = (pause_ms * 2).min(RETRY_MAX_MS);
        self.aside = Some((at.max(now_ms) + pause_ms, pause_ms));
        self.samples.iter().copied().collect()
    }

    /// Takes what a retry has measured: the tier's times are new, the source's those of before. Copies that are gone are left out; where
    /// too few are left to tell, the tier is taken back, and measured anew.
    pub fn retried(&mut self, samples: &[Sample]) -> Verdict {
        let Some((_, pause_ms)) = self.aside else { return Verdict::Same };
        let slower = samples.iter().filter(|sample| sample.is_slower()).count();
        // What was slow has to show more than that it is not always slow.
        if samples.len() >= SAMPLES / 2 && slower > SAMPLES - SLOWER_MIN {
            return Verdict::Same;
        }
        self.aside = None;
        self.next_pause_ms = pause_ms;
        self.samples.clear();
        Verdict::TakeBack
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(tier_us: u64, source_us: u64) -> Sample {
        Sample {
            copy: 1,
            bytes: 20_000,
            tier_us,
            source_us: Sample::is_suspicious(20_000, tier_us).then_some(source_us),
        }
    }

    const FAST: u64 = 200;
    const SLOW: u64 = 100_000;

    /// Takes a sample as often as one is due, `times` times.
    fn measure(speed: &mut Speed, now_ms: &mut u64, times: usize, sample: Sample) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        while verdicts.len() < times {
            if speed.is_due(*now_ms) {
                verdicts.push(speed.take(sample, *now_ms));
            }
            *now_ms += 100;
        }
        verdicts
    }

    #[test]
    fn f12_a_tier_is_set_aside_after_several_slow_samples_and_not_before() {
        let (mut speed, mut now_ms) = (Speed::default(), 0);
        let verdicts = measure(&mut speed, &mut now_ms, SAMPLES, sample(SLOW, 1_000));
        let aside = Verdict::SetAside {
            tier_us: 8 * SLOW,
            source_us: 8_000,
        };
        assert_eq!(verdicts.last(), Some(&aside));
        assert!(verdicts.iter().rev().skip(1).all(|verdict| *verdict == Verdict::Same));
        assert!(speed.is_aside() && !speed.is_due(u64::MAX));
        assert!(now_ms >= 7 * ALERT_MS, "not by one bad moment");
    }

    #[test]
    fn f12_a_slow_disk_before_a_slower_source_stays_and_so_does_a_fast_one_before_a_faster_source() {
        for kept in [sample(SLOW, SLOW), sample(SLOW, SLOW * 2 / 3), sample(FAST, 1)] {
            let (mut speed, mut now_ms) = (Speed::default(), 0);
            let verdicts = measure(&mut speed, &mut now_ms, 50, kept);
            assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Same), "{kept:?}");
        }
    }

    #[test]
    fn f12_moments_of_slowness_are_forgiven() {
        let (mut speed, mut now_ms) = (Speed::default(), 0);
        for _ in 0..20 {
            measure(&mut speed, &mut now_ms, 6, sample(SLOW, 1_000));
            measure(&mut speed, &mut now_ms, 2, sample(FAST, 1_000));
        }
        assert!(!speed.is_aside());
    }

    #[test]
    fn f12_it_is_tried_again_and_again_at_longer_intervals_until_it_is_fast() {
        let (mut speed, mut now_ms) = (Speed::default(), 0);
        measure(&mut speed, &mut now_ms, SAMPLES, sample(SLOW, 1_000));
        let mut tries = Vec::new();
        for at in (now_ms..now_ms + 3_600_000).step_by(100) {
            let again = speed.retry(at);
            if !again.is_empty() {
                assert_eq!(speed.retried(&again), Verdict::Same);
                tries.push(at);
            }
        }
        let pauses: Vec<u64> = tries.windows(2).map(|pair| (pair[1] - pair[0]) / 1000).collect();
        assert_eq!(pauses[..7], [20, 40, 80, 160, 320, 600, 600]);
        let fast = [sample(FAST, 1_000); SAMPLES];
        assert_eq!(
            speed.clone().retried(&[sample(SLOW, 1_000); 3]),
            Verdict::TakeBack,
            "too few copies are left to tell"
        );
        assert_eq!(speed.retried(&fast), Verdict::TakeBack);
        assert!(!speed.is_aside() && speed.is_due(now_ms + 3_600_000));
    }

    #[test]
    fn f12_a_tier_that_turns_slow_again_waits_longer() {
        let (mut speed, mut now_ms) = (Speed::default(), 0);
        for pause_ms in [10_000, 20_000, 40_000] {
            measure(&mut speed, &mut now_ms, SAMPLES, sample(SLOW, 1_000));
            assert!(speed.retry(now_ms + pause_ms - 1_000).is_empty());
            assert!(!speed.retry(now_ms + pause_ms).is_empty());
            assert_eq!(speed.retried(&[sample(FAST, 1_000); SAMPLES]), Verdict::TakeBack);
            now_ms += pause_ms;
        }
    }
}
