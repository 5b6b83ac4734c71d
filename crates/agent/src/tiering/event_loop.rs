//! The event loop: the one thread that owns the state of the tiering role. Other threads send it messages; it decides
//! with `policy`, and never waits for the source.

mod handoffs;
mod listed;

use std::{
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::Instant,
};

use forebay_contract::NotCached;
use forebay_policy::{FillFirst, prefetch::Seen, read_ahead::AheadMode};
use forebay_store::Tier;
use rustix::time::{ClockId, clock_gettime};

use crate::{
    host::{
        clock::{boot_ms, boot_ns, thread_cpu},
        log::{self, Log},
        shared::set_thread_nice,
    },
    tiering::{
        config::AgentConfig,
        control::CommandEvent,
        copier::Copier,
        copy_job::Copied,
        handoff::{DescriptorBudget, Handoff},
        limits::{AHEAD_JUDGED_EVERY, BATCH_PAUSE, DRAIN_MAX, EVENT_LOOP_NICE, RECOVERY_DRAIN_MAX, ROOM_EVERY, TICK},
        lister::{ListedDirectory, ListerRequest},
        nodes::{group::NodeEvent, open_waits::WaitPages},
        pages::Pages,
        prefetcher::{PrefetchAnswer, Prefetcher},
        protocol::{ControlRequest, ControlResponse, PrefetchCounts, Status, Totals},
        ram,
        read_lists::{
            openers::{ListedAnswer, Openers},
            recorder::{LoadedList, RecorderRequest},
        },
        recovery::RecoveryBatch,
        skipped::SkippedCopies,
        state::{
            cached_directories::CachedDirectories,
            clock_skew::SkewedHandoffs,
            copies::PublishedCopies,
            copy_index::CopyIndex,
            flights::{CopiesUnderWay, CopyFlights},
            nodes::{NodeDelivery, Nodes},
            prefetching::Prefetching,
            read_lists::ReadLists,
            recovery::{Recovery, RecoveryTarget},
            runs::{RunState, ServedRuns},
            source_files::SourceFiles,
            tier_set::TierSet,
            tier_speed::SpeedRetry,
        },
        sweeper::{SweepRequest, SweepResult},
        worker_flags::PrefetchGate,
    },
};

/// Message to the event loop.
#[derive(Debug)]
pub(crate) enum LoopEvent {
    /// A program has opened a source file; or the reason why its handoff was lost.
    Handoff(Result<Box<Handoff>, NotCached>),
    /// A copy has ended.
    Copied(Copied),
    /// The lister has read a directory.
    ListedDirectory(ListedDirectory),
    /// The sweeper has compared a directory with the source.
    Swept(SweepResult),
    /// Copies of earlier runs were read from a catalogue.
    Recovered(RecoveryBatch),
    /// Copies of a slow tier were read again.
    SpeedRetried(SpeedRetry),
    /// The prefetcher has listed a directory, or opened files.
    Prefetch(PrefetchAnswer),
    /// The list of a run's command was read.
    ListLoaded(LoadedList),
    /// An entry of a list was opened or read.
    Listed(ListedAnswer),
    /// Other nodes ask for files, or can be asked.
    Node(NodeEvent),
    /// A command asks for something, or has gone.
    Command(CommandEvent),
}

/// Returns a closure that sends one kind of message to the event loop. Once the loop has ended, the process ends too,
/// so a message that nobody receives is dropped.
pub(crate) fn deliver<T: 'static>(events: &Sender<LoopEvent>, event: fn(T) -> LoopEvent) -> impl Fn(T) + Clone + Send + 'static {
    let events = events.clone();
    move |message| drop(events.send(event(message)))
}

