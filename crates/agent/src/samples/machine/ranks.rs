//! Requests and progress of each rank. Requests have sequence numbers; they are fetched in that order and end in any
//! order.

use std::collections::{BTreeMap, VecDeque};

use forebay_contract::request_ring::SampleRequest;
use forebay_policy::ids::{EpochNumber, Iteration, Sample};
use forebay_policy::models::StepPace;
use forebay_policy::residency::future::EPOCHS_AHEAD;

/// RequestStage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestStage {
    /// It waits to be fetched.
    Asked,
    /// The policy has let it in; its bytes are being read.
    Coming,
    /// Its bytes are being read, but the rank has released it meanwhile.
    Dropped,
    /// The rank has its bytes.
    Ready,
    /// The rank reads it itself; the policy does not know it, or no longer.
    Refused,
    /// The rank has released it.
    Over,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    pub(super) sample: Sample,
    /// Epoch as the rank numbers it.
    epoch: u32,
    pub(super) pass: EpochNumber,
    pub(super) iteration: Iteration,
    /// Step, counted over all passes.
    pub(super) step: u64,
    pub(super) stage: RequestStage,
}

/// Load of one step of a rank, as its requests were let in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RankStepLoad {
    step: u64,
    /// Samples of the step, all to be decoded, and their bytes.
    pub(super) samples: u32,
    pub(super) sample_bytes: u64,
    /// Bytes that are read for them from disks, other nodes and the source.
    pub(super) read_bytes: [u64; 3],
}

/// Increment of the pass if an epoch does not follow the one before (1 if it does). Policies know epochs by their
/// passes, so they apply nothing that they had foreseen for another epoch.
const JUMP: EpochNumber = EPOCHS_AHEAD + 1;

/// Share of the duration that deadlines assume: if steps are shorter than that, deadlines are set again.
const SHORTER: f64 = 0.9;

/// Deadline of all requests of a rank that has measured no step, and distance of its steps: such reads are late for a
/// long time. They go in the order of steps, independent of predicted times and of the rank that asked first, and
/// before those of ranks that have measured. An epoch has 2^32 steps at most, so none of them is due in the future.
const UNMEASURED_S: f64 = -1e13;
const UNMEASURED_STEP_S: f64 = 1000.0;

/// A rank.
#[derive(Debug, Default)]
pub(super) struct RankRequests {
    /// Requests from sequence number `first` on.
    uses: VecDeque<Used>,
    first: u64,
    /// Requests that are over except for their bytes, which the rank still uses, by sequence number: see
    /// [`Self::overtake`].
    held: BTreeMap<u64, Sample>,
    /// Requests that were released while they were being read, by sequence number. They do not delay the rank: the read
    /// may hang.
    dropped: BTreeMap<u64, Used>,
    /// First sequence number that may still wait to be fetched.
    fetch_from: u64,
    /// Epoch and iteration of the last request, and its pass.
    last: Option<(u32, u32)>,
    pass: EpochNumber,
    is_gone: bool,
    pace: StepPace,
    /// Duration that the deadlines of queued reads assume, in seconds.
    assumed_step_s: f64,
    /// Loads of the step whose requests are being let in, and of the one before it.
    letting_in: RankStepLoad,
    let_in: RankStepLoad,
}

impl RankRequests {
    /// Adds a request; returns its sequence number and its pass. A pass ends if the rank goes to another epoch, or
    /// back, or repeats the epoch.
    pub(super) fn ask(&mut self, wanted: SampleRequest, iterations: u32, is_known: bool) -> (u64, EpochNumber) {
        let SampleRequest { sample, epoch, iteration } = wanted;
        // A step past the epoch's end would have the number of one of the next epoch.
        let iteration = iteration.min(iterations.saturating_sub(1));
        if let Some((last_epoch, last)) = self.last
            && (epoch != last_epoch || iteration < last)
        {
            let follows = SampleRequest::epoch_of(epoch) == SampleRequest::epoch_of(last_epoch) + 1;
            self.pass += if follows { 1 } else { JUMP };
        }
        self.last = Some((epoch, iteration));
        let pass = self.pass;
        self.uses.push_back(Used {
            sample,
            epoch,
            pass,
            iteration,
            step: u64::from(pass) * u64::from(iterations) + u64::from(iteration),
            stage: if is_known { RequestStage::Asked } else { RequestStage::Refused },
        });
        (self.first + self.uses.len() as u64 - 1, pass)
    }

