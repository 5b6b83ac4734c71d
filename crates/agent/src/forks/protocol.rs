//! What is said on the fork agent's socket: one JSON value a packet, descriptors beside it. `packet.rs` sends and receives it.

use serde::{Deserialize, Serialize};

/// Raised whenever what follows, or the page, changes.
pub(crate) const VERSION: u32 = 6;

/// What is said to the fork agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// From now on this connection is a rank of a job that can be forked. Answer: [`Tell::Registered`].
    Register {
        /// [`VERSION`].
        version: u32,
        /// The job's name.
        job: String,
        /// Which rank.
        rank: u32,
        /// How many there are.
        ranks: u32,
        /// It trains already, by the page of an earlier fork agent, and looks at this one's from [`Ask::Measured`] on.
        #[serde(default)]
        rejoins: bool,
        /// So many steps its clones take on probation, where their commands say nothing else.
        #[serde(default)]
        shadow: u32,
    },
    /// How large the state of a rank is, which looks at the page at its points. If a descriptor of what describes the state comes with it, all ranks are
    /// compared. No answer.
    Measured {
        /// Bytes.
        bytes: u64,
    },
    /// With this come descriptors of what describes how a rank's state will be, sealed, and of the memory in which its large tensors lie, instead of what was said before.
    /// No answer.
    Lying,
    /// A rank has taken its state for these forks: with it come descriptors of what describes it and of what was copied, both sealed; and where more is
    /// read in its place those of the window, of what is copied aside, and of the memory in which it lies. In a window the reader for each fork has the
    /// number of its place here. No answer.
    Offer {
        /// Which.
        forks: Vec<u64>,
        /// As the job counts.
        epoch: u64,
        /// As the job counts.
        step: u64,
    },
    /// A rank could not take its state for these forks. No answer.
    Withhold {
        /// Which.
        forks: Vec<u64>,
        /// Why, in words for a person.
        why: String,
    },
    /// A command wants a job to be forked; its connection is the fork's lease. Answer: [`Tell::Forking`].
    Fork {
        /// [`VERSION`].
        version: u32,
        /// Which job.
        job: String,
        /// Not before this step. Without one: at the first point at which all ranks of the clone are waiting.
        at: Option<u64>,
        /// So many steps the clone takes on probation. Without it: as many as the job says.
        #[serde(default)]
        shadow: Option<u32>,
    },
    /// How a command's fork stands. Answer: [`Tell::Outcome`].
    Outcome,
    /// A rank of a clone wants its state. Answers: [`Tell::Waiting`] at once, and as soon as all ranks of the job have taken it [`Tell::State`].
    Take {
        /// [`VERSION`].
        version: u32,
        /// Which fork.
        fork: u64,
        /// Which rank.
        rank: u32,
        /// How many the clone has.
        ranks: u32,
    },
    /// This rank of a clone has loaded and checked its state; with this comes a descriptor of what describes it, each digest in it. Answer, as soon as all
    /// ranks have: [`Tell::Exists`], or [`Tell::Probation`].
    Loaded,
    /// A rank of a job has taken the steps since these forks, or, without naming one, a rank of a clone on probation has: with this comes a descriptor of
    /// what describes its state now, each digest in it. The clone's rank is answered, as soon as all have: [`Tell::Exists`].
    Repeated {
        /// Which.
        forks: Vec<u64>,
    },
    /// This rank of a clone could not load its state: there will be no clone. No answer.
    Failed {
        /// Why, in words for a person.
        why: String,
    },
    /// Which jobs can be forked. Answer: [`Tell::Jobs`].
    Jobs,
}

/// What the fork agent answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "tell", rename_all = "snake_case")]
pub enum Tell {
    /// The rank is known; with this comes a descriptor of the job's page.
    Registered {
        /// Number of the job's secret.
        secret: u64,
    },
    /// The fork is under way.
    Forking {
        /// Its number.
        fork: u64,
        /// The clone's name.
        name: String,
        /// How many ranks the job has.
        ranks: u32,
        /// So many steps the clone takes on probation.
        shadow: u32,
        /// Number of the job's secret.
        secret: u64,
    },
    /// How a fork stands.
    Outcome(Outcome),
    /// The state will come; with this come the descriptors of [`Ask::Lying`] of the same rank of the job, if it has said so and the clone has as many
    /// ranks: to get ready for it, and to read there; by the time of the state others may have taken their place.
    Waiting,
    /// A state; with this come the descriptors of [`Ask::Offer`], of the same rank of the job. Where the job has another number of ranks it is rank 0's, with no
    /// window, and one descriptor for each other rank follows, of what describes its state.
    State {
        /// The clone's name.
        name: String,
        /// Its number as a reader of the window.
        reader: u32,
        /// How many ranks the job has.
        ranks: u32,
    },
    /// All ranks of the clone have their states: they are to take the steps of their probation, and to say what they have then.
    Probation,
    /// All ranks of the clone have their states, and have passed what else was asked for.
    Exists,
    /// Jobs that can be forked.
    Jobs {
        /// In the order of their names.
        jobs: Vec<Job>,
    },
    /// No, or no more.
    Refused {
        /// Why, in words for a person.
        why: String,
    },
}

/// How a fork stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// A rank of the clone has asked for its state.
    pub asked: bool,
    /// How many ranks the clone has; 0 as long as none has come.
    pub ranks: u32,
    /// How many of them have come.
    pub here: u32,
    /// All ranks of the job have taken their states.
    pub taken: bool,
    /// How many ranks of the clone have loaded and checked theirs.
    pub loaded: u32,
    /// The clone exists, or has failed.
    pub is_over: bool,
}

/// A job that can be forked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its name.
    pub job: String,
    /// How many ranks it has.
    pub ranks: u32,
    /// How many of them are on this node and train.
    pub ranks_here: u32,
    /// The step of the last point of rank 0; `None` before the first.
    pub step: Option<u64>,
    /// Bytes of the state, of all ranks that are here and have come to a point.
    pub bytes: u64,
    /// Clones that came to be.
    pub clones: u64,
}
