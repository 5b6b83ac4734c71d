"""Files, and objects of stores (`s3://`, `gs://`, `az://`): the loader opens every path here."""

import io
import os
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from forebay import _core
from forebay.loader._errors import LoaderError

__all__ = [
    "PathStat",
    "Seekable",
    "StoreConnections",
    "end_look_ups",
    "folders_below",
    "is_object",
    "look_up",
    "objects_below",
    "read_whole",
    "spelled",
    "store_variables",
    "stores",
]

SCHEMES = ("s3://", "gs://", "az://")
LOOK_BYTES = 1 << 20
"""Bytes of one request for an object that is looked through."""


@dataclass(frozen=True)
class PathStat:
    """A file or an object that was looked up.

    Attributes:
        path: the path as given.
        size: length in bytes.
        mark: number that stands for the version of an object; 0 for a file.
        mtime_ns: time of the last change of a file; 0 for an object.
    """

    path: str
    size: int
    mark: int
    mtime_ns: int

    def open(self) -> BinaryIO:
        """Opens it for reading, an object in this version (`OSError` with `ESTALE` if it has another by now)."""
        if not is_object(self.path):
            return open(self.path, "rb")  # noqa: PTH123  (paths are strings here)
        return cast("BinaryIO", io.BufferedReader(_Object(self), LOOK_BYTES))

    def head(self, length: int) -> bytes:
        """Returns the first bytes, fewer if there are not as many. Raises as `open`."""
        length = min(length, self.size)
        if is_object(self.path):
            return stores().open(self.path, 0, length, self.mark).read() if length else b""
        with self.open() as file:
            return file.read(length)


def is_object(path: str | os.PathLike[str]) -> bool:
    """Returns true for the address of an object, or of a prefix, of a store."""
    return os.fspath(path).startswith(SCHEMES)


def spelled(path: str | Path) -> str:
    """Returns a user's path as text; raises `ValueError` for an address that pathlib has changed."""
    text = os.fspath(path)
    scheme, _, rest = text.partition(":/")
    if f"{scheme}://" in SCHEMES and not is_object(text):
        raise ValueError(f"{text!r}: a pathlib.Path takes a slash out of an address; give it as text, '{scheme}://{rest.lstrip('/')}'")
    return text


def look_up(path: str) -> PathStat:
    """Looks up a file or an object.

    Raises:
        OSError: there is none, or it can't be looked up.
        ValueError: it is something else, such as a directory.
    """
    if is_object(path):
        size, mark = stores().version(path)
        return PathStat(path, size, mark, 0)
    found = os.stat(path)  # noqa: PTH116
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path} is not a regular file: give the path of one")
    return PathStat(path, found.st_size, 0, found.st_mtime_ns)


def read_whole(path: str, mark: int) -> bytes:
    """Returns all bytes of a file, or of an object in the version with this mark (0: in the current one)."""
    return stores().open(path, 0, None, mark).read() if is_object(path) else Path(path).read_bytes()


def folders_below(prefix: str) -> list[str]:
    """Returns the sorted names of the folders directly below a prefix: those with objects below them.

    Raises:
        OSError: they can't be listed.
        LoaderError: one can't be read by its name.
        ValueError: it is not a prefix.
    """
    names = sorted(stores().folders(prefix))
    for name in names:
        _check_readable(f"{prefix}/{name}", name)
    return names


def objects_below(prefix: str) -> list[tuple[str, int]]:
    """Returns path and mark of each object below a prefix, in no particular order, without directory markers.

    Raises:
        OSError: they can't be listed.
        LoaderError: one can't be read by its name.
        ValueError: it is not a prefix, or nothing is below it.
    """
    bucket = "/".join(prefix.split("/", 3)[:3])
    found = []
    for key, _, mark in stores().list(prefix):
        if key.endswith("/"):
            continue
        path = f"{bucket}/{key}"
        _check_readable(path, key)
        found.append((path, mark))
    return found


def _check_readable(path: str, key: str) -> None:
    # A client of HTTP goes up from '..', and takes '.' out.
    if not {"", ".", ".."}.isdisjoint(key.split("/")):
        raise LoaderError(f"{path} can't be read by its key, which has an empty name, '.' or '..' in it: give its objects other ones")


def store_variables() -> dict[str, str]:
    """Returns the environment variables that lead to stores. Some of them are secret: never write them anywhere."""
    return {name: _from_here(name, value) for name in _core.store_variables() if (value := os.environ.get(name))}


def _from_here(name: str, value: str) -> str:
    """Returns a variable's value as a process in another directory can use it."""
    if name.endswith(("_FILE", "_BUNDLE")) or name in ("CLOUDSDK_CONFIG", "GOOGLE_APPLICATION_CREDENTIALS"):
        return os.path.abspath(value)  # noqa: PTH100  (links are to be followed when it is read)
    if name.endswith("_DIR"):
        return ":".join(map(os.path.abspath, value.split(":")))
    return value


class StoreConnections:
    """Connections to stores, made again in a process that was forked, and when the environment has changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: tuple[int, dict[str, str]] | None = None
        self._stores: _core.ObjectStores | None = None
        self._closed = False

    def get(self) -> _core.ObjectStores:
        """Returns the connections, for immediate use: the next call may return others, as after Ctrl-C.

        Raises `LoaderError` once they are closed.
        """
        # Connections that a process was forked with are its parent's.
        of = (os.getpid(), store_variables())
        with self._lock:
            if self._closed:
                raise LoaderError("the source is closed")
            if self._stores is None or self._of != of or self._stores.is_ended:
                self._of, self._stores = of, _core.ObjectStores(of[1])
            return self._stores

    def end(self, *, close: bool = False) -> None:
        """Ends all requests under way, which fail immediately; with `close` later ones fail, too."""
        with self._lock:
            self._closed = self._closed or close
            ended, self._stores = self._stores, None
            # A forked process must not end them: their sockets are the parent's.
            is_ours = self._of is not None and self._of[0] == os.getpid()
        if ended is not None and is_ours:
            ended.end()

    def forked(self) -> None:
        """Prepares a process that was just forked: another thread of its parent's may have had the lock."""
        self._lock = threading.Lock()


_look_ups = StoreConnections()
os.register_at_fork(after_in_child=_look_ups.forked)


def stores() -> _core.ObjectStores:
    """Returns the connections by which datasets are looked up. Sources of samples have connections of their own."""
    return _look_ups.get()


def end_look_ups() -> None:
    """Ends all requests under way on the connections of `stores`; later requests do not fail."""
    _look_ups.end()


class Seekable(io.RawIOBase):
    """Bytes as a file that is open for reading, up to `end`; a derived class has `readinto`."""

    def __init__(self, end: int) -> None:
        self._end = end
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._end}[whence]
        if at < 0:
            raise OSError(22, "the position lies before the file's beginning")
        self._at = at
        return at


class _Object(Seekable):
    """An object, as a file that is open for reading."""

    def __init__(self, found: PathStat) -> None:
        super().__init__(found.size)
        self._found = found

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401  (writable memory)
        length = min(len(buffer), max(0, self._end - self._at))
        if length == 0:
            return 0
        buffer[:length] = stores().open(self._found.path, self._at, length, self._found.mark).read()
        self._at += length
        return length
