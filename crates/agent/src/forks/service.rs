//! The forks role: hands each request to the registry, and carries out the effects that follow.

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::{Arc, Weak},
};

use forebay_state::SectionCache;
use rustix::{
    fs::{self, Mode, OFlags},
    rand::{GetRandomFlags, getrandom},
};
use zeroize::Zeroizing;

use super::{
    ForkConfig,
    digests::{Digests, RankState},
    page::JobPageFile,
    protocol::{ForkRequest, ForkResponse, ForkScope, is_sealed, text_of},
    read_lease::ReadLease,
    registry::{Effect, RankIdentity, Registry},
    secret_path, secrets_dir, socket_path,
};

use crate::{
    forks::limits::{FORK_IDLE_MAX, FORK_PEERS_MAX, STATE_DESCRIPTORS},
    host::{
        driver::{Host, HostSettings},
        error::{AgentError, io_error},
        lifecycle::live,
        private_dir::private_dir,
        refusal::{Refusal, RefusalKind},
        role::{Peer, Peers, Role},
    },
};

const SECRET_BYTES: usize = 32;

/// A published state of one rank: sealed descriptors of its manifest and its copied part, and the read lease on the
/// rest.
#[derive(Debug)]
struct PublishedState {
    descriptors: Vec<OwnedFd>,
    window: Option<ReadLease>,
}

type Effects = Vec<Effect<Arc<PublishedState>>>;

/// Runs the fork agent until no peer has been connected for a while.
///
/// # Errors
/// [`AgentError::AlreadyRunning`] if another one runs; else the error that ended it, which is also the last line of its
/// log.
pub fn serve(config: &ForkConfig) -> Result<(), AgentError> {
    let dir = config.forks_dir.as_path();
    live(dir, || {
        remove_secrets(dir)?;
        let host = Host::open(HostSettings {
            socket: socket_path(dir),
            peers_max: FORK_PEERS_MAX,
            idle_max: FORK_IDLE_MAX,
            sleep_max: FORK_IDLE_MAX,
        })?;
        tracing::info!("serving forks");
        host.run(&mut Forks::new(dir))
    })
}

/// Removes the secrets that a killed agent left.
fn remove_secrets(dir: &Path) -> Result<(), AgentError> {
    let secrets = secrets_dir(dir);
    private_dir(&secrets)?;
    for left in std::fs::read_dir(&secrets).map_err(io_error("list", &secrets))?.flatten() {
        let _ = fs::unlink(left.path());
    }
    Ok(())
}

struct Forks<'a> {
    dir: &'a Path,
    pages: HashMap<String, JobPageFile>,
    /// Published states by rank, as long as a fork needs them.
    published: HashMap<Peer, Vec<Weak<PublishedState>>>,
    /// Descriptors of [`ForkRequest::Layout`] by rank.
    layouts: HashMap<Peer, Vec<OwnedFd>>,
    sections: SectionCache,
    registry: Registry<Arc<PublishedState>>,
}

impl Role for Forks<'_> {
    type Request = ForkRequest;
    type Response = ForkResponse;

    fn hear(&mut self, peer: Peer, request: ForkRequest, descriptors: Vec<OwnedFd>, peers: &mut Peers) {
        let effects = match request {
            ForkRequest::Register {
                job,
                rank,
                ranks,
                rejoins,
                shadow,
                ..
            } => match new_number() {
                Ok(number) => {
                    let place = RankIdentity { job, rank, ranks, shadow };
                    self.registry.register(peer, number, place, rejoins)
                }
                Err(error) => refuse(peer, no_random_bytes(&error)),
            },
            // An unreadable manifest is compared with nothing.
            ForkRequest::Measured { bytes } => {
                let first = digests(&descriptors, Digests::replicated, &mut self.sections).ok();
                self.registry.measured(peer, bytes, first)
            }
            ForkRequest::Layout => {
                self.layouts.insert(peer, descriptors);
                Vec::new()
            }
            ForkRequest::Publish { forks, epoch, step } => self.publish(peer, &forks, (epoch, step), descriptors),
            ForkRequest::Abort { forks, why } => self.registry.withhold(peer, &forks, &why),
            ForkRequest::Fork {
                job, at, shadow, scope, ..
            } => self.fork(peer, &job, (at, shadow), scope),
            ForkRequest::Gathered { ranks } => self.registry.gathered(peer, &ranks),
            ForkRequest::Confirm => self.registry.confirm(peer),
            ForkRequest::Job { job } => self.job(peer, &job),
            ForkRequest::Progress => self.registry.outcome(peer),
            ForkRequest::Fetch { fork, rank, ranks, .. } => waiting(peer, self.registry.take(peer, fork, rank, ranks)),
            ForkRequest::Loaded => match digests(&descriptors, Digests::replicated, &mut self.sections).and_then(Digests::known) {
                Ok(replicated) => self.registry.loaded(peer, replicated),
                Err(why) => self.registry.failed(peer, &why),
            },
            ForkRequest::Repeated { forks } => match digests(&descriptors, Digests::all, &mut self.sections).and_then(Digests::known) {
                Ok(all) => self.registry.repeated(peer, &forks, &all),
                Err(why) if forks.is_empty() => self.registry.failed(peer, &why),
                Err(why) => self.registry.withhold(peer, &forks, &why),
            },
            ForkRequest::Failed { why } => self.registry.failed(peer, &why),
            ForkRequest::Jobs => self.jobs(peer),
        };
        self.carry_out(effects, peers);
    }

    fn gone(&mut self, peer: Peer, peers: &mut Peers) {
        self.layouts.remove(&peer);
        for state in self.published.remove(&peer).unwrap_or_default() {
            if let Some(window) = state.upgrade().as_ref().and_then(|state| state.window.as_ref()) {
                window.memory().abandon();
            }
        }
        let effects = self.registry.gone(peer);
        self.carry_out(effects, peers);
    }
}

