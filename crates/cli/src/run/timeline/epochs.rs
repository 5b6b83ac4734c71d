//! Epochs of a run, found in how often its files were opened.
//!
//! The n-th open of a file belongs to the n-th epoch. So an epoch is over when as many opens have been made as there
//! are files, and there are epochs at all only where nearly all files were opened equally often.

use forebay_agent::tiering::Answered;
use serde::{Deserialize, Serialize};

use super::{Files, Moment, Timeline};

/// Share of the files that must have been opened equally often.
pub const EVEN_SHARE_MIN: f64 = 0.9;
/// An epoch that lacks, or exceeds, so small a share of the files is whole.
const SLACK: f64 = 0.02;
/// Most rows that are kept: of more epochs several share one. There must be moments in between to tell them apart.
pub const ROWS_MAX: usize = 64;

/// One epoch, or some that follow each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Epochs {
    /// Number of the first, from 1.
    pub first: u64,
    /// Number of the last.
    pub last: u64,
    /// The last epoch reached its end.
    pub whole: bool,
    /// Start of the first epoch, in seconds since the program's start.
    pub begin_s: f64,
    /// End of the last epoch, in seconds since the program's start.
    pub end_s: f64,
    /// Opens for reading under the sources.
    pub source_opens: u64,
    /// Opens that the source answered.
    pub from_source_opens: u64,
    /// Sizes of their files in bytes.
    pub from_source_bytes: u64,
    /// Opens that each tier answered, top first.
    pub tiers: Vec<Answered>,
}

impl Epochs {
    /// Number of epochs.
    pub const fn count(&self) -> u64 {
        self.last + 1 - self.first
    }
}

/// The epochs of a run that has ended; none where files were opened unevenly, or nobody looked.
pub fn find(timeline: &Timeline, files: &Files) -> Vec<Epochs> {
    let finder = Finder {
        timeline,
        files: files.opened as f64,
    };
    let Some(last) = timeline
        .moments
        .last()
        .filter(|_| files.opened > 0 && files.even_share >= EVEN_SHARE_MIN)
    else {
        return Vec::new();
    };
    let made = finder.progress(last);
    let whole = (made + SLACK).floor();
    let count = if made - whole > SLACK { whole + 1.0 } else { whole } as u64;
    // The first epoch is alone: it is the one that fills the tiers.
    let in_a_row = count.saturating_sub(1).div_ceil(ROWS_MAX as u64 - 1).max(1);
    let mut rows = Vec::new();
    let (mut first, mut begin) = (1, finder.begin());
    while first <= count {
        let last = if first == 1 { 1 } else { (first + in_a_row - 1).min(count) };
        let end = finder.reached((last as f64).min(made));
        rows.push(Epochs {
            first,
            last,
            whole: last as f64 <= whole,
            ..between(&begin, &end)
        });
        (first, begin) = (last + 1, end);
    }
    rows
}

struct Finder<'a> {
    timeline: &'a Timeline,
    files: f64,
}

impl Finder<'_> {
    /// Epochs made by a moment: during the first one files are still being found, each opened once.
    fn progress(&self, moment: &Moment) -> f64 {
        moment.opens_a_file * moment.files as f64 / self.files
    }

    /// Returns the moment at which progress reached a number of epochs.
    fn reached(&self, epochs: f64) -> Moment {
        let later = self.timeline.moments.partition_point(|moment| self.progress(moment) < epochs);
        self.timeline.between(later, |moment| self.progress(moment), epochs)
    }

    /// The last moment before anything was opened.
    fn begin(&self) -> Moment {
        let opened = self.timeline.moments.partition_point(|moment| moment.source_opens == 0);
        let before = self.timeline.moments.get(opened.saturating_sub(1));
        before.cloned().unwrap_or_default()
    }
}

