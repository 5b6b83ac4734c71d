"""The list of what a command has read: its next run is read ahead by it, before the program asks."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from testbed.testbed import SlowFs, have_fuse, slowfs
from tests import support
from tests.cli.conftest import Desk
from tests.cli.test_metrics import exposed, families, value
from tests.cli.test_read_ahead import REQUEST, forget, in_flight, read_bytes, weights

pytestmark = pytest.mark.skipif(have_fuse() is not None, reason=have_fuse() or "")

LARGE, SMALL, SMALL_SIZE = 3, 20, 10_000
# Reads the given share of each large file from its start, and all small ones, once it is told to.
READER = """
import os, sys, zlib
part, *names = sys.argv[1:]
print("begun", flush=True)
sys.stdin.readline()
crc = 0
for name in os.listdir("net/small"):
    crc = zlib.crc32(open(f"net/small/{name}", "rb").read(), crc)
for name in names:
    descriptor = os.open(name, os.O_RDONLY)
    wanted = round(os.fstat(descriptor).st_size * float(part))
    for at in range(0, wanted, 65536):
        crc = zlib.crc32(os.pread(descriptor, min(65536, wanted - at), at), crc)
    os.close(descriptor)
print(crc, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def desk(desk: Desk) -> Iterator[Desk]:
    """The desk with its runtime directory in memory, where copies can be, too."""
    with tempfile.TemporaryDirectory(prefix="fb-", dir="/dev/shm") as runtime:
        desk.runtime = Path(runtime)
        yield desk


@pytest.fixture
def net(desk: Desk, request: pytest.FixtureRequest) -> Iterator[SlowFs]:
    """A slow file system at `net` with large and small files. A test may say for how long attributes are trusted."""
    trusted_ms = getattr(request, "param", 60_000)
    for directory in (desk.source / "large", desk.source / "small", desk.root / "net"):
        directory.mkdir()
    for number in range(LARGE):
        weights(desk.source / "large" / f"{number}.safetensors", number)
    for number in range(SMALL):
        (desk.source / "small" / f"{number:02}").write_bytes(os.urandom(SMALL_SIZE))
    support.settle(desk.source)
    with slowfs(desk.source, desk.root / "net", mbps=0, open_ms=0, meta_us=0, read_us=2_000, slots=16, attr_ttl_ms=trusted_ms) as fs:
        fs.reset()
        yield fs


def words(part: float, only: int = LARGE) -> list[str]:
    return [sys.executable, "-c", READER, str(part), *(f"net/large/{number}.safetensors" for number in range(only))]


@contextmanager
def begun(desk: Desk, program: Sequence[str], *options: str) -> Iterator[None]:
    """A run whose program has not read anything yet: it does so after the block. Copies are in memory and go with it.

    On a disk that is slow, the agent reads the source once more to compare their speeds.
    """
    named = [
        str(support.command()),
        "run",
        "--source",
        "net",
        "--tier",
        "tier=64M",
        "--ram",
        "64M",
        "--freshness",
        "immutable",
        *options,
        "--",
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*named, *program], cwd=desk.root, env=desk.environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        try:
            yield
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline().strip().isdigit()
            support.wait_until(lambda: in_flight(desk) == 0, "the end of the copies")
        finally:
            _, told = process.communicate("\n", timeout=support.PROGRAM_S)
        assert process.returncode == 0, told
    ended(desk)


def ended(desk: Desk) -> None:
    support.wait_until(lambda: not list(desk.runtime.glob("*/control.sock")), "the agent's end")


def run(desk: Desk, program: Sequence[str], *options: str) -> dict[str, Any]:
    """Runs the program to its end. Returns what the agent counted."""
    with begun(desk, program, *options):
        pass
    agent: dict[str, Any] = desk.records()[-1]["agent"]
    return agent


def prefetched(desk: Desk) -> int:
    return int(value(families(exposed(desk)), "forebay_prefetched_files_total"))


def lists(desk: Desk) -> list[Path]:
    return sorted((desk.home / ".local/state/forebay/reads").glob("*.json"))


def test_the_second_run_of_a_command_finds_its_files_before_it_asks(desk: Desk, net: SlowFs) -> None:
    run(desk, words(1))
    first = read_bytes(net)
    forget(net)
    with begun(desk, words(1)):
        support.wait_until(lambda: prefetched(desk) == LARGE + SMALL, "copies of all files of the first run")
        assert read_bytes(net) <= 1.05 * first
    record = desk.records()[-1]
    assert record["tiers"][0]["opens"] == LARGE + SMALL
    assert record["counters"]["listings_saved"] == 1
    assert record["derived"]["from_source_opens"] == 0
    assert read_bytes(net) <= 1.05 * first
    # Another command is another list.
    forget(net)
    assert run(desk, words(1, only=1))["prefetched_files"] == 0
    assert len(lists(desk)) == 2


@pytest.mark.parametrize("mode", ["follow", "file"])
def test_other_modes_leave_the_list_alone(desk: Desk, net: SlowFs, mode: str) -> None:
    run(desk, words(1))
    forget(net)
    assert run(desk, words(1), "--prefetch", mode)["prefetched_files"] == 0


def test_only_what_an_earlier_run_has_read_is_read(desk: Desk, net: SlowFs) -> None:
    run(desk, words(0.25), "--prefetch", "follow")
    first = read_bytes(net)
    forget(net)
    with begun(desk, words(0.25)):
        support.wait_until(lambda: prefetched(desk) == SMALL, "copies of the small files")
        assert read_bytes(net) <= 1.05 * first + REQUEST
    assert read_bytes(net) <= 1.05 * first + LARGE * REQUEST


@pytest.mark.parametrize("net", [0], indirect=True)
def test_a_changed_file_and_a_missing_one_are_left_to_the_program(desk: Desk, net: SlowFs) -> None:
    run(desk, words(1))
    weights(desk.source / "large/0.safetensors", 7)
    (desk.source / "small/00").unlink()
    support.settle(desk.source)
    forget(net)
    with begun(desk, words(1)):
        support.wait_until(lambda: prefetched(desk) == LARGE + SMALL - 2, "copies of what is as it was")
    support.wait_until(lambda: "small/00" not in lists(desk)[0].read_text(), "the missing file's end")
    forget(net)
    with begun(desk, words(1)):
        support.wait_until(lambda: prefetched(desk) == LARGE + SMALL - 1, "copies of the new version, too")


@pytest.mark.parametrize("text", ["", '{"schema": 1, "entries": [7]}', '{"schema": 99, "entries": []}'])
def test_a_list_that_cannot_be_read_is_named_in_the_log_and_written_anew(desk: Desk, net: SlowFs, text: str) -> None:
    run(desk, words(1))
    [kept] = lists(desk)
    kept.write_text(text)
    forget(net)
    assert run(desk, words(1))["prefetched_files"] == 0
    assert any(str(kept) in path.read_text() for path in desk.runtime.rglob("agent.log*"))
    assert len(json.loads(kept.read_text())["entries"]) >= LARGE + SMALL


def test_runs_are_listed_with_what_is_known_of_their_commands(desk: Desk, net: SlowFs) -> None:
    assert "no run is recorded in" in desk.type("runs").stdout
    run(desk, words(1))
    desk.type("run", "--source", "net", "--tier", "tier=64M", "--", "true")
    other, reader = (json.loads(line) for line in desk.type("runs", "--json").stdout.splitlines())
    assert other["command"] == ["true"]
    assert other["known"]["files"] == 0
    size = sum(path.stat().st_size for path in desk.source.glob("[ls]*/*"))
    assert reader["known"] == {"files": LARGE + SMALL, "bytes": size, "directories": 1, "error": None}
    said = desk.type("runs", "-n", "2").stdout
    assert f"its next run is read ahead of: {LARGE + SMALL} files" in said
    assert "nothing is known of what it reads" in said


def test_a_job_is_warmed_from_an_earlier_run_of_its_command(desk: Desk, net: SlowFs) -> None:
    run(desk, words(1, only=1))
    first = read_bytes(net)
    forget(net)
    earlier = json.loads(desk.type("runs", "--json").stdout)["run"]
    warmed = desk.type("warm", "--source", "net", "--tier", "tier=64M", "--freshness", "immutable", "--from", earlier)
    assert warmed.returncode == 0
    assert f"{SMALL + 1} files" in warmed.stderr, warmed.stderr
    # A disk that is slow has up to a MiB a second read again, to compare.
    assert desk.records()[-1]["agent"]["source_bytes_read"] <= 1.05 * first
    done = desk.type("run", "--source", "net", "--tier", "tier=64M", "--freshness", "immutable", "--", *words(1, only=1), typed="\n\n")
    assert done.returncode == 0, done.stderr
    assert desk.records()[-1]["derived"]["from_source_opens"] == 0


def test_a_run_that_cannot_be_warmed_from_is_refused_in_a_line(desk: Desk, net: SlowFs) -> None:
    warm = ("warm", "--source", "net", "--tier", "tier=64M", "--from")
    assert "no run is recorded" in desk.refuse("report")
    assert "there is no such file, and no run of that id" in desk.refuse(*warm, "20200101T000000.000Z-x-1")
    with begun(desk, words(1, only=1), "--record", str(desk.root / "run.json")):
        pass
    record = json.loads((desk.root / "run.json").read_text())
    [kept] = lists(desk)

    def refuse(**changes: Any) -> str:
        (desk.root / "changed.json").write_text(json.dumps(record | changes))
        return desk.refuse(*warm, "changed.json")

    line = refuse(command_key="0" * 16, host="elsewhere")
    assert "no list of what its command has read" in line
    assert "it ran on elsewhere" in line
    assert "record another run" in refuse(command_key=None)
    assert "version 9" in refuse(schema=9)
    elsewhere = desk.refuse("warm", "--source", "source", "--tier", "tier=64M", "--from", "run.json")
    assert "lies under a source here" in elsewhere
    kept.write_text('{"schema": 2}')
    assert "a list of version 2, and this forebay reads version 1" in refuse()
    kept.write_text("{")
    assert "this is not a list of files that a run has read; remove it" in refuse()
    kept.unlink()
    assert "no list of what its command has read" in refuse()
