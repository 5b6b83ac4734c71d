//! F12: a tier on a slow disk, measured against its source.

use std::sync::Arc;

use forebay_policy::speed::{Speed, SpeedSample, Verdict};
use forebay_store::disk::{MemoryDisk, Throttle, ThrottledDisk};
use forebay_store::testing::MemorySource;
use forebay_store::{Tier, read_again, sample};

use crate::common::{BOOT, content, open_on, publish};

const SLOW: Throttle = Throttle {
    latency_us: 20_000,
    bytes_per_s: 10_000_000,
};

/// Opens a tier again, on the disk as it is or on a slow one.
fn tier_on(memory: &MemoryDisk, throttle: Option<Throttle>) -> Tier {
    let disk = Arc::new(memory.clone());
    match throttle {
        Some(throttle) => open_on(Arc::new(ThrottledDisk::new(disk, throttle)), BOOT),
        None => open_on(disk, BOOT),
    }
    .expect("a tier opens")
}

#[test]
fn f12_a_throttled_tier_is_measured_and_set_aside_and_taken_back_once_it_is_fast() {
    let memory = MemoryDisk::new(1 << 30, 1000);
    let source = MemorySource::new(5, &content(5, 40_000));
    let (mut speed, mut now_ms) = (Speed::default(), 0);
    let slow = tier_on(&memory, Some(SLOW));
    let copy = publish(&slow, b"a", &source).expect("it is copied");
    // A source that a busy machine delayed is measured again.
    let measured = (0..100)
        .map(|_| sample(&slow, copy, &source).expect("it is measured"))
        .find(|one| one.source_us.is_some_and(|us| 2 * us <= one.tier_us))
        .expect("the source is faster");
    assert_eq!((measured.copy, measured.bytes), (copy, 40_000));
    // Two operations wait, and the bytes take their time.
    assert!(measured.tier_us >= 44_000 && measured.source_us.is_some(), "{measured:?}");
    let mut verdict = Verdict::Same;
    while !matches!(verdict, Verdict::SetAside { .. }) {
        assert!(now_ms < 60_000, "it was not set aside");
        now_ms += 1_000;
        if speed.is_due(now_ms) {
            verdict = speed.take(measured, now_ms);
        }
    }
    let again: Vec<SpeedSample> = speed
        .retry(now_ms + 60_000)
        .iter()
        .map(|earlier| read_again(&slow, earlier).expect("it is read"))
        .collect();
    assert_eq!(speed.retried(&again), Verdict::Same);
    drop(slow);
    let fast = tier_on(&memory, None);
    let again: Vec<SpeedSample> = again
        .iter()
        .map(|earlier| read_again(&fast, earlier).expect("it is read"))
        .collect();
    assert_eq!(speed.retried(&again), Verdict::TakeBack);
}

#[test]
fn f12_a_fast_tier_costs_the_source_nothing() {
    let tier = tier_on(&MemoryDisk::new(1 << 30, 1000), None);
    let source = MemorySource::new(5, &content(5, 3_000_000));
    let copy = publish(&tier, b"a", &source).expect("it is copied");
    // A read of the source would now fail.
    *source.fault.lock().expect("nobody holds it") = Some(rustix::io::Errno::IO);
    let measured = sample(&tier, copy, &source).expect("it is measured");
    assert_eq!(
        (measured.bytes, measured.source_us),
        (1 << 20, None),
        "and no more than its beginning is read"
    );
    assert!(sample(&tier, copy + 1, &source).is_err(), "there is no such copy");
}
