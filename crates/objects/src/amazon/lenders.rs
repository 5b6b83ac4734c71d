//! Services that lend keys of S3: that of a container, of a virtual machine, and the token service, for a web identity.

use std::{path::PathBuf, time::SystemTime};

use jiff::Timestamp;
use rusty_s3::Credentials as AccessKey;
use serde::Deserialize;
use url::Url;

use crate::{
    Error,
    credentials::{Caller, Credential, Credentials, Lender, LenderRequest, Lent, Nobody, read_json},
    error::RequestFault,
    profile::{Profile, SecretText, read_small},
    variables::{VariableLookup, endpoint},
};

/// Returns the metadata service to ask, if there is one.
pub(super) fn metadata_service(variables: VariableLookup<'_>) -> Credentials {
    let relative = variables("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI").map(|path| format!("http://169.254.170.2{path}"));
    if let Some(url) = relative.or_else(|| variables("AWS_CONTAINER_CREDENTIALS_FULL_URI")) {
        let file = variables("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").map(|path| ContainerToken::File(path.into()));
        let text = variables("AWS_CONTAINER_AUTHORIZATION_TOKEN").map(|text| ContainerToken::Text(SecretText(text)));
        let token = file.or(text).unwrap_or(ContainerToken::None);
        return Credentials::lent(Container { url, token });
    }
    if variables("AWS_EC2_METADATA_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
        return Credentials::lent(Nobody);
    }
    let url = variables("AWS_EC2_METADATA_SERVICE_ENDPOINT").unwrap_or_else(|| "http://169.254.169.254".into());
    Credentials::lent(Ec2Machine {
        url: url.trim_end_matches('/').to_owned(),
    })
}

/// Service of a container (ECS, EKS): address and authorization.
#[derive(Debug)]
struct Container {
    url: String,
    token: ContainerToken,
}

#[derive(Debug)]
enum ContainerToken {
    None,
    Text(SecretText),
    /// File that changes, so it is read each time.
    File(PathBuf),
}

impl Lender for Container {
    fn lend(&self, caller: &Caller<'_>) -> Result<Lent, RequestFault> {
        let token = match &self.token {
            ContainerToken::None => None,
            ContainerToken::Text(secret) => Some(SecretText(secret.0.clone())),
            ContainerToken::File(path) => Some(SecretText(
                read_small(path).map_err(|error| RequestFault::Passing(format!("{}: {error}", path.display())))?,
            )),
        };
        let header = token.as_ref().map(|token| ("authorization", token.0.trim()));
        let answer = caller.ask(&LenderRequest::Near(&self.url), header)?;
        lent(&answer).map_err(|why| RequestFault::Passing(format!("the container's credentials {why}")))
    }
}

/// Service of a virtual machine (EC2, IMDSv2).
#[derive(Debug)]
struct Ec2Machine {
    url: String,
}

impl Lender for Ec2Machine {
    fn lend(&self, caller: &Caller<'_>) -> Result<Lent, RequestFault> {
        let url = &self.url;
        let life = ("x-aws-ec2-metadata-token-ttl-seconds", "300");
        // No service answers: this is not such a machine.
        let Ok(session) = caller.ask(&LenderRequest::NearPut(&format!("{url}/latest/api/token")), Some(life)) else {
            return Ok(Lent::none());
        };
        let header = Some(("x-aws-ec2-metadata-token", session.0.trim()));
        let roles = format!("{url}/latest/meta-data/iam/security-credentials/");
        // A machine without a role.
        let Ok(role) = caller.ask(&LenderRequest::Near(&roles), header) else {
            return Ok(Lent::none());
        };
        let role = role.0.lines().next().unwrap_or_default().trim();
        let answer = caller.ask(&LenderRequest::Near(&format!("{roles}{role}")), header)?;
        lent(&answer).map_err(|why| RequestFault::Passing(format!("the machine's credentials {why}")))
    }
}

