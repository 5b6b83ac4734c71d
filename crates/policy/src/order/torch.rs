//! `torch.randperm` with a CPU generator.

use crate::ids::Sample;

/// Length from which torch draws 64 bits a place, and from the other end (found by trying torch 2.15).
const WIDE: u32 = u32::MAX / 20;

/// Places that are drawn before they are swapped.
const AT_ONCE: usize = 128;

/// Returns `torch.randperm(len, generator=torch.Generator().manual_seed(seed))` on the CPU: the shuffle of Fisher and
/// Yates, each place drawn from a Mersenne Twister modulo the number of places left. (The modulo favours small
/// numbers a little; equality with torch is the point here.)
pub(super) fn permutation(len: u32, seed: u64) -> Vec<Sample> {
    let mut random = Mt19937::new(seed);
    let mut table: Vec<Sample> = (0..len).collect();
    if len < WIDE {
        let mut others = [0; AT_ONCE];
        let mut first = 0;
        while first + 1 < len {
            // Draws and touches a group of places, so that their cache misses overlap, and then swaps them one after
            // another.
            let drawn = &mut others[..AT_ONCE.min((len - 1 - first) as usize)];
            for (at, other) in (first..).zip(drawn.iter_mut()) {
                *other = at + random.next() % (len - at);
            }
            std::hint::black_box(drawn.iter().fold(0, |seen, &other| seen ^ table[other as usize]));
            for &other in &*drawn {
                table.swap(first as usize, other as usize);
                first += 1;
            }
        }
    } else {
        for last in 0..len {
            let other = random.next_wide() % (u64::from(last) + 1);
            table.swap(last as usize, other as usize);
        }
    }
    table
}

/// The Mersenne Twister of Matsumoto and Nishimura (1998) with its 2002 initialisation, which is torch's CPU
/// generator.
struct Mt19937 {
    state: [u32; STATE],
    used: usize,
}

const STATE: usize = 624;
const MIDDLE: usize = 397;

impl Mt19937 {
    /// Seeds the generator. torch takes a seed of 64 bits, and its generator uses the lower 32.
    fn new(seed: u64) -> Self {
        let mut state = [seed as u32; STATE];
        for index in 1..STATE {
            let last = state[index - 1];
            state[index] = (last ^ (last >> 30)).wrapping_mul(1_812_433_253).wrapping_add(index as u32);
        }
        Self { state, used: STATE }
    }

    fn next(&mut self) -> u32 {
        if self.used == STATE {
            self.twist();
        }
        let mut bits = self.state[self.used];
        self.used += 1;
        bits ^= bits >> 11;
        bits ^= (bits << 7) & 0x9d2c_5680;
        bits ^= (bits << 15) & 0xefc6_0000;
        bits ^ (bits >> 18)
    }

    fn next_wide(&mut self) -> u64 {
        let high = self.next();
        u64::from(high) << 32 | u64::from(self.next())
    }

    fn twist(&mut self) {
        let state = &mut self.state;
        for index in 0..STATE {
            let joined = (state[index] & 0x8000_0000) | (state[(index + 1) % STATE] & 0x7fff_ffff);
            let odd = if joined & 1 == 0 { 0 } else { 0x9908_b0df };
            state[index] = state[(index + MIDDLE) % STATE] ^ (joined >> 1) ^ odd;
        }
        self.used = 0;
    }
}
