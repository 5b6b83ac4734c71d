//! Files that the nodes of a job read for each other: who has asked for what, and what follows.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    ops::Range,
    os::fd::OwnedFd,
    sync::Arc,
    time::Instant,
};

use forebay_contract::{Identity, NotCached};
use forebay_peers::{BlobRequest, Found, Reply};
use forebay_policy::peers::JOB_NODES_MAX;

use crate::{
    host::{
        log::{self, Log},
        peer_table::PeerTable,
    },
    tiering::{
        copier::Copier,
        copy_job::{CopyJob, CopyPace},
        handoff::{DescriptorBudget, Handoff},
        limits::{ASKED_WAIT_MAX, FETCH_PIECE_BYTES},
        nodes::{
            blob::{CopyPart, SharedVersion},
            fetcher::FetchJob,
            group::{Deliver, FileShare, NodeEvent, NodeGroup},
            open_waits::WaitPages,
            partial::{PartialCopy, PieceGrid},
            threads::{DeliverCopied, NodeThreads},
        },
        protocol::{ControlResponse, PeerCounts},
        state::{
            copies::PublishedCopies,
            flights::{CopyFlight, CopyGiver, CopyName, FlightOfNodes},
            making::CopyMaking,
            replicas::Replica,
            runs::ServedRuns,
            shared_copies::{find_copy, find_pieces},
        },
    },
};

/// Closures by which the threads send their messages to the event loop.
pub(crate) struct NodeDelivery {
    pub(crate) events: Deliver,
    pub(crate) copied: DeliverCopied,
}

impl fmt::Debug for NodeDelivery {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("NodeDelivery")
    }
}

/// The other nodes of the runs' jobs, and the requests of them that wait.
#[derive(Debug)]
pub(crate) struct Nodes {
    delivery: NodeDelivery,
    /// Groups by job.
    groups: HashMap<String, NodeGroup>,
    /// Jobs whose group is being started.
    beginning: HashSet<String>,
    /// Run pages of the runs whose openers wait.
    waits: WaitPages,
    threads: NodeThreads,
    budget: DescriptorBudget,
    /// Requests for files that are being opened or copied, by path.
    asked: HashMap<Vec<u8>, Vec<AskedFile>>,
    /// Numbers of the copies that are being made while nodes share files, by path.
    under_way: HashMap<Vec<u8>, u64>,
    /// Ranges and bytes that groups have sent which have ended.
    sent_before: (u64, u64),
}

/// A request of another node that waits for a copy, or for a piece of it.
#[derive(Debug)]
struct AskedFile {
    version: SharedVersion,
    part: CopyPart,
    range: Range<u64>,
    since: Instant,
    reply: Reply,
}

impl Nodes {
    pub(crate) fn new(delivery: NodeDelivery, waits: WaitPages, budget: DescriptorBudget) -> Self {
        Self {
            delivery,
            groups: HashMap::new(),
            beginning: HashSet::new(),
            waits,
            threads: NodeThreads::default(),
            budget,
            asked: HashMap::new(),
            under_way: HashMap::new(),
            sent_before: (0, 0),
        }
    }

    /// Returns true while no files are shared.
    pub(crate) fn is_alone(&self) -> bool {
        self.groups.is_empty()
    }

    /// Starts the threads that a group needs.
    fn start_threads(&mut self, group: &NodeGroup, copier: &Copier) -> Result<(), String> {
        let messages = (&self.budget, &self.delivery.events, &self.delivery.copied);
        let started = self.threads.start(copier, messages, group.has_groups());
        started.map_err(|error| error.to_string())
    }

    /// Returns the ranges and bytes that other nodes were sent.
    fn sent(&self) -> (u64, u64) {
        let sums = |(ranges, bytes): (u64, u64), group: &NodeGroup| {
            let sent = group.sent();
            (ranges + sent.0, bytes + sent.1)
        };
        self.groups.values().fold(self.sent_before, sums)
    }

    /// Removes the requests for a file.
    fn take_asked(&mut self, path: &[u8]) -> Vec<AskedFile> {
        self.asked.remove(path).unwrap_or_default()
    }

    /// Forgets requests whose node has stopped waiting, and has nodes ask again that have waited for long.
    pub(crate) fn forget_unwanted(&mut self) {
        self.asked.retain(|_, asked| {
            asked.retain(|asked| !asked.reply.is_unwanted());
            for asked in asked.extract_if(.., |asked| asked.since.elapsed() >= ASKED_WAIT_MAX) {
                asked.reply.send(Found::Busy);
            }
            !asked.is_empty()
        });
    }

