//! State machine of the fork agent: maps each message to effects, without I/O. `S` is the captured state of one rank
//! in transit.

use std::collections::{BTreeMap, HashMap};

use super::{
    digests::{Digests, RankState, disagreement},
    job::Job,
    making::{Fork, ForkStage, Receiver},
    names::{is_name, name_of_guest, ranks_text},
    protocol::{ForkResponse, ForkScope, ForkableJob as JobLine, JobRanks},
};

pub(crate) use super::effects::{Effect, RankIdentity};
use super::effects::{Effects, refuse, tell};

use crate::{
    forks::limits::{FORK_RANKS_MAX, FORKS_PER_JOB_MAX, JOB_NAME_BYTES_MAX, JOBS_MAX},
    host::{
        refusal::{Refusal, RefusalKind},
        role::Peer,
    },
};

/// Role of a connection.
#[derive(Clone, Debug)]
enum Role {
    Rank { job: String, rank: usize },
    Command { fork: u64 },
    Receiver { fork: u64, rank: usize },
}

/// All jobs, forks and connections.
#[derive(Debug)]
pub(crate) struct Registry<S> {
    jobs: BTreeMap<String, Job>,
    forks: BTreeMap<u64, Fork<S>>,
    roles: HashMap<Peer, Role>,
    /// Number of users of each secret: its job, and its forks under way, since a job may end before its clone has
    /// fetched a published state.
    secrets: BTreeMap<u64, usize>,
}

impl<S> Default for Registry<S> {
    fn default() -> Self {
        Self {
            jobs: BTreeMap::new(),
            forks: BTreeMap::new(),
            roles: HashMap::new(),
            secrets: BTreeMap::new(),
        }
    }
}

impl<S: Clone> Registry<S> {
    /// Registers a rank of a job. `number` is a new one, for the job's secret if this is its first rank. A rank that
    /// rejoins reads the page once it has sent its state's size; any other from its first step boundary on.
    pub(crate) fn register(&mut self, peer: Peer, number: u64, place: RankIdentity, rejoins: bool) -> Effects<S> {
        if let Err(why) = self.can_register(peer, &place) {
            return refuse(peer, why);
        }
        let mut effects = Vec::new();
        let (job, rank, ranks) = (place.job, place.rank as usize, place.ranks as usize);
        let shadow = place.shadow;
        let known = self.jobs.entry(job.clone()).or_insert_with(|| {
            effects.push(Effect::Open {
                job: job.clone(),
                secret: number,
            });
            self.secrets.insert(number, 1);
            Job::new(number, ranks)
        });
        known.ranks[rank] = Some(peer);
        known.looking[rank] = !rejoins;
        known.rejoins |= rejoins;
        known.shadow = shadow;
        known.bytes[rank] = 0;
        known.first[rank] = None;
        known.apart = None;
        let secret = known.secret;
        self.roles.insert(peer, Role::Rank { job: job.clone(), rank });
        effects.push(Effect::JobPage { to: peer, job, secret });
        effects
    }

    fn can_register(&self, peer: Peer, place: &RankIdentity) -> Result<(), Refusal> {
        let RankIdentity { job, rank, ranks, .. } = place;
        if (!is_name(job) && name_of_guest(job).is_none()) || ["ls", "serve"].contains(&job.as_str()) {
            return Err(Refusal::from(format!(
                "a job can't be named '{job}': use at most {JOB_NAME_BYTES_MAX} letters, digits, '.', '_' and '-', a letter or digit first, \
                 and not ls or serve"
            )));
        }
        if rank >= ranks || *ranks > FORK_RANKS_MAX {
            return Err(Refusal::from(format!(
                "rank {rank} of {ranks}: there can be 1 to {FORK_RANKS_MAX} ranks, counted from 0"
            )));
        }
        if self.roles.contains_key(&peer) {
            return Err(Refusal::from("this connection is taken"));
        }
        let Some(known) = self.jobs.get(job) else {
            return if self.jobs.len() < JOBS_MAX {
                Ok(())
            } else {
                let why = format!("{JOBS_MAX} jobs that can be forked train on this node already");
                Err(Refusal::new(RefusalKind::Exhausted, why))
            };
        };
        if known.ranks.len() != *ranks as usize || known.ranks[*rank as usize].is_some() {
            let why = format!(
                "a job {job} trains here already, with {}; name this one otherwise: session(job=...) or FOREBAY_JOB",
                ranks_text(known.ranks.len())
            );
            return Err(Refusal::new(RefusalKind::Taken, why));
        }
        Ok(())
    }

