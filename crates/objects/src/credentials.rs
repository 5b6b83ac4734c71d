//! Credentials that sign requests: fixed, from variables or a file; or lent for a while by a service, which is asked
//! again in time.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use ring::hmac;
use serde::{Deserialize, de::DeserializeOwned};
use ureq::{Agent, Body, Proxy, http::Response};

use crate::{
    error::{RequestFault, plain},
    limits,
    profile::SecretText,
};

/// A credential of one of the kinds that stores accept.
pub(crate) enum Credential {
    /// Access key of S3, with a session token if it is lent.
    AccessKey(rusty_s3::Credentials),
    /// Token of OAuth 2.0.
    Bearer(SecretText),
    /// Key of a storage account of Azure.
    AccountKey(hmac::Key),
    /// Shared access signature of Azure: parameters of an address.
    SharedAccess(SecretText),
}

impl fmt::Debug for Credential {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::AccessKey(_) => "AccessKey",
            Self::Bearer(_) => "Bearer",
            Self::AccountKey(_) => "AccountKey",
            Self::SharedAccess(_) => "SharedAccess",
        })
    }
}

/// A service that lends credentials.
pub(crate) trait Lender: fmt::Debug + Send + Sync {
    /// Requests new credentials.
    ///
    /// # Errors
    /// The service does not answer, refuses, or its answer is invalid.
    fn lend(&self, caller: &Caller<'_>) -> Result<Lent, RequestFault>;
}

/// Source of credentials.
#[derive(Debug)]
pub(crate) enum Credentials {
    Fixed(Arc<Credential>),
    Lent {
        lender: Box<dyn Lender>,
        last: Mutex<Option<Lent>>,
    },
}

/// A credential that a service has lent.
#[derive(Clone, Debug)]
pub(crate) struct Lent {
    /// `None`: there is no credential, and the bucket may be public.
    pub(crate) credential: Option<Arc<Credential>>,
    pub(crate) ends: Option<SystemTime>,
    /// Time of the last request for it.
    asked: SystemTime,
}

/// A lender without credentials; the bucket may be public.
#[derive(Debug)]
pub(crate) struct Nobody;

impl Lender for Nobody {
    fn lend(&self, _: &Caller<'_>) -> Result<Lent, RequestFault> {
        Ok(Lent::none())
    }
}

impl Credentials {
    pub(crate) fn fixed(credential: Credential) -> Self {
        Self::Fixed(Arc::new(credential))
    }

    pub(crate) fn lent(lender: impl Lender + 'static) -> Self {
        Self::Lent {
            lender: Box::new(lender),
            last: Mutex::default(),
        }
    }

    /// Returns the credential to sign with now; `None` if there is none.
    ///
    /// # Errors
    /// Those of [`Lender::lend`].
    pub(crate) fn now(&self, caller: &Caller<'_>) -> Result<Option<Arc<Credential>>, RequestFault> {
        let (lender, last) = match self {
            Self::Fixed(credential) => return Ok(Some(Arc::clone(credential))),
            Self::Lent { lender, last } => (lender, last),
        };
        let mut known = last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = SystemTime::now();
        match known.as_mut() {
            Some(lent) if lent.is_fresh(now) => Ok(lent.credential.clone()),
            // Other threads use the known credential while this one asks.
            Some(lent) if lent.holds(now) => {
                lent.asked = now;
                let held = lent.credential.clone();
                drop(known);
                match lender.lend(caller) {
                    // A service that does not answer just now has revoked nothing.
                    Err(_) | Ok(Lent { credential: None, .. }) => Ok(held),
                    Ok(lent) => Ok(lent.kept(&mut last.lock().unwrap_or_else(PoisonError::into_inner))),
                }
            }
            // No thread can go on without an answer: one asks for all.
            had => match (lender.lend(caller)?, had.is_some()) {
                (Lent { credential: None, .. }, true) => Err(RequestFault::Passing("no credentials are lent any more".into())),
                (lent, _) => Ok(lent.kept(&mut known)),
            },
        }
    }
}

impl Lent {
    pub(crate) fn new(credential: Credential, ends: Option<SystemTime>) -> Self {
        Self {
            credential: Some(Arc::new(credential)),
            ends,
            asked: SystemTime::now(),
        }
    }

