"""F46: the clock of the source's server and that of this node differ."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import Place, place, settle, wait_until

READ = "import sys\nfor path in sys.argv[1:]: open(path, 'rb').read()"
FILES = 5


@pytest.fixture
def here() -> Iterator[Place]:
    with place() as made:
        yield made


def ahead(path: Path, seconds: float) -> None:
    """As a server whose clock is ahead would have it."""
    then = time.time() + seconds
    os.utime(path, (then, then))


def test_f46_files_of_a_server_whose_clock_is_ahead_are_copied(here: Place) -> None:
    """Two seconds after they were opened, and the summary tells by how much; what changes meanwhile is not copied."""
    paths = [here.source / str(number) for number in range(FILES)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 5000)
    settle(*paths)
    for path in paths:
        ahead(path, 300)
    settle(*paths)
    with here.worker(freshness="ttl=60") as worker:
        for path in paths:
            assert worker.do("Path(path).read_bytes()", path=str(path)) == path.read_bytes()
        wait_until(lambda: here.status()["ahead_of_clock"] == FILES, "files that wait")
        # One changes while it waits: its copy would be of times that tell nothing.
        ahead(paths[0], 301)
        status = here.idle(FILES)
        assert (status["files_copied"], status["not_copied"]) == (FILES - 1, {"changed_meanwhile": 1})
        assert 290 <= status["clock_ahead_s"] <= 300
        for path in paths:
            assert worker.do("Path(path).read_bytes()", path=str(path)) == path.read_bytes()
    ran = worker.end()
    assert ran.hits >= FILES - 1
    assert "s ahead of this node's clock" in ran.err.decode()
    assert "modified within the last two seconds" not in ran.err.decode()


def test_f46_a_directory_whose_time_is_ahead_is_listed(here: Place) -> None:
    (here.source / "file").write_bytes(b"x")
    settle(here.source)
    ahead(here.source, 100)
    with here.worker(freshness="ttl=60") as worker:
        assert worker.do("os.listdir(path)", path=str(here.source)) == ["file"]
        status = here.idle()
        assert (status["listings_kept"], status["listings_not_kept"]) == (1, {})


def test_f46_what_is_far_ahead_was_set_by_somebody(here: Place) -> None:
    """A time so far off does not count as a clock's: the file is copied immediately."""
    path = here.source / "file"
    path.write_bytes(b"x")
    ahead(path, 86_400)
    settle(path)
    ran = here.run(sys.executable, "-c", READ, path)
    assert ran.record["agent"]["ahead_of_clock"] == 0
    assert ran.record["agent"]["not_copied"] == {}
