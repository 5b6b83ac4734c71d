//! Models of a machine, from measurements: how long a batch takes to read ([`load`]) and to preprocess
//! ([`preprocess`]) with a number of threads. `forebay profile` measures, [`crate::schedule::LobsterSchedule`] and the
//! planner ask.

pub mod decoding;
pub mod learned_reads;
pub mod load;
pub mod piecewise;
pub mod preprocess;
pub mod recent;
pub mod step_pace;

mod rank_threads;

pub use decoding::{LearnedDecoding, ProfiledDecoding};
pub use learned_reads::LearnedReads;
pub use load::{LoadModel, ThroughputCurve, extrapolated};
pub use piecewise::{FitError, PiecewiseLinear};
pub use preprocess::{Portfolio, Preprocessing};
pub use recent::Recent;
pub use step_pace::StepPace;