    pub(crate) fn none() -> Self {
        Self {
            credential: None,
            ends: None,
            asked: SystemTime::now(),
        }
    }

    /// Returns whether it is too early to ask for a new one.
    fn is_fresh(&self, now: SystemTime) -> bool {
        // If there is none now there may be one later.
        let is_lasting = self.credential.is_some() && self.ends.is_none_or(|ends| ends > now + limits::RENEW_AHEAD);
        is_lasting || (self.holds(now) && self.asked + limits::RENEW_PAUSE > now)
    }

    /// Stores it for the next caller.
    fn kept(self, known: &mut Option<Self>) -> Option<Arc<Credential>> {
        let credential = self.credential.clone();
        *known = Some(self);
        credential
    }

    /// Returns whether it is still valid.
    fn holds(&self, now: SystemTime) -> bool {
        self.ends.is_none_or(|ends| ends > now)
    }
}

/// Client for services, with the connections of the store that needs the answer.
pub(crate) struct Caller<'a> {
    pub(crate) agent: &'a Agent,
    /// Proxy for services that are not local.
    pub(crate) proxy: Option<&'a Proxy>,
}

/// A request to a service that lends credentials.
pub(crate) enum LenderRequest<'a> {
    /// GET from the metadata service of a machine or a container: no proxy, and a short deadline.
    Near(&'a str),
    /// PUT to the metadata service of a machine or a container.
    NearPut(&'a str),
    /// POST of a form, whose contents are secret.
    Form(&'a str, &'a [(&'a str, &'a str)]),
}

/// Answer of a service for tokens of OAuth 2.0.
#[derive(Deserialize)]
struct Token {
    access_token: String,
    /// Seconds; some services write them as text.
    expires_in: Seconds,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Seconds {
    Number(u64),
    Text(String),
}

impl Caller<'_> {
    /// Sends a request, and returns the answer's body. The address is public; the answer is secret.
    ///
    /// # Errors
    /// [`RequestFault::Denied`] for a form that was refused; otherwise [`RequestFault::Passing`].
    pub(crate) fn ask(&self, ask: &LenderRequest<'_>, header: Option<(&str, &str)>) -> Result<SecretText, RequestFault> {
        let (name, value) = header.unwrap_or(("accept", "*/*"));
        let near = Some(limits::METADATA_DEADLINE);
        let (url, answer) = match *ask {
            LenderRequest::Near(url) => {
                let request = self.agent.get(url).config().proxy(None).timeout_global(near).build();
                (url, request.header(name, value).call())
            }
            LenderRequest::NearPut(url) => {
                let request = self.agent.put(url).config().proxy(None).timeout_global(near).build();
                (url, request.header(name, value).send_empty())
            }
            LenderRequest::Form(url, fields) => {
                let config = self.agent.post(url).config().proxy(self.proxy.cloned());
                let request = config.timeout_global(Some(limits::TOKEN_DEADLINE)).build();
                (url, request.header(name, value).send_form(fields.iter().copied()))
            }
        };
        let failed = |why: &dyn fmt::Display| RequestFault::Passing(format!("{url}: {why}"));
        let mut answer = answer.map_err(|error| failed(&error))?;
        let text = text_of(&mut answer).map_err(|error| failed(&error))?;
        let status = answer.status();
        match ask {
            _ if status.is_success() => Ok(text),
            LenderRequest::Form(..) if status.is_client_error() && status.as_u16() != 429 => {
                let why = plain(text.0.trim());
                Err(RequestFault::Denied(format!(
                    "{url} lends no credentials: {status}: {why}; check the rights of the identity"
                )))
            }
            _ => Err(failed(&status)),
        }
    }

    /// Requests a token of OAuth 2.0.
    ///
    /// # Errors
    /// Those of [`Self::ask`]; and an answer without a token.
    pub(crate) fn token(&self, ask: &LenderRequest<'_>, header: Option<(&str, &str)>) -> Result<Lent, RequestFault> {
        let (LenderRequest::Near(url) | LenderRequest::NearPut(url) | LenderRequest::Form(url, _)) = *ask;
        let token: Token = read_json(&self.ask(ask, header)?).ok_or_else(|| RequestFault::Passing(format!("{url} answers no token")))?;
        let seconds = match token.expires_in {
            Seconds::Number(seconds) => Some(seconds),
            Seconds::Text(text) => text.parse().ok(),
        };
        // An end years ahead counts as none.
        let ends = seconds.and_then(|seconds| SystemTime::now().checked_add(Duration::from_secs(seconds)));
        Ok(Lent::new(Credential::Bearer(SecretText(token.access_token)), ends))
    }
}

/// Reads the body of an answer, up to a limit.
fn text_of(answer: &mut Response<Body>) -> Result<SecretText, ureq::Error> {
    let body = answer.body_mut().with_config().limit(limits::ANSWER_BYTES_MAX).lossy_utf8(true);
    body.read_to_string().map(SecretText)
}

pub(crate) fn read_json<T: DeserializeOwned>(text: &SecretText) -> Option<T> {
    serde_json::from_str(&text.0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Credential {
        Credential::AccessKey(rusty_s3::Credentials::new(name, "hidden"))
    }

    fn name(credential: &Credential) -> String {
        match credential {
            Credential::AccessKey(key) => key.key().to_owned(),
            other => panic!("{other:?}"),
        }
    }

    fn now(credentials: &Credentials) -> Result<Option<String>, String> {
        let agent = Agent::new_with_defaults();
        let caller = Caller {
            agent: &agent,
            proxy: None,
        };
        let credential = credentials.now(&caller).map_err(|fault| format!("{fault:?}"))?;
        Ok(credential.map(|credential| name(&credential)))
    }

    fn last(credentials: &Credentials) -> &Mutex<Option<Lent>> {
        match credentials {
            Credentials::Lent { last, .. } => last,
            Credentials::Fixed(_) => panic!("there are none that are fixed"),
        }
    }

    #[test]
    fn what_was_lent_holds_until_it_ends() {
        let credentials = Credentials::lent(Nobody);
        let (at, second) = (SystemTime::now(), Duration::from_secs(1));
        let held = |ends| {
            *last(&credentials).lock().unwrap() = Some(Lent {
                asked: at - 3600 * second,
                ..Lent::new(key("K"), ends)
            });
            now(&credentials)
        };
        for ends in [None, Some(at + 3600 * second), Some(at + 200 * second)] {
            assert_eq!(held(ends), Ok(Some("K".into())), "{ends:?}");
        }
        assert!(held(Some(at - second)).unwrap_err().contains("no credentials"));
        *last(&credentials).lock().unwrap() = None;
        assert_eq!(now(&credentials), Ok(None), "there never were any");
    }

    #[test]
    fn that_there_are_none_is_asked_again_after_a_while() {
        let credentials = Credentials::lent(Nobody);
        let is_asked_again = |asked: SystemTime| {
            *last(&credentials).lock().unwrap() = Some(Lent { asked, ..Lent::none() });
            assert_eq!(now(&credentials), Ok(None));
            last(&credentials).lock().unwrap().as_ref().unwrap().asked > asked
        };
        let at = SystemTime::now();
        assert!(!is_asked_again(at + Duration::from_secs(3600)));
        assert!(is_asked_again(at - limits::RENEW_PAUSE));
    }

    #[test]
    fn no_secret_is_printed() {
        let lent = Lent::new(Credential::Bearer(SecretText("hidden".into())), None);
        let shared = Credentials::fixed(Credential::SharedAccess(SecretText("hidden".into())));
        for shown in [
            format!("{:?}", Credentials::fixed(key("K"))),
            format!("{lent:?}"),
            format!("{shared:?}"),
        ] {
            assert!(!shown.contains("hidden"), "{shown}");
        }
    }
}
