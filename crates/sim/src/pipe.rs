//! Resources that carry bytes.

/// A resource that carries a number of bytes a second: a link in one direction, a memory, the source. First come, first
/// served, which shares it among many reads of like size as evenly as alternation would.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pipe {
    seconds_a_byte: f64,
    free_at_s: f64,
}

impl Pipe {
    /// Creates an idle pipe; an infinite rate takes no time.
    pub(crate) fn new(bytes_per_s: f64) -> Self {
        Self {
            seconds_a_byte: bytes_per_s.recip(),
            free_at_s: 0.0,
        }
    }

    /// Time at which all bytes are through; now if none are left.
    pub(crate) fn idle_at_s(&self, now_s: f64) -> f64 {
        self.free_at_s.max(now_s)
    }

    /// Carries bytes that all wait at the entrance from `now_s` on; returns the time at which the last is through.
    pub(crate) fn carry(&mut self, now_s: f64, bytes: u32) -> f64 {
        self.free_at_s = self.free_at_s.max(now_s) + f64::from(bytes) * self.seconds_a_byte;
        self.free_at_s
    }

    /// Carries bytes whose last reaches the entrance at `now_s`, and whose first came as fast as this pipe takes them;
    /// returns the time at which the last is through.
    pub(crate) fn carry_on(&mut self, now_s: f64, bytes: u32) -> f64 {
        let took_s = f64::from(bytes) * self.seconds_a_byte;
        self.free_at_s = self.free_at_s.max(now_s - took_s) + took_s;
        self.free_at_s = self.free_at_s.max(now_s);
        self.free_at_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found}, not {expected}");
    }

    #[test]
    fn a_pipe_is_never_idle_while_bytes_wait() {
        let mut pipe = Pipe::new(100.0);
        close(pipe.carry(1.0, 50), 1.5);
        close(pipe.carry(1.2, 50), 2.0);
        close(pipe.carry(5.0, 100), 6.0);
    }

    #[test]
    fn a_wider_pipe_behind_adds_nothing_and_a_shared_one_adds_its_queue() {
        let mut wide = Pipe::new(100.0);
        close(wide.carry_on(3.0, 50), 3.0);
        close(wide.carry_on(3.0, 50), 3.5);
        close(wide.carry_on(4.0, 50), 4.0);
    }

    #[test]
    fn an_infinite_rate_takes_no_time() {
        close(Pipe::new(f64::INFINITY).carry(1.0, u32::MAX), 1.0);
    }
}
