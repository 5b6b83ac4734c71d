//! Two looks at the agents as lines of text: totals of the later one, and rates between them.

use std::time::Duration;

use forebay_agent::host::durations::Durations;
use forebay_contract::Counter;

use super::{AgentsSnapshot, TopAgent, loaders};
use crate::run::summary;
use forebay_settings::text;

/// Returns the lines of the screen.
pub(super) fn lines(before: &AgentsSnapshot, now: &AgentsSnapshot) -> Vec<String> {
    if now.is_empty() {
        return vec!["no agent runs on this node; `forebay run` starts one".into()];
    }
    let elapsed = now.at.duration_since(before.at);
    let mut lines = Vec::new();
    for agent in &now.agents {
        let earlier = before.agents.iter().find(|other| other.dir == agent.dir).unwrap_or(agent);
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.extend(AgentLines { earlier, agent, elapsed }.all());
    }
    let of_loaders = loaders::lines(before.samples.as_ref(), now.samples.as_ref(), elapsed);
    // Each of them begins with an empty line.
    lines.extend(of_loaders.into_iter().skip(usize::from(now.agents.is_empty())));
    lines
}

/// Returns a line of a table: totals, and what was added a second since the earlier look.
pub(super) fn row(elapsed: Duration, name: &str, (number, before): (u64, u64), bytes: Option<(u64, u64)>) -> String {
    let (all, rate_bytes) = bytes.map_or_else(Default::default, |(now, then)| {
        (text::bytes(now), text::bytes(a_second(elapsed, now, then)))
    });
    let name = text::shortened(name, 29);
    let rate = text::count(a_second(elapsed, number, before));
    format!("  {name:<30}{:>12}{rate:>10}{all:>12}{rate_bytes:>12}", text::count(number))
}

fn a_second(elapsed: Duration, now: u64, then: u64) -> u64 {
    let seconds = elapsed.as_secs_f64();
    if seconds > 0.0 {
        (text::ratio(now.saturating_sub(then), 1) / seconds).round() as u64
    } else {
        0
    }
}

/// Describes durations since the earlier look or, without any since then, so far.
pub(super) fn took(now: &Durations, then: &Durations) -> Option<String> {
    let lately = now.since(then);
    let (shown, when) = if lately.count() > 0 {
        (&lately, "just now")
    } else {
        (now, "so far")
    };
    let took = text::median_and_p99(shown.quantile_s(0.5)?, shown.quantile_s(0.99)?);
    Some(format!("{took} ({when})"))
}

/// One agent's lines.
struct AgentLines<'a> {
    earlier: &'a TopAgent,
    agent: &'a TopAgent,
    elapsed: Duration,
}

