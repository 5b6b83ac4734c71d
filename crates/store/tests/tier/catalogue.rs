//! The log of published copies: truncated, altered, rewritten, and compared with a model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use forebay_store::disk::{MemoryDisk, Name};
use forebay_store::testing::MemorySource;
use forebay_store::{CatalogueEntry, StoreError, Tier};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use crate::common::{BOOT, KeptCopy, MOUNT, NEXT_BOOT, NOW, content, copy, entry, open_on, publish, recover};

fn memory() -> Arc<MemoryDisk> {
    Arc::new(MemoryDisk::new(64 << 20, 10_000))
}

fn log_bytes(disk: &MemoryDisk) -> Vec<u8> {
    let mut log = Vec::new();
    assert!(disk.alter(Name::Catalogue, |bytes| log.clone_from(bytes)), "there is a catalogue");
    log
}

fn five_copies(disk: &Arc<MemoryDisk>) -> BTreeMap<Vec<u8>, KeptCopy> {
    let tier = open_on(disk.clone(), BOOT).expect("opens");
    for (index, name) in [b"a", b"b", b"c", b"d", b"e"].iter().enumerate() {
        publish(
            &tier,
            name.as_slice(),
            &MemorySource::new(index as u64, &content(index as u64, 100 + index)),
        )
        .expect("published");
    }
    drop(tier);
    recover(&open_on(disk.clone(), BOOT).expect("opens")).expect("recovered").0
}

#[test]
fn f9_a_log_torn_at_any_byte_gives_the_copies_before_and_goes_on() {
    let disk = memory();
    let all = five_copies(&disk);
    let log = log_bytes(&disk);
    let mut found = BTreeSet::new();
    for size in 0..log.len() {
        disk.alter(Name::Catalogue, |bytes| *bytes = log[..size].to_vec());
        let tier = open_on(disk.clone(), BOOT).expect("opens");
        let (copies, _, report) = recover(&tier).expect("recovered");
        assert!(
            copies.iter().all(|(name, kept)| all.get(name) == Some(kept)),
            "whole ones only, at {size}"
        );
        assert!(copies.keys().eq(all.keys().take(copies.len())), "the first ones, at {size}");
        assert_eq!(report.missing, 0);
        found.insert(copies.len());
        let added = publish(&tier, b"new", &MemorySource::new(9, b"new")).expect("it goes on");
        drop(tier);
        let (later, ..) = recover(&open_on(disk.clone(), BOOT).expect("opens")).expect("recovered");
        assert_eq!((later.len(), later[b"new".as_slice()].id), (copies.len() + 1, added), "at {size}");
    }
    assert_eq!(found, (0..5).collect());
}

#[test]
fn f10_s5_a_log_with_any_byte_altered_ends_there() {
    let disk = memory();
    let all = five_copies(&disk);
    let log = log_bytes(&disk);
    for place in 0..log.len() {
        disk.alter(Name::Catalogue, |bytes| {
            *bytes = log.clone();
            bytes[place] ^= 0x10;
        });
        let (copies, _, report) = recover(&open_on(disk.clone(), BOOT).expect("opens")).expect("recovered");
        assert!(
            copies.len() < all.len() && copies.iter().all(|(name, kept)| all.get(name) == Some(kept)),
            "at {place}"
        );
        assert!(place < 8 || report.torn_bytes > 0, "it is told, at {place}");
    }
}

#[test]
fn s5_records_cannot_be_moved_repeated_or_brought_from_another_log() {
    let disk = memory();
    let all = five_copies(&disk);
    let log = log_bytes(&disk);
    // The last record again: complete and rightly tagged, but for another position.
    let last = log.len() - {
        let mut at = 24;
        let mut frame = 0;
        while at < log.len() {
            frame = 20 + u32::from_le_bytes([log[at], log[at + 1], log[at + 2], log[at + 3]]) as usize;
            at += frame;
        }
        frame
    };
    disk.alter(Name::Catalogue, |bytes| bytes.extend_from_slice(&log[last..]));
    let (copies, _, report) = recover(&open_on(disk.clone(), BOOT).expect("opens")).expect("recovered");
    assert_eq!((copies.len(), report.torn_bytes), (all.len(), (log.len() - last) as u64));
    // The whole log of another tier of the same user: same secret, another salt.
    let other = memory();
    five_copies(&other);
    let foreign = log_bytes(&other);
    disk.alter(Name::Catalogue, |bytes| {
        bytes.splice(24.., foreign[24..].iter().copied()).for_each(drop);
    });
    assert!(recover(&open_on(disk, BOOT).expect("opens")).expect("recovered").0.is_empty());
}

