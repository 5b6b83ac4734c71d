"""A clone of another number of ranks: what all held alike is exact, and the rest is dealt or refused by name."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch
from torch import nn

import forebay
import forebay.clone as clone
from forebay import _core
from forebay.clone import _session, _source
from forebay.clone._dealt import PLACE, left_out
from forebay.clone._position import LoaderPosition
from forebay.clone._resume import CloneRequest, Resumed, resume
from forebay.clone._values import spelled
from forebay.torch import DataLoader
from tests import support
from tests.clone import jobs
from tests.clone.forks import CloneNode, Opened
from tests.clone.jobs import StateJob, full
from tests.clone.manifests import with_digests, with_kinds

SetRank = Callable[[int, int], None]


def portable(made: StateJob) -> dict[str, bool]:
    return {spelled(component.path): component.portable for component in made.inventory()._components}


def held(made: StateJob, ranks: int, *differing: str) -> list[clone.Manifest]:
    """Returns the manifests of a job's ranks, of which the last has something else at these paths."""
    manifest = made.inventory().manifest()
    assert set(differing) <= {entry.path for entry in manifest.entries}
    other = with_digests(manifest, dict.fromkeys(differing, bytes(range(16))))
    last = dataclasses.replace(other, rank=ranks - 1, ranks=ranks)
    return [*(dataclasses.replace(manifest, rank=rank, ranks=ranks) for rank in range(ranks - 1)), last]


def with_generators() -> StateJob:
    made = full(1)
    made.loader = None
    made.step()
    return made


@pytest.mark.parametrize(
    ("path", "mend"),
    [
        ("model/gradients/head.bias", "start the clone with as many"),
        ("model/buffers/features.1.running_mean", "start the clone with as many"),
        ("generators/process/torch/cpu", "add --set seed=N, which gives each rank a seed of its own"),
        ("generators/named/torch/state", "start the clone with as many"),
    ],
)
def test_what_is_each_ranks_own_is_refused_by_name(path: str, mend: str) -> None:
    made = with_generators()
    assert left_out(held(made, 2), 3, portable(made), is_seeded=False) == set(), "alike in all"
    with pytest.raises(clone.DifferenceError, match=rf"^{path} is each rank's own, and its parent has 2 ranks, this clone 3: {mend}"):
        left_out(held(made, 2, path), 3, portable(made), is_seeded=False)


def test_a_seed_stands_for_generators_and_for_nothing_else() -> None:
    made = with_generators()
    differing = held(made, 2, "generators/process/torch/cpu", "generators/process")
    assert left_out(differing, 1, portable(made), is_seeded=True) == {"generators/process"}
    with pytest.raises(clone.DifferenceError, match="generators/named/numpy"):
        left_out(held(made, 2, "generators/named/numpy"), 1, portable(made), is_seeded=True)


def test_generators_of_one_rank_are_not_those_of_two() -> None:
    """They would draw alike: dropout and order of data the same in all ranks."""
    made = with_generators()
    with pytest.raises(
        clone.DifferenceError, match=r"generators/process.* is each rank's own, and its parent has 1 rank, this clone 2: add"
    ):
        left_out(held(made, 1), 2, portable(made), is_seeded=False)
    with pytest.raises(clone.DifferenceError, match="generators/named/"):
        left_out(held(made, 1), 2, portable(made), is_seeded=True)


def test_what_is_replicated_has_to_be_so() -> None:
    made = with_generators()
    with pytest.raises(clone.DifferenceError, match=r"^model/parameters/head.weight is not the same in all ranks of its parent"):
        left_out(held(made, 3, "model/parameters/head.weight"), 2, portable(made), is_seeded=True)


def test_what_is_sharded_is_left_to_the_boxes_and_what_tells_them_is_not_loaded() -> None:
    made = with_generators()
    manifests = [
        with_kinds(manifest, lambda path, kind: kind._replace(placement=clone.Placement.SHARDED) if "head" in path else kind)
        for manifest in held(made, 2, "model/parameters/head.weight", "model/trainable")
    ]
    with pytest.raises(clone.DifferenceError, match=r"^model/trainable is not the same in all ranks"):
        left_out(manifests, 4, portable(made), is_seeded=True)
    assert left_out(manifests, 4, portable(made), is_seeded=True, boxes=["model/trainable"]) == {"generators/process", "model/trainable"}


