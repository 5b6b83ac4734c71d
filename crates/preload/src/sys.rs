//! Raw system calls: no `errno`, no cancellation point, no symbol that another library could replace.

use core::{
    arch::asm,
    ffi::{CStr, c_int},
    mem::{self, MaybeUninit},
    ptr::NonNull,
    slice,
    sync::atomic::AtomicU32,
};

use crate::path::PathBuffer;

/// Number of attempts to replace a descriptor by another.
const PUT_TRIES_MAX: u32 = 100;

/// Error of a failed call: a positive `errno`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

/// Makes one system call; a negative result above -4096 is an error.
///
/// # Safety
/// That of the call itself.
#[inline]
pub(crate) unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let answer: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel's calling convention; the caller guarantees the call.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") first, in("rsi") second, in("rdx") third, in("r10") fourth, in("r8") fifth, in("r9") sixth,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the kernel's calling convention; the caller guarantees the call.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") first as isize => answer,
            in("x1") second, in("x2") third, in("x3") fourth, in("x4") fifth, in("x5") sixth,
            options(nostack)
        );
    }
    if (-4095..0).contains(&answer) {
        Err(Errno(-answer as c_int))
    } else {
        Ok(answer as usize)
    }
}

/// Returns a descriptor as an argument: the kernel takes an `int`.
#[inline]
pub(crate) const fn word(number: c_int) -> usize {
    number as isize as usize
}

/// `openat`.
pub(crate) fn open_at(dirfd: c_int, path: &CStr, flags: c_int, mode: libc::mode_t) -> Result<c_int, Errno> {
    let arguments = [word(dirfd), path.as_ptr() as usize, word(flags), mode as usize, 0, 0];
    // SAFETY: a string with its NUL.
    unsafe { call(libc::SYS_openat, arguments) }.map(|fd| fd as c_int)
}

pub(crate) fn close(fd: c_int) {
    // SAFETY: callers close what they have opened.
    let _ = unsafe { call(libc::SYS_close, [word(fd), 0, 0, 0, 0, 0]) };
}

/// `newfstatat`.
pub(crate) fn stat_at(dirfd: c_int, path: &CStr, flags: c_int) -> Result<libc::stat, Errno> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    stat_into(dirfd, path, stat.as_mut_ptr(), flags)?;
    // SAFETY: the call succeeded, so the kernel has filled it.
    Ok(unsafe { stat.assume_init() })
}

/// Calls `newfstatat` with a result that only the kernel need be able to write to: it refuses a bad address.
pub(crate) fn stat_into(dirfd: c_int, path: &CStr, out: *mut libc::stat, flags: c_int) -> Result<(), Errno> {
    let arguments = [word(dirfd), path.as_ptr() as usize, out as usize, word(flags), 0, 0];
    // SAFETY: a string with its NUL, and a place that the kernel checks.
    unsafe { call(libc::SYS_newfstatat, arguments) }.map(drop)
}

/// Calls `statx` of an absolute path for the fields of `stat`, with a result as for [`stat_into`].
pub(crate) fn statx_into(path: &CStr, out: *mut libc::statx) -> Result<(), Errno> {
    let arguments = [
        word(libc::AT_FDCWD),
        path.as_ptr() as usize,
        0,
        libc::STATX_BASIC_STATS as usize,
        out as usize,
        0,
    ];
    // SAFETY: a string with its NUL, and a place that the kernel checks.
    unsafe { call(libc::SYS_statx, arguments) }.map(drop)
}

/// Calls `faccessat` of an absolute path, for the real user, as `access` does.
pub(crate) fn access(path: &CStr, mode: c_int) -> Result<(), Errno> {
    let arguments = [word(libc::AT_FDCWD), path.as_ptr() as usize, word(mode), 0, 0, 0];
    // SAFETY: a string with its NUL.
    unsafe { call(libc::SYS_faccessat, arguments) }.map(drop)
}

