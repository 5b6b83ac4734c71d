//! Heads of requests and answers. The version of the protocol is in the path: `/1/KIND/ID`.
//!
//! ```text
//! GET /1/samples/00112233445566778899aabbccddeeff
//! range: bytes=0-102399      fb-within: 180 (ms)      fb-turn: 4711      fb-members: 16 hex digits
//!
//! 206 content-range: bytes 0-102399/102400            fb-digest: 32 hex digits, XXH3-128 of the range
//!     fb-has: 4194304, while the holder is still making the object
//! 404 no such object | 409 another table of members | 410 no longer that version | 416 range
//! 429 busy: fb-ask: 3,7
//! ```
//!
//! `fb-name` and `fb-version` are for a holder that can make the object: a file of the source is read by its owner when
//! it is asked for. The identity must be theirs, or the answer is 400.
//!
//! With `fb-whole: 1` the whole object is asked for, if it is no longer than the range. If it is, or is empty, the
//! answer is 413 with `content-range: bytes */LENGTH` and without bytes: the asker did not know the length.
//!
//! `POST /1/KIND/many` asks for up to 1,024 ranges at once; see [`Item`].

use std::{fmt, ops::Range, time::Duration};

use hyper::{
    HeaderMap, Method, StatusCode,
    header::{CONTENT_RANGE, HeaderName, HeaderValue, RANGE},
};

use percent_encoding::{AsciiSet, CONTROLS, percent_decode, percent_encode};

use crate::limits::{MANY_BYTES_MAX, MANY_MAX, RANGE_BYTES_MAX, WITHIN_MAX};

/// Milliseconds for which the asker will wait.
pub(crate) const WITHIN: HeaderName = HeaderName::from_static("fb-within");
/// Priority: the step of a job that needs the range. Lower numbers go first.
pub(crate) const TURN: HeaderName = HeaderName::from_static("fb-turn");
/// Digest of the asker's table of members.
pub(crate) const MEMBERS: HeaderName = HeaderName::from_static("fb-members");
/// XXH3-128 of the range that follows.
pub(crate) const DIGEST: HeaderName = HeaderName::from_static("fb-digest");
/// The whole object is wanted, whose length is at most that of the range.
pub(crate) const WHOLE: HeaderName = HeaderName::from_static("fb-whole");
/// Canonical name of the object, percent-encoded.
pub(crate) const NAME: HeaderName = HeaderName::from_static("fb-name");
/// Version of the object, percent-encoded.
pub(crate) const VERSION: HeaderName = HeaderName::from_static("fb-version");
/// Bytes from the beginning on that the holder has, if it does not have all yet.
pub(crate) const HAS: HeaderName = HeaderName::from_static("fb-has");
/// Nodes that may have the range.
pub(crate) const ASK: HeaderName = HeaderName::from_static("fb-ask");

/// A role of a node. Each role has a listener and keys of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Copies of files, by the tiering role.
    Files,
    /// Samples, by the samples role.
    Samples,
    /// Entries of a training state, by the forks role.
    Forks,
}

impl Kind {
    /// Its name in paths.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Samples => "samples",
            Self::Forks => "forks",
        }
    }
}

/// The name of an immutable object: 128 bits of BLAKE3 over kind, canonical name and version.
///
/// BLAKE3 and not XXH3, since names come from data sets of strangers, and collisions of XXH3 can be made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlobId(pub [u8; 16]);

impl BlobId {
    /// Returns the identity of an object at one version.
    pub fn of(kind: Kind, name: &[u8], version: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in [kind.name().as_bytes(), name, version] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        let mut id = [0; 16];
        hasher.finalize_xof().fill(&mut id);
        Self(id)
    }

    /// Returns a number that is spread evenly over all identities, as [`forebay_policy::peers::Owners::of`] takes it.
    pub fn hash(self) -> u64 {
        u64::from_le_bytes(self.0.first_chunk().copied().unwrap_or_default())
    }

    fn parse(text: &str) -> Option<Self> {
        (text.len() == 32)
            .then(|| parse_hex(text))
            .flatten()
            .map(|number| Self(number.to_be_bytes()))
    }
}

impl fmt::Display for BlobId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for BlobId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

fn parse_hex(text: &str) -> Option<u128> {
    // `from_str_radix` would take a sign.
    text.bytes()
        .all(|byte| byte.is_ascii_hexdigit())
        .then(|| u128::from_str_radix(text, 16).ok())
        .flatten()
}

/// Canonical name and version of an object, of which its identity is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobName {
    /// Name, the same on all nodes.
    pub name: Vec<u8>,
    /// Version, the same on all nodes.
    pub version: Vec<u8>,
}