def test_a_loaders_place_is_dealt_by_ours_alone() -> None:
    made = with_generators()
    made.loader = jobs.Position()
    with pytest.raises(clone.DifferenceError, match=r"^loader/.*: a forebay.torch.DataLoader's place is good for any number of ranks"):
        left_out(held(made, 2), 1, portable(made), is_seeded=True)
    made.loader = DataLoader(torch.utils.data.TensorDataset(torch.ones(8)), batch_size=2, seed=1)
    assert left_out(held(made, 2), 1, portable(made), is_seeded=False) == set()


def test_buffers_are_rank_0s_where_ddp_gives_them_to_all(single_rank: None) -> None:
    made = jobs.job()
    wrapped = nn.parallel.DistributedDataParallel(made.model)
    kept = nn.parallel.DistributedDataParallel(made.model, broadcast_buffers=False)
    path = "model/buffers/features.1.running_mean"
    for model, expected in ((wrapped, clone.Placement.LEADING), (kept, clone.Placement.PER_RANK), (made.model, clone.Placement.PER_RANK)):
        entries = {entry.path: entry.placement for entry in made.inventory(model=model).manifest().entries}
        assert entries[path] is expected
    made.model = wrapped
    assert left_out(held(made, 2, path), 1, portable(made), is_seeded=True) == {"generators/process"}


