//! Ties [`CONTRACT_VERSION`] to the layout of shared memory and messages: a layout that changes without a new version
//! does not build.

use crate::{CONTRACT_VERSION, board, cached_directory, control, counters, digest::digest_of, extents, hash, index, message, run};

/// Versions and the digests of their layouts. A change of a layout raises the version and adds its line; older lines
/// stay.
const DIGESTS: &[(u32, u64)] = &[
    (1, 0x01A2_E03E_CAD8_1D7C),
    (2, 0x02A1_6BAD_EFA1_DD60),
    (3, 0x6EDF_347C_FEEC_E4B8),
    (4, 0xD437_36BE_1B81_3BDB),
    (5, 0x24F8_579B_BE1E_8C5F),
    (6, 0xBDE4_FD6C_48F2_7422),
    (7, 0x1EFA_8EC3_2CD5_9403),
    (8, 0x4BBF_5A20_D8FC_6EC0),
    (9, 0xB2EA_5AEA_0744_826F),
];

const fn digest_of_layouts(modules: &[&[&[u64]]]) -> u64 {
    let mut digest = 0xCBF2_9CE4_8422_2325;
    let mut module = 0;
    while module < modules.len() {
        let mut layout = 0;
        while layout < modules[module].len() {
            let numbers = modules[module][layout];
            let mut number = 0;
            while number < numbers.len() {
                digest = digest_of(digest, &numbers[number].to_le_bytes());
                number += 1;
            }
            layout += 1;
        }
        module += 1;
    }
    digest
}

const DIGEST: u64 = digest_of_layouts(&[
    index::LAYOUT,
    control::LAYOUT,
    run::LAYOUT,
    message::LAYOUT,
    counters::LAYOUT,
    hash::LAYOUT,
    cached_directory::LAYOUT,
    board::LAYOUT,
    extents::LAYOUT,
]);

const LAST: (u32, u64) = DIGESTS[DIGESTS.len() - 1];
const _: () = assert!(LAST.0 == CONTRACT_VERSION, "the version has no line in DIGESTS");
const _: () = assert!(LAST.1 == DIGEST, "a layout has changed: raise CONTRACT_VERSION and add its digest");
