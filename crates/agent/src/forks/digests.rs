//! Comparison of the entries that all ranks of a job should hold alike, by digest, before a fork is published to a
//! clone.

use std::{collections::BTreeMap, sync::Arc};

use forebay_state::{CapturedSection, Manifest, Placement, SectionCache, UNKNOWN_DIGEST, read_state_unverified};

/// Digests of the entries of a state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digests {
    manifest: Manifest,
    /// True if entries that ranks do not hold alike are compared as well.
    are_all: bool,
}

/// A rank's published state. `reader` is the number of the clone's rank as a reader of its lease.
#[derive(Clone, Debug)]
pub(crate) struct RankState<S> {
    pub(crate) reader: u32,
    pub(crate) epoch: u64,
    pub(crate) step: u64,
    pub(crate) replicated: Digests,
    pub(crate) state: S,
}

/// Returns the reason why these states are not of one step of one job, if so.
pub(crate) fn disagreement<S>(offers: &[(usize, &RankState<S>)]) -> Option<String> {
    let ((of_first, first), others) = offers.split_first()?;
    others.iter().find_map(|(rank, other)| {
        if (other.epoch, other.step) != (first.epoch, first.step) {
            return Some(format!(
                "the ranks were not at one step: rank {of_first} at step {} of epoch {}, rank {rank} at step {} of epoch {}; do all take every step together?",
                first.step, first.epoch, other.step, other.epoch
            ));
        }
        first.replicated.disagreement(&other.replicated, (*of_first, *rank))
    })
}

impl Digests {
    /// Reads the digests of the entries that all ranks hold alike from the description of a state.
    ///
    /// # Errors
    /// The description is invalid.
    pub(crate) fn replicated(text: &[u8], known: &mut SectionCache) -> Result<Self, String> {
        let (_, manifest) = read_state_unverified(text, known).map_err(|error| error.to_string())?;
        let are_all = false;
        Ok(Self { manifest, are_all })
    }

    /// Reads the digests of all entries.
    ///
    /// # Errors
    /// The description is invalid.
    pub(crate) fn all(text: &[u8], known: &mut SectionCache) -> Result<Self, String> {
        let found = Self::replicated(text, known)?;
        Ok(Self { are_all: true, ..found })
    }

    /// Returns the digests if every one is known.
    ///
    /// # Errors
    /// A digest is unknown.
    pub(crate) fn known(self) -> Result<Self, String> {
        let unknown = self.entries().find(|(_, digest)| *digest == UNKNOWN_DIGEST);
        if let Some((path, _)) = unknown {
            return Err(format!("it has no digest of {path}"));
        }
        Ok(self)
    }

    /// Returns the path of the first entry that differs.
    pub(crate) fn difference<'a>(&'a self, other: &'a Self) -> Option<&'a str> {
        let are_alike = |mine: &[u8], others: &[u8]| mine == others || mine == UNKNOWN_DIGEST || others == UNKNOWN_DIGEST;
        let same = |(mine, others): (&CapturedSection, &CapturedSection)| Arc::ptr_eq(mine.section(), others.section());
        let (mine, others) = (&self.manifest.sections, &other.manifest.sections);
        if mine.len() == others.len() && mine.iter().zip(others).all(same) {
            let mut both = self.entries().zip(other.entries());
            return both.find_map(|((path, mine), (_, others))| (!are_alike(mine, others)).then_some(path));
        }
        let (mine, others): (BTreeMap<_, _>, BTreeMap<_, _>) = (self.entries().collect(), other.entries().collect());
        let mut paths = mine.keys().chain(others.keys());
        let differs = |path: &&&str| !matches!((mine.get(*path), others.get(*path)), (Some(mine), Some(others)) if are_alike(mine, others));
        paths.find(differs).copied()
    }

    /// Iterates over path and digest of the compared entries.
    fn entries(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let compared = |placement| self.are_all || placement == Placement::Replicated;
        let entries = self.manifest.entries();
        entries.filter_map(move |(path, placement, digest)| compared(placement).then_some((path, digest)))
    }

