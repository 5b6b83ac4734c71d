//! Pulls the state of a job on other hosts, and publishes it at the forks role of this host.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Instant,
};

use forebay_contract::CONTRACT_VERSION;
use forebay_peers::BlobId;
use forebay_state::{Manifest, SectionCache, StateHeader, StateStream, StateTransfer, read_state_unverified, shard};

use twox_hash::XxHash3_64;

use super::{
    CloneUnderWay, IsOver, OVER, Ticket,
    gathering::CloneHosts,
    memory::{ReceivedMemory, free_bytes},
    message::{ForkObject, HostFailure, HostRequest, HostView, RankView},
    object_part::{ObjectPart, received_id},
    planning::{CapturedState, CapturedStates, HostShare, PullPlan},
    pulling::{PullHosts, SharedParts, pull},
    received::ReceivedStates,
    sharing::PartServer,
    source_host::{SourceHost, VIEW_WAIT, ask_each, number_at, random, rest},
    staging::reason,
};

use crate::forks::{
    client::ForkRank,
    digests::Digests,
    limits::{HOST_KEEP_EVERY, HOST_LOOK_EVERY, HOST_MEET_EVERY, HOST_SILENT_MAX},
    names::{guest_name, ranks_text},
};

/// Reason why the state of a job on another host can't be had, for a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RemoteError(String);

/// A job on other hosts that is being forked.
pub struct RemoteJob {
    ticket: Ticket,
    pub(super) hosts: Vec<SourceHost>,
    pub(super) job: String,
    /// Random number of this asker.
    asker: u64,
    /// Number of the fork, or of the meeting of the clone's hosts.
    pub(super) number: u64,
    /// The clone's hosts, if there are several.
    pub(super) together: Option<CloneHosts>,
    /// Server for other clones of the step of the fork, if that was named.
    shared: Option<PartServer>,
    /// Step of the fork, if it was named.
    pub(super) at: Option<u64>,
    /// Step of the job when the fork began, and the time of that.
    pub(super) began: (u64, Instant),
    /// Number of the job's ranks.
    of: u32,
    /// Bytes of the states of all ranks, as the job last measured them.
    bytes: u64,
    /// Memory for states that were not captured yet.
    reserved: Mutex<Vec<ReceivedMemory>>,
    /// Ranks of the job, as they are registered at this host.
    pub(super) ranks: Vec<ForkRank>,
}

impl fmt::Debug for RemoteJob {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RemoteJob({} at {:?})", self.job, self.hosts)
    }
}

impl RemoteJob {
    /// Begins a fork of the job of a ticket at its hosts, each with its name for people and the address of its server.
    /// `group` is the name that several hosts of one clone share.
    ///
    /// # Errors
    /// A host can't be reached, does not accept the ticket, or refuses; or a rank is at none of the hosts.
    pub fn begin(ticket: &Ticket, hosts: &[(String, SocketAddr)], at: Option<u64>, group: Option<&str>) -> Result<Self, RemoteError> {
        let fail = |why: String| RemoteError(format!("no clone of {}: {why}", ticket.job));
        let is_meeting = group.is_some() || hosts.len() > 1;
        let number = match (group, at) {
            (Some(group), _) => XxHash3_64::oneshot(group.as_bytes()) | 1,
            (None, Some(at)) if !is_meeting => number_at(&ticket.job, at),
            (None, _) => random().map_err(fail)?,
        };
        let asker = random().map_err(fail)?;
        let begin = begin_of(&ticket.job, (number, asker), at, is_meeting);
        let first = hosts.first().ok_or("the ticket names no host").map_err(|why| fail(why.into()))?.1;
        let shares = group.is_none() && at.is_some();
        let mut remote = Self {
            ticket: ticket.clone(),
            hosts: connect_all(ticket, hosts, &begin).map_err(fail)?,
            job: ticket.job.clone(),
            asker,
            number,
            together: group.map(|_| CloneHosts::start(ticket, first, number)).transpose().map_err(fail)?,
            shared: shares.then(|| PartServer::start(ticket, first)).transpose().map_err(fail)?,
            at,
            began: (0, Instant::now()),
            of: 0,
            bytes: 0,
            reserved: Mutex::default(),
            ranks: Vec::new(),
        };
        let look = HostRequest::Look { fork: number };
        let views = remote
            .until(&look, &|| false, |view| !view.states.is_empty())
            .map_err(|failure| fail(failure.why))?;
        let ranks = views.iter().map(|view| view.ranks).max().unwrap_or_default();
        remote.has_all(ranks, &views).map_err(fail)?;
        remote.began = (last_step(&views), Instant::now());
        if let Some(at) = at.filter(|at| is_meeting && *at <= remote.began.0) {
            let step = remote.began.0;
            return Err(fail(format!(
                "--at {at}: {} is at step {step} already; name a later one, or next",
                ticket.job
            )));
        }
        remote.of = ranks;
        remote.bytes = views.iter().map(|view| view.bytes).sum();
        if group.is_none() {
            has_room(remote.bytes).map_err(fail)?;
        }
        Ok(remote)
    }

