//! The next definitions of hooked functions: libc's, or those of a library that was preloaded after ours.
//!
//! Nearly all are looked up when the library starts, since `dlsym` takes the loader's lock. Before that, in other
//! libraries' constructors, opens and questions about files go straight to the kernel, and the other functions are
//! looked up immediately.

use core::{
    ffi::{CStr, c_char, c_int, c_long, c_uint, c_void},
    marker::PhantomData,
    ptr, slice,
    sync::atomic::{AtomicPtr, Ordering::Relaxed},
};

use crate::sys::{self, Errno};

/// A function that another library defines.
pub(crate) struct NextFunction<F> {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

impl<F: Copy> NextFunction<F> {
    const fn new(name: &'static CStr) -> Self {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Self {
            name,
            at: AtomicPtr::new(ptr::null_mut()),
            kind: PhantomData,
        }
    }

    fn resolve(&self) -> *mut c_void {
        unsafe extern "C" {
            fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
        }
        // SAFETY: a string with its NUL.
        let found = unsafe { dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.at.store(found, Relaxed);
        found
    }

    /// Returns the function, if it was looked up and exists.
    #[inline]
    pub(crate) fn known(&self) -> Option<F> {
        let at = self.at.load(Relaxed);
        // SAFETY: the address of a function by this name, whose type stands beside the name below; `new` checks the
        // sizes.
        (!at.is_null()).then(|| unsafe { core::mem::transmute_copy::<*mut c_void, F>(&at) })
    }

    /// Returns the function, and looks it up first if that is necessary.
    #[inline]
    pub(crate) fn get(&self) -> Option<F> {
        self.known().or_else(|| {
            self.resolve();
            self.known()
        })
    }
}

macro_rules! next {
    ($($constant:ident = $name:literal: $kind:ty;)+) => {
        $(pub(crate) static $constant: NextFunction<$kind> = NextFunction::new($name);)+

        /// Looks all of them up; called once, when the library starts.
        pub(crate) fn resolve_all() {
            $($constant.resolve();)+
            // A library that makes programs believe in another time must not extend the use of copies.
            if !is_of_libc(CLOCK_GETTIME.at.load(Relaxed)) {
                CLOCK_GETTIME.at.store(ptr::null_mut(), Relaxed);
            }
        }
    };
}

macro_rules! next_later {
    ($($constant:ident = $name:literal: $kind:ty;)+) => {
        $(pub(crate) static $constant: NextFunction<$kind> = NextFunction::new($name);)+
    };
}

pub(crate) type CText = *const c_char;
type Open = unsafe extern "C" fn(CText, c_int, ...) -> c_int;
type OpenAt = unsafe extern "C" fn(c_int, CText, c_int, ...) -> c_int;
type Fopen = unsafe extern "C" fn(CText, CText) -> *mut libc::FILE;
type Freopen = unsafe extern "C" fn(CText, CText, *mut libc::FILE) -> *mut libc::FILE;
type OneName = unsafe extern "C" fn(CText) -> c_int;
type TwoNames = unsafe extern "C" fn(CText, CText) -> c_int;
type Truncate = unsafe extern "C" fn(CText, libc::off_t) -> c_int;
type Stat = unsafe extern "C" fn(CText, *mut libc::stat) -> c_int;
type OldStat = unsafe extern "C" fn(c_int, CText, *mut libc::stat) -> c_int;
type StatFd = unsafe extern "C" fn(c_int, *mut libc::stat) -> c_int;
type OldStatFd = unsafe extern "C" fn(c_int, c_int, *mut libc::stat) -> c_int;
type StatAt = unsafe extern "C" fn(c_int, CText, *mut libc::stat, c_int) -> c_int;
pub(crate) type Template = *mut c_char;
type MakeFile = unsafe extern "C" fn(Template) -> c_int;
type MakeFileWith = unsafe extern "C" fn(Template, c_int) -> c_int;
type MakeFileWithBoth = unsafe extern "C" fn(Template, c_int, c_int) -> c_int;
type DirStream = *mut libc::DIR;
type ReadDir = unsafe extern "C" fn(DirStream) -> *mut libc::dirent;
type ReadDirInto = unsafe extern "C" fn(DirStream, *mut libc::dirent, *mut *mut libc::dirent) -> c_int;
type Fcntl = unsafe extern "C" fn(c_int, c_int, ...) -> c_int;
type Lockf = unsafe extern "C" fn(c_int, c_int, libc::off_t) -> c_int;
pub(crate) type Texts = *const CText;
type Execute = unsafe extern "C" fn(CText, Texts) -> c_int;
type ExecuteIn = unsafe extern "C" fn(CText, Texts, Texts) -> c_int;
type ExecuteList = unsafe extern "C" fn(CText, CText, ...) -> c_int;
type Spawn = unsafe extern "C" fn(*mut libc::pid_t, CText, *const c_void, *const c_void, Texts, Texts) -> c_int;
type Wait4 = unsafe extern "C" fn(libc::pid_t, *mut c_int, c_int, *mut libc::rusage) -> libc::pid_t;
type WaitId = unsafe extern "C" fn(libc::idtype_t, libc::id_t, *mut libc::siginfo_t, c_int) -> c_int;
type OldStatAt = unsafe extern "C" fn(c_int, c_int, CText, *mut libc::stat, c_int) -> c_int;

next! {
    CLOCK_GETTIME = c"clock_gettime": unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int;
    OPEN = c"open": Open;
    OPEN64 = c"open64": Open;
    OPENAT = c"openat": OpenAt;
    OPENAT64 = c"openat64": OpenAt;
    OPEN_2 = c"__open_2": unsafe extern "C" fn(CText, c_int) -> c_int;
    OPEN64_2 = c"__open64_2": unsafe extern "C" fn(CText, c_int) -> c_int;
    OPENAT_2 = c"__openat_2": unsafe extern "C" fn(c_int, CText, c_int) -> c_int;
    OPENAT64_2 = c"__openat64_2": unsafe extern "C" fn(c_int, CText, c_int) -> c_int;
    CREAT = c"creat": unsafe extern "C" fn(CText, libc::mode_t) -> c_int;
    CREAT64 = c"creat64": unsafe extern "C" fn(CText, libc::mode_t) -> c_int;
    FOPEN = c"fopen": Fopen;
    FOPEN64 = c"fopen64": Fopen;
    FREOPEN = c"freopen": Freopen;
    FREOPEN64 = c"freopen64": Freopen;
    FDOPEN = c"fdopen": unsafe extern "C" fn(c_int, CText) -> *mut libc::FILE;
    FILENO = c"fileno": unsafe extern "C" fn(*mut libc::FILE) -> c_int;
    RENAME = c"rename": TwoNames;
    RENAMEAT = c"renameat": unsafe extern "C" fn(c_int, CText, c_int, CText) -> c_int;
    RENAMEAT2 = c"renameat2": unsafe extern "C" fn(c_int, CText, c_int, CText, c_uint) -> c_int;
    UNLINK = c"unlink": OneName;
    UNLINKAT = c"unlinkat": unsafe extern "C" fn(c_int, CText, c_int) -> c_int;
    REMOVE = c"remove": OneName;
    RMDIR = c"rmdir": OneName;
    TRUNCATE = c"truncate": Truncate;
    TRUNCATE64 = c"truncate64": Truncate;
    LINK = c"link": TwoNames;
    LINKAT = c"linkat": unsafe extern "C" fn(c_int, CText, c_int, CText, c_int) -> c_int;
    MKDIR = c"mkdir": unsafe extern "C" fn(CText, libc::mode_t) -> c_int;
    MKDIRAT = c"mkdirat": unsafe extern "C" fn(c_int, CText, libc::mode_t) -> c_int;
    MKNOD = c"mknod": unsafe extern "C" fn(CText, libc::mode_t, libc::dev_t) -> c_int;
    MKNODAT = c"mknodat": unsafe extern "C" fn(c_int, CText, libc::mode_t, libc::dev_t) -> c_int;
    MKFIFO = c"mkfifo": unsafe extern "C" fn(CText, libc::mode_t) -> c_int;
    MKFIFOAT = c"mkfifoat": unsafe extern "C" fn(c_int, CText, libc::mode_t) -> c_int;
    MKDTEMP = c"mkdtemp": unsafe extern "C" fn(Template) -> Template;
    MKSTEMP = c"mkstemp": MakeFile;
    MKSTEMP64 = c"mkstemp64": MakeFile;
    OPENDIR = c"opendir": unsafe extern "C" fn(CText) -> DirStream;
    READDIR = c"readdir": ReadDir;
    READDIR64 = c"readdir64": ReadDir;
    READDIR_R = c"readdir_r": ReadDirInto;
    READDIR64_R = c"readdir64_r": ReadDirInto;
    REWINDDIR = c"rewinddir": unsafe extern "C" fn(DirStream);
    SEEKDIR = c"seekdir": unsafe extern "C" fn(DirStream, c_long);
    TELLDIR = c"telldir": unsafe extern "C" fn(DirStream) -> c_long;
    DIRFD = c"dirfd": unsafe extern "C" fn(DirStream) -> c_int;
    CLOSEDIR = c"closedir": unsafe extern "C" fn(DirStream) -> c_int;
    SYMLINK = c"symlink": TwoNames;
    SYMLINKAT = c"symlinkat": unsafe extern "C" fn(CText, c_int, CText) -> c_int;
    STAT = c"stat": Stat;
    STAT64 = c"stat64": Stat;
    LSTAT = c"lstat": Stat;
    LSTAT64 = c"lstat64": Stat;
    XSTAT = c"__xstat": OldStat;
    XSTAT64 = c"__xstat64": OldStat;
    LXSTAT = c"__lxstat": OldStat;
    LXSTAT64 = c"__lxstat64": OldStat;
    ACCESS = c"access": unsafe extern "C" fn(CText, c_int) -> c_int;
    FACCESSAT = c"faccessat": unsafe extern "C" fn(c_int, CText, c_int, c_int) -> c_int;
    FSTAT = c"fstat": StatFd;
    FSTAT64 = c"fstat64": StatFd;
    FXSTAT = c"__fxstat": OldStatFd;
    FXSTAT64 = c"__fxstat64": OldStatFd;
    FSTATAT = c"fstatat": StatAt;
    FSTATAT64 = c"fstatat64": StatAt;
    FXSTATAT = c"__fxstatat": OldStatAt;
    FXSTATAT64 = c"__fxstatat64": OldStatAt;
    STATX = c"statx": unsafe extern "C" fn(c_int, CText, c_int, c_uint, *mut libc::statx) -> c_int;
    FCHMOD = c"fchmod": unsafe extern "C" fn(c_int, libc::mode_t) -> c_int;
    FCHMODAT = c"fchmodat": unsafe extern "C" fn(c_int, CText, libc::mode_t, c_int) -> c_int;
    FCHOWN = c"fchown": unsafe extern "C" fn(c_int, libc::uid_t, libc::gid_t) -> c_int;
    FCHOWNAT = c"fchownat": unsafe extern "C" fn(c_int, CText, libc::uid_t, libc::gid_t, c_int) -> c_int;
    FUTIMENS = c"futimens": unsafe extern "C" fn(c_int, *const libc::timespec) -> c_int;
    FUTIMES = c"futimes": unsafe extern "C" fn(c_int, *const libc::timeval) -> c_int;
    FUTIMESAT = c"futimesat": unsafe extern "C" fn(c_int, CText, *const libc::timeval) -> c_int;
    UTIMENSAT = c"utimensat": unsafe extern "C" fn(c_int, CText, *const libc::timespec, c_int) -> c_int;
    FSETXATTR = c"fsetxattr": unsafe extern "C" fn(c_int, CText, *const c_void, usize, c_int) -> c_int;
    FREMOVEXATTR = c"fremovexattr": unsafe extern "C" fn(c_int, CText) -> c_int;
    FGETXATTR = c"fgetxattr": unsafe extern "C" fn(c_int, CText, *mut c_void, usize) -> isize;
    FLISTXATTR = c"flistxattr": unsafe extern "C" fn(c_int, *mut c_char, usize) -> isize;
    CHMOD = c"chmod": unsafe extern "C" fn(CText, libc::mode_t) -> c_int;
    CHOWN = c"chown": unsafe extern "C" fn(CText, libc::uid_t, libc::gid_t) -> c_int;
    LCHOWN = c"lchown": unsafe extern "C" fn(CText, libc::uid_t, libc::gid_t) -> c_int;
    UTIME = c"utime": unsafe extern "C" fn(CText, *const libc::utimbuf) -> c_int;
    UTIMES = c"utimes": unsafe extern "C" fn(CText, *const libc::timeval) -> c_int;
    LUTIMES = c"lutimes": unsafe extern "C" fn(CText, *const libc::timeval) -> c_int;
    SETXATTR = c"setxattr": unsafe extern "C" fn(CText, CText, *const c_void, usize, c_int) -> c_int;
    REMOVEXATTR = c"removexattr": TwoNames;
    FLOCK = c"flock": unsafe extern "C" fn(c_int, c_int) -> c_int;
    FCNTL = c"fcntl": Fcntl;
    FCNTL64 = c"fcntl64": Fcntl;
    FORK = c"fork": unsafe extern "C" fn() -> libc::pid_t;
    EXECVE = c"execve": ExecuteIn;
    WAIT = c"wait": unsafe extern "C" fn(*mut c_int) -> libc::pid_t;
    WAITPID = c"waitpid": unsafe extern "C" fn(libc::pid_t, *mut c_int, c_int) -> libc::pid_t;
    WAIT4 = c"wait4": Wait4;
    WAITID = c"waitid": WaitId;
}

// Functions that are looked up at their first call, which is rare: one more look-up costs each start of a program 900
// instructions. In a forked child the loader's lock is free, and during a `vfork` the parent's other threads go on.
next_later! {
    EXECVP = c"execvp": Execute;
    EXECVPE = c"execvpe": ExecuteIn;
    FEXECVE = c"fexecve": unsafe extern "C" fn(c_int, Texts, Texts) -> c_int;
    EXECVEAT = c"execveat": unsafe extern "C" fn(c_int, CText, Texts, Texts, c_int) -> c_int;
    EXECL = c"execl": ExecuteList;
    EXECLP = c"execlp": ExecuteList;
    EXECLE = c"execle": ExecuteList;
    WAIT3 = c"wait3": unsafe extern "C" fn(*mut c_int, c_int, *mut libc::rusage) -> libc::pid_t;
    EXECV = c"execv": Execute;
    POSIX_SPAWN = c"posix_spawn": Spawn;
    POSIX_SPAWNP = c"posix_spawnp": Spawn;
    SYSTEM = c"system": OneName;
    PCLOSE = c"pclose": unsafe extern "C" fn(*mut libc::FILE) -> c_int;
    MKOSTEMP = c"mkostemp": MakeFileWith;
    MKOSTEMP64 = c"mkostemp64": MakeFileWith;
    MKSTEMPS = c"mkstemps": MakeFileWith;
    MKSTEMPS64 = c"mkstemps64": MakeFileWith;
    MKOSTEMPS = c"mkostemps": MakeFileWithBoth;
    MKOSTEMPS64 = c"mkostemps64": MakeFileWithBoth;
    LOCKF = c"lockf": Lockf;
    LOCKF64 = c"lockf64": Lockf;
    CHROOT = c"chroot": OneName;
    UNSHARE = c"unshare": unsafe extern "C" fn(c_int) -> c_int;
    SETNS = c"setns": unsafe extern "C" fn(c_int, c_int) -> c_int;
}

pub(crate) fn set_errno(errno: c_int) {
    unsafe extern "C" {
        fn __errno_location() -> *mut c_int;
    }
    // SAFETY: libc gives the calling thread's own place.
    unsafe { *__errno_location() = errno };
}

/// Reads `errno`.
pub(crate) fn errno() -> c_int {
    unsafe extern "C" {
        fn __errno_location() -> *mut c_int;
    }
    // SAFETY: libc gives the calling thread's own place.
    unsafe { *__errno_location() }
}

/// Returns a value that the kernel gave the program at its start; 0 if there is none.
pub(crate) fn auxiliary(kind: libc::c_ulong) -> libc::c_ulong {
    unsafe extern "C" {
        fn getauxval(kind: libc::c_ulong) -> libc::c_ulong;
    }
    // SAFETY: takes a number.
    unsafe { getauxval(kind) }
}

/// Returns a raw call's result as libc does: -1 and `errno`.
pub(crate) fn as_libc(answer: Result<c_int, Errno>) -> c_int {
    answer.unwrap_or_else(|Errno(errno)| {
        set_errno(errno);
        -1
    })
}

/// Returns the result for a function that libc does not have; a program that calls it could not have been linked.
pub(crate) fn missing<T>(failure: T) -> T {
    set_errno(libc::ENOSYS);
    failure
}

/// Opens any name before the library has started.
pub(crate) fn raw_open(dirfd: c_int, path: CText, flags: c_int, mode: libc::mode_t) -> c_int {
    let arguments = [sys::word(dirfd), path as usize, sys::word(flags), mode as usize, 0, 0];
    // SAFETY: the program's own arguments, which the kernel checks.
    as_libc(unsafe { sys::call(libc::SYS_openat, arguments) }.map(|fd| fd as c_int))
}

/// Calls `fcntl` before the library has started.
pub(crate) fn raw_fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the program's own arguments, which the kernel checks.
    as_libc(unsafe { sys::call(libc::SYS_fcntl, [sys::word(fd), sys::word(command), argument, 0, 0, 0]) }.map(|answer| answer as c_int))
}

