//! Metrics of the agent that serves loaders: where samples came from, and the traffic with other nodes.

use forebay_agent::samples;
use prometheus::proto::{MetricFamily, MetricType};

use super::{
    MeteredLoaders,
    exposition::{Labelled, Metric, MetricSample, by_reason, counter, family, gauge, histogram, labels_of, one},
};

impl Labelled for MeteredLoaders {
    fn labels(&self) -> (&str, u32) {
        (samples::DIR, self.user_id)
    }
}

/// In the order in which they are written.
const METRICS: &[Metric<MeteredLoaders>] = &[
    gauge("forebay_loaders", "Loaders that are served now", |agent| one(agent.status.running)),
    counter(
        "forebay_loader_samples_total",
        "Samples that loaders were given, by where they came from",
        |agent| {
            let figures = &agent.status.totals.figures;
            labelled(
                "origin",
                [
                    ("memory", figures.from_memory),
                    ("disk", figures.from_disk),
                    ("peer", figures.from_peers),
                    ("source", figures.from_source),
                ],
            )
        },
    ),
    counter(
        "forebay_loader_read_bytes_total",
        "Bytes that were read or received for loaders, by where they came from",
        |agent| {
            let figures = &agent.status.totals.figures;
            labelled(
                "origin",
                [
                    ("disk", figures.disk_bytes),
                    ("peer", figures.peer_bytes),
                    ("source", figures.source_bytes),
                ],
            )
        },
    ),
    counter(
        "forebay_loader_refused_samples_total",
        "Samples that ranks had to read themselves, by reason",
        |agent| {
            let figures = &agent.status.totals.figures;
            labelled(
                "reason",
                [
                    ("no_room", figures.refused_no_room),
                    ("failed", figures.refused_failed),
                    ("unknown", figures.refused_unknown),
                ],
            )
        },
    ),
    gauge(
        "forebay_peer_nodes",
        "Nodes that share samples with this one, of the loader with the most",
        |agent| {
            let nodes = agent.status.loaders.iter().map(|loader| loader.totals.figures.nodes);
            one(nodes.max().unwrap_or(0).saturating_sub(1))
        },
    ),
    counter("forebay_peer_sent_samples_total", "Samples that other nodes were given", |agent| {
        one(agent.status.totals.figures.to_peers)
    }),
    counter("forebay_peer_sent_bytes_total", "Bytes that were sent to other nodes", |agent| {
        one(agent.status.totals.peers.sent_bytes)
    }),
    counter(
        "forebay_peer_not_received_requests_total",
        "Requests to other nodes that brought nothing, by reason",
        |agent| by_reason(&agent.status.totals.peers.not_received),
    ),
    counter(
        "forebay_peer_not_sent_requests_total",
        "Requests of other nodes that were not fulfilled, by reason",
        |agent| by_reason(&agent.status.totals.peers.not_sent),
    ),
    counter(
        "forebay_peer_hedged_bytes_total",
        "Bytes that were asked of a second node since an answer took long",
        |agent| one(agent.status.totals.peers.hedged_bytes),
    ),
];

/// The histogram: its name, and its meaning.
const RECEIVED: (&str, &str) = (
    "forebay_peer_request_duration_seconds",
    "Time from a request for a sample to its arrival from another node",
);

fn labelled<const N: usize>(label: &'static str, values: [(&str, u64); N]) -> Vec<MetricSample> {
    let sample = |(name, number): (&str, u64)| (vec![(label, name.to_owned())], number as f64);
    values.into_iter().map(sample).collect()
}

/// Returns all metrics of loaders.
pub(super) fn families(agents: &[MeteredLoaders]) -> Vec<MetricFamily> {
    let mut families: Vec<_> = METRICS.iter().map(|metric| metric.family(agents)).collect();
    let shared = agents.iter().filter(|agent| agent.status.totals.peers.took.count() > 0);
    let durations = shared.map(|agent| {
        let took = &agent.status.totals.peers.took;
        histogram(labels_of(agent, Vec::new()), took, took.sum_s())
    });
    let (name, help) = RECEIVED;
    families.push(family(name, help, MetricType::HISTOGRAM, durations.collect()));
    families
}
