//! The life of copies: made, published, recovered, verified, removed, reaped, cleaned.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;

use crate::common::{BOOT, NEXT_BOOT, NOW, QUOTA, content, copy, entry, known, open_on, publish, read, recover, secret, uid};
use forebay_contract::Identity;
use forebay_policy::Space;
use forebay_store::disk::{FailingDisk, Fault, FaultKind, MemoryDisk, Name, When};
use forebay_store::testing::MemorySource;
use forebay_store::{BootId, CopySource, KnownCopies, Secret, SourceFile, StatFrom, StoreError, Tier, clean, inspect};
use rustix::io::Errno;

fn memory() -> Arc<MemoryDisk> {
    Arc::new(MemoryDisk::new(64 << 20, 10_000))
}

#[test]
fn a_published_copy_is_recovered_by_the_next_opening_with_all_that_was_known() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let bytes = content(1, 300_000);
    let source = MemorySource::new(11, &bytes);
    let (id, finished) = {
        let tier = Tier::open(dir.path(), QUOTA, &secret(), uid()).expect("a fresh tier opens");
        let id = tier.next_id();
        let finished = copy(&tier, id, &source).expect("the copy is made");
        tier.publish(&entry(id, b"x.jpg", &source, &finished)).expect("it is published");
        tier.publish_alias(id, b"/link/7", b"x.jpg").expect("and by another path");
        let path = tier.objects_path().join(format!("{:02x}/{id:016x}", id & 0xff));
        assert_eq!(path, tier.copy_path(id));
        assert!(path.is_absolute());
        assert_eq!(std::fs::read(&path).expect("a door opens it by name"), bytes);
        assert_eq!(std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o7777, 0o400);
        (id, finished)
    };
    let tier = Tier::open(dir.path(), QUOTA, &secret(), uid()).expect("the tier opens again");
    assert!(!tier.is_ours(id));
    let (copies, aliases, report) = recover(&tier).expect("it is recovered");
    let kept = &copies[b"x.jpg".as_slice()];
    assert_eq!((report.copies, aliases.len(), report.missing, report.torn_bytes), (1, 1, 0, 0));
    assert_eq!(
        (kept.id, kept.checksum, kept.object, kept.trusted),
        (id, finished.checksum, finished.object, true)
    );
    assert_eq!(
        kept.identity,
        Identity {
            dev: 0,
            ..source.identity()
        }
    );
    assert_eq!(kept.object.dev, tier.device());
    assert_eq!(aliases, [(id, b"/link/7".to_vec(), b"x.jpg".to_vec())]);
    assert_eq!(read(&tier, id).expect("it opens"), bytes);
    tier.verify(id, kept.checksum, &kept.object).expect("it is whole");
    tier.remove(id).expect("it is removed");
    assert!(!tier.copy_path(id).exists());
}

#[test]
fn p9_copies_of_another_boot_are_trusted_only_once_verified() {
    let disk = memory();
    let (good, bad) = (MemorySource::new(1, &content(1, 5000)), MemorySource::new(2, &content(2, 5000)));
    let bad_id = {
        let tier = open_on(disk.clone(), BOOT).expect("opens");
        publish(&tier, b"good", &good).expect("published");
        publish(&tier, b"bad", &bad).expect("published")
    };
    disk.alter(Name::Object(bad_id), |bytes| bytes[4000] ^= 1);
    {
        let tier = open_on(disk.clone(), NEXT_BOOT).expect("opens");
        let (copies, ..) = recover(&tier).expect("recovered");
        assert!(copies.values().all(|kept| !kept.trusted));
        let (good, bad) = (&copies[b"good".as_slice()], &copies[b"bad".as_slice()]);
        tier.verify(good.id, good.checksum, &good.object).expect("whole");
        let error = tier
            .verify(bad.id, bad.checksum, &bad.object)
            .expect_err("f10: a flipped bit is found");
        assert!(matches!(error, StoreError::Damaged { .. }) && error.is_tier_fault());
        tier.remove(bad.id).expect("removed");
    }
    let tier = open_on(disk.clone(), NEXT_BOOT).expect("opens");
    let (copies, ..) = recover(&tier).expect("recovered");
    assert_eq!(copies.len(), 1);
    assert!(copies[b"good".as_slice()].trusted, "verified once in this boot");
    drop(tier);
    let tier = open_on(disk, BootId([3; 16])).expect("opens");
    assert!(
        !recover(&tier).expect("recovered").0[b"good".as_slice()].trusted,
        "and again in the next"
    );
}

