//! Duration of a rank's training step, from the times at which its steps begin.

use std::collections::VecDeque;

/// Steps whose beginnings are remembered.
const STEPS: usize = 16;
/// Steps in a row of which the mean duration counts: after a wait, batches that came together begin one right after the
/// other.
const SPAN: usize = 4;

/// Steps that have begun.
#[derive(Clone, Debug, Default)]
pub struct StepPace {
    /// Beginnings of the latest steps in seconds, each with the number of steps begun by then.
    began: VecDeque<(u64, f64)>,
    step_s: f64,
}

impl StepPace {
    /// Records that `steps` have begun in all. Does nothing if that is known.
    pub fn stepped(&mut self, steps: u64, now_s: f64) {
        if steps <= self.steps() {
            return;
        }
        if self.began.len() > STEPS {
            self.began.pop_front();
        }
        self.began.push_back((steps, now_s));
        let span = SPAN.min(self.began.len() - 1);
        let spans = self.began.iter().zip(self.began.iter().skip(span));
        let means = spans.map(|((first, began_s), (last, ends_s))| (ends_s - began_s) / (last - first).max(1) as f64);
        self.step_s = if span > 0 { means.fold(f64::INFINITY, f64::min) } else { 0.0 };
    }

    /// Number of steps begun.
    pub fn steps(&self) -> u64 {
        self.began.back().map_or(0, |(steps, _)| *steps)
    }

    /// Time at which the last step began, in seconds; `None` before the first.
    pub fn last_s(&self) -> Option<f64> {
        self.began.back().map(|(_, began_s)| *began_s)
    }

    /// Duration of a step that waits for nothing, in seconds: the shortest mean of a few steps in a row. 0 before any
    /// was seen.
    pub const fn step_s(&self) -> f64 {
        self.step_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_the_shortest_mean_of_a_few_in_a_row() {
        let mut pace = StepPace::default();
        assert_eq!((pace.step_s(), pace.steps(), pace.last_s()), (0.0, 0, None));
        pace.stepped(1, 5.0);
        assert_eq!((pace.step_s(), pace.last_s()), (0.0, Some(5.0)), "nothing has ended");
        let mut now_s = 5.0;
        // Every sixth step waits, and the one after it begins at once.
        for steps in 2..60 {
            now_s += match steps % 6 {
                0 => 1.9,
                1 => 0.1,
                _ => 1.0,
            };
            pace.stepped(steps, now_s);
            pace.stepped(steps - 1, now_s + 100.0);
        }
        assert!((pace.step_s() - 0.775).abs() < 1e-9, "{}", pace.step_s());
        assert_eq!(pace.steps(), 59);
    }
}
