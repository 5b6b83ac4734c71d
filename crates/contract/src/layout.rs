//! Ties [`crate::CONTRACT_VERSION`] to the layout of shared memory and messages: a layout that changes without a new
//! version does not build.

use crate::{
    cached_directory, control, counters, digest::digest_of, extents, hash, index, job_page, message, read_lease, request_ring, run,
    version::VERSIONS,
};

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
    request_ring::LAYOUT,
    extents::LAYOUT,
    job_page::LAYOUT,
    read_lease::LAYOUT,
]);

const _: () = assert!(
    VERSIONS[VERSIONS.len() - 1].layouts == DIGEST,
    "a layout has changed: add a version with its digest to version.rs"
);
