//! Background fill: samples that are read long before their use, when threads are idle, and into memory that would stay
//! unused.
//!
//! For that, ranks ask further ahead than they need. A *background fill* waits behind all other reads, until its step
//! comes within the window. A policy without a window (Lobster as it is written) reads ahead by its own rules: its
//! reads are no background fill.

use forebay_policy::ids::Sample;
use forebay_policy::schedule::Class;

use super::{Actions, Machine};

impl Machine {
    /// Asks the policy for samples beyond the window, up to the number of reads that can begin soon.
    pub(super) fn fetch_beyond(&mut self, now_s: f64, actions: &mut Actions) {
        if self.fill_bytes == 0 {
            return;
        }
        self.hurry_what_is_near(now_s);
        let class = if self.residency.window().is_some() {
            Class::Fill
        } else {
            Class::Demand
        };
        while !self.full && !self.full_beyond && self.scheduler.waiting() < self.reads_limit() as usize {
            let Some((rank, turn)) = self.nearest(true) else { return };
            if !self.has_room_for(self.ranks[rank].used(turn).sample) {
                return;
            }
            self.full_beyond = !self.let_in(rank, turn, class, now_s, actions);
        }
    }

    /// Returns true if there is room beside the memory reserved for samples needed soon. False while no size is known.
    fn has_room_for(&self, sample: Sample) -> bool {
        let is_there = self.copies.get(sample).is_some_and(|copy| copy.memory.is_some());
        let bytes = u64::from(self.copies.expected_bytes(sample));
        is_there || (self.copies.knows_sizes() && self.held_bytes + self.flights.coming_bytes() + bytes <= self.fill_bytes)
    }

    /// Raises requests of background fill that are within the window now to demand.
    fn hurry_what_is_near(&mut self, now_s: f64) {
        let window = self.reach();
        for number in std::mem::take(&mut self.fills) {
            let Some(waiting) = self.flights.waiting_for_fill(number) else {
                continue;
            };
            let ranks = &self.ranks;
            let near = waiting.iter().find_map(|&(rank, turn)| {
                let step = ranks[rank].used(turn).step;
                (step < ranks[rank].oldest_step().saturating_add(window)).then_some((rank, step))
            });
            match near {
                Some((rank, step)) => self.hurry(number, rank, step, now_s),
                None => self.fills.push(number),
            }
        }
    }
}