/// `fstat`.
pub(crate) fn stat_fd(fd: c_int) -> Result<libc::stat, Errno> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for the answer.
    unsafe { call(libc::SYS_fstat, [word(fd), stat.as_mut_ptr() as usize, 0, 0, 0, 0]) }?;
    // SAFETY: the call succeeded, so the kernel has filled it.
    Ok(unsafe { stat.assume_init() })
}

/// Type and device of an open file.
#[derive(Clone, Copy)]
pub(crate) struct FileKind {
    pub(crate) is_regular: bool,
    pub(crate) size: u64,
    pub(crate) dev: u64,
    pub(crate) ino: u64,
}

/// Returns type and device of an open file from the kernel's cache: a network file system is not asked.
pub(crate) fn kind_of(fd: c_int) -> Result<FileKind, Errno> {
    let mut answer = MaybeUninit::<libc::statx>::uninit();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let mask = (libc::STATX_TYPE | libc::STATX_SIZE | libc::STATX_INO) as usize;
    let arguments = [word(fd), c"".as_ptr() as usize, word(flags), mask, answer.as_mut_ptr() as usize, 0];
    // SAFETY: a string with its NUL, and room for the answer.
    unsafe { call(libc::SYS_statx, arguments) }?;
    // SAFETY: the call succeeded, so the kernel has filled it.
    let answer = unsafe { answer.assume_init() };
    Ok(FileKind {
        is_regular: libc::mode_t::from(answer.stx_mode) & libc::S_IFMT == libc::S_IFREG,
        size: answer.stx_size,
        dev: libc::makedev(answer.stx_dev_major, answer.stx_dev_minor),
        ino: answer.stx_ino,
    })
}

/// Appends the current directory to an empty buffer; `None` if it has no path.
pub(crate) fn current_directory(buffer: &mut PathBuffer) -> Option<()> {
    let room = buffer.room();
    // SAFETY: the kernel writes no more than the room there is.
    let written = unsafe { call(libc::SYS_getcwd, [room.as_mut_ptr() as usize, room.len(), 0, 0, 0, 0]) }.ok()?;
    // The result counts the NUL. A directory that can't be reached from the root is spelled "(unreachable)/...".
    buffer.grown_by(written.checked_sub(1)?);
    (buffer.bytes().first() == Some(&b'/')).then_some(())
}

/// Appends the target of a link to an empty buffer; `None` if it does not fit.
pub(crate) fn read_link(path: &CStr, buffer: &mut PathBuffer) -> Option<()> {
    let room = buffer.room();
    let len = room.len();
    let arguments = [word(libc::AT_FDCWD), path.as_ptr() as usize, room.as_mut_ptr() as usize, len, 0, 0];
    // SAFETY: a string with its NUL, and the kernel writes no more than the room there is.
    let written = unsafe { call(libc::SYS_readlinkat, arguments) }
        .ok()
        .filter(|written| *written < len)?;
    buffer.grown_by(written);
    Some(())
}

/// Makes a symbolic link.
pub(crate) fn make_link(target: &CStr, path: &CStr) -> Result<(), Errno> {
    let arguments = [target.as_ptr() as usize, word(libc::AT_FDCWD), path.as_ptr() as usize, 0, 0, 0];
    // SAFETY: strings with their NULs.
    unsafe { call(libc::SYS_symlinkat, arguments) }.map(drop)
}

/// Makes a directory of the user's own.
pub(crate) fn make_directory(path: &CStr) -> Result<(), Errno> {
    // SAFETY: a string with its NUL.
    unsafe { call(libc::SYS_mkdirat, [word(libc::AT_FDCWD), path.as_ptr() as usize, 0o700, 0, 0, 0]) }.map(drop)
}

/// Removes a name of ours.
pub(crate) fn unlink(path: &CStr) {
    // SAFETY: a string with its NUL.
    let _ = unsafe { call(libc::SYS_unlinkat, [word(libc::AT_FDCWD), path.as_ptr() as usize, 0, 0, 0, 0]) };
}

