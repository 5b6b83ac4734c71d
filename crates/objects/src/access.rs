//! Access to a store: protocol, endpoint, network and credentials, from the variables and files that other tools read.

use crate::{
    Address, Error, VariableLookup, address::Scheme, amazon, azure, credentials::Credentials, dialect::Dialect, google, network::Network,
    variables::attempts,
};

/// Address, protocol and credentials of a store.
#[derive(Debug)]
pub struct StoreAccess {
    pub(crate) dialect: Box<dyn Dialect>,
    /// The endpoint, as a person writes it.
    pub(crate) place: String,
    pub(crate) attempts: u32,
    pub(crate) network: Network,
    pub(crate) credentials: Credentials,
}

impl StoreAccess {
    /// Reads variables and files.
    ///
    /// # Errors
    /// [`Error::Input`]: a file of credentials that is missing or unusable, an invalid endpoint, proxy or certificate.
    pub fn find(address: &Address, variables: VariableLookup<'_>) -> Result<Self, Error> {
        let settings = match address.scheme() {
            Scheme::S3 => amazon::find(address, variables),
            Scheme::Gs => google::find(address, variables),
            Scheme::Az => azure::find(address, variables),
        }?;
        Ok(Self {
            place: settings.endpoint.as_str().trim_end_matches('/').to_owned(),
            network: Network::find(
                &settings.endpoint,
                &settings.host,
                settings.lender.as_ref(),
                settings.ca_bundle,
                variables,
            )?,
            attempts: attempts(variables)?,
            credentials: settings.credentials,
            dialect: settings.dialect,
        })
    }
}

/// Shared by the tests of all stores.
#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{
        VARIABLES,
        dialect::{StoreRequest, WantedObject},
    };

    /// Returns the access that these variables lead to.
    pub(crate) fn find(address: &str, variables: &[(&str, &str)]) -> Result<StoreAccess, Error> {
        let known: BTreeMap<&str, &str> = variables.iter().copied().collect();
        StoreAccess::find(&address.parse()?, &|name| {
            assert!(VARIABLES.contains(&name), "{name} is looked up, and not in the list");
            known.get(name).map(|value| (*value).to_owned())
        })
    }

    /// Returns the service that lends credentials.
    pub(crate) fn lender(access: &StoreAccess) -> String {
        match &access.credentials {
            Credentials::Lent { lender, .. } => format!("{lender:?}"),
            Credentials::Fixed(_) => "fixed".into(),
        }
    }

    /// Returns the request for 5 bytes of an object, with the fixed credential, if there is one.
    pub(crate) fn request(access: &StoreAccess, key: &str) -> StoreRequest {
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
}
