"""Comparable facts of a tree of files."""

import hashlib
import os
import stat
from pathlib import Path
from typing import NamedTuple


class FileFacts(NamedTuple):
    """A program's possible results on a file; times only if they were meant to be kept."""

    mode: str
    owner: tuple[int, int]
    links: int
    size: int
    mtime_ns: int | None
    holds: str
    attributes: tuple[tuple[str, bytes], ...]


def snapshot(root: Path, *, times: bool, leave_out: tuple[str, ...] = ()) -> dict[str, FileFacts]:
    found = {}
    for path in [root, *sorted(root.rglob("*"))] if root.is_dir() else [root]:
        name = str(path.relative_to(root))
        if name.split("/")[0] in leave_out:
            continue
        s = path.lstat()
        holds = str(path.readlink()) if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        names = [] if path.is_symlink() else sorted(os.listxattr(path))
        attributes = tuple((name, os.getxattr(path, name)) for name in names if name.startswith("user."))
        mtime = s.st_mtime_ns if times and not stat.S_ISDIR(s.st_mode) else None
        is_dir = stat.S_ISDIR(s.st_mode)
        found[name] = FileFacts(
            stat.filemode(s.st_mode),
            (s.st_uid, s.st_gid),
            0 if is_dir else s.st_nlink,
            0 if is_dir else s.st_size,
            mtime,
            holds,
            attributes,
        )
    return found
