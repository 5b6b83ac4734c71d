//! Pulls parts of objects from several hosts, some at a time from each.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

use forebay_peers::{FetchEnd, Fetched, Room};

use super::{
    IsOver, OVER, Ticket,
    message::{ClaimedParts, HostRequest},
    object_part::{ObjectPart, received_id},
    source_host::{HostAnswer, SourceHost, VIEW_WAIT},
};

use crate::forks::limits::{
    HOST_GATHER_EVERY, HOST_GONE_MAX, HOST_KEEP_EVERY, HOST_LOOK_EVERY, HOST_RANGE_BYTES_MIN, HOST_RANGES, HOST_SHARE_MAX, HOST_SILENT_MAX,
};

/// Interval of looks whether anybody still waits.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Memory for a part, which tells when bytes come.
#[derive(Debug)]
struct WatchedRoom {
    bytes: Vec<u8>,
    /// Looks at the memory so far. The first one asks for its length.
    looks: u32,
    /// Milliseconds from `began` until bytes came last.
    came_ms: Arc<AtomicU64>,
    began: Instant,
}

impl Room for WatchedRoom {
    fn bytes(&mut self) -> &mut [u8] {
        self.looks += 1;
        if self.looks > 1 {
            self.came_ms.fetch_max(millis(self.began.elapsed()), Relaxed);
        }
        &mut self.bytes
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A part that is wanted, and the host of the job, with the part there, that gives it if the asked host does not.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WantedPart {
    part: ObjectPart,
    otherwise: Option<(usize, ObjectPart)>,
}

/// Hosts that give parts, and how long they may be silent.
pub(super) struct PullHosts<'a> {
    /// Hosts of the job.
    pub(super) hosts: &'a [SourceHost],
    /// Other hosts of the clone. They are asked again for parts that they do not have yet.
    pub(super) others: Vec<SourceHost>,
    /// Number of the fork.
    pub(super) fork: u64,
    /// Time after which a host of the job is lost that sends and answers nothing.
    pub(super) silent_max: Duration,
}

impl<'a> PullHosts<'a> {
    /// Pulls from the hosts of the job alone.
    pub(super) fn of_job(hosts: &'a [SourceHost], fork: u64) -> Self {
        Self {
            hosts,
            others: Vec::new(),
            fork,
            silent_max: HOST_SILENT_MAX,
        }
    }
}

/// Parts that this host shares with other clones of the point.
pub(super) struct SharedParts<'a> {
    /// Ticket of the job.
    pub(super) ticket: &'a Ticket,
    /// Random number of this host.
    pub(super) asker: u64,
    /// Address at which this host gives its parts.
    pub(super) address: String,
    /// All parts of each host of the job, in the order of its claims.
    pub(super) parts: Vec<Vec<ObjectPart>>,
}

/// End of a request.
enum PullEvent {
    Part(usize, WantedPart, u64, Fetched),
    View(usize, Option<HostAnswer>),
}

/// Last news of a host.
struct HostNews {
    /// Milliseconds from the beginning until bytes came last.
    came_ms: Arc<AtomicU64>,
    /// Time of its last answer.
    answered: Instant,
    /// Time of the last whole part that came.
    gave: Instant,
    /// Requests for parts that are under way, or are repeated soon.
    busy: usize,
    /// True while a request for its view is under way.
    is_asked: bool,
    /// True for another clone's host that is asked no more.
    is_left: bool,
    /// Time at which another clone's host is asked again, for one part: it has not had the last one yet.
    again: Option<Instant>,
}

impl HostNews {
    /// Returns whether a further part may be asked for.
    fn is_free(&self) -> bool {
        match self.again {
            Some(again) => self.busy == 0 && again <= Instant::now(),
            None => self.busy < HOST_RANGES,
        }
    }
}