#[test]
fn s3_names_are_bytes_and_never_paths() {
    let disk = memory();
    let names: [&[u8]; 6] = [b"../../../etc/passwd", b"/etc/passwd", b"a\0b", b"..", b"", b"\xff\xfe"];
    {
        let tier = open_on(disk.clone(), BOOT).expect("opens");
        for name in names {
            publish(&tier, name, &MemorySource::new(1, name)).expect("published");
        }
        let source = MemorySource::new(1, b"x");
        let id = tier.next_id();
        let finished = copy(&tier, id, &source).expect("copied");
        let long = vec![b'x'; 5000];
        let too_long = CatalogueEntry {
            dir: &long,
            ..entry(id, b"x", &source, &finished)
        };
        assert!(matches!(tier.publish(&too_long), Err(StoreError::TooLong { bytes: 5000, .. })));
        assert!(tier.open_copy(id).is_err(), "a copy that cannot be published is removed");
    }
    let (copies, ..) = recover(&open_on(disk.clone(), BOOT).expect("opens")).expect("recovered");
    assert_eq!(
        copies.keys().map(Vec::as_slice).collect::<BTreeSet<_>>(),
        names.into_iter().collect()
    );
    assert!(
        disk.names()
            .iter()
            .all(|name| !name.path().as_bytes().windows(2).any(|pair| pair == b".."))
    );
    for (shard, entry) in [
        (0, b"../../../../etc/".as_slice()),
        (0xef, b"0123456789ABCDEF"),
        (0, b"0123456789abcdef"),
        (0xef, b"123456789abcdef"),
    ] {
        assert_eq!(Name::parse_object(shard, entry), None);
    }
    assert_eq!(Name::parse_object(0xef, b"0123456789abcdef"), Some(0x0123_4567_89ab_cdef));
}

#[test]
fn a_copy_whose_file_is_gone_is_missing_once_and_then_forgotten() {
    let disk = memory();
    let all = five_copies(&disk);
    let gone = Name::Object(all[b"c".as_slice()].id);
    forebay_store::disk::Disk::remove(&*disk, gone).expect("removed behind our back");
    let (copies, _, report) = recover(&open_on(disk.clone(), BOOT).expect("opens")).expect("recovered");
    assert_eq!((copies.len(), report.missing), (4, 1));
    let (copies, _, report) = recover(&open_on(disk, BOOT).expect("opens")).expect("recovered");
    assert_eq!((copies.len(), report.missing), (4, 0));
}

