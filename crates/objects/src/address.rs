//! `s3://BUCKET/PREFIX`.

use std::{fmt, str::FromStr};

use crate::Error;

/// A bucket, or all of it that lies below a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    bucket: String,
    /// Empty, or ends with `/`.
    prefix: String,
}

impl Address {
    /// The bucket's name.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// What the keys of all objects begin with: nothing, or something that ends with `/`.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The bucket that an object is in, and its key, of `s3://BUCKET/KEY`.
    ///
    /// # Errors
    /// [`Error::Input`], which names the mend.
    pub fn of_object(text: &str) -> Result<(Self, String), Error> {
        let refuse = |why: &str| Error::Input(format!("'{text}' {why}; write s3://BUCKET/KEY"));
        let rest = text.strip_prefix("s3://").unwrap_or_default();
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let bucket = format!("s3://{bucket}").parse()?;
        if key.is_empty() {
            return Err(refuse("names no object"));
        }
        // A client of HTTP goes up from '..', and takes '.' out.
        if key.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(refuse("has an empty name, '.' or '..' in its key"));
        }
        Ok((bucket, key.to_owned()))
    }

    /// An object of the bucket, for people: a terminal obeys control characters.
    pub fn object(&self, key: &str) -> String {
        format!("s3://{}/{}", self.bucket, key.replace(char::is_control, "?"))
    }
}

impl FromStr for Address {
    type Err = Error;

    /// Reads an address. The prefix means a directory, with or without its final slash.
    ///
    /// # Errors
    /// [`Error::Input`], which names the mend.
    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = |why: &str| Error::Input(format!("'{text}' {why}; write s3://BUCKET/PREFIX"));
        let rest = text
            .strip_prefix("s3://")
            .ok_or_else(|| refuse("is no address of an object store"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if bucket.is_empty() {
            return Err(refuse("names no bucket"));
        }
        // It becomes a host name, or a part of an URL's path.
        if bucket.len() > 255 || !bucket.bytes().all(is_name) || !bucket.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric) {
            return Err(refuse("has a bucket's name that can't be"));
        }
        let bare = prefix.strip_suffix('/').unwrap_or(prefix);
        if !prefix.is_empty() && bare.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(refuse("has an empty name, '.' or '..' in its prefix"));
        }
        let prefix = if bare.is_empty() { String::new() } else { format!("{bare}/") };
        Ok(Self {
            bucket: bucket.to_owned(),
            prefix,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = format!("{}/{}", self.bucket, self.prefix);
        write!(formatter, "s3://{}", path.trim_end_matches('/'))
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
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "data",
            "/data",
            "gs://data",
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
            assert!(line.contains(text) && line.ends_with("write s3://BUCKET/PREFIX"), "{line}");
        }
    }
}