fn between(begin: &Moment, end: &Moment) -> Epochs {
    let answered = begin.tiers.iter().zip(&end.tiers).map(|(from, to)| Answered {
        opens: to.opens.saturating_sub(from.opens),
        bytes: to.bytes.saturating_sub(from.bytes),
    });
    Epochs {
        begin_s: begin.seconds,
        end_s: end.seconds,
        source_opens: end.source_opens.saturating_sub(begin.source_opens),
        from_source_opens: end.from_source_opens().saturating_sub(begin.from_source_opens()),
        from_source_bytes: end.from_source_bytes.saturating_sub(begin.from_source_bytes),
        tiers: answered.collect(),
        ..Epochs::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::timeline::TierMoment;

    const FILES: u64 = 100;

    fn files(median: u32, even_share: f64) -> Files {
        Files {
            opened: FILES,
            one_in: 1,
            opens_median: median,
            opens_mean: f64::from(median),
            even_share,
        }
    }

    /// Returns a moment with this number of opens: the source answered the first open of each file, ten times as
    /// slowly as a tier.
    fn moment(opens: u64, seconds: f64) -> Moment {
        let from_source = opens.min(FILES);
        Moment {
            seconds,
            source_opens: opens,
            from_source_bytes: 10 * from_source,
            tiers: vec![TierMoment {
                opens: opens - from_source,
                bytes: 10 * (opens - from_source),
                used_bytes: 10 * from_source,
            }],
            files: from_source,
            opens_a_file: opens as f64 / from_source.max(1) as f64,
        }
    }

    /// Looked at every `step` opens, one second of set-up before the first of them.
    fn run(opens: u64, step: u64) -> Timeline {
        let at = |opens: u64| 1.0 + opens.min(FILES) as f64 * 0.1 + opens.saturating_sub(FILES) as f64 * 0.01;
        let mut moments = vec![moment(0, 0.0)];
        moments.extend((0..=opens).step_by(step as usize).map(|opens| moment(opens, at(opens))));
        moments.push(moment(opens, at(opens)));
        Timeline { moments }
    }

    #[test]
    fn epochs_are_found_with_what_each_was_answered_by() {
        let rows = find(&run(300, 10), &files(3, 1.0));
        assert_eq!(
            rows.iter().map(|row| (row.first, row.last, row.whole)).collect::<Vec<_>>(),
            [(1, 1, true), (2, 2, true), (3, 3, true)]
        );
        assert_eq!(
            rows.iter()
                .map(|row| (row.from_source_opens, row.tiers[0].opens))
                .collect::<Vec<_>>(),
            [(100, 0), (0, 100), (0, 100)]
        );
        let times: Vec<f64> = rows.iter().map(|row| row.end_s - row.begin_s).collect();
        assert!((times[0] - 10.0).abs() < 1e-9 && (times[1] - 1.0).abs() < 1e-9, "{times:?}");
    }

    #[test]
    fn one_that_did_not_end_is_told_apart() {
        let rows = find(&run(250, 10), &files(2, 1.0));
        assert_eq!(rows.len(), 3);
        assert!(!rows[2].whole && rows[2].source_opens == 50, "{rows:?}");
        // A batch that was dropped makes no other epoch.
        assert!(find(&run(199, 10), &files(2, 1.0))[1].whole);
    }

    #[test]
    fn looks_that_are_far_apart_still_give_all_opens() {
        let rows = find(&run(300, 70), &files(3, 1.0));
        assert_eq!(rows.len(), 3);
        assert_eq!(rows.iter().map(|row| row.source_opens).sum::<u64>(), 300);
        assert!(rows.windows(2).all(|pair| pair[0].end_s <= pair[1].begin_s));
    }

    #[test]
    fn many_epochs_share_rows() {
        let rows = find(&run(100 * FILES, 500), &files(100, 1.0));
        assert!(rows.len() <= ROWS_MAX, "{}", rows.len());
        assert_eq!((rows[0].first, rows[0].last), (1, 1));
        assert!(rows.windows(2).all(|pair| pair[0].last + 1 == pair[1].first));
        assert_eq!(rows.iter().map(Epochs::count).sum::<u64>(), 100);
    }

    #[test]
    fn what_was_opened_unevenly_has_no_epochs() {
        assert_eq!(find(&run(300, 10), &files(3, 0.8)), []);
        assert_eq!(find(&run(0, 10), &Files::default()), []);
        assert_eq!(find(&Timeline::default(), &files(3, 1.0)), []);
    }
}