impl BlobName {
    /// Returns the identity of the object.
    pub fn id(&self, kind: Kind) -> BlobId {
        BlobId::of(kind, &self.name, &self.version)
    }

    fn parse(headers: &HeaderMap) -> Option<Self> {
        let decoded = |name| Some(percent_decode(headers.get(name)?.as_bytes()).collect());
        Some(Self {
            name: decoded(NAME)?,
            version: decoded(VERSION)?,
        })
    }

    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        for (header, bytes) in [(NAME, &self.name), (VERSION, &self.version)] {
            headers.insert(header, ascii(&percent_encode(bytes, NOT_IN_NAMES).to_string()));
        }
    }
}

/// Bytes that a header with a name does not have as they are.
const NOT_IN_NAMES: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// The head of a request for one range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) id: BlobId,
    pub(crate) range: Range<u64>,
    /// True if the whole object is wanted, up to the end of the range.
    pub(crate) is_whole: bool,
    /// Name and version of the object, if the asker gives them.
    pub(crate) name: Option<BlobName>,
    pub(crate) common: Common,
}

/// Headers of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Common {
    pub(crate) within: Duration,
    pub(crate) turn: u64,
    pub(crate) members: u64,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    One(Head),
    Many(Common),
}

impl Common {
    fn parse(headers: &HeaderMap) -> Option<Self> {
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let number = |name| {
            text(name)
                .filter(|text| text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit()))?
                .parse()
                .ok()
        };
        let members = text(MEMBERS).filter(|text| text.len() == 16).and_then(parse_hex)?;
        Some(Self {
            within: Duration::from_millis(number(WITHIN)?).min(WITHIN_MAX),
            turn: number(TURN)?,
            members: u64::try_from(members).ok()?,
        })
    }

    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        let within_ms = u64::try_from(self.within.as_millis()).unwrap_or(u64::MAX);
        headers.insert(WITHIN, within_ms.into());
        headers.insert(TURN, self.turn.into());
        headers.insert(MEMBERS, ascii(&format!("{:016x}", self.members)));
    }
}

impl Asked {
    /// Reads the head of a request to a server of `kind`.
    ///
    /// # Errors
    /// The status with which to refuse it: 404 for another path or kind, 405 for another method, 416 for an invalid
    /// or too long range, 400 for all else.
    pub(crate) fn parse(kind: Kind, method: &Method, path: &str, headers: &HeaderMap) -> Result<Self, StatusCode> {
        let name = path.strip_prefix("/1/").and_then(|rest| rest.strip_prefix(kind.name()));
        let name = name.and_then(|rest| rest.strip_prefix('/')).ok_or(StatusCode::NOT_FOUND)?;
        let common = || Common::parse(headers).ok_or(StatusCode::BAD_REQUEST);
        if name == "many" {
            return if method == Method::POST {
                Ok(Self::Many(common()?))
            } else {
                Err(StatusCode::METHOD_NOT_ALLOWED)
            };
        }
        let id = BlobId::parse(name).ok_or(StatusCode::NOT_FOUND)?;
        if method != Method::GET {
            return Err(StatusCode::METHOD_NOT_ALLOWED);
        }
        let range = headers.get(RANGE).and_then(|value| value.to_str().ok()).and_then(parse_range);
        let name = BlobName::parse(headers);
        if name.as_ref().is_some_and(|name| name.id(kind) != id) {
            return Err(StatusCode::BAD_REQUEST);
        }
        Ok(Self::One(Head {
            id,
            range: range.ok_or(StatusCode::RANGE_NOT_SATISFIABLE)?,
            is_whole: headers.contains_key(WHOLE),
            name,
            common: common()?,
        }))
    }
}

/// Reads `bytes=FIRST-LAST`, with no other unit, list or open end.
fn parse_range(text: &str) -> Option<Range<u64>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let number = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| text.parse::<u64>().ok())
            .flatten()
    };
    let (first, end) = (number(first)?, number(last)?.checked_add(1)?);
    (first < end && end - first <= RANGE_BYTES_MAX).then_some(first..end)
}

/// Writes a range, which is not empty, as a request has it.
pub(crate) fn range_header(range: &Range<u64>) -> HeaderValue {
    ascii(&format!("bytes={}-{}", range.start, range.end.saturating_sub(1)))
}

/// Writes a range and the object's length as an answer has them.
pub(crate) fn content_range(range: &Range<u64>, length: u64) -> HeaderValue {
    ascii(&format!("bytes {}-{}/{length}", range.start, range.end.saturating_sub(1)))
}