#[test]
fn f6_a_source_that_changes_while_it_is_copied_is_not_finished() {
    let disk = memory();
    let tier = open_on(disk.clone(), BOOT).expect("opens");
    let source = MemorySource::new(1, &content(1, 5000));
    let mut writer = tier.begin(tier.next_id(), &source.identity()).expect("begun");
    writer.advance(&source, 2000, &mut [0; 512]).expect("goes on");
    assert_eq!(writer.copied(), 2000);
    source.change(&content(2, 5000), 5000);
    writer.advance(&source, u64::MAX, &mut [0; 512]).expect("its size is as it was");
    let error = writer.finish(&source, StatFrom::Server).expect_err("it changed");
    assert!(error.is_source() && !error.is_tier_fault(), "{error}");
    assert_eq!(disk.names().len(), 2, "only the lease and FORMAT are left");
}

#[test]
fn f4_the_copy_loop_makes_progress_or_stops() {
    let disk = memory();
    let tier = open_on(disk.clone(), BOOT).expect("opens");
    let mut source = MemorySource::new(1, &content(1, 5000));
    source.read_bytes_max = 7;
    let id = publish(&tier, b"short", &source).expect("short reads are gone on with");
    assert_eq!(read(&tier, id).expect("opens"), content(1, 5000));

    source.cut(3000);
    let error = copy(&tier, tier.next_id(), &source).expect_err("it ends before its size");
    assert!(matches!(error, StoreError::Changed { .. }), "{error}");

    *source.fault.lock().expect("unpoisoned") = Some(Errno::INTR);
    let error = copy(&tier, tier.next_id(), &source).expect_err("interrupted for ever");
    assert_eq!((error.errno(), error.is_source()), (Some(Errno::INTR), true));

    let source = MemorySource::new(2, b"12345");
    let mut writer = tier.begin(tier.next_id(), &source.identity()).expect("begun");
    assert!(
        writer.advance(&source, 5, &mut []).is_err(),
        "an empty buffer must not make it spin"
    );
    drop(writer);
    assert_eq!(disk.names().iter().filter(|name| matches!(name, Name::Object(_))).count(), 1);
}

#[test]
fn empty_files_and_unfinished_ones() {
    let tier = open_on(memory(), BOOT).expect("opens");
    let empty = MemorySource::new(1, b"");
    assert_eq!(
        read(&tier, publish(&tier, b"empty", &empty).expect("published")).expect("opens"),
        b""
    );
    let source = MemorySource::new(2, b"12345");
    let writer = tier.begin(tier.next_id(), &source.identity()).expect("begun");
    assert!(writer.finish(&source, StatFrom::Kernel).is_err(), "not before its end");
    let writer = tier.begin(tier.next_id(), &source.identity()).expect("begun");
    let id = writer.id();
    writer.abandon().expect("given up");
    assert!(tier.open_copy(id).is_err());
    let id = tier.next_id();
    copy(&tier, id, &source).expect("finished");
    tier.discard(id).expect("not published after all");
    assert!(tier.open_copy(id).is_err());
    assert!(
        tier.begin(0x1234, &source.identity()).is_err() || tier.is_ours(0x1234),
        "only names that this opening gave"
    );
}

