//! Room for files in the tiers of a node that shares them with the other nodes of a job.
//!
//! A node keeps the files that it *owns*, and reads them from the source for all. Its programs need local copies of
//! other nodes' files, too, since they get a descriptor of a whole copy: these *replicas* take the room that owned
//! files leave, and a window that owned files never take.

/// Divisor of the tiers' room that gives the window for replicas.
const WINDOW_PART: u64 = 16;

/// Returns the bytes of `quota_bytes` that only replicas take.
pub const fn window_bytes(quota_bytes: u64) -> u64 {
    quota_bytes / WINDOW_PART
}

/// Returns true if an owned file of `bytes` fits beside `owned_bytes` of others, with the window left free.
pub const fn may_own(quota_bytes: u64, owned_bytes: u64, bytes: u64) -> bool {
    owned_bytes.saturating_add(bytes) <= quota_bytes - window_bytes(quota_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owned_files_leave_the_window_free() {
        assert_eq!(window_bytes(1600), 100);
        assert!(may_own(1600, 1000, 500));
        assert!(!may_own(1600, 1000, 501));
        assert!(!may_own(1600, u64::MAX, 1));
        assert!(may_own(0, 0, 0));
    }
}
