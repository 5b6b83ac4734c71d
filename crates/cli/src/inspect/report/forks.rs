//! Forks on the page about a run: what was taken of its jobs, what became clones, and both over time.

use forebay_settings::text::{self, time_text};
use std::collections::{BTreeMap, BTreeSet};

use crate::{
    page::{
        Page,
        plots::{self, Frame, LIMIT, Lane, RGBColor, SERIES},
    },
    run::forks::{CloneReport, ForkEvent, TakenState},
};

/// Rows of a table, at most; the last ones are shown.
const ROWS_MAX: usize = 50;
/// Forks that are drawn, the last ones; and lanes of each.
const DRAWN_MAX: usize = 4;
const LANES_MAX: usize = 8;
/// A lane's name is no longer.
const NAME_CHARS_MAX: usize = 16;
const STEP: RGBColor = SERIES[0];
const STALL: RGBColor = SERIES[3];
const LOADING: RGBColor = SERIES[2];
const WAITING: RGBColor = LIMIT;

/// Origin of a state: a job, and one of its steps.
type ForkOrigin = (String, u64);

/// One fork: what the ranks of a job said of it, and those of its clones, by clone.
#[derive(Debug, Default)]
struct ForkCourse<'a> {
    taken: Vec<&'a TakenState>,
    clones: BTreeMap<&'a str, Vec<&'a CloneReport>>,
}

/// The section; none where nothing was forked.
pub fn section(page: &mut Page, told: &[ForkEvent]) {
    let forks = forks_of(told);
    if forks.is_empty() {
        return;
    }
    page.section(
        "Forks",
        "A state is what a job is after a step; a clone goes on from it. Where there are several ranks, times are those of the one that took \
         longest. A clone that asked for a state only later is drawn where its job's steps end, with how much later that was.",
    );
    taken(page, &forks);
    clones(page, &forks);
    page.part("Over time");
    let drawn = forks.len().saturating_sub(DRAWN_MAX);
    page.legend([
        ("step of the job", STEP),
        ("the job stands still", STALL),
        ("a clone waits", WAITING),
        ("it loads and checks", LOADING),
    ]);
    let plots: Vec<String> = forks.iter().skip(drawn).map(|(origin, fork)| course(origin, fork)).collect();
    page.figures(&plots);
}

/// Returns the forks by the origin of their states, in the order of their times.
fn forks_of(told: &[ForkEvent]) -> Vec<(ForkOrigin, ForkCourse<'_>)> {
    let mut forks: BTreeMap<ForkOrigin, ForkCourse<'_>> = BTreeMap::new();
    for one in told {
        match one {
            ForkEvent::Taken(taken) => forks.entry((taken.job.clone(), taken.step)).or_default().taken.push(taken),
            ForkEvent::Became(became) => {
                let fork = forks.entry((became.parent.clone(), became.step)).or_default();
                fork.clones.entry(&became.job).or_default().push(became);
            }
        }
    }
    let mut forks: Vec<_> = forks.into_iter().collect();
    forks.sort_by(|one, other| one.1.begin().total_cmp(&other.1.begin()));
    forks
}

impl ForkCourse<'_> {
    /// The first time that is known of it: that of the step before, if that was seen.
    fn begin(&self) -> f64 {
        let steps = self.taken.iter().map(|taken| taken.at - taken.before_s.unwrap_or(0.0));
        let asked = self.clones.values().flatten().map(|became| became.asked_at);
        steps.chain(asked).fold(f64::INFINITY, f64::min)
    }
}

