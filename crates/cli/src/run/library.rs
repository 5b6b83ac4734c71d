//! The preload library, and how a program comes to it.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use forebay_settings::{
    config::{Setting, SettingOrigin},
    environment::Environment,
    user_error::UserError,
};
use rustix::fs::StatVfsMountFlags;

use crate::run::elf::{Executable, examine};

/// The library's file name.
const NAME: &str = "libforebay_preload.so";
/// The audit library's file name.
const AUDIT_NAME: &str = "libforebay_audit.so";
/// The loader's variable.
pub const LD_PRELOAD: &str = "LD_PRELOAD";
/// The loader's variable for audit libraries.
pub const LD_AUDIT: &str = "LD_AUDIT";
/// The loader's variable for its own settings.
pub const GLIBC_TUNABLES: &str = "GLIBC_TUNABLES";
/// Setting of the loader: bytes of thread-local storage for libraries that come late. With an audit library all do,
/// also those that the program is linked with, and an allocator such as jemalloc needs some 3 KiB. More would leave
/// too little of the smallest stack that a thread may have.
const LATE_STORAGE: (&str, u32) = ("glibc.rtld.optional_static_tls", 4096);
/// AddressSanitizer's variable.
pub const ASAN_OPTIONS: &str = "ASAN_OPTIONS";
/// AddressSanitizer's runtime ends every program that loads another library before it, unless this option is off.
const ASAN_ORDER: &str = "verify_asan_link_order";

/// Finds the library: where it was named, else at its place beside the running command (`exe`), as
/// installed, or as built by a developer.
///
/// # Errors
/// When there is none, or none that a program of this machine could load.
pub fn find(named: &Setting<Option<PathBuf>>, exe: &Path) -> Result<PathBuf, UserError> {
    let found = match &named.value {
        Some(path) if path.is_file() => path.clone(),
        Some(path) => {
            let line = format!("{}: {} does not exist; unset it, or name {NAME}", named.origin, path.display());
            return Err(UserError::bad_input(line));
        }
        None => {
            let dir = exe.parent().unwrap_or(Path::new("/"));
            let places = [
                dir.join(NAME),
                dir.join("../lib/forebay").join(NAME),
                dir.join("../preload").join(NAME),
            ];
            let missing = || {
                let line = format!(
                    "{NAME} is not where it was installed, {}; install forebay again",
                    places[1].display()
                );
                UserError::bad_input(line)
            };
            places.iter().find(|path| path.is_file()).ok_or_else(missing)?.clone()
        }
    };
    let path = found.canonicalize().unwrap_or(found);
    let refuse = |why: &str| UserError::bad_input(format_args!("{} {why}; install forebay again", path.display()));
    match examine(&path) {
        // A library names no loader.
        Ok(Executable::Static) => {}
        Ok(_) => return Err(refuse("is not a library of this machine")),
        Err(error) => return Err(refuse(&format!("can't be read ({error})"))),
    }
    let flags = rustix::fs::statvfs(&path).map_or(StatVfsMountFlags::empty(), |stat| stat.f_flag);
    if flags.contains(StatVfsMountFlags::NOEXEC) {
        return Err(refuse("is on a file system without executables (noexec)"));
    }
    Ok(path)
}

/// Finds the audit library, beside the preload library.
///
/// # Errors
/// When there is none.
pub fn find_audit(preload: &Path, wanted_by: &SettingOrigin) -> Result<PathBuf, UserError> {
    let path = preload.with_file_name(AUDIT_NAME);
    if path.is_file() {
        return Ok(path);
    }
    let line = format!(
        "{wanted_by}: shared libraries can't be served without {}, which does not exist; install forebay again",
        path.display()
    );
    Err(UserError::bad_input(line))
}

/// The library under a name that can stand in `LD_PRELOAD`, which blanks and colons would end: a link in `dir` if
/// need be.
///
/// # Errors
/// When no such link can be made.
pub fn plain_name(library: &Path, dir: &Path) -> Result<PathBuf, UserError> {
    let odd = |path: &Path| path.as_os_str().as_bytes().iter().any(|byte| b" \t\n:$".contains(byte));
    if !odd(library) {
        return Ok(library.to_owned());
    }
    let link = dir.join(format!(
        "preload-{:016x}.so",
        forebay_contract::hash_bytes(0, library.as_os_str().as_bytes())
    ));
    if !odd(&link) {
        match std::os::unix::fs::symlink(library, &link) {
            Ok(()) => return Ok(link),
            Err(_) if fs::read_link(&link).is_ok_and(|target| target == library) => return Ok(link),
            Err(_) => {}
        }
    }
    let line = format!(
        "{} has a blank, a colon or a dollar sign in its name, which LD_PRELOAD can't hold; install forebay elsewhere",
        library.display()
    );
    Err(UserError::bad_input(line))
}

