//! Reads that hang: they count no more among those that are made at once, so that a file system that hangs in one place holds up nobody who reads elsewhere.

use super::Core;

use crate::samples::limits::{LOADER_HANGS_AFTER_S, LOADER_LOOK_FOR_HUNG_S};

impl Core {
    /// Looks now and then for reads that began long ago. There are threads for as many of them as are read at once at most.
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
