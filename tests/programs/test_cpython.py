"""CPython's own tests of files and processes end alike under the preload library, with their files in the source."""

import re
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.support import Place, Ran

SUITES = ["test_io", "test_os", "test_mmap", "test_posix", "test_shutil", "test_pathlib", "test_zipfile", "test_tarfile", "test_subprocess"]


@cache
def python_with_tests() -> str:
    """An interpreter that has its own tests."""
    for python in (sys.executable, getattr(sys, "_base_executable", sys.executable), "/usr/bin/python3"):
        looked = subprocess.run([python, "-c", "import test.libregrtest, test.test_tarfile"], capture_output=True, check=False)
        if looked.returncode == 0:
            return python
    pytest.skip("no Python here has its own tests: apt-get install libpython3-testsuite")


RUN_S = 3000
# Some tests hold CPython to a time, and fail now and then on a busy machine. One of them is tried so often without
# Forebay, two at a time, until it fails as it did under Forebay.
REPETITIONS = 20
AT_ONCE = 2

Outcome = str | None


def outcomes(results: Path) -> dict[str, str]:
    """Returns the result of each test."""
    found = {}
    for case in ET.parse(results).getroot().iter("testcase"):  # noqa: S314
        what = next((child.tag for child in case if child.tag in ("error", "failure", "skipped")), case.get("result", ""))
        found[case.get("name", "")] = what
    return found


@dataclass(frozen=True)
class SuiteRuns:
    """The suites, run as they are and under the preload."""

    expected: dict[str, str]
    got: dict[str, str]
    plain_status: int
    served: Ran
    left: list[Path]

    def differing(self) -> dict[str, tuple[Outcome, Outcome]]:
        """The outcomes without and under the preload of each test that has two."""
        names = self.expected.keys() | self.got.keys()
        return {name: (self.expected.get(name), self.got.get(name)) for name in names if self.expected.get(name) != self.got.get(name)}


def words(directory: Path, suites: Sequence[str], only: Iterable[str] = ()) -> list[str]:
    """The command line of suites, or of `only` some of their tests, whose files are in a new directory.

    Outcomes come beside it.
    """
    directory.mkdir()
    matching = [word for name in only for word in ("--match", name)]
    return [
        python_with_tests(),
        "-m",
        "test",
        "--tempdir",
        str(directory),
        "--junit-xml",
        f"{directory}.xml",
        "--quiet",
        *matching,
        *suites,
    ]


def plainly(place: Place, directory: Path, suites: Sequence[str], only: Iterable[str] = ()) -> tuple[int, dict[str, str]]:
    """Runs suites without the preload: exit status and outcomes."""
    environment = {**place.environment(), "TMPDIR": str(directory)}
    done = subprocess.run(
        words(directory, suites, only),
        env=environment,
        cwd=place.root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=RUN_S,
    )
    return done.returncode, outcomes(Path(f"{directory}.xml"))


def run_both(place: Place) -> SuiteRuns:
    """Both runs at once: the suites wait more than they work."""
    plain_dir, served_dir = place.root / "plain", place.source / "served"
    with ThreadPoolExecutor() as pool:
        plain_run = pool.submit(plainly, place, plain_dir, SUITES)
        served = place.run(
            *words(served_dir, SUITES), environment={"TMPDIR": str(served_dir)}, freshness="ttl=60", timeout=RUN_S, check=False
        )
        plain_status, expected = plain_run.result()
    return SuiteRuns(expected, outcomes(Path(f"{served_dir}.xml")), plain_status, served, list(served_dir.iterdir()))


def repeated(place: Place, names: Iterable[str]) -> Iterator[Mapping[str, Outcome]]:
    """Outcomes of these tests without the preload, run again and again, two at a time.

    An idle machine hides what a busy one shows.
    """
    only = sorted(names)
    suites = sorted({found[1] for name in only if (found := re.match(r"test\.(\w+)", name))} & set(SUITES)) or SUITES
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for first in range(0, REPETITIONS, AT_ONCE):
            places = [place.root / f"again{number}" for number in range(first, first + AT_ONCE)]
            for _, outcome_of in pool.map(lambda directory: plainly(place, directory, suites, only), places):
                yield outcome_of


def not_cpythons_own(
    differing: Mapping[str, tuple[Outcome, Outcome]], repeated: Callable[[Iterable[str]], Iterator[Mapping[str, Outcome]]]
) -> dict[str, tuple[Outcome, Outcome]]:
    """Returns the tests whose result under Forebay never came without it, in all `repeated` runs.

    What can't be run again by its name is among them.
    """
    left = dict(differing)
    if not left:
        return left
    for found in repeated(left.keys()):
        left = {name: (plain, served) for name, (plain, served) in left.items() if name not in found or found[name] != served}
        if not left:
            break
    return left


@pytest.mark.timeout(2 * RUN_S)
def test_cpython_s_own_tests(place: Place) -> None:
    both = run_both(place)
    assert len(both.expected) > 1500
    assert both.served.counters["tombstones"] > 1000
    assert both.served.counters["source_opens"] > 500
    differing = both.differing()
    faults = not_cpythons_own(differing, lambda names: repeated(place, names))
    assert faults == {}, both.served.out.decode(errors="replace")[-5000:]
    if differing:
        warnings.warn(f"these failed without Forebay, too, when they were repeated: {differing}", stacklevel=1)
    else:
        assert (both.served.status == 0) == (both.plain_status == 0)
        assert both.left == []


FAILED = {"a": ("success", "failure"), "b": ("success", "error")}


@pytest.mark.parametrize(
    ("outcomes_of_a", "outcomes_of_b", "faults"),
    [
        # It fails without Forebay, too, now and then.
        (["success", "failure"], ["error"], set()),
        # It fails under Forebay only, however rarely.
        (["success"] * REPETITIONS, ["error"], {"a"}),
        # It fails without Forebay in another way.
        (["error"] * REPETITIONS, ["success", "error"], {"a"}),
        # It can't be run again by its name.
        ([], ["error"], {"a"}),
    ],
)
def test_a_failure_is_cpython_s_own_only_if_it_comes_without_forebay(
    outcomes_of_a: list[str], outcomes_of_b: list[str], faults: set[str]
) -> None:
    def again(names: Iterable[str]) -> Iterator[dict[str, Outcome]]:
        assert set(names) == {"a", "b"}
        for number in range(REPETITIONS):
            told = {"a": outcomes_of_a[number : number + 1], "b": outcomes_of_b[number : number + 1]}
            yield {name: outcome for name, found in told.items() for outcome in found}

    assert not_cpythons_own(FAILED, again).keys() == faults
