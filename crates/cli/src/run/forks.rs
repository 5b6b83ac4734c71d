//! Forks of a run's jobs, as their sessions tell of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Name of the event log: see [`crate::run::event_log`].
pub const KIND: &str = "forks";

/// A line, as `python/forebay/clone/_events.py` writes it: what one rank knows of a fork.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum ForkEvent {
    /// Its state was taken.
    Taken(TakenState),
    /// It became a clone's rank.
    Became(CloneReport),
}

/// A state that was taken of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TakenState {
    /// Its job.
    pub job: String,
    /// Number of the rank.
    pub rank: u32,
    /// Number of ranks of the job.
    pub ranks: u32,
    /// Step, as the job counts.
    pub epoch: u64,
    /// After which, as the job counts.
    pub step: u64,
    /// Bytes of the state.
    pub bytes: u64,
    /// Bytes of it that were copied when it was taken.
    pub copied: u64,
    /// Bytes that were copied before the next update, since a clone had not read them in the job's memory.
    pub aside: u64,
    /// Time at which training stood still for the fork, in seconds since 1970.
    pub at: f64,
    /// For how long it stood still then, in seconds.
    pub stall_s: f64,
    /// Seconds for which clones could read in the job's memory, if there was a read lease.
    pub window_s: Option<f64>,
    /// For how long training stood still at the end of that.
    pub closing_s: f64,
    /// Duration of the step before, if it was seen.
    pub before_s: Option<f64>,
    /// Duration of the step after, without the stall.
    pub after_s: Option<f64>,
}

/// A rank that became a clone's. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CloneReport {
    /// The clone.
    pub job: String,
    /// The job that it was forked from.
    pub parent: String,
    /// Number of the rank.
    pub rank: u32,
    /// Number of ranks of the clone.
    pub ranks: u32,
    /// Step, as the parent counts.
    pub epoch: u64,
    /// After which, as the parent counts.
    pub step: u64,
    /// Bytes of the state.
    pub bytes: u64,
    /// SHA-256 of the manifest, which has the digest of every entry.
    pub digest: String,
    /// Number of ranks of the parent; 0 if unknown.
    #[serde(default)]
    pub parent_ranks: u32,
    /// Kind of check: `digest`, or `shadow:N`.
    #[serde(default)]
    pub verified: String,
    /// Changes that were applied after the check, by name.
    pub changes: BTreeMap<String, f64>,
    /// Time at which the clone began to wait for its parent's next point.
    pub asked_at: f64,
    /// Time at which the state was there.
    pub state_at: f64,
    /// Time at which the state was loaded and every entry checked.
    pub loaded_at: f64,
    /// Time at which all ranks had loaded their states.
    pub exists_at: f64,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A line as a session writes it.
    pub(crate) const TAKEN: &str = r#"{"what": "taken", "job": "trunk", "rank": 0, "ranks": 1, "epoch": 0, "step": 7, "bytes": 4096,
        "copied": 96, "aside": 1000, "at": 1795432621.25, "stall_s": 0.002, "window_s": null, "closing_s": 0.0, "before_s": 0.5, "after_s": null}"#;
    const BECAME: &str = r#"{"what": "became", "job": "trunk.1", "parent": "trunk", "rank": 0, "ranks": 1, "epoch": 0, "step": 7, "bytes": 4096,
        "digest": "9f", "parent_ranks": 2, "verified": "shadow:3", "changes": {"lr": 0.5}, "asked_at": 1.0, "state_at": 2.0, "loaded_at": 3.0, "exists_at": 4.0}"#;

    #[test]
    fn lines_are_as_a_session_writes_them() {
        let told: Vec<ForkEvent> = [TAKEN, BECAME].map(|line| serde_json::from_str(line).unwrap()).into();
        assert!(serde_json::from_str::<ForkEvent>("{\"what\": \"came\"}").is_err());
        let [ForkEvent::Taken(taken), ForkEvent::Became(became)] = told.as_slice() else {
            panic!("{told:?}");
        };
        assert_eq!((taken.step, taken.before_s, taken.after_s), (7, Some(0.5), None));
        assert_eq!((became.parent.as_str(), became.changes.get("lr")), ("trunk", Some(&0.5)));
        assert_eq!((became.parent_ranks, became.verified.as_str()), (2, "shadow:3"));
        // As it stands in a record.
        let text = serde_json::to_string(&told).unwrap();
        assert_eq!(serde_json::from_str::<Vec<ForkEvent>>(&text).unwrap(), told);
        assert!(text.starts_with(r#"[{"what":"taken","job":"trunk""#), "{text}");
    }
}
