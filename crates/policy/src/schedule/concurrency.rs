//! Number of concurrent reads: as many as gain throughput, found by trial.
//!
//! A source that is far away needs many reads under way before it is busy; beyond that, further reads only wait
//! there, and urgent reads wait behind others. So the number grows by half as long as that gains a twentieth of
//! throughput; at the start it doubles in shorter rounds, until one gains less. If it gains less twice in a row, the
//! number stays for a while, and then a little more and a little less are tried alternately. Once is not enough: where
//! some reads take much longer than others, a round in which several of them meet is slow whatever the number is. For
//! the same reason less counts as enough only if it was twice in a row: too few reads delay all ranks, too many hardly
//! do.
//!
//! Throughput is that of expected seconds, not of bytes: a read counts as long as it takes beside the best number so
//! far. One rank's files may take four times as long as another's, and a round of quick ones would look like a gain.
//! Only times in which reads waited for a place count: at other times the number was not the limit.

/// Number to begin with.
const START: u32 = 4;
/// A larger number must gain this share of throughput, and a smaller one must not lose as much.
const GAIN: f64 = 0.05;
/// Reads of a round, as a multiple of the number of concurrent reads, and at least.
const ROUND: u32 = 4;
const ROUND_MIN: u32 = 32;
/// Reads of a round at the start, likewise. A long round with too few reads under way would delay the job, and a later
/// one corrects a wrong one.
const START_ROUND: u32 = 2;
const START_ROUND_MIN: u32 = 16;
/// Rounds between two trials.
const REST: u32 = 16;
/// Rounds before a trial is repeated.
const REST_BEFORE_REPEAT: u32 = 1;
/// Bytes that a read counts beside its own: many small reads are work too.
const READ_BYTES: u64 = 16 << 10;
/// Weight that a read loses with each later one of its rank.
const FADING: f64 = 1.0 - 1.0 / 64.0;

/// A read of the source that has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EndedRead {
    /// Rank that it was made for, counted within its node: one rank's files may be slower to read.
    pub local_rank: u32,
    /// Its bytes.
    pub bytes: u64,
    /// Its time in seconds; `None` if it was made twice, or that is not known.
    pub took_s: Option<f64>,
}

impl EndedRead {
    fn work(self) -> f64 {
        (self.bytes + READ_BYTES) as f64
    }
}

/// Change that is being tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    /// More than the best number so far.
    More,
    /// Less than the best number so far.
    Less,
    /// No change, for this number of rounds.
    None { rounds: u32 },
}

/// Recent reads: their bytes, and the seconds that they took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ReadCost {
    work: f64,
    seconds: f64,
}

impl ReadCost {
    fn add(&mut self, work: f64, seconds: f64) {
        self.work = self.work.mul_add(FADING, work);
        self.seconds = self.seconds.mul_add(FADING, seconds);
    }

    /// Seconds of a byte; `None` while nothing was read.
    fn byte_s(self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.seconds / self.work)
    }
}

/// A row of reads with the same number.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Round {
    began_s: f64,
    reads: u32,
    /// Seconds that its reads were expected to take.
    expected_s: f64,
    /// Seconds that those with a known time were expected to take, and took.
    timed: (f64, f64),
}

/// The number of concurrent reads, and the measurements behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct Concurrency {
    most: u32,
    limit: u32,
    trial: Trial,
    /// The number to go back to where a trial fails.
    best: u32,
    /// Expected seconds of reads that end in a second beside the best number; 0: not measured yet.
    best_rate: f64,
    /// Reads beside the best number, by rank, and of all ranks.
    costs: Vec<ReadCost>,
    cost: ReadCost,
    /// True until a trial has failed, or the most is reached.
    is_start: bool,
    /// True if the next trial is of more.
    next_is_more: bool,
    /// True if the present trial is the second of its kind: it decides.
    is_second: bool,
    /// Reads that end first: they began beside another number, and tell of neither.
    settling: u32,
    round: Option<Round>,
}

impl Concurrency {
    /// Starts with at most `most` concurrent reads, and at least one.
    pub fn new(most: u32) -> Self {
        let most = most.max(1);
        let limit = START.min(most);
        Self {
            most,
            limit,
            trial: Trial::None { rounds: 1 },
            best: limit,
            best_rate: 0.0,
            costs: Vec::new(),
            cost: ReadCost::default(),
            is_start: true,
            next_is_more: true,
            is_second: false,
            settling: limit,
            round: None,
        }
    }

