"""`--prefetch auto`, `file` and `follow`: a large file is read ahead of the program that reads it first."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from testbed.testbed import SlowFs, have_fuse, slowfs
from tests import support
from tests.cli.conftest import Desk
from tests.cli.test_metrics import exposed, families, value

pytestmark = pytest.mark.skipif(have_fuse() is not None, reason=have_fuse() or "")

SIZE = 4 << 20
FILES = 4
# The kernel reads so much at a time, one more or less from run to run.
REQUEST = 128 << 10
EXTENSIONS = {"weights": "safetensors", "shards": "tar"}
# Reads files as it is told, piece by piece, in order or here and there. After each file it prints the CRC of all that
# it read, waits for a line, and closes the file.
READER = """
import json, mmap, os, sys, zlib
how, part, *paths = sys.argv[1:]
crc = 0
for path in paths:
    descriptor = os.open(path, os.O_RDONLY)
    size = os.fstat(descriptor).st_size
    step = 65536
    wanted = max(1, round(size // step * float(part)))
    apart = 1 if part == "1" or how == "read" else size // step // wanted
    mapped = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) if how == "mmap" else None
    for number in range(wanted):
        at = number * apart * step
        if mapped:
            data = mapped[at : at + step]
        elif how == "pread":
            data = os.pread(descriptor, step, at)
        else:
            data = os.read(descriptor, step)
        crc = zlib.crc32(data, crc)
    os.close(descriptor)
    print(crc, flush=True)
    sys.stdin.readline()
    if mapped:
        mapped.close()
    print("done with it", flush=True)
    sys.stdin.readline()
"""
# A mapped file that is not read any more is followed for half a minute. So long a test does not wait.
MAPPED_S = 2.0


def weights(path: Path, number: int, size: int = SIZE) -> None:
    """Writes a safetensors file of 16 tensors."""
    each = size // 16
    places = {f"layer.{n}": {"dtype": "U8", "shape": [each], "data_offsets": [n * each, (n + 1) * each]} for n in range(16)}
    header = json.dumps(places).encode()
    data = b"".join(bytes([number * 16 + n]) * each for n in range(16))
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


@pytest.fixture
def net(desk: Desk) -> Iterator[SlowFs]:
    """A slow file system at `net`: `weights` in a known format, `shards` in none."""
    for directory in ("weights", "shards"):
        (desk.source / directory).mkdir()
    (desk.root / "net").mkdir()
    for number in range(FILES):
        weights(desk.source / "weights" / f"{number}.safetensors", number)
        (desk.source / "shards" / f"{number}.tar").write_bytes(os.urandom(SIZE))
    support.settle(desk.source)
    with slowfs(desk.source, desk.root / "net", mbps=0, open_ms=0, meta_us=0, read_us=20_000, slots=16, attr_ttl_ms=60_000) as fs:
        fs.reset()
        yield fs


def total(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def words(how: str, part: float, directory: str, only: int) -> list[str]:
    """The reader's command line."""
    names = [f"net/{directory}/{number}.{EXTENSIONS[directory]}" for number in range(only)]
    return [sys.executable, "-c", READER, how, str(part), *names]


def read_alone(desk: Desk, how: str, part: float, directory: str, only: int = FILES) -> int:
    """Reads files of a directory without Forebay. Returns the CRC."""
    done = subprocess.run(words(how, part, directory, only), cwd=desk.root, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return int(done.stdout.split(b"\n")[-3])


def read(
    desk: Desk,
    how: str,
    part: float,
    directory: str,
    *options: str,
    tier: str = "tier=256M",
    only: int = FILES,
    before_next: Callable[[int], None] | None = None,
) -> tuple[int, dict[str, Any]]:
    """Reads files of a directory, each once the copies of those before it have ended.

    `before_next` is called with the number of files that were read. Returns the CRC, and what the agent counted.
    """
    (desk.root / tier.split("=", maxsplit=1)[0]).mkdir(exist_ok=True)
    named = ["run", "--source", "net", "--tier", tier, "--freshness", "immutable", *options]
    command, pipe = [str(support.command()), *named, "--", *words(how, part, directory, only)], subprocess.PIPE
    with subprocess.Popen(command, cwd=desk.root, env=desk.environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin
        assert process.stdout

        def go_on(to: IO[str] = process.stdin) -> None:
            to.write("\n")
            to.flush()

        for number in range(only):
            crc = process.stdout.readline()
            if how == "mmap" and part < 1:
                time.sleep(MAPPED_S)
            else:
                support.wait_until(lambda: in_flight(desk) == 0, "the end of the copies")
            go_on()
            assert process.stdout.readline() == "done with it\n"
            support.wait_until(lambda: in_flight(desk) == 0, "the end of the copies")
            if before_next:
                before_next(number + 1)
            go_on()
        _, told = process.communicate(timeout=support.PROGRAM_S)
        assert process.returncode == 0, told
    agent = desk.records()[-1]["agent"]
    assert ("read ahead:" in told) == (agent["read_ahead_files"] > 0), told
    return int(crc), agent


def in_flight(desk: Desk) -> int:
    return int(value(families(exposed(desk)), "forebay_copies_in_flight"))


def forget(net: SlowFs) -> None:
    """Empties the page cache of the source's files."""
    for path in net.mnt.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    net.reset()


def read_bytes(net: SlowFs) -> int:
    return net.stats()["bytes_read"]


@pytest.mark.parametrize("how", ["read", "pread", "mmap"])
def test_weights_are_read_ahead_once(desk: Desk, net: SlowFs, how: str) -> None:
    expected = read_alone(desk, how, 1, "weights")
    forget(net)
    crc, agent = read(desk, how, 1, "weights")
    assert crc == expected
    assert agent["read_ahead_files"] >= FILES - 1, agent
    assert agent["damaged_headers"] == 0
    assert read_bytes(net) <= 1.02 * total(desk.source / "weights")


@pytest.mark.parametrize("how", ["read", "pread", "mmap"])
def test_weights_that_no_tier_takes_are_read_ahead_into_the_page_cache(desk: Desk, net: SlowFs, how: str) -> None:
    expected = read_alone(desk, how, 1, "weights")
    forget(net)
    crc, agent = read(desk, how, 1, "weights", tier="small=2M")
    assert crc == expected
    assert agent["read_ahead_files"] >= FILES - 1, agent
    assert agent["files_copied"] == 0
    assert agent["not_copied"] == {"larger_than_every_tier": FILES}
    assert read_bytes(net) <= 1.02 * total(desk.source / "weights")


@pytest.mark.parametrize("how", ["read", "pread", "mmap"])
def test_a_twentieth_of_what_no_tier_takes_costs_no_more(desk: Desk, net: SlowFs, how: str) -> None:
    read_alone(desk, how, 0.05, "weights")
    alone = read_bytes(net)
    forget(net)
    _, agent = read(desk, how, 0.05, "weights", tier="small=2M")
    assert agent["read_ahead_files"] == 0, agent
    assert read_bytes(net) <= 1.05 * alone + (2 if how == "mmap" else 1) * REQUEST


def test_what_no_format_tells_is_learnt_from_two_files(desk: Desk, net: SlowFs) -> None:
    expected = read_alone(desk, "read", 1, "shards")
    forget(net)
    crc, agent = read(desk, "read", 1, "shards")
    assert crc == expected
    assert 1 <= agent["read_ahead_files"] <= FILES - 2, agent
    assert read_bytes(net) <= 1.02 * total(desk.source / "shards")


@pytest.mark.parametrize("directory", ["weights", "shards"])
def test_the_next_file_of_a_directory_is_read_before_it_is_opened(desk: Desk, net: SlowFs, directory: str) -> None:
    expected = read_alone(desk, "read", 1, directory)
    forget(net)

    def before_next(files: int) -> None:
        # The third file shows the order.
        if files == FILES - 1:
            support.wait_until(lambda: value(families(exposed(desk)), "forebay_prefetched_files_total") == 1, "the next file")

    crc, agent = read(desk, "read", 1, directory, before_next=before_next)
    assert crc == expected
    assert agent["prefetched_files"] == 1, agent
    assert desk.records()[-1]["tiers"][0]["opens"] == 1
    assert read_bytes(net) <= 1.02 * total(desk.source / directory)


def test_no_next_file_is_read_for_a_program_that_reads_parts(desk: Desk, net: SlowFs) -> None:
    read_alone(desk, "read", 0.05, "weights")
    alone = read_bytes(net)
    forget(net)
    _, agent = read(desk, "read", 0.05, "weights")
    assert agent["prefetched_files"] == 0, agent
    assert read_bytes(net) <= 1.05 * alone + REQUEST


@pytest.mark.parametrize("directory", ["weights", "shards"])
@pytest.mark.parametrize("how", ["read", "pread", "mmap"])
def test_a_program_that_reads_a_twentieth_costs_no_more(desk: Desk, net: SlowFs, how: str, directory: str) -> None:
    """Another program has read files of the directory whole before."""
    expected = read_alone(desk, how, 0.05, directory)
    alone = read_bytes(net)
    forget(net)
    read(desk, how, 1, directory, tier="other=256M", only=2)
    support.wait_until(lambda: not list(desk.runtime.glob("*/control.sock")), "the agent's end")
    forget(net)
    crc, agent = read(desk, how, 0.05, directory, "--prefetch", "auto")
    assert crc == expected
    assert agent["read_ahead_files"] == 0, agent
    # Around the faults of a mapped file the kernel reads a request more or less from run to run.
    assert read_bytes(net) <= 1.05 * alone + (2 if how == "mmap" else 1) * REQUEST


def test_file_reads_whole_files_though_their_reader_stops(desk: Desk, net: SlowFs) -> None:
    _, agent = read(desk, "read", 0.5, "shards", "--prefetch", "file", only=2)
    assert agent["read_ahead_files"] >= 1, agent
    assert read_bytes(net) <= 1.02 * 2 * SIZE
    assert desk.records()[-1]["settings"]["prefetch"] == {"value": "file", "origin": "--prefetch"}


def test_auto_stops_where_its_reader_stops(desk: Desk, net: SlowFs) -> None:
    read_alone(desk, "read", 0.5, "shards")
    alone = read_bytes(net)
    forget(net)
    _, agent = read(desk, "read", 0.5, "shards")
    assert agent["read_ahead_files"] == 0, agent
    assert read_bytes(net) <= 1.05 * alone + REQUEST


@pytest.mark.parametrize("mode", ["follow", "off", "idle"])
def test_nothing_is_read_ahead_where_that_is_asked_for(desk: Desk, net: SlowFs, mode: str) -> None:
    _, agent = read(desk, "read", 1, "weights", "--prefetch", mode, only=3)
    assert agent["read_ahead_files"] == 0, agent
    assert desk.records()[-1]["settings"]["prefetch"]["value"] == {"off": "follow"}.get(mode, mode)


def test_a_damaged_header_is_counted_and_its_reader_followed(desk: Desk, net: SlowFs) -> None:
    for path in (desk.source / "weights").iterdir():
        path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])
    support.settle(desk.source)
    # Slower than others, so that the agent looks while the program reads.
    net.set(read_us=60_000)
    expected = read_alone(desk, "read", 1, "weights", only=1)
    forget(net)
    crc, agent = read(desk, "read", 1, "weights", only=1)
    assert crc == expected
    assert (agent["damaged_headers"], agent["read_ahead_files"]) == (1, 0), agent
    assert agent["files_copied"] == 1
