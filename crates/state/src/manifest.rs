//! The manifest: all entries of one rank's state, each with its digest or its place.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::{
    InvalidState,
    captured::CapturedSection,
    from_json,
    section::{Placement, SectionCache},
    to_json,
};

/// Bytes of a digest (XXH3-128).
pub const DIGEST_BYTES: usize = 16;
/// Digest of an entry under a read lease that nobody has read yet: a clone computes it while it reads.
pub const UNKNOWN_DIGEST: [u8; DIGEST_BYTES] = [0; DIGEST_BYTES];
/// Largest manifest in bytes.
pub const MANIFEST_BYTES_MAX: usize = 256 << 20;

const FORM: &str = "forebay clone manifest";

/// All entries of one rank's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Name and version of the framework.
    pub framework: String,
    /// Rank whose state it is.
    pub rank: u64,
    /// Number of the job's ranks.
    pub ranks: u64,
    /// Kinds of state that the job declared absent.
    pub absent: Vec<String>,
    /// Sections, in the order of their bytes.
    pub sections: Vec<CapturedSection>,
    /// Digest of each entry, in the order of the entries. An entry with a place may have [`UNKNOWN_DIGEST`].
    pub digests: Vec<u8>,
}

/// First line of the text; two lines for each section follow.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ManifestHead {
    format: String,
    framework: String,
    rank: u64,
    ranks: u64,
    absent: Vec<String>,
    /// Digests in hexadecimal digits.
    digests: String,
}

impl Manifest {
    /// Writes the manifest: a line of its own, and two for each section.
    pub fn write(&self, text: &mut Vec<u8>) {
        text.extend(to_json(&ManifestHead {
            format: FORM.into(),
            framework: self.framework.clone(),
            rank: self.rank,
            ranks: self.ranks,
            absent: self.absent.clone(),
            digests: to_hex(&self.digests),
        }));
        for line in self.sections.iter().flat_map(CapturedSection::lines) {
            text.push(b'\n');
            text.extend(line);
        }
    }

    /// Reads a manifest. Sections of `known` are reused.
    ///
    /// # Errors
    /// The text is invalid, a path occurs twice, or the number of digests is wrong.
    pub fn read(text: &[u8], known: &mut SectionCache) -> Result<Self, InvalidState> {
        Self::parse(text, known).map_err(|why| InvalidState(format!("not a manifest: {why}")))
    }

    fn parse(text: &[u8], known: &mut SectionCache) -> Result<Self, String> {
        if text.len() > MANIFEST_BYTES_MAX {
            return Err(format!("{} bytes; the most is {MANIFEST_BYTES_MAX}", text.len()));
        }
        let mut lines = text.split(|byte| *byte == b'\n');
        let head: ManifestHead = from_json(lines.next().unwrap_or_default())?;
        if head.format != FORM {
            return Err(format!("not of the format '{FORM}': use the same version of Forebay on both sides"));
        }
        let mut sections = Vec::new();
        while let Some(section) = lines.next() {
            let places = lines.next().ok_or("it has half of a section")?;
            sections.push(CapturedSection::read(known.read(section)?, places)?);
        }
        let digests = from_hex(&head.digests).ok_or("its digests are not of hexadecimal digits")?;
        let read = Self {
            framework: head.framework,
            rank: head.rank,
            ranks: head.ranks,
            absent: head.absent,
            sections,
            digests,
        };
        read.check()?;
        Ok(read)
    }

    fn check(&self) -> Result<(), String> {
        let entries: usize = self.sections.iter().map(|held| held.section().paths().len()).sum();
        if entries == 0 {
            return Err("it has no sections".into());
        }
        if self.digests.len() != entries * DIGEST_BYTES {
            return Err("it has not one digest for each entry".into());
        }
        let mut seen = HashSet::with_capacity(entries);
        let mut paths = self.sections.iter().flat_map(|held| held.section().paths());
        match paths.find(|path| !seen.insert(path.as_str())) {
            Some(path) => Err(format!("the path {path} occurs twice")),
            None => Ok(()),
        }
    }

    /// Iterates over path, placement and digest of all entries.
    pub fn entries(&self) -> impl Iterator<Item = (&str, Placement, &[u8])> {
        let placed = self.sections.iter().flat_map(|held| held.section().placements());
        let with_digests = placed.zip(self.digests.chunks_exact(DIGEST_BYTES));
        with_digests.map(|((path, placement), digest)| (path, placement, digest))
    }
}

/// Returns bytes in hexadecimal digits.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Returns the bytes of hexadecimal digits.
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |[high, low]: &[u8; 2]| Some((digit(*high)? << 4 | digit(*low)?) as u8);
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}
