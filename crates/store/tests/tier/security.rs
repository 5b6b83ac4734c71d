//! The private root on a real file system: squatted, linked, opened to others, taken away.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use forebay_store::testing::MemorySource;
use forebay_store::{KnownCopies, Secret, StoreError, Tier, clean, inspect};
use rustix::io::Errno;

use crate::common::{QUOTA, content, publish, read, recover, secret, uid};

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn open(dir: &Path) -> Result<Tier, StoreError> {
    Tier::open(dir, QUOTA, &secret(), uid())
}

fn root(dir: &Path) -> PathBuf {
    forebay_store::root_path(dir, uid())
}

fn assert_refused(dir: &Path, what: &str) {
    for error in [open(dir).map(drop), clean(dir, uid()).map(drop), inspect(dir, uid()).map(drop)].map(|answer| answer.expect_err(what)) {
        assert!(matches!(error, StoreError::NotPrivate { .. }), "{what}: {error}");
        assert!(error.to_string().contains(&*dir.to_string_lossy()), "it names the thing: {error}");
    }
}

#[test]
fn s2_a_squatted_or_linked_root_is_refused() {
    let dir = temporary();
    let elsewhere = temporary();
    symlink(elsewhere.path(), root(dir.path())).expect("a link");
    assert_refused(dir.path(), "a link");
    assert_eq!(
        fs::read_dir(elsewhere.path()).expect("listed").count(),
        0,
        "nothing was made behind it"
    );
    fs::remove_file(root(dir.path())).expect("removed");

    symlink("/nowhere/at/all", root(dir.path())).expect("a link");
    assert_refused(dir.path(), "a dangling link");
    fs::remove_file(root(dir.path())).expect("removed");

    fs::write(root(dir.path()), b"").expect("a file");
    assert_refused(dir.path(), "a file");
    fs::remove_file(root(dir.path())).expect("removed");

    fs::create_dir(root(dir.path())).expect("a directory");
    for mode in [0o755, 0o777, 0o750, 0o701, 0o1700] {
        fs::set_permissions(root(dir.path()), Permissions::from_mode(mode)).expect("its mode");
        assert_refused(dir.path(), "open to others");
    }
    fs::set_permissions(root(dir.path()), Permissions::from_mode(0o2700)).expect("its mode");
    open(dir.path()).expect("the set-group-id bit is inherited and harmless");
    if uid() == 0 {
        fs::set_permissions(root(dir.path()), Permissions::from_mode(0o700)).expect("its mode");
        std::os::unix::fs::chown(root(dir.path()), Some(65534), None).expect("given away");
        assert_refused(dir.path(), "somebody else's");
    }
}

#[test]
fn s2_a_tier_directory_in_which_everybody_may_rename_is_refused() {
    let dir = temporary();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).expect("its mode");
    assert_refused(dir.path(), "open to all");
    fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).expect("its mode");
    open(dir.path()).expect("as /tmp is");
    let error = open(&dir.path().join("missing")).expect_err("it must exist");
    assert_eq!(error.errno(), Some(Errno::NOENT));
}

#[test]
fn s10_planted_links_lead_reaping_and_cleaning_nowhere() {
    let dir = temporary();
    let outside = temporary();
    let victim = outside.path().join("00000000000000ab");
    fs::write(&victim, b"not ours").expect("written");
    let tier = open(dir.path()).expect("opens");
    let id = publish(&tier, b"x", &MemorySource::new(1, b"x")).expect("published");
    let objects = tier.objects_path().to_owned();
    // A part of `objects` that is a link, a copy that is a link, a directory with a copy's name, and foreign names.
    let linked = (0..=255_u64)
        .find(|shard| *shard != (id & 0xff) && *shard != 0xcd)
        .expect("a free one");
    fs::create_dir_all(objects.join("cd")).expect("made");
    symlink(outside.path(), objects.join(format!("{linked:02x}"))).expect("linked");
    symlink(&victim, objects.join("cd/00000000000000cd")).expect("linked");
    fs::create_dir(objects.join("cd/00000000000001cd")).expect("made");
    fs::write(objects.join("cd/notes.txt"), b"mine").expect("written");
    let error = tier
        .reap(&KnownCopies::from_iter([id]), 100, &mut || {})
        .expect_err("a link in the place of a directory is told");
    assert!(error.is_tier_fault(), "{error}");
    fs::remove_file(objects.join(format!("{linked:02x}"))).expect("removed");
    let report = tier.reap(&KnownCopies::from_iter([id]), 100, &mut || {}).expect("reaped");
    assert_eq!(
        (report.removed, report.left),
        (1, 2),
        "the link itself goes, the directory and the notes stay"
    );
    drop(tier);
    symlink(outside.path(), objects.join(format!("{linked:02x}"))).expect("linked");
    let report = clean(dir.path(), uid()).expect("cleaned");
    assert!(report.left > 0 && report.removed == 1);
    assert_eq!(fs::read(&victim).expect("still there"), b"not ours");
    assert!(objects.join("cd/notes.txt").exists());
}

