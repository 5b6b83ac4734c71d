//! Patterns of files that are the source's alone (`--exclude`), as an agent and the preload library get them.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::Path,
};

use forebay_contract::exclude::EXCLUDES_BYTES_MAX;
use forebay_settings::{config::Setting, user_error::UserError};

/// Characters that mean something in a pattern.
const SPECIAL: &[u8] = b"*?[\\";

/// Returns the patterns as text, for a person or a record.
pub fn texts(patterns: &[OsString]) -> Vec<String> {
    patterns.iter().map(|pattern| pattern.to_string_lossy().into_owned()).collect()
}

/// Returns all patterns, each with a NUL behind it. An absolute one whose directory is reached through a link is
/// there by the kernel's name, too: files are compared by both.
///
/// # Errors
/// Patterns that are too long together.
pub fn page_text(patterns: &Setting<Vec<OsString>>) -> Result<Vec<u8>, UserError> {
    let mut text = Vec::new();
    for pattern in &patterns.value {
        for form in std::iter::once(pattern.clone()).chain(without_links(pattern)) {
            text.extend_from_slice(form.as_bytes());
            text.push(0);
        }
    }
    if text.len() > EXCLUDES_BYTES_MAX {
        let (origin, count) = (&patterns.origin, patterns.value.len());
        return Err(UserError::bad_input(format_args!(
            "{origin}: {count} patterns take {} bytes, and {EXCLUDES_BYTES_MAX} is the most; join some with * or **",
            text.len()
        )));
    }
    Ok(text)
}

/// Returns an absolute pattern with the links resolved in its first components, those without special characters;
/// `None` where there is none.
fn without_links(pattern: &OsStr) -> Option<OsString> {
    let path = Path::new(pattern);
    let is_literal = |part: &Path| !part.as_os_str().as_bytes().iter().any(|byte| SPECIAL.contains(byte));
    let (literal, real) = path
        .ancestors()
        .filter(|part| path.is_absolute() && is_literal(part))
        .find_map(|part| Some((part, part.canonicalize().ok()?)))?;
    let rest = path.strip_prefix(literal).ok()?;
    let mut form = escaped(&real).into_vec();
    if !rest.as_os_str().is_empty() {
        if form.last() != Some(&b'/') {
            form.push(b'/');
        }
        form.extend_from_slice(rest.as_os_str().as_bytes());
    }
    let form = OsString::from_vec(form);
    (form != *path.as_os_str()).then_some(form)
}

fn escaped(path: &Path) -> OsString {
    let bytes = path.as_os_str().as_bytes().iter();
    let escaped = bytes.flat_map(|byte| SPECIAL.contains(byte).then_some(b'\\').into_iter().chain(std::iter::once(*byte)));
    OsString::from_vec(escaped.collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use forebay_settings::config::SettingOrigin;

    fn page(patterns: Vec<OsString>) -> Result<Vec<u8>, UserError> {
        page_text(&Setting::new(patterns, SettingOrigin::Flag("--exclude")))
    }

    #[test]
    fn an_absolute_pattern_is_there_by_the_name_of_the_kernel_too() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().canonicalize().unwrap().join(name);
        std::fs::create_dir(at("re[al")).unwrap();
        symlink(at("re[al"), at("link")).unwrap();
        let given: OsString = at("link").join("live/*.mdb").into();
        let text = String::from_utf8(page(vec![given.clone(), "logs/**".into()]).unwrap()).unwrap();
        let real = at("re\\[al/live/*.mdb");
        assert_eq!(text, format!("{}\0{}\0logs/**\0", given.display(), real.display()));
        // What leads through no link is there once.
        assert_eq!(page(vec!["/usr/**".into()]).unwrap(), b"/usr/**\0");
    }

    #[test]
    fn patterns_that_are_too_long_together_are_refused() {
        assert!(page(vec!["x".repeat(EXCLUDES_BYTES_MAX - 1).into()]).is_ok());
        assert!(page(vec!["x".repeat(EXCLUDES_BYTES_MAX - 1).into(), "y".into()]).is_err());
    }
}
