//! Lenders of tokens for Google's stores: the credentials file of a service account or of a person, or a virtual
//! machine.

use std::{
    fmt,
    io::ErrorKind,
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::{rand::SystemRandom, rsa, signature::RSA_PKCS1_SHA256};
use rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject};
use serde::Deserialize;
use serde_json::json;
use url::Url;
use zeroize::Zeroize;

use crate::{
    Error,
    credentials::{Caller, Credential, Credentials, Lender, LenderRequest, Lent, Nobody, read_json},
    error::{RequestFault, plain},
    limits,
    profile::{SecretText, read_small},
    variables::{VariableLookup, endpoint},
};

/// Finds the lender of tokens, with the address of its service unless that is local.
///
/// # Errors
/// [`Error::Input`]: a file of credentials that can't be used.
pub(super) fn find(is_emulator: bool, variables: VariableLookup<'_>) -> Result<(Credentials, Option<Url>), Error> {
    if let Some(token) = variables("CLOUDSDK_AUTH_ACCESS_TOKEN") {
        return Ok((Credentials::fixed(Credential::Bearer(SecretText(token.trim().to_owned()))), None));
    }
    let named = variables("GOOGLE_APPLICATION_CREDENTIALS").map(PathBuf::from);
    let is_named = named.is_some();
    let usual = || {
        let config = variables("CLOUDSDK_CONFIG").map(PathBuf::from);
        let config = config.or_else(|| Some(PathBuf::from(variables("HOME")?).join(".config/gcloud")));
        Some(config?.join("application_default_credentials.json"))
    };
    // An emulator only gets credentials that are named.
    let path = named.or_else(|| if is_emulator { None } else { usual() });
    if let Some(path) = path {
        match read_small(&path) {
            Ok(text) => return of_file(&path.display().to_string(), &SecretText(text)),
            Err(error) if error.kind() == ErrorKind::NotFound && !is_named => {}
            Err(error) => return Err(Error::disk(&path, "read", error)),
        }
    }
    let is_elsewhere = variables("NO_GCE_CHECK").is_some_and(|text| text.eq_ignore_ascii_case("true"));
    if is_emulator || is_elsewhere {
        return Ok((Credentials::lent(Nobody), None));
    }
    let host = variables("GCE_METADATA_HOST").unwrap_or_else(|| "metadata.google.internal".into());
    Ok((Credentials::lent(GoogleMachine { host }), None))
}

#[derive(Deserialize)]
struct CredentialsFile {
    r#type: String,
    #[serde(default)]
    client_email: String,
    #[serde(default)]
    private_key: String,
    #[serde(default)]
    private_key_id: String,
    #[serde(default)]
    client_id: String,
    #[serde(default)]
    client_secret: String,
    #[serde(default)]
    refresh_token: String,
    token_uri: Option<String>,
}

impl Drop for CredentialsFile {
    fn drop(&mut self) {
        for secret in [&mut self.private_key, &mut self.client_secret, &mut self.refresh_token] {
            secret.zeroize();
        }
    }
}

fn of_file(path: &str, text: &SecretText) -> Result<(Credentials, Option<Url>), Error> {
    let refuse = |why: &str| Error::Input(format!("{path}: {why}"));
    let mut file: CredentialsFile =
        read_json(text).ok_or_else(|| refuse("is not a file of Google's with credentials; name another one"))?;
    match &*file.r#type {
        "service_account" => {
            let key = PrivatePkcs8KeyDer::from_pem_slice(file.private_key.as_bytes()).ok();
            let key = key.and_then(|key| rsa::KeyPair::from_pkcs8(key.secret_pkcs8_der()).ok());
            let account = ServiceAccount {
                email: std::mem::take(&mut file.client_email),
                key: key.ok_or_else(|| refuse("its private_key is not an RSA key; make a new one"))?,
                key_id: std::mem::take(&mut file.private_key_id),
            };
            Ok((Credentials::lent(account), None))
        }
        "authorized_user" => {
            let place = endpoint(file.token_uri.as_deref().unwrap_or("https://oauth2.googleapis.com/token"))?;
            let person = Person {
                url: place.as_str().trim_end_matches('/').to_owned(),
                client_id: std::mem::take(&mut file.client_id),
                client_secret: SecretText(std::mem::take(&mut file.client_secret)),
                refresh_token: SecretText(std::mem::take(&mut file.refresh_token)),
            };
            Ok((Credentials::lent(person), Some(place)))
        }
        other => Err(refuse(&format!(
            "credentials of type {} are not supported; write export CLOUDSDK_AUTH_ACCESS_TOKEN=\"$(gcloud auth application-default \
             print-access-token)\" before this",
            plain(other)
        ))),
    }
}

/// An account whose key signs its tokens, without a request.
struct ServiceAccount {
    email: String,
    key: rsa::KeyPair,
    key_id: String,
}

impl fmt::Debug for ServiceAccount {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ServiceAccount({})", self.email)
    }
}

impl Lender for ServiceAccount {
    fn lend(&self, _: &Caller<'_>) -> Result<Lent, RequestFault> {
        let now = SystemTime::now();
        let begins = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let life = limits::TOKEN_LIFE;
        let head = json!({"alg": "RS256", "typ": "JWT", "kid": self.key_id});
        let claims = json!({
            "iss": self.email,
            "sub": self.email,
            "scope": "https://www.googleapis.com/auth/devstorage.read_only",
            "iat": begins,
            "exp": begins + life.as_secs(),
        });
        let part = |value: &serde_json::Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&head), part(&claims));
        let mut signature = vec![0; self.key.public().modulus_len()];
        let done = self
            .key
            .sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature);
        done.map_err(|_| RequestFault::Lasting(format!("the key of {} can't sign", self.email)))?;
        let token = format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature));
        Ok(Lent::new(Credential::Bearer(SecretText(token)), now.checked_add(life)))
    }
}

/// A person who has logged in (`gcloud auth application-default login`).
#[derive(Debug)]
struct Person {
    url: String,
    client_id: String,
    client_secret: SecretText,
    refresh_token: SecretText,
}

impl Lender for Person {
    fn lend(&self, caller: &Caller<'_>) -> Result<Lent, RequestFault> {
        let fields = [
            ("grant_type", "refresh_token"),
            ("client_id", &*self.client_id),
            ("client_secret", &*self.client_secret.0),
            ("refresh_token", &*self.refresh_token.0),
        ];
        caller.token(&LenderRequest::Form(&self.url, &fields), None)
    }
}

/// The account of a virtual machine, or of a pod of Kubernetes.
#[derive(Debug)]
struct GoogleMachine {
    host: String,
}

impl Lender for GoogleMachine {
    fn lend(&self, caller: &Caller<'_>) -> Result<Lent, RequestFault> {
        let url = format!("http://{}/computeMetadata/v1/instance/service-accounts/default/token", self.host);
        // No service answers: this is not a machine of Google's, or it has no account.
        Ok(caller
            .token(&LenderRequest::Near(&url), Some(("metadata-flavor", "Google")))
            .unwrap_or_else(|_| Lent::none()))
    }
}
