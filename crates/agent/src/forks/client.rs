//! The other side of the fork agent: a rank of a job, a command that wants a clone, a rank of a clone.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use forebay_contract::CONTRACT_VERSION;

use super::{
    ForkConfig,
    page::{BoundaryRequests, JobPageFile},
    protocol::{ForkProgress, ForkRequest, ForkResponse, ForkScope, ForkableJob, JobRanks},
    secret_path, socket_path,
};

use crate::{
    forks::limits::{FORK_REPLY_MAX, FORK_SEND_MAX},
    host::start::{Starter, start_until},
    host::{
        connection,
        error::{AgentError, silent},
        private_dir::private_dir,
    },
};

/// Makes the fork agent's directory, and starts the agent if none runs.
///
/// # Errors
/// When the directory is refused, or no agent answers in time.
pub fn start(config: &ForkConfig, by: Starter<'_>) -> Result<(), AgentError> {
    private_dir(&config.forks_dir)?;
    start_until(config, by, || ForkConnection::open(&config.forks_dir).ok()).map(drop)
}

/// The jobs that can be forked.
///
/// # Errors
/// When no fork agent stands.
pub fn jobs(dir: &Path) -> Result<Vec<ForkableJob>, AgentError> {
    match ForkConnection::open(dir)?.ask(&ForkRequest::Jobs)? {
        (ForkResponse::Jobs { jobs }, _) => Ok(jobs),
        (other, _) => Err(unexpected(&other)),
    }
}

/// The ranks of a job on this host; none if no such job trains here.
///
/// # Errors
/// When no fork agent stands.
pub fn ranks_here(dir: &Path, job: &str) -> Result<JobRanks, AgentError> {
    match ForkConnection::open(dir)?.ask(&ForkRequest::Job { job: job.to_owned() })? {
        (ForkResponse::Job(found), _) => Ok(found),
        (other, _) => Err(unexpected(&other)),
    }
}

/// A rank of a job that can be forked, for as long as this lives.
#[derive(Debug)]
pub struct ForkRank {
    connection: ForkConnection,
    page: JobPageFile,
    number: u32,
    /// Path of the job's secret.
    secret: PathBuf,
    /// Forks that this rank has answered, as long as they stand on the page.
    answered: Vec<u64>,
}

