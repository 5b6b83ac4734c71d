//! Course of a run: counters of the preload library and of the agent at moments spread evenly over it, in bounded
//! memory for runs of any length.
//!
//! [`watch`] looks while the program runs, [`Timeline`] keeps what it saw, [`epochs`] finds epochs in it. All of it
//! is in the run's record.

pub mod epochs;
mod watch;

use std::time::Duration;

use forebay_agent::tiering::Counts;
use forebay_contract::Run;
use serde::{Deserialize, Serialize};

pub use epochs::Epochs;
pub use watch::watch;

/// Most moments that are kept.
pub const MOMENTS_MAX: usize = 256;
/// Between the first moments.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// Answers and content of a tier at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierMoment {
    /// Opens so far.
    pub opens: u64,
    /// Sizes of the files of these opens in bytes.
    pub bytes: u64,
    /// Bytes of the copies in it, of whatever run.
    pub used_bytes: u64,
}

/// Counters at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moment {
    /// Since the program's start.
    pub seconds: f64,
    /// Opens for reading under the sources so far.
    pub source_opens: u64,
    /// Sizes of the files that the source answered, in bytes.
    pub from_source_bytes: u64,
    /// Tiers, top first.
    pub tiers: Vec<TierMoment>,
    /// Different files opened so far.
    pub files: u64,
    /// Mean number of opens of each file.
    pub opens_a_file: f64,
}

impl Moment {
    /// Reads the counters of the preload library; `used_bytes` by tier is the agent's last answer.
    fn of(seconds: f64, counts: &Counts, files: &Files, used_bytes: &[u64]) -> Self {
        let used = used_bytes.iter().copied().chain(std::iter::repeat(0));
        Self {
            seconds,
            source_opens: counts.source_opens(),
            from_source_bytes: counts.of(forebay_contract::Counter::FromSourceBytes),
            tiers: counts
                .tiers
                .iter()
                .zip(used)
                .map(|(answered, used_bytes)| TierMoment {
                    opens: answered.opens,
                    bytes: answered.bytes,
                    used_bytes,
                })
                .collect(),
            files: files.opened,
            opens_a_file: files.opens_mean,
        }
    }

    /// Opens that the source answered.
    pub fn from_source_opens(&self) -> u64 {
        self.source_opens.saturating_sub(self.tiers.iter().map(|tier| tier.opens).sum())
    }

    /// Interpolates the counters between this moment and a later one, at `share` of the way.
    fn towards(&self, later: &Self, share: f64) -> Self {
        let real = |from: f64, to: f64| from + (to - from) * share;
        let whole = |from: u64, to: u64| real(from as f64, to as f64).round() as u64;
        Self {
            seconds: real(self.seconds, later.seconds),
            source_opens: whole(self.source_opens, later.source_opens),
            from_source_bytes: whole(self.from_source_bytes, later.from_source_bytes),
            tiers: self
                .tiers
                .iter()
                .zip(&later.tiers)
                .map(|(from, to)| TierMoment {
                    opens: whole(from.opens, to.opens),
                    bytes: whole(from.bytes, to.bytes),
                    used_bytes: whole(from.used_bytes, to.used_bytes),
                })
                .collect(),
            files: whole(self.files, later.files),
            opens_a_file: real(self.opens_a_file, later.opens_a_file),
        }
    }
}

/// Number of files that were opened, and how evenly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Files {
    /// Different files opened, by spelled name; an estimate where `one_in` is more than 1.
    pub opened: u64,
    /// One file in so many was counted.
    pub one_in: u64,
    /// Opens of the file in the middle.
    pub opens_median: u32,
    /// Mean of the opens of a file; of the few that are opened much more often than others, only one open more than
    /// the median counts.
    pub opens_mean: f64,
    /// Share of the files that were opened as often as the median says, give or take one open or a tenth.
    pub even_share: f64,
}

impl Files {
    /// Reads the counters of a run so far from its page. `counts` is a buffer that is used again.
    pub fn read(page: &Run<'_>, counts: &mut Vec<u32>) -> Self {
        let opens = page.opens();
        counts.clear();
        counts.extend(opens.counts());
        Self::from_counts(counts, opens.one_in())
    }