fn taken(page: &mut Page, forks: &[(ForkOrigin, ForkCourse<'_>)]) {
    let known: Vec<_> = forks.iter().filter(|(_, fork)| !fork.taken.is_empty()).collect();
    if known.is_empty() {
        return;
    }
    let rows = known.iter().skip(known.len().saturating_sub(ROWS_MAX)).map(|(origin, fork)| {
        let (first, ranks) = (
            fork.taken.first(),
            fork.taken.iter().map(|taken| taken.rank).collect::<BTreeSet<_>>(),
        );
        let cells = [
            text::count(first.map_or(0, |taken| taken.epoch)),
            first.map_or_else(String::new, |taken| of_all(ranks.len(), taken.ranks)),
            text::bytes(most(fork.taken.iter().map(|taken| taken.bytes))),
            text::bytes(most(fork.taken.iter().map(|taken| taken.copied.saturating_add(taken.aside)))),
            seconds(longest(fork.taken.iter().filter_map(|taken| taken.before_s))),
            seconds(longest(fork.taken.iter().map(|taken| stalled(taken)))),
            seconds(longest(fork.taken.iter().filter_map(|taken| taken.after_s))),
        ];
        (name_of(origin), cells)
    });
    page.part("States that were taken");
    page.table(
        [
            "epoch",
            "ranks",
            "state of a rank",
            "of it copied",
            "step before",
            "stood still",
            "step after",
        ],
        rows,
    );
}

fn clones(page: &mut Page, forks: &[(ForkOrigin, ForkCourse<'_>)]) {
    let all: Vec<_> = forks
        .iter()
        .flat_map(|(origin, fork)| fork.clones.iter().map(move |(name, ranks)| (origin, *name, ranks)))
        .collect();
    if all.is_empty() {
        return;
    }
    let rows = all.iter().skip(all.len().saturating_sub(ROWS_MAX)).map(|(origin, name, ranks)| {
        let first = ranks.iter().min_by_key(|became| became.rank);
        let changes = first.map_or_else(String::new, |became| changes(&became.changes));
        let cells = [
            name_of(origin),
            changes,
            first.map_or_else(String::new, |became| of_all(ranks.len(), became.ranks)),
            seconds(longest(ranks.iter().map(|became| became.state_at - became.asked_at))),
            seconds(longest(ranks.iter().map(|became| became.loaded_at - became.state_at))),
            first.map_or_else(String::new, |became| text::shortened(&became.digest, NAME_CHARS_MAX)),
        ];
        ((*name).to_owned(), cells)
    });
    page.part("Clones");
    page.table(
        ["of", "changed", "ranks", "waited", "loaded and checked in", "digest of rank 0"],
        rows,
    );
}

/// A fork over time: the job's steps and how long it stood still between them, and below what each clone did.
fn course((job, step): &ForkOrigin, fork: &ForkCourse<'_>) -> String {
    let begin = fork.begin();
    let mut lanes = Vec::new();
    let mut end = f64::INFINITY;
    if let Some(slowest) = fork.taken.iter().max_by(|one, other| stalled(one).total_cmp(&stalled(other))) {
        let at = slowest.at - begin;
        let stood = at + slowest.stall_s;
        let (window, after) = (slowest.window_s.unwrap_or(0.0), slowest.after_s.unwrap_or(0.0));
        let closed = stood + window + slowest.closing_s;
        end = stood + slowest.closing_s + window.max(after);
        lanes.push(lane(
            &text::shortened(job, NAME_CHARS_MAX),
            [
                (at - slowest.before_s.unwrap_or(0.0), at, STEP),
                (at, stood, STALL),
                (stood, stood + window, STEP),
                (stood + window, closed, STALL),
                (closed, end, STEP),
            ],
        ));
    }
    for (name, ranks) in &fork.clones {
        let Some(last) = ranks.iter().max_by(|one, other| one.loaded_at.total_cmp(&other.loaded_at)) else {
            continue;
        };
        // On one axis with what comes minutes later nothing of the fork could be seen.
        let late = (last.asked_at - begin - end).max(0.0);
        let [asked, state, loaded, exists] = [last.asked_at, last.state_at, last.loaded_at, last.exists_at].map(|at| at - begin - late);
        let name = text::shortened(name, NAME_CHARS_MAX);
        let name = if late > 0.0 {
            format!("{name} (+{})", time_text(late))
        } else {
            name
        };
        lanes.push(lane(
            &name,
            [(asked, state, WAITING), (state, loaded, LOADING), (loaded, exists, WAITING)],
        ));
    }
    lanes.truncate(LANES_MAX);
    plots::lanes(&Frame::new("time (s)", &format!("after step {}", text::count(*step))), &lanes)
}

fn lane<const N: usize>(name: &str, spans: [(f64, f64, RGBColor); N]) -> Lane {
    Lane {
        name: name.to_owned(),
        spans: spans.into_iter().filter(|(begin, end, _)| end > begin).collect(),
    }
}

/// For how long the job stood still for it in all.
fn stalled(taken: &TakenState) -> f64 {
    taken.stall_s + taken.closing_s
}

fn name_of((job, step): &ForkOrigin) -> String {
    format!("{job}, step {}", text::count(*step))
}

fn of_all(known: usize, all: u32) -> String {
    if known == all as usize {
        text::count(u64::from(all))
    } else {
        format!("{} of {all}", text::count(known as u64))
    }
}

fn changes(changes: &BTreeMap<String, f64>) -> String {
    if changes.is_empty() {
        return "nothing".into();
    }
    let each: Vec<String> = changes.iter().map(|(name, value)| format!("{name}={value}")).collect();
    each.join(", ")
}

fn most(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.max().unwrap_or(0)
}

/// Returns the longest time, or `None` without times.
fn longest(times: impl Iterator<Item = f64>) -> Option<f64> {
    times.max_by(f64::total_cmp)
}

/// Between times of day, which somebody may have set back meanwhile.
fn seconds(time: Option<f64>) -> String {
    time.map_or_else(|| "not seen".into(), |time| time_text(time.max(0.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(rank: u32, step: u64, stall_s: f64) -> ForkEvent {
        ForkEvent::Taken(TakenState {
            job: "trunk".into(),
            rank,
            ranks: 2,
            epoch: 3,
            step,
            bytes: 1 << 20,
            copied: 1 << 12,
            aside: 1 << 13,
            at: 100.0 + step as f64,
            stall_s,
            window_s: None,
            closing_s: 0.0,
            before_s: Some(0.5),
            after_s: None,
        })
    }

    fn became(job: &str, rank: u32, step: u64) -> ForkEvent {
        ForkEvent::Became(CloneReport {
            job: job.into(),
            parent: "trunk".into(),
            rank,
            ranks: 2,
            epoch: 3,
            step,
            bytes: 1 << 20,
            digest: "0123456789abcdef0123456789abcdef".into(),
            parent_ranks: 1,
            verified: "digest".into(),
            changes: BTreeMap::from([("lr".to_owned(), 0.01), ("seed".to_owned(), 7.0)]),
            asked_at: 99.0 + step as f64,
            state_at: 100.25 + step as f64,
            loaded_at: 100.5 + step as f64,
            exists_at: 100.75 + step as f64,
        })
    }

    fn html(told: &[ForkEvent]) -> String {
        let mut page = Page::new("t", "l", []);
        section(&mut page, told);
        page.end()
    }

    #[test]
    fn nothing_is_said_where_nothing_was_forked() {
        assert!(!html(&[]).contains("Forks"));
    }

    #[test]
    fn a_fork_is_told_by_the_rank_that_took_longest() {
        let told = [
            taken(0, 7, 0.001),
            taken(1, 7, 0.003),
            became("trunk.1", 0, 7),
            became("trunk.1", 1, 7),
            became("trunk.2", 0, 7),
        ];
        let html = html(&told);
        for said in [
            "trunk, step 7",
            "<td>3 ms</td>",
            "<td>500 ms</td>",
            "not seen",
            "lr=0.01, seed=7",
            "<td>1.25 s</td>",
            "<td>250 ms</td>",
            "1 of 2",
            "after step 7",
        ] {
            assert!(html.contains(said), "{said}: {html}");
        }
        assert!(!html.contains("<td>1 ms</td>"), "{html}");
        assert_eq!(html.matches("<figure>").count(), 1);
        assert_eq!(html.matches("trunk.2").count(), 2, "in the table and in the plot");
    }

    #[test]
    fn both_times_that_a_job_stood_still_are_shown() {
        let ForkEvent::Taken(mut closed) = taken(0, 7, 0.125) else {
            panic!()
        };
        (closed.window_s, closed.closing_s, closed.after_s) = (Some(0.25), 0.25, Some(0.5));
        let html = html(&[ForkEvent::Taken(closed)]);
        assert!(html.contains("<td>375 ms</td>") && html.contains("12 KiB"), "{html}");
        let drawn = format!("fill=\"#{:02X}{:02X}{:02X}\" stroke", STALL.0, STALL.1, STALL.2);
        assert_eq!(html.matches(&drawn).count(), 2, "{html}");
    }

    #[test]
    fn a_time_of_day_that_was_set_back_is_no_time() {
        let mut told = became("trunk.1", 0, 7);
        if let ForkEvent::Became(became) = &mut told {
            became.asked_at = became.state_at + 1.0;
        }
        let html = html(&[told]);
        assert!(html.contains("<td>0 s</td>") && !html.contains("<td>-"), "{html}");
    }

    #[test]
    fn a_clone_that_came_late_is_drawn_at_its_jobs_end() {
        let mut late = became("trunk.1", 0, 7);
        if let ForkEvent::Became(became) = &mut late {
            for at in [
                &mut became.asked_at,
                &mut became.state_at,
                &mut became.loaded_at,
                &mut became.exists_at,
            ] {
                *at += 3600.0;
            }
        }
        let html = html(&[taken(0, 7, 0.5), late]);
        // 107.0 s is when the state was taken, and there is no step after it that was seen.
        assert!(html.contains("trunk.1 (+59 min 58 s)"), "{html}");
        assert!(!html.contains("\n1000\n"), "{html}");
    }

    #[test]
    fn names_are_only_text() {
        let ForkEvent::Taken(mut odd) = taken(0, 7, 0.001) else { panic!() };
        odd.job = "<script>x</script>".into();
        let html = html(&[ForkEvent::Taken(odd)]);
        assert!(!html.contains("<script>") && html.contains("&lt;script&gt;"), "{html}");
    }

    #[test]
    fn the_last_forks_are_shown() {
        let many: Vec<ForkEvent> = (0..60).map(|step| taken(0, step, 0.001)).collect();
        let html = html(&many);
        assert_eq!(html.matches("<figure>").count(), DRAWN_MAX);
        assert_eq!(html.matches("<th>trunk, step").count(), ROWS_MAX);
        assert!(html.contains("step 59") && !html.contains("<th>trunk, step 9<"), "{html}");
    }

    #[test]
    fn a_clone_is_shown_without_its_parent() {
        let html = html(&[became("trunk.1", 0, 7)]);
        assert!(
            !html.contains("States that were taken") && html.contains("<h3>Clones</h3>"),
            "{html}"
        );
    }
}