impl AgentLines<'_> {
    fn all(&self) -> Vec<String> {
        let runs = text::counted(self.agent.status.runs, "run", "runs");
        let processes = text::counted(self.agent.counts.of(Counter::Processes), "process", "processes");
        let cpu = text::duration(Duration::from_millis(self.agent.status.cpu_ms));
        let mut lines = vec![format!("{runs}, {processes} covered; the agent has used {cpu} of CPU")];
        lines.push(format!(
            "  {:<30}{:>12}{:>10}{:>12}{:>12}",
            "opened in these runs", "opens", "a second", "of files", "a second"
        ));
        lines.extend(self.tiers());
        lines.push(self.source());
        lines.extend(self.source_open());
        lines.push(String::new());
        lines.extend(self.copies());
        lines.extend(self.reasons());
        lines
    }

    fn tiers(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (at, tier) in self.agent.status.tiers.iter().enumerate() {
            let (now, then) = (self.agent.counts.tier(at), self.earlier.counts.tier(at));
            lines.push(row(
                self.elapsed,
                &tier.label(),
                (now.opens, then.opens),
                Some((now.bytes, then.bytes)),
            ));
        }
        lines
    }

    fn source(&self) -> String {
        let bytes = |agent: &TopAgent| agent.counts.of(Counter::FromSourceBytes);
        row(
            self.elapsed,
            "the source",
            (self.agent.from_source(), self.earlier.from_source()),
            Some((bytes(self.agent), bytes(self.earlier))),
        )
    }

    /// Returns the time of opens that the source answers.
    fn source_open(&self) -> Option<String> {
        let took = took(&self.agent.counts.source_open, &self.earlier.counts.source_open)?;
        Some(format!("  {:<30}{took}", "  to open a file there"))
    }

    fn copies(&self) -> Vec<String> {
        let (status, before) = (&self.agent.status, &self.earlier.status);
        let mut lines: Vec<String> = status
            .tiers
            .iter()
            .map(|tier| {
                let off = tier.off.as_ref().map(|why| format!("; off: {why}")).unwrap_or_default();
                let (used, quota) = (text::bytes(tier.used_bytes), text::bytes(tier.quota_bytes));
                let share = text::percent(tier.used_bytes, tier.quota_bytes);
                let copies = text::counted(tier.copies(), "copy", "copies");
                let replaced = match tier.replaced_bytes {
                    0 => String::new(),
                    bytes => format!("; {} removed for others", text::bytes(bytes)),
                };
                let back = match tier.given_back_bytes {
                    0 => String::new(),
                    bytes => format!("; {} given back, since memory grew short", text::bytes(bytes)),
                };
                let label = tier.label();
                format!(
                    "  {:<16}{copies}, {used} of {quota} ({share}) in {label}{replaced}{back}{off}",
                    "filled:"
                )
            })
            .collect();
        let rate = text::bytes(a_second(self.elapsed, status.files.bytes_copied, before.files.bytes_copied));
        lines.push(format!(
            "  {:<16}{} in flight; {} made, {} ({rate} a second)",
            "copies:",
            text::count(status.files_in_flight()),
            text::count(status.files.files_copied),
            text::bytes(status.files.bytes_copied),
        ));
        if status.prefetch.prefetched_files + status.prefetch.prefetching > 0 {
            let rate = text::bytes(a_second(
                self.elapsed,
                status.prefetch.prefetched_bytes,
                before.prefetch.prefetched_bytes,
            ));
            lines.push(format!(
                "  {:<16}{} in flight; {} made, {} ({rate} a second); {} read without result",
                "prefetched:",
                text::count(status.prefetch.prefetching),
                text::count(status.prefetch.prefetched_files),
                text::bytes(status.prefetch.prefetched_bytes),
                text::bytes(status.prefetch.prefetched_in_vain_bytes),
            ));
        }
        let peers = &status.peers;
        if peers.from_peers_files + peers.to_peers_ranges + peers.left_to_source > 0 {
            lines.push(format!(
                "  {:<16}{} received, {}; {} sent, {} read for them; {} left to the source",
                "other nodes:",
                text::counted(peers.from_peers_files, "file", "files"),
                text::bytes(peers.from_peers_bytes),
                text::bytes(peers.to_peers_bytes),
                text::counted(peers.for_peers_files, "file", "files"),
                text::count(peers.left_to_source),
            ));
        }
        let adopting = if status.adopting { ", and more to come" } else { "" };
        lines.push(format!(
            "  {:<16}{} taken over from earlier runs{adopting}; {} found changed in {}",
            "",
            text::count(status.adopted),
            text::count(status.invalidated),
            text::counted(status.sweeps, "sweep", "sweeps"),
        ));
        lines
    }

    fn reasons(&self) -> Vec<String> {
        summary::why_not(|counter| self.agent.counts.of(counter), Some(&self.agent.status))
            .iter()
            .enumerate()
            .map(|(at, (number, why))| {
                let head = if at == 0 { "passed by:" } else { "" };
                format!("  {head:<16}{} {why}", text::count(*number))
            })
            .collect()
    }
}
