//! Shared by the tests of tiers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_contract::Identity;
use forebay_policy::Space;
use forebay_store::disk::{self, Disk};
use forebay_store::testing::MemorySource;
use forebay_store::{
    BootId, CatalogueEntry, CatalogueItem, CopySource, Finished, KnownCopies, Secret, SourceMount, StatFrom, StoreError, Tier,
};
use rustix::io::Errno;

pub(crate) const BOOT: BootId = BootId([1; 16]);
pub(crate) const NEXT_BOOT: BootId = BootId([2; 16]);
pub(crate) const MOUNT: SourceMount<'static> = SourceMount {
    source: b"10.0.0.1:/pfs",
    fs_type: b"nfs4",
};
pub(crate) const NOW: i64 = 1_800_000_000;

pub(crate) fn secret() -> Secret {
    Secret::from_bytes([7; 32])
}

pub(crate) const QUOTA: Space = Space {
    bytes: 1 << 30,
    inodes: 10_000,
};

pub(crate) fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

pub(crate) fn open_on(disk: Arc<dyn Disk>, boot: BootId) -> Result<Tier, StoreError> {
    Tier::open_on(disk, PathBuf::from("/tier/forebay-0"), QUOTA, &secret(), boot)
}

/// Returns the content of a test file; no two parts of it are equal.
pub(crate) fn content(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (at.wrapping_mul(at).wrapping_add(seed * 31) >> 3) as u8)
        .collect()
}

pub(crate) fn copy(tier: &Tier, id: u64, source: &MemorySource) -> Result<Finished, StoreError> {
    let mut writer = tier.begin(id, &source.identity())?;
    writer.advance(source, u64::MAX, &mut [0; 16 << 10])?;
    writer.finish(source, StatFrom::Server)
}

pub(crate) fn entry<'a>(id: u64, name: &'a [u8], source: &MemorySource, finished: &Finished) -> CatalogueEntry<'a> {
    CatalogueEntry {
        id,
        dir: b"/pfs/train/7",
        name,
        mount: MOUNT,
        identity: source.identity(),
        attributes: source.stat(StatFrom::Kernel).expect("a source in memory has a stat").attributes,
        object: finished.object,
        checksum: finished.checksum,
        created_unix_s: NOW,
    }
}

/// Copies and publishes a file. Returns the copy's name.
pub(crate) fn publish(tier: &Tier, name: &[u8], source: &MemorySource) -> Result<u64, StoreError> {
    let id = tier.next_id();
    let finished = copy(tier, id, source)?;
    tier.publish(&entry(id, name, source, &finished))?;
    Ok(id)
}

pub(crate) fn read(tier: &Tier, id: u64) -> Result<Vec<u8>, StoreError> {
    let file = tier.open_copy(id)?;
    let mut bytes = vec![0; 1 << 20];
    let read = disk::read_full_at(&*file, &mut bytes, 0).expect("an open copy is readable");
    bytes.truncate(read);
    Ok(bytes)
}

/// A recovered copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptCopy {
    pub(crate) id: u64,
    pub(crate) dir: Vec<u8>,
    pub(crate) identity: Identity,
    pub(crate) object: Identity,
    pub(crate) checksum: u128,
    pub(crate) last_used_unix_s: i64,
    pub(crate) trusted: bool,
}

/// All recovered copies by name, and the further paths.
pub(crate) type RecoveredAll = (BTreeMap<Vec<u8>, KeptCopy>, Vec<(u64, Vec<u8>, Vec<u8>)>, RecoverySummary);

/// Result of a recovery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecoverySummary {
    pub(crate) copies: u64,
    pub(crate) torn_bytes: u64,
    /// Number of copies without a file; they were removed.
    pub(crate) missing: u64,
}

/// Recovers all copies, and removes those without a file, as an agent does when it opens them.
pub(crate) fn recover(tier: &Tier) -> Result<RecoveredAll, StoreError> {
    let mut copies = BTreeMap::new();
    let mut aliases = Vec::new();
    let found = tier.recover(|recovered| match recovered {
        CatalogueItem::Copy(copy) => {
            assert_eq!(copy.mount, MOUNT);
            let kept = KeptCopy {
                id: copy.id,
                dir: copy.dir.to_vec(),
                identity: copy.identity,
                object: copy.object,
                checksum: copy.checksum,
                last_used_unix_s: copy.last_used_unix_s,
                trusted: copy.trusted,
            };
            assert!(copies.insert(copy.name.to_vec(), kept).is_none(), "a copy was told twice");
        }
        CatalogueItem::Alias(alias) => aliases.push((alias.id, alias.dir.to_vec(), alias.name.to_vec())),
    })?;
    assert_eq!(found.copies, copies.len() as u64);
    assert_eq!(found.bytes, copies.values().map(|kept| kept.identity.size).sum::<u64>());
    let is_gone = |id| tier.open_copy(id).is_err_and(|error| error.errno() == Some(Errno::NOENT));
    let gone: Vec<u64> = copies.values().map(|kept| kept.id).filter(|id| is_gone(*id)).collect();
    for id in &gone {
        tier.remove(*id)?;
    }
    copies.retain(|_, kept| !gone.contains(&kept.id));
    aliases.retain(|(id, ..)| !gone.contains(id));
    let report = RecoverySummary {
        copies: found.copies,
        torn_bytes: found.torn_bytes,
        missing: gone.len() as u64,
    };
    Ok((copies, aliases, report))
}

/// Returns the copies that a reaper must leave.
pub(crate) fn known(copies: &BTreeMap<Vec<u8>, KeptCopy>) -> KnownCopies {
    copies.values().map(|kept| kept.id).collect()
}
