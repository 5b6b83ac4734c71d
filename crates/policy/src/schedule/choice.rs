//! Schedules by name, and their construction.

use super::{DaliLike, EarliestDeadline, FirstCome, ForebaySchedule, LobsterSchedule, NodeModel, Scheduler, Static};
use crate::names::named;

named! {
    /// A schedule by its name in plan files, in the arguments of the data loader, and on the loader agent's socket.
    "schedule" pub enum ScheduleName {
        /// Earliest deadline first over a shared pool, and decoding threads that move between ranks.
        Forebay = "forebay",
        /// Earliest deadline first over a shared pool.
        EarliestDeadline = "earliest_deadline",
        /// Lobster's Algorithm 1 with its errors corrected.
        Lobster = "lobster",
        /// Lobster's Algorithm 1 with the text's errors.
        LobsterAsWritten = "lobster_as_written",
        /// One queue in order of arrival.
        FirstCome = "first_come",
        /// An equal share of the threads for each rank.
        Static = "static",
        /// Three reading threads in order of arrival.
        DaliLike = "dali_like",
    }
}

impl ScheduleName {
    /// Builds the scheduler of a node with `threads` loading threads, for `ranks`. Lobster takes both from the `node`
    /// instead.
    pub fn build(self, threads: u32, ranks: u32, node: impl FnOnce() -> NodeModel) -> Box<dyn Scheduler> {
        match self {
            Self::FirstCome => Box::new(FirstCome::new(threads)),
            Self::Static => Box::new(Static::new(threads, ranks)),
            Self::LobsterAsWritten => Box::new(LobsterSchedule::as_written(node())),
            Self::Lobster => Box::new(LobsterSchedule::corrected(node())),
            Self::EarliestDeadline => Box::new(EarliestDeadline::new(threads)),
            Self::Forebay => Box::new(ForebaySchedule::new(threads, ranks, node().tau)),
            Self::DaliLike => Box::new(DaliLike::new(threads)),
        }
    }
}
