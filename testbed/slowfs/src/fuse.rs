//! Requests and answers of FUSE; `fs.rs` carries them out.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenAccMode,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{self as below, AtFlags, CWD, Gid, Mode, OFlags, Uid, XattrFlags};
use rustix::io::{Errno, Result};

use crate::control::Op;
use crate::fs::{AttrChange, NOT_PASSED_ON, SlowFs, open_flags};
use crate::node::{is_dot, kind, os_str, proc_path};

/// An inode number comes back only after the kernel has forgotten it (see `node.rs`), so one generation is enough.
const GENERATION: Generation = Generation(0);

thread_local! {
    /// Buffer for reads, one for each thread: clearing one for each request would cost more than the read.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn fail(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw_os_error())
}

/// Answers a request without a result.
fn answer(done: Result<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(fail(errno)),
    }
}

/// Answers a question about an extended attribute, which may only ask for its length.
fn answer_xattr(value: Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(fail(Errno::RANGE)),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(fail(errno)),
    }
}

impl SlowFs {
    fn answer_entry(&self, entry: Result<FileAttr>, reply: ReplyEntry) {
        match entry {
            Ok(attr) => reply.entry(&self.server.pace().attr_ttl(), &attr, GENERATION),
            Err(errno) => reply.error(fail(errno)),
        }
    }

    fn answer_attr(&self, attr: Result<FileAttr>, reply: ReplyAttr) {
        match attr {
            Ok(attr) => reply.attr(&self.server.pace().attr_ttl(), &attr),
            Err(errno) => reply.error(fail(errno)),
        }
    }
}