    /// Number of reads that may be made concurrently.
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// Records the end of a read. `others_wait` says that other reads begin as soon as there is a place for them.
    pub fn ended(&mut self, now_s: f64, read: EndedRead, others_wait: bool) {
        if !others_wait {
            self.round = None;
        }
        if self.settling > 0 {
            self.settling -= 1;
            return;
        }
        if !others_wait {
            return;
        }
        if matches!(self.trial, Trial::None { .. }) {
            self.learn(read);
        }
        let expected_s = read.work() * self.byte_s(read.local_rank);
        let Some(round) = &mut self.round else {
            // A round begins when reads wait for places again.
            self.round = Some(Round {
                began_s: now_s,
                reads: 0,
                expected_s: 0.0,
                timed: (0.0, 0.0),
            });
            return;
        };
        round.reads += 1;
        round.expected_s += expected_s;
        if let Some(took_s) = read.took_s {
            round.timed.0 += expected_s;
            round.timed.1 += took_s;
        }
        let elapsed_s = now_s - round.began_s;
        let (of_each, least) = if self.is_start {
            (START_ROUND, START_ROUND_MIN)
        } else {
            (ROUND, ROUND_MIN)
        };
        if round.reads >= (of_each * self.limit).max(least) && elapsed_s > 0.0 {
            let (rate, (expected_s, took_s)) = (round.expected_s / elapsed_s, round.timed);
            self.round = None;
            self.end_round(rate, if expected_s > 0.0 { took_s / expected_s } else { 1.0 });
        }
    }

    /// Notes what a read takes beside the best number.
    fn learn(&mut self, read: EndedRead) {
        let Some(took_s) = read.took_s.filter(|took_s| *took_s > 0.0) else {
            return;
        };
        let rank = read.local_rank as usize;
        if self.costs.len() <= rank {
            self.costs.resize(rank + 1, ReadCost::default());
        }
        self.costs[rank].add(read.work(), took_s);
        self.cost.add(read.work(), took_s);
    }

    /// Returns the seconds of a byte beside the best number: those of the rank if it has read, else those of all.
    fn byte_s(&self, local_rank: u32) -> f64 {
        let of_rank = self.costs.get(local_rank as usize).and_then(|cost| cost.byte_s());
        of_rank.or(self.cost.byte_s()).unwrap_or(0.0)
    }

    /// A round with the present number has ended, in which reads took `longer` times as long as beside the best one.
    fn end_round(&mut self, rate: f64, longer: f64) {
        match self.trial {
            Trial::None { rounds } if rounds > 1 => {
                self.trial = Trial::None { rounds: rounds - 1 };
            }
            Trial::None { .. } => {
                // The source may have changed: trials are compared with the present rate.
                self.best_rate = rate;
                self.trial = if self.next_is_more { Trial::More } else { Trial::Less };
                self.try_next();
            }
            Trial::More if rate >= self.best_rate * (1.0 + GAIN) => self.go_on(rate, longer),
            Trial::Less if rate >= self.best_rate * (1.0 - GAIN) => {
                if self.is_second {
                    self.go_on(rate, longer);
                } else {
                    self.repeat();
                }
            }
            Trial::More if !self.is_second => self.repeat(),
            Trial::More | Trial::Less => {
                self.next_is_more = self.trial == Trial::Less;
                self.rest();
            }
        }
    }

    /// Makes the number that is tried the best one, and tries the next.
    fn go_on(&mut self, rate: f64, longer: f64) {
        self.best = self.limit;
        self.best_rate = rate * longer;
        for cost in self.costs.iter_mut().chain([&mut self.cost]) {
            cost.seconds *= longer;
        }
        self.is_second = false;
        self.try_next();
    }

    fn try_next(&mut self) {
        self.limit = match self.trial {
            Trial::Less => self.best * 2 / 3,
            Trial::More | Trial::None { .. } if self.is_start => self.best * 2,
            Trial::More | Trial::None { .. } => self.best + self.best.div_ceil(2),
        }
        .clamp(1, self.most);
        self.settling = self.limit.max(self.best);
        if self.limit == self.best {
            self.next_is_more = self.trial == Trial::Less;
            self.rest();
        }
    }

    /// Tries the same again soon.
    fn repeat(&mut self) {
        self.next_is_more = self.trial == Trial::More;
        self.is_second = true;
        self.rest_for(REST_BEFORE_REPEAT);
    }

    fn rest(&mut self) {
        self.is_second = false;
        self.rest_for(REST);
    }

    fn rest_for(&mut self, rounds: u32) {
        self.is_start = false;
        self.settling = self.limit.max(self.best);
        self.limit = self.best;
        self.trial = Trial::None { rounds };
    }
}
