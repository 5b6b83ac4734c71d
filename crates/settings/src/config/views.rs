//! The form in which views are written: an address of an object store, and the directory that it is fetched into.

use std::{
    ffi::{OsStr, OsString},
    fmt,
    path::{Path, PathBuf},
};

use forebay_objects::{Address, Error, Scheme};

use super::SettingOrigin;
use crate::{environment::Environment, user_error::UserError};

/// A view as it was asked for; whether it can be is seen when it is filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewWish {
    /// Address of the bucket and prefix.
    pub address: Address,
    /// Directory that is filled: an absolute path.
    pub dir: PathBuf,
}

impl fmt::Display for ViewWish {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}={}", self.address, self.dir.display())
    }
}

/// Reads `s3://BUCKET/PREFIX=DIR`, or the same with `gs://` or `az://`. A prefix may have an equals sign in it
/// (`day=1`), so the last one counts.
///
/// # Errors
/// One line that names the mend.
pub fn parse(origin: &SettingOrigin, environment: &Environment, text: &OsStr) -> Result<ViewWish, UserError> {
    let shown = text.to_string_lossy();
    let form = Scheme::of(shown.as_bytes()).unwrap_or(Scheme::S3).bucket_form();
    let refuse = |why: &str| UserError::bad_input(format_args!("{origin}: {shown} {why}; write {form}/PREFIX=DIR"));
    let text = text.to_str().ok_or_else(|| refuse("is not UTF-8 text"))?;
    let Some((address, dir)) = text.rsplit_once('=') else {
        // An invalid address is the greater mistake.
        address_of(origin, text)?;
        return Err(refuse("names no directory"));
    };
    let address = address_of(origin, address)?;
    if dir.is_empty() {
        return Err(refuse("names no directory"));
    }
    Ok(ViewWish {
        address,
        dir: environment.make_absolute(Path::new(dir)),
    })
}

fn address_of(origin: &SettingOrigin, text: &str) -> Result<Address, UserError> {
    text.parse()
        .map_err(|error: Error| UserError::bad_input(format_args!("{origin}: {error}")))
}

/// The views of a variable, with a colon between two of them. Addresses have colons, too: one that counts has an
/// address after it.
pub fn split(text: &OsStr) -> Vec<OsString> {
    // Bytes that are not text are refused later, as an invalid view.
    let Some(text) = text.to_str() else { return vec![text.to_owned()] };
    let begins = |at: usize| Scheme::of(&text.as_bytes()[at + 1..]).is_some();
    let mut views = Vec::new();
    let mut from = 0;
    for (at, _) in text.match_indices(':').filter(|(at, _)| begins(*at)) {
        views.push(&text[from..at]);
        from = at + 1;
    }
    views.push(&text[from..]);
    views.into_iter().filter(|view| !view.is_empty()).map(OsString::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_read() {
        let mut environment = Environment::default();
        environment.directory = Some("/here".into());
        let read = |text: &str| parse(&SettingOrigin::Flag("--view"), &environment, OsStr::new(text));
        for (text, address, dir) in [
            ("s3://b/p=/data", "s3://b/p", "/data"),
            ("s3://b=data/x/", "s3://b", "/here/data/x"),
            ("s3://b/day=1/=/data", "s3://b/day=1", "/data"),
            ("gs://b/p=/data", "gs://b/p", "/data"),
            ("az://b/p=/data", "az://b/p", "/data"),
        ] {
            let wish = read(text).unwrap();
            assert_eq!((&*wish.address.to_string(), &*wish.dir), (address, Path::new(dir)), "{text}");
        }
        for text in [
            "",
            "s3://b/p",
            "s3://b=",
            "/data",
            "b=/data",
            "gcs://b=/data",
            "s3://b/../x=/data",
            "=/data",
        ] {
            let line = read(text).unwrap_err().to_string();
            assert!(line.starts_with("--view: ") && line.contains("write s3://BUCKET/PREFIX"), "{line}");
        }
        for (text, form) in [("gs://b/p", "gs://BUCKET/PREFIX=DIR"), ("az://b=", "az://CONTAINER/PREFIX=DIR")] {
            let line = read(text).unwrap_err().to_string();
            assert!(line.ends_with(&format!("names no directory; write {form}")), "{line}");
        }
    }

    #[test]
    fn a_variable_has_several() {
        let pieces = |text: &str| {
            split(OsStr::new(text))
                .into_iter()
                .map(|piece| piece.into_string().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(pieces("s3://a/p=/x"), ["s3://a/p=/x"]);
        assert_eq!(pieces("s3://a=/x:s3://b/q=/y:z"), ["s3://a=/x", "s3://b/q=/y:z"]);
        assert_eq!(pieces("/x:s3://b=/y"), ["/x", "s3://b=/y"]);
        assert_eq!(
            pieces("gs://a=/x:az://b/q=/y:z:s3://c=/w:"),
            ["gs://a=/x", "az://b/q=/y:z", "s3://c=/w:"]
        );
        assert_eq!(pieces(":gs://a=/x"), ["gs://a=/x"]);
    }
}