/// Pulls parts from hosts, some at a time from each.
struct Puller<'a> {
    from: PullHosts<'a>,
    share: Option<SharedParts<'a>>,
    began: Instant,
    /// Wanted parts by host, first the job's, then the others.
    queues: Vec<VecDeque<WantedPart>>,
    news: Vec<HostNews>,
    later: Vec<(Instant, usize, WantedPart)>,
    /// Number of claimed parts of each host of the job that are known here.
    claimed: Vec<usize>,
    sender: mpsc::Sender<PullEvent>,
}

/// Pulls parts from hosts, each of which has a queue: first those of the job, then those of the clone. With `share`
/// this host claims parts as it needs them, and pulls the others from the clones that have claimed these. `put` takes a
/// part and its bytes.
///
/// A host of the job that neither sends nor answers for a time is lost. Parts that took too long are cut in halves: as
/// long as bytes come, a link may be as slow as it is.
///
/// # Errors
/// A host is lost or refuses, nobody waits for the bytes any more, or `put` fails.
pub(super) fn pull(
    from: PullHosts<'_>,
    queues: Vec<VecDeque<ObjectPart>>,
    share: Option<SharedParts<'_>>,
    is_over: IsOver<'_>,
    mut put: impl FnMut(&ObjectPart, &[u8]) -> Result<(), String>,
) -> Result<(), String> {
    let (sender, receiver) = mpsc::channel();
    let mut puller = Puller::new(from, queues, share, sender);
    let mut looked = Instant::now();
    loop {
        puller.send_wanted();
        if puller.is_done() {
            return Ok(());
        }
        if is_over() {
            return Err(OVER.into());
        }
        puller.check()?;
        if looked.elapsed() > HOST_KEEP_EVERY {
            looked = Instant::now();
            puller.look();
        }
        match receiver.recv_timeout(puller.pause()) {
            Ok(PullEvent::Part(host, wanted, before_ms, mut fetched)) => match fetched.end {
                FetchEnd::Came { .. } => {
                    put(&wanted.part, fetched.room.bytes())?;
                    puller.came(host);
                }
                end => puller.failed(host, wanted, before_ms, end),
            },
            Ok(PullEvent::View(host, answer)) => puller.answered(host, answer)?,
            Err(_) => {}
        }
    }
}

impl<'a> Puller<'a> {
    fn new(
        from: PullHosts<'a>,
        queues: Vec<VecDeque<ObjectPart>>,
        share: Option<SharedParts<'a>>,
        sender: mpsc::Sender<PullEvent>,
    ) -> Self {
        let wanted = |part| WantedPart { part, otherwise: None };
        let mut puller = Self {
            claimed: vec![0; from.hosts.len()],
            queues: queues.into_iter().map(|queue| queue.into_iter().map(wanted).collect()).collect(),
            news: Vec::new(),
            later: Vec::new(),
            began: Instant::now(),
            from,
            share,
            sender,
        };
        puller.know_hosts();
        puller
    }

    /// Makes room for the news, and the queue, of each host.
    fn know_hosts(&mut self) {
        let hosts = self.from.hosts.len() + self.from.others.len();
        self.queues.resize_with(hosts, VecDeque::new);
        self.news.resize_with(hosts, || HostNews {
            came_ms: Arc::default(),
            answered: Instant::now(),
            gave: Instant::now(),
            busy: 0,
            is_asked: false,
            is_left: false,
            again: None,
        });
    }

    fn host(&self, number: usize) -> &SourceHost {
        let others = || &self.from.others[number - self.from.hosts.len()];
        self.from.hosts.get(number).unwrap_or_else(others)
    }

    fn is_done(&self) -> bool {
        let is_idle = |host: usize| self.news[host].busy == 0 && self.queues[host].is_empty();
        (0..self.news.len()).all(is_idle) && self.unclaimed().next().is_none()
    }

