//! Summary of a run from the counters of the preload library: a text that is read in ten seconds.

use std::fmt::Write as _;

use forebay_agent::tiering::{
    Counts,
    protocol::{PeerCounts, PrefetchCounts, Status},
};
use forebay_contract::Counter;
use forebay_settings::text;

use crate::run::{
    beside,
    child::{Ended, signal_name},
    derived::Derived,
    record::Report,
};

/// The summary.
pub fn text(report: &Report<'_>, record: Option<&std::path::Path>) -> String {
    let derived = report.derived();
    let mut out = String::new();
    let others = beside::clauses(&report.loaders, &report.forks);
    headline(&mut out, report, &derived, &others);
    for clause in &others {
        let _ = writeln!(out, "  {:<21}{clause}", "beside the tiers:");
    }
    if let Some(first_step) = &report.first_step {
        first_step.write(&mut out);
    }
    if derived.source_opens > 0 {
        opens(&mut out, report, &derived);
        reasons(&mut out, "not from a tier:", report, Counter::MISSED);
    }
    saved(
        &mut out,
        "source stats saved:",
        &report.counts,
        Counter::SourceStats,
        Counter::StatsSaved,
    );
    saved(
        &mut out,
        "listings saved:",
        &report.counts,
        Counter::SourceListings,
        Counter::ListingsSaved,
    );
    reasons(&mut out, "listings passed:", report, Counter::NOT_LISTED);
    // That one has a line of its own.
    let left_alone: Vec<Counter> = Counter::PASSED
        .iter()
        .copied()
        .filter(|reason| *reason != Counter::OtherName)
        .collect();
    reasons(&mut out, "left alone:", report, &left_alone);
    other_name(&mut out, report);
    agent(&mut out, report);
    if let Some(why) = report.program.cover.why_not() {
        let _ = writeln!(out, "  {:<21}{}: {why}", "not covered:", report.program.image.display());
    }
    if let Some(record) = record {
        let _ = writeln!(out, "  {:<21}{}", "record:", record.display());
    }
    out
}

/// Says which name of a source was not served, and what to do.
fn other_name(out: &mut String, report: &Report<'_>) {
    let opens = report.counts.of(Counter::OtherName);
    if opens == 0 {
        return;
    }
    let opens = text::counted(opens, "open", "opens");
    let advice = match &report.other_name {
        Some(name) => format!(
            "by {0}, another name of a source; add --source {0}, and the next run serves them",
            name.display()
        ),
        None => "by links to single files of a source; name the files below the source, and the next run serves them".into(),
    };
    let _ = writeln!(out, "  {:<21}{opens} {advice}", "not served:");
}

fn headline(out: &mut String, report: &Report<'_>, derived: &Derived, others: &[String]) {
    let command = text::command_line(report.words.iter().map(|word| &**word), 60);
    let how = match report.ended {
        Ended::Status(0) => String::new(),
        Ended::Status(status) => format!(" (exit {status})"),
        Ended::Signal(number) => format!(" ({})", signal_name(number)),
    };
    let processes = report.counts.of(Counter::Processes);
    let what = match (processes, derived.source_opens) {
        (0, _) => "no process was covered".to_owned(),
        (_, 0) => {
            let processes = text::counted(processes, "process", "processes");
            if others.is_empty() {
                format!("nothing was opened under a source by {processes}")
            } else {
                format!("nothing was opened under a source by the program itself ({processes})")
            }
        }
        (_, opens) => {
            let processes = text::counted(processes, "process", "processes");
            format!("{} under the sources by {processes}", text::counted(opens, "open", "opens"))
        }
    };
    let _ = writeln!(out, "forebay: {command}{how}, {}: {what}", text::duration(report.elapsed));
}

fn opens(out: &mut String, report: &Report<'_>, derived: &Derived) {
    for (tier, answered) in report.plan.tiers.iter().zip(&report.counts.tiers) {
        let opens = text::counted(answered.opens, "open", "opens");
        let _ = writeln!(
            out,
            "  {:<21}{opens}, {} of files ({})",
            "from tier:",
            text::bytes(answered.bytes),
            tier.setting.label()
        );
    }
    let bytes = report.counts.of(Counter::FromSourceBytes);
    let opens = text::counted(derived.from_source_opens, "open", "opens");
    let _ = writeln!(out, "  {:<21}{opens}, {} of files", "from the source:", text::bytes(bytes));
    let _ = writeln!(
        out,
        "  {:<21}{} of {} ({}); the most possible was {}: all but the first of each file",
        "source opens saved:",
        text::count(derived.tier_opens),
        text::count(derived.source_opens),
        text::percent(derived.tier_opens, derived.source_opens),
        text::count(derived.tier_opens_at_most),
    );
}