impl<'a> Forks<'a> {
    fn new(dir: &'a Path) -> Self {
        Self {
            dir,
            pages: HashMap::new(),
            published: HashMap::new(),
            layouts: HashMap::new(),
            sections: SectionCache::default(),
            registry: Registry::default(),
        }
    }

    fn jobs(&self, peer: Peer) -> Effects {
        let mut jobs = self.registry.jobs();
        for job in &mut jobs {
            job.step = self.pages.get(&job.job).and_then(|page| page.page().step());
        }
        vec![Effect::Tell {
            to: peer,
            tell: ForkResponse::Jobs { jobs },
        }]
    }

    fn job(&self, peer: Peer, job: &str) -> Effects {
        let mut found = self.registry.ranks_here(job);
        found.step = self.pages.get(job).and_then(|page| page.page().step());
        vec![Effect::Tell {
            to: peer,
            tell: ForkResponse::Job(found),
        }]
    }

    /// Publishes a rank's state, captured after this step of this epoch.
    fn publish(&mut self, peer: Peer, forks: &[u64], (epoch, step): (u64, u64), descriptors: Vec<OwnedFd>) -> Effects {
        match PublishedState::received(descriptors, &mut self.sections) {
            Ok((replicated, state)) => {
                let state = self.keep(peer, state);
                let offer = RankState {
                    reader: 0,
                    epoch,
                    step,
                    replicated,
                    state,
                };
                self.registry.offer(peer, forks, &offer)
            }
            Err(why) => self.registry.withhold(peer, forks, &why),
        }
    }

    /// Begins a fork for a command.
    fn fork(&mut self, peer: Peer, job: &str, (at, shadow): (Option<u64>, Option<u32>), scope: ForkScope) -> Effects {
        let step = self.pages.get(job).and_then(|page| page.page().step());
        match (at, step, new_number()) {
            (Some(at), Some(step), _) if at <= step => refuse(peer, passed(job, at, step)),
            (_, _, Err(error)) => refuse(peer, no_random_bytes(&error)),
            (_, _, Ok(number)) => self.registry.fork(peer, number, job, at, shadow, scope),
        }
    }

    /// Keeps a rank's published state for as long as a fork needs it.
    fn keep(&mut self, rank: Peer, state: PublishedState) -> Arc<PublishedState> {
        let state = Arc::new(state);
        let published = self.published.entry(rank).or_default();
        published.retain(|state| state.strong_count() > 0);
        published.push(Arc::downgrade(&state));
        state
    }

