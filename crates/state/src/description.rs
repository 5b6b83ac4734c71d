//! Texts that go from process to process: a state's manifest, or the schema of a coming state, each with a header and
//! a tag.
//!
//! The text is lines: its form with the version of the contract; the tag, HMAC-SHA256 of all other lines by the job's
//! secret; the header; the rest.

use std::str;

use forebay_contract::CONTRACT_VERSION;
use ring::hmac;
use serde::{Deserialize, Serialize};

use crate::{
    InvalidState,
    captured::CapturedSection,
    from_json,
    manifest::{MANIFEST_BYTES_MAX, Manifest, from_hex, to_hex},
    section::SectionCache,
    to_json,
};

/// Largest text in bytes: a manifest, and what stands before it.
pub const TEXT_BYTES_MAX: usize = MANIFEST_BYTES_MAX + 4096;

const TAG_DIGITS: usize = 64;
const STATE: &str = "state";
const SCHEMA: &str = "schema";

/// Origin of a state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateHeader {
    /// Name of the job.
    pub job: String,
    /// Rank whose state it is.
    pub rank: u64,
    /// Epoch, as the job counts.
    pub epoch: u64,
    /// Step after which the state was taken, as the job counts.
    pub step: u64,
}

/// A section of a coming state, and the encoded values of a component that a clone can prepare for; else no values.
pub type ExpectedSection = (CapturedSection, Vec<u8>);

/// Writes the description of a state.
pub fn write_state(secret: &[u8], header: &StateHeader, manifest: &Manifest) -> Vec<u8> {
    write(STATE, secret, |text| {
        text.extend(to_json(header));
        text.push(b'\n');
        manifest.write(text);
    })
}

/// Reads the description of a state. Sections of `known` are reused.
///
/// # Errors
/// The text is invalid, or was written without the secret.
pub fn read_state(secret: &[u8], text: &[u8], known: &mut SectionCache) -> Result<(StateHeader, Manifest), InvalidState> {
    let (header, rest) = open(STATE, Some(secret), text)?;
    Ok((header, Manifest::read(rest, known)?))
}

/// Reads the description of a state without its tag, for a reader that only compares states. Sections of `known` are
/// reused.
///
/// # Errors
/// The text is invalid.
pub fn read_state_unverified(text: &[u8], known: &mut SectionCache) -> Result<(StateHeader, Manifest), InvalidState> {
    let (header, rest) = open(STATE, None, text)?;
    Ok((header, Manifest::read(rest, known)?))
}

/// Writes the schema of a coming state: three lines for each section, the last one with its values.
pub fn write_schema(secret: &[u8], header: &StateHeader, expected: &[ExpectedSection]) -> Vec<u8> {
    write(SCHEMA, secret, |text| {
        text.extend(to_json(header));
        for (held, values) in expected {
            for line in held.lines().into_iter().chain([values.as_slice()]) {
                text.push(b'\n');
                text.extend(line);
            }
        }
    })
}

/// Reads the schema of a coming state.
///
/// # Errors
/// The text is invalid, or was written without the secret.
pub fn read_schema(secret: &[u8], text: &[u8]) -> Result<(StateHeader, Vec<ExpectedSection>), InvalidState> {
    let (header, rest) = open(SCHEMA, Some(secret), text)?;
    let lines: Vec<_> = rest.split(|byte| *byte == b'\n').collect();
    let read = |lines: &[&[u8]]| match lines {
        [section, places, values] => {
            let section = SectionCache::default().read(section)?;
            Ok((CapturedSection::read(section, places)?, values.to_vec()))
        }
        _ => Err("it has part of a section".to_owned()),
    };
    let expected = lines.chunks(3).map(read).collect::<Result<_, _>>();
    expected
        .map(|expected| (header, expected))
        .map_err(|why| InvalidState(format!("not a schema of states: {why}")))
}

/// Writes form and tag, and between them and the end all that the tag covers.
fn write(form: &str, secret: &[u8], signed: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut text = first_line(form).into_bytes();
    text.push(b'\n');
    let tag_at = text.len();
    text.resize(tag_at + TAG_DIGITS, b'0');
    text.push(b'\n');
    signed(&mut text);
    let mut tag = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
    tag.update(&text[..tag_at]);
    tag.update(&text[tag_at + TAG_DIGITS + 1..]);
    text[tag_at..tag_at + TAG_DIGITS].copy_from_slice(to_hex(tag.sign().as_ref()).as_bytes());
    text
}

/// Checks form and tag of a text. Returns the header, and the lines after it.
fn open<'a>(form: &str, secret: Option<&[u8]>, text: &'a [u8]) -> Result<(StateHeader, &'a [u8]), InvalidState> {
    let form = first_line(form);
    let mut lines = text.splitn(3, |byte| *byte == b'\n');
    if lines.next() != Some(form.as_bytes()) {
        return Err(InvalidState(format!(
            "the description of the state is not of the format '{form}': use the same version of Forebay on both sides"
        )));
    }
    let (tag, signed) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    if let Some(secret) = secret {
        let message = [form.as_bytes(), b"\n", signed].concat();
        let tag = str::from_utf8(tag).ok().and_then(from_hex).unwrap_or_default();
        hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, secret), &message, &tag)
            .map_err(|_| InvalidState("the description of the state failed HMAC verification: it was not written by this job".into()))?;
    }
    let mut parts = signed.splitn(2, |byte| *byte == b'\n');
    let (header, rest) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let header = from_json(header).map_err(|why| InvalidState(format!("invalid header of a state: {why}")))?;
    Ok((header, rest))
}

fn first_line(form: &str) -> String {
    format!("forebay clone {form} {CONTRACT_VERSION}")
}

#[cfg(test)]
mod tests;