    /// A command wants a job to be forked. `number` is a new one.
    pub(crate) fn fork(
        &mut self,
        peer: Peer,
        number: u64,
        job: &str,
        at: Option<u64>,
        shadow: Option<u32>,
        scope: ForkScope,
    ) -> Effects<S> {
        if self.roles.contains_key(&peer) {
            return refuse(peer, "this connection is taken");
        }
        let name = match self.can_fork(job, scope) {
            Ok(name) => name,
            Err(why) => return refuse(peer, why),
        };
        let known = &self.jobs[job];
        let (ranks, secret) = (known.ranks.len(), known.secret);
        let here = if scope == ForkScope::Arriving {
            vec![false; ranks]
        } else {
            known.here()
        };
        let shadow = shadow.unwrap_or(known.shadow);
        *self.secrets.entry(secret).or_default() += 1;
        self.roles.insert(peer, Role::Command { fork: number });
        let answer = ForkResponse::Forking {
            fork: number,
            name: name.clone(),
            ranks: ranks as u32,
            shadow,
            secret,
            here: (0..).zip(&here).filter_map(|(rank, here)| here.then_some(rank)).collect(),
        };
        let fork = Fork {
            job: job.to_owned(),
            secret,
            name,
            at,
            wanted: false,
            shadow,
            offers: vec![None; ranks],
            takers: Vec::new(),
            after: vec![None; ranks],
            stage: ForkStage::UnderWay,
            scope,
            here,
        };
        self.forks.insert(number, fork);
        let mut effects = self.want(number);
        effects.push(tell(peer, answer));
        effects
    }

    /// The clone's name.
    fn can_fork(&mut self, job: &str, scope: ForkScope) -> Result<String, String> {
        let own = self.jobs.keys().filter(|name| name_of_guest(name).is_none());
        let others: Vec<_> = own.take(8).map(String::as_str).collect();
        let others = if others.is_empty() {
            "none does yet: a job can be forked once it has called forebay.clone.session(...)".to_owned()
        } else {
            format!("there are: {}", others.join(", "))
        };
        let Some(known) = self.jobs.get(job) else {
            return Err(format!("no job '{job}' that can be forked trains on this node; {others}"));
        };
        let here = known.ranks.iter().flatten().count();
        // A job on several hosts never has all its ranks here.
        if here < known.ranks.len() && known.rejoins && scope != ForkScope::Registered {
            return Err(format!(
                "the fork agent was replaced, and {here} of the {} of {job} have come to the new one; the others follow in seconds: ask again",
                ranks_text(known.ranks.len())
            ));
        }
        if here < known.ranks.len() && scope != ForkScope::Registered {
            return Err(format!(
                "{here} of the {} of {job} are on this node and have called session(); wait for the others (a job on several nodes is forked by --from)",
                ranks_text(known.ranks.len())
            ));
        }
        if let Some(why) = &known.apart {
            return Err(format!("{job} can't be forked: at its first point {why}"));
        }
        let is_under_way = |fork: &&Fork<S>| fork.job == job && fork.is_open();
        if self.forks.values().filter(is_under_way).count() >= FORKS_PER_JOB_MAX {
            return Err(format!(
                "{FORKS_PER_JOB_MAX} clones of {job} are being made already; wait until one has its state"
            ));
        }
        // Clones of an earlier job of this name may train on.
        let is_free = |name: &str| !self.jobs.contains_key(name) && self.forks.values().all(|fork| fork.name != name);
        let base = name_of_guest(job).unwrap_or(job);
        if base != job && known.named > 0 {
            return Err(format!("{job} trains on another host: name that by --from HOST"));
        }
        let mut named = known.named + 1;
        while !is_free(&format!("{base}.{named}")) {
            named += 1;
        }
        let name = format!("{base}.{named}");
        if !is_name(&name) {
            return Err(format!("a clone's name, {name}, would be longer than {JOB_NAME_BYTES_MAX} bytes"));
        }
        if let Some(known) = self.jobs.get_mut(job) {
            known.named = named;
        }
        Ok(name)
    }

