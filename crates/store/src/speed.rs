//! Measures the time of reads that no cache answers (F12). [`forebay_policy::speed`] decides on the result.

use std::time::Instant;

use forebay_policy::speed::SpeedSample;
use rustix::io::Errno;

use crate::disk::uninterrupted;
use crate::error::StoreError;
use crate::limits::{READ_PIECE_BYTES, TIMED_BYTES_MAX};
use crate::source::CopySource;
use crate::tier::Tier;

/// Reads the beginning of a copy and, if that was slow, the same part of its source. Both are read from their devices
/// and not from the page cache, as far as their file systems drop pages.
pub fn sample(tier: &Tier, copy: u64, source: &dyn CopySource) -> Result<SpeedSample, StoreError> {
    let (bytes, tier_us) = time_copy(tier, copy)?;
    let source_us = if SpeedSample::is_suspicious(bytes, tier_us) {
        time_source(source, bytes).ok()
    } else {
        None
    };
    Ok(SpeedSample {
        copy,
        bytes,
        tier_us,
        source_us,
    })
}

/// Reads the copy of an earlier sample again; the source's time stays.
pub fn read_again(tier: &Tier, earlier: &SpeedSample) -> Result<SpeedSample, StoreError> {
    let (bytes, tier_us) = time_copy(tier, earlier.copy)?;
    Ok(SpeedSample {
        bytes,
        tier_us,
        ..*earlier
    })
}

fn time_copy(tier: &Tier, copy: u64) -> Result<(u64, u64), StoreError> {
    let failed = |operation| {
        let path = tier.copy_path(copy);
        move |errno| StoreError::tier(&path, operation, errno)
    };
    let file = tier.open_copy(copy)?;
    uninterrupted(|| file.forget_pages()).map_err(failed("write back"))?;
    drop(file);
    let begun = Instant::now();
    let file = tier.open_copy(copy)?;
    let bytes = read(|bytes, offset| file.read_at(bytes, offset), TIMED_BYTES_MAX).map_err(failed("read"))?;
    Ok((bytes, begun.elapsed().as_micros() as u64))
}

fn time_source(source: &dyn CopySource, bytes: u64) -> Result<u64, Errno> {
    uninterrupted(|| source.forget_pages(bytes))?;
    let begun = Instant::now();
    read(|bytes, offset| source.read_at(bytes, offset), bytes)?;
    Ok(begun.elapsed().as_micros() as u64)
}

/// Reads up to `most` bytes from the beginning. Returns their number.
fn read(read_at: impl Fn(&mut [u8], u64) -> Result<usize, Errno>, most: u64) -> Result<u64, Errno> {
    let mut piece = vec![0; READ_PIECE_BYTES.min(most as usize)];
    let mut done = 0;
    while done < most {
        let wanted = piece.len().min((most - done) as usize);
        match uninterrupted(|| read_at(&mut piece[..wanted], done))? {
            0 => break,
            read => done += read as u64,
        }
    }
    Ok(done)
}
