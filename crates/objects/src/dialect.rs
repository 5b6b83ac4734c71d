//! The protocols of object stores: how an object and a page of a listing are asked for, and what the answers mean.

use std::{fmt, ops::Range};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ureq::http::{HeaderMap, StatusCode};

use crate::{Object, credentials::Credential, error::Fault};

/// A GET, signed if there is a credential. Its address may hold a signature, and comes into no error.
pub(crate) struct Request {
    pub(crate) url: String,
    pub(crate) headers: Vec<(&'static str, String)>,
}

/// An object that is asked for.
pub(crate) struct Wanted<'a> {
    pub(crate) key: &'a str,
    /// `None`: all of it.
    pub(crate) range: Option<&'a Range<u64>>,
    /// The version that it has to have.
    pub(crate) version: Option<&'a str>,
}

impl Wanted<'_> {
    /// The header that names the range.
    pub(crate) fn range_header(&self) -> Option<(&'static str, String)> {
        let range = self.range?;
        Some(("range", format!("bytes={}-{}", range.start, range.end.saturating_sub(1))))
    }
}

/// A page of a listing that is asked for.
pub(crate) struct WantedPage<'a> {
    pub(crate) prefix: &'a str,
    /// Whether what has a slash behind the prefix comes as a folder.
    pub(crate) by_folder: bool,
    /// Where the page before it ended.
    pub(crate) token: Option<&'a str>,
}

/// A page of a listing.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) objects: Vec<Object>,
    /// The keys of folders, each with its final slash; the bytes of one that is no UTF-8.
    pub(crate) folders: Vec<Result<String, Vec<u8>>>,
    pub(crate) next: Next,
}

/// How a listing goes on.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum Next {
    /// It was the last page.
    #[default]
    End,
    /// The next page is asked for with this.
    Page(String),
    /// There is more, and nothing says where.
    Lost,
}

/// The error of an answer, in the store's words.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    pub(crate) code: String,
    pub(crate) message: String,
}

/// A protocol, as one bucket speaks it.
pub(crate) trait Dialect: fmt::Debug + Send + Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Returns the request for an object.
    fn object(&self, wanted: &Wanted<'_>, credential: Option<&Credential>) -> Request;

    /// Returns the request for a page.
    fn page(&self, wanted: &WantedPage<'_>, credential: Option<&Credential>) -> Request;

    /// Reads a page.
    ///
    /// # Errors
    /// [`Fault::Passing`]: it is no page, or was cut. [`Fault::Lasting`]: an object in it lacks something.
    fn read_page(&self, text: &str) -> Result<Page, Fault>;

    /// What names a version.
    fn version_name(&self) -> &'static str {
        ETAG
    }

    /// The name of the version that an answer's head names, without quotes.
    fn version<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str>;

    /// Reads the body of a refusal.
    fn read_refusal(&self, text: &str) -> Refused;

    /// Says more of a refusal than its status does.
    fn explain(&self, _status: StatusCode, _headers: &HeaderMap, _refused: &Refused, _is_signed: bool) -> Option<Fault> {
        None
    }

    /// Why there is no listing where the answer is "not found".
    fn no_listing(&self) -> &'static str;

    /// What to set for credentials to be found.
    fn mend(&self) -> &'static str;
}

/// What names a version in most protocols.
pub(crate) const ETAG: &str = "ETag";

/// A page can't be read.
pub(crate) fn unreadable(dialect: &str) -> Fault {
    Fault::Passing(format!("its listing can't be read: is this an endpoint of {dialect}?"))
}

pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The name of a version without its quotes; `None` for one that is empty.
pub(crate) fn bare(etag: &str) -> Option<&str> {
    Some(etag.trim().trim_matches('"')).filter(|etag| !etag.is_empty())
}

const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const RESERVED_IN_PATHS: &AsciiSet = &RESERVED.remove(b'/');

/// Text as it stands in a query, or as one name of a path.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// A path of several names as it stands in an address.
pub(crate) fn encoded_path(path: &str) -> String {
    utf8_percent_encode(path, RESERVED_IN_PATHS).to_string()
}

/// Parameters of an address, behind their question mark.
pub(crate) fn query(parameters: &[(&str, &str)]) -> String {
    let parameters: Vec<String> = parameters
        .iter()
        .map(|(name, value)| format!("{name}={}", encoded(value)))
        .collect();
    format!("?{}", parameters.join("&"))
}
