//! Advice on a plan, in one sentence.

use forebay_policy::bounds::{self, Capacity, EpochDemand, EpochLimit};
use forebay_policy::residency::PolicyName;
use forebay_settings::text::{size_text, time_text};

use super::compare::{PlanComparison, PlanRow};

/// Times that differ by less are the same.
const SAME: f64 = 0.01;
/// An epoch that takes so much more than the least possible waits for something.
const NOTICEABLE: f64 = 0.05;
/// Less than this is nothing to speak of.
const LITTLE: f64 = 0.03;

/// Returns the limit of a row's last epoch that remains even if the fewest bytes are read.
#[expect(clippy::cast_precision_loss, reason = "times are compared roughly")]
pub fn limit(row: &PlanRow) -> EpochLimit {
    let (scenario, warm) = (&row.scenario, &row.warm);
    let samples = warm.reads.samples_by_origin.iter().sum::<u64>() as f64;
    let bound_bytes = row.bound_bytes() as f64;
    let work = EpochDemand {
        compute_s: f64::from(warm.iterations) * scenario.job.step_s,
        source_bytes: bound_bytes,
        source_requests: samples * bound_bytes / (row.data_bytes() as f64).max(1.0),
        cpu_s: samples * scenario.preprocessing.seconds_a_sample,
    };
    let capacity = Capacity {
        bytes_per_s: scenario.source.bytes_per_s,
        requests_per_s: scenario.source.requests_per_s,
        cores: f64::from(scenario.machines.nodes) * f64::from(scenario.machines.threads.min(scenario.preprocessing.saturates_at)),
    };
    bounds::epoch_s(work, capacity).1
}

/// The row to choose: the first of the fastest that ask little of the source and of peers.
pub fn best(rows: &[PlanRow]) -> Option<&PlanRow> {
    /// Bytes that differ by less, of all, are the same: in a scaled epoch a window alone weighs as much.
    const SAME_BYTES: f64 = 0.05;
    let fastest = rows.iter().map(|row| row.warm.seconds).min_by(f64::total_cmp)?;
    let mut left: Vec<&PlanRow> = rows.iter().filter(|row| row.warm.seconds <= fastest * (1.0 + SAME)).collect();
    let amounts: [fn(&PlanRow) -> u64; 2] = [|row| row.warm.reads.source_bytes, |row| row.warm.reads.peer_bytes];
    for amount in amounts {
        let least = left.iter().map(|row| amount(row)).min()?;
        #[expect(clippy::cast_precision_loss, reason = "bytes are compared roughly")]
        left.retain(|row| (amount(row) - least) as f64 <= SAME_BYTES * row.data_bytes() as f64);
    }
    left.first().copied()
}

/// Returns the rows of the policy and of the schedule to choose; `None` without rows.
pub fn chosen(comparison: &PlanComparison) -> Option<(&PlanRow, &PlanRow)> {
    best(&comparison.policies).zip(best(&comparison.schedules))
}

/// The sentence; nothing without rows. `factor`: how many times smaller the dataset was than the user's.
pub fn sentence(comparison: &PlanComparison, factor: u32) -> String {
    let Some((policy, schedule)) = chosen(comparison) else {
        return String::new();
    };
    let plain = comparison
        .policies
        .iter()
        .find(|row| row.scenario.loader.policy == PolicyName::None);
    let gain = plain.map_or(1.0, |plain| plain.warm.seconds / policy.warm.seconds.max(1e-9));
    let limit = limit(policy);
    let words = match limit {
        EpochLimit::Compute => "computing",
        EpochLimit::Bytes => "the source's bandwidth",
        EpochLimit::Requests => "the source's rate of requests",
        EpochLimit::Cpu => "preprocessing",
    };
    if gain < 1.0 + LITTLE {
        let saved = saved(plain, policy);
        return format!(
            "A cache makes epochs no faster here: they take {} with any, {} over the least possible, and {words} limits them{saved}.",
            time_text(policy.warm.seconds * f64::from(factor)),
            ratio(policy.over_ideal()),
        );
    }
    // Together they were simulated where the policy is the one that all schedules were tried with.
    let together = if schedule.scenario.loader.policy == policy.scenario.loader.policy {
        schedule
    } else {
        policy
    };
    let gain = gain * policy.warm.seconds / together.warm.seconds.max(1e-9);
    format!(
        "Keep samples by {} and read them by {}{}: an epoch takes {}, {gain:.2} times as fast as without a cache and {} over the least possible, \
         and {words} limits it{}.",
        policy.scenario.loader.policy.name(),
        schedule.scenario.loader.schedule.name(),
        if schedule.scenario.loader.hedge_budget > 0.0 {
            " with hedged reads"
        } else {
            ""
        },
        time_text(together.warm.seconds * f64::from(factor)),
        ratio(together.over_ideal()),
        what_next(comparison, together, limit, factor),
    )
}

