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
    time::{Duration, Instant},
};

use forebay_peers::BlobId;
use forebay_state::{Manifest, SectionCache, StateHeader, StateStream, StateTransfer, read_state_unverified, shard};

use twox_hash::XxHash3_64;

use super::{
    CloneUnderWay, OVER, Ticket,
    gathering::CloneHosts,
    message::{ForkObject, HostRequest, HostView, RankView},
    planning::{HostShare, PullPlan, TakenStates},
    pulling::{ObjectPart, pull},
    received::{ReceivedRank, publish},
    source_host::{SourceHost, random},
    stage::free_bytes,
    staging::reason,
};

use crate::forks::{
    client::{ForkRank, Forking},
    digests::Digests,
    limits::{HOST_AGREE_LEAD, HOST_AGREE_TRIES, HOST_KEEP_EVERY, HOST_LOOK_EVERY, HOST_LOOK_MAX, HOST_MEET_EVERY},
    names::{guest_name, ranks_text},
    protocol::ForkProgress,
};

/// Reason why the state of a job on another host can't be had, for a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RemoteError(String);

/// A job on other hosts that is being forked.
pub struct RemoteJob {
    ticket: Ticket,
    hosts: Vec<SourceHost>,
    job: String,
    /// Number of the fork, or of the meeting of the clone's hosts.
    number: u64,
    /// The clone's hosts, if there are several.
    together: Option<CloneHosts>,
    /// Step of the fork, if it was named.
    at: Option<u64>,
    /// Step of the job when the fork began, and the time of that.
    began: (u64, Instant),
    /// Number of the job's ranks.
    of: u32,
    /// Ranks of the job, as they are registered at this host.
    ranks: Vec<ForkRank>,
}

impl fmt::Debug for RemoteJob {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RemoteJob({} at {:?})", self.job, self.hosts)
    }
}

/// States of this host's ranks, by rank, each with its header and its manifest with all digests.
type ReceivedStates = BTreeMap<u32, (Arc<ReceivedRank>, StateHeader, Manifest)>;

impl RemoteJob {
    /// Begins a fork of the job of a ticket at its hosts, each with its name for people and the address of its server.
    /// `group` is the name that several hosts of one clone share.
    ///
    /// # Errors
    /// A host can't be reached, does not accept the ticket, or refuses; or a rank is at none of the hosts.
    pub fn begin(ticket: &Ticket, hosts: &[(String, SocketAddr)], at: Option<u64>, group: Option<&str>) -> Result<Self, RemoteError> {
        let fail = |why: String| RemoteError(format!("no clone of {}: {why}", ticket.job));
        let number = group
            .map_or_else(random, |name| Ok(XxHash3_64::oneshot(name.as_bytes()) | 1))
            .map_err(fail)?;
        let is_meeting = group.is_some() || hosts.len() > 1;
        let begin = SourceHost::begin_of(&ticket.job, number, at, is_meeting);
        let connect = |host| SourceHost::connect(ticket, host, &begin);
        let meets = |_| CloneHosts::start(ticket, hosts.first().ok_or("the ticket names no host")?.1, number);
        let mut remote = Self {
            ticket: ticket.clone(),
            hosts: hosts.iter().map(connect).collect::<Result<_, _>>().map_err(fail)?,
            job: ticket.job.clone(),
            number,
            together: group.map(meets).transpose().map_err(fail)?,
            at,
            began: (0, Instant::now()),
            of: 0,
            ranks: Vec::new(),
        };
        let look = HostRequest::Look { fork: number };
        let views = remote.until(&look, &|| false, |view| !view.states.is_empty()).map_err(fail)?;
        let ranks = views.iter().map(|view| view.ranks).max().unwrap_or_default();
        remote.has_all(ranks, &views).map_err(fail)?;
        remote.began = (last_step(&views), Instant::now());
        remote.of = ranks;
        Ok(remote)
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
    }