    /// A rank of a clone asks for its state.
    pub(crate) fn take(&mut self, peer: Peer, number: u64, rank: u32, ranks: u32) -> Effects<S> {
        if self.roles.contains_key(&peer) {
            return refuse(peer, "this connection is taken");
        }
        let Some(fork) = self.forks.get_mut(&number) else {
            return refuse(peer, "this fork is over: a clone starts by `forebay clone`, once");
        };
        if let ForkStage::Failed(why) = &fork.stage {
            let why = why.clone();
            return refuse(peer, why);
        }
        if let Err(why) = fork.expect(ranks as usize) {
            return refuse(peer, why);
        }
        let (is_under_way, may_come) = (fork.stage == ForkStage::UnderWay, fork.may_come(rank as usize));
        match fork.takers.get_mut(rank as usize) {
            Some(place) if is_under_way && may_come && place.is_none() => {
                let (loaded, after) = (None, None);
                *place = Some(Receiver { peer, loaded, after });
            }
            _ => {
                return refuse(
                    peer,
                    format!("rank {rank} of this clone has had its state: a clone that is started again is a new fork"),
                );
            }
        }
        self.roles.insert(
            peer,
            Role::Receiver {
                fork: number,
                rank: rank as usize,
            },
        );
        let mut effects = Vec::new();
        if fork.wanted && fork.is_read_in_place() {
            let job = fork.job.clone();
            effects.push(Effect::Awaited { job, fork: number });
        }
        effects.extend(self.want(number));
        effects.extend(self.give(number, Some(rank as usize)));
        effects
    }

    /// The rank of the job whose state a rank of a clone gets; none where the clone has another number of ranks.
    pub(crate) fn source(&self, peer: Peer) -> Option<Peer> {
        let Role::Receiver { fork, rank } = self.roles.get(&peer)? else {
            return None;
        };
        let fork = self.forks.get(fork).filter(|fork| !fork.is_dealt())?;
        *self.jobs.get(&fork.job)?.ranks.get(*rank)?
    }

    /// Notes that a rank of a job reads the page, the size of its state and, at its first step boundary, the digests
    /// that all ranks should hold alike.
    pub(crate) fn measured(&mut self, peer: Peer, bytes: u64, first: Option<Digests>) -> Effects<S> {
        let Some(Role::Rank { job, rank }) = self.roles.get(&peer).cloned() else {
            return Vec::new();
        };
        if let Some(known) = self.jobs.get_mut(&job) {
            known.bytes[rank] = bytes;
            known.looking[rank] = true;
            known.first[rank] = first;
            known.compare();
        }
        let forks = self.forks.iter().filter(|(_, fork)| fork.job == job);
        let numbers: Vec<_> = forks.map(|(number, _)| *number).collect();
        numbers.into_iter().flat_map(|number| self.want(number)).collect()
    }

