//! Fills a tier with many small copies, as runs over many files would have left it, for measurements of a large
//! catalogue: `cargo run --release -p forebay-store --example fill_catalogue -- TIER STATE SOURCE MOUNT_SOURCE FS_TYPE
//! COPIES`.
//!
//! Objects and catalogue are real, made by the same calls as an agent's. Their source files are named below SOURCE, on
//! a file system mounted from `MOUNT_SOURCE`; they need not exist.

use std::path::{Path, PathBuf};

use forebay_policy::Space;
use forebay_store::testing::MemorySource;
use forebay_store::{CatalogueEntry, CopySource, Secret, SourceMount, StatFrom, Tier};

type ExampleError = Box<dyn std::error::Error>;

const COPY_BYTES: usize = 100;
const COPIES_A_DIR: u64 = 1000;
/// First inode of the invented files, far from those of existing files.
const FIRST_INODE: u64 = 1 << 60;
const USED_UNIX_S: i64 = 1_800_000_000;

fn main() -> Result<(), ExampleError> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [dir, state, source, mount_source, fs_type, copies] = words.as_slice() else {
        return Err("usage: fill_catalogue TIER STATE SOURCE MOUNT_SOURCE FS_TYPE COPIES".into());
    };
    let copies: u64 = copies.parse()?;
    let quota = Space {
        bytes: u64::MAX,
        inodes: u64::MAX,
    };
    let secret = Secret::load_or_create(&PathBuf::from(state))?;
    let tier = Tier::open(Path::new(dir), quota, &secret, rustix::process::geteuid().as_raw())?;
    let mount = SourceMount {
        source: mount_source.as_bytes(),
        fs_type: fs_type.as_bytes(),
    };
    for number in 0..copies {
        let class = number / COPIES_A_DIR;
        publish_one(
            &tier,
            mount,
            &format!("{source}/train/n{class:08}"),
            &format!("n{class:08}_{number}.JPEG"),
            number,
        )?;
    }
    Ok(())
}

fn publish_one(tier: &Tier, mount: SourceMount<'_>, dir: &str, name: &str, number: u64) -> Result<(), ExampleError> {
    let source = MemorySource::new(FIRST_INODE + number, &[5; COPY_BYTES]);
    let mut buffer = [0; COPY_BYTES];
    let stat = source.stat(StatFrom::Kernel)?;
    let id = tier.next_id();
    let mut writer = tier.begin(id, &stat.identity)?;
    writer.advance(&source, u64::MAX, &mut buffer)?;
    let finished = writer.finish(&source, StatFrom::Kernel)?;
    tier.publish(&CatalogueEntry {
        id,
        dir: dir.as_bytes(),
        name: name.as_bytes(),
        mount,
        identity: stat.identity,
        attributes: stat.attributes,
        object: finished.object,
        checksum: finished.checksum,
        created_unix_s: USED_UNIX_S,
    })?;
    Ok(())
}