    /// Returns the hosts of the job that have parts whose claims are not known here.
    fn unclaimed(&self) -> impl Iterator<Item = usize> {
        let parts = self.share.iter().flat_map(|share| &share.parts);
        let known = self.claimed.iter().zip(parts).enumerate();
        known.filter(|(_, (claimed, parts))| **claimed < parts.len()).map(|(host, _)| host)
    }

    /// Sends requests for parts, and claims further ones before there are none.
    fn send_wanted(&mut self) {
        let (now, mut due) = (Instant::now(), Vec::new());
        self.later.retain(|(at, host, wanted)| {
            let is_due = *at <= now;
            due.extend(is_due.then(|| (*host, wanted.clone())));
            !is_due
        });
        for (host, wanted) in due {
            self.fetch(host, wanted);
        }
        for host in 0..self.news.len() {
            while self.news[host].is_free()
                && let Some(wanted) = self.queues[host].pop_front()
            {
                self.news[host].busy += 1;
                self.fetch(host, wanted);
            }
        }
        let short: Vec<_> = self.unclaimed().filter(|host| self.queues[*host].len() < HOST_RANGES).collect();
        for host in short {
            if let Some(share) = self.share.as_ref().filter(|_| !self.news[host].is_asked) {
                let (fork, asker, address) = (self.from.fork, share.asker, share.address.clone());
                self.ask(host, &HostRequest::Claim { fork, asker, address });
            }
        }
    }

    fn fetch(&self, host: usize, wanted: WantedPart) {
        let room = WatchedRoom {
            bytes: vec![0; usize::try_from(wanted.part.bytes).unwrap_or_default()],
            looks: 0,
            came_ms: Arc::clone(&self.news[host].came_ms),
            began: self.began,
        };
        let before_ms = self.news[host].came_ms.load(Relaxed);
        let (sender, id, offset) = (self.sender.clone(), wanted.part.id, wanted.part.offset);
        self.host(host).fetch(id, offset, Box::new(room), move |fetched| {
            drop(sender.send(PullEvent::Part(host, wanted, before_ms, fetched)));
        });
    }

    /// Sends a request for the view of a host of the job.
    fn ask(&mut self, host: usize, request: &HostRequest) {
        self.news[host].is_asked = true;
        let sender = self.sender.clone();
        self.from.hosts[host].send(request, VIEW_WAIT, move |answer| drop(sender.send(PullEvent::View(host, answer))));
    }

    /// Asks the hosts of the job for the progress: so they keep the fork, and a reason that they know is heard.
    fn look(&mut self) {
        for host in 0..self.from.hosts.len() {
            if !self.news[host].is_asked {
                self.ask(host, &HostRequest::Look { fork: self.from.fork });
            }
        }
    }

    /// Returns an error if a host of the job is lost that still has to send.
    fn check(&mut self) -> Result<(), String> {
        for host in 0..self.from.hosts.len() {
            let has_to_send = self.news[host].busy > 0 || !self.queues[host].is_empty() || self.unclaimed().any(|other| other == host);
            let came = self.began + Duration::from_millis(self.news[host].came_ms.load(Relaxed));
            if has_to_send && self.news[host].answered.max(came).elapsed() > self.from.silent_max {
                return Err(self.from.hosts[host].silent());
            }
        }
        Ok(())
    }

    fn pause(&self) -> Duration {
        let waits = |(news, queue): &(&HostNews, &VecDeque<WantedPart>)| news.busy == 0 && !queue.is_empty();
        let again = self.news.iter().zip(&self.queues).filter(waits).filter_map(|(news, _)| news.again);
        let first = self.later.iter().map(|(at, _, _)| *at).chain(again).min();
        first.map_or(LOOK_EVERY, |at| at.saturating_duration_since(Instant::now()).min(LOOK_EVERY))
    }

    fn came(&mut self, host: usize) {
        let news = &mut self.news[host];
        (news.answered, news.gave, news.again) = (Instant::now(), Instant::now(), None);
        news.busy -= 1;
    }

