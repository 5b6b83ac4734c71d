//! Readers of the index while the agent writes: a record that a reader finds is complete, belongs to the requested
//! name, and never goes back to an older version.

mod entries;
mod memory;

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use entries::entry;
use forebay_contract::{Control, Index, IndexLayout, IndexWriter, Region, Tier, control::CONTROL_BYTES};
use memory::region;

const NAMES: u64 = 400;
const SPARE: u64 = 4096;
const GENERATIONS_MAX: usize = 64;
const GENERATIONS_MIN: u64 = 3;
const FOUND_MIN: u64 = 1000;
const WRITE_MIN: Duration = Duration::from_secs(3);
const WRITE_MAX: Duration = Duration::from_secs(120);
const TIER_DEV: u64 = 3;
static FILES: [OnceLock<Region<'static>>; GENERATIONS_MAX] = [const { OnceLock::new() }; GENERATIONS_MAX];

fn name(number: u64) -> String {
    format!("file-{number:05}")
}

fn fresh(layout: &IndexLayout, generation: u64) -> IndexWriter<'static> {
    let memory = region(layout.file_bytes() as usize);
    let tier = Tier::new(TIER_DEV, b"/t").expect("short");
    let writer = IndexWriter::create(memory, layout, generation, generation * 17, &[tier]).expect("room");
    FILES[generation as usize].set(memory).expect("each generation once");
    writer
}

/// The agent: inserts, replaces, detaches, confirms and kills in a small table that fills up again and again. It goes
/// on for a while, and on a slow machine until readers have found enough.
fn write(control: Control<'static>, mut writer: IndexWriter<'static>, found: &AtomicU64) -> u64 {
    let begun = Instant::now();
    let mut generation = writer.index().generation();
    let mut version = 0;
    let is_over = |generation| {
        let enough = generation > GENERATIONS_MIN && found.load(Relaxed) > FOUND_MIN;
        begun.elapsed() >= if enough { WRITE_MIN } else { WRITE_MAX }
    };
    while !is_over(generation) && (generation as usize) < GENERATIONS_MAX - 1 {
        version += 1;
        for number in 0..NAMES {
            let name = name(number);
            let entry = entry(0, name.as_bytes(), number, version);
            let inserted = writer.insert(&entry).unwrap_or_else(|_| {
                generation += 1;
                let mut next = fresh(&writer.next_layout(SPARE, |_| false).0, generation);
                writer.copy_into(&mut next, |_| false).expect("twice the room");
                writer = next;
                control.set_generation(generation);
                writer.insert(&entry).expect("room again")
            });
            match number % 5 {
                0 => writer.detach(inserted),
                1 => {
                    writer.detach(inserted);
                    writer.confirm(inserted, entry.checked_at);
                }
                2 if version % 3 == 0 => writer.kill(inserted),
                _ => {}
            }
        }
    }
    version
}

/// A reader: looks names up in the current index, and checks every field of what it finds.
fn read(control: Control<'static>, done: &AtomicBool, found: &AtomicU64) {
    let mut newest = vec![0; NAMES as usize];
    let mut round = 0u64;
    while !done.load(Relaxed) {
        round += 1;
        let generation = control.generation();
        let file = FILES[generation as usize].get().expect("published after it was made");
        let index = Index::open(*file).expect("whole before it is published");
        assert_eq!(index.generation(), generation);
        let number = round.wrapping_mul(0x9E37_79B9_7F4A_7C15) % NAMES;
        let name = name(number);
        let Some((_, record)) = index.find(format!("/src/{name}").as_bytes()) else {
            continue;
        };
        let version = record.copy() >> 32;
        let want = entry(0, name.as_bytes(), number, version);
        assert_eq!(index.record_name(record), Some(want.name));
        assert_eq!(index.identity(record), Some(want.identity));
        assert_eq!(index.attributes(record), Some(want.attributes));
        assert_eq!(
            (record.copy(), record.copy_ino(), record.copy_ctime(), record.checked_at()),
            (want.copy, want.copy_ino, want.copy_ctime, want.checked_at)
        );
        let back = index
            .find_copy(TIER_DEV, want.copy_ino, want.copy_ctime)
            .expect("a copy that was found by name is known by its inode");
        assert_eq!(back.1.copy(), want.copy);
        let newest = &mut newest[number as usize];
        assert!(version >= *newest, "{name} went back from version {newest} to {version}");
        *newest = version;
        found.fetch_add(1, Relaxed);
    }
}

#[test]
fn what_doors_find_is_whole_while_the_agent_writes() {
    let control = Control::create(region(CONTROL_BYTES)).expect("room");
    let mut writer = fresh(&IndexLayout::with_room(1024, 1024, 1 << 16), 1);
    writer.add_directory(b"/src", 7, 1).expect("room");
    control.set_generation(1);
    let (done, found) = (AtomicBool::new(false), AtomicU64::new(0));
    let versions = thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| read(control, &done, &found));
        }
        let versions = write(control, writer, &found);
        done.store(true, Relaxed);
        versions
    });
    println!(
        "{versions} versions of {NAMES} names, {} generations, {} lookups that found",
        control.generation(),
        found.load(Relaxed)
    );
    assert!(
        control.generation() > GENERATIONS_MIN,
        "the table has grown while doors were reading"
    );
    assert!(found.load(Relaxed) > FOUND_MIN);
}
