//! Names of jobs, and what stands beside them in refusals.

use crate::forks::limits::JOB_NAME_BYTES_MAX;

/// Returns whether the name is a valid file name, and short enough for clones' suffixes.
pub(crate) fn is_name(job: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    job.len() <= JOB_NAME_BYTES_MAX && job.bytes().all(plain) && job.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
}

/// Returns the name of a job as it is registered at the host of a clone on another host: nobody can choose it for a
/// job, and it differs from command to command.
pub(crate) fn guest_name(job: &str) -> String {
    format!("{job}@{}", std::process::id())
}

/// Returns the name that a guest has at its own host; `None` unless the name is one of [`guest_name`].
pub(crate) fn name_of_guest(name: &str) -> Option<&str> {
    let (job, process) = name.split_once('@')?;
    (is_name(job) && process.len() <= 10 && process.bytes().all(|byte| byte.is_ascii_digit())).then_some(job)
}

/// Returns the number of ranks in words.
pub(crate) fn ranks_text(ranks: usize) -> String {
    if ranks == 1 { "1 rank".into() } else { format!("{ranks} ranks") }
}
