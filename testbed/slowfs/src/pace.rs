//! Speed of the file system: latency an operation, a fixed number of server slots, one shared link.

use std::f64::consts::TAU;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that pass the link without delay after a pause, as with `tc tbf` and a 256 KiB bucket.
const BURST_BYTES: f64 = 262_144.0;
/// Longest latency in seconds, however heavy its tail.
const LATENCY_MAX_S: f64 = 60.0;

/// All settings, in the units in which they are set.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct PaceSettings {
    /// Link, in megabytes (10^6) a second, both directions together; 0 is unlimited
    #[arg(long, default_value_t = 100.0, value_name = "N")]
    pub(crate) mbps: f64,
    /// Latency of an open or a create
    #[arg(long, default_value_t = 1.0, value_name = "MS")]
    pub(crate) open_ms: f64,
    /// Latency of any other operation on names and attributes, paid once a request (a readdirplus is one request)
    #[arg(long, default_value_t = 1000.0, value_name = "US")]
    pub(crate) meta_us: f64,
    /// Latency of a read or a write, before its bytes go through the link
    #[arg(long, default_value_t = 500.0, value_name = "US")]
    pub(crate) read_us: f64,
    /// Number of operations that the server works on in parallel; the others queue
    #[arg(long, default_value_t = 8.0, value_name = "N")]
    pub(crate) slots: f64,
    /// Time for which the kernel may keep names and attributes without asking
    #[arg(long, default_value_t = 1000.0, value_name = "MS")]
    pub(crate) attr_ttl_ms: f64,
    /// Sigma of the logarithm of each latency, whose median is what was set: 0 constant, 0.5 usual, 1.5 a heavy tail
    #[arg(long, default_value_t = 0.0, value_name = "SIGMA")]
    pub(crate) tail: f64,
}

impl PaceSettings {
    /// Sets one knob by its name.
    ///
    /// # Errors
    /// A sentence for the sender of the name: unknown, not a number, or out of range.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let number: f64 = value.parse().map_err(|_| format!("{value:?} is not a number"))?;
        let knob = match key {
            "mbps" => &mut self.mbps,
            "open_ms" => &mut self.open_ms,
            "meta_us" => &mut self.meta_us,
            "read_us" => &mut self.read_us,
            "slots" => &mut self.slots,
            "attr_ttl_ms" => &mut self.attr_ttl_ms,
            "tail" => &mut self.tail,
            _ => {
                return Err(format!(
                    "no setting {key:?} (mbps, open_ms, meta_us, read_us, slots, attr_ttl_ms, tail)"
                ));
            }
        };
        let before = std::mem::replace(knob, number);
        self.check().inspect_err(|_| {
            let _ = self.set(key, &before.to_string());
        })
    }

    /// # Errors
    /// The first knob that is out of range, named.
    pub(crate) fn check(&self) -> Result<(), String> {
        let knobs = [
            ("mbps", self.mbps, 0.0),
            ("open_ms", self.open_ms, 0.0),
            ("meta_us", self.meta_us, 0.0),
            ("read_us", self.read_us, 0.0),
            ("slots", self.slots, 1.0),
            ("attr_ttl_ms", self.attr_ttl_ms, 0.0),
            ("tail", self.tail, 0.0),
        ];
        match knobs.iter().find(|(_, value, least)| !(*least..=1e9).contains(value)) {
            Some((name, value, least)) => Err(format!("{name} is {value}, outside {least} to 1e9")),
            None => Ok(()),
        }
    }
}

/// Latency that an operation pays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cost {
    /// An open or a create.
    Open,
    /// Names and attributes.
    Meta,
    /// A read or a write.
    Data,
    /// An operation that no client waits for, such as a release.
    Free,
}

/// The slow server: shared by all threads, changed while it runs.
#[derive(Debug)]
pub(crate) struct Pace {
    settings: Mutex<PaceSettings>,
    busy: Mutex<usize>,
    freed: Condvar,
    /// Time at which the link will have sent all bytes.
    link_idle_at: Mutex<Instant>,
    /// Number of latencies drawn so far: each mount draws the same ones in the same order.
    drawn: AtomicU64,
}

impl Pace {
    pub(crate) fn new(settings: PaceSettings) -> Self {
        Self {
            settings: Mutex::new(settings),
            busy: Mutex::new(0),
            freed: Condvar::new(),
            link_idle_at: Mutex::new(Instant::now()),
            drawn: AtomicU64::new(0),
        }
    }

    pub(crate) fn settings(&self) -> PaceSettings {
        *lock(&self.settings)
    }

    /// Sets one knob; operations already under way keep the old value.
    ///
    /// # Errors
    /// As [`PaceSettings::set`].
    pub(crate) fn set(&self, key: &str, value: &str) -> Result<(), String> {
        let done = lock(&self.settings).set(key, value);
        self.freed.notify_all();
        done
    }

