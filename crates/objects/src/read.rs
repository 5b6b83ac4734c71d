//! Reads ranges of objects, each of one version: directly into a loader's memory, or piece by piece into a view's
//! files.

use std::{fmt, io, io::Read, ops::Range, sync::Arc};

use ureq::{
    Body,
    http::{HeaderMap, Response, StatusCode},
};

use crate::{
    Error, Object, ObjectVersion, Store,
    credentials::Credential,
    dialect::{WantedObject, header},
    error::RequestFault,
    limits,
    stop::Stop,
    store::is_encoded,
};

/// Destination of the bytes of a range, in order.
pub(crate) trait Sink {
    /// Returns room for bytes from this offset of the object on; it is never empty.
    fn room(&mut self, at: u64) -> &mut [u8];

    /// Takes the `count` bytes that were written to the room from this offset on.
    fn keep(&mut self, at: u64, count: usize) -> io::Result<()>;
}

/// Memory for a whole range, and the range's offset.
struct WholeRange<'a>(&'a mut [u8], u64);

impl Sink for WholeRange<'_> {
    fn room(&mut self, at: u64) -> &mut [u8] {
        &mut self.0[(at - self.1) as usize..]
    }

    fn keep(&mut self, _: u64, _: usize) -> io::Result<()> {
        Ok(())
    }
}

/// Reason why bytes were not read.
#[derive(Debug)]
pub(crate) enum NotGot {
    /// The object is no longer the listed version.
    Changed,
    /// The store failed.
    Store(Error),
    /// Received bytes could not be kept.
    Disk(io::Error),
}

/// An open range of an object: its first bytes are being received, and its length and version are known.
pub struct OpenedRange {
    store: Arc<Store>,
    key: String,
    version: ObjectVersion,
    range: Range<u64>,
    /// RangeAnswer to the first request, not read yet; `None` if the range is empty.
    first: Option<Response<Body>>,
}

/// An answer whose bytes are being received.
struct RangeAnswer {
    response: Response<Body>,
    version: ObjectVersion,
}

