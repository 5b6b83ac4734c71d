"""S5: a tier that somebody has tampered with, or that is another's.

Nothing in it is served; what is not ours is not kept.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import support
from tests.faults.harness import CORPUS, SMALL, fill, needs_root, read_adopted
from tests.support import NOBODY, Place, is_copy, read, warm

POISON = b"poison" * 10_000


def root_of(place: Place) -> Path:
    (root,) = place.tier.glob("forebay-*")
    return root


def all_is_served_right(place: Place, adopted: int | None = None) -> None:
    """Each byte is right whatever files the tier holds, and files without a record are removed."""
    with place.worker() as worker:
        status = place.idle()
        assert adopted is None or status["adopted"] == adopted
        for _ in range(2):
            for name in SMALL:
                assert read(worker, place.source / name) == CORPUS[name]
        warm(place, worker, *(place.source / name for name in SMALL))
        assert sorted(copy.read_bytes() for copy in place.objects()) == sorted(CORPUS[name] for name in SMALL)
    place.stop()


def exchange_copies(place: Place) -> None:
    """Each copy gets the bytes of another."""
    copies = place.objects()
    contents = [copy.read_bytes() for copy in copies]
    for copy, content in zip(copies, contents[1:] + contents[:1], strict=True):
        copy.chmod(0o600)
        copy.write_bytes(content)
        copy.chmod(0o400)


def exchange_names(place: Place) -> None:
    """Each copy gets the name of another."""
    copies = place.objects()
    for copy in copies:
        copy.rename(f"{copy}.other")
    for copy, other in zip(copies, copies[1:] + copies[:1], strict=True):
        Path(f"{copy}.other").rename(other)


def poison_copies(place: Place) -> None:
    """Each copy is replaced, its size and times kept."""
    for copy in place.objects():
        before = copy.stat()
        copy.unlink()
        copy.write_bytes(POISON[: before.st_size])
        copy.chmod(0o400)
        os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))


def link_copies(place: Place) -> None:
    """Each copy is replaced by a link to something else."""
    poison = place.root / "poison"
    poison.write_bytes(POISON)
    for number, copy in enumerate(place.objects()):
        copy.unlink()
        if number % 2:
            copy.symlink_to(poison)
        else:
            copy.hardlink_to(poison)


@pytest.mark.parametrize("tamper", [exchange_copies, exchange_names, poison_copies, link_copies])
def test_s05_copies_that_were_exchanged(place: Place, tamper: Callable[[Place], None]) -> None:
    fill(place, *SMALL)
    tamper(place)
    all_is_served_right(place)


def test_s05_a_copy_that_is_exchanged_while_it_is_served(place: Place) -> None:
    with place.worker() as worker:
        warm(place, worker, *(place.source / name for name in SMALL))
        poison_copies(place)
        for _ in range(2):
            for name in SMALL:
                assert read(worker, place.source / name) == CORPUS[name]
    assert worker.ran
    assert worker.ran.counters["pass_copy_gone"] >= len(SMALL)


def test_s05_a_tier_of_another_secret(place: Place) -> None:
    fill(place, *SMALL)
    # Whoever wrote this had not our secret.
    (place.root / "state/secret").unlink()
    all_is_served_right(place, adopted=0)


def test_s05_a_tier_that_was_brought_from_elsewhere(place: Place) -> None:
    # Somebody's copies of other files of the same names, as a whole.
    with support.place() as theirs:
        shutil.rmtree(theirs.source)
        theirs.source.symlink_to(theirs.root / "files")
        (theirs.root / "files").mkdir()
        for name in SMALL:
            (theirs.source / name).write_bytes(POISON[: len(CORPUS[name])])
        support.settle(theirs.root / "files")
        fill(theirs, *SMALL)
        shutil.copytree(root_of(theirs), place.tier / root_of(theirs).name)
        for path in (place.tier, *place.tier.rglob("*")):
            path.chmod(0o700 if path.is_dir() else 0o400 if "objects" in path.parts else 0o600)
    place.tier.chmod(0o755)
    all_is_served_right(place, adopted=0)


def test_s05_a_catalogue_from_another_root(place: Place) -> None:
    # An old state of this very tier, put back as a whole: its key is of the root's inode too.
    fill(place, *SMALL)
    root = root_of(place)
    old = place.root / "old"
    root.rename(old)
    shutil.copytree(old, root)
    root.chmod(0o700)
    all_is_served_right(place, adopted=0)


def test_s05_old_records_are_not_put_back(place: Place) -> None:
    fill(place, *SMALL)
    catalogue = root_of(place) / "catalogue"
    old = catalogue.read_bytes()
    # The next run replaces them all.
    for name in SMALL:
        path = place.source / name
        path.write_bytes(CORPUS[name])
    support.settle(place.source)
    place.freshness = "on_open"
    all_is_served_right(place)
    place.freshness = "immutable"
    catalogue.write_bytes(old)
    all_is_served_right(place, adopted=0)


@needs_root
def test_s05_a_root_of_another_owner_is_not_adopted(place: Place) -> None:
    fill(place, *SMALL)
    os.chown(root_of(place), NOBODY, NOBODY)
    done = place.run("true", check=False)
    assert done.status == 2
    assert b"belongs to user 65534" in done.err
    assert len(place.objects()) == len(SMALL)


def test_s05_files_that_are_not_ours_are_left_and_not_served(place: Place) -> None:
    fill(place, *SMALL)
    objects = root_of(place) / "objects"
    (objects / "zz").mkdir(mode=0o700)
    strangers = [objects / "notes.txt", objects / "zz/0123456789abcdef", objects / "00" / "README"]
    for stranger in strangers:
        stranger.parent.mkdir(mode=0o700, exist_ok=True)
        stranger.write_bytes(POISON)
    assert read_adopted(place, *SMALL, rounds=2).from_tier == 2 * len(SMALL)
    assert all(stranger.read_bytes() == POISON for stranger in strangers)
    with place.worker() as worker:
        place.idle()
        assert is_copy(worker, place.source / SMALL[0])