impl ForkRank {
    /// Registers a rank of a job. One that trains already, and whose earlier fork agent is gone, *rejoins*: it looks
    /// at the page that it gets here only once it has said how large its state is. Its clones take `shadow` steps of
    /// shadow verification, where their commands say nothing else.
    ///
    /// # Errors
    /// No fork agent stands, or it refuses, or does not answer in time.
    pub fn register(dir: &Path, job: &str, rank: u32, ranks: u32, rejoins: bool, shadow: u32) -> Result<Self, AgentError> {
        let connection = ForkConnection::open(dir)?;
        let ask = ForkRequest::Register {
            version: CONTRACT_VERSION,
            job: job.to_owned(),
            rank,
            ranks,
            rejoins,
            shadow,
        };
        match connection.ask(&ask)? {
            (ForkResponse::Registered { secret }, mut descriptors) if descriptors.len() == 1 => {
                let page = JobPageFile::open(descriptors.remove(0)).map_err(|error| AgentError::Protocol(error.to_string()))?;
                Ok(Self {
                    connection,
                    page,
                    number: rank,
                    secret: secret_path(dir, secret),
                    answered: Vec::new(),
                })
            }
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Returns the forks requested at a step boundary. `point` counts from 1, alike in all ranks; the rank needs
    /// `ahead` points to prepare for a fork, and looks `sight` points ahead. Makes no system call.
    pub fn due(&mut self, point: u64, step: u64, ahead: u64, sight: u64) -> BoundaryRequests {
        let mut due = self.page.due(self.number, point, step, ahead, sight);
        self.answered.retain(|fork| due.forks.iter().any(|wanted| wanted.fork == *fork));
        due.forks.retain(|wanted| !self.answered.contains(&wanted.fork));
        self.answered.extend(due.forks.iter().map(|wanted| wanted.fork));
        due
    }

    /// Returns the path of the job's secret.
    pub fn secret(&self) -> &Path {
        &self.secret
    }

    /// Returns whether the fork agent is running: without it this rank can't be forked any more.
    pub fn is_served(&self) -> bool {
        self.connection.0.is_served()
    }

    /// Hands over the state that was taken for these forks, by the descriptors of [`ForkRequest::Publish`].
    ///
    /// # Errors
    /// The fork agent is gone, or does not take it in time.
    pub fn offer(&self, forks: Vec<u64>, epoch: u64, step: u64, state: &[BorrowedFd<'_>]) -> Result<(), AgentError> {
        self.connection.send(&ForkRequest::Publish { forks, epoch, step }, state)
    }

    /// Says how large this rank's state is, and that it looks at the page at its points; with what describes the
    /// state, if all ranks are to be compared.
    ///
    /// # Errors
    /// The fork agent is gone.
    pub fn measured(&self, bytes: u64, text: Option<BorrowedFd<'_>>) -> Result<(), AgentError> {
        self.connection.send(&ForkRequest::Measured { bytes }, text.as_slice())
    }

    /// Says what this rank's state is like, and in which memory its large tensors lie, by the descriptors of
    /// [`ForkRequest::Layout`].
    ///
    /// # Errors
    /// The fork agent is gone, or does not take it in time.
    pub fn lying(&self, descriptors: &[BorrowedFd<'_>]) -> Result<(), AgentError> {
        self.connection.send(&ForkRequest::Layout, descriptors)
    }

    /// Says what this rank has so many steps after these forks, by a descriptor of what describes its state now.
    ///
    /// # Errors
    /// The fork agent is gone, or does not take it in time.
    pub fn repeated(&self, forks: Vec<u64>, text: BorrowedFd<'_>) -> Result<(), AgentError> {
        self.connection.send(&ForkRequest::Repeated { forks }, &[text])
    }

    /// Says why no state could be taken for these forks.
    ///
    /// # Errors
    /// The fork agent is gone.
    pub fn withhold(&self, forks: Vec<u64>, why: &str) -> Result<(), AgentError> {
        let why = why.to_owned();
        self.connection.send(&ForkRequest::Abort { forks, why }, &[])
    }
}

/// A fork that a command wants, for as long as this lives.
#[derive(Debug)]
pub struct Forking {
    connection: ForkConnection,
    /// Its number.
    pub fork: u64,
    /// The clone's name.
    pub name: String,
    /// Number of the job's ranks.
    pub ranks: u32,
    /// Steps of shadow verification; 0: none.
    pub shadow: u32,
    /// Path of the job's secret.
    pub secret: PathBuf,
    /// Ranks of the fork that are on this host; empty until they are known.
    pub here: Vec<u32>,
}

impl Forking {
    /// Requests a fork of a job, not before step `at`. Its clone takes `shadow` steps of shadow verification, or as
    /// many as the job says.
    ///
    /// # Errors
    /// No fork agent stands, or it refuses.
    pub fn begin(dir: &Path, job: &str, at: Option<u64>, shadow: Option<u32>, scope: ForkScope) -> Result<Self, AgentError> {
        let connection = ForkConnection::open(dir)?;
        let ask = ForkRequest::Fork {
            version: CONTRACT_VERSION,
            job: job.to_owned(),
            at,
            shadow,
            scope,
        };
        match connection.ask(&ask)? {
            (
                ForkResponse::Forking {
                    fork,
                    name,
                    ranks,
                    shadow,
                    secret,
                    here,
                },
                _,
            ) => Ok(Self {
                connection,
                fork,
                name,
                ranks,
                shadow,
                secret: secret_path(dir, secret),
                here,
            }),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Says which ranks of the clone are on this host, for a fork of [`ForkScope::Arriving`].
    ///
    /// # Errors
    /// The fork agent is gone.
    pub fn gathered(&self, ranks: Vec<u32>) -> Result<(), AgentError> {
        self.connection.send(&ForkRequest::Gathered { ranks }, &[])
    }

    /// Says that the ranks of the clone on other hosts have loaded their states.
    ///
    /// # Errors
    /// The fork agent is gone.
    pub fn confirm(&self) -> Result<(), AgentError> {
        self.connection.send(&ForkRequest::Confirm, &[])
    }

    /// Requests the progress of the fork.
    ///
    /// # Errors
    /// The fork agent is gone.
    pub fn outcome(&self) -> Result<ForkProgress, AgentError> {
        match self.connection.ask(&ForkRequest::Progress)? {
            (ForkResponse::Progress(outcome), _) => Ok(outcome),
            (other, _) => Err(unexpected(&other)),
        }
    }
}

/// A rank of a clone that is to be.
#[derive(Debug)]
pub struct Taking {
    connection: ForkConnection,
    described_ahead: Option<OwnedFd>,
    lying: Mutex<Vec<OwnedFd>>,
}

/// A rank's state, as its clone gets it.
#[derive(Debug)]
pub struct Taken {
    /// The clone's name.
    pub name: String,
    /// Its number as a reader of the state's window.
    pub reader: u32,
    /// The descriptors of [`ForkResponse::State`].
    pub state: Vec<OwnedFd>,
    /// Number of the job's ranks.
    pub ranks: u32,
}

impl Taking {
    /// Asks for the state of a rank.
    ///
    /// # Errors
    /// No fork agent stands, or it does not answer in time.
    pub fn begin(dir: &Path, fork: u64, rank: u32, ranks: u32) -> Result<Self, AgentError> {
        let connection = ForkConnection::open(dir)?;
        let version = CONTRACT_VERSION;
        let ask = ForkRequest::Fetch {
            version,
            fork,
            rank,
            ranks,
        };
        match connection.ask(&ask)? {
            (ForkResponse::Waiting, descriptors) => {
                let mut descriptors = descriptors.into_iter();
                Ok(Self {
                    connection,
                    described_ahead: descriptors.next(),
                    lying: Mutex::new(descriptors.collect()),
                })
            }
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Returns the descriptor of the schema that the same rank of the job had published when this connection was
    /// made, if any.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn described_ahead(&self) -> io::Result<Option<OwnedFd>> {
        self.described_ahead.as_ref().map(OwnedFd::try_clone).transpose()
    }

    /// The memory in which large tensors of the same rank of the job lay when this was begun, as far as that is
    /// known; once.
    pub fn lying(&self) -> Vec<OwnedFd> {
        std::mem::take(&mut *self.lying.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for the state, no longer than this; `None` if it has not come.
    ///
    /// # Errors
    /// The fork has failed; the reason is told.
    pub fn state(&self, wait: Duration) -> Result<Option<Taken>, AgentError> {
        let Some((tell, descriptors)) = self.connection.hear(wait)? else {
            return Ok(None);
        };
        match tell {
            ForkResponse::State { name, reader, ranks } => Ok(Some(Taken {
                name,
                reader,
                state: descriptors,
                ranks,
            })),
            other => Err(unexpected(&other)),
        }
    }

    /// Says that the state is loaded and checked, and hands over what describes it, each digest in it.
    ///
    /// # Errors
    /// The fork agent is gone.
    pub fn loaded(&self, text: BorrowedFd<'_>) -> Result<(), AgentError> {
        self.connection.send(&ForkRequest::Loaded, &[text])
    }

    /// Says why it could not be loaded.
    ///
    /// # Errors
    /// The fork agent is gone.
    pub fn failed(&self, why: &str) -> Result<(), AgentError> {
        self.connection.send(&ForkRequest::Failed { why: why.to_owned() }, &[])
    }

    /// Says what this rank has after the steps of its shadow verification.
    ///
    /// # Errors
    /// The fork agent is gone.
    pub fn repeated(&self, text: BorrowedFd<'_>) -> Result<(), AgentError> {
        self.connection.send(&ForkRequest::Repeated { forks: Vec::new() }, &[text])
    }

    /// Waits, no longer than this, until all ranks of the clone have loaded their states. Returns whether shadow
    /// verification has begun.
    ///
    /// # Errors
    /// The fork has failed; the reason is told.
    pub fn begins(&self, wait: Duration) -> Result<bool, AgentError> {
        self.is_told(&ForkResponse::Shadow, wait)
    }

    /// Waits until the clone exists: all of its ranks have loaded their states, and have passed what else was asked
    /// for. No longer than this; whether it does.
    ///
    /// # Errors
    /// The fork has failed; the reason is told.
    pub fn exists(&self, wait: Duration) -> Result<bool, AgentError> {
        self.is_told(&ForkResponse::Exists, wait)
    }

    fn is_told(&self, expected: &ForkResponse, wait: Duration) -> Result<bool, AgentError> {
        match self.connection.hear(wait)? {
            None => Ok(false),
            Some((told, _)) if told == *expected => Ok(true),
            Some((other, _)) => Err(unexpected(&other)),
        }
    }
}

/// A connection to the fork agent.
#[derive(Debug)]
struct ForkConnection(connection::Connection);

impl ForkConnection {
    fn open(dir: &Path) -> Result<Self, AgentError> {
        connection::Connection::open(&socket_path(dir), FORK_SEND_MAX).map(Self)
    }

    fn send(&self, ask: &ForkRequest, descriptors: &[BorrowedFd<'_>]) -> Result<(), AgentError> {
        self.0.send(ask, descriptors)
    }

    fn ask(&self, ask: &ForkRequest) -> Result<(ForkResponse, Vec<OwnedFd>), AgentError> {
        self.send(ask, &[])?;
        self.hear(FORK_REPLY_MAX)?.ok_or_else(|| silent(FORK_REPLY_MAX, self.0.pid()))
    }

    /// Returns the agent's next message, if one comes within this time.
    fn hear(&self, wait: Duration) -> Result<Option<(ForkResponse, Vec<OwnedFd>)>, AgentError> {
        match self.0.hear(wait)? {
            Some((ForkResponse::Refused(refusal), _)) => Err(AgentError::Refused(refusal)),
            told => Ok(told),
        }
    }
}

fn unexpected(tell: &ForkResponse) -> AgentError {
    AgentError::Protocol(format!("{tell:?}"))
}