impl fmt::Debug for OpenedRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let object = self.store.address().object(&self.key);
        formatter
            .debug_struct("OpenedRange")
            .field("object", &object)
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Returns the present version of an object.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub fn version(&self, key: &str) -> Result<ObjectVersion, Error> {
        self.there(key, None)
    }

    /// The version that is there now, and has this mark.
    fn there(&self, key: &str, mark: Option<u64>) -> Result<ObjectVersion, Error> {
        // A GET, since a refusal of HEAD has no body.
        let answer = self.ask(key, &(0..1), mark)?;
        // A connection that is read to its end serves the next request, too.
        let _ = io::copy(&mut answer.response.into_body().into_reader().take(2), &mut io::sink());
        Ok(answer.version)
    }

    /// Opens `length` bytes of an object from `offset` on, or all up to its end; of the version with this
    /// [mark](ObjectVersion::mark), or of the present one.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Changed`], [`Error::Denied`], [`Error::Short`], [`Error::Store`].
    pub fn open(self: &Arc<Self>, key: &str, offset: u64, length: Option<u64>, mark: Option<u64>) -> Result<OpenedRange, Error> {
        let asked = offset..offset.saturating_add(length.unwrap_or(limits::READ_BYTES).min(limits::READ_BYTES));
        // An empty range needs no request, nor does one that begins at an object's end.
        let answer = if asked.is_empty() {
            None
        } else {
            match self.ask(key, &asked, mark) {
                Err(Error::Short { .. }) if length.is_none() => None,
                answer => Some(answer?),
            }
        };
        let (first, version) = match answer {
            Some(RangeAnswer { response, version }) => (Some(response), version),
            None => (None, self.there(key, mark)?),
        };
        let end = length.map_or(version.size, |length| offset.saturating_add(length)).max(offset);
        if end > version.size {
            return Err(self.short(key, end));
        }
        Ok(OpenedRange {
            store: Arc::clone(self),
            key: key.to_owned(),
            range: offset..end,
            version,
            first,
        })
    }

    /// Requests a part of an object, as far as the object goes.
    fn ask(&self, key: &str, range: &Range<u64>, mark: Option<u64>) -> Result<RangeAnswer, Error> {
        let is_it = |answer: RangeAnswer| match mark {
            Some(mark) if mark != answer.version.mark => Err(RequestFault::Changed),
            _ => Ok(answer),
        };
        let ask = |range| self.again(&self.stop, |credential| self.request(key, range, None, credential).and_then(is_it));
        let answer = match ask(Some(range)) {
            // An object without bytes has no parts.
            Err(RequestFault::Short) if range.start == 0 => ask(None),
            answer => answer,
        };
        answer.map_err(|fault| self.failed_read(key, range.end, fault))
    }

    /// Reads the bytes `range` of an object, all of the listed version.
    pub(crate) fn get(&self, object: &Object, range: &Range<u64>, stop: &Stop, sink: &mut dyn Sink) -> Result<(), NotGot> {
        let Ok(key) = &object.key else { return Err(NotGot::Changed) };
        let version = self.version_of(&object.etag, object.size);
        let got = self.receive(key, &version, range, None, stop, sink);
        got.map_err(|fault| match fault {
            RequestFault::Missing | RequestFault::Changed => NotGot::Changed,
            RequestFault::Disk(error) => NotGot::Disk(error),
            fault => NotGot::Store(fault.of(self.address().object(&object.shown()))),
        })
    }

    /// Receives a range of this version. Bytes that came before an attempt failed are not requested again. `first` is
    /// the answer to a first request, not read yet.
    fn receive(
        &self,
        key: &str,
        version: &ObjectVersion,
        range: &Range<u64>,
        mut first: Option<Response<Body>>,
        stop: &Stop,
        sink: &mut dyn Sink,
    ) -> Result<(), RequestFault> {
        let mut at = range.start;
        loop {
            let end = range.end.min(at + limits::READ_BYTES);
            self.again(stop, |credential| {
                let wanted = at..end;
                let response = match first.take() {
                    Some(first) => first,
                    None => self.request(key, Some(&wanted), Some(version), credential)?.response,
                };
                take(response, &mut at, end, sink).map_err(|fault| match fault {
                    RequestFault::Passing(why) if at > wanted.start => RequestFault::Partly(why),
                    fault => fault,
                })
            })?;
            if at == range.end {
                return Ok(());
            }
        }
    }

    /// Makes one attempt to request a part of an object, or without a range all of it; of this version, or of the
    /// present one.
    fn request(
        &self,
        key: &str,
        range: Option<&Range<u64>>,
        version: Option<&ObjectVersion>,
        credential: Option<&Credential>,
    ) -> Result<RangeAnswer, RequestFault> {
        let wanted = WantedObject {
            key,
            range: range.filter(|range| version.is_none_or(|version| **range != (0..version.size))),
            version: version.map(|version| &*version.etag),
        };
        let mut response = self.send(&self.dialect().object(&wanted, credential))?;
        if !response.status().is_success() {
            return Err(match self.refusal(&mut response, credential.is_some()) {
                // This version has these bytes.
                RequestFault::Short if version.is_some() => RequestFault::Changed,
                fault => fault,
            });
        }
        let (sent, size) = sent(response.status(), response.headers()).ok_or_else(|| {
            let status = response.status().as_u16();
            RequestFault::Lasting(format!(
                "was answered with status {status}, and not with the bytes that were asked for"
            ))
        })?;
        let etag = self.dialect().version(response.headers());
        let etag =
            etag.ok_or_else(|| RequestFault::Lasting(format!("was answered without its version ({})", self.dialect().version_name())))?;
        let found = self.version_of(etag, size);
        if let Some(version) = version {
            // Stores that ignore `If-Match` send the version that they have.
            if version.etag != found.etag {
                return Err(RequestFault::Changed);
            }
            if version.size != found.size {
                let what = if found.size > version.size { "more" } else { "fewer" };
                return Err(RequestFault::Lasting(format!("was sent with {what} bytes than it has")));
            }
        }
        // A store may ignore ranges, which does no harm if all bytes were requested.
        let is_right = range.is_none_or(|range| sent == (range.start..range.end.min(size)));
        if !is_right {
            return Err(RequestFault::Lasting("was answered with other bytes than were asked for".into()));
        }
        Ok(RangeAnswer { response, version: found })
    }

    fn short(&self, key: &str, end: u64) -> Error {
        Error::Short {
            object: self.address().object(key),
            end,
        }
    }

    fn failed_read(&self, key: &str, end: u64, fault: RequestFault) -> Error {
        match fault {
            RequestFault::Short => self.short(key, end),
            fault => fault.of(self.address().object(key)),
        }
    }
}

