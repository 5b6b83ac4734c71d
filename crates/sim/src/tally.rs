//! Counts events, epoch by epoch.

use forebay_policy::residency::Origin;

use crate::node::origin_index;
use crate::outcome::{EpochFigures, Outcome, StepTimes};
use crate::rank::RankBatch;
use crate::scenario::Scenario;

/// Share of a training step above which waits count.
const NOTICEABLE: f64 = 0.05;
/// Iterations at the start, in the middle and at the end of the last epoch whose steps are kept one by one.
const KEPT: u32 = 8;
/// Nodes whose steps are kept one by one.
const KEPT_NODES: u32 = 2;

#[derive(Debug)]
pub(crate) struct Tally {
    epochs: Vec<EpochFigures>,
    steps: Vec<StepTimes>,
    step_times_s: Vec<f64>,
    train_s: f64,
    iterations: u32,
    kept_ranks: u32,
    epoch_began_s: f64,
    step_ended_s: f64,
}

impl Tally {
    pub(crate) fn new(scenario: &Scenario, iterations: u32) -> Self {
        Self {
            epochs: vec![
                EpochFigures {
                    iterations,
                    ..EpochFigures::default()
                };
                scenario.job.epochs as usize
            ],
            steps: Vec::new(),
            step_times_s: Vec::with_capacity(iterations as usize),
            train_s: scenario.job.step_s,
            iterations,
            kept_ranks: scenario.machines.gpus * KEPT_NODES.min(u32::from(scenario.machines.nodes)),
            epoch_began_s: 0.0,
            step_ended_s: 0.0,
        }
    }

    /// Returns the figures of an epoch; `None` for one past the last, into which a window reads ahead.
    fn figures(&mut self, epoch: u32) -> Option<&mut EpochFigures> {
        self.epochs.get_mut(epoch as usize)
    }

    /// Counts a requested sample.
    pub(crate) fn asked(&mut self, epoch: u32, origin: Origin, bytes: u32) {
        let Some(figures) = self.figures(epoch) else { return };
        figures.reads.samples_by_origin[origin_index(origin)] += 1;
        match origin {
            Origin::Local => figures.reads.local_bytes += u64::from(bytes),
            Origin::Peer(_) => figures.reads.peer_bytes += u64::from(bytes),
            Origin::Source => {}
        }
    }

    /// Counts a request to the source.
    pub(crate) fn requested(&mut self, epoch: u32) {
        let Some(figures) = self.figures(epoch) else { return };
        figures.reads.source_requests += 1;
    }

    /// Counts a sample sent by the source; `again` if it was sent before.
    pub(crate) fn sent(&mut self, epoch: u32, bytes: u32, again: bool) {
        let Some(figures) = self.figures(epoch) else { return };
        figures.reads.source_bytes += u64::from(bytes);
        if again {
            figures.reads.hedged_bytes += u64::from(bytes);
        }
    }

    /// Counts a copy that a node gives another.
    pub(crate) fn handed_over(&mut self, epoch: u32, bytes: u32) {
        let Some(figures) = self.figures(epoch) else { return };
        figures.reads.handed_bytes += u64::from(bytes);
    }

    /// Records the bytes that a node holds.
    pub(crate) fn held(&mut self, epoch: u32, held_bytes: u64, window_bytes: u64) {
        let Some(figures) = self.figures(epoch) else { return };
        figures.held_bytes_max = figures.held_bytes_max.max(held_bytes);
        figures.window_bytes_max = figures.window_bytes_max.max(window_bytes);
    }

    /// Counts a step that begins, with the batch of each rank.
    pub(crate) fn begun(&mut self, (epoch, iteration): (u32, u32), batches: &[RankBatch]) {
        let ended_s = self.step_ended_s;
        let late = |batch: &RankBatch| (batch.ready_s() - ended_s).max(0.0);
        let (least, most) = batches
            .iter()
            .map(late)
            .fold((f64::INFINITY, 0.0_f64), |(least, most), late| (least.min(late), most.max(late)));
        let noticeable_s = NOTICEABLE * self.train_s;
        let figures = &mut self.epochs[epoch as usize];
        figures.waits.stalled_seconds += least;
        if most - least > noticeable_s {
            figures.waits.imbalanced += 1;
        } else if least > noticeable_s {
            figures.waits.stalled += 1;
        }
        if epoch + 1 == self.epochs.len() as u32 && self.is_kept(iteration) {
            let train_s = self.train_s;
            self.steps.extend(
                batches
                    .iter()
                    .take(self.kept_ranks as usize)
                    .enumerate()
                    .map(|(rank, batch)| StepTimes {
                        rank: rank as u32,
                        iteration,
                        load_s: length(batch.read_s),
                        preprocess_s: length(batch.prepared_s),
                        train_s,
                        late_s: late(batch),
                    }),
            );
        }
    }

    fn is_kept(&self, iteration: u32) -> bool {
        let middle = (self.iterations / 2).saturating_sub(KEPT / 2);
        iteration < KEPT || (middle..middle + KEPT).contains(&iteration) || iteration + KEPT >= self.iterations
    }

    /// Counts a step that ends; `here` are the samples of the next one in memory, by its epoch.
    pub(crate) fn ended(&mut self, (epoch, iteration): (u32, u32), now_s: f64) {
        self.step_times_s.push(now_s - self.step_ended_s);
        self.step_ended_s = now_s;
        if iteration + 1 < self.iterations {
            return;
        }
        let figures = &mut self.epochs[epoch as usize];
        figures.seconds = now_s - self.epoch_began_s;
        figures.gpu_use = self.train_s * f64::from(self.iterations) / figures.seconds;
        let mut sorted = self.step_times_s.clone();
        sorted.sort_by(f64::total_cmp);
        figures.waits.step_p50_s = rank_of(&sorted, 0.50);
        figures.waits.step_p99_s = rank_of(&sorted, 0.99);
        self.epoch_began_s = now_s;
        if epoch + 1 < self.epochs.len() as u32 {
            self.step_times_s.clear();
        }
    }

    /// Samples of the next step that are in memory when the one before it ends.
    pub(crate) fn found(&mut self, epoch: u32, samples: u64) {
        if let Some(figures) = self.figures(epoch) {
            figures.reads.samples_ready += samples;
        }
    }

    /// Returns all counts; `ideal_s` by epoch.
    pub(crate) fn outcome(mut self, ideal_s: impl Fn(u32) -> f64) -> Outcome {
        for (epoch, figures) in (0..).zip(&mut self.epochs) {
            figures.ideal_seconds = ideal_s(epoch);
        }
        let step_times_s = self.step_times_s.iter().map(|&seconds| seconds as f32).collect();
        Outcome {
            epochs: self.epochs,
            steps: self.steps,
            step_times_s,
        }
    }
}

fn length(span: Option<(f64, f64)>) -> f64 {
    span.map_or(0.0, |(begin_s, end_s)| end_s - begin_s)
}

/// Returns the smallest value that this share of all does not exceed.
fn rank_of(sorted: &[f64], share: f64) -> f64 {
    let place = (share * sorted.len() as f64).ceil() as usize;
    sorted[place.max(1) - 1]
}
