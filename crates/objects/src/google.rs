//! Google Cloud Storage (`gs://`), by its JSON API. A version is a generation: each upload has its own.

use jiff::Timestamp;
use serde::Deserialize;
use ureq::http::HeaderMap;

use crate::{
    Address, Error, Object,
    credentials::Credential,
    dialect::{
        Dialect, ListingPage, NextPage, StoreRequest, StoreSettings, WantedObject, WantedPage, bare, encoded, header, query, unreadable,
    },
    error::{RequestFault, StoreRefusal},
    variables::{VariableLookup, endpoint},
};

mod lenders;

/// Name of the field that identifies a version.
const GENERATION: &str = "generation";

/// A bucket of Google's.
#[derive(Debug)]
struct Google {
    /// Address of its objects.
    objects: String,
}

/// Finds endpoint and credentials, from the variables and files that Google's own tools read.
///
/// # Errors
/// [`Error::Input`]: invalid settings.
pub(crate) fn find(address: &Address, variables: VariableLookup<'_>) -> Result<StoreSettings, Error> {
    let emulator = variables("STORAGE_EMULATOR_HOST");
    let endpoint = match &emulator {
        Some(text) if text.contains("://") => endpoint(text)?,
        Some(text) => endpoint(&format!("http://{text}"))?,
        None => endpoint("https://storage.googleapis.com")?,
    };
    let (credentials, lender) = lenders::find(emulator.is_some(), variables)?;
    Ok(StoreSettings {
        dialect: Box::new(Google {
            objects: format!("{endpoint}storage/v1/b/{}/o", encoded(address.bucket())),
        }),
        host: endpoint.host_str().unwrap_or_default().to_owned(),
        endpoint,
        credentials,
        lender,
        ca_bundle: None,
    })
}

fn authorization(credential: Option<&Credential>) -> Option<(&'static str, String)> {
    match credential {
        Some(Credential::Bearer(token)) => Some(("authorization", format!("Bearer {}", token.0))),
        _ => None,
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GoogleListing {
    /// Every listing has it.
    kind: String,
    #[serde(default)]
    items: Vec<GoogleObject>,
    #[serde(default)]
    prefixes: Vec<String>,
    next_page_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GoogleObject {
    name: String,
    /// A number, as text.
    size: String,
    #[serde(default)]
    generation: String,
    /// Time of this generation. Later changes concern the object's metadata, not its contents.
    #[serde(default)]
    time_created: String,
}

#[derive(Deserialize)]
struct GoogleError {
    error: ErrorWords,
}

#[derive(Deserialize)]
struct ErrorWords {
    #[serde(default)]
    message: String,
}

impl Dialect for Google {
    fn name(&self) -> &'static str {
        "Google Cloud Storage"
    }

    fn object(&self, wanted: &WantedObject<'_>, credential: Option<&Credential>) -> StoreRequest {
        let mut parameters = vec![("alt", "media")];
        parameters.extend(wanted.version.map(|generation| ("ifGenerationMatch", generation)));
        // Without this, an object that was uploaded compressed is returned expanded, with another length.
        let as_it_is = ("accept-encoding", "gzip".to_owned());
        StoreRequest {
            url: format!("{}/{}{}", self.objects, encoded(wanted.key), query(&parameters)),
            headers: wanted
                .range_header()
                .into_iter()
                .chain(authorization(credential))
                .chain([as_it_is])
                .collect(),
        }
    }

    fn page(&self, wanted: &WantedPage<'_>, credential: Option<&Credential>) -> StoreRequest {
        let mut parameters = vec![
            ("prefix", wanted.prefix),
            ("fields", "kind,nextPageToken,prefixes,items(name,size,generation,timeCreated)"),
        ];
        if wanted.by_folder {
            parameters.push(("delimiter", "/"));
        }
        parameters.extend(wanted.token.map(|token| ("pageToken", token)));
        StoreRequest {
            url: format!("{}{}", self.objects, query(&parameters)),
            headers: authorization(credential).into_iter().collect(),
        }
    }

    fn read_page(&self, text: &str) -> Result<ListingPage, RequestFault> {
        let listing: GoogleListing = serde_json::from_str(text).map_err(|_| unreadable(self.name()))?;
        if listing.kind != "storage#objects" {
            return Err(unreadable(self.name()));
        }
        let objects = listing.items.into_iter().map(|item| item.read(self.name()));
        Ok(ListingPage {
            objects: objects.collect::<Result<_, _>>()?,
            folders: listing.prefixes.into_iter().map(Ok).collect(),
            next: match listing.next_page_token {
                None => NextPage::End,
                Some(token) if token.is_empty() => NextPage::Lost,
                Some(token) => NextPage::Page(token),
            },
        })
    }

    fn version_name(&self) -> &'static str {
        GENERATION
    }

    fn version<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        bare(header(headers, "x-goog-generation")?)
    }

    fn read_refusal(&self, text: &str) -> StoreRefusal {
        let body: Option<GoogleError> = serde_json::from_str(text).ok();
        StoreRefusal {
            code: String::new(),
            message: body.map(|body| body.error.message).unwrap_or_default(),
        }
    }

    fn no_listing(&self) -> &'static str {
        "there is no such bucket; check its name"
    }

    fn mend(&self) -> &'static str {
        "write gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS"
    }
}

impl GoogleObject {
    fn read(self, dialect: &str) -> Result<Object, RequestFault> {
        let created: Timestamp = self.time_created.parse().map_err(|_| RequestFault::no_time())?;
        let generation = bare(&self.generation).ok_or_else(|| RequestFault::no_version(GENERATION))?;
        Ok(Object {
            etag: generation.to_owned(),
            key: Ok(self.name),
            size: self.size.parse().map_err(|_| unreadable(dialect))?,
            modified_ms: created.as_millisecond(),
        })
    }
}

#[cfg(test)]
mod tests;