    /// Begins to share files with the other nodes of a job.
    pub(crate) fn share(&mut self, job: String, descriptors: Vec<OwnedFd>) -> ControlResponse {
        let Ok([listener, table]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            return ControlResponse::Refused("a request to share files came without a socket and a table".into());
        };
        let table = match PeerTable::open(table) {
            Ok(table) => table,
            Err(error) => return ControlResponse::Refused(format!("the table of nodes can't be read: {error}").into()),
        };
        if table.nodes.len() > usize::from(JOB_NODES_MAX) {
            let nodes = table.nodes.len();
            return ControlResponse::Refused(format!("{nodes} nodes: at most {JOB_NODES_MAX} share their files").into());
        }
        if self.groups.contains_key(&job) || !self.beginning.insert(job.clone()) {
            return ControlResponse::Refused("the files of this job are shared already".into());
        }
        NodeGroup::begin(job, table, listener, Arc::clone(&self.delivery.events));
        ControlResponse::Sharing
    }

    /// Returns whether the files of a job are shared.
    pub(crate) fn is_shared(&self, job: &str) -> bool {
        self.groups.contains_key(job)
    }

    /// Takes a message of the threads that speak with other nodes.
    pub(crate) fn take(&mut self, event: NodeEvent, making: &mut CopyMaking<'_>) {
        match event {
            NodeEvent::Ready { job, group } => self.add_group(job, group, making),
            NodeEvent::Asked { job, request, reply } => self.answer_node(&job, request, reply, making),
            NodeEvent::Advanced { number } => self.answer_pieces(number, making),
            NodeEvent::Opened { path, file } => self.take_opened(&path, file.map(|file| *file), making),
        }
    }

    fn add_group(&mut self, job: String, group: Result<Box<NodeGroup>, String>, making: &mut CopyMaking<'_>) {
        self.beginning.remove(&job);
        let begun = group.and_then(|group| self.start_threads(&group, making.copier).map(|()| *group));
        match begun {
            // The run may have ended meanwhile.
            Ok(group) if !making.runs.is_of_job(&job) => group.end(),
            Ok(group) => {
                Log.line(&format!("files are shared with {}", group.others()));
                self.groups.insert(job, group);
                self.find_replicas(making.copies);
                self.let_openers_wait(making.runs);
            }
            Err(why) => log::fallback(&format!("files are not shared with other nodes: {why}")),
        }
    }

    /// Counts the copies as replicas that no group of this node owns: those of earlier runs, and those that were made
    /// before the nodes met.
    pub(crate) fn find_replicas(&self, copies: &mut PublishedCopies) {
        if !self.is_alone() {
            copies.find_replicas(|path| {
                let is_owned = self.groups.values().any(|group| group.is_owner_of(path));
                (!is_owned).then(|| self.groups.values().any(|group| group.keeps(path)))
            });
        }
    }

    /// Has the openers of runs wait whose files are shared. A run's page is there only after it has joined.
    pub(crate) fn let_openers_wait(&mut self, runs: &ServedRuns) {
        for run in runs.of_jobs(|job| self.groups.contains_key(job)) {
            if !self.waits.contains(run)
                && let Some(page) = runs.page(run)
            {
                self.waits.add(run, page);
            }
        }
    }

    /// Ends what a run that has left shared with other nodes.
    pub(crate) fn stop_sharing(&mut self, run: u64, runs: &ServedRuns) {
        self.waits.remove(run);
        let ended: Vec<String> = self.groups.keys().filter(|job| !runs.is_of_job(job)).cloned().collect();
        for job in ended {
            if let Some(group) = self.groups.remove(&job) {
                let (ranges, bytes) = group.sent();
                self.sent_before.0 += ranges;
                self.sent_before.1 += bytes;
                group.end();
            }
        }
    }

    /// Returns the part that this node has in a file of a run.
    pub(crate) fn share_of(&self, handoff: &Handoff, runs: &ServedRuns) -> FileShare {
        let job = runs.get(handoff.run).and_then(|run| run.job.as_ref());
        match job.and_then(|job| self.groups.get(job)) {
            Some(group) if handoff.stat.is_regular() => group.share_of(&handoff.path, &handoff.stat.identity),
            _ => FileShare::Alone,
        }
    }

