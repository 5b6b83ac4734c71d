//! Key of a command: runs of it read the same files, as far as anybody can tell before they do.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::Path,
};

use forebay_contract::hash_bytes;
use forebay_settings::environment::Environment;

use crate::run::plan::Plan;

/// Returns the key of a command: of its program, its arguments, the sources and the working directory. Hosts are not in
/// it, since nodes of a cluster see a source under the same name.
pub fn of(plan: &Plan, program: &Path, words: &[OsString], environment: &Environment) -> String {
    let directory = environment.make_absolute(Path::new("."));
    let sources = plan.sources.found.iter().map(|source| source.dir.as_os_str());
    let words = words.iter().skip(1).map(OsString::as_os_str);
    let parts = [program.as_os_str(), directory.as_os_str()].into_iter().chain(sources);
    let mut digest = 0;
    // No argument and no path has a NUL, so no two commands are told alike.
    for part in parts.chain([OsStr::new("")]).chain(words) {
        digest = hash_bytes(digest, part.as_bytes());
        digest = hash_bytes(digest, b"\0");
    }
    format!("{digest:016x}")
}
