"""F21: two runs at once share one agent and its copies; sources and freshness are each run's own."""

import shutil
from concurrent.futures import ThreadPoolExecutor

from tests import support
from tests.faults.harness import CORPUS, SMALL, processes_of
from tests.support import Place, is_copy, read, wait_until, warm


def test_f21_one_agent_serves_both(place: Place) -> None:
    paths = [place.source / name for name in SMALL]
    with place.worker() as one, place.worker() as two:
        assert len(processes_of(place)) == 1
        assert place.status()["runs"] == 2
        warm(place, one, *paths[:6])
        warm(place, two, *paths[6:])
        # What one has read the other need not.
        for path in paths:
            assert is_copy(one, path)
            assert is_copy(two, path)
        agent = processes_of(place)
        one.end()
        wait_until(lambda: place.status()["runs"] == 1, "one run left")
        assert is_copy(two, paths[0])
        assert processes_of(place) == agent
    assert one.ran
    assert two.ran
    # Each record is of its own run.
    assert one.ran.record["agent"]["files_copied"] == two.ran.record["agent"]["files_copied"] == 6
    place.stop()
    wait_until(lambda: not processes_of(place), "the agent's end")


def test_f21_sources_are_each_runs_own(place: Place) -> None:
    other = place.root / "other"
    shutil.copytree(place.source, other)
    support.settle(other)
    name = SMALL[0]
    with place.worker() as one, place.worker(source=other) as two:
        warm(place, one, place.source / name)
        warm(place, two, other / name)
        assert not is_copy(one, other / name)
        assert not is_copy(two, place.source / name)
        assert read(one, other / name) == read(two, place.source / name) == CORPUS[name]
    assert one.ran
    assert two.ran
    assert one.ran.record["agent"]["files_copied"] == two.ran.record["agent"]["files_copied"] == 1


def test_f21_freshness_is_each_runs_own(place: Place) -> None:
    path = place.source / SMALL[0]
    with place.worker(freshness="immutable") as vouched, place.worker(freshness="on_open") as asking:
        warm(place, vouched, path)
        assert is_copy(asking, path)
        path.write_bytes(b"new")
        assert read(vouched, path) == CORPUS[path.name]
        assert read(asking, path) == b"new"


def test_f21_two_runs_that_begin_at_the_same_time_start_one_agent(place: Place) -> None:
    # Each program waits for all others.
    meet = 'touch "$0/$$"; until [ $(ls "$0" | wc -l) -ge 6 ]; do sleep 0.05; done'
    (place.root / "here").mkdir()
    with ThreadPoolExecutor(6) as pool:
        runs = list(pool.map(lambda _: place.run("sh", "-c", meet, place.root / "here"), range(6)))
    assert all(run.record["agent"] for run in runs)
    # The first that leaves leaves five others.
    assert max(run.record["agent"]["runs"] for run in runs) == 6
    place.stop()
