//! The clerk: the one thread that owns the index, the placement and the catalogue. It is told what happened and does what `policy`
//! says; it never waits for the source.

mod adopt;
mod ahead_of_clock;
mod ending;
mod evict;
mod flight;
mod fresh;
mod listings;
mod live;
mod prefetch;
mod publish;
mod records;
mod speed;
mod status;

use std::{
    collections::{HashMap, HashSet},
    os::unix::ffi::OsStrExt,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::Instant,
};

use forebay_contract::{Control, Excludes};
use forebay_policy::{
    fill_first::FillFirst,
    speed::{Sample, Speed},
};
use forebay_store::{Ask, Tier};

use crate::{
    host::{
        clock::{boot_ns, unix_s},
        log::Log,
        shared::set_thread_nice,
    },
    tiering::{
        config::{AgentConfig, TierSetting},
        control::CommandEvent,
        copier::{Copied, Copier, CopyJob, OpenedSource},
        counts::Counts,
        handoff::Handoff,
        limits::{BATCH_PAUSE, CLERK_NICE, ROOM_EVERY, TICK},
        lister::{self, ListedDirectory},
        mounts::MountTable,
        pages::Pages,
        prefetcher,
        protocol::{ControlRequest, ControlResponse, RunFreshness, SourceSetting, Status},
        reader::Writers,
        recovery::RecoveryBatch,
        skipped::SkippedCopies,
        sweeper::{SweepRequest, SweepResult},
    },
};

use ahead_of_clock::FROM_THE_FUTURE;
use flight::{Flight, FlightName};

/// What happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// A program has opened a source file; or the reason why its handoff was lost.
    Handoff(Result<Box<Handoff>, &'static str>),
    /// A copy has ended.
    Copied(Copied),
    /// A directory has been listed.
    Listed(ListedDirectory),
    /// A directory has been compared with the source.
    Swept(SweepResult),
    /// Copies of earlier runs.
    Adopted(RecoveryBatch),
    /// Copies of a tier that was set aside have been read again.
    ReadAgain {
        /// The tier.
        tier: usize,
        /// How long that took.
        samples: Vec<Sample>,
    },
    /// A directory was listed, or files of it opened, to be copied ahead.
    Prefetch(prefetcher::PrefetchAnswer),
    /// A command asks for something, or has gone.
    Command(CommandEvent),
}

/// Returns a closure that sends one kind of message to the event loop. Once the loop has ended, the process ends too, so a message that nobody
/// receives is dropped.
pub(crate) fn deliver<T: 'static>(events: &Sender<Event>, event: fn(T) -> Event) -> impl Fn(T) + Clone + Send + 'static {
    let events = events.clone();
    move |message| drop(events.send(event(message)))
}

/// A tier and what is kept about it.
#[derive(Debug)]
struct TierState {
    setting: TierSetting,
    tier: Arc<Tier>,
    files: u64,
    listings: u64,
    faults: u32,
    off: Option<String>,
    /// Of its copies what was removed since memory grew short.
    given_back: evict::Evicted,
    /// Of its copies what was removed to make room for others.
    replaced: evict::Evicted,
    speed: Speed,
    /// How often it was set aside for being slow.
    set_aside: u64,
}

/// A run that is served.
#[derive(Debug)]
struct RunState {
    freshness: RunFreshness,
    sources: Vec<SourceSetting>,
    prefetch: bool,
    /// Patterns of files that are the source's alone, each with a NUL behind it.
    excludes: Vec<u8>,
    tally: Status,
}

impl RunState {
    /// Returns whether an absolute path is of a file that is the source's alone.
    fn excludes(&self, path: &[u8]) -> bool {
        let roots = self.sources.iter().map(|source| source.path.as_os_str().as_bytes());
        Excludes::new(&self.excludes).matches(path, &roots)
    }
}

/// A spelled directory.
#[derive(Debug, Default)]
struct DirectoryState {
    names: u32,
    /// Of these, those of listings, which doors can compare by themselves: for them alone no directory is swept.
    listings: u32,
    /// When its next sweep is due, boot time; 0: it has nothing to validate yet.
    due_at: u64,
    /// When its copies were used in earlier runs, seconds since 1970; 0: that is not known.
    used_before_unix_s: i64,
    /// A program found its names out of time.
    wanted: bool,
    sweeping: bool,
}

