//! The fork agent's one thread: waits for packets, asks the registry what follows, and does it.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::{Arc, Weak},
    time::Instant,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{self, Mode, OFlags, SealFlags},
    io::Errno,
    process::{Resource, Rlimit, setrlimit},
    rand::{GetRandomFlags, getrandom},
};
use zeroize::Zeroizing;

use super::{
    ForkConfig,
    agreement::{Digests, Offer, Sections},
    page::Page,
    protocol::{Ask, Tell, VERSION},
    registry::{Effect, Peer, Place, Registry},
    secret_path, secrets_dir, socket_path,
    window::Window,
};

use crate::{
    forks::limits::{FORK_IDLE_MAX, FORK_PEERS_MAX, FORK_TEXT_BYTES_MAX},
    host::lock::lock,
    host::{
        admission::Admission,
        clock::timespec,
        connection::listening,
        error::{AgentError, io_error},
        log::Log,
        packet,
        private_dir::private_dir,
    },
};

const SECRET_BYTES: usize = 32;

/// A rank's state as it travels: what describes it and what was copied, both sealed, so that nobody can change them any more; and what is read in its place.
#[derive(Debug)]
struct State {
    descriptors: Vec<OwnedFd>,
    window: Option<Window>,
}

/// Runs the fork agent until nobody has been connected for a while.
///
/// # Errors
/// [`AgentError::AlreadyRunning`] if one stands; else what kept it from starting, which is also the last line of its log.
pub fn serve(config: &ForkConfig) -> Result<(), AgentError> {
    let dir = &config.forks_dir;
    let _ = rustix::process::setsid();
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    // It holds secrets.
    let _ = setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    );
    crate::host::shared::raise_descriptor_limit();
    private_dir(dir)?;
    let _lock = lock(dir)?;
    let log = Log::create(dir)?;
    let result = Service::open(dir, log.clone()).and_then(Service::run);
    if let Err(error) = &result {
        log.line(&error.to_string());
    }
    let _ = fs::unlink(socket_path(dir));
    result
}

struct Service<'a> {
    dir: &'a Path,
    log: Log,
    listener: OwnedFd,
    admission: Admission,
    peers: BTreeMap<Peer, OwnedFd>,
    next_peer: Peer,
    pages: HashMap<String, Page>,
    /// Of each rank the states that it has offered and that are in use.
    offered: HashMap<Peer, Vec<Weak<State>>>,
    /// What describes how the state of each rank will be, and the memory in which its large tensors lie.
    lying: HashMap<Peer, Vec<OwnedFd>>,
    sections: Sections,
    registry: Registry<Arc<State>>,
}

impl<'a> Service<'a> {
    fn open(dir: &'a Path, log: Log) -> Result<Self, AgentError> {
        let secrets = secrets_dir(dir);
        private_dir(&secrets)?;
        // Of an agent that was killed.
        for left in std::fs::read_dir(&secrets).map_err(io_error("list", &secrets))?.flatten() {
            let _ = fs::unlink(left.path());
        }
        let listener = listening(&socket_path(dir))?;
        log.line("serving forks");
        Ok(Self {
            dir,
            log,
            listener,
            admission: Admission::new(FORK_PEERS_MAX),
            peers: BTreeMap::new(),
            next_peer: 0,
            pages: HashMap::new(),
            offered: HashMap::new(),
            lying: HashMap::new(),
            sections: Sections::default(),
            registry: Registry::default(),
        })
    }

    fn run(mut self) -> Result<(), AgentError> {
        let mut idle_since = Instant::now();
        loop {
            let ready = self.wait()?;
            // Those who have gone first: one that comes may be their successor, under the same name.
            for peer in ready {
                self.hear(peer);
            }
            self.accept();
            if !self.peers.is_empty() {
                idle_since = Instant::now();
            } else if idle_since.elapsed() >= FORK_IDLE_MAX {
                return Ok(());
            }
        }
    }