#[test]
fn f1_a_full_disk_is_told_apart_and_smaller_files_still_fit() {
    let disk = Arc::new(MemoryDisk::new(20_000, 50));
    let tier = open_on(disk.clone(), BOOT).expect("opens");
    let large = MemorySource::new(1, &content(1, 30_000));
    let error = publish(&tier, b"large", &large).expect_err("it does not fit");
    assert!(error.is_full() && !error.is_tier_fault() && !error.is_source(), "{error}");
    assert!(disk.used_bytes() < 200, "the partial is gone");
    let small = MemorySource::new(2, &content(2, 9_000));
    let id = publish(&tier, b"small", &small).expect("this one fits");
    let filler = MemorySource::new(3, &content(3, 20_000 - disk.used_bytes() as usize));
    copy(&tier, tier.next_id(), &filler).expect("to the last byte");
    assert!(
        publish(&tier, b"more", &MemorySource::new(4, b""))
            .expect_err("no room for its record")
            .is_full()
    );
    assert!(tier.mark_used(b"/pfs/train/7", NOW).expect_err("nor for this").is_full());
    tier.remove(id).expect("what is to make room needs none");
    publish(&tier, b"more", &MemorySource::new(4, b"now")).expect("there is room again");
    drop(tier);
    let (copies, _, report) = recover(&open_on(disk, BOOT).expect("opens")).expect("recovered");
    assert_eq!((copies.len(), report.missing), (1, 0));
}

#[test]
fn p8_what_can_t_be_removed_is_counted_and_tried_again() {
    let source = MemorySource::new(1, &content(1, 700));
    let publish_on = |disk: Arc<FailingDisk>| {
        let tier = open_on(disk, BOOT).expect("opens");
        let id = publish(&tier, b"x", &source).expect("published");
        (tier, id)
    };
    let healthy = Arc::new(FailingDisk::new(memory(), None));
    drop(publish_on(healthy.clone()));
    // The next operation fails, and all later ones.
    let fault = Fault {
        nth: healthy.operations(),
        for_ever: false,
        kind: FaultKind::Error(Errno::IO),
        when: When::Before,
    };
    let memory = memory();
    let inner = Arc::new(FailingDisk::new(memory.clone(), Some(fault)));
    let (tier, id) = publish_on(Arc::new(FailingDisk::new(inner, Some(fault))));
    let objects = || memory.names().into_iter().filter(|name| matches!(name, Name::Object(_))).count();
    assert_eq!(tier.discard(id).expect_err("it stays").errno(), Some(Errno::IO));
    assert_eq!(tier.retry_leftovers(), Space { bytes: 700, inodes: 1 });
    assert_eq!(objects(), 1);
    assert_eq!(tier.retry_leftovers(), Space::default());
    assert_eq!(objects(), 0);
}

#[test]
fn last_use_is_kept_by_directory_and_not_written_too_often() {
    let disk = memory();
    let size = |disk: &MemoryDisk| {
        let mut size = 0;
        disk.alter(Name::Catalogue, |bytes| size = bytes.len());
        size
    };
    {
        let tier = open_on(disk.clone(), BOOT).expect("opens");
        publish(&tier, b"x", &MemorySource::new(1, b"x")).expect("published");
        tier.mark_used(b"/pfs/train/7", NOW + 5).expect("written");
        let before = size(&disk);
        tier.mark_used(b"/pfs/train/7", NOW + 600).expect("not written");
        tier.mark_used(b"/nothing/here", NOW + 600).expect("not written");
        assert_eq!(size(&disk), before);
        tier.mark_used(b"/pfs/train/7", NOW + 5000).expect("written");
        assert!(size(&disk) > before);
    }
    let (copies, ..) = recover(&open_on(disk, BOOT).expect("opens")).expect("recovered");
    assert_eq!(copies[b"x".as_slice()].last_used_unix_s, NOW + 5000);
}