/// The event loop and the parts of its state.
#[derive(Debug)]
pub(crate) struct EventLoop {
    runs: ServedRuns,
    sources: SourceFiles,
    copies: PublishedCopies,
    flights: CopyFlights,
    copier: Copier,
    recovery: Recovery,
    cached_directories: CachedDirectories,
    prefetching: Prefetching,
    read_lists: ReadLists,
    skewed: SkewedHandoffs,
    nodes: Nodes,
    events: Sender<LoopEvent>,
    /// True if the agent stays after its last run.
    keep: bool,
    /// Directories of tiers in memory.
    ram_dirs: Vec<PathBuf>,
    stop: bool,
}

/// Parts from which an event loop is made.
#[derive(Debug)]
pub(crate) struct LoopParts {
    pub(crate) config: AgentConfig,
    pub(crate) pages: Pages,
    pub(crate) policy: FillFirst,
    pub(crate) tiers: Vec<Arc<Tier>>,
    pub(crate) copier: Copier,
    pub(crate) sweeps: Sender<SweepRequest>,
    pub(crate) lister: Sender<ListerRequest>,
    pub(crate) prefetcher: Prefetcher,
    pub(crate) recorder: Sender<RecorderRequest>,
    pub(crate) openers: Openers,
    pub(crate) waits: WaitPages,
    pub(crate) held: DescriptorBudget,
    pub(crate) events: Sender<LoopEvent>,
}

impl EventLoop {
    pub(crate) fn new(parts: LoopParts) -> Self {
        let (started_at, control) = (boot_ns(), parts.pages.control());
        let runs = ServedRuns::new(parts.config.dir.clone(), parts.config.tiers.len(), started_at);
        let tiers = TierSet::new(parts.tiers, &parts.config, parts.policy, control);
        let index = CopyIndex::new(parts.pages);
        let (node, copied) = (deliver(&parts.events, LoopEvent::Node), deliver(&parts.events, LoopEvent::Copied));
        let delivery = NodeDelivery {
            events: Arc::new(node),
            copied: Arc::new(copied),
        };
        let ram = parts.config.tiers.into_iter().filter(|setting| setting.ram);
        Self {
            runs,
            sources: SourceFiles::new(control),
            copies: PublishedCopies::new(index, tiers, parts.sweeps, started_at),
            flights: CopyFlights::default(),
            copier: parts.copier,
            recovery: Recovery::default(),
            cached_directories: CachedDirectories::new(parts.lister),
            prefetching: Prefetching::new(parts.prefetcher),
            read_lists: ReadLists::new(parts.recorder, parts.openers),
            skewed: SkewedHandoffs::default(),
            nodes: Nodes::new(delivery, parts.waits, parts.held),
            events: parts.events,
            keep: parts.config.keep,
            ram_dirs: ram.map(|setting| setting.dir).collect(),
            stop: false,
        }
    }

    /// Runs until the last run has ended, or until a command stops the agent if it is kept.
    pub(crate) fn serve(mut self, events: &Receiver<LoopEvent>) {
        self.run(events);
        self.end();
    }