    /// Connections on which something has come.
    fn wait(&self) -> Result<Vec<Peer>, AgentError> {
        let now = Instant::now();
        let mut polled: Vec<_> = self.peers.values().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        if self.admission.is_open(self.peers.len(), now) {
            polled.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        let pause = timespec(self.admission.wait(now, FORK_IDLE_MAX));
        match poll(&mut polled, Some(&pause)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(io_error("wait on", &socket_path(self.dir))(errno.into())),
        }
        let ready = self.peers.keys().zip(&polled).filter(|(_, polled)| !polled.revents().is_empty());
        Ok(ready.map(|(peer, _)| *peer).collect())
    }

    fn accept(&mut self) {
        for socket in self.admission.accept(&self.listener, self.peers.len(), &self.log) {
            self.next_peer += 1;
            self.peers.insert(self.next_peer, socket);
        }
    }

    fn hear(&mut self, peer: Peer) {
        let Some(socket) = self.peers.get(&peer) else { return };
        let effects = match packet::receive::<Ask>(socket) {
            Ok(Some((ask, descriptors))) => self.answer(peer, ask, descriptors),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Ok(None) | Err(_) => return self.part(peer),
        };
        self.carry_out(effects);
    }

    fn answer(&mut self, peer: Peer, ask: Ask, descriptors: Vec<OwnedFd>) -> Vec<Effect<Arc<State>>> {
        let refuse = |why: String| {
            vec![Effect::Tell {
                to: peer,
                tell: Tell::Refused { why },
            }]
        };
        if let Ask::Register { version, .. } | Ask::Fork { version, .. } | Ask::Take { version, .. } = &ask
            && *version != VERSION
        {
            return refuse("the fork agent is of another version of Forebay: use one version, or wait until its jobs have ended".into());
        }
        match ask {
            Ask::Register {
                job,
                rank,
                ranks,
                rejoins,
                shadow,
                ..
            } => match new_number() {
                Ok(number) => {
                    let place = Place { job, rank, ranks, shadow };
                    self.registry.register(peer, number, place, rejoins)
                }
                Err(error) => refuse(format!("the kernel gives no random bytes: {error}")),
            },
            // What can't be read compares with nothing.
            Ask::Measured { bytes } => {
                let first = digests(&descriptors, Digests::replicated, &mut self.sections).ok();
                self.registry.measured(peer, bytes, first)
            }
            Ask::Lying => {
                self.lying.insert(peer, descriptors);
                Vec::new()
            }
            Ask::Offer { forks, epoch, step } => self.offer(peer, &forks, (epoch, step), descriptors),
            Ask::Withhold { forks, why } => self.registry.withhold(peer, &forks, &why),
            Ask::Fork { job, at, shadow, .. } => self.fork(peer, &job, at, shadow),
            Ask::Outcome => self.registry.outcome(peer),
            Ask::Take { fork, rank, ranks, .. } => waiting(peer, self.registry.take(peer, fork, rank, ranks)),
            Ask::Loaded => match digests(&descriptors, Digests::replicated, &mut self.sections).and_then(Digests::known) {
                Ok(replicated) => self.registry.loaded(peer, replicated),
                Err(why) => self.registry.failed(peer, &why),
            },
            Ask::Repeated { forks } => match digests(&descriptors, Digests::all, &mut self.sections).and_then(Digests::known) {
                Ok(all) => self.registry.repeated(peer, &forks, &all),
                Err(why) if forks.is_empty() => self.registry.failed(peer, &why),
                Err(why) => self.registry.withhold(peer, &forks, &why),
            },
            Ask::Failed { why } => self.registry.failed(peer, &why),
            Ask::Jobs => {
                let mut jobs = self.registry.jobs();
                for job in &mut jobs {
                    job.step = self.pages.get(&job.job).and_then(Page::step);
                }
                vec![Effect::Tell {
                    to: peer,
                    tell: Tell::Jobs { jobs },
                }]
            }
        }
    }

    /// A rank has taken its state after this step of this epoch.
    fn offer(&mut self, peer: Peer, forks: &[u64], (epoch, step): (u64, u64), descriptors: Vec<OwnedFd>) -> Vec<Effect<Arc<State>>> {
        match State::received(descriptors, &mut self.sections) {
            Ok((replicated, state)) => {
                let state = self.keep(peer, state);
                let offer = Offer {
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

    /// A command wants a job to be forked.
    fn fork(&mut self, peer: Peer, job: &str, at: Option<u64>, shadow: Option<u32>) -> Vec<Effect<Arc<State>>> {
        let step = self.pages.get(job).and_then(Page::step);
        let why = match (at, step, new_number()) {
            (Some(at), Some(step), _) if at <= step => {
                format!("--at {at}: {job} is at step {step} already; name a later one, or next")
            }
            (_, _, Err(error)) => format!("the kernel gives no random bytes: {error}"),
            (_, _, Ok(number)) => return self.registry.fork(peer, number, job, at, shadow),
        };
        vec![Effect::Tell {
            to: peer,
            tell: Tell::Refused { why },
        }]
    }

    /// A state that a rank has offered, for as long as a fork needs it.
    fn keep(&mut self, rank: Peer, state: State) -> Arc<State> {
        let state = Arc::new(state);
        let offered = self.offered.entry(rank).or_default();
        offered.retain(|state| state.strong_count() > 0);
        offered.push(Arc::downgrade(&state));
        state
    }

    fn part(&mut self, peer: Peer) {
        self.peers.remove(&peer);
        self.lying.remove(&peer);
        self.admission.resume();
        for state in self.offered.remove(&peer).unwrap_or_default() {
            if let Some(window) = state.upgrade().as_ref().and_then(|state| state.window.as_ref()) {
                window.abandon();
            }
        }
        let effects = self.registry.gone(peer);
        self.carry_out(effects);
    }

    fn carry_out(&mut self, effects: Vec<Effect<Arc<State>>>) {
        let mut lost = Vec::new();
        for effect in effects {
            match effect {
                Effect::Open { job, secret } => self.open_job(&job, secret),
                Effect::Shut { job } => drop(self.pages.remove(&job)),
                Effect::Forget { secret } => {
                    let _ = fs::unlink(secret_path(self.dir, secret));
                }
                Effect::Page { to, job, secret } => {
                    let page = self.pages.get(&job);
                    let sent = page.is_some_and(|page| self.send(to, &Tell::Registered { secret }, &[page.file().descriptor()]));
                    lost.extend((!sent).then_some(to));
                }
                Effect::Want {
                    job,
                    fork,
                    at,
                    is_awaited,
                    shadow,
                } => {
                    // There are as many slots as the registry lets forks be under way.
                    if let Some(page) = self.pages.get(&job) {
                        page.want(fork, at, is_awaited, shadow);
                    }
                }
                Effect::Awaited { job, fork } => {
                    if let Some(page) = self.pages.get(&job) {
                        page.awaited(fork);
                    }
                }
                Effect::Unwant { job, fork } => {
                    if let Some(page) = self.pages.get(&job) {
                        page.unwant(fork);
                    }
                }
                Effect::Tell { to, tell } => {
                    let source = self.registry.source(to).filter(|_| tell == Tell::Waiting);
                    let lying = source.and_then(|rank| self.lying.get(&rank)).map_or(&[][..], Vec::as_slice);
                    let lying: Vec<_> = lying.iter().map(AsFd::as_fd).collect();
                    lost.extend((!self.send(to, &tell, &lying)).then_some(to));
                }
                Effect::Give { to, tell, state, others } => {
                    let texts = others.iter().filter_map(|other| other.descriptors.first());
                    let descriptors: Vec<_> = state.descriptors.iter().chain(texts).map(AsFd::as_fd).collect();
                    let sent = self.send(to, &tell, &descriptors);
                    lost.extend((!sent).then_some(to));
                }
                Effect::Leave { state, reader } => {
                    if let Some(window) = &state.window {
                        window.leave(reader);
                    }
                }
            }
        }
        // Each is gone then: this comes to an end.
        for peer in lost {
            self.part(peer);
        }
    }

    /// Without page or secret nobody is told that it is registered, and the rank's connection closes.
    fn open_job(&mut self, job: &str, secret: u64) {
        let made = write_secret(&secret_path(self.dir, secret)).and_then(|()| Page::create());
        match made {
            Ok(page) => drop(self.pages.insert(job.to_owned(), page)),
            Err(error) => self.log.line(&format!("{job} can't be registered: {error}")),
        }
    }

    fn send(&self, to: Peer, tell: &Tell, descriptors: &[BorrowedFd<'_>]) -> bool {
        self.peers
            .get(&to)
            .is_some_and(|socket| packet::send(socket, tell, descriptors).is_ok())
    }
}

impl State {
    /// That of an offer, if its descriptors are what they should be; and what all ranks should hold alike of it.
    fn received(descriptors: Vec<OwnedFd>, known: &mut Sections) -> Result<(Digests, Self), String> {
        // Either all of the state is copied, or there are a window, a place aside, and the memory in which the rest lies.
        let ([_, copied] | [_, copied, _, _, _, ..]) = descriptors.as_slice() else {
            return Err(missing());
        };
        is_sealed(copied)?;
        let replicated = digests(&descriptors, Digests::replicated, known)?;
        let window = descriptors.get(2).map(|window| Window::open(window.try_clone()?, 0));
        let window = window.transpose().map_err(|error| format!("its window can't be used: {error}"))?;
        Ok((replicated, Self { descriptors, window }))
    }
}

/// Tells who asked for a state that it is waiting: before anything else that is said, and after what the page shows.
fn waiting<S>(peer: Peer, mut effects: Vec<Effect<S>>) -> Vec<Effect<S>> {
    let is_said = |effect: &Effect<S>| matches!(effect, Effect::Tell { .. } | Effect::Give { .. });
    let at = effects.iter().position(is_said).unwrap_or(effects.len());
    let tell = Tell::Waiting;
    effects.insert(at, Effect::Tell { to: peer, tell });
    effects
}

fn missing() -> String {
    "its descriptors did not come along".into()
}

fn is_sealed(descriptor: &OwnedFd) -> Result<(), String> {
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    if fs::fcntl_get_seals(descriptor).is_ok_and(|found| found.contains(seals)) {
        return Ok(());
    }
    Err("its memory is not sealed".into())
}

/// Digests out of what describes a state, which is behind the first of these descriptors.
fn digests(
    descriptors: &[OwnedFd],
    read: impl Fn(&[u8], &mut Sections) -> Result<Digests, String>,
    known: &mut Sections,
) -> Result<Digests, String> {
    let text = descriptors.first().ok_or_else(missing)?;
    is_sealed(text)?;
    let length = fs::fstat(text).map_err(|error| error.to_string())?.st_size as usize;
    if length > FORK_TEXT_BYTES_MAX {
        return Err(format!("what describes it has {length} bytes; the most is {FORK_TEXT_BYTES_MAX}"));
    }
    let mut bytes = vec![0; length];
    let mut at = 0;
    while at < length {
        match rustix::io::pread(text, &mut bytes[at..], at as u64) {
            Ok(0) | Err(_) => return Err("what describes it can't be read".into()),
            Ok(read) => at += read,
        }
    }
    read(&bytes, known).map_err(|why| format!("what describes it can't be read: {why}"))
}

fn write_secret(path: &Path) -> io::Result<()> {
    let mut secret = Zeroizing::new([0u8; SECRET_BYTES]);
    // So few come at once, or not at all.
    getrandom(secret.as_mut_slice(), GetRandomFlags::empty())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::io::write(&file, secret.as_slice())?;
    Ok(())
}

/// Nobody can have it from an agent that stood here before.
fn new_number() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes) | 1)
}
