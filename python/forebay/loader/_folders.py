"""Folders of samples, one a class."""

import os
from array import array
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from forebay.loader._at_once import at_once
from forebay.loader._paths import folders_below, is_object, objects_below, spelled

__all__ = ["IMAGES", "ClassFiles", "listed"]

IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Endings of files that are taken for images."""
LISTINGS_AT_ONCE = 16
"""Concurrent requests to an object store, which lists a thousand objects in each."""

# A folder's path, and name and mark of each of its files.
_Folder = tuple[str, list[tuple[str, int]]]


class ClassFiles:
    """Files, each with a class's number.

    Fourteen million of them as Python's strings would take gigabytes, in every worker process.
    """

    def __init__(self, samples: Iterable[tuple[str, int]] = ()) -> None:
        self._folders: list[str] = []
        self._numbers: dict[str, int] = {}
        # For each file: the numbers of its folder and its class, and the end of its name among all names.
        self._folder_of = array("I")
        self._class_of = array("q")
        self._ends = array("Q", [0])
        self._names = bytearray()
        # Empty as long as no file has one.
        self._marks = array("Q")
        for path, number in samples:
            self.add(path, number)

    def add(self, path: str, number: int, mark: int = 0) -> None:
        """Adds a file of a class, or an object in the version with that mark."""
        folder, slash, name = path.rpartition("/")
        folder += slash
        if folder not in self._numbers:
            self._numbers[folder] = len(self._folders)
            self._folders.append(folder)
        self._folder_of.append(self._numbers[folder])
        self._class_of.append(number)
        self._names += os.fsencode(name)
        self._ends.append(len(self._names))
        if mark or self._marks:
            self._marks.extend([0] * (len(self) - 1 - len(self._marks)))
            self._marks.append(mark)

    def __len__(self) -> int:
        return len(self._folder_of)

    def path(self, i: int) -> str:
        """Returns the path of a file; -1 is the last. Raises `IndexError` if there is no such file."""
        if not -len(self) <= i < len(self):
            raise IndexError(f"file {i}: there are {len(self)}")
        i %= len(self)
        return self._folders[self._folder_of[i]] + os.fsdecode(bytes(self._names[self._ends[i] : self._ends[i + 1]]))

    def mark(self, i: int) -> int:
        """Returns the mark of an object's version, 0 for a file; -1 is the last."""
        return self._marks[i] if self._marks else 0

    def number(self, i: int) -> int:
        """Returns the number of a file's class."""
        return self._class_of[i]

    def numbers(self) -> list[int]:
        """Returns the number of each file's class."""
        return self._class_of.tolist()


def listed(root: str | Path, endings: tuple[str, ...] = IMAGES) -> tuple[list[str], ClassFiles]:
    """Returns the classes below a directory, or an address of a store, and the files of each with the class's number.

    Classes are the directories in `root`, sorted by name; files those below them at any depth, links followed,
    directories and names sorted: the same samples by the same numbers as torchvision gives. The files themselves are
    not looked at. An address such as `s3://BUCKET/PREFIX` gives the same as a directory with a copy of its objects.

    Raises:
        FileNotFoundError: there is no class, or one has no file.
        OSError: a directory can't be read.
        LoaderError: an object can't be read by its name.
        ValueError: the address is not that of a prefix.
    """
    root = spelled(root)
    if is_object(root):
        root = root.rstrip("/")
        classes = folders_below(root)
    else:
        root = os.path.expanduser(root)  # noqa: PTH111  (paths are to stand there as they were given)
        with os.scandir(root) as entries:
            classes = sorted(entry.name for entry in entries if entry.is_dir())
    if not classes:
        raise FileNotFoundError(f"{root}: no class is here: each is a directory with its files")
    found = ClassFiles()
    empty = []
    tops = [os.path.join(root, name) for name in classes]  # noqa: PTH118
    for number, folders in enumerate(_all_folders(root, tops)):
        before = len(found)
        for folder, files in folders:
            for file, mark in sorted(files):
                if file.lower().endswith(endings):
                    found.add(os.path.join(folder, file), number, mark)  # noqa: PTH118
        if len(found) == before:
            empty.append(classes[number])
    if empty:
        raise FileNotFoundError(f"{root}: no file ends in {', '.join(endings)} in {', '.join(empty)}")
    return classes, found


def _all_folders(root: str, tops: list[str]) -> Iterable[list[_Folder]]:
    """Returns the folders below each class, sorted by path."""
    return at_once("forebay-list", LISTINGS_AT_ONCE, _folders_of_objects, tops) if is_object(root) else map(_folders, tops)


def _folders(top: str) -> list[_Folder]:
    """Returns the directories at and below `top`, with their files."""

    def refuse(error: OSError) -> None:
        # os.walk would leave the directory out, and an epoch would be short without a word.
        raise error

    walked = os.walk(top, onerror=refuse, followlinks=True)
    return sorted((folder, [(name, 0) for name in names]) for folder, _, names in walked)


def _folders_of_objects(top: str) -> list[_Folder]:
    """Returns the folders of the objects below a prefix, with their objects."""
    folders: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for path, mark in objects_below(top):
        folder, _, name = path.rpartition("/")
        folders[folder].append((name, mark))
    return sorted(folders.items())
