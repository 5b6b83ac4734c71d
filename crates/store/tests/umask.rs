//! The umask belongs to the whole process, so this test has a process of its own.

use std::os::unix::fs::MetadataExt;

use forebay_policy::Space;
use forebay_store::testing::MemorySource;
use forebay_store::{Secret, StatFrom, Tier};
use rustix::fs::Mode;

#[test]
fn s1_modes_are_private_whatever_the_umask() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let uid = rustix::process::geteuid().as_raw();
    let secret = Secret::from_bytes([1; 32]);
    let quota = Space { bytes: 1, inodes: 1 };
    for umask in [0o000, 0o022, 0o077, 0o477] {
        let before = rustix::process::umask(Mode::from_raw_mode(umask));
        let tier = Tier::open(dir.path(), quota, &secret, uid).expect("opens");
        let source = MemorySource::new(1, b"x");
        let id = tier.next_id();
        let mut writer = tier.begin(id, &source.identity()).expect("begun");
        writer.advance(&source, 1, &mut [0; 8]).expect("copied");
        let finished = writer.finish(&source, StatFrom::Kernel).expect("finished");
        rustix::process::umask(before);
        let metadata = std::fs::metadata(tier.copy_path(id)).expect("it is there");
        assert_eq!(metadata.mode() & 0o7777, 0o400, "under {umask:o}");
        assert_eq!(
            (metadata.ctime(), metadata.ctime_nsec()),
            (finished.object.ctime.sec, i64::from(finished.object.ctime.nsec))
        );
        assert_eq!(std::fs::metadata(tier.root_path()).expect("there").mode() & 0o777, 0o700);
    }
}
