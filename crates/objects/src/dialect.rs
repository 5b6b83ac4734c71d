//! Protocols of object stores: requests for objects and pages of listings, and the meaning of the answers.

use std::{fmt, ops::Range};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ureq::http::{HeaderMap, StatusCode};
use url::Url;

use crate::{
    Object,
    credentials::{Credential, Credentials},
    error::{RequestFault, StoreRefusal},
};

/// Settings of a store, in the terms of its protocol.
pub(crate) struct StoreSettings {
    pub(crate) dialect: Box<dyn Dialect>,
    pub(crate) endpoint: Url,
    /// Host of the requests: the endpoint's, or one below it for each bucket.
    pub(crate) host: String,
    pub(crate) credentials: Credentials,
    /// Address of the service that lends credentials, unless it is local.
    pub(crate) lender: Option<Url>,
    /// File of trusted certificates that a profile names.
    pub(crate) ca_bundle: Option<String>,
}

/// A GET, signed if there is a credential. Its address may hold a signature, so no error contains it.
pub(crate) struct StoreRequest {
    pub(crate) url: String,
    pub(crate) headers: Vec<(&'static str, String)>,
}

/// A request for an object.
pub(crate) struct WantedObject<'a> {
    pub(crate) key: &'a str,
    /// Requested bytes; `None`: all.
    pub(crate) range: Option<&'a Range<u64>>,
    /// Required version.
    pub(crate) version: Option<&'a str>,
}

impl WantedObject<'_> {
    /// Returns the header that names the range.
    pub(crate) fn range_header(&self) -> Option<(&'static str, String)> {
        let range = self.range?;
        Some(("range", format!("bytes={}-{}", range.start, range.end.saturating_sub(1))))
    }
}

/// A request for a page of a listing.
pub(crate) struct WantedPage<'a> {
    pub(crate) prefix: &'a str,
    /// True if keys with a slash behind the prefix are returned as folders.
    pub(crate) by_folder: bool,
    /// End of the page before.
    pub(crate) token: Option<&'a str>,
}

/// A page of a listing.
#[derive(Debug, Default)]
pub(crate) struct ListingPage {
    pub(crate) objects: Vec<Object>,
    /// Keys of folders, each with its final slash; bytes of a key that is not UTF-8.
    pub(crate) folders: Vec<Result<String, Vec<u8>>>,
    pub(crate) next: NextPage,
}

/// Continuation of a listing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum NextPage {
    /// This was the last page.
    #[default]
    End,
    /// Token of the next page.
    Page(String),
    /// There is more, but no token.
    Lost,
}

/// Protocol of one bucket.
pub(crate) trait Dialect: fmt::Debug + Send + Sync {
    /// Returns its name.
    fn name(&self) -> &'static str;

    /// Returns the request for an object.
    fn object(&self, wanted: &WantedObject<'_>, credential: Option<&Credential>) -> StoreRequest;

    /// Returns the request for a page.
    fn page(&self, wanted: &WantedPage<'_>, credential: Option<&Credential>) -> StoreRequest;

    /// Parses a page.
    ///
    /// # Errors
    /// [`RequestFault::Passing`]: it is not a page, or truncated. [`RequestFault::Lasting`]: an object in it lacks a
    /// field.
    fn read_page(&self, text: &str) -> Result<ListingPage, RequestFault>;

    /// Returns the name of the field that identifies a version.
    fn version_name(&self) -> &'static str {
        ETAG
    }

    /// Returns the version in an answer's headers, without quotes.
    fn version<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str>;

    /// Parses the body of a refusal.
    fn read_refusal(&self, text: &str) -> StoreRefusal;

    /// Returns an explanation of a refusal beyond its status, if there is one.
    fn explain(&self, _status: StatusCode, _headers: &HeaderMap, _refused: &StoreRefusal, _is_signed: bool) -> Option<RequestFault> {
        None
    }

    /// Returns the reason of a missing listing, for the answer "not found".
    fn no_listing(&self) -> &'static str;

    /// Returns the advice on how to set credentials.
    fn mend(&self) -> &'static str;
}

/// Name of the field that identifies a version in most protocols.
pub(crate) const ETAG: &str = "ETag";

/// Returns the fault of a page that can't be parsed.
pub(crate) fn unreadable(dialect: &str) -> RequestFault {
    RequestFault::Passing(format!("its listing can't be read: is this an endpoint of {dialect}?"))
}

pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Removes the quotes of a version; `None` for an empty one.
pub(crate) fn bare(etag: &str) -> Option<&str> {
    Some(etag.trim().trim_matches('"')).filter(|etag| !etag.is_empty())
}

const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const RESERVED_IN_PATHS: &AsciiSet = &RESERVED.remove(b'/');

/// Encodes text for a query, or for one name of a path.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Encodes a path of several names for an address.
pub(crate) fn encoded_path(path: &str) -> String {
    utf8_percent_encode(path, RESERVED_IN_PATHS).to_string()
}

/// Encodes parameters of an address, with their question mark.
pub(crate) fn query(parameters: &[(&str, &str)]) -> String {
    let parameters: Vec<String> = parameters
        .iter()
        .map(|(name, value)| format!("{name}={}", encoded(value)))
        .collect();
    format!("?{}", parameters.join("&"))
}
