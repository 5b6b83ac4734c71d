//! The end of runs, and of the agent with the last of them.

use std::time::Instant;

use crate::tiering::limits::{BRING_MAX, DRAIN_MAX};

use super::Clerk;

impl Clerk {
    /// A run has ended.
    pub(super) fn leave(&mut self, run: u64) {
        if self.runs.remove(&run).is_some()
            && let Some(counts) = self.counted_in(run)
        {
            self.doors_of_ended.add(&counts);
        }
        self.end_prefetch();
        if self.runs.is_empty() {
            self.draining_since = Some(Instant::now());
            self.pace_adoption();
        }
    }

    /// Ends after the last run, once its command has been told, what its programs have opened is copied and leftovers of dead agents are
    /// reaped (which adoption ends with), or a little later in any case. Where something was changed, all copies of earlier runs are brought
    /// first: those that the change concerns must not serve a later run (P6), and nobody knows of the change once we are gone.
    pub(super) fn end_if_drained(&mut self) {
        let Some(since) = self.draining_since else { return };
        // An agent without a first run waits for the command that started it.
        let served = self.next_run > self.started_at;
        let idle = self.leaving.is_empty() && self.under_way(None).is_nothing() && !self.adoption.is_running() && served;
        let owes = self.control.newest_tombstone() != 0 && self.adoption.is_untold();
        let most = if owes { BRING_MAX } else { DRAIN_MAX };
        if (idle || since.elapsed() >= most) && !(self.config.keep && served) {
            self.stop = true;
        }
    }

    pub(super) fn end(&mut self) {
        self.control.close();
        self.drop_changed();
        self.note_use();
        self.pages.remove();
        self.log.line("ended");
        for state in &self.tiers {
            state.tier.give_up_lease();
        }
        self.remove_ram();
    }
}