#[test]
fn a_real_source_is_read_by_its_descriptor_and_its_offset_left_alone() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("source");
    std::fs::write(&path, content(3, 10_000)).expect("written");
    let file = std::fs::File::open(&path).expect("opened");
    let source = SourceFile::new(file.try_clone().expect("a duplicate").into());
    let stat = source.stat(StatFrom::Kernel).expect("it has a stat");
    assert_eq!(stat, source.stat(StatFrom::Server).expect("asked again"));
    assert!(stat.is_regular());
    let metadata = std::fs::metadata(&path).expect("metadata");
    let identity = stat.identity;
    assert_eq!(
        (identity.dev, identity.ino, identity.size),
        (metadata.dev(), metadata.ino(), 10_000)
    );
    assert_eq!(
        (identity.mtime.sec, i64::from(identity.mtime.nsec)),
        (metadata.mtime(), metadata.mtime_nsec())
    );
    assert_eq!(
        (identity.ctime.sec, i64::from(identity.ctime.nsec)),
        (metadata.ctime(), metadata.ctime_nsec())
    );
    assert_eq!(
        (stat.attributes.mode, u64::from(stat.attributes.nlink)),
        (metadata.mode(), metadata.nlink())
    );
    let tier = open_on(memory(), BOOT).expect("opens");
    let mut writer = tier.begin(tier.next_id(), &identity).expect("begun");
    writer.advance(&source, u64::MAX, &mut [0; 4096]).expect("copied");
    writer.finish(&source, StatFrom::Kernel).expect("finished");
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Current(0)), Ok(0));
    assert_eq!(
        rustix::io::fcntl_getfd(&source).expect("a descriptor"),
        rustix::io::FdFlags::CLOEXEC
    );
}

#[test]
fn f13_a_tier_in_memory_is_known_as_one_and_room_keeps_the_floor() {
    if std::path::Path::new("/dev/shm").is_dir() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
        assert!(Tier::open(dir.path(), QUOTA, &secret(), uid()).expect("opens").is_memory());
    }
    let tier = open_on(Arc::new(MemoryDisk::new(1000, 400)), BOOT).expect("opens");
    let room = tier.room().expect("told");
    assert_eq!(room.bytes, 950 - b"forebay tier 1\n".len() as u64);
    // The root and `objects` are taken; 256 parts and two catalogues are still to be made.
    assert_eq!(room.inodes, 400 - 20 - 2 - 256 - 2);
}

#[test]
fn s10_partial_copies_of_dead_runs_are_reaped_and_nothing_else() {
    let disk = memory();
    let source = MemorySource::new(1, &content(1, 500));
    let (published, partial) = {
        let tier = open_on(disk.clone(), BOOT).expect("opens");
        let published = publish(&tier, b"x", &source).expect("published");
        let partial = tier.next_id();
        let mut writer = tier.begin(partial, &source.identity()).expect("begun");
        writer.advance(&source, 100, &mut [0; 100]).expect("written in part");
        // As after kill -9: no destructor runs, but the lease is free.
        std::mem::forget(writer);
        (published, partial)
    };
    // The forgotten writer keeps the lease of a disk in memory; a new handle to the same files stands for the next
    // process.
    let disk = disk.after_crash();
    let tier = open_on(disk.clone(), BOOT).expect("opens");
    let ours = copy(&tier, tier.next_id(), &source).expect("being made now");
    let (copies, ..) = recover(&tier).expect("recovered");
    assert_eq!(copies.len(), 1);
    let known = known(&copies);
    assert_eq!(
        tier.reap(&known, 0, &mut || {}).expect("reaped"),
        forebay_store::ReapReport {
            is_partial: true,
            ..Default::default()
        }
    );
    let report = tier.reap(&known, 100, &mut || {}).expect("reaped");
    assert_eq!(
        (report.removed, report.removed_bytes, report.left, report.is_partial),
        (1, 100, 0, false)
    );
    let names = disk.names();
    assert!(names.contains(&Name::Object(published)) && !names.contains(&Name::Object(partial)));
    assert!(ours.object.size == 500 && names.len() == 5);
}

#[test]
fn f11_a_lease_that_is_given_up_does_not_wait_for_a_copy_that_hangs() {
    let disk = memory();
    let tier = open_on(disk.clone(), BOOT).expect("opens");
    let source = MemorySource::new(1, &content(1, 500));
    let _hanging = tier.begin(tier.next_id(), &source.identity()).expect("begins");
    assert!(matches!(open_on(disk.clone(), BOOT), Err(StoreError::InUse { .. })));
    tier.give_up_lease();
    open_on(disk, BOOT).expect("opens beside it");
}