@pytest.fixture
def single_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    place = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group("gloo", init_method=place.as_uri(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


class Small:
    """A job whose data are always the same."""

    def __init__(self, number: int) -> None:
        jobs.seed(number)
        self.model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        self.optimizer = jobs.momentum(self.model)
        self.samples = torch.arange(12.0).reshape(4, 3)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.samples).square().mean().backward()
        self.optimizer.step()

    def session(self) -> clone.Session:
        return clone.session(model=self.model, optimizer=self.optimizer, scheduler=None, scaler=None, ema=None, loader=None, job="trunk")

    def inventory(self) -> clone.Inventory:
        kinds = {"scheduler": None, "scaler": None, "ema": None, "loader": None}
        return clone.inventory(model=self.model, optimizer=self.optimizer, counters={}, others={PLACE: LoaderPosition()}, **kinds)


@pytest.fixture
def set_rank(monkeypatch: pytest.MonkeyPatch) -> SetRank:
    """Which rank a thread is, from then on."""
    of_thread = threading.local()
    monkeypatch.setattr("forebay.torch._state.rank", lambda: getattr(of_thread, "rank", (0, 1)))

    def set_it(rank: int, ranks: int) -> None:
        of_thread.rank = (rank, ranks)

    return set_it


class RanksParent:
    """A job of several ranks, played by this thread."""

    def __init__(self, set_rank: SetRank, ranks: int, stack: contextlib.ExitStack, *, apart: bool = False, steps: int = 2) -> None:
        self.made = [Small(1) for _ in range(ranks)]
        if apart:
            with torch.no_grad():
                self.made[-1].model.get_parameter("0.bias").add_(1)
        self.sessions: list[clone.Session] = []
        self.step = 0
        self._set_rank = set_rank
        stack.callback(set_rank, 0, 1)
        for rank, made in enumerate(self.made):
            set_rank(rank, ranks)
            self.sessions.append(made.session())
            stack.callback(self.sessions[-1].close)
        self.train(steps)

    def train(self, steps: int, *, draws: bool = False) -> None:
        for _ in range(steps):
            self.step += 1
            for rank, (made, session) in enumerate(zip(self.made, self.sessions, strict=True)):
                self._set_rank(rank, len(self.made))
                if draws:
                    torch.rand(1)
                made.step()
                session.point(epoch=0, step=self.step)


def become(set_rank: SetRank, asked: str, rank: int, ranks: int) -> tuple[clone.Inventory, Resumed]:
    set_rank(rank, ranks)
    inventory = Small(9).inventory()
    return inventory, resume(CloneRequest.from_json(asked), inventory, float(support.PROGRAM_S))


@pytest.mark.parametrize(("theirs", "ours"), [(1, 2), (2, 1), (2, 3), (3, 2)])
def test_p14_the_state_is_exact_on_any_number_of_ranks(theirs: int, ours: int, here: CloneNode, opened: Opened, set_rank: SetRank) -> None:
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(ours) as executor:
        parent = RanksParent(set_rank, theirs, stack)
        with here.cloning("trunk", "--at", "4", "--set", "seed=7") as asked:
            parent.train(2, draws=True)
            state = parent.sessions[0]._inventory.manifest()
            futures: list[Future[tuple[clone.Inventory, Resumed]]] = [
                executor.submit(become, set_rank, asked, rank, ours) for rank in range(ours)
            ]
            for inventory, resumed in [future.result() for future in futures]:
                differing = state.differences(inventory.manifest())
                assert {path.split("/")[0] for path in differing} <= {"generators"}
                assert (resumed.name, resumed.lineage.parent_ranks, resumed.lineage.step) == ("trunk.1", theirs, 4)
            assert [job["clones"] for job in here.jobs()] == [1]
            (fork,) = parent.sessions[0].forks
            assert fork.copied == fork.length
        parent.train(1)


def test_a_clone_of_other_ranks_without_a_seed_is_told_to_have_one(here: CloneNode, opened: Opened, set_rank: SetRank) -> None:
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as executor:
        parent = RanksParent(set_rank, 2, stack)
        with here.cloning("trunk", "--at", "4") as asked:
            parent.train(2, draws=True)
            with pytest.raises(clone.DifferenceError, match=r"generators/process.* add --set seed=N"):
                executor.submit(become, set_rank, asked, 0, 1).result()


def test_a_loop_that_can_not_find_its_place_on_other_ranks_says_so(here: CloneNode, opened: Opened, set_rank: SetRank) -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(12)), batch_size=2)
    made = Small(1)
    session = made.session()
    with contextlib.closing(session), here.cloning("trunk", "--at", "3", "--set", "seed=1") as asked, ThreadPoolExecutor(2) as executor:
        for _ in session.epochs(1):
            for _ in session.batches(loader):
                made.step()

        def go_on(rank: int) -> None:
            inventory, resumed = become(set_rank, asked, rank, 2)
            state = _session.SessionState(loader_has_place=False, limits=_source.Limits(), shadow=0)
            state.place.batch = 3
            entered = clone.Session(resumed.name, inventory, state, resumed.lineage, forkable=False)
            next(entered.batches(loader))

        for future in [executor.submit(go_on, rank) for rank in range(2)]:
            with pytest.raises(
                clone.CloneError,
                match=r"its parent, of another number of ranks \(1\), had had 3 batches of this epoch in each: fork it between",
            ):
                future.result()


def test_ranks_that_are_not_those_of_one_job_are_found_at_the_first_point(here: CloneNode, opened: Opened, set_rank: SetRank) -> None:
    with contextlib.ExitStack() as stack:
        parent = RanksParent(set_rank, 2, stack, apart=True)
        parent.train(1)
        done = here.type("clone", "trunk", "--", "true")
        assert done.returncode == 2
        assert "trunk can't be forked: at its first point model/parameters/0.weight is not the same in rank 0 and rank 1" in done.stderr


def test_f51_an_agent_that_was_replaced_before_the_first_point_is_joined(
    here: CloneNode, opened: Opened, set_rank: SetRank, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The next one has taken away the secret that the ranks were told of."""
    monkeypatch.setattr("forebay.clone._source.LOOK_EVERY_S", float("inf"))
    with contextlib.ExitStack() as stack:
        parent = RanksParent(set_rank, 2, stack, steps=0)
        here.kill_agent()
        assert _core.start_fork_agent(forebay.command()) == str(here.forks)
        parent.train(1)
        monkeypatch.setattr("forebay.clone._source.LOOK_EVERY_S", 0.0)

        def is_back() -> bool:
            parent.train(1)
            return [(job["job"], job["ranks_here"], job["bytes"] > 0) for job in here.jobs()] == [("trunk", 2, True)]

        support.wait_until(is_back, "the job at the next agent")
        assert "can't be forked" not in capfd.readouterr().err
