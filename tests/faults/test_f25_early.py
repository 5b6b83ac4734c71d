"""F25: opens before the preload library's constructor, from other libraries' constructors, after destructors.

Our own opens are never caught.
"""

import re
from pathlib import Path

import pytest

from tests.preload.covered import CoveredSource
from tests.support import Ran

pytest_plugins = ["tests.preload.fixtures"]


@pytest.fixture(scope="module")
def early(covered: CoveredSource) -> Path:
    """A library that opens when it is loaded and when it is unloaded."""
    return covered.compile("early", "-shared", "-fPIC")


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """Path of the file that the library makes last of all."""
    return tmp_path / "mark"


def shell(covered: CoveredSource, script: str, *words: Path, mark: Path, **env: str) -> Ran:
    ran = covered.run("sh", "-c", script, "sh", *words, env={"EARLY_MARK": str(mark), **env})
    assert ran.status == 0, ran.err.decode()
    return ran


@pytest.mark.parametrize("order", ["$1:$LD_PRELOAD", "$LD_PRELOAD:$1"])
@pytest.mark.parametrize("binding", [{}, {"LD_BIND_NOW": "1"}])
def test_f25_constructors_and_destructors_of_other_libraries(
    covered: CoveredSource, early: Path, mark: Path, order: str, binding: dict[str, str]
) -> None:
    ran = shell(covered, f'LD_PRELOAD="{order}" cat f4', early, mark=mark, **binding)
    assert ran.out == b"file 4\n"
    assert mark.read_text() == "last"


# What `early` asks of files when it is loaded.
QUESTIONS = {"stat", "stat64", "fstat", "fstat64", "__xstat", "__xstat64", "__fxstat", "__fxstat64", "access"}


def test_f25_questions_before_our_constructor_look_nothing_up(covered: CoveredSource, early: Path, mark: Path, tmp_path: Path) -> None:
    # Whoever holds the loader's lock may wait for a thread of that constructor.
    log = tmp_path / "loader"
    script = f'LD_DEBUG=libs,symbols LD_DEBUG_OUTPUT={log} LD_BIND_NOW=1 LD_PRELOAD="$LD_PRELOAD:$1" exec cat f4'
    assert shell(covered, script, early, mark=mark).out == b"file 4\n"
    (told,) = [path.read_text() for path in tmp_path.glob("loader.*")]
    _, _, since = told.partition(f"calling init: {early}\n")
    before, _, after = since.partition("calling init: ")
    assert after.splitlines()[0].endswith("libforebay_preload.so")
    assert "stat" in after, "what is looked up when the library starts is told"
    assert QUESTIONS.isdisjoint(re.findall(r"symbol=(\w+);", before))


def test_f25_a_library_that_is_loaded_later(covered: CoveredSource, early: Path, mark: Path) -> None:
    ran = shell(covered, '"$@"', covered.compile("loads"), early, mark=mark)
    assert mark.read_text() == "last"
    assert ran.hits >= 1


def test_f25_our_own_opens_are_not_caught(covered: CoveredSource) -> None:
    # What the preload library opens itself (pages, copies) would be counted as foreign.
    ran = covered.run(covered.compile("plain"), covered.source / "f1", check=True)
    assert ran.out == b"file 1\n"
    assert ran.counters["pass_foreign"] == 0
    assert ran.counters["source_opens"] == 1
