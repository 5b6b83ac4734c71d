//! Every metric: its name, what it means, and where its value comes from. Names are those of OpenTelemetry's
//! conventions as Prometheus writes them: the unit, spelled out, then `_total` for what only grows. No label holds a
//! path or a name that a user chose.

use std::collections::BTreeMap;

use forebay_agent::{host::durations::Durations, tiering::Counts};
use forebay_contract::Counter;
use prometheus::{
    TextEncoder,
    proto::{self, LabelPair, MetricFamily, MetricType},
};

use super::{MeteredAgent, MeteredLoaders, loaders};
use forebay_settings::user_error::UserError;

/// Labels beside the agent's own, and a value.
pub(super) type MetricSample = (Vec<(&'static str, String)>, f64);

/// A metric of agents of one kind, and the way to its values.
pub(super) struct Metric<A> {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    samples: fn(&A) -> Vec<MetricSample>,
}

/// An agent as labels name it.
pub(super) trait Labelled {
    /// Returns its key, and the number of its user.
    fn labels(&self) -> (&str, u32);
}

impl Labelled for MeteredAgent {
    fn labels(&self) -> (&str, u32) {
        (&self.key, self.user_id)
    }
}

/// The one histogram: its name, and what it means.
const SOURCE_OPEN: (&str, &str) = (
    "forebay_source_open_duration_seconds",
    "Time that an open for reading took which the source answered, as the program saw it",
);

pub(super) const fn counter<A>(name: &'static str, help: &'static str, samples: fn(&A) -> Vec<MetricSample>) -> Metric<A> {
    Metric {
        name,
        help,
        kind: MetricType::COUNTER,
        samples,
    }
}

pub(super) const fn gauge<A>(name: &'static str, help: &'static str, samples: fn(&A) -> Vec<MetricSample>) -> Metric<A> {
    Metric {
        name,
        help,
        kind: MetricType::GAUGE,
        samples,
    }
}

/// In the order in which they are written.
const METRICS: &[Metric<MeteredAgent>] = &[
    gauge("forebay_runs", "Runs that the agent serves now", |agent| {
        one(agent.totals.status.runs)
    }),
    counter(
        "forebay_covered_processes_total",
        "Processes that the preload library served",
        |agent| one(agent.totals.doors.of(Counter::Processes)),
    ),
    counter(
        "forebay_opens_total",
        "Opens for reading under the sources, by who answered",
        |agent| by_origin(agent, |answered| answered.opens, from_source(&agent.totals.doors)),
    ),
    counter(
        "forebay_opened_file_size_bytes_total",
        "Sizes of the files that were opened for reading under the sources, by who answered",
        |agent| by_origin(agent, |answered| answered.bytes, agent.totals.doors.of(Counter::FromSourceBytes)),
    ),
    counter(
        "forebay_passed_opens_total",
        "Opens under the sources that no tier answered though a copy was known, or that none could, by reason",
        |agent| {
            let passed = Counter::MISSED.iter().chain(Counter::PASSED);
            passed
                .map(|counter| {
                    let name = counter.name();
                    let reason = name.strip_prefix("pass_").unwrap_or(name);
                    (vec![("reason", reason.into())], agent.totals.doors.of(*counter) as f64)
                })
                .collect()
        },
    ),
    counter(
        "forebay_listings_total",
        "Directories under the sources that programs listed",
        |agent| one(agent.totals.doors.of(Counter::SourceListings)),
    ),
    counter(
        "forebay_saved_listings_total",
        "Directories under the sources that were listed on the node",
        |agent| one(agent.totals.doors.of(Counter::ListingsSaved)),
    ),
    counter(
        "forebay_passed_listings_total",
        "Directories that the source listed though a listing was known or could have been made, by reason",
        |agent| {
            let passed = Counter::NOT_LISTED.iter();
            passed
                .map(|counter| {
                    let name = counter.name();
                    let reason = name.strip_prefix("listings_").unwrap_or(name);
                    (vec![("reason", reason.into())], agent.totals.doors.of(*counter) as f64)
                })
                .collect()
        },
    ),
    counter(
        "forebay_hand_overs_total",
        "Files that programs opened and the agent was handed",
        |agent| one(agent.totals.status.files.handed_over),
    ),
    counter("forebay_copied_files_total", "Files copied to a tier", |agent| {
        one(agent.totals.status.files.files_copied)
    }),
    counter("forebay_copied_bytes_total", "Bytes of files copied to a tier", |agent| {
        one(agent.totals.status.files.bytes_copied)
    }),
    counter("forebay_kept_listings_total", "Listings of directories kept in a tier", |agent| {
        one(agent.totals.status.listings.listings_kept)
    }),
    counter(
        "forebay_read_ahead_files_total",
        "Files that were read ahead of their first reader",
        |agent| one(agent.totals.status.prefetch.read_ahead_files),
    ),
    counter(
        "forebay_read_ahead_bytes_total",
        "Bytes of files that were read ahead of their first reader",
        |agent| one(agent.totals.status.prefetch.read_ahead_bytes),
    ),
    counter(
        "forebay_prefetched_files_total",
        "Files copied to a tier before any program had opened them",
        |agent| one(agent.totals.status.prefetch.prefetched_files),
    ),
    counter(
        "forebay_prefetched_bytes_total",
        "Bytes of files copied to a tier before any program had opened them",
        |agent| one(agent.totals.status.prefetch.prefetched_bytes),
    ),
    counter(
        "forebay_shared_received_files_total",
        "Files of programs that came from other nodes",
        |agent| one(agent.totals.status.peers.from_peers_files),
    ),
    counter(
        "forebay_shared_received_bytes_total",
        "Bytes of files of programs that came from other nodes",
        |agent| one(agent.totals.status.peers.from_peers_bytes),
    ),
    counter(
        "forebay_shared_not_received_files_total",
        "Files of programs that other nodes own and did not give",
        |agent| one(agent.totals.status.peers.left_to_source),
    ),
    counter(
        "forebay_shared_read_files_total",
        "Files that were read from the source for other nodes",
        |agent| one(agent.totals.status.peers.for_peers_files),
    ),
    counter(
        "forebay_shared_sent_bytes_total",
        "Bytes of files that were sent to other nodes",
        |agent| one(agent.totals.status.peers.to_peers_bytes),
    ),
    counter(
        "forebay_not_copied_files_total",
        "Hand-overs that came to no copy, by reason",
        |agent| by_reason(&agent.totals.status.skipped.not_copied),
    ),
    counter(
        "forebay_not_kept_listings_total",
        "Directories that programs listed and of which no listing was kept, by reason",
        |agent| by_reason(&agent.totals.status.listings.listings_not_kept),
    ),
    counter("forebay_adopted_copies_total", "Copies of earlier agents taken over", |agent| {
        one(agent.totals.status.adopted)
    }),
    counter(
        "forebay_invalidated_names_total",
        "Names found changed or gone at the source",
        |agent| one(agent.totals.status.invalidated),
    ),
    counter(
        "forebay_source_read_bytes_total",
        "Bytes the agent read of source files, those in the page cache among them",
        |agent| one(agent.totals.status.files.source_bytes_read),
    ),
    gauge("forebay_copies_in_flight", "Copies of files being made or waiting", |agent| {
        one(agent.totals.status.files_in_flight())
    }),
    gauge("forebay_tier_usage_bytes", "Bytes of copies in a tier", |agent| {
        by_tier(agent, |tier| tier.used_bytes)
    }),
    gauge("forebay_tier_limit_bytes", "Most bytes of copies in a tier", |agent| {
        by_tier(agent, |tier| tier.quota_bytes)
    }),
    gauge("forebay_tier_copies", "Copies of files in a tier", |agent| {
        by_tier(agent, |tier| tier.files)
    }),
    gauge("forebay_tier_up", "Whether a tier is in use (1) or switched off (0)", |agent| {
        by_tier(agent, |tier| u64::from(tier.off.is_none()))
    }),
    counter("forebay_agent_cpu_time_seconds_total", "Processor time of the agent", |agent| {
        vec![(Vec::new(), agent.totals.status.cpu_ms as f64 / 1e3)]
    }),
];

/// Opens that the source answered, those that failed not among them: each is counted as one of these. All opens less
/// those of the tiers would go back now and then, for counters are not read all at once.
fn from_source(doors: &Counts) -> u64 {
    const BECAME: &[Counter] = &[
        Counter::HandedOver,
        Counter::DroppedFull,
        Counter::DroppedNoAgent,
        Counter::NoRoom,
        Counter::NotRegular,
        Counter::TierOff,
    ];
    let all: u64 = BECAME.iter().map(|counter| doors.of(*counter)).sum();
    all.saturating_sub(doors.of(Counter::CopyAfterOpen))
}

pub(super) fn one(value: u64) -> Vec<MetricSample> {
    vec![(Vec::new(), value as f64)]
}

pub(super) fn by_reason(refused: &BTreeMap<String, u64>) -> Vec<MetricSample> {
    refused
        .iter()
        .map(|(why, number)| (vec![("reason", why.clone())], *number as f64))
        .collect()
}

fn by_tier(agent: &MeteredAgent, value: impl Fn(&forebay_agent::tiering::protocol::TierStatus) -> u64) -> Vec<MetricSample> {
    let tiers = agent.totals.status.tiers.iter().enumerate();
    tiers
        .map(|(at, tier)| (vec![("tier", at.to_string())], value(tier) as f64))
        .collect()
}

fn by_origin(agent: &MeteredAgent, value: impl Fn(&forebay_agent::tiering::Answered) -> u64, source: u64) -> Vec<MetricSample> {
    let tiers = agent.totals.doors.tiers.iter().enumerate();
    tiers
        .map(|(at, answered)| (vec![("origin", format!("tier_{at}"))], value(answered) as f64))
        .chain([(vec![("origin", "source".into())], source as f64)])
        .collect()
}

/// All of it. What no agent has a value for is left out.
///
/// # Errors
/// Never, for names and labels are ours.
pub(super) fn text(agents: &[MeteredAgent], loaders: &[MeteredLoaders]) -> Result<String, UserError> {
    let mut families = vec![family(
        "forebay_agents",
        "Agents of this user that run on this node",
        MetricType::GAUGE,
        vec![value(MetricType::GAUGE, Vec::new(), agents.len() as f64)],
    )];
    families.extend(METRICS.iter().map(|metric| metric.family(agents)));
    let durations = agents.iter().map(|agent| {
        let doors = &agent.totals.doors;
        let sum_s = doors.of(Counter::SourceOpenNs) as f64 / 1e9;
        histogram(labels_of(agent, Vec::new()), &doors.source_open, sum_s)
    });
    let (name, help) = SOURCE_OPEN;
    families.push(family(name, help, MetricType::HISTOGRAM, durations.collect()));
    families.extend(loaders::families(loaders));
    families.retain(|family| !family.get_metric().is_empty());
    TextEncoder::new()
        .encode_to_string(&families)
        .map_err(|error| UserError::with_status(1, format_args!("the metrics can't be written: {error}")))
}

impl<A: Labelled> Metric<A> {
    /// Returns the metric with the values of all agents.
    pub(super) fn family(&self, agents: &[A]) -> MetricFamily {
        let samples = agents.iter().flat_map(|agent| {
            let all = (self.samples)(agent).into_iter();
            all.map(|(labels, number)| value(self.kind, labels_of(agent, labels), number))
        });
        family(self.name, self.help, self.kind, samples.collect())
    }
}

pub(super) fn histogram(labels: Vec<LabelPair>, durations: &Durations, sum_s: f64) -> proto::Metric {
    let buckets = durations.cumulative().map(|(bound_s, shorter)| {
        let mut bucket = proto::Bucket::default();
        bucket.set_upper_bound(bound_s);
        bucket.set_cumulative_count(shorter);
        bucket
    });
    let mut histogram = proto::Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(durations.count());
    histogram.set_sample_sum(sum_s);
    let mut metric = proto::Metric::from_label(labels);
    metric.set_histogram(histogram);
    metric
}

pub(super) fn labels_of(agent: &impl Labelled, more: Vec<(&'static str, String)>) -> Vec<LabelPair> {
    let (key, user_id) = agent.labels();
    let own = [("agent", key.to_owned()), ("user_id", user_id.to_string())];
    own.into_iter()
        .chain(more)
        .map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name(name.to_owned());
            pair.set_value(value);
            pair
        })
        .collect()
}

pub(super) fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<proto::Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

fn value(kind: MetricType, labels: Vec<LabelPair>, number: f64) -> proto::Metric {
    let mut metric = proto::Metric::from_label(labels);
    if kind == MetricType::COUNTER {
        let mut counter = proto::Counter::default();
        counter.set_value(number);
        metric.set_counter(counter);
    } else {
        let mut gauge = proto::Gauge::default();
        gauge.set_value(number);
        metric.set_gauge(gauge);
    }
    metric
}
