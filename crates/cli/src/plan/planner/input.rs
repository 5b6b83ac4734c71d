//! Meaning of a plan file: a [`Scenario`], the values that were assumed for missing keys, and the simulated share of
//! a large dataset.

use std::{fs, path::Path};

use forebay_policy::order::Permutation;
use forebay_policy::residency::PolicyName;
use forebay_policy::schedule::ScheduleName;
use forebay_settings::text::{rate_text, time_text};
use forebay_sim::{
    Dataset, Decoders, Latency, Link, LoaderSettings, Machines, Preprocessing, Scenario, ScenarioError, SharedStorage, Sizes, TrainingJob,
};

use super::keys::PlanKeys;
use crate::plan::profile::record::ProfileRecord;
use forebay_settings::user_error::UserError;

/// Longer files are no plans.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Loading and preprocessing threads of a node for each GPU, where nothing is said.
const THREADS_A_GPU: u32 = 8;
/// One in so many threads loads, where nothing is said.
const LOADING_SHARE: u32 = 4;

/// A question, ready to be simulated.
#[derive(Clone, Debug)]
pub struct Input {
    /// The whole of it, with the default policy and schedule.
    pub scenario: Scenario,
    /// Keys that were not given, with the value that stands in for them.
    pub assumed: Vec<String>,
    /// Share of requests that may be read twice where a row hedges.
    pub hedge: f64,
    /// Measurements of `forebay profile`, if it wrote the file.
    pub measured: Option<ProfileRecord>,
    /// Name of the plan file, as given.
    pub file: String,
}

impl Input {
    /// Reads a plan file or a profile; `settings` are laid over it.
    ///
    /// # Errors
    /// What can't be read; what is unknown, missing, or can't be: the key, its value and what is allowed.
    pub fn read(file: &Path, settings: &[String]) -> Result<Self, UserError> {
        let keys = PlanKeys::read(file, &text_of(file)?, settings)?;
        let base = file.parent().unwrap_or(Path::new(""));
        Reader {
            keys: &keys,
            assumed: Vec::new(),
        }
        .input(base)
    }

    /// The refusal of what the simulator would not take.
    pub fn refuse(&self, error: &ScenarioError) -> UserError {
        UserError::bad_input(format_args!("{}: {error}", self.file))
    }
}

fn text_of(file: &Path) -> Result<String, UserError> {
    let refuse = |why: &dyn std::fmt::Display| UserError::bad_input(format_args!("{}: {why}", file.display()));
    match fs::metadata(file) {
        Err(error) => Err(refuse(&error)),
        Ok(meta) if !meta.is_file() => Err(refuse(&"this is not a file; name a plan file or what forebay profile wrote")),
        Ok(meta) if meta.len() > FILE_BYTES_MAX => Err(refuse(&"longer than 16 MiB, so no plan file")),
        Ok(_) => fs::read_to_string(file).map_err(|error| refuse(&error)),
    }
}

/// Reads key by key, and notes what was assumed.
struct Reader<'a> {
    keys: &'a PlanKeys,
    assumed: Vec<String>,
}

