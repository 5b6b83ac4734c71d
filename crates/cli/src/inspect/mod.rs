//! Commands that tell what runs left or do now, and `forebay doctor`, which tells what a run would do.

pub mod clean;
pub mod doctor;
mod logs;
pub mod ls;
pub mod measure;
pub mod metrics;
pub mod report;
pub mod show;
pub mod top;