    fn from_counts(counts: &mut [u32], one_in: u64) -> Self {
        if counts.is_empty() {
            return Self { one_in, ..Self::default() };
        }
        let middle = counts.len() / 2;
        let median = *counts.select_nth_unstable(middle).1;
        let tolerance = (median / 10).max(1);
        let even = counts.iter().filter(|count| count.abs_diff(median) <= tolerance).count();
        let sum: u64 = counts.iter().map(|count| u64::from((*count).min(median + 1))).sum();
        Self {
            opened: counts.len() as u64 * one_in,
            one_in,
            opens_median: median,
            opens_mean: sum as f64 / counts.len() as f64,
            even_share: even as f64 / counts.len() as f64,
        }
    }
}

/// Moments in order of time, the last one at the program's end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Columns", into = "Columns")]
pub struct Timeline {
    /// At least two, unless nobody could look.
    pub moments: Vec<Moment>,
}

impl Timeline {
    /// Adds a moment; gives whether there are now so many that half of them were dropped.
    fn push(&mut self, moment: Moment) -> bool {
        self.moments.push(moment);
        let full = self.moments.len() >= MOMENTS_MAX;
        if full {
            let mut nth = 0;
            self.moments.retain(|_| {
                nth += 1;
                nth % 2 == 1
            });
        }
        full
    }

    /// Returns the counters at a time, interpolated between the moments around it.
    pub fn at(&self, seconds: f64) -> Moment {
        let later = self.moments.partition_point(|moment| moment.seconds < seconds);
        self.between(later, |moment| moment.seconds, seconds)
    }

    /// The place between the moments `later - 1` and `later` at which `value` has come to `target`.
    fn between(&self, later: usize, value: impl Fn(&Moment) -> f64, target: f64) -> Moment {
        match (
            later.checked_sub(1).and_then(|before| self.moments.get(before)),
            self.moments.get(later),
        ) {
            (Some(before), Some(after)) => {
                let way = value(after) - value(before);
                let share = if way > 0.0 { (target - value(before)) / way } else { 1.0 };
                before.towards(after, share.clamp(0.0, 1.0))
            }
            (None, Some(only)) | (Some(only), None) => only.clone(),
            (None, None) => Moment::default(),
        }
    }

    /// Returns the bytes in each tier at the end; the last look may have had no answer.
    pub fn end_with(&mut self, used_bytes: impl IntoIterator<Item = u64>) {
        if let Some(last) = self.moments.last_mut() {
            for (tier, used) in last.tiers.iter_mut().zip(used_bytes) {
                tier.used_bytes = used;
            }
        }
    }

    /// Returns the end of the run, in seconds.
    pub fn end_s(&self) -> f64 {
        self.moments.last().map_or(0.0, |moment| moment.seconds)
    }
}

/// A tier's part of [`Columns`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct TierColumns {
    opens: Vec<u64>,
    bytes: Vec<u64>,
    used_bytes: Vec<u64>,
}

/// A timeline as it is written: a list for each figure, which is a fraction as long as a name for each number.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Columns {
    seconds: Vec<f64>,
    source_opens: Vec<u64>,
    from_source_bytes: Vec<u64>,
    tiers: Vec<TierColumns>,
    files: Vec<u64>,
    opens_a_file: Vec<f64>,
}

impl From<Timeline> for Columns {
    fn from(timeline: Timeline) -> Self {
        let rounded = |value: f64, digits: f64| (value * digits).round() / digits;
        let mut columns = Self::default();
        for moment in timeline.moments {
            columns.seconds.push(rounded(moment.seconds, 1e3));
            columns.source_opens.push(moment.source_opens);
            columns.from_source_bytes.push(moment.from_source_bytes);
            columns.files.push(moment.files);
            columns.opens_a_file.push(rounded(moment.opens_a_file, 1e5));
            columns.tiers.resize_with(moment.tiers.len(), TierColumns::default);
            for (column, tier) in columns.tiers.iter_mut().zip(moment.tiers) {
                column.opens.push(tier.opens);
                column.bytes.push(tier.bytes);
                column.used_bytes.push(tier.used_bytes);
            }
        }
        columns
    }
}