/// Writes the length of an object of which nothing is sent.
pub(crate) fn other_length(length: u64) -> HeaderValue {
    ascii(&format!("bytes */{length}"))
}

/// Reads the length of an object of which nothing was sent.
pub(crate) fn parse_other_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes */")?.parse().ok()
}

/// Reads the range of an answer. Returns it with the object's length.
pub(crate) fn parse_content_range(headers: &HeaderMap) -> Option<(Range<u64>, u64)> {
    let (range, length) = headers.get(CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, end): (u64, u64) = (first.parse().ok()?, last.parse::<u64>().ok()?.checked_add(1)?);
    (first < end).then_some((first..end, length.parse().ok()?))
}

/// Reads the number of bytes of an object that the holder has. Returns `length` if the answer has none.
pub(crate) fn parse_has(headers: &HeaderMap, length: u64) -> u64 {
    let has = headers.get(HAS).and_then(|value| value.to_str().ok()?.parse().ok());
    has.map_or(length, |has: u64| has.min(length))
}

/// Reads the digest of an answer.
pub(crate) fn parse_digest(headers: &HeaderMap) -> Option<u128> {
    headers
        .get(DIGEST)?
        .to_str()
        .ok()
        .filter(|text| text.len() == 32)
        .and_then(parse_hex)
}

/// Writes a digest.
pub(crate) fn digest_header(digest: u128) -> HeaderValue {
    ascii(&format!("{digest:032x}"))
}

/// Most nodes that a busy one names.
const NAMED_MAX: usize = 4;

/// Writes the nodes that may have a range.
pub(crate) fn holders_header(holders: &[u16]) -> HeaderValue {
    let names: Vec<_> = holders.iter().take(NAMED_MAX).map(u16::to_string).collect();
    ascii(&names.join(","))
}

/// Reads the nodes that may have a range.
pub(crate) fn parse_holders(headers: &HeaderMap) -> Vec<u16> {
    let text = headers.get(ASK).and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(',').take(NAMED_MAX).filter_map(|name| name.parse().ok()).collect()
}

fn ascii(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// One range of a request for many: 16 bytes of identity, 8 of offset and 4 of length, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// The object.
    pub id: BlobId,
    /// First byte.
    pub offset: u64,
    /// Bytes, at least one.
    pub length: u32,
}

impl Item {
    /// Its length on the wire.
    pub(crate) const BYTES: usize = 28;

    /// Its range.
    pub fn range(&self) -> Option<Range<u64>> {
        Some(self.offset..self.offset.checked_add(u64::from(self.length))?)
    }

    /// Appends it to a request.
    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.id.0);
        to.extend_from_slice(&self.offset.to_le_bytes());
        to.extend_from_slice(&self.length.to_le_bytes());
    }

    /// Reads the body of a request for many: `None` if it is invalid, or asks for too much.
    pub(crate) fn parse_all(body: &[u8]) -> Option<Vec<Self>> {
        if body.is_empty() || !body.len().is_multiple_of(Self::BYTES) || body.len() / Self::BYTES > MANY_MAX {
            return None;
        }
        let items: Option<Vec<Self>> = body.chunks_exact(Self::BYTES).map(Self::parse).collect();
        items.filter(|items| items.iter().map(|item| u64::from(item.length)).sum::<u64>() <= MANY_BYTES_MAX)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk::<16>()?;
        let (offset, rest) = rest.split_first_chunk::<8>()?;
        let item = Self {
            id: BlobId(*id),
            offset: u64::from_le_bytes(*offset),
            length: u32::from_le_bytes(*rest.first_chunk::<4>()?),
        };
        (item.length > 0 && item.range().is_some()).then_some(item)
    }
}

/// The head of one range in an answer for many: status, two zeros, length, the object's length and XXH3-128, 32 bytes,
/// little-endian. The bytes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ItemHead {
    pub(crate) status: u16,
    pub(crate) length: u32,
    pub(crate) object_length: u64,
    pub(crate) digest: u128,
}