#[test]
fn s10_clean_returns_all_space_and_refuses_a_tier_in_use() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    assert!(!clean(dir.path(), uid()).expect("nothing to do").existed);
    assert_eq!(inspect(dir.path(), uid()).expect("nothing there"), None);
    let tier = Tier::open(dir.path(), QUOTA, &secret(), uid()).expect("opens");
    for name in [b"a".as_slice(), b"b"] {
        publish(&tier, name, &MemorySource::new(1, &content(1, 700))).expect("published");
    }
    let pid = Some(std::process::id());
    let error = clean(dir.path(), uid()).expect_err("it is in use");
    assert!(matches!(error, StoreError::InUse { holder, .. } if holder == pid), "{error}");
    let error = Tier::open(dir.path(), QUOTA, &secret(), uid()).expect_err("by one only");
    assert!(matches!(error, StoreError::InUse { holder, .. } if holder == pid), "{error}");
    let report = inspect(dir.path(), uid()).expect("looked at").expect("there");
    assert_eq!((report.in_use, report.holder, report.copies, report.bytes), (true, pid, 2, 1400));
    drop(tier);
    assert!(!inspect(dir.path(), uid()).expect("looked at").expect("there").in_use);
    let report = clean(dir.path(), uid()).expect("cleaned");
    assert_eq!(
        (report.existed, report.removed, report.removed_bytes, report.left),
        (true, 2, 1400, 0)
    );
    assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 0);
}

#[test]
fn s5_records_under_another_secret_are_not_recovered() {
    let disk = memory();
    {
        let tier = open_on(disk.clone(), BOOT).expect("opens");
        publish(&tier, b"x", &MemorySource::new(1, b"x")).expect("published");
    }
    let other = Secret::from_bytes([8; 32]);
    let tier = Tier::open_on(disk.clone(), "/tier".into(), QUOTA, &other, BOOT).expect("opens");
    let (copies, _, report) = recover(&tier).expect("recovered");
    assert!(copies.is_empty() && report.torn_bytes > 0);
    assert_eq!(tier.reap(&KnownCopies::default(), 10, &mut || {}).expect("reaped").removed, 1);
    publish(&tier, b"y", &MemorySource::new(1, b"y")).expect("it starts clean");
}

#[test]
fn bytes_that_come_out_of_order_make_the_same_copy() {
    const PIECE: usize = 10_000;
    let mut bytes = content(3, 7 * PIECE - 123);
    // Holes in the middle and at the end.
    bytes[2 * PIECE..4 * PIECE].fill(0);
    bytes[6 * PIECE..].fill(0);
    let source = MemorySource::new(11, &bytes);
    let tier = open_on(memory(), BOOT).expect("a fresh tier opens");
    let in_order = copy(&tier, tier.next_id(), &source).expect("the copy is made");
    for holes in [false, true] {
        for order in [[6, 5, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5, 6], [3, 0, 6, 1, 5, 2, 4]] {
            let id = tier.next_id();
            let mut writer = tier.begin(id, &source.identity()).expect("begun");
            if holes {
                writer = writer.keep_holes();
            }
            for piece in order {
                let range = piece * PIECE..bytes.len().min((piece + 1) * PIECE);
                writer
                    .place(range.start as u64, &bytes[range], &mut [0; 777])
                    .expect("a piece is placed");
            }
            assert!(writer.is_complete());
            let refused = writer.place(0, b"again", &mut [0; 777]);
            assert!(refused.is_err(), "a byte that is digested is not written again");
            let finished = writer.finish(&source, StatFrom::Server).expect("finished");
            assert_eq!(finished.checksum, in_order.checksum, "{order:?}, holes: {holes}");
            assert_eq!(read(&tier, id).expect("it opens"), bytes);
        }
    }
}

#[test]
fn a_copy_that_lacks_a_piece_is_not_finished() {
    let source = MemorySource::new(11, &content(3, 1000));
    let tier = open_on(memory(), BOOT).expect("a fresh tier opens");
    let mut writer = tier.begin(tier.next_id(), &source.identity()).expect("begun");
    writer.place(500, &content(3, 1000)[500..], &mut [0; 64]).expect("placed");
    assert_eq!(writer.copied(), 0);
    assert!(writer.finish(&source, StatFrom::Server).is_err());
}