fn ratio(over: f64) -> String {
    format!("{:.1} %", (over - 1.0).max(0.0) * 100.0)
}

fn saved(plain: Option<&PlanRow>, policy: &PlanRow) -> String {
    let Some(plain) = plain else { return String::new() };
    #[expect(clippy::cast_precision_loss, reason = "shares are compared roughly")]
    let share = 1.0 - policy.warm.reads.source_bytes as f64 / (plain.warm.reads.source_bytes as f64).max(1.0);
    if share < LITTLE {
        return String::new();
    }
    format!(
        "; {} would spare the source {:.0} % of its reads",
        policy.scenario.loader.policy.name(),
        share * 100.0
    )
}

/// Returns the change that would lift the limit.
fn what_next(comparison: &PlanComparison, policy: &PlanRow, limit: EpochLimit, factor: u32) -> String {
    match limit {
        EpochLimit::Compute if policy.over_ideal() > 1.0 + NOTICEABLE => {
            "; what is beyond that is the source's latency, which more loading threads or a wider window may hide".into()
        }
        EpochLimit::Compute => String::new(),
        EpochLimit::Cpu => "; more threads, or cheaper preprocessing, would help next".into(),
        EpochLimit::Bytes | EpochLimit::Requests => enough_cache(comparison, policy, factor),
    }
}

/// The smallest cache of the sweep with which the source no longer limits.
fn enough_cache(comparison: &PlanComparison, policy: &PlanRow, factor: u32) -> String {
    let sweep = comparison.sweeps.iter().find(|sweep| sweep.key == "cluster.cache");
    let more = sweep.into_iter().flat_map(|sweep| &sweep.points).filter_map(|(percent, rows)| {
        let row = rows.iter().find(|row| row.scenario.loader.policy == PolicyName::Forebay)?;
        (row.scenario.machines.cache_bytes > policy.scenario.machines.cache_bytes).then_some((percent, row))
    });
    for (percent, row) in more {
        if limit_is_lifted(policy, row) {
            #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
            let bytes = row.scenario.machines.cache_bytes as f64 * f64::from(factor);
            let faster = policy.warm.seconds / row.warm.seconds.max(1e-9);
            return format!(
                "; caches of {percent} % of the data ({} a node) would make it {faster:.2} times as fast",
                size_text(bytes)
            );
        }
    }
    "; a faster source would help next".into()
}

