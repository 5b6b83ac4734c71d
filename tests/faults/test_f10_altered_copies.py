"""F10: bytes that rot or are altered, in a copy and in the catalogue. They are never served; what is whole still is."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.harness import CORPUS, SMALL, another_boot, disk, fill, needs_root, read_all, worker_with
from tests.support import Place, is_copy, mounted, read, wait_until, warm

pytestmark = needs_root


def flip(path: Path, at: int) -> None:
    """Flips the bits of one byte."""
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 0xFF]))


def test_f10_bits_that_rot_on_the_disk_are_found_after_a_reboot(place: Place) -> None:
    with disk(place):
        fill(place, *SMALL)
        copies = len(place.objects())
    image = place.root / "disk"
    at = image.read_bytes().index(CORPUS[SMALL[3]])
    flip(image, at + 12_345)
    with mounted(place.tier, "-o", "loop", str(image)):
        assert any(copy.read_bytes() not in CORPUS.values() for copy in place.objects())
        with worker_with(place, [f"{place.tier}={place.tier_size}"], before=another_boot(place)) as worker:
            assert place.idle()["adopted"] == copies - 1
            assert all(copy.read_bytes() in CORPUS.values() for copy in place.objects())
            for name in SMALL:
                # The list of what this command has read may have brought the altered one back by now.
                assert name == SMALL[3] or is_copy(worker, place.source / name)
                assert read(worker, place.source / name) == CORPUS[name]


def test_f10_copies_of_an_earlier_boot_serve_once_they_are_checked(place: Place) -> None:
    fill(place, *SMALL)
    with worker_with(place, [f"{place.tier}={place.tier_size}"], before=another_boot(place)) as worker:
        assert place.idle()["adopted"] == len(SMALL)
        for name in SMALL:
            assert is_copy(worker, place.source / name)
            assert read(worker, place.source / name) == CORPUS[name]


@pytest.mark.parametrize("while_served", [True, False])
def test_f10_a_copy_that_is_altered_in_place(place: Place, while_served: bool) -> None:
    name = SMALL[0]
    path = place.source / name
    with place.worker() as worker:
        warm(place, worker, path)
        (copy,) = place.objects()
        if not while_served:
            worker.end()
            place.stop()
        times = copy.stat()
        flip(copy, 777)
        os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns))
        if while_served:
            assert read(worker, path) == CORPUS[name]
            # By now another copy may have taken its place.
            link = worker.do("with open(path, 'rb') as file: link = os.readlink(f'/proc/self/fd/{file.fileno()}')\nlink", path=str(path))
            assert link != str(copy)
            warm(place, worker, path)
            assert read(worker, path) == CORPUS[name]
        else:
            read_all(place, name, rounds=2)
            # By itself: it ends what was read first.
            wait_until(lambda: not place.agents(), "the end of the agent")
    assert [copy.read_bytes() for copy in place.objects()] == [CORPUS[name]]


def _truncate(upto: float) -> Callable[[Path], None]:
    return lambda catalogue: os.truncate(catalogue, int(catalogue.stat().st_size * upto))


def _flip(part: float) -> Callable[[Path], None]:
    return lambda catalogue: flip(catalogue, int((catalogue.stat().st_size - 1) * part))


def _append(what: bytes) -> Callable[[Path], None]:
    def append(catalogue: Path) -> None:
        with catalogue.open("ab") as file:
            file.write(what)

    return append


def _fill(catalogue: Path) -> None:
    catalogue.write_bytes(os.urandom(catalogue.stat().st_size))


DAMAGES: dict[str, tuple[Callable[[Path], None], int, int]] = {
    # How it is damaged, and the fewest and the most copies that may then still be known.
    "cut_to_nothing": (_truncate(0), 0, 0),
    "cut_in_the_header": (_truncate(0.004), 0, 0),
    "cut_in_the_middle": (_truncate(0.5), 1, len(SMALL) - 1),
    "cut_before_the_end": (_truncate(0.99), len(SMALL) - 2, len(SMALL)),
    "flipped_in_the_magic": (_flip(0), 0, 0),
    "flipped_in_the_middle": (_flip(0.5), 1, len(SMALL) - 1),
    "flipped_at_the_end": (_flip(1), len(SMALL) - 2, len(SMALL)),
    "with_a_torn_end": (_append(b"\x40\x00\x00\x00torn"), len(SMALL), len(SMALL)),
    "with_a_large_length": (_append(b"\xff" * 64), len(SMALL), len(SMALL)),
    "of_random_bytes": (_fill, 0, 0),
    "gone": (Path.unlink, 0, 0),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_f10_a_damaged_catalogue(place: Place, damage: str) -> None:
    fill(place, *SMALL)
    harm, fewest, most = DAMAGES[damage]
    (catalogue,) = place.tier.glob("forebay-*/catalogue")
    written = place.objects()
    harm(catalogue)
    with place.worker() as worker:
        adopted = place.idle()["adopted"]
        assert fewest <= adopted <= most
        # Files that no record leads to are gone. Others may lie there already: the list of what this command has read
        # brings them.
        wait_until(lambda: len(set(written) & set(place.objects())) == adopted, "the end of removing")
        for name in SMALL:
            assert read(worker, place.source / name) == CORPUS[name]
        warm(place, worker, *(place.source / name for name in SMALL))
        assert len(place.objects()) == len(SMALL)
    place.stop()
    with place.worker() as worker:
        assert place.idle()["adopted"] == len(SMALL)
        assert [read(worker, place.source / name) for name in SMALL] == [CORPUS[name] for name in SMALL]