    /// Begins the copy of a file that a program has opened, and pulls it from its owner if that is another node.
    ///
    /// # Errors
    /// The reason why there is no copy.
    pub(crate) fn begin_copy(&mut self, mut handoff: Handoff, share: FileShare, making: &mut CopyMaking<'_>) -> Result<(), NotCached> {
        let size = handoff.stat.identity.size;
        let is_owned = matches!(share, FileShare::Owner) && making.copies.may_own(size);
        let giver = match share {
            FileShare::Keeper(_) if size > 0 => CopyGiver::OtherGroup,
            FileShare::Other(_) if size > 0 => CopyGiver::Node,
            FileShare::Keeper(_) | FileShare::Other(_) | FileShare::Owner | FileShare::Alone => CopyGiver::Source,
        };
        let plan = match share {
            FileShare::Keeper(plan) | FileShare::Other(plan) if size > 0 => Some(plan),
            FileShare::Keeper(_) | FileShare::Other(_) | FileShare::Owner | FileShare::Alone => None,
        };
        let waiting = handoff.waiting.take();
        let of_nodes = FlightOfNodes {
            giver,
            is_replica: !is_owned,
            // Without a plan the opener goes on at once, and reads the source itself.
            waiting: waiting.into_iter().filter(|_| plan.is_some()).collect(),
            ..FlightOfNodes::default()
        };
        // Nodes of the group may wait for what this node keeps, also once no program of its own does.
        let is_late = if giver == CopyGiver::OtherGroup {
            Arc::default()
        } else {
            Arc::clone(&of_nodes.is_late)
        };
        let (path, pace) = (handoff.path.clone(), handoff.pace());
        let mut job = making.prepare(handoff, pace, of_nodes)?;
        self.share_pieces(path, &mut job, making);
        match plan {
            Some(plan) => self.threads.fetch(giver, FetchJob { job, plan, is_late }),
            None => making.copier.add(job),
        }
        Ok(())
    }

    /// Has other nodes be sent the pieces of a large copy while it is made.
    fn share_pieces(&mut self, path: Vec<u8>, job: &mut CopyJob, making: &mut CopyMaking<'_>) {
        self.under_way.insert(path, job.number);
        let Some(flight) = making.flights.get_mut(job.number) else { return };
        let size = job.identity.size;
        if size > FETCH_PIECE_BYTES {
            let (events, number) = (Arc::clone(&self.delivery.events), job.number);
            let tell = move || events(NodeEvent::Advanced { number });
            let partial = Arc::new(PartialCopy::new(PieceGrid::of(size), Box::new(tell)));
            flight.nodes.partial = Some(Arc::clone(&partial));
            job.partial = Some(partial);
        }
    }

    /// Makes a copy behind its reader that other nodes did not give.
    pub(crate) fn leave_to_source(&mut self, mut job: CopyJob, making: &mut CopyMaking<'_>) {
        let Some(flight) = making.flights.get_mut(job.number) else { return };
        flight.nodes.waiting.clear();
        flight.nodes.giver = CopyGiver::Source;
        if let Some(partial) = flight.nodes.partial.take() {
            partial.make_void();
        }
        let (run, number) = (flight.run, job.number);
        let paths: Vec<Vec<u8>> = flight.names.iter().map(|name| name.path.clone()).collect();
        making.runs.tally(run, |tally| tally.peers.left_to_source += 1);
        if let Some(path) = paths.first() {
            self.share_pieces(path.clone(), &mut job, making);
        }
        making.copier.add(job);
        if paths.iter().any(|path| self.asked.contains_key(path)) {
            making.copier.hurry(number);
        }
    }

    /// Counts a published copy in which other nodes had a part, and keeps its digest.
    pub(crate) fn note_copy(&mut self, flight: &CopyFlight, copy: u64, checksum: u128, making: &mut CopyMaking<'_>) {
        let size = flight.identity.size;
        making.copies.tiers.keep_digest(copy, size, checksum, flight.nodes.partial.clone());
        if self.is_alone() {
            return;
        }
        if flight.nodes.is_replica
            && let Some(name) = flight.names.first()
        {
            let path = name.path.clone();
            making.copies.tiers.replicas.add(Replica {
                path,
                copy,
                bytes: size,
                is_of_group: flight.nodes.giver == CopyGiver::OtherGroup,
            });
        }
        making.runs.tally(flight.run, |tally| {
            if flight.nodes.is_fetched() {
                tally.peers.from_peers_files += 1;
                tally.peers.from_peers_bytes += size;
            }
            // What came from another group was read from the source there.
            if flight.nodes.is_for_others && !flight.nodes.is_fetched() {
                tally.peers.for_peers_files += 1;
                tally.peers.for_peers_bytes += size;
            }
        });
    }

