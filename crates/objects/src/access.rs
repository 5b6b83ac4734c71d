//! How a store is reached: region, endpoint and credentials, by the variables and files that all tools for S3 read.

use std::{
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use jiff::Timestamp;
use rusty_s3::{Credentials, UrlStyle};
use serde::Deserialize;
use url::Url;

use crate::{
    Error, limits,
    network::Network,
    profile::{Profile, Secret, read_small},
};

/// Looks a variable of the environment up; one that is empty counts as unset.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// All that are looked up: what another process needs to reach the same stores.
pub const VARIABLES: [&str; 30] = [
    "ALL_PROXY",
    "AWS_ACCESS_KEY_ID",
    "AWS_CA_BUNDLE",
    "AWS_CONFIG_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_DEFAULT_PROFILE",
    "AWS_DEFAULT_REGION",
    "AWS_EC2_METADATA_DISABLED",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_MAX_ATTEMPTS",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SHARED_CREDENTIALS_FILE",
    "HOME",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// Where a store is, and who asks.
#[derive(Debug)]
pub struct Access {
    pub(crate) endpoint: Url,
    pub(crate) style: UrlStyle,
    pub(crate) region: String,
    pub(crate) attempts: u32,
    pub(crate) network: Network,
    keys: Keys,
}

/// Where credentials come from: the first of these that there is.
#[derive(Debug)]
enum Keys {
    /// Variables, or a profile.
    Fixed(Credentials),
    /// A metadata service, which gives new ones before these end.
    Lent { service: Service, last: Mutex<Option<Lent>> },
}

#[derive(Debug)]
enum Service {
    /// Of a container (ECS, EKS): address, and what it wants to see.
    Container { url: String, token: Token },
    /// Of a virtual machine (EC2, IMDSv2).
    Machine { url: String },
    /// There is none to ask.
    Nobody,
}

#[derive(Debug)]
enum Token {
    None,
    Text(Secret),
    /// It changes: read each time.
    File(PathBuf),
}

#[derive(Clone, Debug)]
struct Lent {
    /// `None`: there are none, and the bucket may be public.
    credentials: Option<Credentials>,
    ends: Option<SystemTime>,
    /// When it was last asked for.
    asked: SystemTime,
}

/// What metadata services answer.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    access_key_id: String,
    secret_access_key: String,
    token: Option<String>,
    expiration: Option<String>,
}

impl Access {
    /// Reads variables and profile.
    ///
    /// # Errors
    /// [`Error::Input`]: a profile that is not there or can't be used, an endpoint that is no URL, a proxy or certificates that are none.
    pub fn find(bucket: &str, variables: Variables<'_>) -> Result<Self, Error> {
        let profile = Profile::read(variables)?;
        let first = |names: &[&str]| names.iter().find_map(|name| variables(name));
        let region = first(&["AWS_REGION", "AWS_DEFAULT_REGION"])
            .or_else(|| profile.get("region"))
            .unwrap_or_else(|| "us-east-1".into());
        let named = first(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]).or_else(|| profile.get("endpoint_url"));
        // The certificates of Amazon's hosts don't hold for names with dots; other stores rarely have a host name for each bucket.
        let style = if named.is_some() || bucket.contains('.') {
            UrlStyle::Path
        } else {
            UrlStyle::VirtualHost
        };
        let text = named.unwrap_or_else(|| {
            let domain = if region.starts_with("cn-") {
                "amazonaws.com.cn"
            } else {
                "amazonaws.com"
            };
            format!("https://s3.{region}.{domain}")
        });
        let endpoint = endpoint(&text)?;
        let host = match (style, endpoint.host_str().unwrap_or_default()) {
            (UrlStyle::VirtualHost, host) => format!("{bucket}.{host}"),
            (UrlStyle::Path, host) => host.to_owned(),
        };
        Ok(Self {
            network: Network::find(&endpoint, &host, profile.get("ca_bundle"), variables)?,
            endpoint,
            style,
            attempts: attempts(variables)?,
            keys: keys(&profile, variables)?,
            region,
        })
    }

    /// The endpoint, as a person writes it.
    pub(crate) fn place(&self) -> &str {
        self.endpoint.as_str().trim_end_matches('/')
    }

    /// The credentials to sign with now; `None`: there are none.
    ///
    /// # Errors
    /// What the metadata service answers is no credentials.
    pub(crate) fn credentials(&self, agent: &ureq::Agent) -> Result<Option<Credentials>, String> {
        let (service, last) = match &self.keys {
            Keys::Fixed(credentials) => return Ok(Some(credentials.clone())),
            Keys::Lent { service, last } => (service, last),
        };
        let mut known = last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = SystemTime::now();
        match known.as_mut() {
            Some(lent) if lent.is_fresh(now) => Ok(lent.credentials.clone()),
            // For the others what is known holds on while this thread asks.
            Some(lent) if lent.holds(now) => {
                lent.asked = now;
                let held = lent.credentials.clone();
                drop(known);
                match service.ask(agent) {
                    // A service that does not answer just now has taken nothing back.
                    Err(_) | Ok(Lent { credentials: None, .. }) => Ok(held),
                    Ok(lent) => Ok(lent.kept(&mut last.lock().unwrap_or_else(PoisonError::into_inner))),
                }
            }
            // Nobody can do without an answer: one thread asks for all.
            had => match (service.ask(agent)?, had.is_some()) {
                (Lent { credentials: None, .. }, true) => Err("no credentials are lent any more".into()),
                (lent, _) => Ok(lent.kept(&mut known)),
            },
        }
    }
}

