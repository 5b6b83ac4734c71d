//! Data loaders on the page about a run: what bounded each epoch, whose fault long waits were, and what each rank
//! waited for over time.
use forebay_settings::text;

use crate::{
    page::{
        Page,
        plots::{self, Frame, Lane, RGBColor, SERIES},
    },
    run::loaders::{self, EpochEvent, LoaderEpochs},
};

/// Rows of a table, at most; the last ones are shown.
const ROWS_MAX: usize = 50;
/// Largest number of waits that the page shows for an epoch.
const WAITS_MAX: usize = 5;
/// Epochs that are drawn, the last ones; and ranks of each.
const DRAWN_MAX: usize = 4;
const LANES_MAX: usize = 16;
const SOURCE: RGBColor = SERIES[3];
const DECODING: RGBColor = SERIES[2];

/// The section; none where no loader of ours was used.
pub fn section(page: &mut Page, told: &[EpochEvent]) {
    let epochs = loaders::epochs(told);
    if epochs.is_empty() {
        return;
    }
    page.section(
        "Data loaders",
        "Of several ranks, times are those of the one that waited longest. The ideal is a loader that is always ready. What was read and cached is a node's.",
    );
    table(page, &epochs);
    agents(page, &epochs);
    waits(page, &epochs);
    page.part("What ranks waited for");
    page.legend([("the source", SOURCE), ("decoding", DECODING)]);
    let drawn = epochs.len().saturating_sub(DRAWN_MAX);
    let plots: Vec<String> = epochs.iter().skip(drawn).map(|(epoch, ranks)| course(*epoch, ranks)).collect();
    page.figures(&plots);
}

fn table(page: &mut Page, epochs: &LoaderEpochs<'_>) {
    let rows = last(epochs).filter_map(|(epoch, ranks)| {
        let slowest = slowest(ranks)?;
        let ratio = if slowest.ideal_s > 0.0 {
            slowest.seconds / slowest.ideal_s
        } else {
            1.0
        };
        let cells = [
            text::count(ranks.len() as u64),
            text::count(ranks.iter().map(|rank| rank.samples).sum()),
            seconds(slowest.seconds),
            format!("{ratio:.2}"),
            format!("{} (rank {})", seconds(slowest.source_wait_s), slowest.rank),
            seconds(slowest.decode_wait_s),
            slowest.bound_by.clone(),
            text::bytes(ranks.iter().filter_map(|rank| rank.read_bytes).sum()),
            text::count(ranks.iter().map(|rank| rank.skipped).sum()),
        ];
        Some((name_of(*epoch), cells))
    });
    page.table(
        [
            "ranks",
            "samples",
            "took",
            "over ideal",
            "waited for source",
            "for decoding",
            "bound by",
            "bytes of samples",
            "skipped",
        ],
        rows.collect::<Vec<_>>(),
    );
}

/// Shows the figures of the loader agents. One rank of a node reports for all; queues and threads are each rank's
/// own.
fn agents(page: &mut Page, epochs: &LoaderEpochs<'_>) {
    let rows: Vec<_> = last(epochs)
        .filter_map(|(epoch, ranks)| {
            let of_node = loaders::of_node(ranks)?;
            let queued_s = |rank: &EpochEvent| text::ratio(rank.figure("rank_queued_us"), rank.figure("rank_reads").max(1)) / 1e6;
            let longest = ranks.iter().max_by(|one, other| queued_s(one).total_cmp(&queued_s(other)))?;
            let threads = ranks.iter().map(|rank| rank.figure("rank_threads_most").to_string());
            let left = ["refused_no_room", "refused_failed", "refused_unknown"].map(|name| of_node.figure(name));
            let cells = [
                text::percent(of_node.cached(), of_node.uses()),
                text::bytes(of_node.figure("source_bytes")),
                text::bytes(of_node.figure("peer_bytes")),
                text::bytes(of_node.figure("disk_bytes")),
                text::count(of_node.figure("reads_at_once")),
                text::count(of_node.figure("hedged")),
                text::count(left.iter().sum()),
                format!("{} (rank {})", seconds(queued_s(longest)), longest.rank),
                threads.collect::<Vec<_>>().join(", "),
            ];
            Some((name_of(*epoch), cells))
        })
        .collect();
    if rows.is_empty() {
        return;
    }
    page.part("The loader agent");
    page.table(
        [
            "cached",
            "from the source",
            "from other nodes",
            "from disks",
            "reads at once",
            "made twice",
            "left to ranks",
            "a read waits for a thread",
            "threads by rank, at most",
        ],
        rows,
    );
}