    fn run(&mut self, events: &Receiver<LoopEvent>) {
        Log.line("serving");
        set_thread_nice(EVENT_LOOP_NICE);
        let mut last_tick = Instant::now();
        let mut last_room: Option<Instant> = None;
        let mut skipped = SkippedCopies::default();
        while !self.stop {
            let is_watching = self.copier.read_ahead().has_fast_reader();
            let most = if is_watching { AHEAD_JUDGED_EVERY } else { TICK };
            let pause = self.recovery.answer_waiting().map_or(most, |left| left.min(most));
            match events.recv_timeout(pause) {
                Ok(event) => {
                    self.handle(event);
                    while !self.stop
                        && let Ok(event) = events.try_recv()
                    {
                        self.handle(event);
                    }
                    if self.nodes.is_alone() {
                        thread::sleep(BATCH_PAUSE);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if is_watching {
                self.copier.read_ahead().judge_readers();
            }
            self.read_on();
            if last_room.is_none_or(|at| at.elapsed() >= ROOM_EVERY) {
                self.observe_room();
                last_room = Some(Instant::now());
            }
            if last_tick.elapsed() >= TICK {
                last_tick = Instant::now();
                self.tick();
                skipped.log(&self.runs.tally_of(None).skipped.not_copied, last_tick);
            }
        }
        skipped.log_all(&self.runs.tally_of(None).skipped.not_copied);
    }

    fn tick(&mut self) {
        self.watch_memory();
        self.copier.read_ahead().judge_readers();
        self.copies.tiers.retry_slow_tiers(deliver(&self.events, LoopEvent::SpeedRetried));
        self.copies.answer_void();
        self.copies.request_sweep();
        while let Some(handoff) = self.skewed.next_due(Instant::now()) {
            self.take_on(handoff);
        }
        self.nodes.let_openers_wait(&self.runs);
        self.nodes.forget_unwanted();
        let copier = &self.copier;
        self.flights
            .release_late_openers(Instant::now(), |dev| copier.source_bytes_per_s(dev));
        self.prefetch_more();
        self.read_listed();
        self.save_reads();
        self.end_if_drained();
    }

    fn handle(&mut self, event: LoopEvent) {
        match event {
            LoopEvent::Handoff(Ok(handoff)) => self.take_handoff(*handoff),
            LoopEvent::Handoff(Err(reason)) => self.runs.count_not_copied(0, reason),
            LoopEvent::Copied(copied) => self.finish_copy(copied),
            LoopEvent::ListedDirectory(listed) => self.take_listing(listed),
            LoopEvent::Swept(swept) => self.take_sweep(&swept),
            LoopEvent::Recovered(batch) => self.take_recovered(batch),
            LoopEvent::SpeedRetried(retry) => self.copies.tiers.finish_retry(&retry),
            LoopEvent::Prefetch(answer) => self.take_prefetched(answer),
            LoopEvent::ListLoaded(loaded) => self.take_list(loaded),
            LoopEvent::Listed(answer) => self.take_listed(answer),
            LoopEvent::Node(event) => {
                let (nodes, mut making) = self.making();
                nodes.take(event, &mut making);
            }
            LoopEvent::Command(CommandEvent::Asked {
                request,
                descriptors,
                run,
                reply,
            }) => {
                let joins = matches!(request, ControlRequest::Join { .. });
                let answer = self.answer(request, descriptors, run);
                if joins {
                    self.recovery.answer_join(reply, answer);
                } else {
                    // A command that has gone needs no answer; its connection reports the end, too.
                    reply.send(answer);
                }
            }
            LoopEvent::Command(CommandEvent::Disconnected { run }) => {
                if let Some(run) = run {
                    self.leave(run);
                    self.runs.disconnected(run);
                }
            }
        }
    }

    /// Measures the room in the tiers, and compacts catalogues.
    fn observe_room(&mut self) {
        self.copies.tiers.observe_disks();
        self.watch_memory();
        self.recovery.compact_catalogues(&self.copies.tiers);
        self.copies.tiers.publish_room();
        self.publish_page_cache();
    }

    /// Publishes the size of the largest file that is read ahead into the page cache alone, where no tier takes it.
    fn publish_page_cache(&self) {
        let read_ahead = self.copier.read_ahead();
        let bytes = if self.runs.want_ahead() { read_ahead.page_cache_bytes() } else { 0 };
        self.copies.tiers.control().set_pages_hint(bytes);
    }

    fn watch_memory(&mut self) {
        let is_short = self.copies.watch_memory();
        self.copier.set_memory_short(is_short);
    }

    fn take_sweep(&mut self, swept: &SweepResult) {
        if let Some(changed) = self.copies.take_sweep(swept) {
            self.runs.tally_all(|tally| {
                tally.sweeps += 1;
                tally.invalidated += changed;
            });
        }
    }

    fn take_recovered(&mut self, batch: RecoveryBatch) {
        let begun = thread_cpu();
        let (taken, has_runs) = (batch.taken.clone(), !self.runs.is_empty());
        let (recovery, mut target) = self.recovery_target();
        recovery.take(batch, has_runs, &mut target);
        if !self.recovery.is_running() {
            self.nodes.find_replicas(&mut self.copies);
        }
        // The thread counts this time in its budget; if it has ended, nobody does.
        let _ = taken.send(thread_cpu().saturating_sub(begun));
        for handoff in self.recovery.take_deferred() {
            self.take_on(handoff);
        }
    }

    fn recovery_target(&mut self) -> (&mut Recovery, RecoveryTarget<'_>) {
        let target = RecoveryTarget {
            copies: &mut self.copies,
            flights: &self.flights,
            mounts: self.sources.mounts(),
            recovered: &mut self.runs.total_mut().adopted,
        };
        (&mut self.recovery, target)
    }

    fn answer(&mut self, request: ControlRequest, descriptors: Vec<OwnedFd>, run: Option<u64>) -> ControlResponse {
        match request {
            ControlRequest::Join {
                version: _,
                sources,
                freshness,
                keep,
                prefetch,
                ahead,
                command,
                excludes,
                job,
            } => {
                let run = RunState {
                    freshness,
                    sources,
                    prefetch,
                    ahead,
                    excludes,
                    job,
                    tally: Status::default(),
                };
                self.join(keep, run, command)
            }
            ControlRequest::Share { job } => self.nodes.share(job, descriptors),
            ControlRequest::IsShared { job } => ControlResponse::IsShared {
                is_shared: self.nodes.is_shared(&job),
            },
            ControlRequest::Status => ControlResponse::Status(self.status(run)),
            ControlRequest::Totals => ControlResponse::Totals(Totals {
                status: self.status(None),
                doors: self.runs.counted_in_all(),
            }),
            ControlRequest::Leave => {
                let status = self.status(run);
                if let Some(run) = run {
                    self.leave(run);
                    self.runs.answer_leaving(run);
                }
                ControlResponse::Status(status)
            }
            ControlRequest::Stop if self.runs.is_empty() => {
                self.stop = true;
                ControlResponse::Stopping
            }
            ControlRequest::Stop => ControlResponse::Refused(format!("{} runs are using it", self.runs.len()).into()),
        }
    }

    fn join(&mut self, keep: bool, state: RunState, command: Option<String>) -> ControlResponse {
        let is_read_ahead = state.ahead == AheadMode::Auto;
        self.keep |= keep;
        self.sources.read_mounts();
        let run = self.runs.join(state);
        if let Some(key) = command {
            let page = is_read_ahead.then(|| self.runs.page_path(run));
            self.read_lists.begin(run, key, page);
        }
        self.copies.set_ttl(self.runs.ttl());
        self.publish_page_cache();
        self.begin_prefetch();
        // With the first run recovery begins; with later ones, sources may be mounted that were not.
        if !self.recovery.begin(&self.copies.tiers, deliver(&self.events, LoopEvent::Recovered)) {
            let (recovery, mut target) = self.recovery_target();
            recovery.retry_unmounted(&mut target);
            self.recovery.set_pace(true);
        }
        ControlResponse::Joined {
            run,
            started_at: self.runs.started_at(),
        }
    }

    fn leave(&mut self, run: u64) {
        self.runs.leave(run);
        self.read_lists.leave(run);
        self.nodes.stop_sharing(run, &self.runs);
        self.copies.set_ttl(self.runs.ttl());
        self.prefetching.set_on(self.runs.want_prefetch());
        if !self.prefetching.is_on() {
            self.copier.set_ahead(PrefetchGate::End);
        }
        if self.runs.is_empty() {
            self.recovery.set_pace(false);
        }
    }

    fn begin_prefetch(&mut self) {
        self.prefetching.set_on(self.runs.want_prefetch());
        if self.prefetching.is_on() {
            if let Err(error) = self.prefetching.start() {
                log::fallback(&format!("nothing is read ahead: {error}"));
            }
            self.copier.set_ahead(PrefetchGate::Hold);
        }
    }

    /// Prefetches more if a run asks for it and the source is idle.
    fn prefetch_more(&mut self) {
        if !self.prefetching.is_on() || self.recovery.is_running() {
            return;
        }
        let under_way = self.under_way(None);
        let total = self.runs.tally_of(None);
        let seen = Seen {
            now_ms: boot_ms(),
            asked: self.runs.counted().map(|counts| counts.source_open.count()).sum(),
            following: under_way.following(),
            ahead: under_way.ahead,
            copied_bytes: (total.files.bytes_copied + total.prefetch.prefetched_bytes).saturating_sub(self.copies.tiers.evicted_bytes()),
            wasted_bytes: self.prefetching.wasted_bytes(),
            room_bytes: self.copies.tiers.room(),
        };
        let index = &self.copies.index;
        let may_go_on = self.prefetching.next(&seen, &self.runs, &|| index.current());
        self.copier.set_ahead(if may_go_on { PrefetchGate::Go } else { PrefetchGate::Hold });
    }

    /// Counts what is under way for a run, or in all.
    fn under_way(&self, run: Option<u64>) -> CopiesUnderWay {
        let waiting = self.recovery.deferred().chain(self.skewed.waiting());
        let mut under_way = self.flights.under_way(run, waiting);
        under_way.directories += self.cached_directories.waiting_of(run);
        under_way
    }

    /// Returns the counts of a run, or of all runs, with the state of the agent and its tiers.
    fn status(&self, run: Option<u64>) -> Status {
        let under_way = self.under_way(run);
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let tally = self.runs.tally_of(run).clone();
        Status {
            prefetch: PrefetchCounts {
                prefetching: under_way.ahead as u64,
                ..tally.prefetch
            },
            peers: self.nodes.peer_counts(&tally.peers),
            in_flight: under_way.following() as u64,
            listings_in_flight: under_way.directories as u64,
            adopted: self.runs.tally_of(None).adopted,
            adopting: self.recovery.is_running(),
            runs: self.runs.len() as u64,
            tiers: self.copies.tiers.status(),
            memory: self.copies.tiers.memory.as_ref().map(|watch| watch.seen().into()),
            cpu_ms: cpu.tv_sec as u64 * 1000 + cpu.tv_nsec as u64 / 1_000_000,
            ..tally
        }
    }

    /// Stops after the last run, once its command has the answer, the files that its programs have opened are copied,
    /// and recovery has reaped the leftovers of dead agents; or a little later in any case. If a source was changed,
    /// all copies of earlier runs are recovered first: a changed file's copy must not serve a later run (P6), and only
    /// this agent knows of the change.
    fn end_if_drained(&mut self) {
        let Some(since) = self.runs.idle_since() else { return };
        // An agent without a first run waits for the command that started it.
        let served = self.runs.has_served();
        let idle = !self.runs.is_leaving() && self.under_way(None).is_nothing() && !self.recovery.is_running() && served;
        let owes = self.copies.tiers.control().newest_tombstone() != 0 && self.recovery.has_pending();
        let most = if owes { RECOVERY_DRAIN_MAX } else { DRAIN_MAX };
        if (idle || since.elapsed() >= most) && !(self.keep && served) {
            self.stop = true;
        }
    }

    fn end(&mut self) {
        self.copies.tiers.control().close();
        self.read_lists.end();
        self.copies.drop_changed();
        self.copies.write_use();
        if self.recovery.may_compact() {
            self.copies.compact();
        }
        self.copies.index.remove_files();
        Log.line("ended");
        for state in self.copies.tiers.iter() {
            state.tier.give_up_lease();
        }
        for dir in &self.ram_dirs {
            if let Err(error) = ram::remove(dir) {
                log::fallback(&format!("copies in memory could not be removed: {error}"));
            }
        }
    }
}
