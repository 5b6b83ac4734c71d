//! The index at its promised size, its growth, object paths, and the conditions under which a copy is usable.

mod entries;
mod memory;

use std::{collections::HashSet, fs, path::Path};

use entries::entry;
use forebay_contract::{
    Control, Counter, Entry, Freshness, Identity, Index, IndexFull, IndexLayout, IndexWriter, Record, Tier,
    control::{CONTROL_BYTES, SMALL_FILE_BYTES},
    index::split,
    object_path,
};
use memory::region;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

const TIER_DEV: u64 = 99;
const SPARE: u64 = 4096;

fn writer(layout: &IndexLayout, generation: u64) -> IndexWriter<'static> {
    let tier = Tier::new(TIER_DEV, b"/scratch/objects").expect("short");
    let memory = region(layout.file_bytes() as usize);
    IndexWriter::create(memory, layout, generation, 0xF0F0_1234, &[tier]).expect("as large as the layout says")
}

/// Returns the resident bytes of this process.
fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = statm.split(' ').nth(1).and_then(|field| field.parse().ok()).expect("Linux");
    pages * 4096
}

/// Returns a directory's name as in common datasets: directories are classes, names have about 20 bytes.
fn directory_name(number: u64) -> String {
    format!("/lustre/datasets/imagenet/train/n{number:08}")
}

fn file_name(number: u64) -> String {
    format!("n{:08}_{number}.JPEG", number % 1000)
}

fn path(number: u64) -> String {
    format!("{}/{}", directory_name(number % 1000), file_name(number))
}

fn assert_holds(index: &Index<'_>, number: u64, version: u64) {
    let (_, record) = index.find(path(number).as_bytes()).expect("what was published is found");
    let name = file_name(number);
    let want = entry((number % 1000) as u32, name.as_bytes(), number, version);
    assert_eq!(index.record_name(record), Some(want.name));
    assert_eq!(index.identity(record), Some(want.identity));
    assert_eq!(index.attributes(record), Some(want.attributes));
    assert_eq!(
        (record.copy(), record.copy_ino(), record.copy_ctime()),
        (want.copy, want.copy_ino, want.copy_ctime)
    );
    assert_eq!(
        (record.directory(), record.tier(), record.checked_at()),
        (want.directory, 0, want.checked_at)
    );
    let back = index
        .find_copy(TIER_DEV, want.copy_ino, want.copy_ctime)
        .expect("a copy is found by its inode");
    assert_eq!(back.1.copy(), want.copy);
}

#[test]
fn holds_1_300_000_entries_and_confuses_none() {
    const FILES: u64 = 1_300_000;
    let before = resident_bytes();
    let layout = IndexLayout::with_room(FILES, 1000, FILES * 32);
    let mut full = writer(&layout, 1);
    for number in 0..1000 {
        let directory = full.add_directory(directory_name(number).as_bytes(), 7, number).expect("room");
        assert_eq!(u64::from(directory), number);
    }
    for number in 0..FILES {
        let name = file_name(number);
        full.insert(&entry((number % 1000) as u32, name.as_bytes(), number, 0))
            .expect("room");
    }
    let bytes = resident_bytes() - before;
    println!(
        "{FILES} entries: {} MiB resident, {} bytes each; file {} MiB",
        bytes >> 20,
        bytes / FILES,
        layout.file_bytes() >> 20
    );
    assert!(bytes < 300 << 20, "the whole agent is promised 300 MiB");
    let index = full.index();
    for number in 0..FILES {
        assert_holds(&index, number, 0);
        assert!(
            index.find(path(number + FILES).as_bytes()).is_none(),
            "a name that was never published"
        );
    }
    assert!(full.insert(&entry(0, b"one more", FILES + 1, 0)).is_err(), "full, and says so");

    let (layout, _) = full.next_layout(SPARE, |_| false);
    let mut next = writer(&layout, 2);
    full.copy_into(&mut next, |_| false).expect("twice the room");
    assert_eq!(next.live(), full.live());
    let index = next.index();
    for number in (0..FILES).step_by(7) {
        assert_holds(&index, number, 0);
    }
    next.insert(&entry(0, b"one more", FILES + 1, 0)).expect("room again");
}

