//! Stores with the protocol of S3 (`s3://`). rusty-s3 signs, in the address.

use jiff::Timestamp;
use percent_encoding::percent_decode_str;
use rusty_s3::{Bucket, S3Action, UrlStyle, actions::GetObject};
use serde::Deserialize;
use ureq::http::{HeaderMap, StatusCode};
use url::Url;

use crate::{
    Address, Error, Object,
    credentials::{Credential, Credentials},
    dialect::{Dialect, ETAG, ListingPage, NextPage, StoreRequest, StoreSettings, WantedObject, WantedPage, bare, header, unreadable},
    error::{RequestFault, StoreRefusal, plain},
    limits,
    profile::Profile,
    variables::{VariableLookup, endpoint, first},
};

mod lenders;

use lenders::{WebIdentity, metadata_service};

/// A bucket of S3.
#[derive(Debug)]
struct Amazon {
    bucket: Bucket,
}

/// Finds endpoint, region and credentials, from the variables and files that all tools for S3 read.
///
/// # Errors
/// [`Error::Input`]: invalid settings.
pub(crate) fn find(address: &Address, variables: VariableLookup<'_>) -> Result<StoreSettings, Error> {
    let bucket = address.bucket();
    let profile = Profile::read(variables)?;
    let region = first(&["AWS_REGION", "AWS_DEFAULT_REGION"], variables)
        .or_else(|| profile.get("region"))
        .unwrap_or_else(|| "us-east-1".into());
    let domain = if region.starts_with("cn-") {
        "amazonaws.com.cn"
    } else {
        "amazonaws.com"
    };
    let named = first(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"], variables).or_else(|| profile.get("endpoint_url"));
    // The certificates of Amazon's hosts are invalid for names with dots; other stores rarely have a host name for each
    // bucket.
    let style = if named.is_some() || bucket.contains('.') {
        UrlStyle::Path
    } else {
        UrlStyle::VirtualHost
    };
    let endpoint = endpoint(&named.unwrap_or_else(|| format!("https://s3.{region}.{domain}")))?;
    let host = match (style, endpoint.host_str().unwrap_or_default()) {
        (UrlStyle::VirtualHost, host) => format!("{bucket}.{host}"),
        (UrlStyle::Path, host) => host.to_owned(),
    };
    let (credentials, lender) = credentials(&profile, &format!("https://sts.{region}.{domain}"), variables)?;
    let bucket = Bucket::new(endpoint.clone(), style, bucket.to_owned(), region)
        .map_err(|error| Error::Input(format!("{address}: {error}; check the bucket's name and the endpoint")))?;
    Ok(StoreSettings {
        dialect: Box::new(Amazon { bucket }),
        endpoint,
        host,
        credentials,
        lender,
        ca_bundle: profile.get("ca_bundle"),
    })
}

/// Returns the source of credentials: variables, a role of a web identity, the profile, a container or a virtual
/// machine, whichever comes first. Returns besides the address of the service that lends them, unless it is local.
fn credentials(profile: &Profile, sts: &str, variables: VariableLookup<'_>) -> Result<(Credentials, Option<Url>), Error> {
    let fixed = |key: String, secret: String, token: Option<String>| {
        let key = match token {
            Some(token) => rusty_s3::Credentials::new_with_token(key, secret, token),
            None => rusty_s3::Credentials::new(key, secret),
        };
        Ok((Credentials::fixed(Credential::AccessKey(key)), None))
    };
    match (variables("AWS_ACCESS_KEY_ID"), variables("AWS_SECRET_ACCESS_KEY")) {
        (Some(key), Some(secret)) => return fixed(key, secret, variables("AWS_SESSION_TOKEN")),
        (None, None) => {}
        _ => {
            return Err(Error::Input(
                "only one of $AWS_ACCESS_KEY_ID and $AWS_SECRET_ACCESS_KEY is set; set both, or none".into(),
            ));
        }
    }
    if let Some(identity) = WebIdentity::find(profile, sts, variables)? {
        let place = identity.place().clone();
        return Ok((Credentials::lent(identity), Some(place)));
    }
    if let (Some(key), Some(secret)) = (profile.get("aws_access_key_id"), profile.get("aws_secret_access_key")) {
        return fixed(key, secret, profile.get("aws_session_token"));
    }
    profile.refuse_what_is_not_read()?;
    Ok((metadata_service(variables), None))
}

fn key_of(credential: Option<&Credential>) -> Option<&rusty_s3::Credentials> {
    match credential {
        Some(Credential::AccessKey(key)) => Some(key),
        _ => None,
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AmazonListing {
    #[serde(default)]
    contents: Vec<AmazonObject>,
    /// Every listing has this field, and few other answers do.
    is_truncated: bool,
    next_continuation_token: Option<String>,
    encoding_type: Option<String>,
    #[serde(default)]
    common_prefixes: Vec<AmazonPrefix>,
}

/// Common part of keys, up to a slash.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AmazonPrefix {
    prefix: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AmazonObject {
    key: String,
    size: u64,
    last_modified: String,
    #[serde(rename = "ETag")]
    e_tag: Option<String>,
}

/// Body of an error in XML, of Azure's stores, too.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ErrorBody {
    code: String,
    message: String,
}

/// Parses the XML of an error.
pub(crate) fn read_error(text: &str) -> StoreRefusal {
    let body: ErrorBody = quick_xml::de::from_str(text).unwrap_or_default();
    StoreRefusal {
        code: body.code,
        message: body.message,
    }
}

impl Dialect for Amazon {
    fn name(&self) -> &'static str {
        "S3"
    }

    fn object(&self, wanted: &WantedObject<'_>, credential: Option<&Credential>) -> StoreRequest {
        let url = GetObject::new(&self.bucket, key_of(credential), wanted.key).sign(limits::SIGNATURE_LIFE);
        let version = wanted.version.map(|etag| ("if-match", format!("\"{etag}\"")));
        StoreRequest {
            url: url.into(),
            headers: wanted.range_header().into_iter().chain(version).collect(),
        }
    }

    fn page(&self, wanted: &WantedPage<'_>, credential: Option<&Credential>) -> StoreRequest {
        // A GET of the bucket itself, which is the object without a name. (The library's own action for listings does
        // not encode a plus sign in a key, which stands for a blank.)
        let mut request = GetObject::new(&self.bucket, key_of(credential), "");
        let query = request.query_mut();
        query.insert("list-type", "2");
        // Characters that XML can't hold are escaped.
        query.insert("encoding-type", "url");
        query.insert("prefix", wanted.prefix);
        if wanted.by_folder {
            query.insert("delimiter", "/");
        }
        if let Some(token) = wanted.token {
            query.insert("continuation-token", token);
        }
        StoreRequest {
            url: request.sign(limits::SIGNATURE_LIFE).into(),
            headers: Vec::new(),
        }
    }

    fn read_page(&self, text: &str) -> Result<ListingPage, RequestFault> {
        let listing: AmazonListing = quick_xml::de::from_str(text).map_err(|_| unreadable(self.name()))?;
        let is_url = listing.encoding_type.as_deref() == Some("url");
        let objects = listing.contents.into_iter().map(|content| content.read(is_url));
        let folders = listing.common_prefixes.into_iter().map(|common| decoded(common.prefix, is_url));
        Ok(ListingPage {
            objects: objects.collect::<Result<_, _>>()?,
            folders: folders.collect(),
            next: match listing.next_continuation_token {
                _ if !listing.is_truncated => NextPage::End,
                Some(token) if !token.is_empty() => NextPage::Page(token),
                _ => NextPage::Lost,
            },
        })
    }

    fn version<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        bare(header(headers, "etag")?)
    }

    fn read_refusal(&self, text: &str) -> StoreRefusal {
        read_error(text)
    }

    fn explain(&self, status: StatusCode, headers: &HeaderMap, refused: &StoreRefusal, is_signed: bool) -> Option<RequestFault> {
        let region = header(headers, "x-amz-bucket-region").filter(|region| *region != self.bucket.region());
        if let (301 | 307 | 400, Some(region)) = (status.as_u16(), region) {
            let region = plain(region);
            return Some(RequestFault::Lasting(format!(
                "the bucket is in the region {region}; set AWS_REGION={region}"
            )));
        }
        match (status.as_u16(), &*refused.code) {
            (_, "NoSuchBucket") => Some(RequestFault::Lasting(
                "there is no such bucket; check its name and the endpoint".into(),
            )),
            (400, "ExpiredToken" | "InvalidToken") if is_signed => Some(RequestFault::refused_key(&refused.words(status))),
            _ => None,
        }
    }

    fn no_listing(&self) -> &'static str {
        "does not answer as S3 does: is this its endpoint?"
    }

    fn mend(&self) -> &'static str {
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    }
}

impl AmazonObject {
    fn read(self, is_url: bool) -> Result<Object, RequestFault> {
        let modified: Timestamp = self.last_modified.parse().map_err(|_| RequestFault::no_time())?;
        Ok(Object {
            key: decoded(self.key, is_url),
            etag: self
                .e_tag
                .as_deref()
                .and_then(bare)
                .ok_or_else(|| RequestFault::no_version(ETAG))?
                .to_owned(),
            size: self.size,
            modified_ms: modified.as_millisecond(),
        })
    }
}

/// Decodes a key of a listing; returns the bytes if it is not UTF-8.
fn decoded(key: String, is_url: bool) -> Result<String, Vec<u8>> {
    if !is_url {
        return Ok(key);
    }
    // Encoded as in forms: a plus sign is a blank.
    let bytes: Vec<u8> = percent_decode_str(&key.replace('+', " ")).collect();
    String::from_utf8(bytes).map_err(std::string::FromUtf8Error::into_bytes)
}

#[cfg(test)]
mod tests;
