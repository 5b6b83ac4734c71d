//! Azure Blob Storage (`az://CONTAINER/BLOB`). The environment names the account.

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::{
    Timestamp,
    fmt::rfc2822::{DateTimeParser, DateTimePrinter},
};
use percent_encoding::percent_decode_str;
use ring::hmac;
use serde::Deserialize;
use ureq::http::{HeaderMap, StatusCode};
use url::Url;

use crate::{
    Address, Error, Object,
    amazon::read_error,
    credentials::{Credential, Credentials},
    dialect::{
        Dialect, ETAG, ListingPage, NextPage, StoreRequest, StoreSettings, WantedObject, WantedPage, bare, encoded_path, header, query,
        unreadable,
    },
    error::{RequestFault, StoreRefusal},
    profile::SecretText,
    variables::{VariableLookup, endpoint},
};

mod lenders;

/// Version of the protocol.
const VERSION: &str = "2023-11-03";

/// A container of Azure's.
#[derive(Debug)]
struct Azure {
    /// Scheme, host and port of the endpoint.
    origin: String,
    /// Path of the container.
    path: String,
    account: String,
}

/// Finds account, endpoint and credentials, from the variables that Azure's own tools read.
///
/// # Errors
/// [`Error::Input`]: invalid settings.
pub(crate) fn find(address: &Address, variables: VariableLookup<'_>) -> Result<StoreSettings, Error> {
    let settings = AccountSettings::find(variables)?;
    let endpoint = endpoint(&settings.endpoint)?;
    let (credentials, lender) = settings.credentials(variables)?;
    Ok(StoreSettings {
        host: endpoint.host_str().unwrap_or_default().to_owned(),
        credentials,
        lender,
        ca_bundle: None,
        dialect: Box::new(Azure {
            origin: endpoint.origin().ascii_serialization(),
            path: format!("{}{}", endpoint.path(), address.bucket()),
            account: settings.account,
        }),
        endpoint,
    })
}

/// Address of a storage account, and its keys.
struct AccountSettings {
    endpoint: String,
    account: String,
    key: Option<SecretText>,
    shared_access: Option<SecretText>,
}

impl AccountSettings {
    fn find(variables: VariableLookup<'_>) -> Result<Self, Error> {
        let text = variables("AZURE_STORAGE_CONNECTION_STRING").map(SecretText);
        let pairs = text
            .as_ref()
            .map(|text| text.0.split(';').filter_map(|pair| pair.trim().split_once('=')));
        let mut settings = Self {
            endpoint: String::new(),
            account: variables("AZURE_STORAGE_ACCOUNT").unwrap_or_default(),
            key: variables("AZURE_STORAGE_KEY").map(SecretText),
            shared_access: variables("AZURE_STORAGE_SAS_TOKEN").map(SecretText),
        };
        let (mut protocol, mut suffix) = ("https", "core.windows.net");
        for (name, value) in pairs.into_iter().flatten() {
            match &*name.to_ascii_lowercase() {
                "accountname" => value.clone_into(&mut settings.account),
                "accountkey" => settings.key = Some(SecretText(value.to_owned())),
                "sharedaccesssignature" => settings.shared_access = Some(SecretText(value.to_owned())),
                "blobendpoint" => value.clone_into(&mut settings.endpoint),
                "defaultendpointsprotocol" => protocol = value,
                "endpointsuffix" => suffix = value,
                _ => {}
            }
        }
        let is_name = settings.account.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !is_name || (settings.account.is_empty() && (settings.endpoint.is_empty() || settings.key.is_some())) {
            let why = "the name of the storage account is missing or invalid; set AZURE_STORAGE_ACCOUNT or AZURE_STORAGE_CONNECTION_STRING";
            return Err(Error::Input(why.into()));
        }
        if settings.endpoint.is_empty() {
            settings.endpoint = format!("{protocol}://{}.blob.{suffix}", settings.account);
        }
        Ok(settings)
    }

