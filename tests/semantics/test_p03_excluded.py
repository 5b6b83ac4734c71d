"""P3: files that match `--exclude` are read from the source, by every name, whatever earlier runs have copied."""

import json
import sys
from pathlib import Path

import pytest

from tests.support import WAIT_UNTIL_IDLE, Place, Ran, settle

# Opens each file twice, and asks for its size; prints whether the second open led to a copy, and what was read.
LOOK = f"""{WAIT_UNTIL_IDLE}
def look(path):
    with open(path, 'rb') as file:
        link = os.readlink(f'/proc/self/fd/{{file.fileno()}}')
        return '/objects/' in link, file.read().decode(), os.stat(path).st_size
first = [look(path) for path in sys.argv[1:]]
wait_until_idle()
names = [sorted(os.listdir(os.path.dirname(path))) for path in sys.argv[1:]]
wait_until_idle()
names = [sorted(os.listdir(os.path.dirname(path))) for path in sys.argv[1:]]
print(json.dumps([look(path) for path in sys.argv[1:]]))
"""
NAMES = ["data.bin", "live.mdb", "by_link.bin", "logs/today", "logs/deep/more"]


def grow(place: Place) -> list[str]:
    root = place.source
    (root / "logs/deep").mkdir(parents=True)
    for name in ("data.bin", "live.mdb", "logs/today", "logs/deep/more"):
        (root / name).write_text(name)
    (root / "by_link.bin").symlink_to("live.mdb")
    settle(root)
    return [f"{root}/{name}" for name in NAMES]


def look(place: Place, paths: list[str], exclude: str = "") -> tuple[Ran, dict[str, tuple[bool, str, int]]]:
    ran = place.run(sys.executable, "-c", LOOK, *paths, environment={"FOREBAY_EXCLUDE": exclude} if exclude else {})
    return ran, dict(zip(NAMES, map(tuple, json.loads(ran.out)), strict=True))


@pytest.mark.parametrize("freshness", ["immutable", "ttl=60"])
def test_excluded_files_are_the_source_s_alone(place: Place, freshness: str) -> None:
    place.freshness = freshness
    paths = grow(place)
    plain, found = look(place, paths)
    assert all(is_copy for is_copy, *_ in found.values()), "without patterns each has a copy"
    assert plain.counters["pass_excluded"] == plain.counters["listings_excluded"] == 0
    # Nobody who is covered changes them: only an open of the source can tell.
    for path in paths[1:2] + paths[3:]:
        Path(path).write_text(Path(path).read_text() + "+ more")
    ran, found = look(place, paths, "*.mdb:/nowhere/**:logs/**")
    assert found["data.bin"] == (True, "data.bin", 8)
    assert found["live.mdb"] == found["by_link.bin"] == (False, "live.mdb+ more", 14)
    assert found["logs/today"] == (False, "logs/today+ more", 16)
    assert found["logs/deep/more"] == (False, "logs/deep/more+ more", 20)
    assert ran.counters["pass_excluded"] >= 8
    assert ran.counters["listings_excluded"] >= len(NAMES), "each directory here has an excluded name in it"
    assert "excluded" in ran.err.decode()
    # And they get no new copies.
    (place.source / "other.mdb").write_text("other")
    settle(place.source / "other.mdb")
    before = len(place.objects())
    ran = place.run(
        sys.executable, "-c", "import sys; open(sys.argv[1]).read()", place.source / "other.mdb", environment={"FOREBAY_EXCLUDE": "*.mdb"}
    )
    assert (ran.hits, ran.counters["handed_over"], len(place.objects())) == (0, 0, before)


def test_the_agent_refuses_what_only_the_kernel_s_name_excludes(place: Place) -> None:
    paths = grow(place)
    ran, found = look(place, paths, f"{place.source}/live.mdb")
    assert not found["by_link.bin"][0]
    assert not found["live.mdb"][0]
    assert found["data.bin"][0]
    assert ran.record["agent"]["not_copied"] == {"excluded": 2}


def test_an_absolute_pattern_by_a_link_means_what_the_link_leads_to(place: Place) -> None:
    paths = grow(place)
    (place.root / "link").symlink_to(place.source)
    _, found = look(place, paths, f"{place.root}/link/logs")
    assert [found[name][0] for name in NAMES] == [True, True, True, False, False]


def test_other_runs_of_the_agent_are_served(place: Place) -> None:
    paths = grow(place)
    with place.worker() as worker:
        _, found = look(place, paths, "*")
        assert not any(is_copy for is_copy, *_ in found.values())
        assert worker.do("Path(path).read_text()", path=paths[0]) == "data.bin"
        assert place.idle(1)["files_copied"] == 1
