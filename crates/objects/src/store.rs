//! An object store that speaks S3: listing a bucket, and getting parts of objects. rusty-s3 signs, ureq speaks HTTP; retries, and what counts as
//! an answer, are decided here.
//!
//! Requests are only ever GET, of the bucket and of objects: nothing is written. Each is signed in its address, which is why no address that
//! was signed comes into an error.

use std::{
    fmt, io,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jiff::Timestamp;
use percent_encoding::percent_decode_str;
use rusty_s3::{Bucket, Credentials, S3Action, actions::GetObject};
use serde::Deserialize;
use twox_hash::XxHash3_64;
use ureq::{
    Agent, Body,
    http::{HeaderMap, Response},
    tls::TlsConfig,
};

use crate::{Address, Error, access::Access, limits, stop::Stop};

/// An object as a listing has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its key, or the bytes of one that is no UTF-8.
    pub key: Result<String, Vec<u8>>,
    /// Names its version, without the quotes.
    pub etag: String,
    /// Bytes.
    pub size: u64,
    /// When it was last modified, in milliseconds since 1970.
    pub modified_ms: i64,
}

impl Object {
    /// Its key, for people: a terminal obeys control characters.
    pub fn shown(&self) -> String {
        let text = match &self.key {
            Ok(key) => key.clone(),
            Err(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        };
        text.replace(char::is_control, "?")
    }
}

/// One version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Names it in its store, without the quotes.
    pub etag: String,
    /// Bytes.
    pub size: u64,
    /// Stands for it, and for the store: no other version of the object has the same, but for a chance of one in 2^64. Never 0.
    pub mark: u64,
}

/// A bucket of a store, or what of it lies below a prefix.
#[derive(Debug)]
pub struct Store {
    address: Address,
    access: Arc<Access>,
    bucket: Bucket,
    agent: Agent,
    /// Set once nothing is to be tried again.
    pub(crate) stop: Arc<Stop>,
}

/// Why an attempt failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Another attempt may succeed.
    Passing(String),
    /// The same, and some of the bytes have come.
    Partly(String),
    /// No other will.
    Lasting(String),
    /// Who asks may not have it.
    Denied(String),
    /// There is no such object.
    Missing,
    /// The object is not, or no longer, the version that is meant.
    Changed,
    /// It ends before the bytes that were asked for.
    Short,
    /// What was received could not be kept.
    Disk(io::Error),
}