#[test]
fn growth_keeps_what_is_kept_and_drops_what_is_dead() {
    let mut old = writer(&IndexLayout::with_room(1024, 1024, 1 << 16), 1);
    for number in 0..1000 {
        old.add_directory(directory_name(number).as_bytes(), 7, number).expect("room");
    }
    old.set_swept(3, 77);
    let numbers: Vec<u32> = (0..300)
        .map(|number| {
            old.insert(&entry((number % 1000) as u32, file_name(number).as_bytes(), number, 0))
                .expect("room")
        })
        .collect();
    old.kill(numbers[10]);
    old.detach(numbers[20]);
    old.insert(&entry(30, file_name(30).as_bytes(), 30, 5)).expect("room");
    assert_eq!(old.live(), 299);

    let mut new = writer(&old.next_layout(SPARE, |_| false).0, 2);
    old.copy_into(&mut new, |_| false).expect("twice the room");
    let index = new.index();
    assert_eq!(index.generation(), 2);
    assert_eq!(index.directory(3).map(forebay_contract::Directory::swept_at), Some(77));
    assert!(index.find(path(10).as_bytes()).is_none());
    assert!(index.find_kept(path(10).as_bytes()).is_none());
    assert!(index.find(path(20).as_bytes()).is_none());
    let (detached, _) = index.find_kept(path(20).as_bytes()).expect("kept");
    new.confirm(detached, 9);
    assert_eq!(index.find(path(20).as_bytes()).expect("servable again").1.checked_at(), 9);
    assert_holds(&index, 30, 5);
    assert!(
        index.find_copy(TIER_DEV, 30, entry(30, b"", 30, 0).copy_ctime).is_none(),
        "the version that was replaced"
    );
}

#[test]
fn a_replaced_or_dead_record_is_still_known_by_its_copy() {
    let mut index = writer(&IndexLayout::with_room(1024, 1024, 1 << 16), 1);
    index.add_directory(b"/src", 7, 1).expect("room");
    let old = entry(0, b"x", 1, 0);
    index.insert(&old).expect("room");
    let new = index.insert(&entry(0, b"x", 1, 1)).expect("room");
    index.kill(new);
    let view = index.index();
    assert!(view.find(b"/src/x").is_none());
    for version in [0, 1] {
        let gone = entry(0, b"x", 1, version);
        let (_, record) = view
            .find_copy(TIER_DEV, gone.copy_ino, gone.copy_ctime)
            .expect("a descriptor may still be open");
        assert_eq!(view.identity(record), Some(gone.identity));
    }
    assert!(
        view.find_copy(TIER_DEV + 1, old.copy_ino, old.copy_ctime).is_none(),
        "another device"
    );
    assert!(
        view.find_copy(TIER_DEV, old.copy_ino, entries::time(1, 1)).is_none(),
        "the inode is another file's now"
    );
}

