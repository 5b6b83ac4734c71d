//! Tier speed (fault F12): a tier that serves slower than the source is set aside, for placement and for reads.
//!
//! A comparison reads the same bytes of the same file once from its copy and once from the source, neither from a
//! cache. A tier that answers as local disks do is not compared: the source is asked a second time only if there is a
//! suspicion. One slow answer shows nothing, for disks have such moments; nearly all of several answers a second
//! apart do.

use std::collections::VecDeque;

/// Times of the same bytes, read from a copy and from its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeedSample {
    /// The copy.
    pub copy: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Opening the copy and reading it, in microseconds.
    pub tier_us: u64,
    /// Reading the source, in microseconds; `None` if the tier was fast enough not to ask.
    pub source_us: Option<u64>,
}

/// Longest time to the first byte of a local disk, in microseconds: even a busy one with a moving arm takes less.
const FIRST_BYTE_US: u64 = 30_000;
/// Slowest rate of a local disk, in bytes a microsecond.
const BYTES_PER_US: u64 = 20;
/// Factor by which the tier's time must exceed the source's to count as slower.
const TIMES: u64 = 2;
/// Number of latest samples that are judged.
const SAMPLES: usize = 8;
/// Number of these that must be slower.
const SLOWER_MIN: usize = 7;
/// Pause between samples of a fast tier, in milliseconds.
const CALM_MS: u64 = 30_000;
/// Pause after a slow sample, in milliseconds.
const ALERT_MS: u64 = 1_000;
/// First pause before a tier set aside is tried again, in milliseconds; each later pause is twice as long.
const RETRY_FIRST_MS: u64 = 10_000;
/// Longest such pause, in milliseconds.
const RETRY_MAX_MS: u64 = 600_000;

impl SpeedSample {
    /// Returns true if the tier's time is suspicious enough to read the source as well.
    pub const fn is_suspicious(bytes: u64, tier_us: u64) -> bool {
        tier_us > FIRST_BYTE_US + bytes / BYTES_PER_US
    }

    fn is_slower(&self) -> bool {
        Self::is_suspicious(self.bytes, self.tier_us) && self.source_us.is_some_and(|us| us.saturating_mul(TIMES) <= self.tier_us)
    }
}

/// Effect of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No change.
    Same,
    /// The tier is set aside; total times of its samples, in microseconds.
    SetAside {
        /// From the tier.
        tier_us: u64,
        /// From the source.
        source_us: u64,
    },
    /// The tier may be used again.
    TakeBack,
}

/// Measurements of one tier. Times are milliseconds on any clock that does not run backwards.
#[derive(Clone, Debug, Default)]
pub struct Speed {
    samples: VecDeque<SpeedSample>,
    next_ms: u64,
    /// Time of the next retry, and the pause before it; `None` while the tier is in use.
    aside: Option<(u64, u64)>,
    /// Pause for the next time that the tier is set aside; 0 if it never was.
    next_pause_ms: u64,
}

impl Speed {
    /// Returns true if the next copy is to be measured; `true` begins a pause.
    pub fn is_due(&mut self, now_ms: u64) -> bool {
        let due = self.aside.is_none() && now_ms >= self.next_ms;
        if due {
            self.next_ms = now_ms + CALM_MS;
        }
        due
    }

    /// Takes a sample of a tier in use.
    pub fn take(&mut self, sample: SpeedSample, now_ms: u64) -> Verdict {
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

    /// Returns true if the tier is set aside.
    pub fn is_aside(&self) -> bool {
        self.aside.is_some()
    }

    /// Returns the samples to read again from the tier when a retry is due; else none.
    pub fn retry(&mut self, now_ms: u64) -> Vec<SpeedSample> {
        let Some((at, pause_ms)) = self.aside.filter(|(at, _)| now_ms >= *at) else {
            return Vec::new();
        };
        let pause_ms = (pause_ms * 2).min(RETRY_MAX_MS);
        self.aside = Some((at.max(now_ms) + pause_ms, pause_ms));
        self.samples.iter().copied().collect()
    }

    /// Takes the result of a retry: the tier's times are new, the source's are the old ones. Copies that are gone are
    /// left out; if too few are left to judge, the tier is taken back, and measured again.
    pub fn retried(&mut self, samples: &[SpeedSample]) -> Verdict {
        let Some((_, pause_ms)) = self.aside else { return Verdict::Same };
        let slower = samples.iter().filter(|sample| sample.is_slower()).count();
        // A tier that was slow must now be fast mostly, not just sometimes.
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

    fn sample(tier_us: u64, source_us: u64) -> SpeedSample {
        SpeedSample {
            copy: 1,
            bytes: 20_000,
            tier_us,
            source_us: SpeedSample::is_suspicious(20_000, tier_us).then_some(source_us),
        }
    }

    const FAST: u64 = 200;
    const SLOW: u64 = 100_000;

    /// Takes a sample as often as one is due, `times` times.
    fn measure(speed: &mut Speed, now_ms: &mut u64, times: usize, sample: SpeedSample) -> Vec<Verdict> {
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
