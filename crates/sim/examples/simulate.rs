//! Simulates scenarios: one as a JSON object a line on standard input, one answer a line on standard output.
//! `bench/plan.py` runs it.
//!
//! The keys of a scenario are those of a plan file, such as `{"cluster": {"nodes": 8}}`; missing keys get the values of
//! the defaults below. Times are seconds, sizes bytes, rates per second; a rate of `null` has no limit. The answer
//! holds the figures of each epoch, or an `error`.

use std::io::{self, BufRead, Write};
use std::ops::ControlFlow;
use std::time::Instant;

use forebay_policy::order::Permutation;
use forebay_policy::residency::PolicyName;
use forebay_policy::schedule::ScheduleName;
use forebay_sim::{
    Dataset, Decoders, EpochFigures, Latency, Link, LoaderSettings, Machines, Outcome, Preprocessing, Scenario, SharedStorage, Sizes,
    StepTimes, TrainingJob, simulate,
};
use serde_json::{Value, json};

fn main() -> io::Result<()> {
    let mut answers = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let answer = answer(&line?).unwrap_or_else(|error| json!({ "error": error }));
        writeln!(answers, "{answer}")?;
        answers.flush()?;
    }
    Ok(())
}

fn answer(line: &str) -> Result<Value, String> {
    let asked: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let scenario = ScenarioKeys { asked: &asked }.scenario()?;
    let begun = Instant::now();
    let outcome = simulate(&scenario, &mut |_| ControlFlow::Continue(())).map_err(|error| error.to_string())?;
    let took_s = begun.elapsed().as_secs_f64();
    let is_detailed = asked["detailed"].as_bool().unwrap_or(false);
    Ok(told(&outcome, took_s, is_detailed))
}

fn told(outcome: &Outcome, took_s: f64, is_detailed: bool) -> Value {
    let epochs: Vec<Value> = outcome.epochs.iter().map(figures).collect();
    let mut told = json!({ "epochs": epochs, "took_s": took_s });
    if is_detailed {
        told["step_times_s"] = json!(outcome.step_times_s);
        told["steps"] = outcome.steps.iter().map(step).collect();
    }
    told
}

fn figures(of: &EpochFigures) -> Value {
    json!({
        "iterations": of.iterations,
        "source_bytes": of.reads.source_bytes,
        "source_requests": of.reads.source_requests,
        "hedged_bytes": of.reads.hedged_bytes,
        "local_bytes": of.reads.local_bytes,
        "peer_bytes": of.reads.peer_bytes,
        "handed_bytes": of.reads.handed_bytes,
        "samples_by_origin": of.reads.samples_by_origin,
        "samples_ready": of.reads.samples_ready,
        "seconds": of.seconds,
        "ideal_seconds": of.ideal_seconds,
        "stalled_seconds": of.waits.stalled_seconds,
        "stalled": of.waits.stalled,
        "imbalanced": of.waits.imbalanced,
        "step_p50_s": of.waits.step_p50_s,
        "step_p99_s": of.waits.step_p99_s,
        "gpu_use": of.gpu_use,
        "held_bytes_max": of.held_bytes_max,
        "window_bytes_max": of.window_bytes_max,
    })
}

fn step(of: &StepTimes) -> Value {
    json!({
        "rank": of.rank,
        "iteration": of.iteration,
        "load_s": of.load_s,
        "preprocess_s": of.preprocess_s,
        "train_s": of.train_s,
        "late_s": of.late_s,
    })
}

/// Keys of a scenario as given.
struct ScenarioKeys<'a> {
    asked: &'a Value,
}