    /// Answers the nodes that wait for a copy that has ended.
    pub(crate) fn answer_waiting(&mut self, flight: &CopyFlight, copies: &mut PublishedCopies) {
        if let Some(partial) = &flight.nodes.partial
            && flight.place.is_none_or(|place| copies.tiers.digests_of(place.copy).is_none())
        {
            // Whoever has pieces of it gets no digest, and publishes nothing.
            partial.make_void();
        }
        for name in &flight.names {
            self.under_way.remove(&name.path);
            self.answer_path(&name.path, copies);
        }
    }

    /// Answers the nodes that wait for pieces of a copy that are here now.
    fn answer_pieces(&mut self, number: u64, making: &mut CopyMaking<'_>) {
        let Some(flight) = making.flights.get_mut(number) else { return };
        let Some(partial) = flight.nodes.partial.clone() else { return };
        let version = SharedVersion::of(&flight.identity);
        partial.await_piece();
        for name in &flight.names {
            let Some(asked) = self.asked.get_mut(&name.path) else { continue };
            let is_here = |asked: &mut AskedFile| asked.part == CopyPart::Bytes && asked.version == version && partial.has(&asked.range);
            for asked in asked.extract_if(.., is_here) {
                if let Some(found) = find_pieces(flight, &partial, making.copies) {
                    asked.reply.send(found);
                }
            }
            if asked.is_empty() {
                self.asked.remove(&name.path);
            }
        }
    }

    /// Answers the nodes that wait for the file at a path. Without a copy they read the source.
    fn answer_path(&mut self, path: &[u8], copies: &mut PublishedCopies) {
        for asked in self.take_asked(path) {
            if let Some(found) = find_copy(path, asked.version, asked.part, copies) {
                asked.reply.send(found);
            }
        }
    }

    /// Returns the counts of other nodes, with those of the data plane.
    pub(crate) fn peer_counts(&self, counted: &PeerCounts) -> PeerCounts {
        let (to_peers_ranges, to_peers_bytes) = self.sent();
        PeerCounts {
            to_peers_ranges,
            to_peers_bytes,
            ..*counted
        }
    }

    /// Answers another node that asks for a file: now, or once there is a copy.
    fn answer_node(&mut self, job: &str, request: BlobRequest, reply: Reply, making: &mut CopyMaking<'_>) {
        if reply.is_unwanted() || !self.groups.contains_key(job) {
            return;
        }
        let Some(name) = request.name else { return };
        let Some((version, part)) = SharedVersion::parse(&name) else {
            return;
        };
        let path = name.name;
        let Some(run) = run_with(job, &path, making.runs) else { return };
        if let Some(found) = find_copy(&path, version, part, making.copies) {
            return reply.send(found);
        }
        let asked = AskedFile {
            version,
            part,
            range: request.range,
            since: Instant::now(),
            reply,
        };
        let group = self.groups.get(job);
        if let Some(number) = self.number_of(&path, version, making) {
            let is_near = group.is_some_and(|group| group.is_near(request.from));
            return self.await_copy(number, path, asked, is_near, making);
        }
        // A node that was only given pieces gets nothing for others.
        let gets = group.is_some_and(|group| group.gets_for(request.from, &path));
        if part == CopyPart::Digest || !gets {
            return;
        }
        let waiting = self.asked.entry(path.clone()).or_default();
        waiting.push(asked);
        if waiting.len() == 1 {
            self.threads.open(run, path);
        }
    }

    /// Returns the number of the copy that is being made of a file at a version.
    fn number_of(&self, path: &[u8], version: SharedVersion, making: &mut CopyMaking<'_>) -> Option<u64> {
        let number = *self.under_way.get(path)?;
        let flight = making.flights.get_mut(number)?;
        (SharedVersion::of(&flight.identity) == version).then_some(number)
    }

    /// Answers a request for a copy that is being made: now if it is for pieces that are here, else once they are, or
    /// once the copy has ended.
    fn await_copy(&mut self, number: u64, path: Vec<u8>, asked: AskedFile, is_near: bool, making: &mut CopyMaking<'_>) {
        let Some(flight) = making.flights.get_mut(number) else { return };
        let partial = flight.nodes.partial.clone();
        if asked.part == CopyPart::Bytes {
            if let Some(partial) = &partial {
                partial.await_piece();
            }
            let here = partial.as_ref().filter(|partial| partial.has(&asked.range));
            if let Some(found) = here.and_then(|partial| find_pieces(flight, partial, making.copies)) {
                return asked.reply.send(found);
            }
            // It waits for other nodes itself; only what is pulled from another group can't wait for this one's nodes.
            let is_waited_for = flight.nodes.giver == CopyGiver::OtherGroup && is_near;
            if flight.nodes.is_fetched() && !is_waited_for {
                return asked.reply.send(Found::Busy);
            }
        }
        if !flight.nodes.is_fetched() {
            making.copier.hurry(number);
        }
        self.asked.entry(path).or_default().push(asked);
    }