#[test]
fn directories_are_told_in_the_order_in_which_they_are_asked_for_and_once() {
    let disk = memory();
    let tier = open_on(disk.clone(), BOOT).expect("opens");
    let mut ids = BTreeMap::new();
    // As after an epoch in random order: the records of a directory are scattered.
    for nth in 0..3000_u64 {
        let dir = format!("/pfs/{}", nth % 3);
        let source = MemorySource::new(nth + 1, b"bytes");
        let id = tier.next_id();
        let finished = copy(&tier, id, &source).expect("copied");
        let name = nth.to_string();
        let entry = forebay_store::CatalogueEntry {
            dir: dir.as_bytes(),
            ..entry(id, name.as_bytes(), &source, &finished)
        };
        tier.publish(&entry).expect("published");
        ids.insert(id, nth);
    }
    let (&of_first, _) = ids.iter().find(|(_, nth)| **nth == 0).expect("published");
    tier.publish_alias(of_first, b"/link", b"0").expect("published");
    let dead: Vec<u64> = ids.iter().filter(|(_, nth)| **nth % 3 == 2).map(|(id, _)| *id).take(10).collect();
    for id in &dead {
        tier.remove(*id).expect("removed");
        ids.remove(id);
    }
    drop(tier);

    let tier = open_on(disk, BOOT).expect("opens");
    let mut pieces = 0;
    let mut recovery = tier.begin_recovery(&mut || pieces += 1).expect("begun");
    assert!(pieces > 0, "it can be paced");
    let report = recovery.report();
    assert_eq!((report.copies, report.bytes), (2990, 5 * 2990));
    let mut told: Vec<(Vec<u8>, u64)> = Vec::new();
    let mut ask = |path: &[u8]| {
        let number = recovery.directory(path).expect("catalogued");
        let before = told.len();
        let mut each = |recovered: forebay_store::CatalogueItem<'_>| match recovered {
            forebay_store::CatalogueItem::Copy(copy) => {
                assert_eq!(
                    ids.get(&copy.id).map(u64::to_string).as_deref(),
                    std::str::from_utf8(copy.name).ok()
                );
                told.push((copy.dir.to_vec(), copy.id));
            }
            forebay_store::CatalogueItem::Alias(alias) => {
                assert_eq!((alias.id, alias.ino), (of_first, 1));
                told.push((alias.dir.to_vec(), alias.id));
            }
        };
        recovery.tell(number, &mut each).expect("told");
        told.split_off(before)
    };
    let third = ask(b"/pfs/2");
    assert!(third.len() == 990 && third.iter().all(|(dir, _)| dir == b"/pfs/2"));
    let linked = ask(b"/link");
    assert_eq!(
        linked.len(),
        1001,
        "a copy comes before its further path, and its directory with it"
    );
    assert_eq!(linked.last(), Some(&(b"/link".to_vec(), of_first)));
    assert_eq!((ask(b"/link").len(), ask(b"/pfs/0").len(), ask(b"/pfs/1").len()), (0, 0, 1000));
    assert_eq!(recovery.directory(b"/elsewhere"), None);
    let known = recovery.into_known();
    let gone = *ids.keys().next().expect("one");
    tier.discard(gone).expect("removed behind the catalogue's back");
    let reaped = tier.reap(&known, 100, &mut || {}).expect("reaped");
    assert_eq!((reaped.removed, reaped.missing), (0, vec![gone]));
}

#[test]
fn the_log_is_rewritten_when_dead_records_outnumber_live_ones() {
    let disk = memory();
    let tier = open_on(disk.clone(), BOOT).expect("opens");
    let source = MemorySource::new(1, b"");
    let kept = publish(&tier, b"kept", &source).expect("published");
    assert!(!tier.compact_if_due().expect("asked"));
    for _ in 0..2100 {
        let id = publish(&tier, b"dead", &source).expect("published");
        tier.remove(id).expect("removed");
    }
    let before = log_bytes(&disk).len();
    assert!(tier.compact_if_due().expect("rewritten"));
    assert!(log_bytes(&disk).len() * 100 < before);
    assert!(!tier.compact_if_due().expect("asked"));
    let later = publish(&tier, b"later", &source).expect("published");
    drop(tier);
    let (copies, ..) = recover(&open_on(disk, BOOT).expect("opens")).expect("recovered");
    assert_eq!(
        copies.values().map(|kept| kept.id).collect::<BTreeSet<_>>(),
        BTreeSet::from([kept, later])
    );
}

