"""`--prefetch idle`: the agent copies files that no program has opened yet while the source is idle."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from testbed.testbed import SlowFs, have_fuse, slowfs
from tests import support
from tests.cli.conftest import Desk
from tests.cli.test_metrics import exposed, families, value

pytestmark = pytest.mark.skipif(have_fuse() is not None, reason=have_fuse() or "")

FILES, FIRST, SIZE = 100, 60, 10_000
# Reads some files of `a`, and all of them once it is told to.
READER = f"""
import sys
from pathlib import Path
files = sorted(Path("net/a").iterdir())
for path in files[:{FIRST}]:
    path.read_bytes()
print("read", flush=True)
sys.stdin.readline()
for path in files:
    assert path.read_bytes() == path.name.encode() * {SIZE // 2}
"""


@pytest.fixture
def net(desk: Desk) -> Iterator[SlowFs]:
    """A shared file system at `net`, with two directories."""
    for directory in ("a", "b", "net"):
        (desk.root / "net" if directory == "net" else desk.source / directory).mkdir()
    for number in range(FILES):
        for directory in ("a", "b"):
            (desk.source / directory / f"{number:02}").write_bytes(f"{number:02}".encode() * (SIZE // 2))
    support.settle(desk.source)
    with slowfs(desk.source, desk.root / "net", mbps=0, open_ms=0, meta_us=0, read_us=0) as fs:
        fs.reset()
        yield fs


@contextmanager
def reading(desk: Desk, *options: str) -> Iterator[None]:
    """The reader, after the first files; when the block has ended it reads all of them."""
    words = [str(support.command()), "run", "--source", "net", "--tier", "tier=64M", "--freshness", "immutable", *options]
    pipe = subprocess.PIPE
    command = [*words, "--", sys.executable, "-c", READER]
    with subprocess.Popen(command, cwd=desk.root, env=desk.environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "read\n"
            yield
        finally:
            _, told = process.communicate("\n", timeout=support.PROGRAM_S)
        assert process.returncode == 0, told


def prefetched(desk: Desk) -> int:
    return int(value(families(exposed(desk)), "forebay_prefetched_files_total"))


def copied(desk: Desk) -> int:
    told = families(exposed(desk))
    return int(value(told, "forebay_copied_files_total") + value(told, "forebay_prefetched_files_total"))


def test_siblings_are_copied_before_they_are_opened_and_the_source_reads_nothing_twice(desk: Desk, net: SlowFs) -> None:
    with reading(desk, "--prefetch", "idle"):
        support.wait_until(lambda: copied(desk) == FILES, "copies of all files of the directory")
        # A program that loses its core for a second may be overtaken, or lose a handoff: then there are more.
        made = prefetched(desk)
        assert made >= FILES - FIRST
        top = desk.type("top", "--once", "-n", "0.1").stdout
        assert f"{made} made, {made * SIZE / 1024:.0f} KiB" in top, top
    record = desk.records()[-1]
    assert record["settings"]["prefetch"] == {"value": "idle", "origin": "--prefetch"}
    agent = record["agent"]
    assert (agent["files_copied"], agent["prefetched_files"], agent["prefetched_bytes"]) == (FILES - made, made, made * SIZE)
    assert agent["prefetched_in_vain_bytes"] <= 0.05 * FILES * SIZE
    # All of `a` was then read from the tier; nothing of `b` was copied, where no program had opened a file.
    assert record["tiers"][0]["opens"] >= FILES
    assert record["derived"]["from_source_opens"] <= FIRST
    assert agent["tiers"][0]["files"] == FILES
    assert net.stats()["bytes_read"] <= 1.05 * FILES * SIZE


def test_without_the_option_nothing_is(desk: Desk, net: SlowFs) -> None:
    with reading(desk):
        pass
    record = desk.records()[-1]
    assert record["agent"]["prefetched_files"] == 0
    assert net.stats()["bytes_read"] >= FILES * SIZE
    # The others were read from the source.
    assert record["derived"]["from_source_opens"] >= FILES


def test_the_agent_ends_with_its_run_though_there_is_more_to_copy(desk: Desk, net: SlowFs) -> None:
    with reading(desk, "--prefetch", "idle"):
        support.wait_until(lambda: prefetched(desk) >= 1, "a copy")
    support.wait_until(lambda: not list(desk.runtime.glob("*/control.sock")), "the agent's end")
    assert net.stats()["bytes_read"] <= 1.05 * FILES * SIZE
