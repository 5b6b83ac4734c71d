"""P11 (and P1 to P3, P5, P6): nothing but the listed deviations differs from a run without us.

A machine does the same to two equal trees, one served and one not, by real processes, and compares what each step gave:
bytes, errors, attributes. See operations.py for what it does.
"""

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests import support
from tests.support import Place, PlacePool, Worker

OPERATIONS = Path(__file__).with_name("operations.py").read_text()
FILES = {"f": 9_000, "g": 200, "empty": 0, "d/f": 6_000, "d/h": 100, "e/f": 6_000, "d/deep/f": 300}
LINKS = {"to_f": "f", "to_d": "d", "e/up": "../d/h"}
# Names that steps speak of: those of the tree, by several ways, and some that are not there yet.
NAMES = [*FILES, *LINKS, "to_d/f", "to_d/deep/f", "e/new", "new", "d/new", "none/f", "f/f", "hard"]
DIRECTORIES = ["d", "e", "d/deep", "to_d", "newdir", "e/sub"]

names = st.sampled_from(NAMES)
directories = st.sampled_from(DIRECTORIES)
anything = st.sampled_from(NAMES + DIRECTORIES)
spellings = st.sampled_from(["absolute", "absolute", "dotted", "from the root", "from its directory", "by descriptor"])
# Of those that a process of the run can have: its own user, or another one.
users = st.sampled_from(["do", "do", "do", "do_as_another"])
modes = st.sampled_from([0o644, 0o600, 0o444, 0o000, 0o755])
sizes = st.sampled_from([0, 1, 100, 200, 5_000, 9_000])


def grow(root: Path) -> None:
    for number, (name, size) in enumerate(FILES.items()):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(bytes([65 + number]) * size)
        os.utime(root / name, ns=(10**18, 10**18 + number))
    for name, target in LINKS.items():
        (root / name).symlink_to(target)
    (root / "hard").hardlink_to(root / "g")


def grow_both(place: Place) -> None:
    (place.root / "plain").mkdir()
    for root in (place.source, place.root / "plain"):
        grow(root)


class DifferentialPool(PlacePool):
    """Places with two equal trees each, and sums over the runs in them."""

    def __init__(self, freshness: str) -> None:
        super().__init__(grow_both)
        self.freshness = freshness
        self.hits = 0
        self.stats_saved = 0
        self.listings_saved = 0


