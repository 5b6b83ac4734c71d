"""`forebay plan`: tables, JSON and a page from a short file; one line for a plan that can't be."""

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from forebay.loader._plan import plan_of
from tests import support
from tests.cli.conftest import Desk

# Small enough to be simulated in a moment. The source gives a third of what the GPUs could use.
PLAN = """
[cluster]
nodes = 2
gpus = 2
cache = "1 MB"
threads = 8
link = "10 Gbit/s"

[source]
bandwidth = "1.3 MB/s"
latency = "1 ms"

[dataset]
samples = 2000
size = "4 MB"
sigma = 0.5

[job]
batch = 4
step = "8 ms"
"""

SVG = "{http://www.w3.org/2000/svg}"
POLICIES = {*("none", "fill_first", "lru", "pinned", "nopfs", "lobster", "lobster_as_written", "belady", "forebay", "forebay_rotating")}
SCHEDULES = {"first_come", "static", "lobster", "lobster_as_written", "earliest_deadline"}

# A setting that can't be -> what its refusal must say: the key, the value, what is allowed.
REFUSED: list[tuple[str, list[str]]] = [
    ("job.batch=2001", ["job.batch", "2001", "1 to 2000"]),
    ("job.batch=600", ["job.batch", "600", "1 to 500"]),
    ("cluster.threads=0", ["cluster.threads", "0", "from 2"]),
    ("cluster.loading_threads=8", ["cluster.loading_threads", "8", "1 to 7"]),
    ("cluster.cache=0 GB", ["cluster.cache", "0 GB", "200G"]),
    ("cluster.cache=40", ["cluster.cache", "40", '"40 GB"']),
    ("cluster.cache=-40 GB", ["cluster.cache", "-40 GB", "unit"]),
    ("source.bandwidth=-1 GB/s", ["source.bandwidth", "-1 GB/s", "400 Gbit/s"]),
    ("source.bandwidth=1 GB", ["source.bandwidth", "1 GB", "2.5 GB/s"]),
    ("job.step=12", ["job.step", "12", "120 ms"]),
    ("job.step=0 ms", ["job.step", "0 s", "more than 0 s"]),
    ("job.order=random", ["job.order", "random", "torch", "counter"]),
    ("job.drop_last=yes", ["job.drop_last", "yes", "true or false"]),
    ("dataset.sigma=-1", ["dataset.sigma", "-1", "from 0"]),
    ("cluster.chache=1 GB", ["cluster.chache", "cluster.cache"]),
    ("cluster.nodes", ["cluster.nodes", "KEY=VALUE"]),
]


@pytest.fixture
def plan(desk: Desk) -> Path:
    path = desk.root / "plan.toml"
    path.write_text(PLAN)
    return path


def answer(desk: Desk, *words: str | Path) -> dict[str, Any]:
    done = desk.type("plan", "--json", *words)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_policy_and_schedule_has_a_row(desk: Desk, plan: Path) -> None:
    found = answer(desk, plan)
    assert found["schema"] == 1
    assert found["scaled_down_by"] == 1
    assert {row["policy"] for row in found["policies"]} == POLICIES
    assert {row["schedule"] for row in found["schedules"]} == SCHEDULES
    assert [row["label"] for row in found["loaders"]] == ["PyTorch", "DALI", "NoPFS", "Lobster", "Forebay"]
    assert [sweep["key"] for sweep in found["sweeps"]] == ["cluster.cache", "cluster.nodes", "loader.window"]
    assert all(len(sweep["points"]) >= 3 for sweep in found["sweeps"])
    assert found["advice"].endswith(".")


def test_no_policy_reads_less_than_the_bound_and_none_is_faster_than_the_ideal(desk: Desk, plan: Path) -> None:
    found = answer(desk, plan)
    points = [row for sweep in found["sweeps"] for point in sweep["points"] for row in point["rows"]]
    for row in [*found["policies"], *found["schedules"], *found["loaders"], *points]:
        warm = row["warm"]
        assert warm["source_bytes"] >= row["source_bytes_bound"], row
        assert warm["seconds"] >= warm["ideal_seconds"] * 0.999, row
        assert row["cold"]["source_bytes"] >= 0.99 * row["data_bytes"], row
        assert sum(warm["samples_by_origin"].values()) == 2000, row


