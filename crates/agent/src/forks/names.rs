//! Names of jobs, and what stands beside them in refusals.

use crate::forks::limits::JOB_NAME_BYTES_MAX;

/// Returns whether the name is a valid file name, and short enough for clones' suffixes.
pub(crate) fn is_name(job: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    job.len() <= JOB_NAME_BYTES_MAX && job.bytes().all(plain) && job.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
}

/// Returns the number of ranks in words.
pub(crate) fn ranks_text(ranks: usize) -> String {
    if ranks == 1 { "1 rank".into() } else { format!("{ranks} ranks") }
}