    /// A job at these hosts, without ranks at this one.
    #[cfg(test)]
    pub(super) fn of_hosts(ticket: &Ticket, hosts: Vec<SourceHost>, at: Option<u64>) -> Self {
        Self {
            ticket: ticket.clone(),
            hosts,
            job: ticket.job.clone(),
            asker: 1,
            number: 7,
            together: None,
            shared: None,
            at,
            began: (0, Instant::now()),
            of: 2,
            bytes: 0,
            reserved: Mutex::default(),
            ranks: Vec::new(),
        }
    }

    /// Returns the request that begins a fork, or a meeting, for this asker.
    pub(super) fn begin_of(&self, number: u64, at: Option<u64>, is_meeting: bool) -> HostRequest {
        begin_of(&self.job, (number, self.asker), at, is_meeting)
    }

    /// Registers the job's ranks at the fork agent of this host. An agent at which nobody is registered ends after some
    /// seconds.
    ///
    /// # Errors
    /// There is no fork agent, or it refuses.
    pub fn register(&mut self, forks_dir: &Path) -> Result<(), RemoteError> {
        let (name, ranks) = (self.name(), self.of);
        let fail = |error| RemoteError(format!("no clone of {}: {}", self.job, reason(error)));
        let register = |rank| ForkRank::register(forks_dir, &name, rank, ranks, false, 0).map_err(fail);
        self.ranks = (0..ranks).map(register).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Returns the name under which the job is registered at this host.
    pub fn name(&self) -> String {
        guest_name(&self.job)
    }

    /// Returns nothing if each rank of the job is at one of its hosts.
    fn has_all(&self, ranks: u32, views: &[HostView]) -> Result<(), String> {
        for rank in 0..ranks {
            let at: Vec<_> = views
                .iter()
                .zip(&self.hosts)
                .filter(|(view, _)| view.states.iter().any(|state| state.rank == rank))
                .map(|(_, host)| host.name.as_str())
                .collect();
            let hosts = || self.hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>().join(", ");
            let job = &self.job;
            match at.as_slice() {
                [_] => {}
                [] => {
                    return Err(format!(
                        "rank {rank} of its {} trains at none of the hosts {}: type `forebay clone serve {job}` at its host, too, with the same \
                         ticket, once the rank has called session()",
                        ranks_text(ranks as usize),
                        hosts()
                    ));
                }
                [first, second, ..] => {
                    return Err(format!(
                        "rank {rank} trains at {first} and at {second}: these are two jobs with the name {job}; start one with another \
                         FOREBAY_JOB"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Waits until all ranks of the clone wait for a fork of this host, pulls the state, and publishes it. If that
    /// fails, the ranks are told the reason. Ends early once the fork is over.
    pub fn transfer(&self, clone: &CloneUnderWay<'_>) {
        let trouble = Mutex::new(None);
        let is_over = || clone.is_over() || trouble.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        let is_done = AtomicBool::new(false);
        let done = thread::scope(|scope| {
            if let Some(together) = &self.together {
                scope.spawn(|| self.keep(together, &is_done, &trouble));
            }
            let done = self.make(clone, &is_over);
            is_done.store(true, Relaxed);
            done
        });
        let is_made = done.is_ok();
        if let Err(why) = done {
            let why = trouble.into_inner().unwrap_or_else(PoisonError::into_inner).unwrap_or(why);
            if let Some(rank) = self.ranks.first() {
                let _ = rank.withhold(vec![clone.fork()], &why);
            }
            if let Some(together) = &self.together {
                let _ = together.post(&self.hosts[0], |note| note.failed = Some(why));
            }
        }
        // So that the hosts keep the state no longer. Other hosts of the clone may need it: it ends when nobody asks.
        if self.together.is_none() {
            self.end(self.number);
        }
        // All hosts of the clone have loaded. Other clones may need what this one has claimed.
        if let Some(together) = &self.together {
            together.server.linger(|| false);
        }
        if let Some(shared) = &self.shared {
            shared.linger(|| is_made && !clone.has_ended() && self.has_other_askers());
        }
    }

    /// Returns whether other clones of the step have not ended its fork.
    fn has_other_askers(&self) -> bool {
        let Some(at) = self.at else { return false };
        let look = HostRequest::Look {
            fork: number_at(&self.job, at),
        };
        let hosts: Vec<_> = self.hosts.iter().collect();
        let views = ask_each(&hosts, &look, VIEW_WAIT);
        views.iter().any(|view| matches!(view, Ok(Some(HostView { refused: None, .. }))))
    }

    fn make(&self, clone: &CloneUnderWay<'_>, is_over: IsOver<'_>) -> Result<(), String> {
        let share = match &self.together {
            None => {
                self.reserve(self.ranks.len())?;
                self.wait(clone, is_over)?
            }
            Some(together) => {
                let (hosts, here) = together.meet(&self.hosts[0], clone, is_over)?;
                let share = HostShare::of_several(hosts, here, self.of);
                self.reserve(share.states.len())?;
                share
            }
        };
        self.pull(clone.fork(), &share, is_over)?;
        match &self.together {
            None => Ok(()),
            Some(together) => together.confirm(&self.hosts[0], clone, is_over),
        }
    }

    /// Makes memory for the states of this many ranks, before they come. Their lengths are measured at another step:
    /// memory that lacks is made once they are known.
    fn reserve(&self, ranks: usize) -> Result<(), String> {
        let each = self.bytes / u64::from(self.of.max(1));
        has_room(each.saturating_mul(ranks as u64))?;
        let made: Result<_, _> = (0..ranks).map(|_| ReceivedMemory::make(each)).collect();
        *self.reserved.lock().unwrap_or_else(PoisonError::into_inner) = made?;
        Ok(())
    }

    /// Keeps the fork, and looks for the other hosts of the clone, until this one is done or there is trouble.
    fn keep(&self, together: &CloneHosts, is_done: &AtomicBool, trouble: &Mutex<Option<String>>) {
        let mut asked = Instant::now();
        while !is_done.load(Relaxed) {
            thread::sleep(HOST_MEET_EVERY);
            if asked.elapsed() < HOST_KEEP_EVERY {
                continue;
            }
            asked = Instant::now();
            let kept = together.post(&self.hosts[0], |_| ()).and_then(|()| {
                let all = self.hosts.iter().collect::<Vec<_>>();
                match together.taken() {
                    // From then on the hosts of the job need meet no more, and it may end.
                    Some(taken) => look_at(&all, taken),
                    None => look_at(&all[1..], self.number),
                }
            });
            if let Err(why) = kept {
                *trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
                return;
            }
        }
    }

    /// Ends a fork at all hosts. One that does not answer ends it by itself.
    pub(super) fn end(&self, fork: u64) {
        let asker = self.asker;
        let hosts: Vec<_> = self.hosts.iter().collect();
        ask_each(&hosts, &HostRequest::End { fork, asker }, VIEW_WAIT);
    }

    /// Waits for all ranks of the clone at this host.
    fn wait(&self, clone: &CloneUnderWay<'_>, is_over: IsOver<'_>) -> Result<HostShare, String> {
        let mut asked = Instant::now();
        loop {
            if let Ok(progress) = clone.progress()
                && progress.ranks > 0
                && progress.here == progress.ranks
            {
                return Ok(HostShare::alone(progress.ranks, self.of));
            }
            if is_over() {
                return Err(OVER.into());
            }
            // So that the hosts do not give the fork up.
            if asked.elapsed() > HOST_KEEP_EVERY {
                self.ask(&HostRequest::Look { fork: self.number })?;
                asked = Instant::now();
            }
            thread::sleep(HOST_LOOK_EVERY);
        }
    }

    fn pull(&self, fork: u64, share: &HostShare, is_over: IsOver<'_>) -> Result<(), String> {
        let (number, states) = self.agree(share, is_over)?;
        let done = self.receive((number, fork), states, share, is_over);
        if number != self.number && self.together.is_none() {
            self.end(number);
        }
        done
    }

    /// Pulls the states that this host's ranks need, and publishes them for a fork of this host: the ranks load while
    /// the last bytes come. `number` is that of the fork at the job's hosts.
    fn receive(&self, (number, fork): (u64, u64), states: CapturedStates, share: &HostShare, is_over: IsOver<'_>) -> Result<(), String> {
        let plan = PullPlan::of(number, &states, share, self.hosts.len());
        let received = Arc::new(self.prepare(states, share)?);
        let mut queues = plan.queues;
        let server = self.together.as_ref().map(|together| &together.server).or(self.shared.as_ref());
        if let Some(server) = server {
            let own = queues.iter().take(self.hosts.len()).flatten();
            server.give(&received, own.map(|part| (received_id(number, part), part.clone())));
        }
        let shared = self.shared.as_ref().map(|server| SharedParts {
            ticket: &self.ticket,
            asker: self.asker,
            address: server.address.to_string(),
            parts: queues.drain(..).map(Vec::from).collect(),
        });
        let from = PullHosts {
            others: share.others(&self.ticket)?,
            ..PullHosts::of_job(&self.hosts, number)
        };
        let has_failed = AtomicBool::new(false);
        let is_over = || has_failed.load(Relaxed) || is_over();
        let note = |done: Result<(), String>| {
            has_failed.fetch_or(done.is_err(), Relaxed);
            done
        };
        let (published, pulled) = thread::scope(|scope| {
            let publishing = scope.spawn(|| note(self.publish((number, fork), share, &received, &is_over)));
            let pulled = note(pull(from, queues, shared, &is_over, |part, bytes| received.put(part, bytes)));
            (publishing.join().unwrap_or_else(|_| Err("a thread failed".into())), pulled)
        });
        // Whichever failed second only says that it is over.
        let done = match (published, pulled) {
            (Err(why), Err(other)) if why == OVER => Err(other),
            (published, pulled) => published.and(pulled),
        };
        match done {
            Ok(()) => received.keep(),
            Err(_) => received.abandon(),
        }
        done
    }

    /// Publishes the states that this host's ranks need, once all digests are known and the ranks can begin to load.
    fn publish(&self, (number, fork): (u64, u64), share: &HostShare, received: &ReceivedStates, is_over: IsOver<'_>) -> Result<(), String> {
        let verified = self.verified(number, is_over)?;
        if !received.wait_ready(is_over) {
            return Err(OVER.into());
        }
        for (state, rank) in share.states.iter().enumerate() {
            let (header, manifest) = verified.get(rank).ok_or("a rank of the job has not confirmed its state")?;
            if !received.is_of(state, manifest) {
                return Err(format!("the state of rank {rank} is not the one that its host has described"));
            }
            received.publish(state, &self.ranks[*rank as usize], fork, header, manifest)?;
        }
        Ok(())
    }

    /// Prepares memory for the states that this host's ranks need, in their order.
    fn prepare(&self, states: CapturedStates, share: &HostShare) -> Result<ReceivedStates, String> {
        let mut needed = Vec::new();
        for (rank, CapturedState { host, view, manifest, .. }) in states {
            let transfer = StateTransfer::of(&manifest);
            let part = shard(transfer.replicated_bytes, u64::from(rank), self.ranks.len() as u64);
            if (part.end - part.start, transfer.own_bytes) != (view.shard, view.own) {
                return Err(format!("{} sends other bytes than its manifest says", self.hosts[host].name));
            }
            if share.states.contains(&rank) {
                needed.push(manifest);
            }
        }
        let reserved = std::mem::take(&mut *self.reserved.lock().unwrap_or_else(PoisonError::into_inner));
        ReceivedStates::new(needed, reserved, !share.is_dealt)
    }

    /// Waits until all hosts have confirmed their states. Returns header and manifest of each, with all digests, if
    /// replicated entries are the same in all.
    fn verified(&self, number: u64, is_over: IsOver<'_>) -> Result<BTreeMap<u32, (StateHeader, Manifest)>, String> {
        let is_verified = |view: &HostView| !view.states.is_empty() && view.states.iter().all(|state| state.verified > 0);
        let views = self.until(&HostRequest::Look { fork: number }, is_over, is_verified)?;
        let texts = self.texts(number, &views, |state| (ForkObject::Verified, state.verified), is_over)?;
        let mut verified: BTreeMap<u32, (StateHeader, Manifest)> = BTreeMap::new();
        let mut first: Option<Digests> = None;
        for ((host, view), text) in states_of(&views).zip(&texts) {
            let (header, manifest) = read_state_unverified(text, &mut SectionCache::default()).map_err(|error| error.to_string())?;
            if header.job != self.job || header.rank != u64::from(view.rank) {
                return Err(format!("{} sends the state of another rank or job", self.hosts[host].name));
            }
            let digests = Digests::replicated(text, &mut SectionCache::default())?;
            let of = |manifest: &u32| *manifest as usize;
            match &first {
                None => first = Some(digests),
                Some(first) => {
                    let ranks = (verified.keys().next().map_or(0, of), of(&view.rank));
                    first.disagreement(&digests, ranks).map_or(Ok(()), Err)?;
                }
            }
            verified.insert(view.rank, (header, manifest));
        }
        Ok(verified)
    }

    /// Sends a request to all hosts at the same time.
    pub(super) fn ask(&self, request: &HostRequest) -> Result<Vec<HostView>, HostFailure> {
        let hosts: Vec<_> = self.hosts.iter().collect();
        let views = ask_each(&hosts, request, HOST_SILENT_MAX);
        hosts.iter().zip(views).map(|(host, view)| host.accepted(view?)).collect()
    }

    /// Sends a request to each host, and asks for the progress until it is enough.
    pub(super) fn until(
        &self,
        first: &HostRequest,
        is_over: IsOver<'_>,
        is_enough: impl Fn(&HostView) -> bool,
    ) -> Result<Vec<HostView>, HostFailure> {
        let mut views = self.ask(first)?;
        let since = Instant::now();
        while !views.iter().all(&is_enough) {
            if is_over() {
                return Err(OVER.into());
            }
            rest(since);
            views = self.ask(&HostRequest::Look { fork: first.fork() })?;
        }
        Ok(views)
    }

    /// Pulls a text of each rank, in the order of [`states_of`].
    pub(super) fn texts(
        &self,
        number: u64,
        views: &[HostView],
        object: impl Fn(&RankView) -> (ForkObject, u64),
        is_over: IsOver<'_>,
    ) -> Result<Vec<Vec<u8>>, String> {
        let mut queues: Vec<VecDeque<ObjectPart>> = self.hosts.iter().map(|_| VecDeque::new()).collect();
        let mut texts = Vec::new();
        for (host, view) in states_of(views) {
            let (object, bytes) = object(view);
            let length = usize::try_from(bytes)
                .ok()
                .filter(|length| *length <= forebay_state::TEXT_BYTES_MAX);
            let id: BlobId = object.id(number, view.rank);
            queues[host].extend(ObjectPart::all(id, bytes, texts.len(), StateStream::Own, 0));
            texts.push(vec![0; length.ok_or("the manifest of the state is too long")?]);
        }
        pull(PullHosts::of_job(&self.hosts, number), queues, None, is_over, |part, bytes| {
            let at = usize::try_from(part.at).unwrap_or(usize::MAX);
            texts[part.of][at..at + bytes.len()].copy_from_slice(bytes);
            Ok(())
        })?;
        Ok(texts)
    }
}

/// Returns the states of all hosts, each with the number of its host.
pub(super) fn states_of(views: &[HostView]) -> impl Iterator<Item = (usize, &RankView)> {
    let of = |(host, view)| -> Vec<(usize, &RankView)> {
        let view: &HostView = view;
        view.states.iter().map(|state| (host, state)).collect()
    };
    views.iter().enumerate().flat_map(of)
}

/// Connects with all hosts of a job at the same time.
fn connect_all(ticket: &Ticket, hosts: &[(String, SocketAddr)], begin: &HostRequest) -> Result<Vec<SourceHost>, String> {
    thread::scope(|scope| {
        let connect = |host| scope.spawn(move || SourceHost::connect(ticket, host, begin));
        let connecting: Vec<_> = hosts.iter().map(connect).collect();
        let joined = connecting
            .into_iter()
            .map(|one| one.join().unwrap_or_else(|_| Err("a thread failed".into())));
        joined.collect()
    })
}

/// Returns the request that begins a fork, or a meeting: `number` is that of the fork, and that of the asker.
fn begin_of(job: &str, (fork, asker): (u64, u64), at: Option<u64>, is_meeting: bool) -> HostRequest {
    HostRequest::Begin {
        version: CONTRACT_VERSION,
        fork,
        job: job.to_owned(),
        at,
        is_meeting,
        asker,
    }
}

/// Keeps a fork at these hosts.
fn look_at(hosts: &[&SourceHost], fork: u64) -> Result<(), String> {
    let views = ask_each(hosts, &HostRequest::Look { fork }, HOST_SILENT_MAX);
    let accepted = |(host, view): (&&SourceHost, Result<_, String>)| host.accepted(view?).map(drop);
    Ok(hosts.iter().zip(views).try_for_each(accepted)?)
}

/// Returns an error if a state of this many bytes does not fit into the memory of this host.
fn has_room(bytes: u64) -> Result<(), String> {
    let free = free_bytes();
    if bytes > free {
        return Err(format!(
            "its states of {bytes} bytes do not fit into the {free} bytes of memory that are free here"
        ));
    }
    Ok(())
}

pub(super) fn last_step(views: &[HostView]) -> u64 {
    views.iter().filter_map(|view| view.step).max().unwrap_or_default()
}