class DifferentialMachine(RuleBasedStateMachine):
    """Does each step twice, and compares."""

    pool: ClassVar[DifferentialPool]

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.versions: dict[int, bytes] = {}
        self.taken = 0

    @initialize(warmed=st.sampled_from([True, True, True, False]))
    def start(self, warmed: bool) -> None:
        self.place = self.pool.take()
        self.stack.callback(self.place.remove)
        self.served = self.stack.enter_context(self.place.worker(freshness=self.pool.freshness))
        self.plain = self.stack.enter_context(Worker.started([sys.executable, "-E", support.WORKER]))
        for worker, tree in ((self.served, self.place.source), (self.plain, self.place.root / "plain")):
            worker.do(OPERATIONS)
            worker.do("begin(where)", where=str(tree))
        if warmed:
            self.warm()

    def warm(self) -> None:
        for name in (*FILES, *LINKS, "to_d/f", "hard"):
            if name != "to_d":
                self.same("do", "read", name, "absolute", "read")
        for name in DIRECTORIES:
            self.same("do", "listing", name, "absolute")
        self.place.idle()

    def both(self, user: str, *step: object) -> tuple[Any, Any]:
        code = f"{user}(*step)"
        return self.served.do(code, step=step), self.plain.do(code, step=step)

    def same(self, user: str, *step: object) -> Any:  # noqa: ANN401
        served, plain = self.both(user, *step)
        assert served == plain, (user, step)
        return plain

    @rule(user=users, name=anything, spelling=spellings, how=st.sampled_from(["read", "pread", "mmap", "fopen", "nofollow", "stat"]))
    def read(self, user: str, name: str, spelling: str, how: str) -> None:
        self.same(user, "read", name, spelling, how)

    @rule(user=users)
    def read_all(self, user: str) -> None:
        self.same(user, "read_all", NAMES)

    @rule(user=users, name=anything, spelling=spellings, follow=st.booleans())
    def look(self, user: str, name: str, spelling: str, follow: bool) -> None:
        self.same(user, "look", name, spelling, follow)

    @rule(user=users, name=anything, spelling=spellings, follow=st.booleans())
    def ask_by_name(self, user: str, name: str, spelling: str, follow: bool) -> None:
        self.same(user, "names_agree", name, spelling, follow)

    @rule(user=users, name=anything, spelling=spellings)
    def list_directory(self, user: str, name: str, spelling: str) -> None:
        self.same(user, "listing", name, spelling)

    @rule(
        user=users,
        name=names,
        spelling=spellings,
        how=st.sampled_from(["truncate", "append", "update", "new", "fopen", "mmap"]),
        seed=st.integers(0, 255),
        size=sizes,
    )
    def write(self, user: str, name: str, spelling: str, how: str, seed: int, size: int) -> None:
        self.same(user, "write", name, spelling, how, seed, size)

    @rule(user=users, name=anything, spelling=spellings, how=st.sampled_from(["unlink", "rmdir", "mkdir"]))
    def change_name(self, user: str, name: str, spelling: str, how: str) -> None:
        self.same(user, "change", how, name, spelling, 0)

    @rule(user=users, name=names, spelling=spellings, how=st.sampled_from(["chmod", "fchmod"]), mode=modes)
    def change_mode(self, user: str, name: str, spelling: str, how: str, mode: int) -> None:
        self.same(user, "change", how, name, spelling, mode)

    @rule(user=users, name=names, spelling=spellings, how=st.sampled_from(["truncate", "utime", "futimens"]), number=sizes)
    def change_file(self, user: str, name: str, spelling: str, how: str, number: int) -> None:
        self.same(user, "change", how, name, spelling, number)

    @rule(
        user=users,
        one=anything,
        other=anything,
        spelling=spellings,
        how=st.sampled_from(["rename", "rename", "replace", "link", "symlink", "exchange", "copy"]),
    )
    def change_two(self, user: str, one: str, other: str, spelling: str, how: str) -> None:
        self.same(user, "change_two", how, one, other, spelling)

    @rule(one=directories, other=directories)
    def move_directory(self, one: str, other: str) -> None:
        self.same("do", "change_two", "rename", one, other, "absolute")

    @rule(name=names)
    def hold(self, name: str) -> None:
        self.taken += 1
        kind, is_file = self.same("do", "hold", name, self.taken)
        if kind == "value" and is_file:
            self.versions[self.taken] = self.both("do", "read_held", self.taken)[0][1]

    @precondition(lambda self: self.versions)
    @rule(which=st.randoms(use_true_random=False))
    def read_held(self, which: Any) -> None:  # noqa: ANN401
        """A descriptor of a copy keeps its version (P2); one of the source shows what it holds now."""
        key = which.choice(sorted(self.versions))
        (_, served), (_, plain) = self.both("do", "read_held", key)
        assert served in (plain, self.versions[key])

    @precondition(lambda self: self.pool.freshness == "on_open")
    @rule(name=names, how=st.sampled_from(["write", "replace", "unlink", "chmod"]), seed=st.integers(0, 255))
    def change_from_outside(self, name: str, how: str, seed: int) -> None:
        for root in (self.place.source, self.place.root / "plain"):
            outside(root / name, how, seed)

    @rule()
    def settle(self) -> None:
        """Lets changed files be copied again."""
        if self.taken < 3:
            self.taken += 3
            support.settle(self.place.source)
            self.warm()

    def teardown(self) -> None:
        with self.stack:
            if hasattr(self, "plain"):
                self.same("do", "tree")
        if hasattr(self, "plain"):
            ran = self.served.end()
            self.pool.hits += ran.hits
            self.pool.stats_saved += ran.counters["stats_saved"]
            self.pool.listings_saved += ran.counters["listings_saved"]


def outside(path: Path, how: str, seed: int) -> None:
    try:
        if how == "write":
            path.write_bytes(bytes([seed]) * 200)
        elif how == "replace":
            path.with_name(".new").write_bytes(bytes([seed]) * 200)
            path.with_name(".new").rename(path)
        elif how == "unlink":
            path.unlink()
        else:
            path.chmod(0o600 + seed % 8)
    except OSError:
        # Refused, and so it is in the other tree.
        return


def run_machine(freshness: str, examples: int, steps: int, *phases: Phase) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be two users")
    with DifferentialPool(freshness) as pool:
        run_state_machine_as_test(
            type("Machine", (DifferentialMachine,), {"pool": pool}),
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                derandomize=examples < 1000,
                database=None,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate, *phases],
            ),
        )
        assert pool.hits > 3 * examples, "it is copies that were compared with"
        assert (pool.stats_saved > examples) == (freshness != "on_open"), "and what is known of them"
        assert (pool.listings_saved > 0) == (freshness != "on_open"), "and of directories"


@pytest.mark.parametrize("freshness", ["ttl=60", "immutable", "on_open"])
def test_nothing_else_differs(freshness: str) -> None:
    run_machine(freshness, 20, 30)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("freshness", ["ttl=60", "immutable", "on_open"])
def test_nothing_else_differs_for_long(freshness: str) -> None:
    run_machine(freshness, 1000, 60, Phase.shrink)