/// The clerk's state.
#[derive(Debug)]
pub(crate) struct Clerk {
    config: AgentConfig,
    started_at: u64,
    started_unix_s: i64,
    writers: Writers,
    pages: Pages,
    control: Control<'static>,
    policy: FillFirst,
    tiers: Vec<TierState>,
    /// `None` where no tier lies in memory.
    memory: Option<evict::MemoryWatch>,
    eviction: evict::Eviction,
    copier: Copier,
    sweeps: Sender<SweepRequest>,
    events: Sender<Event>,
    log: Log,
    mounts: MountTable,
    names: records::Names,
    directories: HashMap<Vec<u8>, u32>,
    directory_states: Vec<DirectoryState>,
    flights: HashMap<u64, Flight>,
    flight_of_file: HashMap<(u64, u64), u64>,
    runs: HashMap<u64, RunState>,
    next_run: u64,
    next_flight: u64,
    total: Status,
    /// What doors had counted in runs that have ended.
    doors_of_ended: Counts,
    sweep_budgets: fresh::Budgets,
    void_answered: u64,
    /// Looks at directories' inodes that are under way.
    looks: u64,
    adoption: adopt::Adoption,
    listings: listings::Listings,
    prefetch: prefetch::Prefetching,
    ahead_of_clock: ahead_of_clock::AheadOfClock,
    /// The index had no room; nothing is copied until then.
    no_room_until: Option<Instant>,
    draining_since: Option<Instant>,
    /// Runs that have left, and may not have been told yet: their connections are open.
    leaving: HashSet<u64>,
    stop: bool,
}

/// What a clerk is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) config: AgentConfig,
    pub(crate) pages: Pages,
    pub(crate) policy: FillFirst,
    pub(crate) tiers: Vec<Arc<Tier>>,
    pub(crate) copier: Copier,
    pub(crate) sweeps: Sender<SweepRequest>,
    pub(crate) lister: Sender<lister::ListerRequest>,
    pub(crate) prefetcher: prefetcher::Prefetcher,
    pub(crate) events: Sender<Event>,
    pub(crate) log: Log,
}

