//! The table of extents: valid tables are read back, and damaged ones are not followed.

mod memory;

use forebay_contract::extents::{Extent, Extents, TO_THE_END};
use memory::region;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn table(paths: &[&[u8]], spans: Option<&[[u64; 3]]>) -> Vec<u8> {
    let samples = spans.map_or(paths.len(), <[_]>::len) as u64;
    let mut words = Extents::header(samples, paths.len() as u64, spans.is_none(), false).to_vec();
    let mut end = 0;
    words.push(end);
    for path in paths {
        end += path.len() as u64;
        words.push(end);
    }
    words.extend(spans.into_iter().flatten().flatten());
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend(paths.concat());
    bytes
}

fn open(bytes: &[u8]) -> Option<Extents<'static>> {
    let memory = region(bytes.len().max(1));
    // SAFETY: the test's own memory, of that length.
    unsafe { memory.base().as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Extents::open(memory)
}

const PATHS: [&[u8]; 3] = [b"/data/a", b"/data/b/c", b"/data/\xff"];

#[test]
fn whole_files() {
    let table = open(&table(&PATHS, None)).expect("it is whole");
    assert_eq!((table.samples(), table.files()), (3, 3));
    for (sample, path) in (0..).zip(PATHS) {
        let expected = Extent {
            file: sample,
            path,
            offset: 0,
            length: TO_THE_END,
            mark: 0,
        };
        assert_eq!(table.locate(sample), Some(expected));
    }
    assert_eq!(table.locate(3), None);
}

#[test]
fn files_with_marks() {
    let mut words = Extents::header(2, 2, true, true).to_vec();
    words.extend([0, 2, 4, 7, 0]);
    let bytes = [words.iter().flat_map(|word| word.to_ne_bytes()).collect(), b"/a/b".to_vec()].concat();
    let table = open(&bytes).expect("it is whole");
    let found = [0, 1].map(|sample| table.locate(sample).expect("it is there"));
    assert_eq!(found.map(|extent| (extent.path, extent.mark)), [(b"/a".as_slice(), 7), (b"/b", 0)]);
    assert!(open(&bytes[..8 * 12]).is_none(), "its marks are not whole");
}

#[test]
fn parts_of_files() {
    let spans = [[2, 10, 20], [0, 0, TO_THE_END], [2, 30, 0], [9, 0, 1]];
    let table = open(&table(&PATHS, Some(&spans))).expect("it is whole");
    assert_eq!((table.samples(), table.files()), (4, 3));
    let found = table.locate(0).expect("it is there");
    assert_eq!((found.path, found.offset, found.length), (PATHS[2], 10, 20));
    assert_eq!(table.locate(1).expect("it is there").path, PATHS[0]);
    assert_eq!(table.locate(2).expect("it is there").length, 0);
    assert_eq!(table.locate(3), None, "there is no such file");
}

#[test]
fn what_is_no_table_is_none() {
    let whole = table(&PATHS, Some(&[[0, 0, 1]]));
    assert!(open(&whole).is_some());
    for length in 0..whole.len() - PATHS.concat().len() {
        assert!(open(&whole[..length]).is_none(), "{length} bytes of it");
    }
    for word in [0, 1, 4] {
        let mut altered = whole.clone();
        altered[word * 8] ^= 0x40;
        assert!(open(&altered).is_none(), "word {word}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0), failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn a_damaged_table_leads_nowhere_else(places in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..6), whole_files: bool) {
        let spans = [[2, 10, 20], [0, 0, TO_THE_END], [1, 1, 1]];
        let mut bytes = table(&PATHS, if whole_files { None } else { Some(&spans) });
        for (at, value) in places {
            let length = bytes.len();
            bytes[at % length] = value;
        }
        if let Some(table) = open(&bytes) {
            for sample in (0..8).chain([u64::MAX]) {
                if let Some(found) = table.locate(sample) {
                    prop_assert!(found.path.len() <= bytes.len() && sample < table.samples());
                }
            }
        }
    }
}