#[test]
fn s10_links_in_the_place_of_our_own_files_are_not_followed() {
    let outside = temporary();
    let victim = outside.path().join("victim");
    fs::write(&victim, b"forebay tier 1\n").expect("written");
    for name in ["lease", "FORMAT", "catalogue", "catalogue.new", "objects"] {
        let dir = temporary();
        fs::create_dir(root(dir.path())).expect("made");
        fs::set_permissions(root(dir.path()), Permissions::from_mode(0o700)).expect("its mode");
        symlink(
            if name == "objects" { outside.path() } else { &victim },
            root(dir.path()).join(name),
        )
        .expect("linked");
        let opened = open(dir.path());
        let answer = opened.and_then(|tier| publish(&tier, b"x", &MemorySource::new(1, b"x")));
        match name {
            "catalogue.new" => drop(answer.expect("what a compaction left is removed unread")),
            _ => assert!(answer.expect_err(name).is_tier_fault()),
        }
        assert_eq!(fs::read(&victim).expect("there"), b"forebay tier 1\n");
        assert_eq!(fs::read_dir(outside.path()).expect("listed").count(), 1);
    }
}

#[test]
fn f8_a_root_that_is_taken_away_is_a_fault_of_the_tier_and_what_is_open_lives_on() {
    let dir = temporary();
    let tier = open(dir.path()).expect("opens");
    let id = publish(&tier, b"x", &MemorySource::new(1, &content(1, 500))).expect("published");
    let handed_out = tier.open_copy(id).expect("opens");
    fs::remove_dir_all(tier.root_path()).expect("removed");
    let error = publish(&tier, b"y", &MemorySource::new(2, b"y")).expect_err("there is no place");
    assert!(error.is_tier_fault() && error.errno() == Some(Errno::NOENT), "{error}");
    assert!(read(&tier, id).expect_err("gone").is_tier_fault());
    let mut bytes = [0; 1000];
    assert_eq!(handed_out.read_at(&mut bytes, 0), Ok(500));
    // The name may come back: the tier does not follow it.
    drop(open(dir.path()).expect("a new tier of that name"));
    assert!(publish(&tier, b"y", &MemorySource::new(2, b"y")).is_err());
}

#[test]
fn a_tier_of_another_version_is_refused_with_the_mend_and_can_be_cleaned() {
    let dir = temporary();
    drop(open(dir.path()).expect("opens"));
    fs::write(root(dir.path()).join("FORMAT"), "forebay tier 2\n").expect("written");
    let error = open(dir.path()).expect_err("unknown");
    assert!(matches!(&error, StoreError::UnknownFormat { found, .. } if found == "forebay tier 2"));
    assert!(error.to_string().contains("forebay clean"));
    assert_eq!(clean(dir.path(), uid()).expect("cleaned").left, 0);
    open(dir.path()).expect("a new one");
}

#[test]
fn f9_format_cut_short_is_of_a_tier_that_was_still_empty() {
    let dir = temporary();
    drop(open(dir.path()).expect("opens"));
    for cut in ["", "forebay ti"] {
        fs::write(root(dir.path()).join("FORMAT"), cut).expect("written");
        drop(open(dir.path()).expect("made whole"));
        assert_eq!(fs::read(root(dir.path()).join("FORMAT")).expect("read"), b"forebay tier 1\n");
    }
}

#[test]
fn s7_the_secret_is_kept_by_its_user_alone_and_never_printed() {
    let dir = temporary();
    let state = dir.path().join("a/b/forebay");
    let made: Vec<_> = std::thread::scope(|scope| {
        let tasks: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| Secret::load_or_create(&state).expect("made")))
            .collect();
        tasks.into_iter().map(|task| task.join().expect("ran")).collect()
    });
    assert_eq!(fs::metadata(&state).expect("there").mode() & 0o777, 0o700);
    let file = state.join("secret");
    assert_eq!(fs::metadata(&file).expect("there").mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(&state).expect("listed").count(), 1, "no temporary file stays");
    assert!(made.iter().all(|secret| format!("{secret:?}") == "Secret(SecretKey(..))"));
    // All eight are the same: each reads what another tagged.
    let tier_dir = temporary();
    for (index, secret) in made.iter().enumerate() {
        let tier = Tier::open(tier_dir.path(), QUOTA, secret, uid()).expect("opens");
        let shown = format!("{tier:?}");
        assert!(shown.contains("root_key: SecretKey(..)"), "{shown}");
        assert_eq!(recover(&tier).expect("recovered").0.len(), index);
        publish(&tier, &[b'a' + index as u8], &MemorySource::new(1, b"x")).expect("published");
    }

    fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("its mode");
    assert!(matches!(Secret::load_or_create(&state), Err(StoreError::NotPrivate { .. })));
    let (_, why) = Secret::kept_or_ephemeral(&state);
    assert!(why.is_some());
    fs::remove_file(&file).expect("removed");
    symlink("/etc/hostname", &file).expect("linked");
    assert!(matches!(Secret::load_or_create(&state), Err(StoreError::NotPrivate { .. })));
    fs::remove_file(&file).expect("removed");
    fs::write(&file, b"short").expect("written");
    fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("its mode");
    assert!(matches!(Secret::load_or_create(&state), Err(StoreError::NotPrivate { .. })));
    fs::remove_file(&file).expect("removed");
    fs::set_permissions(&state, Permissions::from_mode(0o777)).expect("its mode");
    assert!(matches!(Secret::load_or_create(&state), Err(StoreError::NotPrivate { .. })));
    let (_, why) = Secret::kept_or_ephemeral(Path::new("/proc/nothing/here"));
    assert!(why.is_some());
}
