//! Recent read times: a constant for the request and one for each byte, fitted to the reads that ended last.

/// Weight that a read loses with each later one: the last few hundred matter.
const FADING: f64 = 1.0 - 1.0 / 256.0;

/// Seconds as a line over bytes, by least squares over observed reads with fading weights.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Recent {
    count: f64,
    bytes: f64,
    seconds: f64,
    bytes_squared: f64,
    bytes_seconds: f64,
}

impl Recent {
    /// Records a read of `bytes` that took `seconds`.
    pub fn observe(&mut self, bytes: u64, seconds: f64) {
        let bytes = bytes as f64;
        for sum in [
            &mut self.count,
            &mut self.bytes,
            &mut self.seconds,
            &mut self.bytes_squared,
            &mut self.bytes_seconds,
        ] {
            *sum *= FADING;
        }
        self.count += 1.0;
        self.bytes += bytes;
        self.seconds += seconds;
        self.bytes_squared += bytes * bytes;
        self.bytes_seconds += bytes * seconds;
    }

    /// Returns the expected seconds of a read of `bytes`; 0 while none was observed.
    pub fn seconds(&self, bytes: u64) -> f64 {
        if self.count == 0.0 {
            return 0.0;
        }
        let (mean_bytes, mean_s) = (self.bytes / self.count, self.seconds / self.count);
        let variance = self.bytes_squared / self.count - mean_bytes * mean_bytes;
        let covariance = self.bytes_seconds / self.count - mean_bytes * mean_s;
        // For reads of one size no slope can be fitted; the rest of the variance is rounding.
        let slope = if variance > 1e-6 * mean_bytes * mean_bytes {
            covariance / variance
        } else {
            0.0
        };
        // Neither a request nor a byte takes less than no time; if one would, the other gets all of it.
        let by_bytes = if mean_bytes > 0.0 { mean_s / mean_bytes } else { 0.0 };
        let slope = slope.clamp(0.0, by_bytes);
        slope.mul_add(bytes as f64 - mean_bytes, mean_s)
    }
}

#[cfg(test)]
mod tests {
    use super::Recent;

    fn after(reads: impl IntoIterator<Item = (u64, f64)>) -> Recent {
        let mut recent = Recent::default();
        reads.into_iter().for_each(|(bytes, seconds)| recent.observe(bytes, seconds));
        recent
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9 + 1e-6 * expected, "{found}, not {expected}");
    }

    #[test]
    fn a_request_and_its_bytes_are_told_apart() {
        let recent = after((0..100).map(|nth| (1000 * (nth % 7), 0.002 + 1e-6 * 1000.0 * (nth % 7) as f64)));
        close(recent.seconds(0), 0.002);
        close(recent.seconds(10_000), 0.012);
    }

    #[test]
    fn of_one_size_it_is_the_mean_and_of_none_nothing() {
        close(after([(500, 0.1), (500, 0.1)]).seconds(5000), 0.1);
        close(Recent::default().seconds(5000), 0.0);
        close(after([(0, 0.1)]).seconds(0), 0.1);
    }

    #[test]
    fn time_never_falls_with_size_nor_below_nothing() {
        let falling = after([(1000, 0.3), (2000, 0.1)]);
        assert!(falling.seconds(2000) >= falling.seconds(1000));
        let steep = after([(1000, 0.1), (2000, 1.0)]);
        assert!(steep.seconds(0) >= -1e-12 && steep.seconds(10) < 0.01);
    }

    #[test]
    fn what_is_long_past_is_forgotten() {
        let reads = (0..5000).map(|nth| (1000, if nth < 2500 { 5.0 } else { 0.1 }));
        assert!((after(reads).seconds(1000) - 0.1).abs() < 0.01);
    }
}