    /// Returns the sequence number with this low half, if its request is not over.
    pub(super) fn turn(&self, low: u32) -> Option<u64> {
        let nth = u64::from(low.wrapping_sub(self.first as u32));
        let used = self.uses.get(nth as usize)?;
        (used.stage != RequestStage::Over).then_some(self.first + nth)
    }

    /// Ends the requests of steps before this one, which the rank has begun, but not the lending of their bytes, which
    /// may last for any time. Such requests are *held* and do not delay the rank. Returns their sequence numbers.
    pub(super) fn overtake(&mut self, epoch: u32, iteration: Iteration) -> Vec<u64> {
        let is_now = |used: &Used| (used.epoch, used.iteration) == (epoch, iteration);
        let Some(now) = self.uses.iter().position(is_now) else {
            return Vec::new();
        };
        let before = (self.first..).zip(&self.uses).take(now);
        let ready: Vec<(u64, Sample)> = before
            .filter(|(_, used)| used.stage == RequestStage::Ready)
            .map(|(turn, used)| (turn, used.sample))
            .collect();
        self.held.extend(ready.iter().copied());
        ready.into_iter().map(|(turn, _)| turn).collect()
    }

    /// Releases a held request, and returns its sample.
    pub(super) fn let_held_go(&mut self, low: u32) -> Option<Sample> {
        let turn = self.held_turn(low)?;
        self.held.remove(&turn)
    }

    /// Returns the sequence number with this low half, if its request is held. There may be thousands, and hardly ever
    /// two with the same half.
    fn held_turn(&self, low: u32) -> Option<u64> {
        let (&oldest, &newest) = (self.held.first_key_value()?.0, self.held.last_key_value()?.0);
        let mut turns = (oldest >> u32::BITS..=newest >> u32::BITS).map(|high| high << u32::BITS | u64::from(low));
        turns.find(|turn| self.held.contains_key(turn))
    }

    /// Returns the sample of the request with this low half, if it is not over, or held.
    pub(super) fn sample_of(&self, low: u32) -> Option<Sample> {
        let held = || self.held.get(&self.held_turn(low)?).copied();
        self.turn(low).map(|turn| self.used(turn).sample).or_else(held)
    }

    /// Releases all held requests, and returns their samples.
    pub(super) fn let_all_held_go(&mut self) -> Vec<Sample> {
        std::mem::take(&mut self.held).into_values().collect()
    }

    /// Returns the request with a sequence number, if it is not over, or dropped.
    ///
    /// # Panics
    /// If it is over: sequence numbers come from [`Self::ask`] and [`Self::turn`], and their holders have not ended the
    /// request.
    pub(super) fn used(&self, turn: u64) -> Used {
        let dropped = self.dropped.get(&turn).copied();
        dropped.unwrap_or_else(|| self.uses[(turn - self.first) as usize])
    }

    /// Releases a request that is being read.
    pub(super) fn drop_use(&mut self, turn: u64) {
        let stage = RequestStage::Dropped;
        let used = Used { stage, ..self.used(turn) };
        self.set_stage(turn, RequestStage::Over);
        self.dropped.insert(turn, used);
    }

    pub(super) fn set_stage(&mut self, turn: u64, stage: RequestStage) {
        if stage == RequestStage::Over && self.dropped.remove(&turn).is_some() {
            return;
        }
        self.uses[(turn - self.first) as usize].stage = stage;
        if stage == RequestStage::Over {
            while self.uses.front().is_some_and(|used| used.stage == RequestStage::Over) {
                self.uses.pop_front();
                self.first += 1;
            }
            self.fetch_from = self.fetch_from.max(self.first);
        }
    }

    /// Returns step and sequence number of the request that is to be fetched next.
    pub(super) fn next_to_fetch(&mut self) -> Option<(u64, u64)> {
        loop {
            let used = self.uses.get((self.fetch_from - self.first) as usize)?;
            if used.stage == RequestStage::Asked {
                return Some((used.step, self.fetch_from));
            }
            self.fetch_from += 1;
        }
    }

    /// Marks a request as no longer waiting to be fetched.
    pub(super) fn fetched(&mut self, turn: u64) {
        self.set_stage(turn, RequestStage::Coming);
        self.fetch_from = self.fetch_from.max(turn + 1);
    }

