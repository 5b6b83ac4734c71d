//! What each rank has asked for, and how far it is. Turns count its uses; they are fetched in their order and end in any.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use forebay_contract::board::Use;
use forebay_policy::ids::{EpochNumber, Iteration, Sample};
use forebay_policy::residency::future::EPOCHS_AHEAD;

/// What has become of a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits to be fetched.
    Asked,
    /// The policy has let it in; its bytes are being read.
    Coming,
    /// The same, but the rank has let it go meanwhile.
    Dropped,
    /// The rank has its bytes.
    Ready,
    /// The rank reads it itself; the policy knows nothing of it, or no more.
    Refused,
    /// The rank has let it go.
    Over,
}

/// One use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    pub(super) sample: Sample,
    /// As the rank has it.
    epoch: u32,
    pub(super) pass: EpochNumber,
    pub(super) iteration: Iteration,
    /// Counts over all passes.
    pub(super) step: u64,
    pub(super) stage: Stage,
}

/// Passes are counted on by one where an epoch follows another, and by so much where it does not, so that policies, which know of epochs by their
/// passes, take nothing of what they had foreseen for the epoch that came instead.
const JUMP: EpochNumber = EPOCHS_AHEAD + 1;

/// Durations of steps that are remembered.
const STEPS: usize = 16;

/// As long as a rank has measured no step, all that it asks for counts as late since long ago, and its steps as so long apart: such reads go in the
/// order of steps, whatever they are predicted to take and whichever rank asked first, and before those of ranks that have. An epoch has 2^32 steps
/// at most, so that none of them is due in times to come.
const UNMEASURED_S: f64 = -1e13;
const UNMEASURED_STEP_S: f64 = 1000.0;

/// A rank.
#[derive(Debug, Default)]
pub(super) struct Rank {
    /// From turn `first` on.
    uses: VecDeque<Used>,
    first: u64,
    /// Uses that are over but for their bytes, which the rank looks at still, by turn: see [`Self::overtake`].
    held: BTreeMap<u64, Sample>,
    /// Uses that it has let go while they were being read, by turn. They hold it up no more: the read may hang.
    dropped: BTreeMap<u64, Used>,
    /// Uses before this turn wait no more to be fetched.
    fetch_from: u64,
    /// Epoch and iteration of the last use, and its pass.
    last: Option<(u32, u32)>,
    pass: EpochNumber,
    is_gone: bool,
    steps: u64,
    /// When the last step began, and how long steps took, the shortest of the last ones being that of one that waited for nothing.
    began_s: Option<f64>,
    took_s: VecDeque<f64>,
    /// What its threads together take to decode a sample, in nanoseconds.
    decoding_ns: u64,
}

