"""Tiers in the order in which they are named, or the fastest first by what was measured and is remembered."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import support
from tests.cli.conftest import Desk

HOST = os.uname().nodename.replace("/", "_")


@pytest.fixture
def two(desk: Desk) -> Iterator[Desk]:
    """A desk with a second tier, `other`."""
    (desk.root / "other").mkdir()
    yield desk
    desk.type("clean", "--tier", desk.root / "other")


def words(command: str, order: str = "speed") -> list[str]:
    return [command, "--source", "source", "--tier", "tier=64M", "--tier", "other=64M", "--tier-order", order]


def remembered(desk: Desk) -> dict[str, Any]:
    """Returns the measured read times, by name of the tier."""
    known = json.loads((desk.home / f".local/state/forebay/tiers-{HOST}.json").read_text())
    return {Path(tier["dir"]).name: tier.get("read_time") for tier in known}


def remember(desk: Desk, age_s: int = 0, **read_us: int) -> None:
    """Puts figures where runs find them."""
    place = desk.home / ".local/state/forebay"
    place.mkdir(parents=True, exist_ok=True)
    when = int(time.time()) - age_s
    known = [
        {"dir": str(desk.root / name), "bytes": 64 << 20, "was_found": False, "read_time": {"us": us, "measured_unix_s": when}}
        for name, us in read_us.items()
    ]
    (place / f"tiers-{HOST}.json").write_text(json.dumps(known))


def order(desk: Desk) -> list[str]:
    """Names of the tiers of the last run, top first; copies lie in the first of them."""
    return [Path(tier["dir"]).name for tier in desk.records()[-1]["tiers"]]


def test_they_are_used_as_they_are_named(two: Desk) -> None:
    remember(two, tier=9000, other=100)
    assert two.type(*words("run", "given"), "--", "true").returncode == 0
    assert order(two) == ["tier", "other"]
    assert "tier order  given (--tier-order)" in two.type(*words("doctor", "given")).stdout
    assert remembered(two)["tier"]["us"] == 9000, "nothing is forgotten"


def test_the_fastest_comes_first_and_takes_the_copies(two: Desk) -> None:
    support.settle(two.source)
    remember(two, tier=9000, other=100)
    before = remembered(two)
    # A run that lasts until its copies are made.
    done = two.type(*words("warm"), "source")
    assert done.returncode == 0, done.stderr
    assert order(two) == ["other", "tier"]
    assert "named by --tier, 1 MiB read in 100 us (measured 20" in done.stderr
    assert remembered(two) == before, "it is not measured again"
    record = two.records()[-1]
    assert record["settings"]["tier_order"] == {"value": "speed", "origin": "--tier-order"}
    assert [tier["files"] for tier in record["agent"]["tiers"]] == [1, 0]
    assert [path.name for path in two.root.glob("*/forebay-*/objects/*/*")]
    assert not list(two.tier.glob("forebay-*/objects/*/*"))


def test_what_is_not_known_or_old_is_measured_and_remembered(two: Desk) -> None:
    remember(two, age_s=8 * 86_400, tier=9000, other=1)
    assert two.type(*words("run"), "--", "true").returncode == 0
    first, times = order(two), remembered(two)
    assert all(time.time() - measured["measured_unix_s"] < 86_400 for measured in times.values())
    assert all(0 < measured["us"] < 5_000_000 for measured in times.values())
    # One that comes first is slower by a quarter at most.
    assert times[first[0]]["us"] <= 1.25 * times[first[1]]["us"]
    assert two.type(*words("run"), "--", "true").returncode == 0
    assert (order(two), remembered(two)) == (first, times)


def test_doctor_measures_and_leaves_nothing(two: Desk) -> None:
    before = sorted(two.root.rglob("*"))
    done = two.type(*words("doctor"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "tier order  speed (--tier-order)" in done.stdout
    assert done.stdout.count("named by --tier, 1 MiB read in ") == 2
    told = json.loads(two.type(*words("doctor"), "--json").stdout)
    assert all(tier["read_us"] > 0 for tier in told["tiers"])
    assert sorted(two.root.rglob("*")) == before
    assert not list(two.runtime.iterdir())


def test_the_configuration_shows_what_is_remembered(two: Desk) -> None:
    remember(two, tier=9000, other=100)
    done = two.type("config", "show", env={"FOREBAY_TIER_ORDER": "speed"})
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    (setting,) = (line.split() for line in lines if line.startswith("tier_order"))
    assert setting == ["tier_order", "=", '"speed"', "#", "$FOREBAY_TIER_ORDER"]
    assert any(line.startswith(f"# {two.root}/other: 1 MiB read in 100 us (measured 20") for line in lines)


def test_an_agent_that_stands_keeps_its_order(two: Desk) -> None:
    remember(two, tier=9000, other=100)
    with two.lasting("echo begun; read -r end", run=words("run")):
        remember(two, tier=100, other=9000)
        done = two.type(*words("run"), "--", "true")
        assert done.returncode == 0, done.stderr
        assert order(two) == ["other", "tier"]
        assert "in the order of the agent that stands" in done.stderr
    support.wait_until(lambda: not list(two.runtime.glob("*/control.sock")), "the agent's end")
    assert two.type(*words("run"), "--", "true").returncode == 0
    assert order(two) == ["tier", "other"]


def test_runs_that_begin_together_come_to_one_order(two: Desk) -> None:
    command = [str(support.command()), *words("run"), "-q", "--", "sleep", "1"]
    runs = [subprocess.Popen(command, cwd=two.root, env=two.environment, stderr=subprocess.PIPE) for _ in range(4)]
    ended = [(run.communicate(timeout=support.PROGRAM_S)[1], run.returncode) for run in runs]
    assert ended == [(b"", 0)] * 4
    orders = {tuple(tier["dir"] for tier in record["tiers"]) for record in two.records()}
    assert len(orders) == 1