    /// Returns the account's key or a shared access signature, or else the token that an identity is lent.
    fn credentials(&self, variables: VariableLookup<'_>) -> Result<(Credentials, Option<Url>), Error> {
        if let Some(key) = &self.key {
            let bytes = BASE64_STANDARD.decode(key.0.trim()).map_err(|_| {
                let why =
                    "the key of the storage account is invalid: it is not Base64; copy AZURE_STORAGE_KEY or the connection string again";
                Error::Input(why.into())
            })?;
            let key = Credential::AccountKey(hmac::Key::new(hmac::HMAC_SHA256, &bytes));
            return Ok((Credentials::fixed(key), None));
        }
        if let Some(text) = &self.shared_access {
            let text = SecretText(text.0.trim().trim_start_matches('?').to_owned());
            return Ok((Credentials::fixed(Credential::SharedAccess(text)), None));
        }
        lenders::find(variables)
    }
}

impl Azure {
    /// Signs a request for a path, with parameters sorted by name.
    fn sign(
        &self,
        path: &str,
        parameters: &[(&str, &str)],
        headers: impl IntoIterator<Item = (&'static str, String)>,
        credential: Option<&Credential>,
    ) -> StoreRequest {
        let mut headers: Vec<(&'static str, String)> = headers.into_iter().collect();
        let now = DateTimePrinter::new().timestamp_to_rfc9110_string(&Timestamp::now());
        // Only the years from 0 to 9999 can be written.
        headers.push(("x-ms-date", now.unwrap_or_default()));
        headers.push(("x-ms-version", VERSION.to_owned()));
        let mut url = format!("{}{path}", self.origin);
        if !parameters.is_empty() {
            url += &query(parameters);
        }
        match credential {
            Some(Credential::AccountKey(key)) => {
                let tag = hmac::sign(key, self.to_sign(path, parameters, &headers).as_bytes());
                let signature = BASE64_STANDARD.encode(tag);
                headers.push(("authorization", format!("SharedKey {}:{signature}", self.account)));
            }
            Some(Credential::Bearer(token)) => headers.push(("authorization", format!("Bearer {}", token.0))),
            Some(Credential::SharedAccess(text)) => {
                url.push(if parameters.is_empty() { '?' } else { '&' });
                url += &text.0;
            }
            _ => {}
        }
        StoreRequest { url, headers }
    }

    /// Returns the text whose signature proves possession of the account's key.
    fn to_sign(&self, path: &str, parameters: &[(&str, &str)], headers: &[(&str, String)]) -> String {
        let of = |name: &str| headers.iter().find(|(header, _)| *header == name).map_or("", |(_, value)| value);
        let own = headers.iter().filter(|(name, _)| name.starts_with("x-ms-"));
        let own: Vec<String> = own.map(|(name, value)| format!("{name}:{value}\n")).collect();
        let parameters: Vec<String> = parameters.iter().map(|(name, value)| format!("\n{name}:{value}")).collect();
        // Seven headers that our requests do not have, then the condition; two more, then the range.
        format!(
            "GET\n\n\n\n\n\n\n\n{}\n\n\n{}\n{}/{}{path}{}",
            of("if-match"),
            of("range"),
            own.concat(),
            self.account,
            parameters.concat()
        )
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AzureListing {
    #[serde(default)]
    blobs: Blobs,
    /// Every listing has it; on the last page it is empty.
    next_marker: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Blobs {
    blob: Vec<AzureBlob>,
    blob_prefix: Vec<BlobPrefix>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BlobPrefix {
    name: EncodedName,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AzureBlob {
    name: EncodedName,
    properties: Properties,
}

#[derive(Deserialize)]
struct EncodedName {
    /// True if it has characters that XML can't hold, which are escaped.
    #[serde(rename = "@Encoded", default)]
    is_encoded: bool,
    #[serde(rename = "$text", default)]
    text: String,
}

impl EncodedName {
    fn read(self) -> Result<String, Vec<u8>> {
        if !self.is_encoded {
            return Ok(self.text);
        }
        String::from_utf8(percent_decode_str(&self.text).collect()).map_err(std::string::FromUtf8Error::into_bytes)
    }
}

#[derive(Deserialize)]
struct Properties {
    #[serde(rename = "Last-Modified", default)]
    last_modified: String,
    #[serde(rename = "Etag", default)]
    etag: String,
    #[serde(rename = "Content-Length")]
    size: u64,
    /// Set for accounts with directories.
    #[serde(rename = "ResourceType", default)]
    resource_type: String,
}

impl AzureBlob {
    fn read(self) -> Result<Object, RequestFault> {
        let modified = DateTimeParser::new().parse_timestamp(&self.properties.last_modified);
        let mut key = self.name.read();
        // Other stores end the name of a directory's marker with a slash.
        if self.properties.resource_type == "directory" {
            match &mut key {
                Ok(key) => key.push('/'),
                Err(bytes) => bytes.push(b'/'),
            }
        }
        Ok(Object {
            key,
            etag: bare(&self.properties.etag)
                .ok_or_else(|| RequestFault::no_version(ETAG))?
                .to_owned(),
            size: self.properties.size,
            modified_ms: modified.map_err(|_| RequestFault::no_time())?.as_millisecond(),
        })
    }
}

impl Dialect for Azure {
    fn name(&self) -> &'static str {
        "Azure Blob Storage"
    }

    fn object(&self, wanted: &WantedObject<'_>, credential: Option<&Credential>) -> StoreRequest {
        let version = wanted.version.map(|etag| ("if-match", format!("\"{etag}\"")));
        let path = format!("{}/{}", self.path, encoded_path(wanted.key));
        self.sign(&path, &[], wanted.range_header().into_iter().chain(version), credential)
    }

    fn page(&self, wanted: &WantedPage<'_>, credential: Option<&Credential>) -> StoreRequest {
        let mut parameters = vec![("comp", "list")];
        if wanted.by_folder {
            parameters.push(("delimiter", "/"));
        }
        parameters.extend(wanted.token.map(|marker| ("marker", marker)));
        parameters.push(("prefix", wanted.prefix));
        parameters.push(("restype", "container"));
        self.sign(&self.path, &parameters, [], credential)
    }

    fn read_page(&self, text: &str) -> Result<ListingPage, RequestFault> {
        let listing: AzureListing = quick_xml::de::from_str(text.trim_start_matches('\u{feff}')).map_err(|_| unreadable(self.name()))?;
        let objects = listing.blobs.blob.into_iter().map(AzureBlob::read);
        let folders = listing.blobs.blob_prefix.into_iter().map(|prefix| prefix.name.read());
        Ok(ListingPage {
            objects: objects.collect::<Result<_, _>>()?,
            folders: folders.collect(),
            next: match listing.next_marker {
                Some(marker) if marker.is_empty() => NextPage::End,
                Some(marker) => NextPage::Page(marker),
                None => return Err(unreadable(self.name())),
            },
        })
    }

    fn version<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        bare(header(headers, "etag")?)
    }

    fn read_refusal(&self, text: &str) -> StoreRefusal {
        read_error(text.trim_start_matches('\u{feff}'))
    }

    fn explain(&self, _: StatusCode, headers: &HeaderMap, refused: &StoreRefusal, is_signed: bool) -> Option<RequestFault> {
        let code = header(headers, "x-ms-error-code").unwrap_or(&refused.code);
        match code {
            "ContainerNotFound" => Some(RequestFault::Lasting(self.no_listing().into())),
            // A caller without the right to know is told that nothing is there.
            "ResourceNotFound" | "PublicAccessNotPermitted" if !is_signed => Some(RequestFault::no_key(code, self.mend())),
            _ => None,
        }
    }

    fn no_listing(&self) -> &'static str {
        "there is no such container; check its name and the account"
    }

    fn mend(&self) -> &'static str {
        "set AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING, or give the machine an identity"
    }
}

#[cfg(test)]
mod tests;
