//! Sections: the entries of one component, without their contents.

use std::{collections::VecDeque, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{checked_counts, from_json, to_json};

/// Number of parsed sections that are kept: a state has a few dozen, most of which are unchanged from fork to fork
/// and equal in all ranks.
const SECTIONS_KEPT: usize = 256;

/// Placement of an entry on the ranks of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// All ranks hold the same bytes.
    Replicated,
    /// Each rank holds a part of one tensor.
    Sharded,
    /// Each rank holds its own.
    PerRank,
    /// Each rank holds its own until the next forward pass, which gives all of them rank 0's.
    Leading,
}

impl Placement {
    const ALL: [Self; 4] = [Self::Replicated, Self::Sharded, Self::PerRank, Self::Leading];

    /// Returns the name in the text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Replicated => "replicated",
            Self::Sharded => "sharded",
            Self::PerRank => "per rank",
            Self::Leading => "leading",
        }
    }

    fn of(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|placement| placement.name() == name);
        found.ok_or_else(|| format!("unknown placement '{name}'"))
    }
}

/// Layout of a tensor's elements in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// The framework's name of the element type; `value` for encoded values.
    pub dtype: String,
    /// Sizes.
    pub shape: Vec<u64>,
    /// Strides in elements, one for each size.
    pub strides: Vec<u64>,
    /// Kind of device.
    pub device: String,
}

/// Properties that many entries have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "KindRow<String>", into = "KindRow<&'static str>")]
pub struct EntryKind {
    /// Placement on the ranks.
    pub placement: Placement,
    /// Type, sizes, strides, kind of device.
    pub layout: Layout,
    /// Length in bytes.
    pub length: u64,
}

/// A kind in the text, and for Python: placement, element type, sizes, strides, device, length.
pub type KindRow<T> = (T, String, Vec<u64>, Vec<u64>, String, u64);

impl TryFrom<KindRow<String>> for EntryKind {
    type Error = String;

    fn try_from((placement, dtype, shape, strides, device, length): KindRow<String>) -> Result<Self, String> {
        if shape.len() != strides.len() {
            return Err("shape and strides are not of one length".into());
        }
        checked_counts(&shape)?;
        checked_counts(&strides)?;
        checked_counts(&[length])?;
        let placement = Placement::of(&placement)?;
        let layout = Layout {
            dtype,
            shape,
            strides,
            device,
        };
        Ok(Self { placement, layout, length })
    }
}

impl From<EntryKind> for KindRow<&'static str> {
    fn from(EntryKind { placement, layout, length }: EntryKind) -> Self {
        (placement.name(), layout.dtype, layout.shape, layout.strides, layout.device, length)
    }
}

/// The entries of one component: paths, first the component's own for its values, then one a tensor, and their kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    line: Vec<u8>,
    columns: SectionColumns,
}

/// A section in the text, by columns: many entries are of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SectionColumns {
    paths: Vec<String>,
    kinds: Vec<EntryKind>,
    /// For each path the number of its kind.
    kind_of: Vec<usize>,
}

impl SectionColumns {
    fn check(&self) -> Result<(), String> {
        if self.paths.len() != self.kind_of.len() {
            return Err("the columns of a section are not of one length".into());
        }
        if self.paths.is_empty() {
            return Err("a section has no entries".into());
        }
        match self.kind_of.iter().find(|kind| **kind >= self.kinds.len()) {
            Some(kind) => Err(format!("a section has no kind {kind}")),
            None => Ok(()),
        }
    }
}

impl Section {
    /// Makes a section, and writes its line.
    ///
    /// # Errors
    /// The columns do not fit together.
    pub fn new(paths: Vec<String>, kinds: Vec<EntryKind>, kind_of: Vec<usize>) -> Result<Self, String> {
        let columns = SectionColumns { paths, kinds, kind_of };
        columns.check()?;
        Ok(Self {
            line: to_json(&columns),
            columns,
        })
    }

    /// Reads a section from its line.
    ///
    /// # Errors
    /// The line is invalid.
    pub fn read(line: &[u8]) -> Result<Self, String> {
        let columns: SectionColumns = from_json(line)?;
        columns.check()?;
        // Most likely identical with the line that would be written, and equivalent in any case.
        Ok(Self {
            line: line.to_vec(),
            columns,
        })
    }

