//! The clocks, in one place.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::{
    event::Timespec,
    time::{ClockId, clock_gettime},
};

/// `CLOCK_BOOTTIME` in nanoseconds: the clock of the shared page.
pub fn boot_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Milliseconds of the same clock.
pub(crate) fn boot_ms() -> u64 {
    boot_ns() / 1_000_000
}

/// Processor time that the calling thread has used.
pub(crate) fn thread_cpu() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

/// A duration as the kernel takes it.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs() as i64,
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Seconds since the epoch.
pub(crate) fn unix_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs() as i64)
}
