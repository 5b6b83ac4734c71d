"""Operations of the differential machine's two workers.

Executed in each; results are plain values, which must be equal.

A name is relative to the root of the worker's tree; a spelling says how the path is put to the kernel.
"""

import ctypes
import mmap
import os
import pickle
import random
import shutil
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

Result = tuple[str, Any]
# The descriptors that are kept open, with the version that each had.
held: dict[int, int] = {}
root = ""
libc = ctypes.CDLL(None, use_errno=True)
libc.fopen.restype = ctypes.c_void_p


def begin(tree: str) -> None:
    global root
    root = tree
    held.clear()


def spelled(name: str, spelling: str) -> tuple[str, int | None]:
    """A path and the directory descriptor that it is relative to."""
    if spelling == "absolute":
        return f"{root}/{name}", None
    if spelling == "dotted":
        return f"{root}/./d/..//{name}", None
    if spelling == "from the root":
        os.chdir(root)
        return name, None
    parent, _, last = f"{root}/{name}".rpartition("/")
    if spelling == "from its directory":
        os.chdir(parent)
        return f"./{last}", None
    return last, os.open(parent, os.O_RDONLY | os.O_DIRECTORY)


def data(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)  # noqa: S311


def looks(s: os.stat_result) -> tuple[Any, ...]:
    """Returns the facts that are equal in both trees: not the inode and its times."""
    return (stat.filemode(s.st_mode), s.st_nlink if not stat.S_ISDIR(s.st_mode) else 0, s.st_uid, s.st_gid, s.st_size)


def agrees(fd: int, by_name: os.stat_result) -> tuple[bool, bool]:
    """Returns True if a descriptor and a name agree in every field but the time of access."""
    by_fd = os.fstat(fd)
    fields = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_mtime_ns", "st_ctime_ns", "st_blocks", "st_blksize")
    return os.path.samestat(by_fd, by_name), all(getattr(by_fd, field) == getattr(by_name, field) for field in fields)


def read(name: str, spelling: str, how: str) -> object:
    path, dir_fd = spelled(name, spelling)
    if how == "fopen":
        if dir_fd is not None:
            path = f"/proc/self/fd/{dir_fd}/{path}"
        file = libc.fopen(path.encode(), b"rb")
        if not file:
            raise OSError(ctypes.get_errno(), path)
        into = ctypes.create_string_buffer(1 << 16)
        length = libc.fread(into, 1, len(into), ctypes.c_void_p(file))
        libc.fclose(ctypes.c_void_p(file))
        return into.raw[:length]
    fd = os.open(path, os.O_RDONLY | (os.O_NOFOLLOW if how == "nofollow" else 0), dir_fd=dir_fd)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return "no file"
        size = os.fstat(fd).st_size
        if how == "mmap":
            return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)[:] if size else b""
        if how == "pread":
            return os.pread(fd, 1 << 16, 0)
        if how == "stat":
            return looks(os.fstat(fd)), agrees(fd, os.stat(path, dir_fd=dir_fd))
        return b"".join(iter(lambda: os.read(fd, 5000), b""))
    finally:
        os.close(fd)
        if dir_fd is not None:
            os.close(dir_fd)


def read_all(names: list[str]) -> object:
    return [outcome(read, name, "absolute", "read") for name in names]


def look(name: str, spelling: str, follow: bool) -> object:
    path, dir_fd = spelled(name, spelling)
    found = os.stat(path, dir_fd=dir_fd, follow_symlinks=follow)
    return looks(found)


# newfstatat and faccessat, by number: no library stands between these and the kernel.
RAW = {"x86_64": (262, 269), "aarch64": (79, 48)}[os.uname().machine]


def names_agree(name: str, spelling: str, follow: bool) -> object:
    """Returns libc's facts of a name, and if the kernel agrees on the source in every field but the time of access."""
    path, dir_fd = spelled(name, spelling)
    at = -100 if dir_fd is None else dir_fd
    flags = 0 if follow else 0x100

    def called(function: Callable[..., int], *words: object) -> tuple[int, int]:
        answer = function(*words)
        return answer, ctypes.get_errno() if answer else 0

    def told(function: Callable[..., int], *words: object) -> tuple[tuple[int, int], bytes]:
        into = ctypes.create_string_buffer(144)
        return called(function, *words, into, flags), into.raw[:72] + into.raw[88:]

    by_name = told(libc.fstatat, at, path.encode())
    agree = [by_name == told(libc.syscall, RAW[0], at, path.encode())]
    may = [called(libc.faccessat, at, path.encode(), mode, 0) for mode in range(5)]
    agree += [may == [called(libc.syscall, RAW[1], at, path.encode(), mode) for mode in range(5)]]
    if dir_fd is not None:
        os.close(dir_fd)
    # The attributes themselves differ between two trees; `look` compares those that do not.
    return by_name[0], may, agree


# openat and getdents64, likewise.
RAW_LISTING = {"x86_64": (257, 217), "aarch64": (56, 61)}[os.uname().machine]


def listing(name: str, spelling: str) -> object:
    """Names and kinds as libc lists them, and whether the kernel lists the same of the source.

    Names, inodes and kinds, in this order.
    """
    path, dir_fd = spelled(name, spelling)
    if dir_fd is not None:
        path = f"/proc/self/fd/{dir_fd}/{path}"
    try:
        with os.scandir(path) as entries:
            listed = [(entry.name.encode(), entry.inode(), kind_of(entry)) for entry in entries]
        return sorted((name, kind) for name, _, kind in listed), listed == raw_listing(path.encode())
    finally:
        if dir_fd is not None:
            os.close(dir_fd)