fn waits(page: &mut Page, epochs: &LoaderEpochs<'_>) {
    let rows: Vec<_> = last(epochs)
        .flat_map(|(epoch, ranks)| {
            let mut waits: Vec<_> = ranks
                .iter()
                .flat_map(|rank| rank.waits.iter().map(|wait| (rank.rank, wait)))
                .collect();
            waits.sort_by(|one, other| other.1.seconds.total_cmp(&one.1.seconds));
            waits.into_iter().take(WAITS_MAX).map(|(rank, wait)| {
                let cells = [rank.to_string(), seconds(wait.at_s), seconds(wait.seconds), wait.of.clone()];
                (name_of(*epoch), cells)
            })
        })
        .collect();
    if rows.is_empty() {
        return;
    }
    page.details("The longest waits", |page| {
        page.table(
            ["rank", "after", "for", "because of"],
            rows.iter().rev().take(ROWS_MAX).rev().cloned(),
        );
    });
}

/// An epoch over time: for each rank, how much of each span it waited, and for what.
fn course(epoch: (&str, u64), ranks: &[&EpochEvent]) -> String {
    let lanes: Vec<Lane> = ranks.iter().take(LANES_MAX).map(|rank| lane(rank)).collect();
    plots::lanes(&Frame::new("time (s)", &name_of(epoch)), &lanes)
}

fn lane(rank: &EpochEvent) -> Lane {
    let (mut spans, mut begin) = (Vec::new(), 0.0);
    for at in 0..rank.source_s.len().max(rank.decode_s.len()) {
        let waited = |of: &[f64]| of.get(at).copied().unwrap_or(0.0);
        let between = begin + waited(&rank.source_s);
        spans.push((begin, between, SOURCE));
        spans.push((between, between + waited(&rank.decode_s), DECODING));
        begin += rank.span_s;
    }
    spans.retain(|(begin, end, _)| end > begin);
    Lane {
        name: format!("rank {}", rank.rank),
        spans,
    }
}

fn last<'a, 'b>(epochs: &'a LoaderEpochs<'b>) -> impl Iterator<Item = (&'a (&'b str, u64), &'a Vec<&'b EpochEvent>)> {
    epochs.iter().skip(epochs.len().saturating_sub(ROWS_MAX))
}

fn slowest<'a>(ranks: &[&'a EpochEvent]) -> Option<&'a EpochEvent> {
    ranks
        .iter()
        .copied()
        .max_by(|one, other| one.waited_s().total_cmp(&other.waited_s()))
}

fn name_of((loader, epoch): (&str, u64)) -> String {
    if loader == "0" {
        format!("epoch {}", text::count(epoch))
    } else {
        format!("loader {loader}, epoch {}", text::count(epoch))
    }
}

fn seconds(time: f64) -> String {
    if time < 1.0 {
        format!("{:.1} ms", 1e3 * time.max(0.0))
    } else {
        format!("{time:.1} s")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::run::loaders::tests::LINE;

    fn told(rank: u32, epoch: u64, source_wait_s: f64) -> EpochEvent {
        let told: EpochEvent = serde_json::from_str(LINE).expect("a line");
        EpochEvent {
            rank,
            epoch,
            source_wait_s,
            ..told
        }
    }

    fn html(told: &[EpochEvent]) -> String {
        let mut page = Page::new("t", "l", []);
        section(&mut page, told);
        page.end()
    }

    #[test]
    fn nothing_is_said_where_there_was_no_loader() {
        assert!(!html(&[]).contains("Data loaders"));
    }

    #[test]
    fn an_epoch_is_told_by_the_rank_that_waited_longest() {
        let html = html(&[told(1, 3, 8.0), told(0, 3, 6.0)]);
        for said in [
            "<th>epoch 3</th>",
            "8.0 s (rank 1)",
            "6,400",
            "2.50",
            "500.0 ms",
            "717 KiB",
            "25.0 %",
            "2.0 ms (rank 1)",
            "The longest waits",
            "3.5 s",
        ] {
            assert!(html.contains(said), "{said}: {html}");
        }
        assert_eq!(html.matches("<figure>").count(), 1);
        let drawn = format!("fill=\"#{:02X}{:02X}{:02X}\" stroke", SOURCE.0, SOURCE.1, SOURCE.2);
        assert_eq!(html.matches(&drawn).count(), 4, "two ranks, two spans each: {html}");
    }

    #[test]
    fn without_an_agent_nothing_is_said_of_one() {
        let alone = EpochEvent {
            agent: BTreeMap::new(),
            ..told(0, 3, 1.0)
        };
        assert!(!html(&[alone]).contains("The loader agent"));
    }

    #[test]
    fn the_last_epochs_are_shown_and_names_are_only_text() {
        let many: Vec<EpochEvent> = (0..60)
            .map(|epoch| EpochEvent {
                loader: "<b>".into(),
                ..told(0, epoch, 1.0)
            })
            .collect();
        let html = html(&many);
        assert_eq!(html.matches("<figure>").count(), DRAWN_MAX);
        assert!(html.contains("loader &lt;b&gt;, epoch 59") && !html.contains("epoch 9<"), "{html}");
    }
}