    fn carry_out(&mut self, effects: Effects, peers: &mut Peers) {
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Open { job, secret } => self.open_job(&job, secret),
                Effect::Shut { job } => drop(self.pages.remove(&job)),
                Effect::Forget { secret } => {
                    let _ = fs::unlink(secret_path(self.dir, secret));
                }
                Effect::JobPage { to, job, secret } => match self.pages.get(&job) {
                    Some(page) => peers.send(to, &ForkResponse::Registered { secret }, &[page.file().descriptor()]),
                    None => peers.close(to, "its job has no page or secret"),
                },
                Effect::Want {
                    job,
                    fork,
                    at,
                    is_awaited,
                    shadow,
                    is_agreed,
                } => {
                    // The page has as many slots as the registry allows forks at the same time.
                    if let Some(page) = self.pages.get(&job) {
                        page.page().want(fork, at, is_awaited, shadow, is_agreed);
                        // Only now no rank can pass the step without seeing the request.
                        if let Some(step) = page.page().step().filter(|step| is_agreed && at <= *step) {
                            effects.extend(self.registry.refuse_all(fork, &passed(&job, at, step)));
                        }
                    }
                }
                Effect::Awaited { job, fork } => {
                    if let Some(page) = self.pages.get(&job) {
                        page.page().awaited(fork);
                    }
                }
                Effect::Unwant { job, fork } => {
                    if let Some(page) = self.pages.get(&job) {
                        page.page().unwant(fork);
                    }
                }
                Effect::Tell { to, tell } => {
                    let source = self.registry.source(to).filter(|_| tell == ForkResponse::Waiting);
                    let layout = source.and_then(|rank| self.layouts.get(&rank)).map_or(&[][..], Vec::as_slice);
                    let layout: Vec<_> = layout.iter().map(AsFd::as_fd).collect();
                    peers.send(to, &tell, &layout);
                }
                Effect::Give { to, tell, state, others } => {
                    let of_each = if others.is_empty() { usize::MAX } else { STATE_DESCRIPTORS };
                    let states = [&state].into_iter().chain(&others);
                    let descriptors: Vec<_> = states
                        .flat_map(|state| state.descriptors.iter().take(of_each))
                        .map(AsFd::as_fd)
                        .collect();
                    peers.send(to, &tell, &descriptors);
                }
                Effect::Leave { state, reader } => {
                    if let Some(window) = &state.window {
                        window.memory().leave(reader);
                    }
                }
            }
        }
    }

    /// Makes a job's page and secret. Without them no rank is registered, and the connections of its ranks close.
    fn open_job(&mut self, job: &str, secret: u64) {
        let made = write_secret(&secret_path(self.dir, secret)).and_then(|()| JobPageFile::create());
        match made {
            Ok(page) => drop(self.pages.insert(job.to_owned(), page)),
            Err(error) => tracing::error!("failed to make the page of job {job}: {error}"),
        }
    }
}

impl PublishedState {
    /// Checks the descriptors of a published state. Returns the digests of its replicated entries with it.
    fn received(descriptors: Vec<OwnedFd>, known: &mut SectionCache) -> Result<(Digests, Self), String> {
        // Either all of the state is copied, or a read lease, a copy-on-write buffer and the memory of the rest come
        // with it.
        let ([_, copied] | [_, copied, _, _, _, ..]) = descriptors.as_slice() else {
            return Err(missing());
        };
        is_sealed(copied)?;
        let replicated = digests(&descriptors, Digests::replicated, known)?;
        let window = descriptors.get(2).map(|window| ReadLease::open(window.try_clone()?, 0));
        let window = window
            .transpose()
            .map_err(|error| format!("its read lease is not usable: {error}"))?;
        Ok((replicated, Self { descriptors, window }))
    }
}

/// Refuses a fork at a step that is over.
fn passed(job: &str, at: u64, step: u64) -> Refusal {
    let why = format!("--at {at}: {job} is at step {step} already; name a later one, or next");
    Refusal::new(RefusalKind::Passed, why)
}

/// Inserts [`ForkResponse::Waiting`] after the effects on the page, and before the first answer.
fn waiting<S>(peer: Peer, mut effects: Vec<Effect<S>>) -> Vec<Effect<S>> {
    let is_said = |effect: &Effect<S>| matches!(effect, Effect::Tell { .. } | Effect::Give { .. });
    let at = effects.iter().position(is_said).unwrap_or(effects.len());
    let tell = ForkResponse::Waiting;
    effects.insert(at, Effect::Tell { to: peer, tell });
    effects
}

fn missing() -> String {
    "its descriptors are missing".into()
}

/// Reads digests from a state's manifest, which the first descriptor leads to.
fn digests(
    descriptors: &[OwnedFd],
    read: impl Fn(&[u8], &mut SectionCache) -> Result<Digests, String>,
    known: &mut SectionCache,
) -> Result<Digests, String> {
    let manifest = descriptors.first().ok_or_else(missing)?;
    read(&text_of(manifest)?, known).map_err(|why| format!("its manifest could not be read: {why}"))
}

fn write_secret(path: &Path) -> io::Result<()> {
    let mut secret = Zeroizing::new([0u8; SECRET_BYTES]);
    // The kernel returns so few bytes in one call, or none.
    getrandom(secret.as_mut_slice(), GetRandomFlags::empty())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::io::write(&file, secret.as_slice())?;
    Ok(())
}

/// Returns a random number: no earlier agent has given it to a peer.
fn new_number() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes) | 1)
}

fn no_random_bytes(error: &io::Error) -> Refusal {
    Refusal::new(RefusalKind::Exhausted, format!("the kernel gives no random bytes: {error}"))
}

fn refuse(to: Peer, refusal: Refusal) -> Effects {
    let tell = ForkResponse::Refused(refusal);
    vec![Effect::Tell { to, tell }]
}
