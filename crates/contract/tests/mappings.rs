//! Mappings of the index in a process: replaced ones go once nobody reads in them, and never while somebody does.

mod entries;
mod memory;

use std::{
    ptr,
    sync::{
        Mutex,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread,
};

use entries::entry;
use forebay_contract::{IndexLayout, IndexReader, IndexWriter, Mappings, Region, Tier, mappings::MAPPINGS_MAX};
use memory::region;

const NAMES: u64 = 20;
const THREADS: usize = 2;
const GENERATIONS: u64 = 500;

fn layout() -> IndexLayout {
    IndexLayout::with_room(1024, 1024, 1024)
}

fn name(number: u64) -> String {
    format!("{number}")
}

/// Makes the index of a generation in zeroed memory; the versions of its records have the generation's number.
fn make(memory: Region<'static>, generation: u64) -> Region<'static> {
    let tier = Tier::new(3, b"/t").expect("short");
    let mut writer = IndexWriter::create(memory, &layout(), generation, generation, &[tier]).expect("room");
    writer.add_directory(b"/src", 7, 1).expect("room");
    for number in 0..NAMES {
        writer.insert(&entry(0, name(number).as_bytes(), number, generation)).expect("room");
    }
    memory
}

fn mapped(generation: u64) -> Region<'static> {
    make(region(layout().file_bytes() as usize), generation)
}

fn mappings() -> &'static Mappings {
    Box::leak(Box::new(Mappings::new()))
}

fn keep(mappings: &'static Mappings, region: Region<'static>) -> bool {
    // SAFETY: the memory of this test's regions is never given back.
    unsafe { mappings.keep(region) }
}