fn endpoint(text: &str) -> Result<Url, Error> {
    // What stands before an @ may be a password, and this line comes to logs.
    let shown = if text.contains('@') {
        "the endpoint has an @ in it".to_owned()
    } else {
        format!("the endpoint '{text}' is no URL")
    };
    let refuse = || Error::Input(format!("{shown}; write https://HOST or http://HOST:PORT"));
    // What is joined to it comes after its path.
    let url: Url = format!("{}/", text.trim_end_matches('/')).parse().map_err(|_| refuse())?;
    let is_plain =
        url.has_host() && url.query().is_none() && url.fragment().is_none() && url.username().is_empty() && url.password().is_none();
    if !is_plain || !matches!(url.scheme(), "http" | "https") {
        return Err(refuse());
    }
    Ok(url)
}

fn attempts(variables: Variables<'_>) -> Result<u32, Error> {
    let Some(text) = variables("AWS_MAX_ATTEMPTS") else {
        return Ok(limits::ATTEMPTS);
    };
    let most = limits::ATTEMPTS_MAX;
    match text.parse() {
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ => Err(Error::Input(format!(
            "$AWS_MAX_ATTEMPTS: '{text}' is no number between 1 and {most}"
        ))),
    }
}

fn keys(profile: &Profile, variables: Variables<'_>) -> Result<Keys, Error> {
    let with_token = |key: String, secret: String, token: Option<String>| match token {
        Some(token) => Credentials::new_with_token(key, secret, token),
        None => Credentials::new(key, secret),
    };
    match (variables("AWS_ACCESS_KEY_ID"), variables("AWS_SECRET_ACCESS_KEY")) {
        (Some(key), Some(secret)) => return Ok(Keys::Fixed(with_token(key, secret, variables("AWS_SESSION_TOKEN")))),
        (None, None) => {}
        _ => {
            return Err(Error::Input(
                "only one of $AWS_ACCESS_KEY_ID and $AWS_SECRET_ACCESS_KEY is set; set both, or none".into(),
            ));
        }
    }
    if let (Some(key), Some(secret)) = (profile.get("aws_access_key_id"), profile.get("aws_secret_access_key")) {
        return Ok(Keys::Fixed(with_token(key, secret, profile.get("aws_session_token"))));
    }
    profile.refuse_what_is_not_read()?;
    Ok(Keys::Lent {
        service: Service::find(variables),
        last: Mutex::default(),
    })
}

