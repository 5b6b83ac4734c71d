//! Commands that tell what runs left or do now, and `forebay doctor`, which tells what a run would do.

pub mod clean;
pub mod doctor;
mod logs;
pub mod ls;
pub mod measure;
pub mod metrics;
pub mod report;
pub mod runs;
pub mod show;
pub mod top;

use std::path::Path;

use forebay_agent::{
    host::private_dir::is_private_dir,
    samples::{self, status::SamplesStatus},
};

/// Returns the status of the agent that serves this user's loaders on this node; `None` if none answers.
fn samples_of(runtime_dir: &Path) -> Option<SamplesStatus> {
    // A runtime directory that others may write to is not ours.
    is_private_dir(runtime_dir).then_some(())?;
    samples::client::status(&runtime_dir.join(samples::DIR)).ok()
}
