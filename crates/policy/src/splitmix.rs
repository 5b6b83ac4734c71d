//! The generator splitmix64 (Steele, Lea and Flood, OOPSLA 2014), of which a position takes the place of a state.

/// Steps of the Weyl sequence of splitmix64: the odd number next to 2^64 over the golden ratio.
pub const WEYL: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of splitmix64 (Steele, Lea, Flood, 2014): a bijection of 64 bits in which each bit depends on
/// all.
pub const fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::{WEYL, mix};

    /// Its published generator, seeded with 1234567.
    #[test]
    fn the_function_is_that_of_splitmix64() {
        let state = |nth: u64| 1_234_567_u64.wrapping_add(WEYL.wrapping_mul(nth));
        assert_eq!(
            [1, 2, 3, 4, 5].map(|nth| mix(state(nth))),
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821
            ]
        );
    }
}