impl Reader<'_> {
    fn input(mut self, base: &Path) -> Result<Input, UserError> {
        let keys = self.keys;
        let nodes = self.or("cluster.nodes", keys.count("cluster.nodes", 1..=1024)?, 1);
        let gpus = required(keys, "cluster.gpus", keys.count("cluster.gpus", 1..=1024)?)? as u32;
        let threads = keys.count("cluster.threads", 2..=4096)?;
        let threads = self.or("cluster.threads", threads, u64::from(gpus * THREADS_A_GPU)) as u32;
        let loading = keys.count("cluster.loading_threads", 1..=u64::from(threads - 1))?;
        let loading = self.or("cluster.loading_threads", loading, u64::from((threads / LOADING_SHARE).max(1))) as u32;
        let dataset = self.dataset(base)?;
        let scenario = Scenario {
            machines: Machines {
                nodes: nodes as u16,
                gpus,
                cache_bytes: required(keys, "cluster.cache", keys.size("cluster.cache")?)?,
                reserved_bytes: 0,
                threads,
                loading_threads: loading,
                local_bytes_per_s: self.or_rate("cluster.memory", keys.rate("cluster.memory")?, 10e9),
                link: self.link(nodes)?,
            },
            source: self.source()?,
            job: TrainingJob {
                batch: required(keys, "job.batch", keys.count("job.batch", 1..=u64::from(dataset.samples))?)? as u32,
                drop_last: keys.flag("job.drop_last")?.unwrap_or(false),
                step_s: self.step()?,
                epochs: keys.count("job.epochs", 2..=1000)?.unwrap_or(3) as u32,
                slow_ranks: Vec::new(),
                seed: keys.count("job.seed", 0..=i64::MAX as u64)?.unwrap_or(0),
                order: self.order()?,
            },
            dataset,
            preprocessing: self.preprocessing(threads)?,
            loader: LoaderSettings {
                policy: PolicyName::Forebay,
                horizon: keys.count("loader.horizon", 1..=16)?.unwrap_or(2) as u32,
                window: vec![self.or("loader.window", keys.count("loader.window", 1..=1024)?, 4) as u32],
                prepared: keys.count("loader.prepared", 1..=1024)?.unwrap_or(2) as u32,
                schedule: ScheduleName::EarliestDeadline,
                hedge_budget: 0.0,
                background_fill: true,
                decoders: Decoders::Pool,
                across_epochs: true,
                learns_reads: false,
            },
        };
        let measured = keys.measured.clone().map(|value| {
            let refuse = |error: toml::de::Error| UserError::bad_input(format_args!("{}: [measured]: {}", keys.file, error.message()));
            value.try_into::<ProfileRecord>().map_err(refuse)
        });
        Ok(Input {
            scenario,
            assumed: self.assumed,
            hedge: keys.number("loader.hedge", 0.0..=0.5)?.unwrap_or(0.01),
            measured: measured.transpose()?,
            file: keys.file.clone(),
        })
    }

    fn step(&self) -> Result<f64, UserError> {
        let step = required(self.keys, "job.step", self.keys.time("job.step")?)?;
        if step > 0.0 {
            Ok(step)
        } else {
            Err(self.keys.refuse("job.step", &time_text(step), "more than 0 s is allowed"))
        }
    }

    fn source(&mut self) -> Result<SharedStorage, UserError> {
        let keys = self.keys;
        let bandwidth = required(keys, "source.bandwidth", keys.rate("source.bandwidth")?)?;
        let stream = keys.rate("source.stream")?;
        let median = keys.time("source.latency")?;
        let sigma = keys.number("source.tail", 0.0..=3.0)?;
        Ok(SharedStorage {
            bytes_per_s: bandwidth,
            requests_per_s: keys.per_second("source.requests")?.unwrap_or(f64::INFINITY),
            stream_bytes_per_s: self.or_rate("source.stream", stream, bandwidth.min(500e6)),
            seed: 0,
            latency: Latency {
                median_s: self.or_time("source.latency", median, 1e-3),
                sigma: self.or("source.tail", sigma, 0.5),
            },
        })
    }

    fn link(&mut self, nodes: u64) -> Result<Link, UserError> {
        const PLAIN_LINK: f64 = 25e9 / 8.0;
        let (rate, latency) = (self.keys.rate("cluster.link")?, self.keys.time("cluster.link_latency")?);
        if nodes == 1 {
            // Nobody is at the other end: nothing to assume.
            return Ok(Link {
                bytes_per_s: rate.unwrap_or(PLAIN_LINK),
                latency_s: latency.unwrap_or(50e-6),
            });
        }
        Ok(Link {
            bytes_per_s: self.or_rate("cluster.link", rate, PLAIN_LINK),
            latency_s: self.or_time("cluster.link_latency", latency, 50e-6),
        })
    }

    fn preprocessing(&mut self, threads: u32) -> Result<Preprocessing, UserError> {
        let keys = self.keys;
        let seconds = keys.time("preprocessing.seconds")?;
        let saturates = keys.count("preprocessing.saturates_at", 1..=4096)?;
        Ok(Preprocessing {
            seconds_a_sample: self.or_time("preprocessing.seconds", seconds, 0.0),
            saturates_at: saturates.map_or(threads, |at| at as u32),
            decline: keys.number("preprocessing.decline", 0.0..=1.0)?.unwrap_or(0.0),
        })
    }

    fn order(&self) -> Result<Permutation, UserError> {
        match self.keys.text("job.order")? {
            None | Some("torch") => Ok(Permutation::Torch),
            Some("counter") => Ok(Permutation::Counter),
            Some(other) => Err(self
                .keys
                .refuse("job.order", &format_args!("\"{other}\""), "\"torch\" or \"counter\" is allowed")),
        }
    }

    fn dataset(&mut self, base: &Path) -> Result<Dataset, UserError> {
        let keys = self.keys;
        let samples = keys.count("dataset.samples", 1..=u64::from(u32::MAX))?;
        if let Some(listing) = keys.text("dataset.listing")? {
            if let Some(size) = ["dataset.size", "dataset.sigma", "dataset.samples"]
                .iter()
                .find(|key| keys.has(key))
            {
                let words = format!("{size} is given too; the listing has all sizes, so leave {size} out");
                return Err(keys.refuse("dataset.listing", &format_args!("\"{listing}\""), &words));
            }
            let sizes = listed(keys, listing, &base.join(listing))?;
            return Ok(Dataset {
                samples: sizes.len() as u32,
                sizes: Sizes::Listed(sizes),
            });
        }
        let samples = required(keys, "dataset.samples", samples)?;
        let size = required(keys, "dataset.size", keys.size("dataset.size")?)?;
        let mean = size / samples;
        if mean == 0 || mean > u64::from(u32::MAX / 16) {
            let words = format!("that is {mean} bytes a sample; 1 to {} are allowed", u32::MAX / 16);
            return Err(keys.refuse("dataset.size", &keys.text("dataset.size")?.unwrap_or_default(), &words));
        }
        let sigma = keys.number("dataset.sigma", 0.0..=2.0)?;
        let sigma = self.or("dataset.sigma", sigma, 0.0);
        let mean = mean as u32;
        Ok(Dataset {
            samples: samples as u32,
            sizes: if sigma > 0.0 {
                Sizes::Lognormal { mean, sigma }
            } else {
                Sizes::Equal(mean)
            },
        })
    }

    /// Returns the given value, or `otherwise` and a note of the assumption.
    fn or<T: std::fmt::Display>(&mut self, key: &str, given: Option<T>, otherwise: T) -> T {
        given.unwrap_or_else(|| {
            self.assumed.push(format!("{key} = {otherwise}"));
            otherwise
        })
    }

    fn or_rate(&mut self, key: &str, given: Option<f64>, otherwise: f64) -> f64 {
        given.unwrap_or_else(|| {
            self.assumed.push(format!("{key} = {}", rate_text(otherwise)));
            otherwise
        })
    }

    fn or_time(&mut self, key: &str, given: Option<f64>, otherwise: f64) -> f64 {
        given.unwrap_or_else(|| {
            self.assumed.push(format!("{key} = {}", time_text(otherwise)));
            otherwise
        })
    }
}

