//! An object store: lists a bucket, and reads parts of objects. Its protocol is a [`Dialect`](crate::dialect::Dialect);
//! ureq speaks HTTP. Retries, and the meaning of answers, are decided here.
//!
//! Requests are always GET, of the bucket and of objects: nothing is written. Some are signed in their address, so no
//! error contains the address of a request.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use twox_hash::XxHash3_64;
use ureq::{
    Agent, Body,
    http::{HeaderMap, Response},
    tls::TlsConfig,
};

use crate::{
    Address, Error,
    access::StoreAccess,
    credentials::{Caller, Credential},
    dialect::{Dialect, ListingPage, NextPage, StoreRequest, WantedPage, header},
    error::RequestFault,
    limits,
    stop::Stop,
};

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its key, or the bytes of a key that is not UTF-8.
    pub key: Result<String, Vec<u8>>,
    /// Its version, without quotes.
    pub etag: String,
    /// Size in bytes.
    pub size: u64,
    /// Time of its last modification, in milliseconds since 1970.
    pub modified_ms: i64,
}

impl Object {
    /// Returns its key, for people: without control characters, which a terminal would obey.
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
pub struct ObjectVersion {
    /// Name of the version in its store, without quotes.
    pub etag: String,
    /// Size in bytes.
    pub size: u64,
    /// Digest of version and store: no other version of the object has the same one, except with a chance of one in
    /// 2^64. Never 0.
    pub mark: u64,
}

/// A bucket of a store, or the part of it below a prefix.
#[derive(Debug)]
pub struct Store {
    address: Address,
    access: Arc<StoreAccess>,
    agent: Agent,
    /// Set once no request is to be tried again.
    pub(crate) stop: Arc<Stop>,
}

impl Store {
    /// Creates a store with this access. Sends no request yet.
    pub fn new(address: Address, access: StoreAccess) -> Self {
        let tls = TlsConfig::builder()
            .root_certs(access.network.roots.clone())
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let config = Agent::config_builder()
            .tls_config(tls)
            // Never the proxy of this process, whose caller may want another.
            .proxy(access.network.proxy.clone())
            .http_status_as_error(false)
            // A redirection is returned as it is: a signature is valid for one host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("forebay/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(limits::CONNECT_DEADLINE))
            .timeout_recv_response(Some(limits::ANSWER_DEADLINE))
            .timeout_recv_body(Some(limits::BODY_DEADLINE))
            .max_idle_connections(limits::CONNECTIONS_KEPT)
            .max_idle_connections_per_host(limits::CONNECTIONS_KEPT);
        Self {
            address,
            access: Arc::new(access),
            agent: config.build().into(),
            stop: Arc::default(),
        }
    }

    /// Returns the part of the same bucket below another prefix, which shares the connections.
    pub(crate) fn below(&self, address: Address) -> Self {
        Self {
            address,
            access: Arc::clone(&self.access),
            agent: self.agent.clone(),
            stop: Arc::clone(&self.stop),
        }
    }

    /// Stops all attempts; requests under way fail immediately. One that is still connecting fails after its deadline.
    pub(crate) fn end(&self) {
        self.stop.set();
        self.agent.clone().shutdown();
    }

    pub(crate) fn dialect(&self) -> &dyn Dialect {
        &*self.access.dialect
    }

    /// Returns the version of an object with this name.
    pub(crate) fn version_of(&self, etag: &str, size: u64) -> ObjectVersion {
        let named = format!("{} {etag} {size}", self.access.place);
        ObjectVersion {
            etag: etag.to_owned(),
            size,
            mark: XxHash3_64::oneshot(named.as_bytes()).max(1),
        }
    }

    /// Returns its address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Lists all objects below the prefix, in no particular order; reports their number so far to `seen`.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Denied`]; [`Error::Input`] if there are none, or far too many.
    pub fn list(&self, seen: &dyn Fn(u64)) -> Result<Vec<Object>, Error> {
        let mut objects = Vec::new();
        self.pages(false, |page| {
            objects.extend(page.objects);
            seen(objects.len() as u64);
            self.bounded(objects.len())
        })?;
        if objects.is_empty() {
            return Err(Error::Input(format!("{} has no objects; check the prefix", self.address)));
        }
        Ok(objects)
    }

