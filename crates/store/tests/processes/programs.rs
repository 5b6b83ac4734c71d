//! Effects of other programs on a tier: mounts, and reads by another user.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_store::testing::MemorySource;
use forebay_store::{KnownCopies, StoreError, Tier, clean};
use rustix::io::Errno;

use crate::alone;
use crate::common::{QUOTA, content, copy, publish, recover, secret, uid};

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn open(dir: &Path) -> Result<Tier, StoreError> {
    Tier::open(dir, QUOTA, &secret(), uid())
}

/// A file system in memory, mounted while this lives.
struct Mounted(PathBuf);

impl Mounted {
    #[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
    fn at(path: &Path, options: &str) -> Option<Self> {
        let mount = || {
            Command::new("mount")
                .args(["-t", "tmpfs", "-o", options, "none"])
                .arg(path)
                .status()
        };
        if uid() == 0 && mount().is_ok_and(|status| status.success()) {
            return Some(Self(path.to_owned()));
        }
        eprintln!("skipped: it needs the right to mount");
        None
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily, since a test that fails has open descriptors there.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn s1_another_user_can_read_no_copy() {
    let _alone = alone();
    let dir = temporary();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("its mode");
    let tier = open(dir.path()).expect("opens");
    let id = publish(&tier, b"x", &MemorySource::new(1, b"private")).expect("published");
    let path = tier.copy_path(id);
    for (path, mode) in [(path.as_path(), 0o400), (tier.objects_path(), 0o700), (tier.root_path(), 0o700)] {
        assert_eq!(fs::metadata(path).expect("there").mode() & 0o777, mode, "{}", path.display());
    }
    if uid() == 0 {
        use std::os::unix::process::CommandExt;
        let other = Command::new("cat").arg(&path).uid(65534).gid(65534).output().expect("cat runs");
        assert!(!other.status.success() && other.stdout.is_empty());
    }
}

#[test]
fn s10_mounts_in_the_root_are_not_crossed() {
    let _alone = alone();
    let dir = temporary();
    let tier = open(dir.path()).expect("opens");
    let shard = tier.objects_path().join("cd");
    fs::create_dir(&shard).expect("made");
    let Some(mounted) = Mounted::at(&shard, "size=1m") else { return };
    fs::write(shard.join("00000000000000cd"), b"of another file system").expect("written");
    let reaped = tier.reap(&KnownCopies::default(), 100, &mut || {});
    drop(tier);
    let cleaned = clean(dir.path(), uid());
    let left = shard.join("00000000000000cd").exists();
    drop(mounted);
    assert_eq!(reaped.expect_err("told").errno(), Some(Errno::XDEV));
    assert!(cleaned.expect("cleaned").left > 0 && left);
}

#[test]
fn f1_a_real_file_system_that_is_full() {
    let _alone = alone();
    let dir = temporary();
    let Some(_mounted) = Mounted::at(dir.path(), "size=1m,nr_inodes=300") else {
        return;
    };
    let tier = open(dir.path()).expect("opens");
    let large = copy(&tier, tier.next_id(), &MemorySource::new(1, &content(1, 2 << 20))).expect_err("too large");
    assert!(large.is_full(), "{large}");
    publish(&tier, b"x", &MemorySource::new(1, &content(1, 1 << 18))).expect("a smaller one fits");
    let empty = MemorySource::new(2, b"");
    let full = (0..400_u32).find_map(|name| publish(&tier, &name.to_le_bytes(), &empty).err());
    assert!(full.expect("s9: no more inodes").is_full());
    let room = tier.room().expect("told");
    assert!(room.bytes < 1 << 20 && room.inodes == 0, "{room:?}");
    drop(tier);
    let tier = open(dir.path()).expect("opens again");
    assert!(!recover(&tier).expect("recovered").0.is_empty());
}
