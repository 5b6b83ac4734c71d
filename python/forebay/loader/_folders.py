"""Folders of samples, one a class."""

import os
from array import array
from collections.abc import Iterable
from pathlib import Path

__all__ = ["IMAGES", "Listing", "listed"]

IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Endings of files that are taken for images."""


class Listing:
    """Files, each with a class's number. Fourteen million of them as Python's strings would take gigabytes, in every worker process."""

    def __init__(self, samples: Iterable[tuple[str, int]] = ()) -> None:
        self._folders: list[str] = []
        self._numbers: dict[str, int] = {}
        # Of each file: its folder's number, its class's, and where its name ends among all names.
        self._folder_of = array("I")
        self._class_of = array("q")
        self._ends = array("Q", [0])
        self._names = bytearray()
        for path, number in samples:
            self.add(path, number)

    def add(self, path: str, number: int) -> None:
        """One more file, of a class."""
        folder, slash, name = path.rpartition("/")
        folder += slash
        if folder not in self._numbers:
            self._numbers[folder] = len(self._folders)
            self._folders.append(folder)
        self._folder_of.append(self._numbers[folder])
        self._class_of.append(number)
        self._names += os.fsencode(name)
        self._ends.append(len(self._names))

    def __len__(self) -> int:
        return len(self._folder_of)

    def path(self, i: int) -> str:
        """Of a file; -1 is the last.

        Raises:
            IndexError: there is no such file.
        """
        if not -len(self) <= i < len(self):
            raise IndexError(f"file {i}: there are {len(self)}")
        i %= len(self)
        return self._folders[self._folder_of[i]] + os.fsdecode(bytes(self._names[self._ends[i] : self._ends[i + 1]]))

    def number(self, i: int) -> int:
        """Of a file's class."""
        return self._class_of[i]

    def numbers(self) -> list[int]:
        """Of all files' classes."""
        return self._class_of.tolist()


def listed(root: str | Path, endings: tuple[str, ...] = IMAGES) -> tuple[list[str], Listing]:
    """The classes below a directory, and the files of each with the class's number.

    Classes are the directories in `root`, sorted by name; files those below them at any depth, links followed, directories and names
    sorted: the same samples by the same numbers as torchvision gives. Nothing is asked about the files themselves.

    Args:
        root: the directory.
        endings: of the files that count, in lower case.

    Raises:
        FileNotFoundError: there is no class, or one has no file.
        OSError: a directory can't be read.
    """
    root = os.path.expanduser(root)  # noqa: PTH111  (paths are to stand there as they were given)
    with os.scandir(root) as entries:
        classes = sorted(entry.name for entry in entries if entry.is_dir())
    if not classes:
        raise FileNotFoundError(f"{root}: no class is here: each is a directory with its files")
    found = Listing()
    empty = []
    for number, name in enumerate(classes):
        before = len(found)
        for folder, names in _folders(os.path.join(root, name)):  # noqa: PTH118
            for file in sorted(names):
                if file.lower().endswith(endings):
                    found.add(os.path.join(folder, file), number)  # noqa: PTH118
        if len(found) == before:
            empty.append(name)
    if empty:
        raise FileNotFoundError(f"{root}: no file ends in {', '.join(endings)} in {', '.join(empty)}")
    return classes, found


def _folders(top: str) -> list[tuple[str, list[str]]]:
    """Directories with the names of their files, sorted by path."""

    def refuse(error: OSError) -> None:
        # os.walk would leave the directory out, and an epoch would be short without a word.
        raise error

    return sorted((folder, names) for folder, _, names in os.walk(top, onerror=refuse, followlinks=True))
