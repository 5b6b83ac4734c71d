//! Number of concurrent reads: as many as gain throughput, found by trial.
//!
//! A source that is far away needs many reads under way before it is busy; beyond that, further reads only wait
//! there, and urgent reads wait behind others. So the number grows by half as long as that gains a twentieth of
//! throughput. If it gains less twice in a row, the number stays for a while, and then a little more and a little less
//! are tried alternately. Once is not enough: where some reads take much longer than others, a round in which several
//! of them meet is slow whatever the number is. Only times in which reads waited for a place count: at other times the
//! number was not the limit.

/// Number to begin with.
const START: u32 = 4;
/// A larger number must gain this share of throughput, and a smaller one must not lose as much.
const GAIN: f64 = 0.05;
/// Reads of a round, as a multiple of the number of concurrent reads, and at least.
const ROUND: u32 = 4;
const ROUND_MIN: u32 = 32;
/// Rounds between two trials.
const REST: u32 = 16;
/// Rounds before a trial is repeated. In the first of them end reads that began beside more.
const REST_BEFORE_REPEAT: u32 = 2;
/// Bytes that a read counts beside its own: many small reads are work too.
const READ_BYTES: u64 = 16 << 10;

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

/// The number of concurrent reads, and the measurements behind it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Concurrency {
    most: u32,
    limit: u32,
    trial: Trial,
    /// The number to go back to where a trial fails, and its throughput in bytes a second; 0: not measured yet.
    best: u32,
    best_rate: f64,
    /// True if the next trial is of more.
    next_is_more: bool,
    /// True if a trial of more that fails is repeated.
    repeats: bool,
    /// The round: when it began, reads and bytes since then.
    began_s: Option<f64>,
    reads: u32,
    bytes: u64,
}

impl Concurrency {
    /// Starts with at most `most` concurrent reads, and at least one.
    pub fn new(most: u32) -> Self {
        let most = most.max(1);
        let limit = START.min(most);
        Self {
            most,
            limit,
            trial: Trial::More,
            best: limit,
            best_rate: 0.0,
            next_is_more: false,
            repeats: true,
            began_s: None,
            reads: 0,
            bytes: 0,
        }
    }

    /// Sets the most concurrent reads.
    pub fn set_most(&mut self, most: u32) {
        self.most = most.max(1);
        self.limit = self.limit.min(self.most);
        self.best = self.best.min(self.most);
    }

    /// Number of reads that may be made concurrently.
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// Records the end of a read. `others_wait` says that other reads begin as soon as there is a place for them.
    pub fn ended(&mut self, now_s: f64, bytes: u64, others_wait: bool) {
        if !others_wait {
            self.began_s = None;
            return;
        }
        let Some(began_s) = self.began_s else {
            // A round begins when reads wait for places again.
            (self.began_s, self.reads, self.bytes) = (Some(now_s), 0, 0);
            return;
        };
        self.reads += 1;
        self.bytes += bytes + READ_BYTES;
        let took_s = now_s - began_s;
        if self.reads >= (ROUND * self.limit).max(ROUND_MIN) && took_s > 0.0 {
            self.round(self.bytes as f64 / took_s);
            self.began_s = None;
        }
    }

    /// A round with the present number has ended.
    fn round(&mut self, rate: f64) {
        match self.trial {
            Trial::None { rounds } if rounds > 1 => self.trial = Trial::None { rounds: rounds - 1 },
            Trial::None { .. } => {
                // The source may have changed: trials are compared with the present rate.
                (self.best, self.best_rate) = (self.limit, rate);
                self.trial = if self.next_is_more { Trial::More } else { Trial::Less };
                self.next_is_more = !self.next_is_more;
                self.try_next();
            }
            Trial::More if rate >= self.best_rate * (1.0 + GAIN) => self.go_on(rate),
            Trial::Less if rate >= self.best_rate * (1.0 - GAIN) => self.go_on(rate.max(self.best_rate)),
            Trial::More if self.repeats => {
                (self.repeats, self.next_is_more) = (false, true);
                self.rest(REST_BEFORE_REPEAT);
            }
            Trial::More | Trial::Less => {
                self.repeats = true;
                self.rest(REST);
            }
        }
    }

    fn go_on(&mut self, rate: f64) {
        self.repeats = true;
        (self.best, self.best_rate) = (self.limit, rate);
        self.try_next();
    }

    fn try_next(&mut self) {
        self.limit = match self.trial {
            Trial::Less => self.best * 2 / 3,
            Trial::More | Trial::None { .. } => self.best + self.best.div_ceil(2),
        }
        .clamp(1, self.most);
        if self.limit == self.best {
            self.rest(REST);
        }
    }

    fn rest(&mut self, rounds: u32) {
        self.limit = self.best;
        self.trial = Trial::None { rounds };
    }
}
