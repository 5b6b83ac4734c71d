"""P3: copies of an earlier run serve the next one under `immutable`, however late they are recovered."""

import sys
from pathlib import Path

import pytest

from tests.support import PROGRAM_S, Place, is_copy, settle, wait_until

# Directories by the path above them. Long names make the catalogue look like one of many copies, which the agent
# recovers within a budget, requested directories first.
LONG = "/".join(["d" * 230] * 15)
DIRECTORIES = {"few": 100, LONG: 2400}
# The agent's limits: copies recovered immediately, and a copy's assumed part of the catalogue.
RECOVERED_AT_ONCE = 1 << 16
CATALOGUE_BYTES_A_COPY = 120
READ_ALL = """
import pathlib, sys
for path in map(pathlib.Path, sys.stdin.read().split()):
    if path.read_bytes() != path.parent.name.encode(): sys.exit(f'{path} has other bytes')
"""


def make_files(place: Place, base: str) -> list[Path]:
    """Directories of two files that hold their directory's name."""
    directories = [place.source / base / str(n) for n in range(DIRECTORIES[base])]
    for directory in directories:
        directory.mkdir(parents=True)
        for name in ("x", "y"):
            (directory / name).write_bytes(directory.name.encode())
    settle(directories[-1])
    return [directory / name for directory in directories for name in ("x", "y")]


def warm(place: Place, files: list[Path]) -> None:
    with place.worker() as worker:

        def all_are_there() -> bool:
            worker.do("for path in paths: open(path, 'rb').read()", paths=[str(path) for path in files])
            wait_until(lambda: not place.status()["in_flight"], "what is being copied", seconds=PROGRAM_S)
            return bool(place.status()["tiers"][0]["files"] == len(files))

        wait_until(all_are_there, "all copies", seconds=PROGRAM_S)
    place.stop()
    (catalogue,) = place.tier.glob("forebay-*/catalogue")
    is_large = catalogue.stat().st_size > RECOVERED_AT_ONCE * CATALOGUE_BYTES_A_COPY
    assert is_large == (len(files) > 2 * DIRECTORIES["few"])


@pytest.mark.parametrize("base", ["few", LONG])
def test_the_first_opens_of_a_second_run_copy_nothing_again(place: Place, base: str) -> None:
    files = make_files(place, base)
    warm(place, files)
    objects = place.objects()
    names = "\n".join(map(str, files)).encode()
    ran = place.run(sys.executable, "-c", READ_ALL, standard_input=names, freshness="immutable")
    agent = ran.record["agent"]
    assert (agent["files_copied"], agent["not_copied"]) == (0, {})
    place.stop()
    assert place.objects() == objects


LARGE_BYTES = 1 << 20
"""More than the opener compares with the source itself."""


@pytest.mark.parametrize("read", ["open(path, 'rb').read()", "Path(path).read_bytes()", "__import__('numpy').fromfile(path, 'uint8')"])
def test_a_large_copy_out_of_time_costs_no_bytes_of_the_source(place: Place, read: str) -> None:
    files = [place.source / f"{number}" for number in range(8)]
    for number, path in enumerate(files):
        path.write_bytes(bytes([number]) * LARGE_BYTES)
    settle(files[-1])
    with place.worker(freshness="ttl=60") as worker:
        worker.do("for path in paths: open(path, 'rb').read()", paths=[str(path) for path in files])
        assert place.idle(len(files))["files_copied"] == len(files)
    place.stop()
    # No copy of the earlier run has been compared with the source when the second run begins.
    program = f"import sys; from pathlib import Path\nfor path in sys.argv[1:]: assert len(set(bytes({read}))) == 1"
    ran = place.run(sys.executable, "-c", program, *files, freshness="ttl=60")
    assert (ran.counters["source_opens"], ran.hits) == (len(files), len(files))
    assert ran.counters["from_source_bytes"] == 0


def test_a_large_copy_out_of_time_does_not_serve_a_changed_file(place: Place) -> None:
    path = place.source / "large"
    path.write_bytes(b"a" * LARGE_BYTES)
    settle(path)
    with place.worker() as worker:
        worker.do("open(path, 'rb').read()", path=str(path))
        place.idle(1)
    place.stop()
    path.write_bytes(b"b" * LARGE_BYTES)
    program = "import sys; assert set(open(sys.argv[1], 'rb').read()) == {ord('b')}"
    ran = place.run(sys.executable, "-c", program, path, freshness="ttl=60")
    assert (ran.hits, ran.counters["copy_after_open"]) == (0, 0)


def test_one_open_in_a_directory_brings_the_others(place: Place) -> None:
    files = make_files(place, LONG)
    warm(place, files)
    with place.worker(freshness="immutable") as worker:
        is_copy(worker, files[-2])
        wait_until(lambda: is_copy(worker, files[-1]), "its neighbour")
        assert place.status()["files_copied"] == 0


def test_a_copy_that_is_gone_is_made_again_and_is_no_fault_of_the_tier(place: Place) -> None:
    files = make_files(place, "few")
    warm(place, files)
    for lost in place.objects()[:20]:
        lost.unlink()
    with place.worker(freshness="immutable") as worker:
        place.idle()

        def all_are_back() -> bool:
            for path in files:
                assert worker.do("Path(path).read_bytes()", path=str(path)) == path.parent.name.encode()
            return bool(place.idle()["tiers"][0]["files"] == len(files))

        wait_until(all_are_back, "the lost copies")
        assert place.status()["tiers"][0]["off"] is None


def test_p6_a_change_serves_no_later_run_though_its_copy_was_never_brought(place: Place) -> None:
    files = make_files(place, LONG)
    warm(place, files)
    last = files[-1]
    place.run("sh", "-c", 'printf other > "$0"', last, freshness="immutable")
    place.stop()
    with place.worker(freshness="immutable") as worker:
        assert worker.do("Path(path).read_bytes()", path=str(last)) == b"other"
        wait_until(lambda: is_copy(worker, files[0]), "what nobody changed")