    /// Returns the reason why the digests of these two ranks are not of one job, if so.
    pub(crate) fn disagreement(&self, other: &Self, (rank, of_other): (usize, usize)) -> Option<String> {
        let path = self.difference(other)?;
        Some(format!(
            "{path} is not the same in rank {rank} and rank {of_other}, as it should be after a step that all took together"
        ))
    }

    /// Builds digests of given entries, in hexadecimal digits, for tests.
    #[cfg(test)]
    pub(crate) fn from_pairs<const N: usize>(pairs: [(&str, &str); N]) -> Self {
        let manifest = tests::manifest(&pairs.map(|(path, digest)| (path, digest, Placement::Replicated)));
        let are_all = false;
        Self { manifest, are_all }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use forebay_state::{EntryKind, Layout, Section, StateHeader, write_state};

    use super::*;

    /// Returns a manifest with one section an entry. Digests are given in hexadecimal digits; without any: unknown.
    pub(super) fn manifest(entries: &[(&str, &str, Placement)]) -> Manifest {
        let section = |&(path, _, placement): &(&str, &str, Placement)| {
            let layout = Layout {
                dtype: "value".into(),
                shape: vec![1],
                strides: vec![1],
                device: "cpu".into(),
            };
            let kind = EntryKind {
                placement,
                layout,
                length: 1,
            };
            let section = Section::new(vec![path.to_owned()], vec![kind], vec![0]).unwrap();
            CapturedSection::new(Arc::new(section), Vec::new()).unwrap()
        };
        let digest = |(_, digits, _): &(&str, &str, Placement)| u128::from_str_radix(&format!("0{digits}"), 16).unwrap().to_be_bytes();
        Manifest {
            sections: entries.iter().map(section).collect(),
            digests: entries.iter().flat_map(digest).collect(),
            ..Manifest::default()
        }
    }

    /// Returns what describes a state, without version and tag: `messages.rs` digests it.
    pub(crate) fn described() -> Vec<String> {
        let mut text = Vec::new();
        let mut sample = manifest(&[("w", "7", Placement::Replicated), ("b", "1", Placement::PerRank)]);
        sample.absent = vec!["ema".into()];
        sample.write(&mut text);
        let header = serde_json::to_string(&StateHeader::default()).unwrap();
        vec![String::from_utf8(text).unwrap(), header]
    }

    fn text(weight: &str, buffer: &str) -> Vec<u8> {
        let manifest = manifest(&[("w", weight, Placement::Replicated), ("b", buffer, Placement::PerRank)]);
        write_state(b"secret", &StateHeader::default(), &manifest)
    }

    #[test]
    fn only_entries_that_ranks_hold_alike_are_compared() {
        let (mut known, mut apart) = (SectionCache::default(), SectionCache::default());
        let mut found = |weight: &str, buffer: &str| Digests::replicated(&text(weight, buffer), &mut known).unwrap();
        let mut other = |weight: &str, buffer: &str| Digests::replicated(&text(weight, buffer), &mut apart).unwrap();
        assert_eq!(found("7", "1").difference(&found("7", "2")), None);
        assert_eq!(found("7", "1").difference(&found("8", "1")), Some("w"));
        assert_eq!(found("7", "1").difference(&Digests::default()), Some("w"));
        assert_eq!(Digests::default().difference(&found("7", "1")), Some("w"));
        // Sections that were read apart are compared by their paths.
        assert_eq!(found("7", "1").difference(&other("7", "2")), None);
        assert_eq!(found("7", "1").difference(&other("8", "1")), Some("w"));
        assert!(found("7", "1").known().is_ok());
        assert_eq!(found("", "1").known(), Err("it has no digest of w".into()));
        // Entries that clones read in place are compared when they have read them.
        assert_eq!(found("", "1").difference(&found("7", "1")), None);
        assert_eq!(found("7", "1").difference(&other("", "1")), None);
    }

    #[test]
    fn all_may_count() {
        let mut known = SectionCache::default();
        let mut found = |weight: &str, buffer: &str| Digests::all(&text(weight, buffer), &mut known).unwrap();
        assert_eq!(found("7", "1").difference(&found("7", "1")), None);
        assert_eq!(found("7", "1").difference(&found("7", "2")), Some("b"));
    }
}