#[test]
fn a_copy_that_was_dropped_lives_on_in_a_new_index_while_it_is_open() {
    let mut old = writer(&IndexLayout::with_room(1024, 1024, 1 << 16), 1);
    old.add_directory(b"/src", 7, 1).expect("room");
    let versions = [0, 1, 2].map(|version| entry(0, b"x", 1, version));
    for version in &versions {
        old.insert(version).expect("room");
    }
    let gone = old.insert(&entry(0, b"gone", 2, 0)).expect("room");
    old.kill(gone);
    // A descriptor of the first version is open.
    let is_open = |record: &Record| record.copy() == versions[0].copy;
    let (layout, filled) = old.next_layout(SPARE, is_open);
    let mut new = writer(&layout, 2);
    old.copy_into(&mut new, is_open).expect("twice the room");
    assert_eq!((new.records(), new.live()), (2, 1));
    assert!(new.parts().iter().zip(filled).all(|(part, most)| part.1 <= most));
    let index = new.index();
    assert_eq!(index.find(b"/src/x").expect("it lives").1.copy(), versions[2].copy);
    assert!(index.find_kept(b"/src/gone").is_none());
    let found = |version: usize| {
        let Entry { copy_ino, copy_ctime, .. } = versions[version];
        index.find_copy(TIER_DEV, copy_ino, copy_ctime)
    };
    let (_, record) = found(0).expect("it is open");
    assert_eq!(index.identity(record), Some(versions[0].identity));
    assert!(!record.is_kept() && found(1).is_none() && found(2).is_some());
}

#[test]
fn an_index_of_copies_that_come_and_go_stays_as_large_as_what_lives() {
    const LIVE: u64 = 500;
    const ROUNDS: u64 = 60;
    let mut now = writer(&IndexLayout::for_files(0, SPARE), 1);
    // Directories are the part that never shrinks.
    let long = "d".repeat(200);
    let directories: Vec<u32> = (0..20)
        .map(|number| now.add_directory(format!("/{long}/{number}").as_bytes(), 7, number).expect("room"))
        .collect();
    let (mut generations, mut since) = (1, 0);
    for number in 0..ROUNDS * SPARE {
        let name = file_name(number);
        let directory = directories[(number % 20) as usize];
        let entry = entry(directory, name.as_bytes(), number, 0);
        if now.insert(&entry).is_err() {
            assert!(since >= SPARE, "{since} new names, and full");
            let (layout, _) = now.next_layout(SPARE, |_| false);
            assert!(layout.file_bytes() < 3 << 20, "{layout:?}");
            generations += 1;
            let mut next = writer(&layout, generations);
            now.copy_into(&mut next, |_| false).expect("twice the room");
            (now, since) = (next, 0);
            now.insert(&entry).expect("room again");
        }
        since += 1;
        if let Some(old) = number.checked_sub(LIVE) {
            let path = format!("/{long}/{}/{}", old % 20, file_name(old));
            let (gone, _) = now.index().find_kept(path.as_bytes()).expect("it is there still");
            now.kill(gone);
        }
    }
    assert!(u64::from(now.live()) == LIVE && generations >= ROUNDS * 2 / 3, "{generations}");
}

#[test]
fn a_full_table_changes_nothing() {
    let mut index = writer(&IndexLayout::with_room(1024, 1024, 1024), 1);
    index.add_directory(b"/src", 7, 1).expect("room");
    let long = [b'n'; 1020];
    assert_eq!(index.insert(&entry(0, &long, 1, 0)).map(drop), Ok(()));
    assert_eq!(index.insert(&entry(0, b"name", 2, 0)), Err(IndexFull));
    assert!(index.index().find(b"/src/name").is_none());
    assert_eq!((index.live(), index.records()), (1, 1));
    assert_eq!(index.insert(&entry(9, b"x", 2, 0)), Err(IndexFull), "a directory that is not there");
    assert_eq!(index.insert(&entry(0, b"..", 2, 0)), Err(IndexFull), "not a name");
}

#[test]
fn damaged_or_foreign_memory_is_no_index() {
    let layout = IndexLayout::with_room(1024, 1024, 1 << 16);
    assert!(Index::open(region(4096)).is_none(), "zeroes");
    assert!(Index::open(region(64)).is_none(), "too short for a header");
    let whole = region(layout.file_bytes() as usize);
    let tier = Tier::new(TIER_DEV, b"/t").expect("short");
    IndexWriter::create(whole, &layout, 1, 1, &[tier]).expect("room");
    assert!(Index::open(whole).is_some());
    // SAFETY: a part of the same memory.
    let cut = unsafe { forebay_contract::Region::new(whole.base(), whole.len() - 4096) };
    assert!(Index::open(cut).is_none(), "shorter than its header says");
}

