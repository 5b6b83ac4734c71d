//! Effects of the registry, which the service carries out.

use super::protocol::ForkResponse;
use crate::host::{refusal::Refusal, role::Peer};

/// An action that the service carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect<S> {
    /// Make a job's page, and its secret under this number.
    Open { job: String, secret: u64 },
    /// The job has ended: its page goes.
    Shut { job: String },
    /// Nobody needs this secret any more.
    Forget { secret: u64 },
    /// Answer that the rank is known, with the job's page.
    JobPage { to: Peer, job: String, secret: u64 },
    /// Ask the job's ranks for their states, from this step on, and for what they have `shadow` steps later; the
    /// clone is waiting for them, or will ask later.
    Want {
        job: String,
        fork: u64,
        at: u64,
        is_awaited: bool,
        shadow: u32,
        /// True if the step of the fork was agreed on by several hosts: no rank has to announce it.
        is_agreed: bool,
    },
    /// It is waiting now.
    Awaited { job: String, fork: u64 },
    /// They need no longer.
    Unwant { job: String, fork: u64 },
    /// Answer.
    Tell { to: Peer, tell: ForkResponse },
    /// Answer, with a state.
    Give {
        to: Peer,
        tell: ForkResponse,
        state: S,
        /// The other ranks' states, if the state is rank 0's for a clone of another number of ranks.
        others: Vec<S>,
    },
    /// Nobody reads a state any more as this reader.
    Leave { state: S, reader: u32 },
}

/// A rank's job and number.
#[derive(Clone, Debug)]
pub(crate) struct RankIdentity {
    pub(crate) job: String,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// Steps of shadow verification of the job's clones, unless their commands say otherwise.
    pub(crate) shadow: u32,
}

/// Effects of a message.
pub(super) type Effects<S> = Vec<Effect<S>>;

/// Returns an answer.
pub(super) fn tell<S>(to: Peer, tell: ForkResponse) -> Effect<S> {
    Effect::Tell { to, tell }
}

/// Returns a refusal.
pub(super) fn refuse<S>(to: Peer, refusal: impl Into<Refusal>) -> Effects<S> {
    vec![tell(to, ForkResponse::Refused(refusal.into()))]
}