def test_the_same_question_has_the_same_answer(desk: Desk, plan: Path) -> None:
    assert desk.type("plan", plan).stdout == desk.type("plan", plan).stdout
    assert answer(desk, plan) != answer(desk, plan, "--set", "job.seed=1")


def test_settings_come_on_top_of_the_file(desk: Desk, plan: Path) -> None:
    found = answer(desk, plan, "--set", "cluster.nodes=1", "--set", "cluster.cache=2 MB")
    assert {(row["nodes"], row["cache_bytes"]) for row in found["policies"]} == {(1, 2_000_000)}


def test_more_cache_reads_less(desk: Desk, plan: Path) -> None:
    (cache, *_) = answer(desk, plan)["sweeps"]
    read = [next(row["warm"]["source_bytes"] for row in point["rows"] if row["policy"] == "forebay") for point in cache["points"]]
    assert read == sorted(read, reverse=True)
    # All of it fits at the last point.
    assert read[-1] == 0


def test_the_text_says_what_was_asked_and_what_to_do(desk: Desk, plan: Path) -> None:
    done = desk.type("plan", plan)
    assert (done.returncode, done.stderr) == (0, "")
    for said in (
        "2,000 samples",
        "2 nodes with 2 GPUs each",
        "loader.window = 4",
        *POLICIES,
        *SCHEDULES,
        "over bound",
        "what if cluster.cache",
    ):
        assert said in done.stdout, said
    assert "scaled down" not in done.stdout
    assert answer(desk, plan)["advice"] in done.stdout.splitlines()


def test_the_lines_to_paste_carry_the_plan_out(desk: Desk, plan: Path) -> None:
    said = desk.type("plan", plan).stdout
    lines = said[said.index("[run]") :]
    assert f'append these lines to {plan}, and give DataLoader(plan="{plan}"):' in said
    plan.write_text(PLAN + lines)
    # The planner goes on reading the file, and the loader takes it.
    again = desk.type("plan", plan)
    assert (again.returncode, again.stdout) == (0, said)
    found = plan_of(plan, 2000)
    assert (found.ranks, found.cache, found.choices["reads_max"]) == (2, ("ram=1000000B",), 2)
    assert found.choices["policy"] in POLICIES
    assert found.choices["schedule"] in SCHEDULES | {"forebay"}
    # It was simulated.
    assert found.choices["background_fill"] is True


def test_a_large_dataset_is_scaled_down_and_that_is_said(desk: Desk, plan: Path) -> None:
    large = ("--set", "dataset.samples=2000000", "--set", "dataset.size=4 GB", "--set", "cluster.cache=1 GB", "--samples", "4000")
    page = desk.root / "page.html"
    done = desk.type("plan", plan, *large, "--page", page)
    assert done.returncode == 0, done.stderr
    assert "scaled down: one in 500 samples" in done.stdout
    assert "scaled down: one in 500 samples" in page.read_text()
    assert answer(desk, plan, *large)["scaled_down_by"] == 500


@pytest.mark.parametrize(("setting", "named"), REFUSED, ids=[setting for setting, _ in REFUSED])
def test_a_plan_that_can_t_be_is_refused_in_one_line(desk: Desk, plan: Path, setting: str, named: list[str]) -> None:
    line = desk.refuse("plan", plan, "--set", setting)
    for word in named:
        assert word in line, line


def test_files_that_are_no_plans_are_refused(desk: Desk, plan: Path) -> None:
    assert "No such file" in desk.refuse("plan", "nowhere.toml")
    assert "not a file" in desk.refuse("plan", "source")
    for text, named in [
        ("[job\n", [":1:"]),
        (PLAN + "window = 3\n", ["job.window", "loader.window"]),
        (PLAN.replace('cache = "1 MB"', ""), ["cluster.cache is missing", "40 GB", "--set"]),
        (PLAN + "[measured]\nwhen = 3\n", ["[measured]"]),
        (PLAN.replace("[dataset]", '[dataset]\nlisting = "x"'), ["dataset.listing", "dataset.size"]),
    ]:
        plan.write_text(text)
        line = desk.refuse("plan", plan)
        assert line.startswith("plan.toml" if "plan.toml:" in line[:10] else str(plan)), line
        assert all(word in line for word in named), line
    assert "--samples" in desk.refuse("plan", plan, "--samples", "none")