/// Returns whether a file can be mapped for execution: not where its file system forbids that (`noexec`).
pub(crate) fn may_execute(fd: c_int) -> bool {
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: a new mapping, where the kernel chooses.
    let mapped = unsafe { call(libc::SYS_mmap, [0, 1, word(protection), word(libc::MAP_PRIVATE), word(fd), 0]) };
    if let Some(base) = mapped.ok().and_then(|base| NonNull::new(base as *mut u8)) {
        unmap(base, 1);
        return true;
    }
    false
}

/// Maps a whole file of at least `len_min` bytes, shared. Returns its address and length.
pub(crate) fn map_file(path: &CStr, len_min: usize, writable: bool) -> Option<(NonNull<u8>, usize)> {
    let access = if writable { libc::O_RDWR } else { libc::O_RDONLY };
    let fd = open_at(libc::AT_FDCWD, path, access | libc::O_CLOEXEC | libc::O_NOFOLLOW, 0).ok()?;
    let mapped = stat_fd(fd).ok().and_then(|stat| {
        let len = stat.st_size as usize;
        let protection = if writable {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        let arguments = [0, len, word(protection), word(libc::MAP_SHARED), word(fd), 0];
        if len < len_min || len == 0 {
            return None;
        }
        // SAFETY: a new mapping, where the kernel chooses.
        let base = unsafe { call(libc::SYS_mmap, arguments) }.ok()?;
        Some((NonNull::new(base as *mut u8)?, len))
    });
    close(fd);
    mapped
}

/// Maps zeroed memory of the process's own.
pub(crate) fn map_memory(len: usize) -> Option<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, where the kernel chooses.
    let base = unsafe { call(libc::SYS_mmap, [0, len, word(protection), word(flags), word(-1), 0]) }.ok()?;
    NonNull::new(base as *mut u8)
}

/// Reads until the room is full.
///
/// # Errors
/// `EIO` if the file ends before that; else the error of a read.
pub(crate) fn read_full(fd: c_int, room: &mut [u8]) -> Result<(), Errno> {
    let mut filled = 0;
    while let Some(rest) = room.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        // SAFETY: the kernel writes no more than the room there is.
        match unsafe { call(libc::SYS_read, [word(fd), rest.as_mut_ptr() as usize, rest.len(), 0, 0, 0]) } {
            Ok(0) => return Err(Errno(libc::EIO)),
            Ok(count) => filled += count,
            Err(Errno(libc::EINTR)) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Returns the bytes that this process has read by system calls (`rchar` of `/proc/self/io`); `None` where the kernel
/// does not tell.
pub(crate) fn bytes_read() -> Option<u64> {
    const FIRST_LINE: &str = "rchar: ";
    let fd = open_at(libc::AT_FDCWD, c"/proc/self/io", libc::O_RDONLY | libc::O_CLOEXEC, 0).ok()?;
    let mut text = [0u8; 32];
    // SAFETY: the kernel writes no more than the room there is.
    let _ = unsafe { call(libc::SYS_read, [word(fd), text.as_mut_ptr() as usize, text.len(), 0, 0, 0]) };
    close(fd);
    let mut bytes = 0u64;
    for digit in text.iter().skip(FIRST_LINE.len()).take_while(|byte| byte.is_ascii_digit()) {
        bytes = bytes.wrapping_mul(10).wrapping_add(u64::from(digit.wrapping_sub(b'0')));
    }
    // No process has read nothing: its loader has read its libraries.
    (bytes > 0).then_some(bytes)
}

/// Unmaps memory in which nobody reads.
pub(crate) fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: callers return what `map_file` or `map_memory` gave them, and nobody else uses it.
    let _ = unsafe { call(libc::SYS_munmap, [base.as_ptr() as usize, len, 0, 0, 0, 0]) };
}

/// `getpid`.
pub(crate) fn process_id() -> u64 {
    // SAFETY: takes nothing, can't fail.
    unsafe { call(libc::SYS_getpid, [0; 6]) }.unwrap_or(0) as u64
}

/// Returns whether the program has told the kernel to reap its children: by ignoring `SIGCHLD`, or by `SA_NOCLDWAIT`.
pub(crate) fn reaps_itself() -> bool {
    // The kernel's own structure, which differs from libc's: handler and flags come first.
    let mut action = [0usize; 4];
    let arguments = [word(libc::SIGCHLD), 0, action.as_mut_ptr() as usize, size_of::<u64>(), 0, 0];
    // SAFETY: room for the answer.
    let answer = unsafe { call(libc::SYS_rt_sigaction, arguments) };
    let [handler, flags, ..] = action;
    answer.is_ok() && (handler == libc::SIG_IGN || flags & libc::SA_NOCLDWAIT as usize != 0)
}

/// Creates a non-blocking SEQPACKET socket.
pub(crate) fn packet_socket() -> Result<c_int, Errno> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: takes numbers only.
    unsafe { call(libc::SYS_socket, [word(libc::AF_UNIX), word(kind), 0, 0, 0, 0]) }.map(|fd| fd as c_int)
}

