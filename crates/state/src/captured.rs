//! Sections as a capture holds them: some entries are not copied, but located in the job's own memory.

use std::sync::Arc;

use crate::{checked_counts, from_json, section::Section, to_json};

/// An entry that was not copied: its number in the section, the number of its shared memory, and its offset there in
/// bytes.
pub type EntryPlace = (u64, u64, u64);

/// A section, and the places of its entries that were not copied, in the order of their numbers. A section's first
/// entry, its values, is always copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedSection {
    section: Arc<Section>,
    places: Arc<[EntryPlace]>,
    line: Arc<[u8]>,
}

impl CapturedSection {
    /// Makes a section with places, and writes their line.
    ///
    /// # Errors
    /// A place is of no such entry, or out of order.
    pub fn new(section: Arc<Section>, places: Vec<EntryPlace>) -> Result<Self, String> {
        let line = to_json(&places).into();
        Self::checked(section, places, line)
    }

    /// Reads places from their line.
    pub(crate) fn read(section: Arc<Section>, line: &[u8]) -> Result<Self, String> {
        Self::checked(section, from_json(line)?, line.into())
    }

    fn checked(section: Arc<Section>, places: Vec<EntryPlace>, line: Arc<[u8]>) -> Result<Self, String> {
        let mut last = 0;
        for &(number, memory, offset) in &places {
            if number <= last || number >= section.paths().len() as u64 {
                return Err(format!(
                    "[{number},{memory},{offset}] is not the place of a further tensor of its section"
                ));
            }
            checked_counts(&[memory, offset])?;
            last = number;
        }
        let places = places.into();
        Ok(Self { section, places, line })
    }

    /// Returns the section.
    pub fn section(&self) -> &Arc<Section> {
        &self.section
    }

    /// Returns the places of the entries that were not copied.
    pub fn places(&self) -> &[EntryPlace] {
        &self.places
    }

    /// Returns the two lines of the section: the section's own, and that of the places.
    pub(crate) fn lines(&self) -> [&[u8]; 2] {
        [self.section.line(), &self.line]
    }
}