    /// Takes a file that was opened for other nodes, and copies it at once.
    fn take_opened(&mut self, path: &[u8], file: Option<Handoff>, making: &mut CopyMaking<'_>) {
        let Some(file) = file else {
            drop(self.take_asked(path));
            return;
        };
        let identity = file.stat.identity;
        self.refuse_other_versions(path, &identity);
        if !self.asked.contains_key(path) {
            return;
        }
        if let Some(number) = making.copies.index.of_file(identity.dev, identity.ino) {
            let index = making.copies.index.index();
            let is_current = index
                .record(number)
                .is_some_and(|record| making.sources.is_copy_of(&index, record, &identity));
            if is_current && making.copies.add_spelling(number, &file) == Some(true) {
                return self.answer_path(path, making.copies);
            }
            making.copies.drop_copy_of(number);
        }
        let under_way = making.flights.number_of((identity.dev, identity.ino));
        let is_begun = match under_way.and_then(|number| Some((number, making.flights.get_mut(number)?))) {
            // The copy that is being made gets this name, too, and waits for no reader any more.
            Some((number, flight)) if flight.identity == identity => {
                CopyName::add_to(&mut flight.names, &file);
                self.under_way.insert(path.to_vec(), number);
                making.copier.hurry(number);
                self.answer_pieces(number, making);
                true
            }
            Some(_) => false,
            None => self
                .copy_for_nodes(file, making)
                .map(|number| self.answer_pieces(number, making))
                .is_ok(),
        };
        if !is_begun {
            making.runs.total_mut().peers.refused_to_peers += 1;
            drop(self.take_asked(path));
        }
    }

    /// Begins the copy of a file that other nodes wait for, and returns its number.
    ///
    /// # Errors
    /// The reason why there is no copy.
    fn copy_for_nodes(&mut self, file: Handoff, making: &mut CopyMaking<'_>) -> Result<u64, NotCached> {
        making.sources.check(&file, making.runs, &making.copies.index)?;
        // A link on the way may lead out of the source.
        let run = making.runs.get(file.run).ok_or(NotCached::UnknownRun)?;
        if !file.plain && !file.other_name.as_ref().is_some_and(|name| run.covers(name)) {
            return Err(NotCached::AnotherFileSystem);
        }
        let group = run.job.as_ref().and_then(|job| self.groups.get(job));
        let plan = group.and_then(|group| group.plan_for_others(&file.path, &file.stat.identity));
        let plan = plan.filter(|_| file.stat.identity.size > 0);
        let giver = if plan.is_some() { CopyGiver::OtherGroup } else { CopyGiver::Source };
        if plan.is_none() && !making.copies.may_own(file.stat.identity.size) {
            return Err(NotCached::QuotaUsedUp);
        }
        let of_nodes = FlightOfNodes {
            is_for_others: true,
            giver,
            is_replica: plan.is_some(),
            ..FlightOfNodes::default()
        };
        let path = file.path.clone();
        let mut job = making.prepare(file, CopyPace::Full, of_nodes)?;
        self.share_pieces(path, &mut job, making);
        let number = job.number;
        match plan {
            Some(plan) => {
                let is_late = Arc::default();
                self.threads.fetch(giver, FetchJob { job, plan, is_late });
            }
            None => making.copier.add(job),
        }
        Ok(number)
    }

    /// Answers the nodes that ask for another version of a file than the source has.
    fn refuse_other_versions(&mut self, path: &[u8], identity: &Identity) {
        let version = SharedVersion::of(identity);
        let Some(asked) = self.asked.get_mut(path) else { return };
        for other in asked.extract_if(.., |asked| asked.version != version) {
            other.reply.send(Found::Gone);
        }
        if asked.is_empty() {
            self.asked.remove(path);
        }
    }
}

#[cfg(test)]
#[path = "nodes_tests.rs"]
mod tests;

/// Returns a run of a job that serves the file at a path.
fn run_with(job: &str, path: &[u8], runs: &ServedRuns) -> Option<u64> {
    // Names come from another node: only files under a source are opened, and no name leads out of it.
    let mut parts = path.split(|byte| *byte == b'/').skip(1);
    let is_plain = parts.all(|part| !matches!(part, b"" | b"." | b"..")) && !path.contains(&0);
    let all = if is_plain { runs.of_jobs(|of| of == job) } else { Vec::new() };
    let is_served = |run: &u64| runs.get(*run).is_some_and(|run| run.covers(path) && !run.excludes(path));
    all.into_iter().filter(is_served).min()
}