    fn failed(&mut self, host: usize, wanted: WantedPart, before_ms: u64, end: FetchEnd) {
        if host >= self.from.hosts.len() {
            // Another clone may have ended, or wait itself.
            let most = if end == FetchEnd::Absent { HOST_SHARE_MAX } else { HOST_GONE_MAX };
            let news = &mut self.news[host];
            news.is_left |= wanted.otherwise.is_some() && news.gave.elapsed() > most;
            news.busy -= 1;
            if !news.is_left {
                news.again = Some(Instant::now() + HOST_GATHER_EVERY);
                self.queues[host].push_front(wanted);
                return;
            }
            let queue = std::mem::take(&mut self.queues[host]);
            for (source, part) in queue.into_iter().chain([wanted]).filter_map(|wanted| wanted.otherwise) {
                self.queues[source].push_back(WantedPart { part, otherwise: None });
            }
            return;
        }
        let has_come = self.news[host].came_ms.load(Relaxed) > before_ms;
        if has_come && wanted.part.bytes > HOST_RANGE_BYTES_MIN {
            self.news[host].busy -= 1;
            let halves = wanted.part.halves().into_iter().rev();
            halves.for_each(|part| self.queues[host].push_front(WantedPart { part, otherwise: None }));
        } else {
            self.later.push((Instant::now() + HOST_LOOK_EVERY, host, wanted));
        }
    }

    fn answered(&mut self, host: usize, answer: Option<HostAnswer>) -> Result<(), String> {
        self.news[host].is_asked = false;
        let Some(answer) = answer else { return Ok(()) };
        let view = self.from.hosts[host].accepted(Some(self.from.hosts[host].view(&answer)?))?;
        self.news[host].answered = Instant::now();
        for claim in view.claims {
            self.learn(host, &claim)?;
        }
        Ok(())
    }

    /// Queues the parts of a claim that were not known here.
    fn learn(&mut self, host: usize, claim: &ClaimedParts) -> Result<(), String> {
        let Some(share) = &self.share else { return Ok(()) };
        let end = usize::try_from(claim.first.saturating_add(claim.parts)).unwrap_or(usize::MAX);
        let new = share.parts[host].get(self.claimed[host]..end).unwrap_or_default().to_vec();
        self.claimed[host] += new.len();
        if claim.asker == share.asker {
            self.queues[host].extend(new.into_iter().map(|part| WantedPart { part, otherwise: None }));
            return Ok(());
        }
        let address: SocketAddr = claim.address.parse().map_err(|_| "another clone has no address".to_owned())?;
        let known = self.from.others.iter().position(|other| other.name == claim.address);
        let other = self.from.hosts.len() + known.unwrap_or(self.from.others.len());
        if known.is_none() {
            let started = SourceHost::start(share.ticket, &claim.address, address)?;
            self.from.others.push(started);
            self.know_hosts();
        }
        if self.news[other].busy == 0 && self.queues[other].is_empty() {
            self.news[other].gave = Instant::now();
        }
        let fork = self.from.fork;
        for part in new {
            let there = ObjectPart {
                id: received_id(fork, &part),
                offset: 0,
                ..part.clone()
            };
            if self.news[other].is_left {
                self.queues[host].push_back(WantedPart { part, otherwise: None });
            } else {
                let otherwise = Some((host, part));
                self.queues[other].push_back(WantedPart { part: there, otherwise });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn only_looks_after_the_first_tell_that_bytes_came() {
        let came_ms = Arc::new(AtomicU64::new(0));
        let began = Instant::now().checked_sub(Duration::from_secs(7)).unwrap();
        let mut room = WatchedRoom {
            bytes: vec![0; 4],
            looks: 0,
            came_ms: Arc::clone(&came_ms),
            began,
        };
        assert_eq!((room.bytes().len(), came_ms.load(Relaxed)), (4, 0));
        room.bytes();
        assert!(came_ms.load(Relaxed) >= 7000);
    }
}
