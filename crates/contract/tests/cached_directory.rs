//! Cached directories: written entries are read back, and other bytes are refused; records of directories have versions
//! without a size.

mod entries;
mod memory;

use forebay_contract::{
    Freshness, Identity, IndexLayout, IndexWriter, Run, Tier,
    cached_directory::{CachedDirectoryEntry, CachedDirectoryHeader, ENTRY_BYTES_MAX, ENTRY_BYTES_MIN, HEADER_BYTES, LENGTH_AT, OFFSET_AT},
    run::{RUN_BYTES, RunSettings},
};
use memory::region;
use proptest::prelude::*;

fn written(entry: &CachedDirectoryEntry<'_>) -> Option<Vec<u8>> {
    let mut room = [0xFF; ENTRY_BYTES_MAX];
    entry.write(&mut room).map(|len| room[..len].to_vec())
}

proptest! {
    #[test]
    fn an_entry_is_laid_out_as_the_kernel_does(inode: u64, offset: u64, kind: u8, name in proptest::collection::vec(1_u8..=255, 1..=255)) {
        prop_assume!(!name.contains(&b'/'));
        let bytes = written(&CachedDirectoryEntry { inode, offset, kind, name: &name }).expect("a name");
        prop_assert!(bytes.len().is_multiple_of(8) && (ENTRY_BYTES_MIN..=ENTRY_BYTES_MAX).contains(&bytes.len()));
        prop_assert_eq!(&bytes[..8], inode.to_le_bytes());
        prop_assert_eq!(&bytes[OFFSET_AT..LENGTH_AT], offset.to_le_bytes());
        prop_assert_eq!(&bytes[LENGTH_AT..18], (bytes.len() as u16).to_le_bytes());
        prop_assert_eq!(bytes[18], kind);
        prop_assert_eq!(&bytes[19..19 + name.len()], &name[..]);
        // At least one NUL follows the name, and less than one word of them.
        let rest = &bytes[19 + name.len()..];
        prop_assert!((1..=8).contains(&rest.len()) && rest.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_header_is_of_its_entries_alone(size: u64, mut bytes in proptest::collection::vec(any::<u8>(), 1..500), at: prop::sample::Index, bit in 0..8_u8) {
        let header = CachedDirectoryHeader::of(size, &bytes);
        let parsed = CachedDirectoryHeader::parse(&header.to_bytes()).expect("a header");
        prop_assert_eq!(parsed, header);
        prop_assert_eq!(parsed.directory_size(), size);
        prop_assert!(parsed.is_of(&bytes));
        prop_assert!(!parsed.is_of(&bytes[1..]));
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(!parsed.is_of(&bytes));
    }
}

#[test]
fn names_that_no_libc_hands_out_are_refused() {
    let entry = |name| CachedDirectoryEntry {
        inode: 1,
        offset: 1,
        kind: 8,
        name,
    };
    for name in [&b""[..], b"a/b", b"a\0b", &[b'x'; 256]] {
        assert_eq!(written(&entry(name)), None, "{} bytes", name.len());
    }
    assert_eq!(written(&entry(&[b'x'; 255])).map(|bytes| bytes.len()), Some(ENTRY_BYTES_MAX));
    assert_eq!(written(&entry(b".")).map(|bytes| bytes.len()), Some(ENTRY_BYTES_MIN));
}

#[test]
fn what_is_no_header_is_none() {
    let bytes = CachedDirectoryHeader::of(4096, b"entries").to_bytes();
    assert_eq!(CachedDirectoryHeader::parse(&bytes[..HEADER_BYTES - 1]), None);
    let mut other = bytes;
    other[6] ^= 1;
    assert_eq!(CachedDirectoryHeader::parse(&other), None);
}

#[test]
fn a_directory_of_another_size_and_the_same_times_is_the_same_version() {
    let layout = IndexLayout::with_room(8, 8, 64);
    let memory = region(layout.file_bytes() as usize);
    let tier = Tier::new(1, b"/tier/objects").expect("short");
    let mut writer = IndexWriter::create(memory, &layout, 1, 5, &[tier]).expect("room");
    let directory = writer.add_directory(b"/source", 7, 1).expect("room");
    let file = entries::entry(directory, b"file", 1, 1);
    let mut listing = entries::entry(directory, b"listing", 2, 1);
    listing.attributes.mode = 0o040_755;
    let [file, listing] = [file, listing].map(|entry| (writer.insert(&entry).expect("room"), entry.identity));
    let index = writer.index();
    let is_version = |number: u32, now: &Identity| index.is_version(index.record(number).expect("there"), now);
    for (number, identity) in [file, listing] {
        assert!(is_version(number, &identity));
        let mut touched = identity;
        touched.ctime.nsec ^= 1;
        assert!(!is_version(number, &touched));
        let is_listing = index.is_cached_directory(index.record(number).expect("there"));
        let grown = Identity {
            size: identity.size + 1,
            ..identity
        };
        assert_eq!(is_version(number, &grown), is_listing);
    }
}

#[test]
fn a_source_itself_is_a_directory_of_the_run() {
    let settings = RunSettings {
        run: 1,
        freshness: Freshness::Immutable,
        mount_namespace: 1,
        root: (1, 1),
        agent_dir: b"/agent",
        agent_started_at: 1,
        roots: &[(b"/data/set", 1)],
        excludes: &[],
    };
    let run = Run::create(region(RUN_BYTES), &settings).expect("room");
    for (path, is_under) in [
        ("/data/set", true),
        ("/data/set/train", true),
        ("/data/settings", false),
        ("/data", false),
        ("", false),
        ("/data/se", false),
    ] {
        assert_eq!(run.covers_directory(path.as_bytes()), is_under, "{path}");
    }
}