impl Fault {
    /// What it comes to, of an object or of a bucket.
    pub(crate) fn of(self, object: String) -> Error {
        match self {
            Self::Passing(why) | Self::Partly(why) | Self::Lasting(why) => Error::Store { object, why },
            Self::Denied(why) => Error::Denied { object, why },
            Self::Missing => Error::Missing { object },
            Self::Changed => Error::Changed { object },
            Self::Short => Error::Store {
                object,
                why: "is shorter than it was said to be".into(),
            },
            Self::Disk(error) => Error::Store {
                object,
                why: error.to_string(),
            },
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Page {
    #[serde(default)]
    contents: Vec<Content>,
    /// Every listing has it, and little else does.
    is_truncated: bool,
    next_continuation_token: Option<String>,
    encoding_type: Option<String>,
    #[serde(default)]
    common_prefixes: Vec<Common>,
}

impl Page {
    fn is_url(&self) -> bool {
        self.encoding_type.as_deref() == Some("url")
    }
}

/// What keys have in common up to a delimiter.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Common {
    prefix: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Content {
    key: String,
    size: u64,
    last_modified: String,
    #[serde(rename = "ETag")]
    e_tag: Option<String>,
}

/// What a store answers that refuses.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Refused {
    code: String,
    message: String,
}

impl Store {
    /// A store that is reached in this way. Nothing is asked yet.
    ///
    /// # Errors
    /// [`Error::Input`]: bucket and endpoint make no URL together.
    pub fn new(address: Address, access: Access) -> Result<Self, Error> {
        let name = address.bucket().to_owned();
        let bucket = Bucket::new(access.endpoint.clone(), access.style, name, access.region.clone())
            .map_err(|error| Error::Input(format!("{address}: {error}; check the bucket's name and the endpoint")))?;
        let tls = TlsConfig::builder()
            .root_certs(access.network.roots.clone())
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let config = Agent::config_builder()
            .tls_config(tls)
            // Never that of this process, which may ask for another.
            .proxy(access.network.proxy.clone())
            .http_status_as_error(false)
            // A redirection is an answer of its own: a signature is good for one host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("forebay/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(limits::CONNECT_DEADLINE))
            .timeout_recv_response(Some(limits::ANSWER_DEADLINE))
            .timeout_recv_body(Some(limits::BODY_DEADLINE))
            .max_idle_connections(limits::CONNECTIONS_KEPT)
            .max_idle_connections_per_host(limits::CONNECTIONS_KEPT);
        Ok(Self {
            address,
            access: Arc::new(access),
            bucket,
            agent: config.build().into(),
            stop: Arc::default(),
        })
    }

    /// What of the same bucket lies below another prefix, reached by the same connections.
    pub(crate) fn below(&self, address: Address) -> Self {
        Self {
            address,
            access: Arc::clone(&self.access),
            bucket: self.bucket.clone(),
            agent: self.agent.clone(),
            stop: Arc::clone(&self.stop),
        }
    }

    /// From now on nothing is tried again, and what is being asked for fails at once. A connection that is only being made does when its deadline is over.
    pub(crate) fn end(&self) {
        self.stop.set();
        self.agent.clone().shutdown();
    }

    pub(crate) fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    /// The version of an object that this store calls so.
    pub(crate) fn version_of(&self, etag: &str, size: u64) -> Version {
        let named = format!("{} {etag} {size}", self.access.place());
        Version {
            etag: etag.to_owned(),
            size,
            mark: XxHash3_64::oneshot(named.as_bytes()).max(1),
        }
    }

    /// What it is a store of.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Every object below the prefix, in no particular order; `seen` is told how many there are so far.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Denied`]; [`Error::Input`] where there is nothing, or far too much.
    pub fn list(&self, seen: &dyn Fn(u64)) -> Result<Vec<Object>, Error> {
        let mut objects = Vec::new();
        self.pages(None, |page| {
            let is_url = page.is_url();
            for content in page.contents {
                objects.push(self.object(content, is_url)?);
            }
            seen(objects.len() as u64);
            self.bounded(objects.len())
        })?;
        if objects.is_empty() {
            return Err(Error::Input(format!("{} has no objects; check the prefix", self.address)));
        }
        Ok(objects)
    }

    /// What lies directly below the prefix and has objects below it, as a directory has files: names without slashes, in no particular order.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Denied`]; [`Error::Input`] where there are far too many, or a name is no UTF-8.
    pub fn folders(&self) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        self.pages(Some("/"), |page| {
            let is_url = page.is_url();
            for common in page.common_prefixes {
                let key = decoded(common.prefix, is_url);
                let key =
                    key.map_err(|_| Error::Input(format!("{} has a key below it that is no UTF-8; name another prefix", self.address)))?;
                let name = key.strip_prefix(self.address.prefix()).unwrap_or(&key);
                names.push(name.trim_end_matches('/').to_owned());
            }
            self.bounded(names.len())
        })?;
        Ok(names)
    }

    fn bounded(&self, count: usize) -> Result<(), Error> {
        let most = limits::OBJECTS_MAX;
        if count > most {
            return Err(Error::Input(format!(
                "{} has more than {most} objects; name a longer prefix",
                self.address
            )));
        }
        Ok(())
    }

    /// Goes through the pages of a listing. With a delimiter, what has one further on in its key comes as a common prefix.
    fn pages(&self, delimiter: Option<&str>, mut take: impl FnMut(Page) -> Result<(), Error>) -> Result<(), Error> {
        let mut token: Option<String> = None;
        loop {
            let mut page = self.page(token.as_deref(), delimiter)?;
            let (is_truncated, next) = (page.is_truncated, page.next_continuation_token.take());
            take(page)?;
            if !is_truncated {
                return Ok(());
            }
            match next {
                // A listing that stands still would go on for ever, and one that only stops is not whole.
                Some(next) if !next.is_empty() && token.as_ref() != Some(&next) => token = Some(next),
                _ => return Err(self.failed("its listing does not go on where it should: is this an endpoint of S3?")),
            }
        }
    }

    fn page(&self, token: Option<&str>, delimiter: Option<&str>) -> Result<Page, Error> {
        let asked = self.again(&self.stop, |credentials| {
            // A GET of the bucket itself: of the object without a name. (The library's own action for listings takes a plus sign in a key, which
            // stands for a blank, as it is.)
            let mut request = GetObject::new(&self.bucket, credentials, "");
            let query = request.query_mut();
            query.insert("list-type", "2");
            // What XML can't hold comes escaped.
            query.insert("encoding-type", "url");
            query.insert("prefix", self.address.prefix());
            if let Some(delimiter) = delimiter {
                query.insert("delimiter", delimiter);
            }
            if let Some(token) = token {
                query.insert("continuation-token", token);
            }
            let mut answer = self.get_signed(request.sign(limits::SIGNATURE_LIFE).as_str(), &[])?;
            if !answer.status().is_success() {
                return Err(self.refusal(&mut answer, credentials.is_some()));
            }
            let text = answer.body_mut().with_config().limit(limits::PAGE_BYTES_MAX).read_to_string();
            let text = text.map_err(|error| fault_of(&error))?;
            quick_xml::de::from_str(&text).map_err(|_| Fault::Passing("its listing can't be read: is this an endpoint of S3?".into()))
        });
        asked.map_err(|fault| match fault {
            Fault::Missing | Fault::Changed | Fault::Short => self.failed("does not answer as S3 does: is this its endpoint?"),
            fault => fault.of(self.address.to_string()),
        })
    }

    fn object(&self, content: Content, is_url: bool) -> Result<Object, Error> {
        let modified: Timestamp = content
            .last_modified
            .parse()
            .map_err(|_| self.failed("lists an object with a time that is none"))?;
        let key = decoded(content.key, is_url);
        let etag = content.e_tag.as_deref().map(bare).filter(|etag| !etag.is_empty());
        Ok(Object {
            key,
            etag: etag
                .ok_or_else(|| self.failed("lists an object without its version (ETag)"))?
                .to_owned(),
            size: content.size,
            modified_ms: modified.as_millisecond(),
        })
    }

    pub(crate) fn get_signed(&self, url: &str, headers: &[(&str, String)]) -> Result<Response<Body>, Fault> {
        let request = headers
            .iter()
            .fold(self.agent.get(url), |request, (name, value)| request.header(*name, value));
        request.call().map_err(|error| match fault_of(&error) {
            // Nobody has answered: is this the one that is meant?
            Fault::Passing(why) => Fault::Passing(format!("{why}; the endpoint is {}{}", self.access.place(), self.access.network)),
            fault => fault,
        })
    }

    /// Tries until it succeeds, can't succeed, or was tried often enough without any progress; longer and longer pauses lie between.
    pub(crate) fn again<T>(&self, stop: &Stop, mut attempt: impl FnMut(Option<&Credentials>) -> Result<T, Fault>) -> Result<T, Fault> {
        let mut pause = limits::PAUSE_FIRST;
        let mut left = self.access.attempts;
        loop {
            left = left.saturating_sub(1);
            let credentials = self.access.credentials(&self.agent);
            let answer = credentials
                .map_err(Fault::Passing)
                .and_then(|credentials| attempt(credentials.as_ref()));
            match answer {
                Err(Fault::Passing(_)) if left > 0 => {}
                // What has come is not asked for again, so each attempt is nearer to the end.
                Err(Fault::Partly(_)) => (left, pause) = (self.access.attempts, limits::PAUSE_FIRST),
                answer => return answer,
            }
            if stop.pause(uneven(pause)) {
                return Err(Fault::Lasting("was ended before it had been answered".into()));
            }
            pause = (2 * pause).min(limits::PAUSE_MAX);
        }
    }

    /// What a refusal means.
    pub(crate) fn refusal(&self, answer: &mut Response<Body>, is_signed: bool) -> Fault {
        let status = answer.status();
        let region = answer
            .headers()
            .get("x-amz-bucket-region")
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let text = answer
            .body_mut()
            .with_config()
            .limit(limits::ANSWER_BYTES_MAX)
            .lossy_utf8(true)
            .read_to_string();
        let told: Refused = quick_xml::de::from_str(&text.unwrap_or_default()).unwrap_or_default();
        let words = match (told.code.is_empty(), told.message.is_empty()) {
            (true, _) => format!("HTTP status {}", status.as_u16()),
            (false, true) => plain(&told.code),
            (false, false) => format!("{}: {}", plain(&told.code), plain(&told.message)),
        };
        if let (301 | 307 | 400, Some(region)) = (status.as_u16(), region.filter(|region| *region != self.access.region)) {
            let region = plain(&region);
            return Fault::Lasting(format!("the bucket is in the region {region}; set AWS_REGION={region}"));
        }
        match (status.as_u16(), &*told.code) {
            (_, "NoSuchBucket") => Fault::Lasting("there is no such bucket; check its name and the endpoint".into()),
            (404, _) => Fault::Missing,
            (412, _) => Fault::Changed,
            (416, _) => Fault::Short,
            (408 | 429 | 500 | 502..=504, _) => Fault::Passing(words),
            (401 | 403, _) | (400, "ExpiredToken" | "InvalidToken") if is_signed => {
                Fault::Denied(format!("{words}; check the credentials and what they allow"))
            }
            (401 | 403, _) => Fault::Denied(format!(
                "{words}, and no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            )),
            _ => Fault::Lasting(words),
        }
    }

    fn failed(&self, why: &str) -> Error {
        Error::Store {
            object: self.address.to_string(),
            why: why.to_owned(),
        }
    }
}

/// Whether something has encoded what was put there, on the way. What was put there encoded is what it is, and its length is said.
pub(crate) fn is_encoded(headers: &HeaderMap) -> bool {
    header(headers, "content-encoding").is_some_and(|encoding| encoding != "identity") && header(headers, "content-length").is_none()
}

pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Never with the address, which is signed.
fn fault_of(error: &ureq::Error) -> Fault {
    let words: &dyn fmt::Display = match error {
        ureq::Error::HostNotFound => &"there is no such host; check the endpoint, the region and the network",
        ureq::Error::Timeout(_) => &"it did not answer in time",
        ureq::Error::Io(error) => error,
        ureq::Error::BadUri(_) | ureq::Error::Http(_) | ureq::Error::RequireHttpsOnly(_) => {
            return Fault::Lasting("it has no usable address".into());
        }
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) => return Fault::Lasting(format!("no secure connection: {error}")),
        other => other,
    };
    Fault::Passing(words.to_string())
}

/// Half to the whole of a pause, so that many don't come back at the same time.
fn uneven(pause: Duration) -> Duration {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    pause / 2 + (pause / 2).mul_f64(f64::from(nanos % 1000) / 1000.0)
}

/// A key as a listing has it; the bytes of one that is no UTF-8.
fn decoded(key: String, is_url: bool) -> Result<String, Vec<u8>> {
    if !is_url {
        return Ok(key);
    }
    // As forms encode it: a blank is a plus sign.
    let bytes: Vec<u8> = percent_decode_str(&key.replace('+', " ")).collect();
    String::from_utf8(bytes).map_err(std::string::FromUtf8Error::into_bytes)
}

pub(crate) fn bare(etag: &str) -> &str {
    etag.trim().trim_matches('"')
}

/// What somebody else's program says, in one short line that a terminal does not obey.
fn plain(text: &str) -> String {
    let line: String = text.chars().take(200).collect();
    line.replace(char::is_control, " ")
}