    /// Takes a state that a rank of a job publishes, for these forks.
    pub(crate) fn offer(&mut self, peer: Peer, numbers: &[u64], offer: &RankState<S>) -> Effects<S> {
        let Some(Role::Rank { job, rank }) = self.roles.get(&peer).cloned() else {
            return refuse(peer, "this connection is not a rank of a job");
        };
        let mut effects = Vec::new();
        for (reader, number) in (0..).zip(numbers) {
            let expects = |fork: &&mut Fork<S>| fork.job == job && fork.wanted && fork.offers[rank].is_none();
            let Some(fork) = self.forks.get_mut(number).filter(expects) else {
                let state = offer.state.clone();
                effects.push(Effect::Leave { state, reader });
                continue;
            };
            fork.offers[rank] = Some(RankState { reader, ..offer.clone() });
            let offers = fork.offers.iter().enumerate();
            let offers: Vec<_> = offers
                .filter_map(|(rank, offer)| offer.as_ref().map(|offer| (rank, offer)))
                .collect();
            if !fork.is_complete() {
                continue;
            }
            match disagreement(&offers) {
                None => effects.extend(self.unwant(*number)),
                Some(why) => effects.extend(self.fail(*number, &why)),
            }
            effects.extend(self.give(*number, None));
        }
        effects
    }

    /// Fails these forks: a rank of a job could not take its state.
    pub(crate) fn withhold(&mut self, peer: Peer, numbers: &[u64], why: &str) -> Effects<S> {
        let Some(Role::Rank { job, rank }) = self.roles.get(&peer).cloned() else {
            return refuse(peer, "this connection is not a rank of a job");
        };
        let shown = name_of_guest(&job).unwrap_or(&job);
        let why = format!("rank {rank} of {shown} could not take its state: {why}");
        let own = |number: &&u64| self.forks.get(*number).is_some_and(|fork| fork.job == job);
        let numbers: Vec<_> = numbers.iter().filter(own).copied().collect();
        numbers.into_iter().flat_map(|number| self.fail(number, &why)).collect()
    }

    /// Notes that a rank of a clone has loaded and checked its state.
    pub(crate) fn loaded(&mut self, peer: Peer, replicated: Digests) -> Effects<S> {
        let Some(Role::Receiver { fork: number, rank }) = self.roles.get(&peer).cloned() else {
            return refuse(peer, "this connection is not a rank of a clone");
        };
        let Some(fork) = self
            .forks
            .get_mut(&number)
            .filter(|fork| fork.is_complete() && fork.stage == ForkStage::UnderWay)
        else {
            return Vec::new();
        };
        if let Some(taker) = &mut fork.takers[rank] {
            taker.loaded = Some(replicated);
        }
        let takers = fork.takers.iter().enumerate();
        let loaded: Vec<_> = takers
            .filter_map(|(rank, taker)| Some((rank, taker.as_ref()?.loaded.as_ref()?)))
            .collect();
        if loaded.len() < fork.expected() {
            return Vec::new();
        }
        // What they have read in place nobody has compared before.
        let differs = |(rank, other): &(usize, &Digests)| loaded[0].1.disagreement(other, (loaded[0].0, *rank));
        if let Some(why) = loaded.iter().find_map(differs) {
            return self.fail(number, &why);
        }
        if fork.scope == ForkScope::Arriving {
            fork.stage = ForkStage::LoadedHere;
            return Vec::new();
        }
        if fork.shadow > 0 {
            self.begin_shadow(number)
        } else {
            self.finish(number)
        }
    }

    /// Takes from a command the ranks of its clone that are on this host.
    pub(crate) fn gathered(&mut self, peer: Peer, ranks: &[u32]) -> Effects<S> {
        let Some(Role::Command { fork: number }) = self.roles.get(&peer).cloned() else {
            return refuse(peer, "this connection has no fork");
        };
        if let Some(fork) = self.forks.get_mut(&number).filter(|fork| fork.scope == ForkScope::Arriving) {
            fork.here = (0..).zip(&fork.takers).map(|(rank, _)| ranks.contains(&rank)).collect();
        }
        self.want(number)
    }