impl ItemHead {
    pub(crate) const BYTES: usize = 32;

    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.status.to_le_bytes());
        to.extend_from_slice(&[0; 2]);
        to.extend_from_slice(&self.length.to_le_bytes());
        to.extend_from_slice(&self.object_length.to_le_bytes());
        to.extend_from_slice(&self.digest.to_le_bytes());
    }

    /// Reads a head, and returns what follows it.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (status, rest) = bytes.split_first_chunk::<2>()?;
        let (length, rest) = rest.get(2..)?.split_first_chunk::<4>()?;
        let (object_length, rest) = rest.split_first_chunk::<8>()?;
        let (digest, rest) = rest.split_first_chunk::<16>()?;
        let head = Self {
            status: u16::from_le_bytes(*status),
            length: u32::from_le_bytes(*length),
            object_length: u64::from_le_bytes(*object_length),
            digest: u128::from_le_bytes(*digest),
        };
        Some((head, rest))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers(range: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        Common {
            within: Duration::from_millis(180),
            turn: 4711,
            members: 0xfeed,
        }
        .write(&mut headers);
        headers.insert(RANGE, HeaderValue::from_str(range).unwrap());
        headers
    }

    #[test]
    fn a_head_comes_back_as_it_was_written() {
        let id = BlobId::of(Kind::Samples, b"name", b"version");
        let path = format!("/1/samples/{id}");
        let asked = Asked::parse(Kind::Samples, &Method::GET, &path, &headers("bytes=5-9")).unwrap();
        let Asked::One(head) = asked else { panic!("{asked:?}") };
        assert_eq!((head.id, head.range), (id, 5..10));
        assert_eq!(
            (head.common.within.as_millis(), head.common.turn, head.common.members),
            (180, 4711, 0xfeed)
        );
        assert_eq!(
            Asked::parse(Kind::Files, &Method::GET, &path, &headers("bytes=5-9")),
            Err(StatusCode::NOT_FOUND)
        );
        assert_eq!(
            Asked::parse(Kind::Samples, &Method::PUT, &path, &headers("bytes=5-9")),
            Err(StatusCode::METHOD_NOT_ALLOWED)
        );
    }

    #[test]
    fn ranges_are_plain_and_bounded() {
        for wrong in [
            "bytes=5-",
            "bytes=-5",
            "bytes=9-5",
            "bytes=0-1,3-4",
            "bytes=+1-2",
            "bytes=0-18446744073709551615",
            "0-1",
        ] {
            assert_eq!(parse_range(wrong), None, "{wrong}");
        }
        assert_eq!(parse_range(&format!("bytes=0-{}", RANGE_BYTES_MAX - 1)), Some(0..RANGE_BYTES_MAX));
        assert_eq!(parse_range(&format!("bytes=0-{RANGE_BYTES_MAX}")), None);
    }

    #[test]
    fn names_versions_and_kinds_are_kept_apart() {
        let ids = [
            BlobId::of(Kind::Files, b"ab", b"c"),
            BlobId::of(Kind::Files, b"a", b"bc"),
            BlobId::of(Kind::Samples, b"ab", b"c"),
        ];
        assert!(ids[0] != ids[1] && ids[0] != ids[2]);
        assert_eq!(BlobId::parse(&ids[0].to_string()), Some(ids[0]));
        assert_eq!(BlobId::parse("+0112233445566778899aabbccddeeff0"), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// F42: whatever a head says, it is read or refused, and nothing of it exceeds its bound.
        #[test]
        fn f42_any_head_is_read_or_refused(path in "(/1/)?(samples|files)?/?[0-9a-z/]{0,40}", range in "[ -~]{0,40}", within in "[ -~]{0,30}") {
            let mut headers = headers("bytes=0-1");
            headers.insert(RANGE, HeaderValue::from_str(&range).unwrap());
            headers.insert(WITHIN, HeaderValue::from_str(&within).unwrap());
            if let Ok(Asked::One(head)) = Asked::parse(Kind::Samples, &Method::GET, &path, &headers) {
                prop_assert!(head.range.end - head.range.start <= RANGE_BYTES_MAX);
            }
        }

        /// F42: the same for the body of a request for many.
        #[test]
        fn f42_any_body_is_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(items) = Item::parse_all(&body) {
                prop_assert!(items.iter().map(|item| u64::from(item.length)).sum::<u64>() <= MANY_BYTES_MAX);
            }
            let _ = ItemHead::parse(&body);
        }

        #[test]
        fn items_come_back_as_they_were_written(id in any::<[u8; 16]>(), offset in 0..u64::MAX / 2, length in 1..4096u32, digest in any::<u128>()) {
            let item = Item { id: BlobId(id), offset, length };
            let mut body = Vec::new();
            item.write(&mut body);
            prop_assert_eq!(Item::parse_all(&body), Some(vec![item]));
            let head = ItemHead { status: 206, length, object_length: 2 * u64::from(length), digest };
            let mut bytes = Vec::new();
            head.write(&mut bytes);
            bytes.push(7);
            prop_assert_eq!(ItemHead::parse(&bytes), Some((head, &[7][..])));
        }
    }
}
