//! Measurements of `forebay profile`, and the file that it writes: the keys of a plan that can be measured, and the
//! measurements themselves.

use std::fmt::Write as _;

use forebay_settings::{
    text::{rate_text, time_text},
    user_error::UserError,
};
use serde::{Deserialize, Serialize};

/// Reads of one place with so many threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadRound {
    /// Threads that read at once.
    pub threads: u32,
    /// Samples (whole files, or pieces of at most 16 MiB of larger ones) that were read.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
    /// From the first open to the last byte, in seconds.
    pub seconds: f64,
    /// Median, 95th, 98th and 99th percentile of opening and reading a sample, in seconds.
    pub read_s: [f64; 4],
    /// Times to the first byte, in seconds, at the same quantiles.
    pub first_byte_s: [f64; 4],
    /// Bytes a second of one stream after its first byte; none where samples end with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_bytes_per_s: Option<f64>,
    /// Samples that were still in this machine's memory when they were read; none where the file system can't tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<u64>,
    /// Samples that an earlier round had read, since there were no more.
    pub again: u64,
}

impl ReadRound {
    /// Bytes a second of all threads together.
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no more digits")]
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(1e-9)
    }
}

/// Preprocessing with so many worker processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreprocessRound {
    /// Worker processes of one thread each.
    pub threads: u32,
    /// Samples a second of all of them.
    pub samples_per_s: f64,
    /// CPU time of a sample in seconds, as the workers used it.
    pub cpu_s: f64,
    /// Cost of a sample, by size.
    pub by_size: Vec<SizeClass>,
}

/// Returns the cost of a sample of about this size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizeClass {
    /// Mean size in bytes.
    pub bytes: f64,
    /// Mean time of one call in seconds.
    pub seconds: f64,
}

/// The table `measured` of a profile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileRecord {
    /// Time of the measurement, in UTC.
    pub when: String,
    /// Processors that this process may use.
    pub processors: u32,
    /// Load average over the last minute, before it began.
    pub load_average: f64,
    /// Sentences that say what the figures describe and what they do not.
    pub notes: Vec<String>,
    /// The source: T_PFS.
    #[serde(default)]
    pub source: Vec<ReadRound>,
    /// The local tier, or memory: T_l.
    #[serde(default)]
    pub local: Vec<ReadRound>,
    /// The callable.
    #[serde(default)]
    pub preprocessing: Vec<PreprocessRound>,
    /// Threads past which preprocessing no longer gains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preprocessing_saturates_at: Option<u32>,
}

/// Facts about the dataset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FoundFiles {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The search came to its end; otherwise there are more.
    pub complete: bool,
}

/// The text of a profile: a plan file that lacks what can't be measured.
///
/// # Errors
/// Never in practice: when the measurements can't be written as TOML.
pub fn text(measured: &ProfileRecord, found: &FoundFiles, peer_bytes_per_s: Option<f64>) -> Result<String, UserError> {
    let mut out = String::from("# Written by forebay profile. Fill in what is commented out, then: forebay plan THIS-FILE\n\n[cluster]\n");
    out.push_str("# nodes = 1\n# gpus = 8\n# cache = \"40 GB\"  # of each node, for samples\n");
    // A thread that loads and one that preprocesses there are in any case.
    let _ = writeln!(out, "threads = {}", measured.processors.max(2));
    if let Some(rate) = fastest(&measured.local) {
        let _ = writeln!(out, "memory = \"{}\"", rate_text(rate));
    }
    match peer_bytes_per_s {
        Some(rate) => drop(writeln!(out, "link = \"{}\"", rate_text(rate))),
        None => out.push_str("# link = \"25 Gbit/s\"\n"),
    }
    out.push_str("\n[source]\n");
    if let Some(rate) = fastest(&measured.source) {
        let _ = writeln!(
            out,
            "bandwidth = \"{}\"  # the most that this node saw; all nodes together may get more",
            rate_text(rate)
        );
    }
    if let Some(alone) = measured.source.iter().min_by_key(|reading| reading.threads) {
        if let Some(rate) = alone.stream_bytes_per_s {
            let _ = writeln!(out, "stream = \"{}\"", rate_text(rate));
        }
        let [median, _, _, p99] = alone.first_byte_s;
        let _ = writeln!(out, "latency = \"{}\"", time_text(median));
        let _ = writeln!(out, "tail = {:.2}", lognormal_sigma(median, p99));
    }
    out.push_str("\n[dataset]\n");
    let mark = if found.complete { "" } else { "# at least: " };
    let _ = writeln!(out, "{mark}samples = {}\n{mark}size = \"{} B\"", found.files, found.bytes);
    out.push_str("\n[job]\n# batch = 32  # of one GPU\n# step = \"120 ms\"  # forward, backward and update\n");
    if let Some(alone) = measured.preprocessing.first() {
        let _ = writeln!(out, "\n[preprocessing]\nseconds = \"{}\"", time_text(alone.cpu_s));
        if let Some(threads) = measured.preprocessing_saturates_at {
            let _ = writeln!(out, "saturates_at = {threads}");
        }
    }
    let table = toml::to_string(&toml::Table::from_iter([("measured", measured)].map(|(key, value)| {
        let value = toml::Value::try_from(value).unwrap_or_else(|_| toml::Value::Table(toml::Table::new()));
        (key.to_owned(), value)
    })));
    let table = table.map_err(|error| UserError::bad_input(format_args!("the profile can't be written: {error}")))?;
    out.push('\n');
    out.push_str(&table);
    Ok(out)
}

fn fastest(readings: &[ReadRound]) -> Option<f64> {
    readings.iter().map(ReadRound::bytes_per_s).max_by(f64::total_cmp)
}

/// Sigma of the lognormal distribution with this median and 99th percentile.
fn lognormal_sigma(median: f64, p99: f64) -> f64 {
    /// 99th percentile of the standard normal distribution.
    const Z99: f64 = 2.326_347_874;
    ((p99 / median.max(1e-12)).ln() / Z99).clamp(0.0, 3.0)
}