/// Calls `connect`, with the used part of the address.
pub(crate) fn connect(fd: c_int, address: &libc::sockaddr_un, len: usize) -> Result<(), Errno> {
    let arguments = [word(fd), core::ptr::from_ref(address) as usize, len, 0, 0, 0];
    // SAFETY: an address, and a length inside it.
    unsafe { call(libc::SYS_connect, arguments) }.map(drop)
}

/// Calls `sendmsg` so that it neither waits nor raises a signal.
///
/// # Safety
/// Every pointer in the message must be good.
pub(crate) unsafe fn send(fd: c_int, message: &libc::msghdr) -> Result<usize, Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the caller guarantees the message's pointers.
    unsafe {
        call(
            libc::SYS_sendmsg,
            [word(fd), core::ptr::from_ref(message) as usize, word(flags), 0, 0, 0],
        )
    }
}

/// Sleeps while a word of shared memory has a value, for at most `ns` nanoseconds. May return early.
pub(crate) fn sleep_on(word: &AtomicU32, value: u32, ns: u64) {
    let most = libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    };
    let arguments = [
        core::ptr::from_ref(word) as usize,
        self::word(libc::FUTEX_WAIT),
        value as usize,
        core::ptr::from_ref(&most) as usize,
        0,
        0,
    ];
    // SAFETY: a word in memory that is mapped, and a time.
    let _ = unsafe { call(libc::SYS_futex, arguments) };
}

/// `ftruncate`.
pub(crate) fn truncate_fd(fd: c_int, len: u64) -> Result<(), Errno> {
    // SAFETY: takes numbers only.
    unsafe { call(libc::SYS_ftruncate, [word(fd), len as usize, 0, 0, 0, 0]) }.map(drop)
}

/// Calls `getppid`; 0 if the parent is in another process namespace.
pub(crate) fn parent_id() -> c_int {
    // SAFETY: takes nothing, can't fail.
    unsafe { call(libc::SYS_getppid, [0; 6]) }.unwrap_or(0) as c_int
}

/// Returns whether descriptor `other` of process `pid` and `fd` of this one share an open file description (`kcmp`).
/// False if the kernel does not tell.
pub(crate) fn shares_description(pid: c_int, fd: c_int, other: c_int) -> bool {
    const KCMP_FILE: usize = 0;
    let own = process_id() as usize;
    // SAFETY: takes numbers only.
    let answer = unsafe { call(libc::SYS_kcmp, [own, word(pid), KCMP_FILE, word(fd), word(other), 0]) };
    answer == Ok(0)
}