    /// Takes from a command that all other hosts have loaded their part of the clone.
    pub(crate) fn confirm(&mut self, peer: Peer) -> Effects<S> {
        match self.roles.get(&peer).cloned() {
            Some(Role::Command { fork }) if self.forks.get(&fork).is_some_and(|fork| fork.stage == ForkStage::LoadedHere) => {
                self.finish(fork)
            }
            _ => Vec::new(),
        }
    }

    /// Completes a fork whose checks have all passed.
    fn finish(&mut self, number: u64) -> Effects<S> {
        let Some(fork) = self.forks.get_mut(&number) else {
            return Vec::new();
        };
        fork.stage = ForkStage::Exists;
        fork.offers.fill(None);
        if let Some(job) = self.jobs.get_mut(&fork.job) {
            job.clones += 1;
        }
        let secret = fork.secret;
        let mut effects: Effects<S> = fork
            .takers
            .iter()
            .flatten()
            .map(|taker| tell(taker.peer, ForkResponse::Exists))
            .collect();
        effects.extend(self.release(secret));
        effects
    }

    /// Fails a fork: a rank of its clone could not load its state.
    pub(crate) fn failed(&mut self, peer: Peer, why: &str) -> Effects<S> {
        match self.roles.get(&peer).cloned() {
            Some(Role::Receiver { fork, rank }) => self.fail(fork, &format!("rank {rank} of the clone could not load its state: {why}")),
            _ => refuse(peer, "this connection is not a rank of a clone"),
        }
    }

    /// Answers a command with the progress of its fork.
    pub(crate) fn outcome(&self, peer: Peer) -> Effects<S> {
        let fork = match self.roles.get(&peer) {
            Some(Role::Command { fork }) => self.forks.get(fork),
            _ => None,
        };
        let Some(fork) = fork else {
            return refuse(peer, "this connection has no fork");
        };
        vec![tell(peer, ForkResponse::Progress(fork.progress()))]
    }

    /// Removes a closed connection, and fails what depended on it.
    pub(crate) fn gone(&mut self, peer: Peer) -> Effects<S> {
        match self.roles.remove(&peer) {
            None => Vec::new(),
            Some(Role::Rank { job, rank }) => self.rank_gone(&job, rank),
            Some(Role::Command { fork }) => {
                let effects = self.fail(fork, "forebay clone has ended");
                self.forks.remove(&fork);
                effects
            }
            Some(Role::Receiver { fork, rank }) => {
                if let Some(known) = self.forks.get_mut(&fork) {
                    known.takers[rank] = None;
                    if known.is_open() {
                        return self.fail(fork, &format!("rank {rank} of the clone has ended before all had their states"));
                    }
                }
                Vec::new()
            }
        }
    }

    fn rank_gone(&mut self, job: &str, rank: usize) -> Effects<S> {
        let why = format!("{job} has ended, or called close(), before all of its ranks had given what the clone needs");
        let unfinished = |fork: &Fork<S>| fork.job == job && fork.needs(rank);
        let numbers: Vec<_> = self
            .forks
            .iter()
            .filter(|(_, fork)| unfinished(fork))
            .map(|(number, _)| *number)
            .collect();
        let mut effects: Effects<S> = numbers.into_iter().flat_map(|number| self.fail(number, &why)).collect();
        if let Some(known) = self.jobs.get_mut(job) {
            known.ranks[rank] = None;
            known.looking[rank] = false;
            if known.ranks.iter().all(Option::is_none) {
                let secret = known.secret;
                self.jobs.remove(job);
                effects.push(Effect::Shut { job: job.to_owned() });
                effects.extend(self.release(secret));
            }
        }
        effects
    }

    /// Returns the ranks of a job on this host, without the job's step.
    pub(crate) fn ranks_here(&self, job: &str) -> JobRanks {
        self.jobs.get(job).map(Job::ranks_here).unwrap_or_default()
    }

    /// Returns the jobs of this host, without their steps.
    pub(crate) fn jobs(&self) -> Vec<JobLine> {
        let own = self.jobs.iter().filter(|(name, _)| name_of_guest(name).is_none());
        own.map(|(name, job)| job.line(name)).collect()
    }