impl Service {
    fn find(variables: Variables<'_>) -> Self {
        let relative = variables("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI").map(|path| format!("http://169.254.170.2{path}"));
        if let Some(url) = relative.or_else(|| variables("AWS_CONTAINER_CREDENTIALS_FULL_URI")) {
            let file = variables("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").map(|path| Token::File(path.into()));
            let text = variables("AWS_CONTAINER_AUTHORIZATION_TOKEN").map(|text| Token::Text(Secret(text)));
            let token = file.or(text).unwrap_or(Token::None);
            return Self::Container { url, token };
        }
        if variables("AWS_EC2_METADATA_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
            return Self::Nobody;
        }
        let url = variables("AWS_EC2_METADATA_SERVICE_ENDPOINT").unwrap_or_else(|| "http://169.254.169.254".into());
        Self::Machine {
            url: url.trim_end_matches('/').to_owned(),
        }
    }

    fn ask(&self, agent: &ureq::Agent) -> Result<Lent, String> {
        let none = Lent {
            credentials: None,
            ends: None,
            asked: SystemTime::now(),
        };
        match self {
            Self::Nobody => Ok(none),
            Self::Container { url, token } => {
                let token = match token {
                    Token::None => None,
                    Token::Text(secret) => Some(Secret(secret.0.clone())),
                    Token::File(path) => Some(Secret(read_small(path).map_err(|error| format!("{}: {error}", path.display()))?)),
                };
                let answer = ask(agent, false, url, token.as_ref().map(|token| ("authorization", token.0.trim())))?;
                Lent::parse(&answer).map_err(|why| format!("the container's credentials {why}"))
            }
            Self::Machine { url } => {
                let life = ("x-aws-ec2-metadata-token-ttl-seconds", "300");
                // Nobody there: this is no such machine.
                let Ok(session) = ask(agent, true, &format!("{url}/latest/api/token"), Some(life)) else {
                    return Ok(none);
                };
                let header = Some(("x-aws-ec2-metadata-token", session.0.trim()));
                let roles = format!("{url}/latest/meta-data/iam/security-credentials/");
                // A machine without a role.
                let Ok(role) = ask(agent, false, &roles, header) else {
                    return Ok(none);
                };
                let role = role.0.lines().next().unwrap_or_default().trim();
                let answer = ask(agent, false, &format!("{roles}{role}"), header)?;
                Lent::parse(&answer).map_err(|why| format!("the machine's credentials {why}"))
            }
        }
    }
}

impl Lent {
    /// Whether new ones need not be asked for yet.
    fn is_fresh(&self, now: SystemTime) -> bool {
        // Where there are none there may be some later.
        let is_lasting = self.credentials.is_some() && self.ends.is_none_or(|ends| ends > now + limits::RENEW_AHEAD);
        is_lasting || (self.holds(now) && self.asked + limits::RENEW_PAUSE > now)
    }

    /// Keeps it for whoever asks next.
    fn kept(self, known: &mut Option<Self>) -> Option<Credentials> {
        let credentials = self.credentials.clone();
        *known = Some(self);
        credentials
    }

    /// Whether it may be gone by still.
    fn holds(&self, now: SystemTime) -> bool {
        self.ends.is_none_or(|ends| ends > now)
    }

    fn parse(text: &Secret) -> Result<Self, &'static str> {
        let answer: Answer = serde_json::from_str(&text.0).map_err(|_| "are none")?;
        let ends = match answer.expiration {
            Some(text) => Some(text.parse::<Timestamp>().map_err(|_| "end at no time")?.into()),
            None => None,
        };
        let (key, secret) = (answer.access_key_id, answer.secret_access_key);
        let credentials = match answer.token {
            Some(token) => Credentials::new_with_token(key, secret, token),
            None => Credentials::new(key, secret),
        };
        Ok(Self {
            credentials: Some(credentials),
            ends,
            asked: SystemTime::now(),
        })
    }
}