    /// Returns true if all requests are over: for tests.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.uses.is_empty() && self.dropped.is_empty()
    }

    /// Step of the oldest request that is not over: the rank needs requests of this step now.
    pub(super) fn oldest_step(&self) -> u64 {
        self.uses.front().map_or(0, |used| used.step)
    }

    /// Pass of the oldest request.
    pub(super) fn pass(&self) -> EpochNumber {
        self.uses.front().map_or(self.pass, |used| used.pass)
    }

    /// Sequence numbers of all requests that are not over.
    pub(super) fn open(&self) -> Vec<u64> {
        let is_open = |(_, used): &(u64, &Used)| used.stage != RequestStage::Over;
        (self.first..).zip(&self.uses).filter(is_open).map(|(turn, _)| turn).collect()
    }

    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    pub(super) fn set_gone(&mut self) {
        self.is_gone = true;
    }

    /// Records that the rank has begun `steps` in all.
    pub(super) fn stepped(&mut self, steps: u64, now_s: f64) {
        self.pace.stepped(steps, now_s);
    }

    /// Number of steps begun.
    pub(super) fn steps(&self) -> u64 {
        self.pace.steps()
    }

    /// Duration of a step that waits for nothing, in seconds; 0 before any was seen.
    pub(super) const fn step_s(&self) -> f64 {
        self.pace.step_s()
    }

    /// Returns true if steps have become shorter than the deadlines of queued reads assume: these would be read after
    /// those of later steps.
    pub(super) fn are_steps_shorter(&mut self) -> bool {
        let step_s = self.step_s();
        let is_shorter = step_s < SHORTER * self.assumed_step_s;
        if is_shorter || step_s > self.assumed_step_s {
            self.assumed_step_s = step_s;
        }
        is_shorter
    }

    /// Records that a sample of `bytes` was let in for a step; `origin` is the index of the place that it is read from,
    /// `None` if it is in memory or being read already.
    pub(super) fn count_load(&mut self, step: u64, bytes: u64, origin: Option<usize>) {
        if step != self.letting_in.step {
            let next = RankStepLoad {
                step,
                ..RankStepLoad::default()
            };
            let before = std::mem::replace(&mut self.letting_in, next);
            if before.samples > 0 {
                self.let_in = before;
            }
        }
        self.letting_in.samples += 1;
        self.letting_in.sample_bytes += bytes;
        if let Some(origin) = origin {
            self.letting_in.read_bytes[origin] += bytes;
        }
    }

    /// Returns the load of the latest step whose `batch` requests were all let in. Requests are let in in the order of
    /// their use, so an earlier step has been let in as far as it will be. Its reads count as they were when they were
    /// let in: by now some of them may have ended.
    pub(super) const fn step_load(&self, batch: u32) -> RankStepLoad {
        if self.letting_in.samples >= batch {
            self.letting_in
        } else {
            self.let_in
        }
    }

    /// Returns the predicted beginning of a step: no rank is assumed to be late from now on.
    pub(super) fn deadline_s(&self, step: u64, now_s: f64) -> f64 {
        let step_s = self.step_s();
        if step_s <= 0.0 {
            return UNMEASURED_S + step as f64 * UNMEASURED_STEP_S;
        }
        let ends_s = self.pace.last_s().map_or(now_s, |began_s| began_s + step_s);
        ends_s.max(now_s) + step.saturating_sub(self.oldest_step()) as f64 * step_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_step_overtakes_is_held_until_it_is_let_go_by_the_low_half_of_its_turn() {
        let first = u64::from(u32::MAX) - 1;
        let mut rank = RankRequests {
            first,
            fetch_from: first,
            ..RankRequests::default()
        };
        for (sample, iteration) in [(10, 0), (11, 0), (12, 0), (13, 1)] {
            let (turn, _) = rank.ask(
                SampleRequest {
                    sample,
                    epoch: 0,
                    iteration,
                },
                2,
                true,
            );
            rank.fetched(turn);
            rank.set_stage(turn, RequestStage::Ready);
        }
        let low = |nth: u64| (first + nth) as u32;
        rank.set_stage(first + 1, RequestStage::Over);
        assert_eq!(rank.overtake(0, 1), [first, first + 2]);
        for turn in [first, first + 2] {
            rank.set_stage(turn, RequestStage::Over);
        }
        assert!(rank.overtake(0, 1).is_empty());
        assert_eq!(
            [0, 1, 2, 3, 4].map(|nth| rank.sample_of(low(nth))),
            [Some(10), None, Some(12), Some(13), None]
        );
        assert_eq!([2, 2, 1, 3].map(|nth| rank.let_held_go(low(nth))), [Some(12), None, None, None]);
        assert_eq!(rank.let_all_held_go(), [10]);
        assert_eq!(rank.let_held_go(low(0)), None);
    }
}