    fn make(&self, clone: &CloneUnderWay<'_>, is_over: &dyn Fn() -> bool) -> Result<(), String> {
        let share = match &self.together {
            None => self.wait(clone, is_over)?,
            Some(together) => self.meet(together, clone, is_over)?,
        };
        self.pull(clone.fork(), &share, is_over)?;
        match &self.together {
            None => Ok(()),
            Some(together) => self.confirm(together, clone, is_over),
        }
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
                let others = self.hosts.iter().skip(1).map(|host| (host, self.number));
                let taken = together
                    .taken()
                    .into_iter()
                    .flat_map(|taken| self.hosts.iter().map(move |host| (host, taken)));
                others
                    .chain(taken)
                    .try_for_each(|(host, fork)| host.ask(&HostRequest::Look { fork }).map(drop))
            });
            if let Err(why) = kept {
                *trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
                return;
            }
        }
    }

    /// Ends a fork at all hosts. One that does not answer ends it by itself.
    fn end(&self, fork: u64) {
        for host in &self.hosts {
            let _ = host.ask(&HostRequest::End { fork });
        }
    }

    /// Waits for all ranks of the clone at this host.
    fn wait(&self, clone: &CloneUnderWay<'_>, is_over: &dyn Fn() -> bool) -> Result<HostShare, String> {
        let mut asked = Instant::now();
        let is_awaited = |progress: ForkProgress| progress.ranks > 0 && progress.here == progress.ranks;
        while !clone.progress().is_ok_and(is_awaited) {
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
        Ok(HostShare {
            ranks: (0..self.ranks.len() as u32).collect(),
            ..HostShare::default()
        })
    }

    /// Waits for all ranks of the clone at all of its hosts.
    fn meet(&self, together: &CloneHosts, clone: &CloneUnderWay<'_>, is_over: &dyn Fn() -> bool) -> Result<HostShare, String> {
        loop {
            if is_over() {
                return Err(OVER.into());
            }
            let progress = clone.progress().map_err(reason)?;
            together.post(&self.hosts[0], |note| (note.of, note.ranks) = (progress.ranks, progress.arrived))?;
            if let Some((hosts, here)) = together.all() {
                let ranks = hosts[here].ranks.clone();
                clone.with(|forking| forking.gathered(ranks.clone())).map_err(reason)?;
                return Ok(HostShare { ranks, hosts, here });
            }
            thread::sleep(HOST_MEET_EVERY);
        }
    }

    /// Waits until the ranks at all hosts of the clone have loaded their states, and lets those of this host go on.
    fn confirm(&self, together: &CloneHosts, clone: &CloneUnderWay<'_>, is_over: &dyn Fn() -> bool) -> Result<(), String> {
        loop {
            let progress = clone.progress().map_err(reason)?;
            let has_loaded = progress.loaded > 0 && progress.loaded == progress.here;
            together.post(&self.hosts[0], |note| note.is_loaded = has_loaded)?;
            if has_loaded && together.others_have_loaded() {
                return clone.with(Forking::confirm).map_err(reason);
            }
            if is_over() {
                return Err(OVER.into());
            }
            thread::sleep(HOST_MEET_EVERY);
        }
    }

    fn pull(&self, fork: u64, share: &HostShare, is_over: &dyn Fn() -> bool) -> Result<(), String> {
        let (number, states) = self.agree(share, is_over)?;
        let done = self.pull_states(number, states, share, is_over);
        if number != self.number && self.together.is_none() {
            self.end(number);
        }
        for (rank, (state, header, manifest)) in done? {
            publish(&self.ranks[rank as usize], fork, &state.file, &header, &manifest)?;
        }
        Ok(())
    }

    /// Has all hosts take the states of one step. Returns the number of the fork, and the states.
    ///
    /// Ranks on one host agree by themselves. Several hosts are given a step that is still to come; if the ranks of one
    /// have passed it by the time, all are given a later one.
    fn agree(&self, share: &HostShare, is_over: &dyn Fn() -> bool) -> Result<(u64, TakenStates), String> {
        let Some(together) = &self.together else {
            return self.propose(is_over);
        };
        if share.ranks.contains(&0) {
            let (number, states) = self.propose(is_over)?;
            together.post(&self.hosts[0], |note| note.taken = number)?;
            return Ok((number, states));
        }
        loop {
            if let Some(number) = together.taken() {
                return Ok((number, self.take(number, is_over)?));
            }
            if is_over() {
                return Err(OVER.into());
            }
            together.post(&self.hosts[0], |_| ())?;
            thread::sleep(HOST_MEET_EVERY);
        }
    }

    /// Names steps to the hosts of the job until all have taken the states of one.
    fn propose(&self, is_over: &dyn Fn() -> bool) -> Result<(u64, TakenStates), String> {
        if self.hosts.len() == 1 && self.together.is_none() {
            return Ok((self.number, self.take(self.number, is_over)?));
        }
        // One step is as good as another where it was named, or one host's ranks agree by themselves.
        let tries = if self.hosts.len() == 1 || self.at.is_some() {
            1
        } else {
            HOST_AGREE_TRIES
        };
        let mut lead = HOST_AGREE_LEAD;
        let mut tried = 1;
        loop {
            let views = self.ask(&HostRequest::Look { fork: self.number })?;
            let step = last_step(&views);
            let steps = step.saturating_sub(self.began.0) as f64 / self.began.1.elapsed().as_secs_f64();
            // The step that is under way may be over at any moment.
            let ahead = (self.hosts.len() > 1).then_some(step + 2 + (steps * lead.as_secs_f64()) as u64);
            let number = random()?;
            let begun = self.ask(&SourceHost::begin_of(&self.job, number, self.at.or(ahead), false));
            match begun.and_then(|_| self.take(number, is_over)) {
                Ok(states) => return Ok((number, states)),
                Err(why) => {
                    self.end(number);
                    if tried == tries || is_over() {
                        return Err(why);
                    }
                }
            }
            lead *= 3;
            tried += 1;
        }
    }

    /// Has the states taken for a fork with this number, and compares their steps.
    fn take(&self, number: u64, is_over: &dyn Fn() -> bool) -> Result<TakenStates, String> {
        let is_taken = |view: &HostView| !view.states.is_empty() && view.states.iter().all(|state| state.taken > 0);
        let views = self.until(&HostRequest::Take { fork: number }, is_over, is_taken)?;
        let texts = self.texts(number, &views, |state| (ForkObject::Taken, state.taken), is_over)?;
        let mut states = TakenStates::new();
        for ((host, view), text) in states_of(&views).zip(&texts) {
            let (header, manifest) = read_state_unverified(text, &mut SectionCache::default()).map_err(|error| error.to_string())?;
            if header.job != self.job || header.rank != u64::from(view.rank) || manifest.ranks != self.ranks.len() as u64 {
                return Err(format!("{} sends the state of another rank or job", self.hosts[host].name));
            }
            states.insert(view.rank, (host, *view, header, manifest));
        }
        let mut headers = states.values().map(|(_, _, header, _)| header);
        if states.len() != self.ranks.len() {
            return Err("the ranks of the job are not at the hosts any more where they were".into());
        }
        let first = headers.next().map(|header| (header.epoch, header.step)).unwrap_or_default();
        match headers.find(|header| (header.epoch, header.step) != first) {
            None => Ok(states),
            Some(other) => Err(format!(
                "the ranks were not at one step: rank 0 at step {} of epoch {}, rank {} at step {} of epoch {}; do all take every step together?",
                first.1, first.0, other.rank, other.step, other.epoch
            )),
        }
    }

    /// Pulls the states of this host's ranks. Returns each with its header and its manifest with all digests.
    fn pull_states(
        &self,
        number: u64,
        states: TakenStates,
        share: &HostShare,
        is_over: &dyn Fn() -> bool,
    ) -> Result<ReceivedStates, String> {
        let here = states.iter().filter(|(rank, _)| share.ranks.contains(rank));
        let needed: u64 = here.map(|(_, (_, _, _, manifest))| StateTransfer::of(manifest).capture_bytes).sum();
        let free = free_bytes();
        if needed > free {
            return Err(format!(
                "its states of {needed} bytes do not fit into the {free} bytes of memory that are free here"
            ));
        }
        let plan = PullPlan::of(number, &states, share, self.hosts.len());
        let mut received: Vec<Arc<ReceivedRank>> = Vec::new();
        for (rank, (host, view, _, manifest)) in states {
            let transfer = StateTransfer::of(&manifest);
            let part = shard(transfer.replicated_bytes, u64::from(rank), self.ranks.len() as u64);
            if (part.end - part.start, transfer.own_bytes) != (view.shard, view.own) {
                return Err(format!("{} sends other bytes than its manifest says", self.hosts[host].name));
            }
            if share.ranks.contains(&rank) {
                received.push(Arc::new(ReceivedRank::new(manifest)?));
            }
        }
        let Some(first) = received.first() else {
            return Err("no rank of the clone is at this host".into());
        };
        if received.iter().any(|state| !state.has_stream_of(first)) {
            return Err("the ranks of the job do not hold entries of the same lengths alike".into());
        }
        let others = share.others(&self.ticket)?;
        if let Some(together) = &self.together {
            let own = plan.queues.iter().take(self.hosts.len()).flatten();
            together.give(number, first, own.filter(|part| part.stream == StateStream::Replicated));
        }
        pull((&self.hosts, &others), number, plan.queues, is_over, |part, bytes| {
            received[part.of].put(part.stream, part.at, bytes)?;
            if let Some(together) = self.together.as_ref().filter(|_| part.stream == StateStream::Replicated) {
                together.has(part);
            }
            Ok(())
        })?;
        let verified = self.verified(number, is_over)?;
        let mut states = BTreeMap::new();
        for (rank, state) in share.ranks.iter().zip(&received) {
            let (header, manifest) = verified.get(rank).ok_or("a rank of the job has not confirmed its state")?;
            if !state.is_of(manifest) {
                return Err(format!("the state of rank {rank} is not the one that its host has described"));
            }
            if *rank != share.ranks[0] {
                state.copy_from(first, manifest, &verified[&share.ranks[0]].1)?;
            }
            states.insert(*rank, (Arc::clone(state), header.clone(), manifest.clone()));
        }
        Ok(states)
    }

    /// Waits until all hosts have confirmed their states. Returns header and manifest of each, with all digests, if
    /// replicated entries are the same in all.
    fn verified(&self, number: u64, is_over: &dyn Fn() -> bool) -> Result<BTreeMap<u32, (StateHeader, Manifest)>, String> {
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

    /// Sends a request to each host.
    fn ask(&self, request: &HostRequest) -> Result<Vec<HostView>, String> {
        self.hosts.iter().map(|host| host.ask(request)).collect()
    }

    /// Sends a request to each host, and asks for the progress until it is enough.
    fn until(
        &self,
        first: &HostRequest,
        is_over: &dyn Fn() -> bool,
        is_enough: impl Fn(&HostView) -> bool,
    ) -> Result<Vec<HostView>, String> {
        let (HostRequest::Begin { fork, .. }
        | HostRequest::Post { fork, .. }
        | HostRequest::Take { fork }
        | HostRequest::Look { fork }
        | HostRequest::End { fork }) = first;
        let mut views = self.ask(first)?;
        let mut pause = HOST_LOOK_EVERY;
        while !views.iter().all(&is_enough) {
            if is_over() {
                return Err(OVER.into());
            }
            rest(&mut pause);
            views = self.ask(&HostRequest::Look { fork: *fork })?;
        }
        Ok(views)
    }

    /// Pulls a text of each rank, in the order of [`states_of`].
    fn texts(
        &self,
        number: u64,
        views: &[HostView],
        object: impl Fn(&RankView) -> (ForkObject, u64),
        is_over: &dyn Fn() -> bool,
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
        pull((&self.hosts, &[]), number, queues, is_over, |part, bytes| {
            let at = usize::try_from(part.at).unwrap_or(usize::MAX);
            texts[part.of][at..at + bytes.len()].copy_from_slice(bytes);
            Ok(())
        })?;
        Ok(texts)
    }
}

/// Returns the states of all hosts, each with the number of its host.
fn states_of(views: &[HostView]) -> impl Iterator<Item = (usize, &RankView)> {
    let of = |(host, view)| -> Vec<(usize, &RankView)> {
        let view: &HostView = view;
        view.states.iter().map(|state| (host, state)).collect()
    };
    views.iter().enumerate().flat_map(of)
}

fn last_step(views: &[HostView]) -> u64 {
    views.iter().filter_map(|view| view.step).max().unwrap_or_default()
}

/// Sleeps, the longer the longer it has been waited: the step of the fork may be hours away.
fn rest(pause: &mut Duration) {
    thread::sleep(*pause);
    *pause = (*pause * 5 / 4).min(HOST_LOOK_MAX);
}