fn required<T>(keys: &PlanKeys, key: &str, value: Option<T>) -> Result<T, UserError> {
    value.ok_or_else(|| keys.missing(key))
}

/// Sizes one a line, in bytes; whatever follows a blank is a name.
fn listed(keys: &PlanKeys, listing: &str, path: &Path) -> Result<Vec<u32>, UserError> {
    let refuse = |why: &str| keys.refuse("dataset.listing", &format_args!("\"{listing}\""), why);
    let listing = fs::read(path).map_err(|error| refuse(&error.to_string()))?;
    let text = String::from_utf8_lossy(&listing);
    let mut sizes = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let size: Option<u64> = line.split_whitespace().next().and_then(|word| word.parse().ok());
        let size = size.ok_or_else(|| refuse(&format!("line {} does not begin with a size in bytes", number + 1)))?;
        let size = u32::try_from(size).map_err(|_| {
            let why = format!(
                "line {}: samples of less than 4 GiB are allowed; list the pieces that are read at once",
                number + 1
            );
            refuse(&why)
        })?;
        // There is nothing to read of an empty file.
        if size > 0 {
            sizes.push(size);
        }
    }
    if sizes.is_empty() {
        return Err(refuse(
            "it is empty; a size in bytes a line is allowed, as find -type f -printf '%s %p\\n' prints",
        ));
    }
    Ok(sizes)
}

/// Reduced scenario that is simulated: every `factor`-th sample, with as much less memory.
#[derive(Clone, Debug)]
pub struct Scaled {
    /// Simulated scenario.
    pub scenario: Scenario,
    /// Factor by which the simulated dataset is smaller than the user's; 1: it is complete.
    pub factor: u32,
}

/// Fewer steps say little of an epoch: its ends, where windows are cut, would weigh too much.
const ITERATIONS_MIN: u32 = 64;

