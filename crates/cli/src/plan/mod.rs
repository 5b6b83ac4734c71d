//! Commands that predict a cache's gain: `forebay profile` measures a node, `forebay plan` simulates the job.

pub mod planner;
pub mod profile;