/// ContainerKeys of a metadata service.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ContainerKeys {
    access_key_id: String,
    secret_access_key: String,
    token: Option<String>,
    expiration: Option<String>,
}

fn lent(text: &SecretText) -> Result<Lent, &'static str> {
    let answer: ContainerKeys = read_json(text).ok_or("are none")?;
    let key = match answer.token {
        Some(token) => AccessKey::new_with_token(answer.access_key_id, answer.secret_access_key, token),
        None => AccessKey::new(answer.access_key_id, answer.secret_access_key),
    };
    let ends = answer.expiration.map(|text| end(&text)).transpose()?;
    Ok(Lent::new(Credential::AccessKey(key), ends))
}

fn end(text: &str) -> Result<SystemTime, &'static str> {
    text.parse().map(Timestamp::into).map_err(|_| "end at no time")
}

/// A role for a token of another authority, such as a Kubernetes cluster: the token service lends its keys.
#[derive(Debug)]
pub(super) struct WebIdentity {
    sts: Url,
    /// File that changes, so it is read each time.
    token: PathBuf,
    role: String,
    session: String,
}

impl WebIdentity {
    /// Finds a web identity in the variables, or else in the profile.
    ///
    /// # Errors
    /// [`Error::Input`]: a token without a role, or an invalid address of the token service.
    pub(super) fn find(profile: &Profile, sts: &str, variables: VariableLookup<'_>) -> Result<Option<Self>, Error> {
        let (token, role, session) = match variables("AWS_WEB_IDENTITY_TOKEN_FILE") {
            Some(token) => (token, variables("AWS_ROLE_ARN"), variables("AWS_ROLE_SESSION_NAME")),
            None => match profile.get("web_identity_token_file") {
                Some(token) => (token, profile.get("role_arn"), profile.get("role_session_name")),
                None => return Ok(None),
            },
        };
        let role = role.ok_or_else(|| {
            let text = "a file with a web identity's token is named, and no role: set $AWS_ROLE_ARN, or the profile's role_arn";
            Error::Input(text.into())
        })?;
        Ok(Some(Self {
            sts: endpoint(&variables("AWS_ENDPOINT_URL_STS").unwrap_or_else(|| sts.to_owned()))?,
            token: token.into(),
            role,
            session: session.unwrap_or_else(|| "forebay".into()),
        }))
    }

    /// Returns the address of the token service.
    pub(super) fn place(&self) -> &Url {
        &self.sts
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Assumed {
    assume_role_with_web_identity_result: AssumedResult,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AssumedResult {
    credentials: AssumedKey,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AssumedKey {
    access_key_id: String,
    secret_access_key: String,
    session_token: String,
    expiration: String,
}

impl Lender for WebIdentity {
    fn lend(&self, caller: &Caller<'_>) -> Result<Lent, RequestFault> {
        let token = read_small(&self.token).map_err(|error| RequestFault::Passing(format!("{}: {error}", self.token.display())))?;
        let token = SecretText(token);
        let fields = [
            ("Action", "AssumeRoleWithWebIdentity"),
            ("Version", "2011-06-15"),
            ("RoleArn", &*self.role),
            ("RoleSessionName", &*self.session),
            ("WebIdentityToken", token.0.trim()),
        ];
        let answer = caller.ask(&LenderRequest::Form(self.sts.as_str(), &fields), None)?;
        let none = |why: &str| RequestFault::Passing(format!("the credentials of {} {why}", self.role));
        let assumed: Assumed = quick_xml::de::from_str(&answer.0).map_err(|_| none("are none"))?;
        let key = assumed.assume_role_with_web_identity_result.credentials;
        let ends = end(&key.expiration).map_err(none)?;
        let key = AccessKey::new_with_token(key.access_key_id, key.secret_access_key, key.session_token);
        Ok(Lent::new(Credential::AccessKey(key), Some(ends)))
    }
}
