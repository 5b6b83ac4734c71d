"""F25: opens before the door's constructor, from other libraries' constructors, after destructors; our own opens are never caught."""

from pathlib import Path

import pytest

from tests.preload.door import Door
from tests.support import Ran

pytest_plugins = ["tests.preload.fixtures"]


@pytest.fixture(scope="module")
def early(door: Door) -> Path:
    """A library that opens when it is loaded and when it is unloaded."""
    return door.compile("early", "-shared", "-fPIC")


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """What the library makes last of all."""
    return tmp_path / "mark"


def shell(door: Door, script: str, *words: Path, mark: Path, **env: str) -> Ran:
    ran = door.run("sh", "-c", script, "sh", *words, env={"EARLY_MARK": str(mark), **env})
    assert ran.status == 0, ran.err.decode()
    return ran


@pytest.mark.parametrize("order", ["$1:$LD_PRELOAD", "$LD_PRELOAD:$1"])
@pytest.mark.parametrize("binding", [{}, {"LD_BIND_NOW": "1"}])
def test_f25_constructors_and_destructors_of_other_libraries(
    door: Door, early: Path, mark: Path, order: str, binding: dict[str, str]
) -> None:
    ran = shell(door, f'LD_PRELOAD="{order}" cat f4', early, mark=mark, **binding)
    assert ran.out == b"file 4\n"
    assert mark.read_text() == "last"


def test_f25_a_library_that_is_loaded_later(door: Door, early: Path, mark: Path) -> None:
    ran = shell(door, '"$@"', door.compile("loads"), early, mark=mark)
    assert mark.read_text() == "last"
    assert ran.hits >= 1


def test_f25_our_own_opens_are_not_caught(door: Door) -> None:
    # What the door opens itself (pages, copies) would be counted as foreign.
    ran = door.run(door.compile("plain"), door.source / "f1", check=True)
    assert ran.out == b"file 1\n"
    assert ran.counters["pass_foreign"] == 0
    assert ran.counters["source_opens"] == 1