    /// Asks the job's ranks for their states, if it is time.
    fn want(&mut self, number: u64) -> Effects<S> {
        let Some(fork) = self.forks.get_mut(&number) else {
            return Vec::new();
        };
        let is_time = (fork.at.is_some() && fork.scope == ForkScope::All) || fork.is_awaited();
        let look = |job: &Job| job.looking.iter().zip(&job.ranks).all(|(looks, rank)| *looks || rank.is_none());
        let all_look = self.jobs.get(&fork.job).is_some_and(look);
        if fork.wanted || fork.stage != ForkStage::UnderWay || fork.is_complete() || !is_time || !all_look {
            return Vec::new();
        }
        fork.wanted = true;
        let (job, at, is_awaited) = (fork.job.clone(), fork.at.unwrap_or(0), fork.is_read_in_place());
        vec![Effect::Want {
            job,
            fork: number,
            at,
            is_awaited,
            shadow: fork.shadow,
            is_agreed: fork.scope == ForkScope::Registered,
        }]
    }

    fn unwant(&mut self, number: u64) -> Effects<S> {
        let Some(fork) = self.forks.get_mut(&number).filter(|fork| fork.wanted) else {
            return Vec::new();
        };
        fork.wanted = false;
        vec![Effect::Unwant {
            job: fork.job.clone(),
            fork: number,
        }]
    }

    /// Gives the states, once all are there, to the ranks that wait: to one, or all.
    fn give(&self, number: u64, only: Option<usize>) -> Effects<S> {
        let Some(fork) = self
            .forks
            .get(&number)
            .filter(|fork| fork.stage == ForkStage::UnderWay && fork.is_complete())
        else {
            return Vec::new();
        };
        let others: Vec<_> = if fork.is_dealt() {
            fork.offers.iter().skip(1).flatten().map(|offer| offer.state.clone()).collect()
        } else {
            Vec::new()
        };
        let give = |(rank, taker): (usize, &Option<Receiver>)| {
            let of = if fork.is_dealt() { 0 } else { rank };
            let (taker, offer) = (taker.as_ref()?, fork.offers.get(of)?.as_ref()?);
            let (name, reader, ranks) = (fork.name.clone(), offer.reader, fork.offers.len() as u32);
            (only.is_none() || only == Some(rank)).then(|| Effect::Give {
                to: taker.peer,
                tell: ForkResponse::State { name, reader, ranks },
                state: offer.state.clone(),
                others: others.clone(),
            })
        };
        fork.takers.iter().enumerate().filter_map(give).collect()
    }

    fn fail(&mut self, number: u64, why: &str) -> Effects<S> {
        self.refuse_all(number, &Refusal::new(RefusalKind::Failed, why))
    }

    /// Fails a fork, and tells all ranks of its clone why.
    pub(crate) fn refuse_all(&mut self, number: u64, refusal: &Refusal) -> Effects<S> {
        let mut effects = self.unwant(number);
        if let Some(fork) = self.forks.get_mut(&number).filter(|fork| fork.is_open()) {
            fork.stage = ForkStage::Failed(refusal.why.clone());
            let offers = fork.offers.iter_mut().filter_map(Option::take);
            effects.extend(offers.map(|RankState { state, reader, .. }| Effect::Leave { state, reader }));
            let takers = fork.takers.iter().flatten();
            effects.extend(takers.flat_map(|taker| refuse(taker.peer, refusal.clone())));
            let secret = fork.secret;
            effects.extend(self.release(secret));
        }
        effects
    }

    /// Removes one user of a secret.
    fn release(&mut self, secret: u64) -> Option<Effect<S>> {
        let users = self.secrets.get_mut(&secret)?;
        *users -= 1;
        if *users > 0 {
            return None;
        }
        self.secrets.remove(&secret);
        Some(Effect::Forget { secret })
    }
}

#[cfg(test)]
mod properties;
mod shadow;
#[cfg(test)]
mod tests;