/// Returns the flags with which a descriptor was opened, as `fcntl(F_GETFL)` does.
pub(crate) fn descriptor_flags(fd: c_int) -> Result<c_int, Errno> {
    // SAFETY: takes numbers only.
    unsafe { call(libc::SYS_fcntl, [word(fd), word(libc::F_GETFL), 0, 0, 0, 0]) }.map(|flags| flags as c_int)
}

/// Returns the offset of a file; 0 if it has none.
pub(crate) fn offset(fd: c_int) -> usize {
    // SAFETY: takes numbers only.
    unsafe { call(libc::SYS_lseek, [word(fd), 0, word(libc::SEEK_CUR), 0, 0, 0]) }.unwrap_or(0)
}

/// Sets the offset of a file.
pub(crate) fn seek_to(fd: c_int, offset: usize) -> Result<(), Errno> {
    // SAFETY: takes numbers only.
    unsafe { call(libc::SYS_lseek, [word(fd), offset, word(libc::SEEK_SET), 0, 0, 0]) }.map(drop)
}

/// Makes `fd` a duplicate of `source`, in one step (`dup3`). Its close-on-exec flag stays.
pub(crate) fn put_in_place(source: c_int, fd: c_int) -> Result<(), Errno> {
    // SAFETY: takes numbers only.
    let kept = unsafe { call(libc::SYS_fcntl, [word(fd), word(libc::F_GETFD), 0, 0, 0, 0]) }?;
    let flags = if kept & libc::FD_CLOEXEC as usize == 0 {
        0
    } else {
        libc::O_CLOEXEC
    };
    let mut answer = Err(Errno(libc::EBUSY));
    // Busy: another thread is opening a file that gets this very number, which the program itself has closed meanwhile.
    for _ in 0..PUT_TRIES_MAX {
        // SAFETY: takes numbers only; the caller replaces a descriptor of the program's by one of the same file.
        answer = unsafe { call(libc::SYS_dup3, [word(source), word(fd), word(flags), 0, 0, 0]) }.map(drop);
        if !matches!(answer, Err(Errno(libc::EINTR | libc::EBUSY))) {
            break;
        }
    }
    answer
}

/// Entries of a directory, a buffer at a time.
pub(crate) struct Entries {
    bytes: [MaybeUninit<u8>; 1024],
    len: usize,
}

impl Entries {
    /// Creates an empty buffer.
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [MaybeUninit::uninit(); 1024],
            len: 0,
        }
    }

    /// Reads the next entries; false at the end.
    pub(crate) fn read(&mut self, directory: c_int) -> bool {
        let arguments = [word(directory), self.bytes.as_mut_ptr() as usize, self.bytes.len(), 0, 0, 0];
        // SAFETY: the kernel writes no more than the room there is.
        self.len = unsafe { call(libc::SYS_getdents64, arguments) }.unwrap_or(0).min(self.bytes.len());
        self.len > 0
    }

    /// Calls `act` with the name of each entry.
    pub(crate) fn names(&self, mut act: impl FnMut(&[u8])) {
        const LENGTH_AT: usize = mem::offset_of!(libc::dirent64, d_reclen);
        const NAME_AT: usize = mem::offset_of!(libc::dirent64, d_name);
        // SAFETY: the kernel has written the first `len` bytes.
        let mut rest = unsafe { slice::from_raw_parts(self.bytes.as_ptr().cast::<u8>(), self.len) };
        while let Some(&[low, high]) = rest.get(LENGTH_AT..LENGTH_AT + 2) {
            let len = usize::from(u16::from_ne_bytes([low, high]));
            let Some((entry, after)) = rest.split_at_checked(len).filter(|_| len > NAME_AT) else {
                return;
            };
            let name = entry.get(NAME_AT..).unwrap_or(&[]);
            act(name.split(|byte| *byte == 0).next().unwrap_or(&[]));
            rest = after;
        }
    }
}
