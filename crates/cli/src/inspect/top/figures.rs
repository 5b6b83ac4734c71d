//! Two looks at the agents as lines of text: totals of the later one, and rates between them.

use std::time::Duration;

use forebay_contract::Counter;

use super::{AgentsSnapshot, TopAgent};
use crate::run::summary;
use forebay_settings::text;

/// Returns the lines of the screen.
pub(super) fn lines(before: &AgentsSnapshot, now: &AgentsSnapshot) -> Vec<String> {
    if now.agents.is_empty() {
        return vec!["no agent stands on this node; one is started by forebay run".into()];
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
    lines
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
            lines.push(self.row(&tier.label(), now.opens, then.opens, Some((now.bytes, then.bytes))));
        }
        lines
    }

    fn source(&self) -> String {
        let bytes = |agent: &TopAgent| agent.counts.of(Counter::FromSourceBytes);
        self.row(
            "the source",
            self.agent.from_source(),
            self.earlier.from_source(),
            Some((bytes(self.agent), bytes(self.earlier))),
        )
    }

    /// Returns the time of opens that the source answers: since the earlier look or, without any since then, so far.
    fn source_open(&self) -> Option<String> {
        let all = &self.agent.counts.source_open;
        let lately = all.since(&self.earlier.counts.source_open);
        let (shown, when) = if lately.count() > 0 {
            (&lately, "just now")
        } else {
            (all, "so far")
        };
        let took = text::median_and_p99(shown.quantile_s(0.5)?, shown.quantile_s(0.99)?);
        Some(format!("  {:<30}{took} ({when})", "  to open a file there"))
    }

    fn row(&self, name: &str, opens: u64, before: u64, bytes: Option<(u64, u64)>) -> String {
        let (all, a_second) = bytes.map_or_else(Default::default, |(now, then)| {
            (text::bytes(now), text::bytes(self.a_second(now, then)))
        });
        let name = text::shortened(name, 29);
        let rate = text::count(self.a_second(opens, before));
        format!("  {name:<30}{:>12}{rate:>10}{all:>12}{a_second:>12}", text::count(opens))
    }

    fn a_second(&self, now: u64, then: u64) -> u64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 {
            (text::ratio(now.saturating_sub(then), 1) / seconds).round() as u64
        } else {
            0
        }
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
        let rate = text::bytes(self.a_second(status.files.bytes_copied, before.files.bytes_copied));
        lines.push(format!(
            "  {:<16}{} in flight; {} made, {} ({rate} a second)",
            "copies:",
            text::count(status.files_in_flight()),
            text::count(status.files.files_copied),
            text::bytes(status.files.bytes_copied),
        ));
        if status.prefetch.prefetched_files + status.prefetch.prefetching > 0 {
            let rate = text::bytes(self.a_second(status.prefetch.prefetched_bytes, before.prefetch.prefetched_bytes));
            lines.push(format!(
                "  {:<16}{} in flight; {} made, {} ({rate} a second); {} read without result",
                "prefetched:",
                text::count(status.prefetch.prefetching),
                text::count(status.prefetch.prefetched_files),
                text::bytes(status.prefetch.prefetched_bytes),
                text::bytes(status.prefetch.prefetched_in_vain_bytes),
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