impl OpenedRange {
    /// Returns the number of its bytes.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Returns the version of the object.
    pub fn version(&self) -> &ObjectVersion {
        &self.version
    }

    /// Receives the bytes. Those received before an attempt failed are not requested again.
    ///
    /// # Errors
    /// Those of [`Store::open`]; [`Error::Input`] if `into` has another length.
    pub fn read(self, into: &mut [u8]) -> Result<(), Error> {
        let Self {
            store,
            key,
            version,
            range,
            first,
        } = self;
        if into.len() as u64 != range.end - range.start {
            let (has, room) = (range.end - range.start, into.len());
            return Err(Error::Input(format!("{has} bytes of an object don't fit into {room}")));
        }
        if into.is_empty() {
            return Ok(());
        }
        let received = store.receive(&key, &version, &range, first, &store.stop, &mut WholeRange(into, range.start));
        received.map_err(|fault| store.failed_read(&key, range.end, fault))
    }
}

/// Takes the bytes from `at` to `end`, the whole rest of the body.
fn take(response: Response<Body>, at: &mut u64, end: u64, sink: &mut dyn Sink) -> Result<(), RequestFault> {
    let mut body = response.into_body().into_reader();
    let mut beyond = [0];
    loop {
        let left = end - *at;
        let room = if left == 0 { &mut beyond[..] } else { sink.room(*at) };
        let most = room.len().min(usize::try_from(left.max(1)).unwrap_or(usize::MAX));
        match body.read(&mut room[..most]) {
            // A connection that is read to its end serves the next request, too.
            Ok(0) if left == 0 => return Ok(()),
            Ok(_) if left == 0 => return Err(RequestFault::Lasting("was sent with more bytes than it has".into())),
            Ok(0) => return Err(RequestFault::Passing(format!("ended {left} bytes early"))),
            Ok(count) => {
                sink.keep(*at, count).map_err(RequestFault::Disk)?;
                *at += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // All announced bytes have come.
            Err(_) if left == 0 => return Ok(()),
            Err(error) => return Err(RequestFault::Passing(format!("ended early: {error}"))),
        }
    }
}

/// Returns the range that an answer holds, and the length of the object.
fn sent(status: StatusCode, headers: &HeaderMap) -> Option<(Range<u64>, u64)> {
    if is_encoded(headers) {
        return None;
    }
    if status == StatusCode::OK {
        let size = header(headers, "content-length")?.parse().ok()?;
        return Some((0..size, size));
    }
    let (range, size) = header(headers, "content-range")?.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let last: u64 = last.parse().ok()?;
    Some((first.parse().ok()?..last.checked_add(1)?, size.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(status: u16, headers: &[(&str, &str)]) -> Option<(Range<u64>, u64)> {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        let response = response.body(()).unwrap();
        sent(response.status(), response.headers())
    }

    #[test]
    fn an_answer_says_which_bytes_it_has() {
        assert_eq!(told(206, &[("content-range", "bytes 5-9/20")]), Some((5..10, 20)));
        assert_eq!(told(200, &[("content-length", "7")]), Some((0..7, 7)));
        let put_encoded = [("content-length", "7"), ("content-encoding", "gzip")];
        assert_eq!(told(200, &put_encoded), Some((0..7, 7)));
        for (status, headers) in [
            (200, [].as_slice()),
            (206, &[("content-length", "7")]),
            (206, &[("content-range", "bytes */20")]),
            (206, &[("content-range", "bytes 5-9/*")]),
            (206, &[("content-range", "bytes 5-18446744073709551615/20")]),
            (206, &[("content-range", "bytes 5-9/20"), ("content-encoding", "gzip")]),
        ] {
            assert_eq!(told(status, headers), None, "{headers:?}");
        }
    }
}
