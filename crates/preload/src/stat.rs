//! `stat` of a redirected descriptor: returns the source's identity and attributes, so that programs which compare a
//! name's stat with the descriptor's (cp, mv, install, tail) see one file. For `stat` of a name see `status`.

use core::ffi::{c_char, c_int};

use forebay_contract::{Attributes, Identity};

use crate::{
    copies::{self, COPY_MODE, OpenCopy},
    lookup::identity_of,
    state::{self, Serving},
};

/// Returns whether a call means the descriptor itself: `AT_EMPTY_PATH` and an empty path.
pub(crate) fn is_descriptor(path: *const c_char, flags: c_int) -> bool {
    // SAFETY: not null, so the program's string, of which one byte is there.
    flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0)
}

/// Replaces the values of a copy by the source's. For other files it costs one comparison.
///
/// # Safety
/// A successful call must have filled `stat`.
#[inline]
pub(crate) unsafe fn disguise(stat: *mut libc::stat) {
    // SAFETY: filled, says the caller.
    let stat = unsafe { &mut *stat };
    if stat.st_mode == COPY_MODE {
        disguise_copy(stat);
    }
}

#[inline(never)]
fn disguise_copy(stat: &mut libc::stat) {
    let source = state::serving().and_then(|serving| source_of(serving, &copies::find(serving, stat)?));
    if let Some((identity, attributes)) = source {
        put(stat, &identity, &attributes);
    }
}

/// Overwrites the values of a copy by the source's. The time of access stays, since the source's is not known.
pub(crate) fn put(stat: &mut libc::stat, identity: &Identity, attributes: &Attributes) {
    stat.st_dev = identity.dev;
    stat.st_ino = identity.ino;
    stat.st_size = identity.size as libc::off_t;
    (stat.st_mtime, stat.st_mtime_nsec) = (identity.mtime.sec, i64::from(identity.mtime.nsec));
    (stat.st_ctime, stat.st_ctime_nsec) = (identity.ctime.sec, i64::from(identity.ctime.nsec));
    stat.st_mode = attributes.mode;
    stat.st_uid = attributes.uid;
    stat.st_gid = attributes.gid;
    stat.st_nlink = attributes.nlink as libc::nlink_t;
    stat.st_blksize = attributes.blksize as libc::blksize_t;
    stat.st_blocks = attributes.blocks as libc::blkcnt_t;
}

/// Returns the source's identity and attributes from the index. If a covered program changed the file since, they come
/// from the source, as long as the bytes may be the same.
fn source_of(serving: Serving, copy: &OpenCopy) -> Option<(Identity, Attributes)> {
    let identity = copy.identity()?;
    let marked_at = serving.control.file_marked_at(identity.dev, identity.ino);
    if marked_at != 0
        && marked_at >= copy.checked_at()?
        && let Some(stat) = copy.stat_source()
        && stat.st_size as u64 == identity.size
    {
        return Some((identity_of(&stat), attributes_of(&stat)));
    }
    Some((identity, copy.attributes()?))
}

fn attributes_of(stat: &libc::stat) -> Attributes {
    Attributes {
        mode: stat.st_mode,
        uid: stat.st_uid,
        gid: stat.st_gid,
        nlink: stat.st_nlink as u32,
        blksize: stat.st_blksize as u32,
        blocks: stat.st_blocks as u64,
    }
}

/// Replaces the values of a copy by the source's, for `statx`.
///
/// # Safety
/// A successful call must have filled `statx`.
#[inline]
pub(crate) unsafe fn disguise_x(fd: c_int, statx: *mut libc::statx) {
    // SAFETY: filled, says the caller.
    let statx = unsafe { &mut *statx };
    if libc::mode_t::from(statx.stx_mode) & (libc::S_IFMT | 0o7777) == COPY_MODE || statx.stx_mask & libc::STATX_MODE == 0 {
        disguise_copy_x(fd, statx);
    }
}

#[inline(never)]
fn disguise_copy_x(fd: c_int, statx: &mut libc::statx) {
    // Not from the values that the call has filled in, since its mask may not have asked for them.
    let source = state::serving().and_then(|serving| source_of(serving, &copies::of_descriptor(serving, fd)?));
    if let Some((identity, attributes)) = source {
        put_x(statx, &identity, &attributes);
    }
}

/// Overwrites the values of a copy by the source's, for `statx`.
pub(crate) fn put_x(statx: &mut libc::statx, identity: &Identity, attributes: &Attributes) {
    statx.stx_dev_major = libc::major(identity.dev);
    statx.stx_dev_minor = libc::minor(identity.dev);
    statx.stx_ino = identity.ino;
    statx.stx_size = identity.size;
    (statx.stx_mtime.tv_sec, statx.stx_mtime.tv_nsec) = (identity.mtime.sec, identity.mtime.nsec);
    (statx.stx_ctime.tv_sec, statx.stx_ctime.tv_nsec) = (identity.ctime.sec, identity.ctime.nsec);
    statx.stx_mode = attributes.mode as u16;
    statx.stx_uid = attributes.uid;
    statx.stx_gid = attributes.gid;
    statx.stx_nlink = attributes.nlink;
    statx.stx_blksize = attributes.blksize;
    statx.stx_blocks = attributes.blocks;
    // Values of the source that are not known are not returned: time of birth, number of the mount, features of the
    // file system.
    statx.stx_mask &= libc::STATX_BASIC_STATS;
    statx.stx_attributes = 0;
    statx.stx_attributes_mask = 0;
}