fn limit_is_lifted(policy: &PlanRow, row: &PlanRow) -> bool {
    !matches!(limit(row), EpochLimit::Bytes | EpochLimit::Requests) && row.warm.seconds < policy.warm.seconds * (1.0 - LITTLE)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use forebay_sim::{EpochFigures, EpochReads, Outcome, Scenario};

    use super::*;
    use crate::plan::planner::{compare::Sweep, input::Input};

    /// A scenario that the source limits: 1000 samples of 1 kB at 100 kB/s, and steps of 10 ms for 4 samples.
    fn scenario(policy: PolicyName, cache: &str) -> Scenario {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("plan.toml");
        let text = format!(
            "[cluster]\ngpus = 1\ncache = \"{cache}\"\n[source]\nbandwidth = \"100 kB/s\"\n[dataset]\nsamples = 1000\nsize = \"1 MB\"\n\
             [job]\nbatch = 4\nstep = \"10 ms\"\n"
        );
        std::fs::write(&file, text).unwrap();
        let mut scenario = Input::read(Path::new(&file), &[]).unwrap().scenario;
        scenario.loader.policy = policy;
        scenario
    }

    fn row(policy: PolicyName, cache: &str, seconds: f64, [local, peer, source]: [u64; 3]) -> PlanRow {
        let warm = EpochFigures {
            iterations: 250,
            reads: EpochReads {
                local_bytes: local,
                peer_bytes: peer,
                source_bytes: source,
                samples_by_origin: [local, peer, source].map(|bytes| bytes / 1000),
                ..EpochReads::default()
            },
            seconds,
            ideal_seconds: seconds,
            ..EpochFigures::default()
        };
        PlanRow {
            label: policy.name().into(),
            scenario: scenario(policy, cache),
            cold: EpochFigures::default(),
            warm,
            outcome: Outcome::default(),
        }
    }

    #[test]
    fn the_fastest_is_chosen_then_what_asks_least_of_others() {
        let slow = row(PolicyName::None, "200 kB", 10.0, [0, 0, 1_000_000]);
        let greedy = row(PolicyName::Lru, "200 kB", 8.0, [100_000, 0, 900_000]);
        let chatty = row(PolicyName::Pinned, "200 kB", 8.05, [0, 200_000, 800_000]);
        let best_one = row(PolicyName::Forebay, "200 kB", 8.06, [190_000, 10_000, 800_000]);
        let alike = row(PolicyName::Belady, "200 kB", 8.0, [200_000, 0, 800_000]);
        let rows = [slow, greedy, chatty, best_one, alike];
        assert_eq!(best(&rows).unwrap().label, "forebay");
        assert_eq!(best(&rows[..3]).unwrap().label, "pinned");
        assert!(best(&[]).is_none());
    }

    #[test]
    fn what_limits_is_what_takes_longest_at_the_bound() {
        assert_eq!(
            limit(&row(PolicyName::Forebay, "200 kB", 8.0, [200_000, 0, 800_000])),
            EpochLimit::Bytes
        );
        assert_eq!(
            limit(&row(PolicyName::Forebay, "900 kB", 2.5, [900_000, 0, 100_000])),
            EpochLimit::Compute
        );
        let mut busy = row(PolicyName::Forebay, "900 kB", 8.0, [900_000, 0, 100_000]);
        busy.scenario.preprocessing.seconds_a_sample = 1.0;
        assert_eq!(limit(&busy), EpochLimit::Cpu);
        busy.scenario.source.requests_per_s = 0.1;
        assert_eq!(limit(&busy), EpochLimit::Requests);
    }

    #[test]
    fn the_sentence_says_what_to_do_and_what_would_help_next() {
        let none = row(PolicyName::None, "200 kB", 10.0, [0, 0, 1_000_000]);
        let ours = row(PolicyName::Forebay, "200 kB", 8.0, [200_000, 0, 800_000]);
        let more = row(PolicyName::Forebay, "900 kB", 2.5, [900_000, 0, 100_000]);
        let mut comparison = PlanComparison {
            policies: vec![ours.clone(), none.clone()],
            schedules: vec![ours.clone()],
            loaders: Vec::new(),
            sweeps: vec![Sweep {
                key: "cluster.cache",
                points: vec![(20.0, vec![ours.clone()]), (90.0, vec![more])],
            }],
        };
        let words = sentence(&comparison, 10);
        for said in [
            "by forebay",
            "by earliest_deadline",
            "1.25 times",
            "80 s",
            "bandwidth limits",
            "90 % of the data (9 MB a node)",
            "3.20 times",
        ] {
            assert!(words.contains(said), "{said}: {words}");
        }
        comparison.sweeps.clear();
        assert!(sentence(&comparison, 1).contains("a faster source"));
        let idle = row(PolicyName::Forebay, "900 kB", 10.0, [900_000, 0, 100_000]);
        comparison.policies = vec![idle, none];
        let words = sentence(&comparison, 1);
        assert!(
            words.contains("no faster here") && words.contains("spare the source 90 %"),
            "{words}"
        );
        // The GPUs limit it, and yet it takes twice as long.
        let mut late = row(PolicyName::Forebay, "900 kB", 5.0, [900_000, 0, 100_000]);
        late.warm.ideal_seconds = 2.5;
        comparison.policies = vec![late.clone(), row(PolicyName::None, "200 kB", 10.0, [0, 0, 1_000_000])];
        comparison.schedules = vec![late];
        let words = sentence(&comparison, 1);
        assert!(
            words.contains("100.0 % over the least possible") && words.contains("latency"),
            "{words}"
        );
        comparison.policies.clear();
        assert_eq!(sentence(&comparison, 1), "");
    }
}
