"""A source whose files all have copies, and programs that run there.

What looks at the preload library has no need to wait for the agent.
"""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support import Place, Ran, Word

PROGRAMS = Path(__file__).with_name("programs")
FILES = 40

# What Python programs start with: `copy(path)` opens until it is a copy that answers, `is_copy(fd)` says whether one
# has.
PROBE = """
import os, sys, time
SOURCE, TIER = os.environ["COVERED_SOURCE"], os.environ["COVERED_TIER"]

def is_copy(fd):
    return os.readlink(f"/proc/self/fd/{fd}").startswith(TIER)

def copy(path, flags=os.O_RDONLY):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        fd = os.open(path, flags)
        if is_copy(fd):
            return fd
        # What is opened and not read is not copied.
        os.read(fd, 99)
        os.close(fd)
        time.sleep(0.01)
    sys.exit(f"{path}: no copy has answered")
"""

# Reads every file until all are answered by copies.
WARM = """
names = [f"f{number}" for number in range(int(sys.argv[1]))] + ["deep/file"]
for name in names:
    with open(name) as file:
        file.read()
for name in names:
    os.close(copy(name))
"""


@dataclass(frozen=True)
class CoveredSource:
    """Programs under `forebay run`, with a copy of each file of the source in the tier."""

    place: Place

    @property
    def source(self) -> Path:
        return self.place.source

    @property
    def tier(self) -> Path:
        return self.place.tier

    def run(
        self, *words: Word, check: bool = False, freshness: str = "immutable", keep: str | None = None, env: Mapping[str, str] | None = None
    ) -> Ran:
        """Runs a program in the source to its end."""
        own = {"COVERED_SOURCE": str(self.source), "COVERED_TIER": str(self.tier), **(env or {})}
        ran = self.place.run(*words, environment=own, cwd=self.source, check=check, freshness=freshness, keep=keep)
        assert ran.record, f"nothing ran: {ran.err!r}"
        return ran

    def python(self, script: str, *words: str, freshness: str = "immutable", keep: str | None = None) -> Ran:
        """Runs a Python program that must end well; the probe stands before it."""
        return self.run(sys.executable, "-E", "-c", PROBE + script, *words, check=True, freshness=freshness, keep=keep)

    def compile(self, name: str, *flags: str, compiler: str = "cc") -> Path:
        """Builds one of `programs/`."""
        program = self.place.root / "-".join([name, compiler, *flags]).replace("/", "_")
        if not program.exists():
            words: list[Word] = [compiler, "-O1", "-Wall", "-Werror", "-o", program, PROGRAMS / f"{name}.c", "-lpthread", *flags]
            subprocess.run(words, check=True)
        return program

    def program(self, name: str, *words: Word) -> Ran:
        """Builds and runs one of `programs/`, which must end well."""
        return self.run(self.compile(name), *words, check=True)

    def warm(self) -> None:
        """Has a copy made of each file; those that are younger than two seconds have none until they are older.

        The agent stays: later programs find all copies at once, and need not wait until one has taken them over.
        """
        self.python(WARM, str(FILES), keep="yes")


def grow(place: Place) -> None:
    """Makes the source's files, and the tier on another device than the source."""
    # The directory that others may not look into is in memory.
    place.tier = place.runtime / "tier"
    place.tier.mkdir()
    (place.source / "deep").mkdir()
    for number in range(FILES):
        (place.source / f"f{number}").write_text(f"file {number}\n")
    (place.source / "deep" / "file").write_text("deep\n")
    (place.source / "link").symlink_to("f1")
    (place.source / "way").symlink_to("deep")