/// Calls `newfstatat` before the library has started.
pub(crate) fn raw_stat(dirfd: c_int, path: CText, out: *mut libc::stat, flags: c_int) -> c_int {
    let arguments = [sys::word(dirfd), path as usize, out as usize, sys::word(flags), 0, 0];
    // SAFETY: the program's own arguments, which the kernel checks.
    as_libc(unsafe { sys::call(libc::SYS_newfstatat, arguments) }.map(|_| 0))
}

/// Calls `fstat` before the library has started.
pub(crate) fn raw_stat_fd(fd: c_int, out: *mut libc::stat) -> c_int {
    // SAFETY: the program's own arguments, which the kernel checks.
    as_libc(unsafe { sys::call(libc::SYS_fstat, [sys::word(fd), out as usize, 0, 0, 0, 0]) }.map(|_| 0))
}

/// Calls `statx` before the library has started; `None` if the kernel has no such call, which libc then emulates.
pub(crate) fn raw_statx(dirfd: c_int, path: CText, flags: c_int, mask: c_uint, out: *mut libc::statx) -> Option<c_int> {
    let arguments = [sys::word(dirfd), path as usize, sys::word(flags), mask as usize, out as usize, 0];
    // SAFETY: the program's own arguments, which the kernel checks.
    known_call(unsafe { sys::call(libc::SYS_statx, arguments) })
}