def kind_of(entry: "os.DirEntry[str]") -> int:
    known = {10: entry.is_symlink(), 4: entry.is_dir(follow_symlinks=False), 8: entry.is_file(follow_symlinks=False)}
    return next((kind for kind, is_it in known.items() if is_it), 0)


def raw_listing(path: bytes) -> list[tuple[bytes, int, int]]:
    fd = libc.syscall(RAW_LISTING[0], -100, path, os.O_RDONLY | os.O_DIRECTORY, 0)
    if fd < 0:
        raise OSError(ctypes.get_errno(), path)
    found, into = [], ctypes.create_string_buffer(1 << 16)
    while (filled := libc.syscall(RAW_LISTING[1], fd, into, len(into))) > 0:
        at = 0
        while at < filled:
            inode, _, length, kind = struct.unpack_from("=QqHB", into.raw, at)
            entry = into.raw[at + 19 : at + length].partition(b"\0")[0]
            found.append((entry, inode, kind if kind in (4, 8, 10) else 0))
            at += length
    os.close(fd)
    return [entry for entry in found if entry[0] not in (b".", b"..")]


MODES = {
    "truncate": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "append": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "update": os.O_RDWR,
    "new": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
}


def write(name: str, spelling: str, how: str, seed: int, size: int) -> object:
    path, dir_fd = spelled(name, spelling)
    if how == "fopen":
        file = libc.fopen(path.encode(), b"r+")
        if not file:
            raise OSError(ctypes.get_errno(), path)
        libc.fwrite(data(seed, size), 1, size, ctypes.c_void_p(file))
        return libc.fclose(ctypes.c_void_p(file))
    if how == "mmap":
        with Path(path).open("r+b") as opened:
            if not os.fstat(opened.fileno()).st_size:
                return "empty"
            with mmap.mmap(opened.fileno(), 0) as mapped:
                mapped[0] = seed % 256
            return "mapped"
    fd = os.open(path, MODES[how], 0o644, dir_fd=dir_fd)
    try:
        return os.write(fd, data(seed, size))
    finally:
        os.close(fd)


def change(how: str, name: str, spelling: str, number: int) -> object:
    path, dir_fd = spelled(name, spelling)
    if how == "unlink":
        os.unlink(path, dir_fd=dir_fd)
    elif how == "rmdir":
        os.rmdir(path, dir_fd=dir_fd)
    elif how == "mkdir":
        os.mkdir(path, dir_fd=dir_fd)
    elif how == "chmod":
        os.chmod(path, number, dir_fd=dir_fd)
    elif how == "utime":
        os.utime(path, ns=(number * 10**9, number * 10**9 + 7), dir_fd=dir_fd)
    elif how == "truncate":
        os.truncate(path, number)
    else:
        fd = os.open(path, os.O_RDONLY, dir_fd=dir_fd)
        try:
            if how == "fchmod":
                os.fchmod(fd, number)
            else:
                os.utime(fd, ns=(number * 10**9, number * 10**9 + 7))
        finally:
            os.close(fd)
    return None


def change_two(how: str, one: str, other: str, spelling: str) -> object:
    path, dir_fd = spelled(one, spelling)
    to = f"{root}/{other}"
    if how == "rename":
        os.rename(path, to, src_dir_fd=dir_fd)
    elif how == "replace":
        os.replace(to, path, dst_dir_fd=dir_fd)
    elif how == "link":
        os.link(path, to, src_dir_fd=dir_fd)
    elif how == "symlink":
        Path(to).symlink_to(os.path.relpath(f"{root}/{one}", Path(to).parent))
    elif how == "exchange":
        if libc.renameat2(-100 if dir_fd is None else dir_fd, path.encode(), -100, to.encode(), 2):
            raise OSError(ctypes.get_errno(), path)
    else:
        shutil.copyfile(f"{root}/{one}", to)
    return None


def hold(name: str, key: int) -> object:
    held[key] = os.open(f"{root}/{name}", os.O_RDONLY)
    return stat.S_ISREG(os.fstat(held[key]).st_mode)


def read_held(key: int) -> object:
    return os.pread(held[key], 1 << 16, 0)


def tree() -> object:
    """Every name, what it is and what it holds."""
    found = {}
    for directory, directories, files in os.walk(root):
        for name in directories + files:
            path = f"{directory}/{name}"
            s = os.lstat(path)
            holds = str(Path(path).readlink()) if stat.S_ISLNK(s.st_mode) else Path(path).read_bytes() if stat.S_ISREG(s.st_mode) else None
            found[path[len(root) :]] = (looks(s), holds)
    return found


def outcome(function: Callable[..., object], *arguments: object) -> Result:
    try:
        return "value", function(*arguments)
    except OSError as error:
        return "errno", error.errno
    except ValueError as error:
        return "refused", str(error)


def do(function: str, *arguments: object) -> Result:
    return outcome(globals()[function], *arguments)


def do_as_another(function: str, *arguments: object) -> Result:
    """In a forked child that is another user."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        with os.fdopen(w, "wb") as out:
            pickle.dump(do(function, *arguments), out)
        os._exit(0)
    os.close(w)
    with os.fdopen(r, "rb") as answer:
        result: Result = pickle.load(answer)  # noqa: S301
    os.waitpid(pid, 0)
    return result
