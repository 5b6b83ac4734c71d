//! Access to a store: protocol, endpoint, network and credentials, from the variables and files that other tools read.

use url::Url;

use crate::{Address, Error, address::Scheme, amazon, azure, credentials::Credentials, dialect::Dialect, google, limits, network::Network};

/// Looks a variable of the environment up; an empty one counts as unset.
pub type VariableLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Names of all variables that are looked up: another process needs them to reach the same stores.
pub const VARIABLES: [&str; 50] = [
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
    "AWS_ENDPOINT_URL_STS",
    "AWS_MAX_ATTEMPTS",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_AUTHORITY_HOST",
    "AZURE_CLIENT_ID",
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_POD_IDENTITY_AUTHORITY_HOST",
    "AZURE_STORAGE_ACCOUNT",
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_TENANT_ID",
    "CLOUDSDK_AUTH_ACCESS_TOKEN",
    "CLOUDSDK_CONFIG",
    "GCE_METADATA_HOST",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "HOME",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_GCE_CHECK",
    "NO_PROXY",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "STORAGE_EMULATOR_HOST",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// Address, protocol and credentials of a store.
#[derive(Debug)]
pub struct Access {
    pub(crate) dialect: Box<dyn Dialect>,
    /// The endpoint, as a person writes it.
    pub(crate) place: String,
    pub(crate) attempts: u32,
    pub(crate) network: Network,
    pub(crate) credentials: Credentials,
}

impl Access {
    /// Reads variables and files.
    ///
    /// # Errors
    /// [`Error::Input`]: a file of credentials that is missing or unusable, an invalid endpoint, proxy or certificate.
    pub fn find(address: &Address, variables: VariableLookup<'_>) -> Result<Self, Error> {
        match address.scheme() {
            Scheme::S3 => amazon::find(address, variables),
            Scheme::Gs => google::find(address, variables),
            Scheme::Az => azure::find(address, variables),
        }
    }
}

/// Returns the first of these variables that is set.
pub(crate) fn first(names: &[&str], variables: VariableLookup<'_>) -> Option<String> {
    names.iter().find_map(|name| variables(name))
}

/// Parses the address of a service.
///
/// # Errors
/// [`Error::Input`]: it is not a URL with a host.
pub(crate) fn endpoint(text: &str) -> Result<Url, Error> {
    // The part before an @ may be a password, and this line is logged.
    let shown = if text.contains('@') {
        "the endpoint has an @ in it".to_owned()
    } else {
        format!("the endpoint '{text}' is not a URL")
    };
    let refuse = || Error::Input(format!("{shown}; write https://HOST or http://HOST:PORT"));
    // Joined paths come after its own.
    let url: Url = format!("{}/", text.trim_end_matches('/')).parse().map_err(|_| refuse())?;
    let is_plain =
        url.has_host() && url.query().is_none() && url.fragment().is_none() && url.username().is_empty() && url.password().is_none();
    if !is_plain || !matches!(url.scheme(), "http" | "https") {
        return Err(refuse());
    }
    Ok(url)
}

/// Returns the number of attempts of a request.
///
/// # Errors
/// [`Error::Input`]: it is not a number, or out of range.
pub(crate) fn attempts(variables: VariableLookup<'_>) -> Result<u32, Error> {
    let Some(text) = variables("AWS_MAX_ATTEMPTS") else {
        return Ok(limits::ATTEMPTS);
    };
    let most = limits::ATTEMPTS_MAX;
    match text.parse() {
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ => Err(Error::Input(format!(
            "$AWS_MAX_ATTEMPTS: '{text}' is not a number between 1 and {most}"
        ))),
    }
}

/// Shared by the tests of all stores.
#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::dialect::{StoreRequest, WantedObject};

    /// Returns the access that these variables lead to.
    pub(crate) fn find(address: &str, variables: &[(&str, &str)]) -> Result<Access, Error> {
        let known: BTreeMap<&str, &str> = variables.iter().copied().collect();
        Access::find(&address.parse()?, &|name| {
            assert!(VARIABLES.contains(&name), "{name} is looked up, and not in the list");
            known.get(name).map(|value| (*value).to_owned())
        })
    }

    /// Returns the service that lends credentials.
    pub(crate) fn lender(access: &Access) -> String {
        match &access.credentials {
            Credentials::Lent { lender, .. } => format!("{lender:?}"),
            Credentials::Fixed(_) => "fixed".into(),
        }
    }

    /// Returns the request for 5 bytes of an object, with the fixed credential, if there is one.
    pub(crate) fn request(access: &Access, key: &str) -> StoreRequest {
        let credential = match &access.credentials {
            Credentials::Fixed(credential) => Some(&**credential),
            Credentials::Lent { .. } => None,
        };
        let wanted = WantedObject {
            key,
            range: Some(&(5..10)),
            version: Some("v"),
        };
        access.dialect.object(&wanted, credential)
    }

    #[test]
    fn all_that_is_looked_up_is_listed_once_and_sorted() {
        assert!(VARIABLES.is_sorted_by(|one, other| one < other));
    }
}