    /// Returns the time for which the kernel may keep names and attributes.
    pub(crate) fn attr_ttl(&self) -> Duration {
        Duration::from_secs_f64(self.settings().attr_ttl_ms / 1e3)
    }

    /// Waits for a slot of the server and holds it for the operation's latency.
    pub(crate) fn work(&self, cost: Cost) {
        let settings = self.settings();
        let seconds = match cost {
            Cost::Open => settings.open_ms / 1e3,
            Cost::Meta => settings.meta_us / 1e6,
            Cost::Data => settings.read_us / 1e6,
            Cost::Free => return,
        };
        if seconds == 0.0 {
            return;
        }
        let mut busy = lock(&self.busy);
        while *busy >= self.settings().slots as usize {
            busy = self.freed.wait(busy).unwrap_or_else(PoisonError::into_inner);
        }
        *busy += 1;
        drop(busy);
        let factor = if settings.tail == 0.0 {
            1.0
        } else {
            lognormal(settings.tail, self.drawn.fetch_add(1, Relaxed))
        };
        std::thread::sleep(Duration::from_secs_f64((seconds * factor).min(LATENCY_MAX_S)));
        *lock(&self.busy) -= 1;
        self.freed.notify_one();
    }

    /// Waits until the shared link has carried these bytes: a token bucket, kept as the time at which the link falls
    /// idle.
    pub(crate) fn transfer(&self, bytes: u32) {
        let bytes_per_s = self.settings().mbps * 1e6;
        if bytes == 0 || bytes_per_s == 0.0 {
            return;
        }
        let now = Instant::now();
        let mut idle_at = lock(&self.link_idle_at);
        let credit = Duration::from_secs_f64(BURST_BYTES / bytes_per_s);
        let start = now.checked_sub(credit).map_or(*idle_at, |earliest| earliest.max(*idle_at));
        let end = start + Duration::from_secs_f64(f64::from(bytes) / bytes_per_s);
        *idle_at = end;
        drop(idle_at);
        std::thread::sleep(end.saturating_duration_since(now));
    }
}

/// Returns the `nth` number of a lognormal sequence with median 1 (Box and Muller's transform of splitmix64).
fn lognormal(sigma: f64, nth: u64) -> f64 {
    let radius = (-2.0 * uniform(2 * nth).ln()).sqrt();
    (sigma * radius * (TAU * uniform(2 * nth + 1)).cos()).exp()
}

/// Returns the `nth` number of a sequence in (0, 1].
fn uniform(nth: u64) -> f64 {
    const UNIT: f64 = 1.0 / (1_u64 << 53) as f64;
    let mut bits = nth.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^= bits >> 31;
    ((bits >> 11) + 1) as f64 * UNIT
}

/// Locks plain numbers, which stay valid after a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: PaceSettings = PaceSettings {
        mbps: 0.0,
        open_ms: 0.0,
        meta_us: 0.0,
        read_us: 0.0,
        slots: 8.0,
        attr_ttl_ms: 0.0,
        tail: 0.0,
    };

    #[test]
    fn link_carries_no_more_than_its_rate() {
        let seconds = || {
            let pace = Pace::new(PaceSettings { mbps: 20.0, ..FREE });
            let start = Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| (0..5).for_each(|_| pace.transfer(100_000)));
                }
            });
            start.elapsed().as_secs_f64()
        };
        // 2 MB less the burst at 20 MB/s: 87 ms. The machine may stand still meanwhile, but not each time.
        let took: Vec<f64> = std::iter::repeat_with(seconds).take(5).collect();
        assert!(took.iter().all(|&took| took >= 0.085), "{took:?}");
        assert!(took.iter().any(|&took| took < 0.4), "{took:?}");
    }

    #[test]
    fn slots_bound_what_runs_at_once() {
        let pace = Pace::new(PaceSettings {
            meta_us: 10_000.0,
            slots: 2.0,
            ..FREE
        });
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| pace.work(Cost::Meta));
            }
        });
        assert!(start.elapsed() >= Duration::from_millis(40));
    }

    #[test]
    fn latencies_have_their_median_and_their_tail() {
        let mut drawn: Vec<f64> = (0..10_000).map(|nth| lognormal(1.0, nth)).collect();
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        drawn.sort_by(f64::total_cmp);
        assert!((drawn[5_000] - 1.0).abs() < 0.05, "{}", drawn[5_000]);
        assert!((mean / 0.5_f64.exp() - 1.0).abs() < 0.05, "{mean}");
    }

    #[test]
    fn a_refused_setting_changes_nothing() {
        let pace = Pace::new(FREE);
        assert!(pace.set("slots", "0").is_err());
        assert!(pace.set("mbps", "NaN").is_err());
        assert!(pace.set("speed", "1").is_err());
        assert_eq!(pace.settings().slots.to_bits(), 8.0_f64.to_bits());
        pace.set("mbps", "50").expect("a number in range");
        assert_eq!(pace.settings().mbps.to_bits(), 50.0_f64.to_bits());
    }
}