impl Clerk {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts {
            config,
            pages,
            policy,
            tiers,
            copier,
            sweeps,
            lister,
            prefetcher,
            events,
            log,
        } = parts;
        let memory = evict::MemoryWatch::over(tiers.iter().map(|tier| tier.is_memory()));
        let tiers = tiers
            .into_iter()
            .zip(&config.tiers)
            .map(|(tier, setting)| TierState {
                setting: setting.clone(),
                tier,
                files: 0,
                listings: 0,
                faults: 0,
                off: None,
                given_back: evict::Evicted::default(),
                replaced: evict::Evicted::default(),
                speed: Speed::default(),
                set_aside: 0,
            })
            .collect();
        let started_at = boot_ns();
        Self {
            started_at,
            started_unix_s: unix_s(),
            writers: Writers::default(),
            control: pages.control(),
            pages,
            policy,
            tiers,
            memory,
            eviction: evict::Eviction::default(),
            copier,
            sweeps,
            events,
            log,
            mounts: MountTable::default(),
            names: records::Names::default(),
            directories: HashMap::new(),
            directory_states: Vec::new(),
            flights: HashMap::new(),
            flight_of_file: HashMap::new(),
            runs: HashMap::new(),
            // A page's name must not come again while a late child of an ended run may look for it.
            next_run: started_at,
            next_flight: 0,
            total: Status::default(),
            doors_of_ended: Counts::none(config.tiers.len()),
            sweep_budgets: fresh::Budgets::new(Instant::now()),
            void_answered: 0,
            looks: 0,
            adoption: adopt::Adoption::default(),
            listings: listings::Listings::new(lister),
            prefetch: prefetch::Prefetching::new(prefetcher),
            ahead_of_clock: ahead_of_clock::AheadOfClock::default(),
            no_room_until: None,
            draining_since: Some(Instant::now()),
            leaving: HashSet::new(),
            stop: false,
            config,
        }
    }

    /// Runs until the last run has ended (or for ever, if kept).
    pub(crate) fn serve(mut self, events: &Receiver<Event>) {
        self.run(events);
        self.end();
    }

    fn run(&mut self, events: &Receiver<Event>) {
        self.log.line("serving");
        set_thread_nice(CLERK_NICE);
        let mut last_tick = Instant::now();
        let mut last_room: Option<Instant> = None;
        let mut skipped = SkippedCopies::default();
        while !self.stop {
            let pause = self.let_start().map_or(TICK, |left| left.min(TICK));
            match events.recv_timeout(pause) {
                Ok(event) => {
                    self.handle(event);
                    while !self.stop
                        && let Ok(event) = events.try_recv()
                    {
                        self.handle(event);
                    }
                    thread::sleep(BATCH_PAUSE);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if last_room.is_none_or(|at| at.elapsed() >= ROOM_EVERY) {
                self.observe_room();
                last_room = Some(Instant::now());
            }
            if last_tick.elapsed() >= TICK {
                last_tick = Instant::now();
                self.watch_memory();
                self.retry_slow_tiers();
                self.answer_void();
                self.ask_for_sweeps();
                self.take_waited();
                self.prefetch_more();
                self.end_if_drained();
                skipped.log(&self.total.not_copied, last_tick);
            }
        }
        skipped.log_all(&self.total.not_copied);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Handoff(Ok(handed)) => self.handed(*handed),
            Event::Handoff(Err(reason)) => self.not_copied(0, reason),
            Event::Copied(copied) => self.copied(copied),
            Event::Listed(listed) => self.listed(listed),
            Event::Swept(swept) => self.swept(&swept),
            Event::Adopted(batch) => self.adopted(batch),
            Event::ReadAgain { tier, samples } => self.read_again(tier, &samples),
            Event::Prefetch(answer) => self.prefetched(answer),
            Event::Command(CommandEvent::Asked { request, run, reply }) => {
                let joins = matches!(request, ControlRequest::Join { .. });
                let answer = self.answer(request, run);
                if joins {
                    self.answer_join(reply, answer);
                } else {
                    // A command that has gone away needs no answer; its disconnection is told as well.
                    reply.send(answer);
                }
            }
            Event::Command(CommandEvent::Disconnected { run }) => {
                if let Some(run) = run {
                    self.leave(run);
                    self.leaving.remove(&run);
                }
            }
        }
    }

    /// A program has opened a source file, or listed a directory: confirm its name, join a copy that is being made, or begin one.
    fn handed(&mut self, handed: Handoff) {
        self.count_handed(&handed);
        self.hold_prefetch(&handed);
        if let Some(handed) = self.defer(handed) {
            self.take_on(handed);
        }
    }

    fn take_on(&mut self, handed: Handoff) {
        if let Err(reason) = self.acceptable(&handed) {
            if reason == FROM_THE_FUTURE && self.may_wait(&handed) {
                return self.wait_for_clock(handed);
            }
            self.not_kept(handed.run, &handed.stat, reason);
            return;
        }
        let identity = handed.stat.identity;
        if let Some((number, same)) = self
            .pages
            .index()
            .find_kept(&handed.path)
            .map(|(n, r)| (n, self.is_copy_of(r, &identity)))
        {
            if same && self.copy_is_there(number) {
                self.pages.writer().confirm(number, handed.opened_at);
                self.want_directory_of(number);
                self.confirmed(handed.run, &handed.stat);
                return;
            }
            if same {
                self.drop_copy_of(number);
            } else {
                self.drop_record(number);
            }
        }
        if let Some(number) = self.names.of_file(&self.pages.index(), identity.dev, identity.ino) {
            if self
                .pages
                .index()
                .record(number)
                .is_some_and(|record| self.is_copy_of(record, &identity))
            {
                self.add_spelling(number, &handed);
                return;
            }
            self.drop_copy_of(number);
        }
        if handed.stat.is_directory() {
            return self.list(handed);
        }
        if let Some(number) = self.flight_of_file.get(&(identity.dev, identity.ino)).copied() {
            self.join_flight(number, handed);
            return;
        }
        self.begin_copy(handed);
    }

    /// The file is being copied: its copy gets one more name, and one more reader to follow.
    fn join_flight(&mut self, number: u64, handed: Handoff) {
        let Some(flight) = self
            .flights
            .get_mut(&number)
            .filter(|flight| flight.identity == handed.stat.identity)
        else {
            self.not_copied(handed.run, "changed_meanwhile");
            return;
        };
        // From here on the copy follows a program.
        flight.ahead = false;
        let size = flight.identity.size;
        FlightName::add_to(&mut flight.names, &handed);
        let opened = OpenedSource {
            source: handed.source,
            pid: handed.pid,
            descriptor: handed.descriptor,
            _place: handed.place,
        };
        self.copier.opened_again(number, size, opened);
    }

    /// Whether a hand-over may become a copy, or a listing, at all.
    fn acceptable(&mut self, handed: &Handoff) -> Result<(), &'static str> {
        let run = self.runs.get(&handed.run).ok_or("unknown_run")?;
        if run.excludes(&handed.path) || handed.other_name.as_ref().is_some_and(|name| run.excludes(name)) {
            return Err("excluded");
        }
        let is_regular = handed.stat.is_regular();
        if !is_regular && !handed.stat.is_directory() {
            return Err("not_regular");
        }
        let identity = &handed.stat.identity;
        // Only what doors can recognise when it is written to.
        if !run.sources.iter().any(|source| source.dev == identity.dev) {
            return Err("another_file_system");
        }
        // First: the mark of such a file is that of a change, too.
        if is_regular && self.is_live(handed) {
            return Err("live");
        }
        self.is_settled(handed)?;
        if is_regular && self.has_writer(handed) {
            return Err("open_for_writing");
        }
        Ok(())
    }

    fn begin_copy(&mut self, handed: Handoff) {
        if self.index_has_no_room() {
            self.not_copied(handed.run, publish::INDEX_FULL);
            return;
        }
        let (number, tier) = match self.place(handed.stat.identity.size) {
            Ok(placed) => placed,
            Err(reason) => {
                self.not_copied(handed.run, status::refusal_name(reason));
                self.publish_room();
                return;
            }
        };
        self.start_copy(handed, number, tier, false);
    }

    /// Has a placed copy made.
    fn start_copy(&mut self, handed: Handoff, number: u64, tier: usize, ahead: bool) {
        let identity = handed.stat.identity;
        let sampled = self.is_sample_due(tier, identity.size);
        let Some(state) = self.tiers.get(tier) else { return };
        let copy = state.tier.next_id();
        let names = vec![FlightName::of(&handed)];
        let job = CopyJob {
            number,
            copy,
            tier: Arc::clone(&state.tier),
            identity,
            sampled,
            ahead,
            sparse: handed.stat.may_have_holes(),
            ask: if handed.waited.is_some() { Ask::Server } else { Ask::Kernel },
            pages: self.pages_to_clean(&identity),
            opened_at: handed.opened_at,
            control: self.control,
            opened: OpenedSource {
                source: handed.source,
                pid: handed.pid,
                descriptor: handed.descriptor,
                _place: handed.place,
            },
        };
        self.flights.insert(
            number,
            Flight {
                copy,
                identity,
                stat: handed.stat,
                tier,
                run: handed.run,
                ahead,
                names,
            },
        );
        self.flight_of_file.insert((identity.dev, identity.ino), number);
        self.copier.add(job);
        self.publish_room();
    }

    fn answer(&mut self, request: ControlRequest, run: Option<u64>) -> ControlResponse {
        match request {
            ControlRequest::Join {
                version: _,
                sources,
                freshness,
                keep,
                prefetch,
                excludes,
            } => {
                let run = RunState {
                    freshness,
                    sources,
                    prefetch,
                    excludes,
                    tally: Status::default(),
                };
                self.join(keep, run)
            }
            ControlRequest::Status => ControlResponse::Status(self.status(run)),
            ControlRequest::Totals => ControlResponse::Totals(self.totals()),
            ControlRequest::Leave => {
                let status = self.status(run);
                if let Some(run) = run {
                    self.leave(run);
                    self.leaving.insert(run);
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

    fn join(&mut self, keep: bool, state: RunState) -> ControlResponse {
        self.next_run += 1;
        let run = self.next_run;
        self.config.keep |= keep;
        self.draining_since = None;
        self.mounts = MountTable::read();
        self.runs.insert(run, state);
        self.begin_prefetch();
        self.adopt_more();
        ControlResponse::Joined {
            run,
            started_at: self.started_at,
        }
    }
}