class PlanPage(HTMLParser):
    """Parts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]


def overlaps(texts: list[tuple[float, float, str]], height: float) -> list[tuple[str, str]]:
    """Pairs of horizontal texts, each centred at a place, that run into each other.

    A letter is taken for 0.6 of its height wide.
    """
    boxes = [(x - 0.3 * height * len(text), x + 0.3 * height * len(text), y, text) for x, y, text in texts]
    return [
        (a[3], b[3]) for at, a in enumerate(boxes) for b in boxes[:at] if abs(a[2] - b[2]) < 0.8 * height and a[0] < b[1] and b[0] < a[1]
    ]


def test_the_page_is_whole(desk: Desk, plan: Path) -> None:
    page = desk.root / "page.html"
    plan.write_text(PLAN + '[preprocessing]\nseconds = "1 ms"\nsaturates_at = 3\n')
    assert desk.type("plan", plan, "--page", page).returncode == 0
    text = page.read_text()
    parsed = PlanPage(text)
    # Everything is in it: nothing is fetched, and nothing runs.
    assert parsed.links == []
    assert "script" not in parsed.tags
    assert not re.search(r"url\(|@import", text)
    assert "prefers-color-scheme: dark" in text
    for words in ("Cache size", "Nodes", "Window", "Imbalance", "Steps by GPU", "Reuse distances", "Preprocessing by threads"):
        assert words in text, words
    svgs = re.findall(r"<figure>(<svg.*?</svg>)", text, re.DOTALL)
    # Three sweeps of two plots, Figure 8's two, Figure 3's three GPUs of two loaders, Figures 4 and 6.
    assert len(svgs) == 3 * 2 + 2 + 2 * 3 + 2
    for svg in svgs:
        check_plot(svg)


def check_plot(svg: str) -> None:
    """Its axes are named with units, its marks do not run into each other, and all of it lies within it."""
    root = ElementTree.fromstring(svg)  # noqa: S314  (our own)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    texts = [(float(text.attrib["x"]), float(text.attrib["y"]), (text.text or "").strip()) for text in root.iter(SVG + "text")]
    assert all(0 <= x <= width and 0 <= y <= height for x, y, _ in texts), texts
    words = [text for _, _, text in texts]
    assert any(re.search(r"\(.+\)|nodes|loader", word) for word in words), words
    size = max(float(text.attrib["font-size"]) for text in root.iter(SVG + "text"))
    below = [(x, y, text) for x, y, text in texts if y > height - 4 * size and re.fullmatch(r"[\d.,]+|[A-Z]\w+", text)]
    assert overlaps(below, size) == []
    shapes = [shape for shape in root.iter() if shape.tag.endswith(("rect", "circle", "polyline"))]
    assert shapes


def test_overlaps_are_seen() -> None:
    assert overlaps([(10, 5, "100"), (20, 5, "200")], 12) == [("200", "100")]
    assert overlaps([(10, 5, "100"), (50, 5, "200"), (10, 30, "300")], 12) == []


def test_a_page_that_can_t_be_written_is_named(desk: Desk, plan: Path) -> None:
    assert "--page" in desk.refuse("plan", plan, "--page", "nowhere/page.html")


@pytest.mark.parametrize("example", sorted((support.ROOT / "examples/plan").glob("*.toml")), ids=lambda path: path.stem)
def test_the_paper_s_set_ups_can_be_planned(desk: Desk, example: Path) -> None:
    # A coarse look only: what the figures are is measured by the benchmark.
    found = answer(desk, example, "--samples", "1", "--set", "job.epochs=2", "--set", "job.batch=1")
    assert found["scaled_down_by"] > 1
    assert len(found["policies"]) == len(POLICIES)


def test_the_documentation_names_every_key(desk: Desk) -> None:
    text = (support.ROOT / "docs/planning.md").read_text()
    documented = set(re.findall(r"^\| `((?:cluster|source|dataset|job|preprocessing|loader)\.\w+)` \|", text, re.MULTILINE))
    sections = ("cluster", "source", "dataset", "job", "preprocessing", "loader")
    plan = desk.root / "plan.toml"
    known = set()
    for section in sections:
        plan.write_text(f"[{section}]\nzzzzzz = 1\n")
        names = desk.refuse("plan", plan).split(" may have ")[1].split(", ")
        known |= {f"{section}.{name}" for name in names}
    assert documented == known