/// Writes the number of requests under the sources and the share that this node answered.
fn saved(out: &mut String, what: &str, counts: &Counts, asked: Counter, saved: Counter) {
    let saved = counts.of(saved);
    // A process that was ended in between may have counted one and not the other.
    let asked = counts.of(asked).max(saved);
    if asked > 0 {
        let _ = writeln!(
            out,
            "  {what:<21}{} of {} ({})",
            text::count(saved),
            text::count(asked),
            text::percent(saved, asked),
        );
    }
}

fn reasons(out: &mut String, what: &str, report: &Report<'_>, counters: &[Counter]) {
    for counter in counters {
        let number = report.counts.of(*counter);
        if number > 0 {
            let _ = writeln!(out, "  {what:<21}{} {}", text::count(number), counter.meaning());
        }
    }
}

/// Reasons for which tiers did not answer, and for which nothing was kept of what was handed over, and how often each
/// held; the most frequent first.
pub(crate) fn why_not(of: impl Fn(Counter) -> u64, agent: Option<&Status>) -> Vec<(u64, String)> {
    let passed = Counter::PASSED.iter().map(|counter| ("left alone: ", counter));
    let others = Counter::MISSED.iter().chain(Counter::NOT_LISTED).map(|counter| ("", counter));
    let doors = passed
        .chain(others)
        .map(|(what, counter)| (of(*counter), format!("{what}{}", counter.meaning())));
    let refused = agent.into_iter().flat_map(|agent| {
        let files = agent.skipped.not_copied.iter().map(|found| ("not copied", found));
        files.chain(agent.listings.listings_not_kept.iter().map(|found| ("no listing kept", found)))
    });
    let refused = refused.map(|(what, (why, number))| (*number, format!("{what}: {}", text::why_not_copied(why))));
    let mut all: Vec<(u64, String)> = doors.chain(refused).filter(|(number, _)| *number > 0).collect();
    all.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
    all
}

/// Writes what the nodes of a job read for each other.
fn other_nodes(out: &mut String, peers: &PeerCounts) {
    if peers.from_peers_files + peers.left_to_source > 0 {
        let files = text::counted(peers.from_peers_files, "file", "files");
        let left = match peers.left_to_source {
            0 => String::new(),
            left => format!("; {} more did not come, and were left to the source", text::count(left)),
        };
        let bytes = text::bytes(peers.from_peers_bytes);
        let _ = writeln!(out, "  {:<21}{files}, {bytes}{left}", "from other nodes:");
    }
    if peers.for_peers_files > 0 {
        let files = text::counted(peers.for_peers_files, "file", "files");
        let bytes = text::bytes(peers.for_peers_bytes);
        let _ = writeln!(out, "  {:<21}{files}, {bytes}, read from the source", "for other nodes:");
    }
}

fn prefetched(out: &mut String, counts: &PrefetchCounts) {
    if counts.read_ahead_files > 0 {
        let files = text::counted(counts.read_ahead_files, "file", "files");
        let bytes = text::bytes(counts.read_ahead_bytes);
        let _ = writeln!(
            out,
            "  {:<21}{files}, {bytes}, ahead of the program that read them first",
            "read ahead:"
        );
    }
    if counts.prefetched_files > 0 {
        let files = text::counted(counts.prefetched_files, "file", "files");
        let bytes = text::bytes(counts.prefetched_bytes);
        let _ = writeln!(out, "  {:<21}{files}, {bytes}, before any program opened them", "prefetched:");
    }
}