/// One request to a service that is near: no proxy, and little patience. Its address is no secret; what it answers is.
fn ask(agent: &ureq::Agent, is_put: bool, url: &str, header: Option<(&str, &str)>) -> Result<Secret, String> {
    let failed = |why: &dyn std::fmt::Display| format!("{url}: {why}");
    let deadline = Some(limits::METADATA_DEADLINE);
    let (name, value) = header.unwrap_or(("accept", "*/*"));
    let answer = if is_put {
        let request = agent.put(url).config().proxy(None).timeout_global(deadline).build();
        request.header(name, value).send_empty()
    } else {
        let request = agent.get(url).config().proxy(None).timeout_global(deadline).build();
        request.header(name, value).call()
    };
    let mut answer = answer.map_err(|error| failed(&error))?;
    if !answer.status().is_success() {
        return Err(failed(&answer.status()));
    }
    let body = answer.body_mut().with_config().limit(limits::ANSWER_BYTES_MAX).read_to_string();
    body.map(Secret).map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use super::*;

    fn find(bucket: &str, variables: &[(&str, &str)]) -> Result<Access, Error> {
        let known: BTreeMap<&str, &str> = variables.iter().copied().collect();
        Access::find(bucket, &|name| {
            assert!(VARIABLES.contains(&name), "{name} is looked up, and not in the list");
            known.get(name).map(|value| (*value).to_owned())
        })
    }

    fn fixed(access: &Access) -> (String, String, Option<String>) {
        match &access.keys {
            Keys::Fixed(keys) => (keys.key().to_owned(), keys.secret().to_owned(), keys.token().map(str::to_owned)),
            Keys::Lent { service, .. } => panic!("{service:?}"),
        }
    }

    #[test]
    fn the_endpoint_is_amazons_unless_another_is_named() {
        let at = |bucket: &str, variables: &[(&str, &str)]| {
            let access = find(bucket, variables).unwrap();
            (access.endpoint.to_string(), matches!(access.style, UrlStyle::Path), access.region)
        };
        let text = |url: &str, is_path: bool, region: &str| (url.to_owned(), is_path, region.to_owned());
        assert_eq!(at("b", &[]), text("https://s3.us-east-1.amazonaws.com/", false, "us-east-1"));
        assert_eq!(
            at("a.b", &[("AWS_REGION", "eu-west-1")]),
            text("https://s3.eu-west-1.amazonaws.com/", true, "eu-west-1")
        );
        assert_eq!(
            at("b", &[("AWS_DEFAULT_REGION", "cn-north-1")]),
            text("https://s3.cn-north-1.amazonaws.com.cn/", false, "cn-north-1")
        );
        let two = [("AWS_ENDPOINT_URL", "http://a:1"), ("AWS_ENDPOINT_URL_S3", "https://b/path")];
        assert_eq!(at("b", &two), text("https://b/path/", true, "us-east-1"));
        for bad in ["a:1", "ftp://a", "http://", "http://a/?x", "not"] {
            let line = find("b", &[("AWS_ENDPOINT_URL", bad)]).unwrap_err().to_string();
            assert!(line.contains(bad) && line.contains("https://HOST"), "{line}");
        }
        for bad in [
            "https://key:secret@a",
            "key:secret@a",
            "https://key:secret@",
            "https://key:se/cret@a:1/?x",
        ] {
            let line = find("b", &[("AWS_ENDPOINT_URL", bad)]).unwrap_err().to_string();
            assert!(!line.contains("cret") && line.contains("https://HOST"), "{line}");
        }
    }

    #[test]
    fn variables_go_before_profiles() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(".aws")).unwrap();
        let credentials = "[default]\naws_access_key_id=K\naws_secret_access_key = S=/+ \n# no\n[ other ]\nAWS_ACCESS_KEY_ID = K2\n\
                           aws_secret_access_key=S2\naws_session_token=T2\n";
        std::fs::write(dir.path().join(".aws/credentials"), credentials).unwrap();
        let config = "[default]\nregion=r1\ns3 =\n  endpoint_url = x\n[profile other]\nregion = r2\nendpoint_url = http://e\n[profile role]\nrole_arn = a\n";
        std::fs::write(dir.path().join(".aws/config"), config).unwrap();
        let home = ("HOME", dir.path().to_str().unwrap());
        let access = find("b", &[home]).unwrap();
        assert_eq!((fixed(&access), &*access.region), (("K".into(), "S=/+".into(), None), "r1"));
        assert_eq!(
            access.endpoint.as_str(),
            "https://s3.r1.amazonaws.com/",
            "what is indented is no key of the profile"
        );
        let access = find("b", &[home, ("AWS_PROFILE", "other")]).unwrap();
        assert_eq!(fixed(&access), ("K2".into(), "S2".into(), Some("T2".into())));
        assert_eq!((access.endpoint.as_str(), &*access.region), ("http://e/", "r2"));
        let variables = [
            home,
            ("AWS_ACCESS_KEY_ID", "V"),
            ("AWS_SECRET_ACCESS_KEY", "W"),
            ("AWS_SESSION_TOKEN", "X"),
        ];
        assert_eq!(fixed(&find("b", &variables).unwrap()), ("V".into(), "W".into(), Some("X".into())));
        let refused = |variables: &[(&str, &str)]| find("b", variables).unwrap_err().to_string();
        assert!(refused(&[home, ("AWS_PROFILE", "nobody")]).contains("'nobody'"));
        assert!(refused(&[home, ("AWS_PROFILE", "role")]).contains("role_arn, which is not supported; write eval"));
        assert!(refused(&[("AWS_ACCESS_KEY_ID", "V")]).contains("set both"));
        assert!(refused(&[("AWS_MAX_ATTEMPTS", "0")]).contains("between 1 and 100"));
    }

    #[test]
    fn services_are_asked_when_there_is_nothing_else() {
        let service = |variables: &[(&str, &str)]| match find("b", variables).unwrap().keys {
            Keys::Lent { service, .. } => format!("{service:?}"),
            Keys::Fixed(_) => "fixed".into(),
        };
        assert_eq!(service(&[("AWS_EC2_METADATA_DISABLED", "TRUE")]), "Nobody");
        assert_eq!(service(&[]), r#"Machine { url: "http://169.254.169.254" }"#);
        let container = [
            ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/x"),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "hidden"),
        ];
        assert_eq!(
            service(&container),
            r#"Container { url: "http://169.254.170.2/x", token: Text(Secret) }"#
        );
    }

    #[test]
    fn what_was_lent_holds_until_it_ends() {
        let access = find("b", &[("AWS_EC2_METADATA_DISABLED", "true")]).unwrap();
        let Keys::Lent { last, .. } = &access.keys else {
            panic!("there are none that are fixed")
        };
        let (now, second) = (SystemTime::now(), Duration::from_secs(1));
        let agent = ureq::Agent::new_with_defaults();
        let held = |ends| {
            *last.lock().unwrap() = Some(Lent {
                credentials: Some(Credentials::new("K", "S")),
                ends,
                asked: now - 3600 * second,
            });
            let credentials = access.credentials(&agent);
            credentials.map(|credentials| credentials.map(|keys| keys.key().to_owned()))
        };
        for ends in [None, Some(now + 3600 * second), Some(now + 200 * second)] {
            assert_eq!(held(ends), Ok(Some("K".into())), "{ends:?}");
        }
        assert!(held(Some(now - second)).unwrap_err().contains("no credentials"));
        *last.lock().unwrap() = None;
        assert_eq!(access.credentials(&agent), Ok(None), "there never were any");
    }

    #[test]
    fn that_there_are_none_is_asked_again_after_a_while() {
        let access = find("b", &[("AWS_EC2_METADATA_DISABLED", "true")]).unwrap();
        let Keys::Lent { last, .. } = &access.keys else {
            panic!("there are none that are fixed")
        };
        let agent = ureq::Agent::new_with_defaults();
        let is_asked_again = |asked: SystemTime| {
            *last.lock().unwrap() = Some(Lent {
                credentials: None,
                ends: None,
                asked,
            });
            assert_eq!(access.credentials(&agent), Ok(None));
            last.lock().unwrap().as_ref().unwrap().asked > asked
        };
        let now = SystemTime::now();
        assert!(!is_asked_again(now + Duration::from_secs(3600)));
        assert!(is_asked_again(now - limits::RENEW_PAUSE));
    }

    #[test]
    fn no_secret_is_printed() {
        let access = find(
            "b",
            &[
                ("AWS_ACCESS_KEY_ID", "visible"),
                ("AWS_SECRET_ACCESS_KEY", "hidden"),
                ("AWS_SESSION_TOKEN", "hidden"),
            ],
        )
        .unwrap();
        assert!(!format!("{access:?}").contains("hidden"));
    }
}
