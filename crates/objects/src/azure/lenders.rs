//! Services that lend tokens for Azure's stores: the login of an application, and the identity of a virtual machine.

use std::path::PathBuf;

use url::Url;

use crate::{
    Error,
    credentials::{Caller, Credentials, Lender, LenderRequest, Lent},
    dialect::query,
    error::RequestFault,
    profile::{SecretText, read_small},
    variables::{VariableLookup, endpoint},
};

/// Finds the service that lends tokens, with its address unless it is local.
///
/// # Errors
/// [`Error::Input`]: an invalid address.
pub(super) fn find(variables: VariableLookup<'_>) -> Result<(Credentials, Option<Url>), Error> {
    let client = variables("AZURE_CLIENT_ID");
    let secret = variables("AZURE_CLIENT_SECRET").map(|secret| Proof::Password(SecretText(secret)));
    let file = variables("AZURE_FEDERATED_TOKEN_FILE").map(|file| Proof::Token(file.into()));
    if let (Some(client), Some(tenant), Some(proof)) = (&client, variables("AZURE_TENANT_ID"), secret.or(file)) {
        let authority = variables("AZURE_AUTHORITY_HOST").unwrap_or_else(|| "https://login.microsoftonline.com".into());
        let place = endpoint(&authority)?;
        let login = Login {
            url: format!("{place}{}/oauth2/v2.0/token", crate::dialect::encoded(&tenant)),
            client: client.clone(),
            proof,
        };
        return Ok((Credentials::lent(login), Some(place)));
    }
    let host = variables("AZURE_POD_IDENTITY_AUTHORITY_HOST").unwrap_or_else(|| "http://169.254.169.254".into());
    let machine = AzureMachine {
        url: host.trim_end_matches('/').to_owned(),
        client,
    };
    Ok((Credentials::lent(machine), None))
}

/// An application that logs in.
#[derive(Debug)]
struct Login {
    url: String,
    client: String,
    proof: Proof,
}

/// Proof of an application's identity.
#[derive(Debug)]
enum Proof {
    Password(SecretText),
    /// Token of another authority, such as a Kubernetes cluster. It changes, so it is read each time.
    Token(PathBuf),
}

impl Lender for Login {
    fn lend(&self, caller: &Caller<'_>) -> Result<Lent, RequestFault> {
        let mut fields = vec![
            ("grant_type", "client_credentials"),
            ("client_id", &*self.client),
            ("scope", "https://storage.azure.com/.default"),
        ];
        let token;
        match &self.proof {
            Proof::Password(secret) => fields.push(("client_secret", &secret.0)),
            Proof::Token(path) => {
                let text = read_small(path).map_err(|error| RequestFault::Passing(format!("{}: {error}", path.display())))?;
                token = SecretText(text);
                fields.push(("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"));
                fields.push(("client_assertion", token.0.trim()));
            }
        }
        caller.token(&LenderRequest::Form(&self.url, &fields), None)
    }
}

/// The identity of a virtual machine.
#[derive(Debug)]
struct AzureMachine {
    url: String,
    /// Identity to use, of several.
    client: Option<String>,
}

impl Lender for AzureMachine {
    fn lend(&self, caller: &Caller<'_>) -> Result<Lent, RequestFault> {
        let mut parameters = vec![("api-version", "2018-02-01"), ("resource", "https://storage.azure.com/")];
        parameters.extend(self.client.as_deref().map(|client| ("client_id", client)));
        let url = format!("{}/metadata/identity/oauth2/token{}", self.url, query(&parameters));
        // No service answers: this is not such a machine, or it has no identity.
        Ok(caller
            .token(&LenderRequest::Near(&url), Some(("metadata", "true")))
            .unwrap_or_else(|_| Lent::none()))
    }
}
