//! Addresses: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`.

use std::{fmt, str::FromStr};

use crate::Error;

/// Kind of a store, by which an address begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Amazon S3, and other stores with its protocol.
    S3,
    /// Google Cloud Storage.
    Gs,
    /// Azure Blob Storage, which calls a bucket a container.
    Az,
}

impl Scheme {
    /// All schemes.
    pub const ALL: [Self; 3] = [Self::S3, Self::Gs, Self::Az];

    /// Returns the beginning of an address.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::S3 => "s3://",
            Self::Gs => "gs://",
            Self::Az => "az://",
        }
    }

    /// Returns the scheme of an address; `None` if it is not a store's.
    pub fn of(address: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|scheme| address.starts_with(scheme.prefix().as_bytes()))
    }

    /// Returns the form of an address up to the prefix or key, as messages show it.
    pub fn bucket_form(self) -> &'static str {
        match self {
            Self::S3 => "s3://BUCKET",
            Self::Gs => "gs://BUCKET",
            Self::Az => "az://CONTAINER",
        }
    }
}

/// A bucket, or the part of it below a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    scheme: Scheme,
    bucket: String,
    /// Empty, or ends with `/`.
    prefix: String,
}

impl Address {
    /// Returns the kind of its store.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns the address of the whole bucket.
    pub(crate) fn whole(&self) -> Self {
        Self {
            prefix: String::new(),
            ..self.clone()
        }
    }

    /// Returns the bucket's name.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Returns the prefix of the keys of all objects: empty, or ending with `/`.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Parses `s3://BUCKET/KEY` or the form of another scheme into bucket and key.
    ///
    /// # Errors
    /// [`Error::Input`], which names the remedy.
    pub fn of_object(text: &str) -> Result<(Self, String), Error> {
        let scheme = Scheme::of(text.as_bytes()).unwrap_or(Scheme::S3);
        let refuse = |why: &str| Error::Input(format!("'{text}' {why}; write {}/KEY", scheme.bucket_form()));
        let rest = text.strip_prefix(scheme.prefix()).unwrap_or_default();
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let bucket = format!("{}{bucket}", scheme.prefix()).parse()?;
        if key.is_empty() {
            return Err(refuse("names no object"));
        }
        // A client of HTTP would resolve '..' and remove '.'.
        if key.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(refuse("has an empty name, '.' or '..' in its key"));
        }
        Ok((bucket, key.to_owned()))
    }

    /// Returns the address of an object, for people: without control characters, which a terminal would obey.
    pub fn object(&self, key: &str) -> String {
        format!("{}{}/{}", self.scheme.prefix(), self.bucket, key.replace(char::is_control, "?"))
    }
}

impl FromStr for Address {
    type Err = Error;

    /// Parses an address. The prefix means a directory, with or without its final slash.
    ///
    /// # Errors
    /// [`Error::Input`], which names the remedy.
    fn from_str(text: &str) -> Result<Self, Error> {
        let Some(scheme) = Scheme::of(text.as_bytes()) else {
            let forms = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX";
            return Err(Error::Input(format!(
                "'{text}' is not an address of an object store; write {forms}"
            )));
        };
        let refuse = |why: &str| Error::Input(format!("'{text}' {why}; write {}/PREFIX", scheme.bucket_form()));
        let rest = &text[scheme.prefix().len()..];
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if bucket.is_empty() {
            return Err(refuse("names no bucket"));
        }
        // It becomes a host name, or a part of a URL's path.
        if bucket.len() > 255 || !bucket.bytes().all(is_name) || !bucket.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric) {
            return Err(refuse("has an invalid bucket name"));
        }
        let bare = prefix.strip_suffix('/').unwrap_or(prefix);
        if !prefix.is_empty() && bare.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(refuse("has an empty name, '.' or '..' in its prefix"));
        }
        let prefix = if bare.is_empty() { String::new() } else { format!("{bare}/") };
        Ok(Self {
            scheme,
            bucket: bucket.to_owned(),
            prefix,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = format!("{}/{}", self.bucket, self.prefix);
        write!(formatter, "{}{}", self.scheme.prefix(), path.trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        for (text, bucket, prefix, shown) in [
            ("s3://data", "data", "", "s3://data"),
            ("s3://data/", "data", "", "s3://data"),
            ("s3://my.data-1/a/b", "my.data-1", "a/b/", "s3://my.data-1/a/b"),
            ("s3://data/a/b/", "data", "a/b/", "s3://data/a/b"),
            ("s3://data/day=1/x?#%", "data", "day=1/x?#%/", "s3://data/day=1/x?#%"),
            ("gs://data", "data", "", "gs://data"),
            ("gs://my.data_1/a/b/", "my.data_1", "a/b/", "gs://my.data_1/a/b"),
            ("az://data/a", "data", "a/", "az://data/a"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.bucket(), address.prefix(), &*address.to_string()), (bucket, prefix, shown));
            assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
        }
    }

    #[test]
    fn objects_have_a_bucket_and_a_key() {
        for (text, bucket, key) in [
            ("s3://data/x", "s3://data", "x"),
            ("s3://data/day=1/x?#%.jpg", "s3://data", "day=1/x?#%.jpg"),
            ("gs://data/x/y", "gs://data", "x/y"),
            ("az://data/x/y", "az://data", "x/y"),
        ] {
            let (address, found) = Address::of_object(text).unwrap();
            assert_eq!((&*address.to_string(), &*found), (bucket, key));
            assert_eq!(address.object(&found), text);
        }
        let (address, key) = Address::of_object("s3://data/a\x1b[2J").unwrap();
        assert_eq!((&*key, &*address.object(&key)), ("a\x1b[2J", "s3://data/a?[2J"));
        for text in [
            "",
            "/data/x",
            "s3://",
            "s3://data",
            "s3://data/",
            "s3://a b/x",
            "s3://data//x",
            "s3://data/../x",
            "s3://data/x/",
        ] {
            let line = Address::of_object(text).unwrap_err().to_string();
            assert!(line.contains("; write s3://BUCKET/"), "{line}");
        }
        for (text, form) in [
            ("gs://data", "gs://BUCKET/KEY"),
            ("az://data/../x", "az://CONTAINER/KEY"),
            ("az://", "az://CONTAINER/PREFIX"),
        ] {
            let line = Address::of_object(text).unwrap_err().to_string();
            assert!(line.ends_with(&format!("; write {form}")), "{line}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "data",
            "/data",
            "gcs://data",
            "abfs://data",
            "GS://data",
            "S3://data",
            "s3:/data",
            "s3://",
            "s3:///x",
            "s3://../x",
            "s3://-x",
            "s3://a b/x",
            "s3://a@b/x",
            "s3://a:80/x",
            "s3://data//",
            "s3://data//x",
            "s3://data/a//b",
            "s3://data/../x",
            "s3://data/a/./b",
        ] {
            let line = text.parse::<Address>().unwrap_err().to_string();
            assert!(line.contains(text) && line.contains("; write s3://BUCKET/PREFIX"), "{line}");
        }
    }
}
