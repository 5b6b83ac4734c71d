"""F16: file systems of many kinds hold a tier; one that lacks what a tier needs is named and refused, or passed over.

What is lacking is found by `crates/store/src/probe.rs`; crates/store/tests/probe.rs has a disk for each.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from tests import support
from tests.faults.harness import fill, needs_bindfs, needs_fuse, needs_root, read_adopted, tmpfs
from tests.support import ROOT, Place, in_a_file, mounted

pytestmark = [needs_root, needs_fuse, needs_bindfs]


@contextmanager
def ext4(at: Path, near: Path) -> Iterator[None]:
    with in_a_file(at, near / "image", 64 << 20, "mkfs.ext4", "-q"):
        yield


@contextmanager
def xfs(at: Path, near: Path) -> Iterator[None]:
    # Less than 300 MiB mkfs.xfs refuses. They are a hole, mostly.
    with in_a_file(at, near / "image", 320 << 20, "mkfs.xfs", "-q"):
        yield


@contextmanager
def memory(at: Path, near: Path) -> Iterator[None]:
    with tmpfs(at, "size=64m"):
        yield


@contextmanager
def overlay(at: Path, near: Path) -> Iterator[None]:
    layers = near / "layers"
    layers.mkdir()
    with tmpfs(layers, "size=64m"):
        for name in ("lower", "upper", "work"):
            (layers / name).mkdir()
        options = ",".join(f"{name}dir={layers / name}" for name in ("lower", "upper", "work"))
        with mounted(at, "-t", "overlay", "-o", options, "forebay-test"):
            yield


@contextmanager
def bound(at: Path, near: Path, *options: str) -> Iterator[None]:
    """By FUSE, one whose files are on this machine, to go by its name: a tier is never made on others."""
    below = near / "below"
    below.mkdir()
    subprocess.run(["bindfs", "-o", "subtype=mergerfs", *options, below, at], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", at], check=False, capture_output=True)


@contextmanager
def fuse(at: Path, near: Path) -> Iterator[None]:
    """It renames a file that is removed while it is open until it is closed, as NFS does."""
    with bound(at, near):
        yield


FileSystem = Callable[[Path, Path], AbstractContextManager[None]]

KINDS: dict[str, FileSystem] = {"ext4": ext4, "xfs": xfs, "tmpfs": memory, "overlay": overlay, "fuse": fuse}


def test_f16_the_stores_suite_passes_on_each(tmp_path: Path) -> None:
    directories = [tmp_path / kind for kind in KINDS]
    with ExitStack() as stack:
        for kind, at in zip(KINDS, directories, strict=True):
            near = tmp_path / f"near-{kind}"
            near.mkdir()
            at.mkdir()
            stack.enter_context(KINDS[kind](at, near))
        # For one package alone Cargo would compile all below it again, with fewer features.
        words = ["cargo", "test", "--locked", "--quiet", "--test", "conformance", "--", "f16"]
        environment = {**os.environ, "FOREBAY_TEST_DIRECTORIES": ":".join(map(str, directories))}
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


# Names that are no UTF-8 or as long as names may be, and a file that is a hole.
ODD = {b"\xff\xfe\x80.bin": b"no text", b"n" * 255: b"long", "ünïcode ☃\n".encode(): b"a line's end", b"hole": bytes(1 << 20)}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_f16_copies_are_made_kept_and_removed_on(place: Place, kind: FileSystem) -> None:
    names = [os.fsdecode(name) for name in ODD]
    for name, content in zip(names, ODD.values(), strict=True):
        path = place.source / name
        with path.open("wb") as file:
            file.truncate(len(content))
            if any(content):
                file.write(content)
    support.settle(place.source)
    with kind(place.tier, place.root):
        fill(place, *names)
        reading = read_adopted(place, *names, check=False)
        assert reading.from_tier == len(names)
        assert sorted(copy.read_bytes() for copy in place.objects()) == sorted(ODD.values())
        place.clean()
        assert {path.name for path in place.tier.iterdir()} <= {"lost+found"}


@pytest.mark.parametrize(
    ("lack", "options"),
    [
        ("its file system keeps no permissions", ["-p", "a+rX"]),
        ("its file system does not keep an open file once its name is removed", ["-o", "hard_remove"]),
    ],
    ids=["permissions", "unlinked"],
)
def test_f16_one_that_lacks_something_is_named_and_refused(place: Place, lack: str, options: list[str]) -> None:
    with bound(place.tier, place.root, *options):
        ran = place.run("touch", place.root / "ran", check=False)
        assert ran.status == 2
        assert f"{place.tier} can't hold copies: {lack}".encode() in ran.err
        assert not (place.root / "ran").exists()
        words = [str(place.command), "doctor", "--source", str(place.source)]
        told = subprocess.run([*words, "--tier", f"{place.tier}=1G"], env=place.environment(), capture_output=True, text=True, check=False)
        assert told.returncode == 2
        assert lack in told.stdout
        # Where nobody has named it, another is found, or none.
        environment = {**place.environment(), "SLURM_TMPDIR": str(place.tier)}
        done = subprocess.run([*words, "--json"], env=environment, capture_output=True, text=True, check=False)
        assert str(place.tier) not in [tier["dir"] for tier in json.loads(done.stdout)["tiers"]]
        assert done.returncode == 0
        assert list(place.tier.iterdir()) == []
