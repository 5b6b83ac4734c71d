"""F29: writes under a source go to the source, and all programs of the agent read them immediately."""

import sys
from pathlib import Path

import pytest

from tests import support
from tests.faults.harness import CORPUS, SMALL
from tests.support import Place, Word, Worker, read, warm

# What a program does to `a` and `b`, both of which have copies; `held` stays open.
WRITES = {
    "read_write": "with open(a, 'r+b') as file:\n    file.seek(100)\n    file.write(b'new')",
    "truncating": "with open(a, 'wb') as file:\n    file.write(b'new')",
    "appending": "with open(a, 'ab') as file:\n    file.write(b'new')",
    "by_descriptor": "fd = os.open(a, os.O_WRONLY | os.O_CREAT, 0o644)\nos.write(fd, b'new')\nos.close(fd)",
    "creat_truncates": "fd = os.open(a, os.O_CREAT | os.O_TRUNC | os.O_RDWR)\nos.close(fd)",
    "creating": "with open(a + '.new', 'xb') as file:\n    file.write(b'new')",
    "still_open": "held = open(a, 'r+b', buffering=0)\nheld.write(b'new')",
    "written_again_while_open": "held = open(a, 'r+b', buffering=0)\nheld.write(b'new')\nheld.seek(500)\nheld.write(b'newer')",
    "renamed_over": "os.rename(a, b)",
    "replaced_by_a_new_one": "with open(a + '.part', 'wb') as file:\n    file.write(b'new')\nos.replace(a + '.part', a)",
    "exchanged": "os.rename(a, a + '.old')\nos.rename(b, a)\nos.rename(a + '.old', b)",
    "removed": "os.unlink(a)",
    "removed_and_made_again": "os.unlink(a)\nwith open(a, 'wb') as file:\n    file.write(b'new')",
    "truncated_by_name": "os.truncate(a, 50)",
    "truncated_by_descriptor": "with open(a, 'r+b') as file:\n    file.truncate(50)",
    "linked_over": "os.unlink(b)\nos.link(a, b)",
    "symbolic_link_over": "os.unlink(b)\nos.symlink(a, b)",
    "written_through_a_link": "os.symlink(a, a + '.link')\nwith open(a + '.link', 'ab') as file:\n    file.write(b'new')",
    "written_through_another_name": "os.link(a, a + '.hard')\nwith open(a + '.hard', 'ab') as file:\n    file.write(b'new')",
    "written_by_a_child": "import subprocess, sys\nsubprocess.run(['sh', '-c', 'echo new >> \"$0\"', a], check=True)",
    "copied_over": "import shutil\nshutil.copyfile(a, b)",
    "written_relative": "os.chdir(os.path.dirname(a))\nwith open(os.path.basename(a), 'ab') as file:\n    file.write(b'new')",
    "written_by_directory": (
        "at = os.open(os.path.dirname(a), os.O_RDONLY)\nfd = os.open(os.path.basename(a), os.O_WRONLY | os.O_APPEND, dir_fd=at)\n"
        "os.write(fd, b'new')\nos.close(fd)\nos.close(at)"
    ),
}

READ_EACH = """
def content(path):
    try:
        with open(path, 'rb') as file:
            return file.read()
    except OSError as error:
        return error.errno
{name: content(os.path.join(directory, name)) for name in sorted(os.listdir(directory)) + ['absent', *asked]}
"""


def contents(worker: Worker, directory: Path) -> dict[str, bytes | int]:
    """Returns the bytes that the worker reads under all present and former names."""
    found: dict[str, bytes | int] = worker.do(READ_EACH, directory=str(directory), asked=list(CORPUS))
    return found


@pytest.mark.parametrize("freshness", ["immutable", "ttl=60", "on_open"])
def test_f29_what_is_written_is_read_at_once_and_everywhere(place: Place, freshness: str) -> None:
    plain: list[Word] = [sys.executable, "-E", support.WORKER]
    model = place.root / "model"
    cases = {kind: (place.source / kind, model / kind) for kind in WRITES}
    for here, there in cases.values():
        for directory in (here, there):
            directory.mkdir(parents=True)
            for name in SMALL[:3]:
                (directory / name).write_bytes(CORPUS[name])
    support.settle(place.source)
    with Worker.started(plain) as without, place.worker(freshness=freshness) as writer, place.worker(freshness=freshness) as other:
        warm(place, writer, *(here / name for here, _ in cases.values() for name in SMALL[:3]))
        for kind, (here, there) in cases.items():
            without.do(WRITES[kind], a=str(there / SMALL[0]), b=str(there / SMALL[1]))
            writer.do(WRITES[kind], a=str(here / SMALL[0]), b=str(here / SMALL[1]))
            expected = contents(without, there)
            assert contents(writer, here) == expected, kind
            assert contents(other, here) == expected, kind
        # And still so after a while: nothing that was changed comes back.
        place.idle()
        for kind, (here, there) in cases.items():
            assert contents(other, here) == contents(without, there), kind
        for worker in (without, writer):
            worker.do("os.chdir('/')")
    assert writer.ran
    assert writer.ran.counters["pass_writing"] >= 15
    assert writer.ran.counters["tombstones"] >= len(WRITES) - 2


def test_f29_a_directory_that_is_renamed_takes_its_names_along(place: Place) -> None:
    for name in ("one", "two"):
        (place.source / name).mkdir()
        (place.source / name / "file").write_bytes(name.encode() * 999)
    support.settle(place.source)
    one, two = place.source / "one", place.source / "two"
    with place.worker() as writer, place.worker() as other:
        warm(place, writer, one / "file", two / "file")
        writer.do("os.rename(one, swap); os.rename(two, one); os.rename(swap, two)", one=str(one), two=str(two), swap=str(one) + ".swap")
        for worker in (writer, other):
            assert read(worker, one / "file") == b"two" * 999
            assert read(worker, two / "file") == b"one" * 999


def test_f29_a_file_that_is_open_for_writing_is_not_published(place: Place) -> None:
    path = place.source / SMALL[0]
    with place.worker() as writer, place.worker() as other:
        # A new file: one that is changed in place is live, and has no copy for longer.
        writer.do("held = open(path, 'wb', buffering=0)\nheld.write(b'new')", path=str(path))
        support.settle(path)
        for _ in range(3):
            assert read(other, path)[:3] == b"new"
        assert place.idle(3)["not_copied"] == {"open_for_writing": 3}
        # Its timestamps are old, and yet what is written next must be seen.
        writer.do("held.write(b'newer')")
        assert read(other, path)[:8] == b"newnewer"
        writer.do("held.close()")
        support.settle(path)
        warm(place, other, path)
        assert read(writer, path) == path.read_bytes()