impl Rank {
    /// One more use; its turn and its pass. A pass ends where the rank goes to another epoch, or back, or through the same once more.
    pub(super) fn ask(&mut self, wanted: Use, iterations: u32, is_known: bool) -> (u64, EpochNumber) {
        let Use { sample, epoch, iteration } = wanted;
        // The number of a step beyond the epoch's end would be that of one of the next epoch.
        let iteration = iteration.min(iterations.saturating_sub(1));
        if let Some((last_epoch, last)) = self.last
            && (epoch != last_epoch || iteration < last)
        {
            let follows = Use::epoch_of(epoch) == Use::epoch_of(last_epoch) + 1;
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
            stage: if is_known { Stage::Asked } else { Stage::Refused },
        });
        (self.first + self.uses.len() as u64 - 1, pass)
    }

    /// The turn with this low half, if it is one of those that are not over.
    pub(super) fn turn(&self, low: u32) -> Option<u64> {
        let nth = u64::from(low.wrapping_sub(self.first as u32));
        let used = self.uses.get(nth as usize)?;
        (used.stage != Stage::Over).then_some(self.first + nth)
    }

    /// A rank that has begun a step has done with those before it, but may refer to some of their bytes for as long as it likes. Such uses hold it up no more;
    /// they are *held*. Gives their turns.
    pub(super) fn overtake(&mut self, epoch: u32, iteration: Iteration) -> Vec<u64> {
        let is_now = |used: &Used| (used.epoch, used.iteration) == (epoch, iteration);
        let Some(now) = self.uses.iter().position(is_now) else {
            return Vec::new();
        };
        let before = (self.first..).zip(&self.uses).take(now);
        let ready: Vec<(u64, Sample)> = before
            .filter(|(_, used)| used.stage == Stage::Ready)
            .map(|(turn, used)| (turn, used.sample))
            .collect();
        self.held.extend(ready.iter().copied());
        ready.into_iter().map(|(turn, _)| turn).collect()
    }

    /// Lets a held use go; its sample.
    pub(super) fn let_held_go(&mut self, low: u32) -> Option<Sample> {
        let turn = self.held_turn(low)?;
        self.held.remove(&turn)
    }

    /// The turn with this low half, if it is one of those that are held. There may be thousands, and hardly ever two of the same half.
    fn held_turn(&self, low: u32) -> Option<u64> {
        let (&oldest, &newest) = (self.held.first_key_value()?.0, self.held.last_key_value()?.0);
        let mut turns = (oldest >> u32::BITS..=newest >> u32::BITS).map(|high| high << u32::BITS | u64::from(low));
        turns.find(|turn| self.held.contains_key(turn))
    }

    /// What is used at the turn with this low half, if that is not over, or held.
    pub(super) fn sample_of(&self, low: u32) -> Option<Sample> {
        let held = || self.held.get(&self.held_turn(low)?).copied();
        self.turn(low).map(|turn| self.used(turn).sample).or_else(held)
    }

    /// Lets all held uses go; their samples.
    pub(super) fn let_all_held_go(&mut self) -> Vec<Sample> {
        std::mem::take(&mut self.held).into_values().collect()
    }

    /// The use at a turn that is not over, or dropped.
    ///
    /// # Panics
    /// Where it is over: turns come from [`Self::ask`] and [`Self::turn`], and who holds one has not let it end.
    pub(super) fn used(&self, turn: u64) -> Used {
        let dropped = self.dropped.get(&turn).copied();
        dropped.unwrap_or_else(|| self.uses[(turn - self.first) as usize])
    }

    /// The rank lets a use go that is being read.
    pub(super) fn drop_use(&mut self, turn: u64) {
        let stage = Stage::Dropped;
        let used = Used { stage, ..self.used(turn) };
        self.set_stage(turn, Stage::Over);
        self.dropped.insert(turn, used);
    }

    pub(super) fn set_stage(&mut self, turn: u64, stage: Stage) {
        if stage == Stage::Over && self.dropped.remove(&turn).is_some() {
            return;
        }
        self.uses[(turn - self.first) as usize].stage = stage;
        if stage == Stage::Over {
            while self.uses.front().is_some_and(|used| used.stage == Stage::Over) {
                self.uses.pop_front();
                self.first += 1;
            }
            self.fetch_from = self.fetch_from.max(self.first);
        }
    }

    /// Step and turn of the use that is to be fetched next.
    pub(super) fn next_to_fetch(&mut self) -> Option<(u64, u64)> {
        loop {
            let used = self.uses.get((self.fetch_from - self.first) as usize)?;
            if used.stage == Stage::Asked {
                return Some((used.step, self.fetch_from));
            }
            self.fetch_from += 1;
        }
    }

    /// A use does not wait to be fetched any more.
    pub(super) fn fetched(&mut self, turn: u64) {
        self.set_stage(turn, Stage::Coming);
        self.fetch_from = self.fetch_from.max(turn + 1);
    }

    /// Whether no use is left that is not over: for tests.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.uses.is_empty() && self.dropped.is_empty()
    }

    /// The step of the oldest use that is not over: what is of this step, the rank needs now.
    pub(super) fn oldest_step(&self) -> u64 {
        self.uses.front().map_or(0, |used| used.step)
    }

    /// The pass that it is in: that of the oldest use.
    pub(super) fn pass(&self) -> EpochNumber {
        self.uses.front().map_or(self.pass, |used| used.pass)
    }

    /// Turns of all uses that are not over.
    pub(super) fn open(&self) -> Vec<u64> {
        let is_open = |(_, used): &(u64, &Used)| used.stage != Stage::Over;
        (self.first..).zip(&self.uses).filter(is_open).map(|(turn, _)| turn).collect()
    }

    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    pub(super) fn set_gone(&mut self) {
        self.is_gone = true;
    }

    /// It has begun so many steps.
    pub(super) fn stepped(&mut self, steps: u64, now_s: f64) {
        let more = steps.saturating_sub(self.steps);
        if more == 0 {
            return;
        }
        if let Some(began_s) = self.began_s {
            if self.took_s.len() == STEPS {
                self.took_s.pop_front();
            }
            self.took_s.push_back((now_s - began_s) / more as f64);
        }
        (self.steps, self.began_s) = (steps, Some(now_s));
    }

    /// How many steps it has begun.
    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// How long a step takes that waits for nothing, as far as was seen; 0 before.
    pub(super) fn step_s(&self) -> f64 {
        let shortest_s = self.took_s.iter().copied().fold(f64::INFINITY, f64::min);
        if shortest_s.is_finite() { shortest_s } else { 0.0 }
    }

    pub(super) fn decodes(&mut self, ns: u64) {
        self.decoding_ns = ns;
    }

    /// What its threads together take to decode a sample, in seconds.
    pub(super) fn decoding_s(&self) -> f64 {
        Duration::from_nanos(self.decoding_ns).as_secs_f64()
    }

    /// What it has asked for of a step.
    pub(super) fn of_step(&self, step: u64) -> impl Iterator<Item = Sample> + '_ {
        let first = self.uses.partition_point(|used| used.step < step);
        self.uses
            .iter()
            .skip(first)
            .take_while(move |used| used.step == step)
            .map(|used| used.sample)
    }

    /// When a step is predicted to begin: nobody is late from now on.
    pub(super) fn deadline_s(&self, step: u64, now_s: f64) -> f64 {
        let step_s = self.step_s();
        if step_s <= 0.0 {
            return UNMEASURED_S + step as f64 * UNMEASURED_STEP_S;
        }
        let ends_s = self.began_s.map_or(now_s, |began_s| began_s + step_s);
        ends_s.max(now_s) + step.saturating_sub(self.oldest_step()) as f64 * step_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_step_overtakes_is_held_until_it_is_let_go_by_the_low_half_of_its_turn() {
        let first = u64::from(u32::MAX) - 1;
        let mut rank = Rank {
            first,
            fetch_from: first,
            ..Rank::default()
        };
        for (sample, iteration) in [(10, 0), (11, 0), (12, 0), (13, 1)] {
            let (turn, _) = rank.ask(
                Use {
                    sample,
                    epoch: 0,
                    iteration,
                },
                2,
                true,
            );
            rank.fetched(turn);
            rank.set_stage(turn, Stage::Ready);
        }
        let low = |nth: u64| (first + nth) as u32;
        rank.set_stage(first + 1, Stage::Over);
        assert_eq!(rank.overtake(0, 1), [first, first + 2]);
        for turn in [first, first + 2] {
            rank.set_stage(turn, Stage::Over);
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