impl Filesystem for SlowFs {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Pages stay cached over an open (FOPEN_KEEP_CACHE below) until the kernel sees another size or mtime, as with
        // NFS.
        let mut wanted =
            InitFlags::FUSE_AUTO_INVAL_DATA | InitFlags::FUSE_ATOMIC_O_TRUNC | InitFlags::FUSE_PARALLEL_DIROPS | InitFlags::FUSE_ASYNC_DIO;
        if self.readdirplus {
            wanted |= InitFlags::FUSE_DO_READDIRPLUS;
        }
        let _ = config.add_capabilities(wanted & config.capabilities());
        // Readahead of many files should wait for our slots, not in the kernel.
        let _ = config.set_max_background(256);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let entry = self
            .server
            .take(Op::Lookup)
            .and_then(|()| self.nodes.enter(parent, self.nodes.get(parent)?, name));
        self.answer_entry(entry, reply);
    }

    fn forget(&self, _req: &Request, ino: INodeNo, lookups: u64) {
        self.nodes.forget(ino, lookups);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let attr = self
            .server
            .take(Op::Getattr)
            .and_then(|()| self.nodes.attr_of(&*self.nodes.get(ino)?));
        self.answer_attr(attr, reply);
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = AttrChange {
            mode: mode.map(Mode::from_raw_mode),
            uid: uid.map(Uid::from_raw),
            gid: gid.map(Gid::from_raw),
            size,
            atime,
            mtime,
        };
        self.answer_attr(self.change(ino, &change, handle), reply);
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        let target = self
            .server
            .take(Op::Readlink)
            .and_then(|()| below::readlinkat(&*self.nodes.get(ino)?, c"", Vec::new()));
        match target {
            Ok(target) => reply.data(target.as_bytes()),
            Err(errno) => reply.error(fail(errno)),
        }
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, rdev: u32, reply: ReplyEntry) {
        let (kind, mode) = (below::FileType::from_raw_mode(mode), Mode::from_raw_mode(mode));
        let entry = self.make(Op::Mknod, req, parent, name, |parent| {
            below::mknodat(parent, name, kind, mode, u64::from(rdev))
        });
        self.answer_entry(entry, reply);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let entry = self.make(Op::Mkdir, req, parent, name, |parent| {
            below::mkdirat(parent, name, Mode::from_raw_mode(mode))
        });
        self.answer_entry(entry, reply);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let entry = self.make(Op::Symlink, req, parent, name, |parent| below::symlinkat(target, parent, name));
        self.answer_entry(entry, reply);
    }

    fn link(&self, _req: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let link = || {
            self.server.take(Op::Link)?;
            let (node, dir) = (self.nodes.get(ino)?, self.nodes.get(parent)?);
            below::linkat(CWD, proc_path(&node), &*dir, name, AtFlags::SYMLINK_FOLLOW)?;
            self.nodes.enter(parent, &dir, name)
        };
        self.answer_entry(link(), reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self
            .server
            .take(Op::Unlink)
            .and_then(|()| below::unlinkat(&*self.nodes.get(parent)?, name, AtFlags::empty()));
        answer(done, reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self
            .server
            .take(Op::Rmdir)
            .and_then(|()| below::unlinkat(&*self.nodes.get(parent)?, name, AtFlags::REMOVEDIR));
        answer(done, reply);
    }

    fn rename(&self, _req: &Request, from: INodeNo, name: &OsStr, to: INodeNo, new_name: &OsStr, flags: RenameFlags, reply: ReplyEmpty) {
        let rename = || {
            self.server.take(Op::Rename)?;
            let (from_dir, to_dir) = (self.nodes.get(from)?, self.nodes.get(to)?);
            below::renameat_with(
                &*from_dir,
                name,
                &*to_dir,
                new_name,
                below::RenameFlags::from_bits_retain(flags.bits()),
            )?;
            self.nodes.renamed(to, &to_dir, new_name);
            // After an exchange the old name exists, too.
            self.nodes.renamed(from, &from_dir, name);
            Ok(())
        };
        answer(rename(), reply);
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        // As with NFS, closing a file that was only read sends nothing to the server that a program waits for.
        let cache = match flags.acc_mode() {
            OpenAccMode::O_RDONLY => FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH,
            _ => FopenFlags::FOPEN_KEEP_CACHE,
        };
        match self
            .server
            .take(Op::Open)
            .and_then(|()| self.reopen(ino, open_flags(flags.0) & !NOT_PASSED_ON))
        {
            Ok(file) => reply.opened(self.keep(file), cache),
            Err(errno) => reply.error(fail(errno)),
        }
    }

    fn create(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, flags: i32, reply: ReplyCreate) {
        match self.create_file(req, parent, name, mode, flags) {
            Ok((attr, handle)) => reply.created(
                &self.server.pace().attr_ttl(),
                &attr,
                GENERATION,
                handle,
                FopenFlags::FOPEN_KEEP_CACHE,
            ),
            Err(errno) => reply.error(fail(errno)),
        }
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        READ_BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size as usize {
                buffer.resize(size as usize, 0);
            }
            match self.read_into(handle, offset, &mut buffer[..size as usize]) {
                Ok(n) => reply.data(&buffer[..n]),
                Err(errno) => reply.error(fail(errno)),
            }
        });
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.write_from(handle, offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(errno) => reply.error(fail(errno)),
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        answer(self.server.take(Op::Flush), reply);
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let taken = self.server.take(Op::Release);
        self.let_go(handle);
        answer(taken, reply);
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        let sync = || {
            self.server.take(Op::Fsync)?;
            let file = self.file(handle)?;
            if data_only {
                below::fdatasync(&*file)
            } else {
                below::fsync(&*file)
            }
        };
        answer(sync(), reply);
    }

    fn fallocate(&self, _req: &Request, _ino: INodeNo, handle: FileHandle, offset: u64, length: u64, mode: i32, reply: ReplyEmpty) {
        let mode = below::FallocateFlags::from_bits_retain(mode as u32);
        answer(
            self.server
                .take(Op::Fallocate)
                .and_then(|()| below::fallocate(&*self.file(handle)?, mode, offset, length)),
            reply,
        );
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self
            .server
            .take(Op::Opendir)
            .and_then(|()| self.reopen(ino, OFlags::RDONLY | OFlags::DIRECTORY))
        {
            Ok(dir) => reply.opened(self.keep(dir), FopenFlags::empty()),
            Err(errno) => reply.error(fail(errno)),
        }
    }

    fn readdir(&self, _req: &Request, _ino: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.list(Op::Readdir, handle, offset, |_, entry| {
            let ino = self.nodes.number(entry.ino());
            Ok(reply.add(ino, entry.next_entry_cookie(), kind(entry.file_type()), os_str(entry.file_name())))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(fail(errno)),
        }
    }

    fn readdirplus(&self, _req: &Request, ino: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let ttl = self.server.pace().attr_ttl();
        let listed = self.list(Op::Readdirplus, handle, offset, |dir, entry| {
            let name = entry.file_name();
            // The kernel counts a lookup for every entry except these two.
            let counted = !is_dot(name);
            let attr = if counted {
                match self.nodes.enter(ino, dir, os_str(name)) {
                    Err(Errno::NOENT) => return Ok(false),
                    entered => entered?,
                }
            } else {
                let attr = self.nodes.attr_of(dir)?;
                FileAttr {
                    ino: self.nodes.number(entry.ino()),
                    ..attr
                }
            };
            let full = reply.add(attr.ino, entry.next_entry_cookie(), os_str(name), &ttl, &attr, GENERATION);
            if full && counted {
                self.nodes.forget(attr.ino, 1);
            }
            Ok(full)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(fail(errno)),
        }
    }

    fn releasedir(&self, _req: &Request, _ino: INodeNo, handle: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        let taken = self.server.take(Op::Releasedir);
        self.let_go(handle);
        answer(taken, reply);
    }

    fn fsyncdir(&self, _req: &Request, _ino: INodeNo, handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        answer(
            self.server.take(Op::Fsyncdir).and_then(|()| below::fsync(&*self.file(handle)?)),
            reply,
        );
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        match self.server.take(Op::Statfs).and_then(|()| below::fstatvfs(&*self.nodes.get(ino)?)) {
            Ok(s) => reply.statfs(
                s.f_blocks,
                s.f_bfree,
                s.f_bavail,
                s.f_files,
                s.f_ffree,
                s.f_bsize as u32,
                s.f_namemax as u32,
                s.f_frsize as u32,
            ),
            Err(errno) => reply.error(fail(errno)),
        }
    }

    fn setxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, _position: u32, reply: ReplyEmpty) {
        let flags = XattrFlags::from_bits_retain(flags as u32);
        let done = self
            .server
            .take(Op::Setxattr)
            .and_then(|()| below::setxattr(proc_path(&self.nodes.get(ino)?), name, value, flags));
        answer(done, reply);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = || {
            self.server.take(Op::Getxattr)?;
            let node = self.nodes.get(ino)?;
            let path = proc_path(&node);
            let mut value = Vec::with_capacity(below::getxattr_query(&path, name)?);
            below::getxattr(&path, name, rustix::buffer::spare_capacity(&mut value))?;
            Ok(value)
        };
        answer_xattr(value(), size, reply);
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = || {
            self.server.take(Op::Listxattr)?;
            let node = self.nodes.get(ino)?;
            let path = proc_path(&node);
            let mut names = Vec::with_capacity(below::listxattr_query(&path)?);
            below::listxattr(&path, rustix::buffer::spare_capacity(&mut names))?;
            Ok(names)
        };
        answer_xattr(names(), size, reply);
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self
            .server
            .take(Op::Removexattr)
            .and_then(|()| below::removexattr(proc_path(&self.nodes.get(ino)?), name));
        answer(done, reply);
    }
}