#[test]
fn what_is_published_and_removed_while_the_log_is_rewritten_is_in_the_new_one() {
    const MEANWHILE_MIN: u64 = 200;
    let disk = memory();
    let tier = open_on(disk.clone(), BOOT).expect("opens");
    let source = MemorySource::new(1, b"");
    // A directory without live copies is left out of the new log, and may be needed again.
    let dirs: [&[u8]; 3] = [b"/pfs/lives", b"/pfs/dies", b"/pfs/comes"];
    let publish = |name: u64, dir: usize| {
        let id = tier.next_id();
        let finished = copy(&tier, id, &source).expect("copied");
        let name = name.to_string();
        let entry = CatalogueEntry {
            dir: dirs[dir],
            ..entry(id, name.as_bytes(), &source, &finished)
        };
        tier.publish(&entry).expect("published");
        id
    };
    let mut model = BTreeMap::new();
    for name in 0..300 {
        model.insert(name.to_string().into_bytes(), (publish(name, 0), dirs[0].to_vec()));
        tier.remove(publish(name, 1)).expect("removed");
    }
    let rewritten = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    let mut name = 300;
    thread::scope(|scope| {
        let compactor = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                tier.compact().expect("rewritten");
                rewritten.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Longer on a slow machine: several rewritings have begun and ended meanwhile.
        while (name < 300 + MEANWHILE_MIN || rewritten.load(Ordering::Relaxed) < 3) && !compactor.is_finished() {
            name += 1;
            let dir = (name % 3) as usize;
            let id = publish(name, dir);
            model.insert(name.to_string().into_bytes(), (id, dirs[dir].to_vec()));
            tier.publish_alias(id, dirs[(dir + 1) % 3], b"alias").expect("published");
            if name % 2 == 0 {
                let (_, (gone, _)) = model.pop_first().expect("there are some");
                tier.remove(gone).expect("removed");
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    drop(tier);
    let (copies, aliases, report) = recover(&open_on(disk, BOOT).expect("opens")).expect("recovered");
    let found: BTreeMap<Vec<u8>, (u64, Vec<u8>)> = copies
        .iter()
        .map(|(name, kept)| (name.clone(), (kept.id, kept.dir.clone())))
        .collect();
    assert_eq!(found, model);
    assert_eq!((report.torn_bytes, report.missing), (0, 0));
    let of_alias = |id: &u64| aliases.iter().filter(|alias| alias.0 == *id).count();
    assert!(
        model
            .iter()
            .all(|(name, (id, _))| of_alias(id) == usize::from(number_of(name) >= 301))
    );
}

fn number_of(name: &[u8]) -> u64 {
    std::str::from_utf8(name).expect("digits").parse().expect("digits")
}

#[test]
fn a_log_is_not_rewritten_after_the_lease_was_given_up() {
    let disk = memory();
    let all = five_copies(&disk);
    let tier = open_on(disk.clone(), BOOT).expect("opens");
    tier.remove(all[b"a".as_slice()].id).expect("removed");
    let before = log_bytes(&disk);
    tier.give_up_lease();
    assert!(tier.compact().is_err());
    assert_eq!(log_bytes(&disk), before, "it is another process's now");
    assert!(!disk.names().contains(&Name::CatalogueNew));
}

#[derive(Clone, Debug)]
enum CatalogueStep {
    Publish { dir: u8, mount: u8 },
    Alias { copy: usize, dir: u8 },
    Remove { copy: usize },
    Used { dir: u8, unix_s: i64 },
    Compact,
    Reopen { next_boot: bool },
}

fn any_step() -> impl Strategy<Value = CatalogueStep> {
    prop_oneof![
        6 => (0..4_u8, 0..2_u8).prop_map(|(dir, mount)| CatalogueStep::Publish { dir, mount }),
        2 => (0..30_usize, 0..4_u8).prop_map(|(copy, dir)| CatalogueStep::Alias { copy, dir }),
        3 => (0..30_usize).prop_map(|copy| CatalogueStep::Remove { copy }),
        1 => (0..4_u8, 0..100_i64).prop_map(|(dir, hours)| CatalogueStep::Used { dir, unix_s: NOW + hours * 3600 }),
        1 => Just(CatalogueStep::Compact),
        2 => any::<bool>().prop_map(|next_boot| CatalogueStep::Reopen { next_boot }),
    ]
}

/// A copy in the model: directory, mount, whether it belongs to this boot or was verified in it, and its further
/// directories.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Modelled {
    dir: u8,
    mount: u8,
    trusted: bool,
    aliases: Vec<u8>,
}

fn dir_path(dir: u8) -> Vec<u8> {
    format!("/pfs/{dir}").into_bytes()
}

fn check(tier: &Tier, model: &mut BTreeMap<u64, Modelled>, verify: bool) {
    let mut found: BTreeMap<u64, Modelled> = BTreeMap::new();
    let mut to_verify = Vec::new();
    tier.recover(|recovered| match recovered {
        forebay_store::CatalogueItem::Copy(copy) => {
            let dir = copy.dir.last().copied().unwrap_or(0) - b'0';
            let mount = copy.mount.source[0] - b'0';
            if !copy.trusted {
                to_verify.push((copy.id, copy.checksum, copy.object));
            }
            let before = found.insert(
                copy.id,
                Modelled {
                    dir,
                    mount,
                    trusted: copy.trusted,
                    aliases: Vec::new(),
                },
            );
            assert!(before.is_none(), "told twice");
        }
        forebay_store::CatalogueItem::Alias(alias) => {
            let copy = found.get_mut(&alias.id).expect("an alias follows its copy");
            copy.aliases.push(alias.dir.last().copied().unwrap_or(0) - b'0');
        }
    })
    .expect("recovered");
    // Further paths are reported by directory.
    for modelled in found.values_mut().chain(model.values_mut()) {
        modelled.aliases.sort_unstable();
    }
    assert_eq!(&found, model);
    for (id, checksum, object) in to_verify.into_iter().filter(|_| verify) {
        tier.verify(id, checksum, &object).expect("whole");
        model.get_mut(&id).expect("known").trusted = true;
    }
}

proptest! {
    // Fixed cases, so that a test that passes once passes always.
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0), failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn the_catalogue_is_what_a_map_in_memory_would_be(steps in prop::collection::vec(any_step(), 1..60), verify in any::<bool>()) {
        let disk = memory();
        let mut boot = BOOT;
        let mut tier = open_on(disk.clone(), boot).expect("opens");
        let mut model: BTreeMap<u64, Modelled> = BTreeMap::new();
        let nth = |model: &BTreeMap<u64, Modelled>, copy: usize| model.keys().nth(copy).copied();
        for step in steps {
            match step {
                CatalogueStep::Publish { dir, mount } => {
                    let source = MemorySource::new(1, b"bytes");
                    let id = tier.next_id();
                    let finished = copy(&tier, id, &source).expect("copied");
                    let path = dir_path(dir);
                    let mounted = [b'0' + mount];
                    let mount_of = forebay_store::SourceMount { source: &mounted, ..MOUNT };
                    tier.publish(&CatalogueEntry { dir: &path, mount: mount_of, ..entry(id, b"x", &source, &finished) }).expect("published");
                    model.insert(id, Modelled { dir, mount, trusted: true, aliases: Vec::new() });
                }
                CatalogueStep::Alias { copy, dir } => if let Some(id) = nth(&model, copy) {
                    tier.publish_alias(id, &dir_path(dir), b"y").expect("published");
                    model.get_mut(&id).expect("known").aliases.push(dir);
                },
                CatalogueStep::Remove { copy } => if let Some(id) = nth(&model, copy) {
                    tier.remove(id).expect("removed");
                    model.remove(&id);
                },
                CatalogueStep::Used { dir, unix_s } => tier.mark_used(&dir_path(dir), unix_s).expect("marked"),
                CatalogueStep::Compact => tier.compact().expect("rewritten"),
                CatalogueStep::Reopen { next_boot } => {
                    drop(tier);
                    if next_boot {
                        boot.0[0] += 1;
                        for copy in model.values_mut() {
 copy.trusted = false;
}
                    }
                    tier = open_on(disk.clone(), boot).expect("opens");
                    check(&tier, &mut model, verify);
                }
            }
        }
        drop(tier);
        check(&open_on(disk, boot).expect("opens"), &mut model, false);
    }

    #[test]
    fn f10_any_bytes_as_a_catalogue_are_an_empty_one(bytes in prop::collection::vec(any::<u8>(), 0..2000), with_magic in any::<bool>()) {
        let disk = memory();
        five_copies(&disk);
        disk.alter(Name::Catalogue, |log| {
            log.truncate(if with_magic { 24 } else { 0 });
            log.extend_from_slice(&bytes);
        });
        let tier = open_on(disk, NEXT_BOOT).expect("opens");
        prop_assert!(recover(&tier).expect("recovered").0.is_empty());
        publish(&tier, b"x", &MemorySource::new(1, b"x")).expect("published");
    }
}
