//! What all ranks of a job should hold alike: compared by digest before a fork is given to anybody.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Digests of entries, by their paths; empty as long as nobody knows one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digests(BTreeMap<String, String>);

/// A rank's state. As a reader of its window, if it has one, a clone has the number `reader`.
#[derive(Clone, Debug)]
pub(crate) struct Offer<S> {
    pub(crate) reader: u32,
    pub(crate) epoch: u64,
    pub(crate) step: u64,
    pub(crate) replicated: Digests,
    pub(crate) state: S,
}

/// Why these states are not of one step of one job, if so.
pub(crate) fn disagreement<S>(offers: &[&Offer<S>]) -> Option<String> {
    let (first, others) = offers.split_first()?;
    others.iter().enumerate().find_map(|(index, other)| {
        let rank = index + 1;
        if (other.epoch, other.step) != (first.epoch, first.step) {
            return Some(format!(
                "the ranks were not at one step: rank 0 at step {} of epoch {}, rank {rank} at step {} of epoch {}; do all take every step together?",
                first.step, first.epoch, other.step, other.epoch
            ));
        }
        first.replicated.disagreement(&other.replicated, rank)
    })
}

/// Of a manifest the columns that are looked at here; `forebay.clone` reads all of it.
#[derive(Debug, Deserialize)]
struct Manifest {
    paths: Vec<String>,
    placements: Vec<String>,
    digests: Vec<String>,
}

impl Digests {
    /// Those of the entries that all ranks hold alike. Reads what describes a state: a format, a tag, a header and a manifest, a line each.
    ///
    /// # Errors
    /// Why it is none.
    pub(crate) fn replicated(text: &[u8]) -> Result<Self, String> {
        Self::of(text, |placement| placement == "replicated")
    }

    /// Those of all entries.
    ///
    /// # Errors
    /// As [`Self::replicated`].
    pub(crate) fn all(text: &[u8]) -> Result<Self, String> {
        Self::of(text, |_| true)
    }

    fn of(text: &[u8], is_meant: impl Fn(&str) -> bool) -> Result<Self, String> {
        let manifest = text.splitn(4, |byte| *byte == b'\n').nth(3).ok_or("it has no manifest")?;
        let manifest: Manifest = serde_json::from_slice(manifest).map_err(|error| error.to_string())?;
        let Manifest {
            paths,
            placements,
            digests,
        } = manifest;
        if paths.len() != placements.len() || paths.len() != digests.len() {
            return Err("its columns are not of one length".into());
        }
        let entries = paths.into_iter().zip(digests).zip(placements);
        let meant = entries.filter(|(_, placement)| is_meant(placement));
        Ok(Self(meant.map(|(entry, _)| entry).collect()))
    }

    /// The first entry that the two do not hold alike.
    pub(crate) fn difference<'a>(&'a self, other: &'a Self) -> Option<&'a str> {
        let are_alike =
            |mine: &str, other: Option<&String>| other.is_some_and(|other| mine == other || mine.is_empty() || other.is_empty());
        let differs = |(mine, others): (&'a Self, &'a Self)| {
            let mut paths = mine
                .0
                .iter()
                .filter(move |(path, digest)| !are_alike(digest.as_str(), others.0.get(*path)));
            paths.next().map(|(path, _)| path.as_str())
        };
        [(self, other), (other, self)].into_iter().find_map(differs)
    }

    /// Why these are not of one job, if so; `self` is rank 0's.
    pub(crate) fn disagreement(&self, other: &Self, rank: usize) -> Option<String> {
        let path = self.difference(other)?;
        Some(format!(
            "{path} is not the same in rank 0 and rank {rank}, as it should be after a step that all took together"
        ))
    }

    /// Given entries, for tests.
    #[cfg(test)]
    pub(crate) fn from_pairs<const N: usize>(pairs: [(&str, &str); N]) -> Self {
        Self(pairs.map(|(path, digest)| (path.to_owned(), digest.to_owned())).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_ranks_hold_alike_is_compared() {
        let text = |weight: &str, buffer: &str| {
            let columns = format!(r#""paths":["w","b"],"placements":["replicated","per rank"],"digests":["{weight}","{buffer}"]"#);
            let text = format!("format\ntag\n{{}}\n{{\"rank\":0,{columns}}}").into_bytes();
            let all = Digests::all(&text).unwrap();
            assert_eq!(all.difference(&Digests::all(&text).unwrap()), None);
            assert_eq!(all.0.len(), 2);
            Digests::replicated(&text).unwrap()
        };
        assert_eq!(text("00", "1").difference(&text("00", "2")), None);
        assert_eq!(text("00", "1").difference(&text("01", "1")), Some("w"));
        assert_eq!(text("00", "1").difference(&Digests::default()), Some("w"));
        assert_eq!(Digests::default().difference(&text("00", "1")), Some("w"));
        // What is read by the clones is compared when they have read it.
        assert_eq!(text("", "1").difference(&text("00", "1")), None);
        assert_eq!(text("00", "1").difference(&text("", "1")), None);
    }

    #[test]
    fn what_is_no_description_is_refused() {
        let short = "a\nb\nc\n{\"paths\":[\"w\"],\"placements\":[],\"digests\":[\"\"]}";
        for text in ["", "a\nb\nc", "a\nb\nc\nnull", "a\nb\nc\n{}", "a\nb\nc\n{\"paths\":[1]}", short] {
            assert!(Digests::replicated(text.as_bytes()).is_err(), "{text}");
        }
    }
}
