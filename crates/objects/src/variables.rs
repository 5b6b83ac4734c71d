//! Variables of the environment, as other tools for object stores read them.

use url::Url;

use crate::{Error, limits};

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

#[cfg(test)]
mod tests {
    use super::VARIABLES;

    #[test]
    fn all_that_is_looked_up_is_listed_once_and_sorted() {
        assert!(VARIABLES.is_sorted_by(|one, other| one < other));
    }
}