/// Calls `faccessat` before the library has started; `None` as for [`raw_statx`].
pub(crate) fn raw_access(dirfd: c_int, path: CText, mode: c_int, flags: c_int) -> Option<c_int> {
    // The older call takes no flags.
    let number = if flags == 0 { libc::SYS_faccessat } else { libc::SYS_faccessat2 };
    let arguments = [sys::word(dirfd), path as usize, sys::word(mode), sys::word(flags), 0, 0];
    // SAFETY: the program's own arguments, which the kernel checks.
    known_call(unsafe { sys::call(number, arguments) })
}

fn known_call(answer: Result<usize, Errno>) -> Option<c_int> {
    match answer {
        Err(Errno(libc::ENOSYS)) => None,
        answer => Some(as_libc(answer.map(|_| 0))),
    }
}

/// Returns whether a function is libc's own, and not that of another preloaded library. It compares the addresses of
/// mapped objects: `dladdr` would go through all of libc's names, which takes three times as long as the rest of a
/// start.
fn is_of_libc(function: *mut c_void) -> bool {
    unsafe extern "C" {
        fn dl_iterate_phdr(
            look: unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int,
            function: *mut c_void,
        ) -> c_int;
        fn __errno_location() -> *mut c_int;
    }
    /// Ends the search at libc: returns 1 if the function is in it, 2 if it is not.
    unsafe extern "C" fn look(object: *mut libc::dl_phdr_info, _size: usize, function: *mut c_void) -> c_int {
        // SAFETY: the loader's own description of an object, for as long as this call lasts.
        let covers = unsafe {
            let base = (*object).dlpi_addr as usize;
            let headers = slice::from_raw_parts((*object).dlpi_phdr, usize::from((*object).dlpi_phnum));
            move |address: usize| {
                let mut loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
                loaded.any(|header| address.wrapping_sub(base.wrapping_add(header.p_vaddr as usize)) < header.p_memsz as usize)
            }
        };
        match (covers(__errno_location as *const () as usize), covers(function as usize)) {
            (true, true) => 1,
            (true, false) => 2,
            (false, _) => 0,
        }
    }
    // SAFETY: `look` keeps nothing.
    unsafe { dl_iterate_phdr(look, function) == 1 }
}

/// Returns the seconds since 1970, from the kernel.
pub(crate) fn unix_s() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let arguments = [sys::word(libc::CLOCK_REALTIME), &raw mut time as usize, 0, 0, 0, 0];
    // SAFETY: room for the answer.
    let _ = unsafe { sys::call(libc::SYS_clock_gettime, arguments) };
    time.tv_sec
}

/// Returns `CLOCK_BOOTTIME` in nanoseconds, through libc if possible, which needs no system call.
#[inline]
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    if let Some(clock_gettime) = CLOCK_GETTIME.known() {
        // SAFETY: room for the answer.
        unsafe { clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    } else {
        let arguments = [sys::word(libc::CLOCK_BOOTTIME), &raw mut time as usize, 0, 0, 0, 0];
        // SAFETY: room for the answer.
        let _ = unsafe { sys::call(libc::SYS_clock_gettime, arguments) };
    }
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
