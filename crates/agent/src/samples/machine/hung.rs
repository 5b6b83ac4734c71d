//! Reads that hang: they no longer count as concurrent reads, so that a file system that hangs in one place does not
//! delay reads elsewhere.

use super::Machine;

use crate::samples::limits::{LOADER_HANGS_AFTER_S, LOADER_LOOK_FOR_HUNG_S};

impl Machine {
    /// Searches from time to time for reads that began long ago. At most as many are set aside as may be read
    /// concurrently.
    pub(super) fn set_hung_aside(&mut self, now_s: f64) {
        if now_s - self.looked_s < LOADER_LOOK_FOR_HUNG_S {
            return;
        }
        self.looked_s = now_s;
        for rank in self.flights.set_aside(now_s - LOADER_HANGS_AFTER_S, self.hung_max - self.hung) {
            self.hung += 1;
            self.reading -= 1;
            self.busy[rank] -= 1;
        }
    }
}