fn agent(out: &mut String, report: &Report<'_>) {
    let Some(status) = &report.agent else { return };
    let in_flight = status.files_in_flight();
    if status.files.files_copied + in_flight > 0 {
        let files = text::counted(status.files.files_copied, "file", "files");
        let more = if in_flight > 0 {
            format!("; {} more on the way", text::count(in_flight))
        } else {
            String::new()
        };
        let _ = writeln!(out, "  {:<21}{files}, {}{more}", "copied:", text::bytes(status.files.bytes_copied));
    }
    other_nodes(out, &status.peers);
    prefetched(out, &status.prefetch);
    if status.listings.listings_kept > 0 {
        let listings = text::counted(status.listings.listings_kept, "directory", "directories");
        let bytes = text::bytes(status.listings.listings_bytes);
        let _ = writeln!(out, "  {:<21}{listings}, {bytes}", "listings kept:");
    }
    for (why, number) in &status.listings.listings_not_kept {
        let (number, why) = (text::count(*number), text::why_not_copied(why));
        let _ = writeln!(out, "  {:<21}{number}: {why}", "listings not kept:");
    }
    for (why, number) in &status.skipped.not_copied {
        let (number, why) = (text::count(*number), text::why_not_copied(why));
        let _ = writeln!(out, "  {:<21}{number}: {why}", "not copied:");
    }
    if status.skipped.ahead_of_clock > 0 {
        let files = text::counted(status.skipped.ahead_of_clock, "file or directory", "files and directories");
        let _ = writeln!(
            out,
            "  {:<21}{files} with times up to {} s ahead of this node's clock: each waited two seconds; compare the server's clock",
            "clock ahead:", status.skipped.clock_ahead_s
        );
    }
    for tier in &status.tiers {
        if let Some(why) = &tier.off {
            let _ = writeln!(out, "  {:<21}{}: {why}", "tier off:", tier.label());
        }
        if tier.off.is_none() && tier.set_aside > 0 {
            let times = text::counted(tier.set_aside, "time", "times");
            let _ = writeln!(
                out,
                "  {:<21}{}: {times}, while it was slower than the source",
                "tier set aside:",
                tier.label()
            );
        }
        if tier.replaced_files > 0 {
            let files = text::counted(tier.replaced_files, "copy", "copies");
            let (bytes, label) = (text::bytes(tier.replaced_bytes), tier.label());
            let _ = writeln!(
                out,
                "  {:<21}{files}, {bytes} ({label}): not used for long, removed for others",
                "replaced:"
            );
        }
        if tier.given_back_files > 0 {
            let files = text::counted(tier.given_back_files, "copy", "copies");
            let (bytes, label) = (text::bytes(tier.given_back_bytes), tier.label());
            let _ = writeln!(out, "  {:<21}{files}, {bytes} ({label}): memory grew short", "given back:");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn counts(numbers: &[(Counter, u64)]) -> Counts {
        let counters: BTreeMap<&str, u64> = numbers.iter().map(|(counter, number)| (counter.name(), *number)).collect();
        serde_json::from_value(serde_json::json!({ "counters": counters })).unwrap()
    }

    #[test]
    fn a_directory_that_is_being_listed_is_no_first_open_of_a_file() {
        let counts = counts(&[(Counter::SourceOpens, 9), (Counter::HandedOver, 9)]);
        let mut status = Status {
            in_flight: 4,
            listings_in_flight: 3,
            ..Status::default()
        };
        status.files.files_copied = 2;
        assert_eq!(Derived::from(&counts, Some(&status)).tier_opens_at_most, 9 - (2 + 1));
    }

    #[test]
    fn whatever_was_not_answered_or_kept_has_its_reason_the_most_frequent_first() {
        let counts = counts(&[(Counter::ListingsStale, 1), (Counter::Stale, 2), (Counter::Writing, 3)]);
        let reason = |why: &str, number| BTreeMap::from([(why.to_owned(), number)]);
        let mut status = Status::default();
        status.skipped.not_copied = reason("memory_short", 4);
        status.listings.listings_not_kept = reason("recently_modified", 5);
        let all: [(u64, String); 5] = [
            (5, "no listing kept: modified within the last two seconds".to_owned()),
            (4, "not copied: memory grew short".to_owned()),
            (3, format!("left alone: {}", Counter::Writing.meaning())),
            (2, Counter::Stale.meaning().to_owned()),
            (1, Counter::ListingsStale.meaning().to_owned()),
        ];
        let of = |counter| counts.of(counter);
        assert_eq!(why_not(of, Some(&status)), all);
        assert_eq!(why_not(of, None), all[2..]);
    }
}
