//! How many reads are made at once: as many as gain throughput, found by trying.
//!
//! A source that is far away needs many reads under way before it is busy; past that, more of them only wait there, and those that are due
//! wait behind others. So the number grows by half as long as that gains a twentieth, stays a while where it does not, and is then tried anew:
//! a little more, or a little less, in turn. Only times in which reads waited for a place count: otherwise it was not the number that held them up.

/// Where it begins.
const START: u32 = 4;
/// A larger number must gain this share of throughput, and a smaller one must not lose as much.
const GAIN: f64 = 0.05;
/// Reads of a round, by the number that are made at once, and at least.
const ROUND: u32 = 4;
const ROUND_MIN: u32 = 32;
/// Rounds between two trials.
const REST: u32 = 16;
/// A read counts as so many bytes beside its own: many small ones are work too.
const READ_BYTES: u64 = 16 << 10;

/// What is being tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    /// More than what was best so far.
    More,
    /// Less.
    Less,
    /// Nothing, for so many rounds.
    None { rounds: u32 },
}

/// The number of reads that are made at once, and what is known of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Concurrency {
    most: u32,
    limit: u32,
    trial: Trial,
    /// The number to go back to where a trial fails, and its throughput in bytes a second; 0: not measured yet.
    best: u32,
    best_rate: f64,
    /// What is tried next: more?
    next_is_more: bool,
    /// The round: when it began, reads and bytes since then.
    began_s: Option<f64>,
    reads: u32,
    bytes: u64,
}

impl Concurrency {
    /// At most `most` at once, and at least one.
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
            began_s: None,
            reads: 0,
            bytes: 0,
        }
    }

    /// So many may be made at once.
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// A read of so many bytes has ended. `others_wait`: as soon as there is a place for them others begin.
    pub fn ended(&mut self, now_s: f64, bytes: u64, others_wait: bool) {
        if !others_wait {
            self.began_s = None;
            return;
        }
        let Some(began_s) = self.began_s else {
            // The round begins when a place was taken at once again.
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
                // The source may be another by now: what is tried is compared with how it is.
                (self.best, self.best_rate) = (self.limit, rate);
                self.trial = if self.next_is_more { Trial::More } else { Trial::Less };
                self.next_is_more = !self.next_is_more;
                self.try_next();
            }
            Trial::More if rate >= self.best_rate * (1.0 + GAIN) => self.go_on(rate),
            Trial::Less if rate >= self.best_rate * (1.0 - GAIN) => self.go_on(rate.max(self.best_rate)),
            Trial::More | Trial::Less => self.rest(),
        }
    }

    fn go_on(&mut self, rate: f64) {
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
            self.rest();
        }
    }

    fn rest(&mut self) {
        self.limit = self.best;
        self.trial = Trial::None { rounds: REST };
    }
}
