//! Comparison of the entries that all ranks of a job should hold alike, by digest, before a fork is published to a
//! clone.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use serde::Deserialize;

/// Hexadecimal digits of a digest.
const DIGITS: usize = 32;
/// Digest of an entry whose digest is not known yet.
const UNKNOWN: &[u8] = &[b'0'; DIGITS];
/// Number of parsed sections that are kept: a state has a few dozen, most of which are unchanged from fork to fork
/// and equal in all ranks.
const SECTIONS_KEPT: usize = 256;

/// Digests of the entries of a state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digests {
    sections: Vec<Arc<ComparedSection>>,
    /// Digests of all entries in their order, in hexadecimal digits.
    digits: Vec<u8>,
    /// True if entries that ranks do not hold alike are compared as well.
    are_all: bool,
}

/// The entries of one part of a state.
#[derive(Debug, PartialEq, Eq)]
struct ComparedSection {
    line: Vec<u8>,
    paths: Vec<String>,
    are_replicated: Vec<bool>,
}

/// Parsed sections, the most recently used first: parsing one again takes as long as everything else.
#[derive(Debug, Default)]
pub(crate) struct SectionCache(VecDeque<Arc<ComparedSection>>);

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
pub(crate) fn disagreement<S>(offers: &[&RankState<S>]) -> Option<String> {
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

/// The fields of a manifest's first line that the agent reads; `forebay.clone` reads all of it.
#[derive(Deserialize)]
struct ManifestHead {
    digests: String,
}

/// The columns of a section's line that the agent reads. A kind's first field is its placement.
#[derive(Deserialize)]
struct SectionColumns {
    paths: Vec<String>,
    kinds: Vec<Vec<serde_json::Value>>,
    kind_of: Vec<usize>,
}

impl SectionCache {
    fn read(&mut self, line: &[u8]) -> Result<Arc<ComparedSection>, String> {
        if let Some(at) = self.0.iter().position(|known| known.line == line) {
            let found = self.0.remove(at).ok_or("it is there")?;
            self.0.push_front(Arc::clone(&found));
            return Ok(found);
        }
        let read = Arc::new(ComparedSection::read(line)?);
        self.0.push_front(Arc::clone(&read));
        self.0.truncate(SECTIONS_KEPT);
        Ok(read)
    }
}

impl ComparedSection {
    fn read(line: &[u8]) -> Result<Self, String> {
        let SectionColumns { paths, kinds, kind_of } = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        if paths.len() != kind_of.len() {
            return Err("its columns are not of one length".into());
        }
        let is_replicated = |kind: &usize| {
            let placement = kinds.get(*kind).and_then(|kind| kind.first());
            placement
                .map(|placement| placement == "replicated")
                .ok_or("there is no such kind of entry")
        };
        Ok(Self {
            line: line.to_vec(),
            paths,
            are_replicated: kind_of.iter().map(is_replicated).collect::<Result<_, _>>()?,
        })
    }
}

impl Digests {
    /// Reads the digests of the entries that all ranks hold alike from the description of a state: a format, a tag
    /// and a header, a line each, and a manifest: a line of its own, and two for each section.
    ///
    /// # Errors
    /// The description is invalid.
    pub(crate) fn replicated(text: &[u8], known: &mut SectionCache) -> Result<Self, String> {
        let manifest = text.splitn(4, |byte| *byte == b'\n').nth(3).ok_or("it has no manifest")?;
        let mut lines = manifest.split(|byte| *byte == b'\n');
        let head = lines.next().ok_or("it has no manifest")?;
        let head: ManifestHead = serde_json::from_slice(head).map_err(|error| error.to_string())?;
        // Each second line says what was not copied.
        let sections: Vec<_> = lines.step_by(2).map(|line| known.read(line)).collect::<Result<_, _>>()?;
        let found = Self {
            sections,
            digits: head.digests.into_bytes(),
            are_all: false,
        };
        let entries: usize = found.sections.iter().map(|section| section.paths.len()).sum();
        if found.digits.len() != entries * DIGITS {
            return Err("it has not one digest for each entry".into());
        }
        Ok(found)
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
        let unknown = self.entries().find(|(_, digest)| *digest == UNKNOWN);
        if let Some((path, _)) = unknown {
            return Err(format!("it has no digest of {path}"));
        }
        Ok(self)
    }

    /// Returns the path of the first entry that differs.
    pub(crate) fn difference<'a>(&'a self, other: &'a Self) -> Option<&'a str> {
        let are_alike = |mine: &[u8], others: &[u8]| mine == others || mine == UNKNOWN || others == UNKNOWN;
        let same = |(mine, others): (&Arc<ComparedSection>, &Arc<ComparedSection>)| Arc::ptr_eq(mine, others);
        if self.sections.len() == other.sections.len() && self.sections.iter().zip(&other.sections).all(same) {
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
        let numbered = self
            .sections
            .iter()
            .flat_map(|section| section.paths.iter().zip(&section.are_replicated));
        let with_digits = numbered.zip(self.digits.chunks_exact(DIGITS));
        with_digits
            .filter(|((_, is_replicated), _)| **is_replicated || self.are_all)
            .map(|((path, _), digits)| (path.as_str(), digits))
    }

    /// Returns the reason why these are not of one job, if so; `self` is rank 0's.
    pub(crate) fn disagreement(&self, other: &Self, rank: usize) -> Option<String> {
        let path = self.difference(other)?;
        Some(format!(
            "{path} is not the same in rank 0 and rank {rank}, as it should be after a step that all took together"
        ))
    }

    /// Builds digests of given entries, for tests.
    #[cfg(test)]
    pub(crate) fn from_pairs<const N: usize>(pairs: [(&str, &str); N]) -> Self {
        let section = ComparedSection {
            line: Vec::new(),
            paths: pairs.map(|(path, _)| path.to_owned()).into(),
            are_replicated: vec![true; N],
        };
        Self {
            sections: vec![Arc::new(section)],
            digits: pairs
                .iter()
                .flat_map(|(_, digest)| format!("{digest:0>DIGITS$}").into_bytes())
                .collect(),
            are_all: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(weight: &str, buffer: &str) -> Vec<u8> {
        let weights = r#"{"paths":["w"],"kinds":[["replicated",1]],"kind_of":[0]}"#;
        let buffers = r#"{"paths":["b"],"kinds":[["per rank",1]],"kind_of":[0]}"#;
        let head = format!(r#"{{"rank":0,"digests":"{weight:0>DIGITS$}{buffer:0>DIGITS$}"}}"#);
        format!("format\ntag\n{{}}\n{head}\n{weights}\n[]\n{buffers}\n[[0,0,0]]").into_bytes()
    }

    #[test]
    fn only_what_ranks_hold_alike_is_compared() {
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
        // What is read by the clones is compared when they have read it.
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

    #[test]
    fn so_many_sections_are_kept_and_no_more() {
        let mut known = SectionCache::default();
        let line = |number: usize| format!(r#"{{"paths":["{number}"],"kinds":[["replicated"]],"kind_of":[0]}}"#).into_bytes();
        let first = known.read(&line(0)).unwrap();
        for number in 1..SECTIONS_KEPT {
            known.read(&line(number)).unwrap();
        }
        assert!(Arc::ptr_eq(&first, &known.read(&line(0)).unwrap()));
        for number in SECTIONS_KEPT..2 * SECTIONS_KEPT {
            known.read(&line(number)).unwrap();
        }
        assert!(!Arc::ptr_eq(&first, &known.read(&line(0)).unwrap()));
        assert_eq!(known.0.len(), SECTIONS_KEPT);
    }

    #[test]
    fn what_is_no_description_is_refused() {
        let digest = "0".repeat(DIGITS);
        let section = r#"{"paths":["w"],"kinds":[["replicated"]],"kind_of":[0]}"#;
        let is_read = |head: &str, section: &str| {
            let text = format!("a\nb\nc\n{head}\n{section}\n[]");
            Digests::replicated(text.as_bytes(), &mut SectionCache::default()).is_ok()
        };
        let head = format!(r#"{{"digests":"{digest}"}}"#);
        assert!(is_read(&head, section));
        for text in ["", "a\nb\nc", "a\nb\nc\nnull", "a\nb\nc\n{}"] {
            assert!(
                Digests::replicated(text.as_bytes(), &mut SectionCache::default()).is_err(),
                "{text}"
            );
        }
        for wrong in [r#"{"digests":""}"#, r#"{"digests":1}"#, "{}"] {
            assert!(!is_read(wrong, section), "{wrong}");
        }
        for wrong in [
            "{}",
            r#"{"paths":[1],"kinds":[["replicated"]],"kind_of":[0]}"#,
            r#"{"paths":["w"],"kinds":[["replicated"]],"kind_of":[1]}"#,
            r#"{"paths":["w"],"kinds":[[]],"kind_of":[0]}"#,
            r#"{"paths":["w"],"kinds":[["replicated"]],"kind_of":[]}"#,
        ] {
            assert!(!is_read(&head, wrong), "{wrong}");
        }
    }
}