impl ScenarioKeys<'_> {
    fn value(&self, key: &str) -> Option<&Value> {
        let (section, name) = key.split_once('.')?;
        self.asked.get(section)?.get(name)
    }

    fn number(&self, key: &str, default: f64) -> Result<f64, String> {
        match self.value(key) {
            None => Ok(default),
            Some(Value::Null) => Ok(f64::INFINITY),
            Some(value) => value.as_f64().ok_or_else(|| format!("{key} = {value}: a number is allowed")),
        }
    }

    fn count<T: TryFrom<u64>>(&self, key: &str, default: T) -> Result<T, String> {
        let Some(value) = self.value(key) else { return Ok(default) };
        let count = value.as_u64().and_then(|count| T::try_from(count).ok());
        count.ok_or_else(|| format!("{key} = {value}: a whole number is allowed"))
    }

    fn flag(&self, key: &str) -> Result<bool, String> {
        let Some(value) = self.value(key) else { return Ok(false) };
        value.as_bool().ok_or_else(|| format!("{key} = {value}: true or false is allowed"))
    }

    fn name<T: Copy>(&self, key: &str, names: &[(&str, T)]) -> Result<T, String> {
        let Some(value) = self.value(key) else { return Ok(names[0].1) };
        let found = names.iter().find(|(name, _)| Some(*name) == value.as_str());
        let allowed = || names.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        found
            .map(|(_, named)| *named)
            .ok_or_else(|| format!("{key} = {value}: one of {} is allowed", allowed()))
    }

    fn windows(&self) -> Result<Vec<u32>, String> {
        match self.value("loader.window") {
            Some(Value::Array(windows)) => {
                let windows = windows
                    .iter()
                    .map(|window| window.as_u64().and_then(|window| u32::try_from(window).ok()));
                windows
                    .collect::<Option<_>>()
                    .ok_or_else(|| "loader.window: whole numbers are allowed".to_owned())
            }
            _ => Ok(vec![self.count("loader.window", 4)?]),
        }
    }

    fn slow_ranks(&self) -> Result<Vec<(u32, f64)>, String> {
        let Some(value) = self.value("job.slow_ranks") else {
            return Ok(Vec::new());
        };
        serde_json::from_value(value.clone()).map_err(|_| format!("job.slow_ranks = {value}: pairs of rank and factor are allowed"))
    }

    fn sizes(&self) -> Result<Sizes, String> {
        if let Some(listing) = self.value("dataset.listing") {
            return serde_json::from_value(listing.clone())
                .map(Sizes::Listed)
                .map_err(|_| "dataset.listing: a list of sizes is allowed".to_owned());
        }
        let mean = self.count("dataset.size", 110_000)?;
        let sigma = self.number("dataset.sigma", 0.0)?;
        Ok(if sigma == 0.0 {
            Sizes::Equal(mean)
        } else {
            Sizes::Lognormal { mean, sigma }
        })
    }

    fn source(&self) -> Result<SharedStorage, String> {
        Ok(SharedStorage {
            bytes_per_s: self.number("source.bandwidth", f64::INFINITY)?,
            requests_per_s: self.number("source.requests", f64::INFINITY)?,
            stream_bytes_per_s: self.number("source.stream", f64::INFINITY)?,
            latency: Latency {
                median_s: self.number("source.latency", 0.0)?,
                sigma: self.number("source.tail", 0.0)?,
            },
            seed: self.count("source.seed", 0)?,
        })
    }

    fn scenario(&self) -> Result<Scenario, String> {
        Ok(Scenario {
            machines: Machines {
                nodes: self.count("cluster.nodes", 1)?,
                gpus: self.count("cluster.gpus", 8)?,
                cache_bytes: self.count("cluster.cache", 1 << 30)?,
                reserved_bytes: self.count("cluster.reserved", 0)?,
                threads: self.count("cluster.threads", 72)?,
                loading_threads: self.count("cluster.loading_threads", 64)?,
                local_bytes_per_s: self.number("cluster.memory", f64::INFINITY)?,
                link: Link {
                    bytes_per_s: self.number("cluster.link", f64::INFINITY)?,
                    latency_s: self.number("cluster.link_latency", 0.0)?,
                },
            },
            source: self.source()?,
            dataset: Dataset {
                samples: self.count("dataset.samples", 100_000)?,
                sizes: self.sizes()?,
            },
            job: TrainingJob {
                batch: self.count("job.batch", 32)?,
                drop_last: self.flag("job.drop_last")?,
                step_s: self.number("job.step", 0.1)?,
                epochs: self.count("job.epochs", 3)?,
                slow_ranks: self.slow_ranks()?,
                seed: self.count("job.seed", 1)?,
                order: self.name("job.order", &[("torch", Permutation::Torch), ("counter", Permutation::Counter)])?,
            },
            preprocessing: Preprocessing {
                seconds_a_sample: self.number("preprocessing.seconds", 0.0)?,
                saturates_at: self.count("preprocessing.saturates_at", 6)?,
                decline: self.number("preprocessing.decline", 0.0)?,
            },
            loader: LoaderSettings {
                policy: self.name("loader.policy", &PolicyName::ALL.map(|policy| (policy.name(), policy)))?,
                horizon: self.count("loader.horizon", 2)?,
                window: self.windows()?,
                prepared: self.count("loader.prepared", 2)?,
                schedule: self.name("loader.schedule", &ScheduleName::ALL.map(|schedule| (schedule.name(), schedule)))?,
                hedge_budget: self.number("loader.hedge", 0.0)?,
                background_fill: self.flag("loader.background_fill")?,
                decoders: match (self.count("loader.decoders", 0)?, self.count("loader.workers", 0)?) {
                    (0, 0) => Decoders::Pool,
                    (threads, 0) => Decoders::OfRank(threads),
                    (_, workers) => Decoders::Workers(workers),
                },
                across_epochs: self.value("loader.across_epochs").is_none() || self.flag("loader.across_epochs")?,
                learns_reads: self.flag("loader.learns_reads")?,
            },
        })
    }
}