    /// Returns the section as one line of text.
    pub fn line(&self) -> &[u8] {
        &self.line
    }

    /// Returns the paths.
    pub fn paths(&self) -> &[String] {
        &self.columns.paths
    }

    /// Returns the kinds, each once.
    pub fn kinds(&self) -> &[EntryKind] {
        &self.columns.kinds
    }

    /// Returns the number of each entry's kind.
    pub fn kind_of(&self) -> &[usize] {
        &self.columns.kind_of
    }

    /// Iterates over path and placement of the entries.
    pub fn placements(&self) -> impl Iterator<Item = (&str, Placement)> {
        let placements = self.kind_of().iter().map(|kind| self.kinds()[*kind].placement);
        self.paths().iter().map(String::as_str).zip(placements)
    }
}

/// Sections that were read, the most recently used first: reading one again takes as long as everything else.
#[derive(Clone, Debug, Default)]
pub struct SectionCache(VecDeque<Arc<Section>>);

impl SectionCache {
    /// Reads a section from its line, or returns the one that was read from an equal line.
    ///
    /// # Errors
    /// The line is invalid.
    pub fn read(&mut self, line: &[u8]) -> Result<Arc<Section>, String> {
        let known = self.0.iter().position(|known| known.line == line).and_then(|at| self.0.remove(at));
        let read = match known {
            Some(known) => known,
            None => Arc::new(Section::read(line)?),
        };
        self.0.push_front(Arc::clone(&read));
        self.0.truncate(SECTIONS_KEPT);
        Ok(read)
    }
}

impl FromIterator<Arc<Section>> for SectionCache {
    fn from_iter<I: IntoIterator<Item = Arc<Section>>>(known: I) -> Self {
        Self(known.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_sections_is_kept() {
        let mut known = SectionCache::default();
        let line =
            |number: usize| format!(r#"{{"paths":["{number}"],"kinds":[["leading","f",[],[],"cpu",4]],"kind_of":[0]}}"#).into_bytes();
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
    fn an_invalid_line_is_refused() {
        let kind = r#"["per rank","f",[2],[1],"cpu",8]"#;
        assert!(Section::read(format!(r#"{{"paths":["w"],"kinds":[{kind}],"kind_of":[0]}}"#).as_bytes()).is_ok());
        for (wrong, why) in [
            ("{}".to_owned(), "missing field `paths`"),
            (format!(r#"{{"paths":[1],"kinds":[{kind}],"kind_of":[0]}}"#), "expected a string"),
            (format!(r#"{{"paths":["w"],"kinds":[{kind}],"kind_of":[1]}}"#), "has no kind 1"),
            (format!(r#"{{"paths":["w"],"kinds":[{kind}],"kind_of":[]}}"#), "not of one length"),
            (
                format!(r#"{{"paths":["w"],"kinds":[{kind}],"kind_of":[0],"x":1}}"#),
                "unknown field `x`",
            ),
            (r#"{"paths":[],"kinds":[],"kind_of":[]}"#.to_owned(), "no entries"),
            (
                format!(r#"{{"paths":["w"],"kinds":[{}],"kind_of":[0]}}"#, kind.replace("[1]", "[]")),
                "not of one length",
            ),
            (
                format!(r#"{{"paths":["w"],"kinds":[{}],"kind_of":[0]}}"#, kind.replace('8', "-8")),
                "`-8`",
            ),
            (
                format!(r#"{{"paths":["w"],"kinds":[{}],"kind_of":[0]}}"#, kind.replace('8', "9e3")),
                "9000",
            ),
            (
                format!(
                    r#"{{"paths":["w"],"kinds":[{}],"kind_of":[0]}}"#,
                    kind.replace('8', "4611686018427387904")
                ),
                "invalid number",
            ),
            (
                format!(
                    r#"{{"paths":["w"],"kinds":[{}],"kind_of":[0]}}"#,
                    kind.replace("per rank", "everywhere")
                ),
                "unknown placement",
            ),
        ] {
            let refused = Section::read(wrong.as_bytes()).unwrap_err();
            assert!(refused.contains(why), "{wrong}: {refused}");
        }
    }
}