#[test]
fn a_file_is_worth_a_handoff_if_a_tier_has_room_or_it_is_read_ahead() {
    let control = Control::create(region(CONTROL_BYTES)).expect("room");
    control.set_room_hint(1000);
    let is_worth = |sizes: [u64; 5]| sizes.map(|size| control.is_worth_handoff(size));
    let sizes = [1000, 1001, SMALL_FILE_BYTES, SMALL_FILE_BYTES + 1, 1 << 20];
    assert_eq!(is_worth(sizes), [true, false, false, false, false]);
    control.set_pages_hint(SMALL_FILE_BYTES + 1);
    assert_eq!(is_worth(sizes), [true, false, false, true, false], "no small file is read ahead");
}

type Marking = fn(&Control<'_>, &Identity);

/// Returns the verdict at `now` on a record `checked` and swept at these times, after some marks.
fn verdict((checked, swept): (u64, u64), freshness: Freshness, now: u64, mark: Marking) -> Result<(), Counter> {
    let control = Control::create(region(CONTROL_BYTES)).expect("room");
    let mut index = writer(&IndexLayout::with_room(1024, 1024, 1 << 16), 1);
    index.add_directory(b"/src", 7, 50).expect("room");
    index.set_swept(0, swept);
    let mut published = entry(0, b"x", 1, 0);
    published.checked_at = checked;
    index.insert(&published).expect("room");
    mark(&control, &published.identity);
    let view = index.index();
    let (_, record) = view.find(b"/src/x").expect("published");
    let directory = view.directory(0).expect("added");
    control.usable(record, directory, b"x", &published.identity, freshness, now)
}

const TTL: Freshness = Freshness::Ttl(60);

#[test]
fn a_copy_is_usable_for_as_long_as_its_freshness_says() {
    let none: Marking = |_, _| ();
    let year = 1 << 55;
    for (what, times, freshness, now, want) in [
        ("just checked", (100, 0), TTL, 100, Ok(())),
        ("checked within the time", (100, 0), TTL, 159, Ok(())),
        ("checked too long ago", (100, 0), TTL, 160, Err(Counter::Stale)),
        ("swept since", (100, 150), TTL, 209, Ok(())),
        ("swept too long ago", (100, 150), TTL, 210, Err(Counter::Stale)),
        ("checked after the sweep", (150, 100), TTL, 209, Ok(())),
        ("adopted, not checked", (0, 0), TTL, 1, Err(Counter::Stale)),
        ("adopted, then swept", (0, 30), TTL, 40, Ok(())),
        ("adopted, immutable", (0, 0), Freshness::Immutable, 1, Ok(())),
        ("old, immutable", (1, 0), Freshness::Immutable, year, Ok(())),
        ("old, asked at each open", (1, 0), Freshness::OnOpen, year, Ok(())),
        ("no time at all", (100, 0), Freshness::Ttl(0), 100, Err(Counter::Stale)),
    ] {
        assert_eq!(verdict(times, freshness, now, none), want, "{what}");
    }
}

#[test]
fn a_copy_is_unusable_from_a_mark_until_it_is_checked_or_swept() {
    let file: Marking = |control, identity| control.mark_file(identity.dev, identity.ino, 110);
    let other: Marking = |control, identity| control.mark_file(identity.dev, identity.ino + 1, 110);
    let back: Marking = |control, identity| {
        control.mark_file(identity.dev, identity.ino, 110);
        control.mark_file(identity.dev, identity.ino, 90);
    };
    let name: Marking = |control, _| control.mark_name(7, 50, b"x", 110);
    let sibling: Marking = |control, _| control.mark_name(7, 50, b"y", 110);
    let elsewhere: Marking = |control, _| control.mark_name(7, 51, b"x", 110);
    let void: Marking = |control, _| control.mark_void(110);
    let unseen: Marking = |control, _| control.mark_unseen(110);
    let dead = Err(Counter::Tombstoned);
    for (what, times, freshness, mark, want) in [
        ("file, after the check", (100, 0), TTL, file, dead),
        ("file, at the check", (110, 0), TTL, file, dead),
        ("file, before the check", (111, 0), TTL, file, Ok(())),
        ("file, swept since", (100, 115), TTL, file, Ok(())),
        ("file, immutable", (100, 0), Freshness::Immutable, file, dead),
        ("file, asked at each open", (100, 0), Freshness::OnOpen, file, dead),
        ("file, adopted and immutable", (0, 0), Freshness::Immutable, file, dead),
        ("another file", (100, 0), TTL, other, Ok(())),
        ("an older mark does not take a newer one back", (100, 0), TTL, back, dead),
        ("name", (100, 0), TTL, name, dead),
        ("name, swept since", (100, 111), TTL, name, Ok(())),
        ("another name", (100, 0), TTL, sibling, Ok(())),
        ("the same name elsewhere", (100, 0), TTL, elsewhere, Ok(())),
        ("void", (100, 0), TTL, void, dead),
        ("void, swept since", (100, 111), TTL, void, Ok(())),
        ("a program ended unseen", (100, 0), TTL, unseen, Err(Counter::Stale)),
        ("a program ended unseen at the check", (110, 0), TTL, unseen, Err(Counter::Stale)),
        ("a program ended unseen, checked since", (111, 0), TTL, unseen, Ok(())),
        ("a program ended unseen, swept since", (100, 111), TTL, unseen, Ok(())),
        ("a program ended unseen, immutable", (100, 0), Freshness::Immutable, unseen, Ok(())),
        (
            "a program ended unseen, asked at each open",
            (100, 0),
            Freshness::OnOpen,
            unseen,
            Ok(()),
        ),
    ] {
        assert_eq!(verdict(times, freshness, 120, mark), want, "{what}");
    }
}

#[test]
fn object_paths_are_distinct_and_below_their_tier() {
    let mut seen = HashSet::new();
    for copy in (0..4096).chain([u64::MAX, 1 << 32, 1 << 63]) {
        let mut room = [0xFF; 64];
        let len = object_path(b"/t/objects", copy, &mut room).expect("room");
        let path = std::str::from_utf8(&room[..len]).expect("digits");
        let (file, folder) = (format!("{copy:016x}"), format!("{:02x}", copy & 0xFF));
        assert_eq!(Path::new(path), Path::new("/t/objects").join(folder).join(file));
        assert_eq!(room[len], 0, "ends with a NUL");
        assert!(seen.insert(path.to_owned()));
    }
    assert_eq!(object_path(b"/t/objects", 1, &mut [0; 30]), None, "no room for the NUL");
    assert!(object_path(b"/t/objects", 1, &mut [0; 31]).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn split_and_join_give_the_path_back(path in prop::collection::vec(prop_oneof![Just(b'/'), Just(b'.'), any::<u8>()], 0..40)) {
        if let Some((directory, name)) = split(&path) {
            prop_assert_eq!([directory, b"/", name].concat(), path.clone());
            prop_assert!(path.starts_with(b"/") && !name.contains(&b'/'));
            prop_assert!(!matches!(name, b"" | b"." | b".."));
        } else {
            let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or(&[]);
            prop_assert!(!path.starts_with(b"/") || matches!(last, b"" | b"." | b".."));
        }
    }

    #[test]
    fn object_paths_tell_copies_apart(a: u64, b: u64) {
        let (mut left, mut right) = ([0; 32], [0; 32]);
        object_path(b"/t", a, &mut left);
        object_path(b"/t", b, &mut right);
        prop_assert_eq!(left == right, a == b);
    }
}