/// `LD_PRELOAD` or `LD_AUDIT` for the program: what is there, then the library, unless it is there already (a run
/// inside a run).
pub fn with_library(environment: &Environment, variable: &str, library: &Path) -> OsString {
    let mut value = environment.get(variable).unwrap_or_default().to_owned();
    if entries(&value).iter().any(|entry| is_same_file(entry, library)) {
        return value;
    }
    if !value.is_empty() {
        value.push(":");
    }
    value.push(library);
    value
}

/// `GLIBC_TUNABLES` with which a program starts beside the audit library; `None` where it says already what is set.
pub fn tunables(environment: &Environment) -> Option<OsString> {
    let mut value = environment.get(GLIBC_TUNABLES).unwrap_or_default().to_owned();
    let (name, bytes) = LATE_STORAGE;
    if value.to_string_lossy().contains(name) {
        return None;
    }
    if !value.is_empty() {
        value.push(":");
    }
    value.push(format!("{name}={bytes}"));
    Some(value)
}

/// `ASAN_OPTIONS` with which a program that is built with AddressSanitizer starts behind our library; `None` where
/// its order is spoken of already. The check is there for libraries that allocate or bring an allocator, and ours
/// does neither.
pub fn asan_options(environment: &Environment) -> Option<OsString> {
    let mut value = environment.get(ASAN_OPTIONS).unwrap_or_default().to_owned();
    if value.to_string_lossy().contains(ASAN_ORDER) {
        return None;
    }
    if !value.is_empty() {
        value.push(":");
    }
    value.push(ASAN_ORDER);
    value.push("=0");
    Some(value)
}

/// Returns the other libraries that are preloaded.
pub fn others(environment: &Environment) -> Vec<PathBuf> {
    let all = entries(environment.get(LD_PRELOAD).unwrap_or_default());
    all.into_iter()
        .filter(|entry| entry.file_name() != Some(OsStr::new(NAME)))
        .collect()
}

fn entries(value: &OsStr) -> Vec<PathBuf> {
    let words = value.as_bytes().split(|byte| b" :".contains(byte));
    words
        .filter(|word| !word.is_empty())
        .map(|word| PathBuf::from(OsStr::from_bytes(word)))
        .collect()
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    one == other || identity(one).is_some_and(|found| Some(found) == identity(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_libraries_are_kept_and_ours_comes_last_and_once() {
        let ours = Path::new("/lib/forebay/libforebay_preload.so");
        let with = |value: &str| {
            with_library(&Environment::of([(LD_PRELOAD, value)]), LD_PRELOAD, ours)
                .into_string()
                .unwrap()
        };
        assert_eq!(with(""), "/lib/forebay/libforebay_preload.so");
        assert_eq!(
            with("libjemalloc.so /x.so"),
            "libjemalloc.so /x.so:/lib/forebay/libforebay_preload.so"
        );
        let nested = with("/x.so");
        assert_eq!(with(&nested), nested);
        let others = others(&Environment::of([(LD_PRELOAD, nested.as_str())]));
        assert_eq!(others, [Path::new("/x.so")]);
    }

    #[test]
    fn settings_of_the_loader_are_kept() {
        let with = |value: &str| tunables(&Environment::of([(GLIBC_TUNABLES, value)])).map(|value| value.into_string().unwrap());
        assert_eq!(with("").unwrap(), "glibc.rtld.optional_static_tls=4096");
        let kept = with("glibc.malloc.check=3").unwrap();
        assert_eq!(kept, "glibc.malloc.check=3:glibc.rtld.optional_static_tls=4096");
        assert_eq!(with("glibc.rtld.optional_static_tls=900000"), None);
    }

    #[test]
    fn an_audit_library_of_others_is_kept() {
        let set = with_library(&Environment::of([(LD_AUDIT, "/theirs.so")]), LD_AUDIT, Path::new("/ours.so"));
        assert_eq!(set, "/theirs.so:/ours.so");
    }

    #[test]
    fn options_of_the_address_sanitizer_are_kept() {
        let with = |value: &str| asan_options(&Environment::of([(ASAN_OPTIONS, value)])).map(|value| value.into_string().unwrap());
        assert_eq!(with("").unwrap(), "verify_asan_link_order=0");
        assert_eq!(with("exitcode=3").unwrap(), "exitcode=3:verify_asan_link_order=0");
        assert_eq!(with("exitcode=3:verify_asan_link_order=1"), None);
    }

    #[test]
    fn a_name_that_the_loader_would_split_is_linked_to() {
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("my project/libforebay_preload.so");
        let link = plain_name(&odd, dir.path()).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), odd);
        assert_eq!(plain_name(&odd, dir.path()).unwrap(), link);
        assert_eq!(plain_name(Path::new("/x.so"), dir.path()).unwrap(), Path::new("/x.so"));
        assert_eq!(plain_name(&odd, Path::new("/a b")).unwrap_err().status, 2);
    }
}
