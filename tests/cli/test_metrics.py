"""`forebay metrics`: what Prometheus reads, and the dashboard that shows it."""

import json
import re
import signal
import stat
import subprocess
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests import support
from tests.cli.conftest import Desk
from tests.cli.test_top import running

BOARD = json.loads((support.ROOT / "docs/grafana.json").read_text())
DOCUMENTED = (support.ROOT / "docs/guides.md").read_text()
# Nothing is refused in these tests, so these have no sample.
UNSEEN = {"forebay_not_copied_files_total", "forebay_not_kept_listings_total"}
# Exposed while a loader with a cache runs: tests/peers compares what is exposed then with the guide.
OF_LOADERS = set(re.findall(r"^\| `(forebay_(?:loader|peer)\w+)` \|", DOCUMENTED, re.MULTILINE))
FUNCTIONS = {"sum", "by", "rate", "histogram_quantile", "label_values"}


def families(text: str) -> dict[str, Metric]:
    """By name, as Prometheus takes it."""
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(found: Mapping[str, Metric], name: str, **labels: str) -> float:
    (number,) = (
        sample.value
        for family in found.values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
    return float(number)


def exposed(desk: Desk) -> str:
    done = desk.type("metrics")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture
def busy(desk: Desk) -> Iterator[Desk]:
    with running(desk):
        yield desk


def test_what_was_done_is_exposed(busy: Desk) -> None:
    text = exposed(busy)
    found = families(text)
    assert value(found, "forebay_agents") == value(found, "forebay_runs") == 1
    # `warm` has opened all ten for reading, its run has ended; the run that is there has opened them once more.
    assert value(found, "forebay_opens_total", origin="source") == 10
    assert value(found, "forebay_opens_total", origin="tier_0") == 10
    assert value(found, "forebay_opened_file_size_bytes_total", origin="tier_0") == 100_000
    assert value(found, "forebay_passed_opens_total", reason="writing") == 1
    assert value(found, "forebay_copied_files_total") == value(found, "forebay_tier_copies", tier="0") == 10
    assert value(found, "forebay_copied_bytes_total") == 100_000
    # And what listings take.
    assert 100_000 <= value(found, "forebay_tier_usage_bytes", tier="0") < 102_000
    assert value(found, "forebay_tier_limit_bytes", tier="0") == 64 << 20
    assert value(found, "forebay_tier_up", tier="0") == 1
    # Each open that the source answered took some time, and is in the bucket for it.
    assert value(found, "forebay_source_open_duration_seconds_count") == 10
    assert value(found, "forebay_source_open_duration_seconds_bucket", le="+Inf") == 10
    assert value(found, "forebay_source_open_duration_seconds_sum") > 0
    samples = found["forebay_source_open_duration_seconds"].samples
    below = [sample.value for sample in samples if sample.name.endswith("_bucket")]
    assert below == sorted(below)


def test_it_is_as_prometheus_and_opentelemetry_want_it(busy: Desk) -> None:
    text = exposed(busy)
    assert text.endswith("\n")
    for family in families(text).values():
        assert family.documentation, family.name
        assert re.fullmatch(r"forebay_[a-z_]+", family.name)
        assert family.type in ("counter", "gauge", "histogram"), family.name
        names = {sample.name for sample in family.samples}
        if family.type == "counter":
            assert names == {family.name + "_total"}
        elif family.type == "gauge":
            assert not family.name.endswith("_total")
        assert len({(sample.name, *sorted(sample.labels.items())) for sample in family.samples}) == len(family.samples), family.name
    assert not re.search(r"_(ms|kb|mb|kib|mib|milliseconds)\b", text), "base units"


def test_s7_no_path_and_no_command_is_exposed(busy: Desk) -> None:
    text = exposed(busy)
    for secret in (str(busy.root), busy.root.name, "source/", "cat", busy.environment["USER"]):
        assert secret not in re.sub(r"^#.*$", "", text, flags=re.MULTILINE), secret
    labels = {name for family in families(text).values() for sample in family.samples for name in sample.labels}
    assert labels <= {"agent", "user_id", "tier", "origin", "reason", "le"}


def test_without_an_agent_there_are_none(desk: Desk) -> None:
    found = families(exposed(desk))
    assert [*found] == ["forebay_agents"]
    assert value(found, "forebay_agents") == 0


def test_counters_do_not_go_back_when_a_run_ends(desk: Desk) -> None:
    with running(desk):
        before = families(exposed(desk))
    after = families(exposed(desk))
    assert value(after, "forebay_runs") == 0
    counters = [sample for family in before.values() if family.type in ("counter", "histogram") for sample in family.samples]
    assert counters
    for sample in counters:
        assert value(after, sample.name, **sample.labels) >= sample.value, sample


def test_a_file_for_the_collector_is_replaced_in_one_step(desk: Desk) -> None:
    file = desk.root / "forebay.prom"
    words = [str(support.command()), "metrics", "--write", "forebay.prom", "--every", "0.1"]
    with subprocess.Popen(words, cwd=desk.root, env=desk.environment) as process:
        try:
            support.wait_until(file.exists, "the file")
            first = file.stat().st_ino
            support.wait_until(lambda: file.stat().st_ino != first, "another one in its place")
            assert families(file.read_text())
        finally:
            process.terminate()
        assert process.wait(support.LONG_S) == -signal.SIGTERM
    assert stat.S_IMODE(file.stat().st_mode) == 0o644, "the collector is another user"


def test_a_file_is_written_once(desk: Desk) -> None:
    done = desk.type("metrics", "--write", "forebay.prom")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert families((desk.root / "forebay.prom").read_text())


def names_in(expression: str) -> set[str]:
    """Metrics that a query names."""
    return set(re.findall(r"\bforebay_\w+", expression))


def queries(board: Mapping[str, Any]) -> list[str]:
    shown = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return shown + [variable["definition"] for variable in board["templating"]["list"] if "definition" in variable]


def faults(board: Mapping[str, Any], exposed: set[str]) -> list[str]:
    """Lists the faults of a dashboard."""
    wrong = [f"{name} is not exposed" for query in queries(board) for name in sorted(names_in(query) - exposed)]
    wrong += [
        f"unbalanced: {query}" for query in queries(board) for pair in ("()", "{}", "[]") if query.count(pair[0]) != query.count(pair[1])
    ]
    wrong += [f"a counter without rate: {query}" for query in queries(board) if "_total" in query and "rate(" not in query]
    ids = [panel["id"] for panel in board["panels"]]
    wrong += [f"panel {number} twice" for number in {number for number in ids if ids.count(number) > 1}]
    variables = {variable["name"] for variable in board["templating"]["list"]}
    for text in (json.dumps(panel) for panel in board["panels"]):
        wrong += [
            f"${{{name}}} is unknown" for name in re.findall(r"\$\{?(\w+)", text) if name not in variables and not name.startswith("__")
        ]
    for one, other in combinations([panel["gridPos"] for panel in board["panels"]], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        wrong += [] if apart else [f"{one} lies over {other}"]
    return wrong


def test_the_board_shows_what_is_there(busy: Desk) -> None:
    found = families(exposed(busy))
    names = {sample.name for family in found.values() for sample in family.samples}
    buckets = {f"{name}_bucket" for name in OF_LOADERS}
    assert faults(BOARD, names | UNSEEN | OF_LOADERS | buckets) == []
    for panel in BOARD["panels"]:
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]


def test_a_fault_of_a_board_is_seen() -> None:
    names = set().union(*map(names_in, queries(BOARD)))
    assert faults(BOARD, names) == []
    assert any("forebay_runs is not exposed" in fault for fault in faults(BOARD, names - {"forebay_runs"}))
    broken = json.loads(json.dumps(BOARD).replace("sum(forebay_runs", "sum((forebay_runs").replace('"x": 6,', '"x": 5,', 1))
    assert any("unbalanced" in fault for fault in faults(broken, names))
    assert any("lies over" in fault for fault in faults(broken, names))


def test_every_metric_is_documented(busy: Desk) -> None:
    documented = set(re.findall(r"^\| `(forebay_\w+)` \|", DOCUMENTED, re.MULTILINE))
    samples = families(exposed(busy)).values()
    names = {family.name + ("_total" if family.type == "counter" else "") for family in samples}
    assert documented - OF_LOADERS == names | UNSEEN