impl From<Columns> for Timeline {
    /// Moments of which a figure is not there have 0 in its place.
    fn from(columns: Columns) -> Self {
        let whole = |column: &[u64], nth: usize| column.get(nth).copied().unwrap_or(0);
        let moment = |(nth, seconds): (usize, &f64)| Moment {
            seconds: *seconds,
            source_opens: whole(&columns.source_opens, nth),
            from_source_bytes: whole(&columns.from_source_bytes, nth),
            tiers: columns
                .tiers
                .iter()
                .map(|tier| TierMoment {
                    opens: whole(&tier.opens, nth),
                    bytes: whole(&tier.bytes, nth),
                    used_bytes: whole(&tier.used_bytes, nth),
                })
                .collect(),
            files: whole(&columns.files, nth),
            opens_a_file: columns.opens_a_file.get(nth).copied().unwrap_or(0.0),
        };
        Self {
            moments: columns.seconds.iter().enumerate().map(moment).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(seconds: f64, opens: u64) -> Moment {
        Moment {
            seconds,
            source_opens: opens,
            tiers: vec![TierMoment {
                opens: opens / 2,
                bytes: 10 * opens,
                used_bytes: 7,
            }],
            ..Moment::default()
        }
    }

    #[test]
    fn a_long_run_keeps_few_moments_spread_over_all_of_it() {
        let (mut timeline, mut step, mut now, mut looks) = (Timeline::default(), 1.0, 0.0, 0);
        while now < 1e6 {
            if timeline.push(moment(now, now as u64)) {
                step *= 2.0;
            }
            now += step;
            looks += 1;
        }
        assert!(
            (MOMENTS_MAX / 2 - 1..MOMENTS_MAX).contains(&timeline.moments.len()),
            "{}",
            timeline.moments.len()
        );
        assert!(looks < 20 * MOMENTS_MAX, "{looks}");
        let gaps: Vec<f64> = timeline.moments.windows(2).map(|pair| pair[1].seconds - pair[0].seconds).collect();
        let (least, most) = (
            gaps.iter().copied().fold(f64::MAX, f64::min),
            gaps.iter().copied().fold(0.0, f64::max),
        );
        assert!(timeline.moments[0].seconds == 0.0 && most <= 2.0 * least, "{least} {most}");
    }

    #[test]
    fn between_moments_it_is_read_off_the_line() {
        let timeline = Timeline {
            moments: vec![moment(0.0, 0), moment(2.0, 100), moment(4.0, 100)],
        };
        assert_eq!(timeline.at(1.0).source_opens, 50);
        assert_eq!(timeline.at(1.0).tiers[0].bytes, 500);
        assert_eq!(timeline.at(3.0).source_opens, 100);
        assert_eq!(timeline.at(9.0), moment(4.0, 100));
        assert_eq!(Timeline::default().at(1.0), Moment::default());
    }

    #[test]
    fn what_is_written_is_read_again() {
        let timeline = Timeline {
            moments: vec![moment(0.0, 0), moment(0.125, 3)],
        };
        let text = serde_json::to_string(&timeline).unwrap();
        assert_eq!(serde_json::from_str::<Timeline>(&text).unwrap(), timeline);
        let short = r#"{"seconds":[0,1],"source_opens":[0],"from_source_bytes":[],"tiers":[],"files":[],"opens_a_file":[]}"#;
        assert_eq!(serde_json::from_str::<Timeline>(short).unwrap().moments.len(), 2);
    }

    #[test]
    fn a_few_busy_files_say_little() {
        let mut counts = vec![3; 99];
        counts.push(100_000);
        let files = Files::from_counts(&mut counts, 4);
        assert_eq!((files.opened, files.opens_median), (400, 3));
        assert!(
            (files.opens_mean - 3.01).abs() < 1e-9 && (files.even_share - 0.99).abs() < 1e-9,
            "{files:?}"
        );
        assert_eq!(Files::from_counts(&mut [], 1).opened, 0);
    }
}
