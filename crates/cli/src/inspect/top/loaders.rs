//! Two looks at the loaders as lines of text: where samples came from, and the traffic with other nodes.

use std::{collections::BTreeMap, time::Duration};

use forebay_agent::{
    host::durations::Durations,
    samples::status::{LoaderStatus, NodeStatus, SamplesStatus},
};
use forebay_settings::text;

use super::figures::{row, took};

/// Reasons why a request between nodes brought nothing, in words.
const REASONS: &[(&str, &str)] = &[
    ("absent", "not there"),
    ("busy", "busy"),
    ("failed", "without an answer in time"),
    ("corrupt", "with a wrong digest"),
    ("other_members", "from nodes with another table of members"),
    ("invalid", "invalid"),
    ("strangers", "connections of strangers"),
];

/// Returns the lines of all loaders, each after an empty line.
pub(super) fn lines(before: Option<&SamplesStatus>, now: Option<&SamplesStatus>, elapsed: Duration) -> Vec<String> {
    let Some(now) = now else { return Vec::new() };
    let mut lines = Vec::new();
    for loader in &now.loaders {
        let known = before.and_then(|before| before.loaders.iter().find(|other| other.name == loader.name));
        lines.push(String::new());
        lines.extend(of_loader(known.unwrap_or(loader), loader, elapsed));
    }
    let more = now.running.saturating_sub(now.loaders.len() as u64);
    if more > 0 {
        lines.push(format!("and {}", text::counted(more, "other loader", "other loaders")));
    }
    lines
}

fn of_loader(earlier: &LoaderStatus, loader: &LoaderStatus, elapsed: Duration) -> Vec<String> {
    let ranks = text::counted(loader.ranks.into(), "rank", "ranks");
    let mut lines = vec![
        format!(
            "loader {}: {ranks}, {} of shared memory",
            text::of_path(loader.name.as_ref()),
            text::bytes(loader.arena_bytes)
        ),
        format!(
            "  {:<30}{:>12}{:>10}{:>12}{:>12}",
            "samples", "samples", "a second", "of bytes", "a second"
        ),
    ];
    let (then, now) = (&earlier.totals.figures, &loader.totals.figures);
    let mut add = |name, samples, bytes| lines.push(row(elapsed, name, samples, bytes));
    add("from memory", (now.from_memory, then.from_memory), None);
    add(
        "from disks",
        (now.from_disk, then.from_disk),
        Some((now.disk_bytes, then.disk_bytes)),
    );
    if now.nodes > 1 {
        add(
            "from other nodes",
            (now.from_peers, then.from_peers),
            Some((now.peer_bytes, then.peer_bytes)),
        );
    }
    add(
        "from the source",
        (now.from_source, then.from_source),
        Some((now.source_bytes, then.source_bytes)),
    );
    if now.nodes > 1 {
        let sent = Some((loader.totals.peers.sent_bytes, earlier.totals.peers.sent_bytes));
        add("to other nodes", (now.to_peers, then.to_peers), sent);
        lines.extend(of_nodes(earlier, loader));
    } else if let Some(why) = &loader.alone {
        lines.push(headed("other nodes:", &format!("samples are not shared: {why}")));
    }
    lines
}

fn of_nodes(earlier: &LoaderStatus, loader: &LoaderStatus) -> Vec<String> {
    let (then, now) = (&earlier.totals.peers, &loader.totals.peers);
    let others = loader.totals.figures.nodes - 1;
    let times = timed(&now.took, &then.took);
    let mut lines = vec![headed(
        "other nodes:",
        &format!("samples are shared with {}{times}", text::counted(others, "node", "nodes")),
    )];
    for node in &loader.nodes {
        let known = earlier.nodes.iter().find(|other| other.name == node.name);
        lines.push(headed("", &of_node(known.unwrap_or(node), node)));
    }
    for (name, reasons) in [("not received:", &now.not_received), ("not sent:", &now.not_sent)] {
        if let Some(reasons) = in_words(reasons) {
            lines.push(headed(name, &reasons));
        }
    }
    lines
}

fn of_node(earlier: &NodeStatus, node: &NodeStatus) -> String {
    let samples = text::counted(node.samples, "sample", "samples");
    let reasons = in_words(&node.not_received)
        .map(|reasons| format!("; {reasons}"))
        .unwrap_or_default();
    let times = timed(&node.took, &earlier.took);
    format!(
        "{}: {samples}, {}{times}{reasons}",
        text::of_path(node.name.as_ref()),
        text::bytes(node.bytes)
    )
}

fn timed(now: &Durations, then: &Durations) -> String {
    took(now, then).map(|took| format!("; {took}")).unwrap_or_default()
}

fn headed(head: &str, rest: &str) -> String {
    format!("  {head:<16}{rest}")
}

/// Describes counts by reason; `None` if all are zero.
fn in_words(reasons: &BTreeMap<String, u64>) -> Option<String> {
    let words: Vec<String> = REASONS
        .iter()
        .filter_map(|(key, words)| Some((reasons.get(*key).copied().filter(|number| *number > 0)?, words)))
        .map(|(number, words)| format!("{} {words}", text::count(number)))
        .collect();
    (!words.is_empty()).then(|| words.join(", "))
}

#[cfg(test)]
mod tests {
    use forebay_agent::samples::Figures;

    use super::*;

    fn loader(number: u64) -> LoaderStatus {
        let mut loader = LoaderStatus {
            name: "train".into(),
            ranks: 2,
            arena_bytes: 64 << 20,
            ..LoaderStatus::default()
        };
        loader.totals.figures = Figures {
            from_memory: 10 * number,
            from_peers: number,
            peer_bytes: number << 20,
            to_peers: 2 * number,
            nodes: 3,
            ..Figures::default()
        };
        loader.totals.peers.sent_bytes = number << 21;
        loader.totals.peers.not_received = [("busy".into(), number), ("failed".into(), 0)].into();
        loader.nodes = vec![NodeStatus {
            name: "node1".into(),
            samples: number,
            bytes: number << 20,
            ..NodeStatus::default()
        }];
        loader
    }

    fn status(loader: LoaderStatus) -> SamplesStatus {
        SamplesStatus {
            running: 2,
            loaders: vec![loader],
            ..SamplesStatus::default()
        }
    }

    #[test]
    fn traffic_with_other_nodes_is_shown_with_its_rates_and_refusals() {
        let (before, now) = (status(loader(10)), status(loader(30)));
        let lines = lines(Some(&before), Some(&now), Duration::from_secs(2)).join("\n");
        for part in [
            "loader train: 2 ranks, 64 MiB of shared memory",
            "  from memory                            300       100",
            "  from other nodes                        30        10      30 MiB      10 MiB",
            "  to other nodes                          60        20      60 MiB      20 MiB",
            "  other nodes:    samples are shared with 2 nodes",
            "                  node1: 30 samples, 30 MiB",
            "  not received:   30 busy",
            "and 1 other loader",
        ] {
            assert!(lines.contains(part), "{part}\n{lines}");
        }
        assert!(!lines.contains("not sent") && !lines.contains("in time"), "{lines}");
    }

    #[test]
    fn a_node_alone_says_why() {
        let mut alone = loader(1);
        alone.totals.figures.nodes = 0;
        alone.alone = Some("FOREBAY_PEERS=off".into());
        let lines = lines(None, Some(&status(alone)), Duration::ZERO).join("\n");
        assert!(
            lines.contains("  other nodes:    samples are not shared: FOREBAY_PEERS=off"),
            "{lines}"
        );
        assert!(!lines.contains("from other nodes"), "{lines}");
    }
}