fn taken(mappings: &'static Mappings, generation: u64) -> Vec<Region<'static>> {
    mappings.take_older(generation).collect()
}

/// Checks that every record read belongs to the requested generation, from the first look to the last.
fn check(reading: &IndexReader, generation: u64) {
    (0..NAMES).for_each(|number| check_one(reading, generation, number));
    assert_eq!(reading.index().generation(), generation);
}

fn check_one(reading: &IndexReader, generation: u64, number: u64) {
    let index = reading.index();
    let name = name(number);
    let (_, record) = index
        .find(format!("/src/{name}").as_bytes())
        .expect("each generation has all names");
    let want = entry(0, name.as_bytes(), number, generation);
    assert_eq!((record.copy(), index.identity(record)), (want.copy, Some(want.identity)));
    assert_eq!(index.attributes(record), Some(want.attributes));
}

#[test]
fn what_is_read_stays_and_goes_when_its_last_reader_has_left() {
    let mappings = mappings();
    let first = mapped(1);
    assert!(keep(mappings, first));
    let (one, two) = (mappings.read(1).expect("mapped"), mappings.read(1).expect("mapped"));
    for generation in 2..50 {
        let old = taken(mappings, generation);
        assert_eq!(old.len(), usize::from(generation > 2), "all but the one that is read");
        assert!(keep(mappings, mapped(generation)));
        check(&mappings.read(generation).expect("mapped"), generation);
        check(&one, 1);
        assert_eq!(mappings.read_all(generation).count(), 2, "memory stays bounded");
    }
    drop(one);
    assert_eq!(taken(mappings, 49).len(), 0);
    check(&two, 1);
    drop(two);
    let [gone] = taken(mappings, 49)[..] else { panic!("one") };
    assert_eq!((gone.base(), gone.len()), (first.base(), first.len().next_multiple_of(4096)));
    assert!(mappings.read(1).is_none());
    check(&mappings.read(49).expect("it is current"), 49);
}

#[test]
fn readers_that_never_leave_hold_their_places_and_no_more() {
    let mappings = mappings();
    let stuck: Vec<IndexReader> = (1..=MAPPINGS_MAX as u64)
        .map(|generation| {
            assert_eq!(taken(mappings, generation).len(), 0);
            assert!(keep(mappings, mapped(generation)));
            mappings.read(generation).expect("mapped")
        })
        .collect();
    let next = MAPPINGS_MAX as u64 + 1;
    let late = mapped(next);
    assert!(!keep(mappings, late), "no place is left");
    assert!(mappings.read(next).is_none());
    for (reading, generation) in stuck.iter().zip(1..) {
        check(reading, generation);
    }
    drop(stuck);
    assert_eq!(taken(mappings, next).len(), MAPPINGS_MAX);
    assert!(keep(mappings, late));
    check(&mappings.read(next).expect("mapped"), next);
}

#[test]
fn of_two_threads_that_map_the_same_one_keeps_it() {
    let mappings = mappings();
    assert!(keep(mappings, mapped(5)));
    assert!(!keep(mappings, mapped(5)));
    // Another generation's slot is not taken from it.
    assert!(keep(mappings, mapped(5 + MAPPINGS_MAX as u64)));
    check(&mappings.read(5).expect("mapped"), 5);
    check(&mappings.read(5 + MAPPINGS_MAX as u64).expect("mapped"), 5 + MAPPINGS_MAX as u64);
    assert!(!keep(mappings, region(4096)), "no index");
}

/// Memory that can be mapped. Unmapped memory is overwritten, and used again later at the same address, as the kernel
/// does.
struct Kernel(Mutex<Vec<Region<'static>>>);

impl Kernel {
    fn map(&self, generation: u64) -> Region<'static> {
        let free = self.0.lock().expect("no thread has panicked").pop();
        let len = (layout().file_bytes() as usize).next_multiple_of(4096);
        let memory = free.unwrap_or_else(|| region(len));
        Self::fill(memory, 0);
        make(memory, generation)
    }

    fn unmap(&self, region: Region<'static>) {
        Self::fill(region, 0xEE);
        self.0.lock().expect("no thread has panicked").push(region);
    }

    fn fill(region: Region<'static>, byte: u8) {
        // SAFETY: the region's own memory, in which nobody reads, if `Mappings` keeps its promise.
        unsafe { ptr::write_bytes(region.base().as_ptr(), byte, region.len()) };
    }
}

/// A thread of a program that opens files, as in `state.rs` of the preload library.
fn read(mappings: &'static Mappings, kernel: &Kernel, current: &AtomicU64, reads: &AtomicU64) {
    loop {
        let generation = current.load(Acquire);
        if generation > GENERATIONS {
            return;
        }
        if let Some(reading) = mappings.read(generation) {
            check(&reading, generation);
            reads.fetch_max(generation, Release);
            continue;
        }
        let region = kernel.map(generation);
        for older in mappings.take_older(generation) {
            kernel.unmap(older);
        }
        if !keep(mappings, region) {
            kernel.unmap(region);
        }
    }
}

/// A thread that looks a descriptor up, as in `copies.rs` of the preload library: it looks through all mapped indices,
/// the replaced ones too.
fn read_all(mappings: &'static Mappings, current: &AtomicU64) {
    while current.load(Acquire) <= GENERATIONS {
        for reading in mappings.read_all(current.load(Relaxed)) {
            let generation = reading.index().generation();
            assert!(generation <= GENERATIONS, "{generation}");
            check_one(&reading, generation, generation % NAMES);
        }
    }
}

#[test]
fn nobody_reads_where_nothing_is_mapped_any_more() {
    let (mappings, kernel) = (mappings(), Kernel(Mutex::default()));
    let (current, reads) = (AtomicU64::new(1), AtomicU64::new(0));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .flat_map(|_| {
                let reads_all = scope.spawn(|| read_all(mappings, &current));
                [scope.spawn(|| read(mappings, &kernel, &current, &reads)), reads_all]
            })
            .collect();
        for generation in 1..=GENERATIONS {
            // Until a reader has read this one, or has failed.
            while reads.load(Acquire) < generation && threads.iter().all(|thread| !thread.is_finished()) {
                thread::yield_now();
            }
            current.store(generation + 1, Release);
        }
    });
    assert_eq!(reads.load(Relaxed), GENERATIONS);
    assert!(
        kernel.0.lock().expect("no thread has panicked").len() <= MAPPINGS_MAX + THREADS,
        "what was replaced is given back"
    );
}