    /// Lists the folders directly below the prefix: names without slashes that have objects below them, in no
    /// particular order.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Denied`]; [`Error::Input`] if there are far too many, or a name is not UTF-8.
    pub fn folders(&self) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        self.pages(true, |page| {
            for key in page.folders {
                let key = key.map_err(|_| {
                    Error::Input(format!(
                        "{} has a key below it that is not UTF-8; name another prefix",
                        self.address
                    ))
                })?;
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

    /// Goes through the pages of a listing. With `by_folder`, keys with a slash behind the prefix are returned as
    /// folders.
    fn pages(&self, by_folder: bool, mut take: impl FnMut(ListingPage) -> Result<(), Error>) -> Result<(), Error> {
        let mut token: Option<String> = None;
        loop {
            let mut page = self.page(token.as_deref(), by_folder)?;
            let next = std::mem::take(&mut page.next);
            take(page)?;
            match next {
                NextPage::End => return Ok(()),
                // A listing that repeats a token would go on for ever, and one that ends without a last page is
                // incomplete.
                NextPage::Page(next) if token.as_ref() != Some(&next) => token = Some(next),
                NextPage::Page(_) | NextPage::Lost => {
                    let why = format!(
                        "its listing does not go on where it should: is this an endpoint of {}?",
                        self.dialect().name()
                    );
                    return Err(RequestFault::Lasting(why).of(self.address.to_string()));
                }
            }
        }
    }

    fn page(&self, token: Option<&str>, by_folder: bool) -> Result<ListingPage, Error> {
        let wanted = WantedPage {
            prefix: self.address.prefix(),
            by_folder,
            token,
        };
        let asked = self.again(&self.stop, |credential| {
            let mut answer = self.send(&self.dialect().page(&wanted, credential))?;
            if !answer.status().is_success() {
                return Err(self.refusal(&mut answer, credential.is_some()));
            }
            let text = answer.body_mut().with_config().limit(limits::PAGE_BYTES_MAX).read_to_string();
            self.dialect().read_page(&text.map_err(|error| fault_of(&error))?)
        });
        let fault = |fault| match fault {
            RequestFault::Missing | RequestFault::Changed | RequestFault::Short => {
                RequestFault::Lasting(self.dialect().no_listing().into())
            }
            fault => fault,
        };
        asked.map_err(|asked| fault(asked).of(self.address.to_string()))
    }

    pub(crate) fn send(&self, request: &StoreRequest) -> Result<Response<Body>, RequestFault> {
        let headers = request.headers.iter();
        let request = headers.fold(self.agent.get(&*request.url), |request, (name, value)| request.header(*name, value));
        request.call().map_err(|error| match fault_of(&error) {
            // Nobody has answered: is this the right endpoint?
            RequestFault::Passing(why) => {
                RequestFault::Passing(format!("{why}; the endpoint is {}{}", self.access.place, self.access.network))
            }
            fault => fault,
        })
    }

    /// Repeats an attempt until it succeeds, can't succeed, or failed too often without progress, with growing pauses.
    pub(crate) fn again<T>(
        &self,
        stop: &Stop,
        mut attempt: impl FnMut(Option<&Credential>) -> Result<T, RequestFault>,
    ) -> Result<T, RequestFault> {
        let mut pause = limits::PAUSE_FIRST;
        let mut left = self.access.attempts;
        loop {
            left = left.saturating_sub(1);
            let credential = self.access.credentials.now(&Caller {
                agent: &self.agent,
                proxy: self.access.network.lender_proxy.as_ref(),
            });
            let answer = credential.and_then(|credential| attempt(credential.as_deref()));
            match answer {
                Err(RequestFault::Passing(_)) if left > 0 => {}
                // Received bytes are not requested again, so each attempt is nearer to the end.
                Err(RequestFault::Partly(_)) => (left, pause) = (self.access.attempts, limits::PAUSE_FIRST),
                answer => return answer,
            }
            if stop.pause(uneven(pause)) {
                return Err(RequestFault::Lasting("was ended before it had been answered".into()));
            }
            pause = (2 * pause).min(limits::PAUSE_MAX);
        }
    }

    /// Returns the meaning of a refusal.
    pub(crate) fn refusal(&self, answer: &mut Response<Body>, is_signed: bool) -> RequestFault {
        let body = answer.body_mut().with_config().limit(limits::ANSWER_BYTES_MAX).lossy_utf8(true);
        let refused = self.dialect().read_refusal(&body.read_to_string().unwrap_or_default());
        let status = answer.status();
        if let Some(fault) = self.dialect().explain(status, answer.headers(), &refused, is_signed) {
            return fault;
        }
        let words = refused.words(status);
        match status.as_u16() {
            404 => RequestFault::Missing,
            412 => RequestFault::Changed,
            416 => RequestFault::Short,
            408 | 429 | 500 | 502..=504 => RequestFault::Passing(words),
            401 | 403 if is_signed => RequestFault::refused_key(&words),
            401 | 403 => RequestFault::no_key(&words, self.dialect().mend()),
            _ => RequestFault::Lasting(words),
        }
    }
}

/// Returns whether a server has encoded the object on the way. An object that was uploaded encoded has a length.
pub(crate) fn is_encoded(headers: &HeaderMap) -> bool {
    header(headers, "content-encoding").is_some_and(|encoding| encoding != "identity") && header(headers, "content-length").is_none()
}

/// Returns the fault without the address, which is signed.
fn fault_of(error: &ureq::Error) -> RequestFault {
    let words: &dyn fmt::Display = match error {
        ureq::Error::HostNotFound => &"there is no such host; check the endpoint, the region and the network",
        ureq::Error::Timeout(_) => &"it did not answer in time",
        ureq::Error::Io(error) => error,
        ureq::Error::BadUri(_) | ureq::Error::RequireHttpsOnly(_) => return RequestFault::Lasting("it has no usable address".into()),
        // An invalid header of ours has a token in it.
        ureq::Error::Http(_) => {
            return RequestFault::Lasting("its address, or a token, can't stand in a request; check the credentials".into());
        }
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) => return RequestFault::Lasting(format!("no secure connection: {error}")),
        other => other,
    };
    RequestFault::Passing(words.to_string())
}

/// Returns half to the whole of a pause, so that many clients do not come back at the same time.
fn uneven(pause: Duration) -> Duration {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    pause / 2 + (pause / 2).mul_f64(f64::from(nanos % 1000) / 1000.0)
}