/// Scales a dataset to about `samples_max` samples, and the caches with it. Shares of the dataset, and what a step
/// does, stay as they are; an epoch has fewer steps, so a window weighs more of it.
pub fn scaled(scenario: &Scenario, samples_max: u32) -> Scaled {
    let world = u32::from(scenario.machines.nodes).saturating_mul(scenario.machines.gpus);
    let least = world.saturating_mul(scenario.job.batch).saturating_mul(ITERATIONS_MIN);
    let factor = (scenario.dataset.samples / samples_max.max(least).max(1)).max(1);
    let mut scenario = scenario.clone();
    scenario.dataset.samples /= factor;
    scenario.machines.cache_bytes /= u64::from(factor);
    if let Sizes::Listed(sizes) = &mut scenario.dataset.sizes {
        *sizes = sizes
            .iter()
            .step_by(factor as usize)
            .copied()
            .take(scenario.dataset.samples as usize)
            .collect();
    }
    Scaled { scenario, factor }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: &str = "[cluster]\ngpus = 2\ncache = \"1 MB\"\n[source]\nbandwidth = \"1 MB/s\"\n[dataset]\nsamples = 1000\nsize = \"10 MB\"\n\
                         [job]\nbatch = 4\nstep = \"10 ms\"\n";

    fn read(text: &str, settings: &[&str]) -> Result<Input, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("plan.toml");
        fs::write(&file, text).unwrap();
        fs::write(dir.path().join("sizes.txt"), b"10 a\n0 empty\n20 \xff\n30\n").unwrap();
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        Input::read(&file, &settings).map_err(|refusal| refusal.to_string().replace(&file.display().to_string(), "plan.toml"))
    }

    #[test]
    fn a_short_file_is_enough_and_what_is_assumed_is_said() {
        let input = read(SHORT, &[]).unwrap();
        assert_eq!(input.scenario.dataset.sizes, Sizes::Equal(10_000));
        assert_eq!(
            (
                input.scenario.machines.nodes,
                input.scenario.machines.threads,
                input.scenario.machines.loading_threads
            ),
            (1, 16, 4)
        );
        assert!(input.assumed.contains(&"cluster.threads = 16".to_owned()), "{:?}", input.assumed);
        assert!(!input.assumed.iter().any(|line| line.contains("link")));
        assert!(
            read(SHORT, &["cluster.nodes=2"])
                .unwrap()
                .assumed
                .iter()
                .any(|line| line.contains("cluster.link = 3.12 GB/s"))
        );
    }

    #[test]
    fn each_key_that_has_to_be_there_is_missed_by_name() {
        for key in ["gpus", "cache", "bandwidth", "samples", "size", "batch", "step"] {
            let text: Vec<&str> = SHORT.lines().filter(|line| !line.starts_with(key)).collect();
            let line = read(&text.join("\n"), &[]).unwrap_err();
            assert!(line.contains(&format!(".{key} is missing")), "{key}: {line}");
        }
    }

    #[test]
    fn what_can_t_be_is_named() {
        for (setting, words) in [
            ("job.batch=1001", "job.batch = 1001: a whole number from 1 to 1000"),
            ("cluster.threads=0", "cluster.threads = 0: a whole number from 2"),
            ("cluster.loading_threads=17", "a whole number from 1 to 15"),
            ("cluster.cache=0 GB", "cluster.cache: size '0 GB' is zero"),
            ("job.step=0 ms", "job.step = 0 s: more than 0 s"),
            ("source.bandwidth=-1 GB/s", "source.bandwidth: invalid rate '-1 GB/s'"),
            ("job.order=random", "job.order = \"random\": \"torch\" or \"counter\""),
            ("dataset.size=10 B", "0 bytes a sample"),
            ("dataset.listing=sizes.txt", "is given too"),
        ] {
            let line = read(SHORT, &[setting]).unwrap_err();
            assert!(line.contains(words), "{setting}: {line}");
        }
    }

    #[test]
    fn a_listing_has_the_sizes() {
        let text = SHORT.replace("samples = 1000\nsize = \"10 MB\"", "listing = \"sizes.txt\"");
        let input = read(&text.replace("batch = 4", "batch = 1"), &[]).unwrap();
        assert_eq!(input.scenario.dataset.sizes, Sizes::Listed(vec![10, 20, 30]));
        assert!(
            read(&text.replace("sizes.txt", "none.txt"), &[])
                .unwrap_err()
                .contains("dataset.listing = \"none.txt\"")
        );
    }

    #[test]
    fn scaling_keeps_shares() {
        let whole = read(SHORT, &["dataset.samples=1000000", "dataset.size=10 GB", "cluster.cache=4 GB"])
            .unwrap()
            .scenario;
        let part = scaled(&whole, 10_000);
        assert_eq!(part.factor, 100);
        assert_eq!(
            (part.scenario.dataset.samples, part.scenario.machines.cache_bytes),
            (10_000, 40_000_000)
        );
        assert_eq!(scaled(&whole, 2_000_000).factor, 1);
        // Never to fewer than 64 steps: 64 x 2 x 4 samples.
        assert_eq!(scaled(&whole, 1).factor, 1_000_000 / 512);
    }
}
