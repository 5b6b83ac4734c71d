"""The loader agent and its source: the same bytes as the files have, whatever becomes of the agent."""

import os
import re
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forebay import _core
from forebay.loader import DirectSource, Extent, LoaderError, Request
from forebay.loader import _joining as module
from forebay.loader._agent import AgentRank, cached_share
from forebay.loader._agent_source import AgentBatch, AgentSource
from forebay.loader._joining import AgentJoining
from forebay.loader._place import RankPlace, place_of
from forebay.loader._settings import AgentSettings, Kept, kept
from tests.loader.node import SAMPLES, LoaderNode
from tests.loader.singly import Singly
from tests.support import LONG_S, settle, wait_until

BATCH = 5
# Nothing is read twice because the machine is slow.
SETTINGS = AgentSettings(SAMPLES, BATCH, seed=0, window=6, window_bytes=1 << 20, hedge_budget=0.0)
RAM = ("ram=1M",)


def alone() -> RankPlace:
    place = place_of(0, 1)
    assert place is not None
    return place


def made(cache: tuple[str, ...] = RAM, *, name: str = "0", place: RankPlace | None = None, **changed: Any) -> AgentRank:
    settings = replace(SETTINGS, **changed)
    return AgentRank(AgentJoining(name, SAMPLES, settings, alone() if place is None else place, cache))


def begun(agent: AgentRank, node: LoaderNode) -> AgentSource:
    source = agent.source(DirectSource())
    source.register(None, node.locate)
    return source


def two_ranks(*changed: dict[str, Any]) -> list[AgentRank]:
    """The ranks of a job of two, each with settings of its own."""
    return [made(place=RankPlace("job", rank, 2, rank, 2), **of_rank) for rank, of_rank in enumerate(changed or ({}, {}))]


def both_begun(agents: list[AgentRank], node: LoaderNode) -> list[AgentSource]:
    """Epochs of two ranks, which wait for each other."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda agent: begun(agent, node), agents))


def epoch(source: AgentSource, node: LoaderNode, order: list[int] | None = None, check: Callable[[int], None] = lambda _: None) -> None:
    """An epoch as a loader goes through it: some batches are requested ahead, each is read and released."""
    order = list(range(SAMPLES)) if order is None else order
    batches = [order[at : at + BATCH] for at in range(0, len(order), BATCH)]
    requested = 0
    requests: deque[Request] = deque()
    for iteration, batch in enumerate(batches):
        while requested < min(len(batches), iteration + 4):
            requests.append(source.request(batches[requested], requested))
            requested += 1
        request = requests.popleft()
        for place, sample in enumerate(batch):
            check(sample)
            assert bytes(request.read(place)) == node.content(sample)
        request.release()


def epochs(agent: AgentRank, node: LoaderNode, count: int) -> int:
    """Goes through epochs; returns the number of samples that the rank has read itself."""
    direct = 0
    for number in range(count):
        source = begun(agent, node)
        # Each in another order.
        epoch(source, node, [(sample * 7 + number) % SAMPLES for sample in range(SAMPLES)])
        direct += source.direct_reads
        source.close()
    return direct


def test_all_is_read_once_and_then_comes_from_memory(node: LoaderNode) -> None:
    agent = made()
    assert epochs(agent, node, 3) == 0
    figures = agent.figures()
    assert (figures["from_source"], figures["from_memory"], figures["lost"]) == (SAMPLES, 2 * SAMPLES, 0)
    assert agent.lost is None
    since = agent.since()
    assert "67 % were cached" in cached_share(since)
    assert since["rank_reads"] == SAMPLES
    assert since["rank_reading_us"] > 0
    again = agent.since()
    # The counters start again.
    assert (again["from_source"], again["rank_reads"], again["rank_threads_most"]) == (0, 0, since["rank_threads_most"])
    agent.close()
    assert agent.figures() == agent.since() == {}
    assert cached_share({}) == ""


def test_the_path_of_an_extent_may_be_one_of_pathlibs(node: LoaderNode) -> None:
    def locate(sample: int) -> Any:  # noqa: ANN401
        extent = node.locate(sample)
        return extent._replace(path=Path(extent.path))  # type: ignore[arg-type]

    agent = made()
    source = agent.source(DirectSource())
    source.register(None, locate)
    epoch(source, node)
    assert source.direct_reads == 0
    source.close()
    agent.close()


def test_what_lies_on_a_disk_serves_the_next_job(node: LoaderNode) -> None:
    settle(*(node.path(sample) for sample in range(SAMPLES)))
    for job in range(2):
        agent = made((f"{node.cache}=16M",), place=replace(alone(), job=f"job-{job}"))
        assert epochs(agent, node, 3) == 0
        figures = agent.figures()
        agent.close()
        # What had to be dropped while the disk was behind is read once more.
        assert figures["from_source"] <= (2 * SAMPLES if job == 0 else SAMPLES // 2), figures
        assert figures["from_disk"] > SAMPLES // 2, figures
    assert figures["left_by_others"] > SAMPLES // 2


def test_a_view_stays_as_it_is_as_long_as_anything_refers_to_it(node: LoaderNode) -> None:
    largest = max(range(SAMPLES), key=lambda sample: len(node.content(sample)))
    # So little memory that all of it is used again and again.
    agent = made(window_bytes=40_000, policy="none")
    source = begun(agent, node)
    request = source.request([largest], 0)
    part = request.read(0)[10:]
    request.release()
    source.close()
    epochs(agent, node, 3)
    agent.close()
    assert bytes(part) == node.content(largest)[10:]
    assert part.readonly


def test_samples_are_found_where_they_lie_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    places: list[Any] = [
        Extent(f"{tmp_path}/a", 0, 10),
        Extent("a", 0, 10),
        Extent("b"),
        Extent("a", 10, 10),
        (Path("b"), 0, None, 0),
        Extent("c"),
        Extent("a", -1, 10),
        Extent("a", 0, 10, mark=1),
        Extent("\udcff"),
        None,
    ]
    table = _core.LoaderTable()
    for place in (places[0], places[2], places[3], places[8]):
        table.add(module.encoded(place[0]), *place[1:])

    def locate(i: int) -> Any:  # noqa: ANN401
        if i == len(places):
            raise KeyboardInterrupt
        return places[i]

    found = [0, 0, 1, 2, 1, None, None, None, 3, None, None]
    samples = [*range(len(places)), -99]
    assert table.find_all(samples, locate, module.encoded) == found
    assert table.find_all([3, 3, 2, 3], locate, module.encoded) == [2, 2, 1, 2]
    # What is not a sample's fault is raised.
    with pytest.raises(KeyboardInterrupt):
        table.find_all([0, len(places)], locate, module.encoded)


def test_the_agent_is_killed_and_the_epoch_goes_on_from_the_source(node: LoaderNode, capfd: pytest.CaptureFixture[str]) -> None:
    agent = made()
    source = begun(agent, node)

    def kill(sample: int) -> None:
        if sample == SAMPLES // 2:
            os.kill(node.agent(), signal.SIGKILL)

    epoch(source, node, check=kill)
    assert agent.lost is not None
    assert 0 < source.direct_reads <= SAMPLES // 2
    assert agent.figures() == {}
    # Not only when the next epoch begins.
    told = capfd.readouterr().err
    assert told.count("the loader agent does not serve rank 0, which reads for itself: the loader agent is gone") == 1
    # Then there is another agent, as often as it takes.
    for _ in range(2):
        assert epochs(agent, node, 2) == 0
        assert agent.lost is None
        figures = agent.since()
        assert (figures["from_source"], figures["from_memory"]) == (SAMPLES, SAMPLES)
        told = capfd.readouterr().err
        assert told.count("the loader agent serves rank 0 again") == 1
        node.kill_agent()
    agent.close()


def test_views_of_an_agent_that_is_gone_are_none_of_the_next(node: LoaderNode) -> None:
    largest = max(range(SAMPLES), key=lambda sample: len(node.content(sample)))
    agent = made(policy="none")
    source = begun(agent, node)
    request, other = source.request([largest], 0), source.request([5], 1)
    part = request.read(0)
    node.kill_agent()
    # The epoch goes on beside the next, which another agent serves: its turns have the same numbers.
    later = begun(agent, node)
    asked = later.request([7, 9], 0)
    assert bytes(other.read(0)) == node.content(5)
    assert bytes(part) == node.content(largest)
    for one in (request, other):
        one.release()
    del part
    assert [bytes(asked.read(place)) for place in range(2)] == [node.content(7), node.content(9)]
    assert later.direct_reads == 0
    asked.release()
    for each in (source, later):
        each.close()
    assert epochs(agent, node, 2) == 0
    assert agent.references == 0
    agent.close()


def test_a_rank_whose_epoch_had_begun_before_the_agent_was_killed_is_not_waited_for_long(
    node: LoaderNode, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "REJOIN_S", 0.5)
    agents = two_ranks()
    for source in both_begun(agents, node):
        source.close()
    first = begun(agents[0], node)
    node.kill_agent()
    # As with gradients that are averaged: the one waits in its epoch for what the other computes in that.
    second = begun(agents[1], node)
    for source in (second, first):
        epoch(source, node)
        source.close()
    assert all(agent.lost is not None for agent in agents)
    served = both_begun(agents, node)
    assert [agent.lost for agent in agents] == [None, None]
    for source in served:
        epoch(source, node)
        assert source.direct_reads == 0
        source.close()
    said = capfd.readouterr().err
    assert [said.count(f"the loader agent serves rank {rank} again") for rank in range(2)] == [1, 1]
    for agent in agents:
        agent.close()


def left_alone(node: LoaderNode) -> AgentRank:
    """The second of two ranks that have gone through an epoch; the first has left."""
    left, stays = pair = two_ranks()
    for source in both_begun(pair, node):
        source.close()
    left.close()
    rank = stays.rank
    assert rank is not None
    wait_until(lambda: rank.gone() == [0], "the other rank to hear of it", LONG_S)
    return stays


def test_where_a_rank_has_left_the_loader_it_is_not_begun_again(node: LoaderNode) -> None:
    stays = left_alone(node)
    node.kill_agent()
    assert epochs(stays, node, 1) == SAMPLES
    assert stays.lost is not None
    stays.close()


def test_an_agent_that_stands_still_is_not_waited_for(node: LoaderNode) -> None:
    agent = made()
    source = begun(agent, node)
    pid = node.agent()
    os.kill(pid, signal.SIGSTOP)
    epoch(source, node)
    assert source.direct_reads > 0
    assert agent.lost is not None
    assert "stands still" in agent.lost
    os.kill(pid, signal.SIGCONT)
    source.close()
    agent.close()


def test_an_agent_that_does_not_answer_is_asked_no_more(node: LoaderNode) -> None:
    agent = made()
    source = begun(agent, node)
    pid = node.agent()
    os.kill(pid, signal.SIGSTOP)
    assert agent.figures() == {}
    assert agent.lost == "the loader agent does not answer"
    os.kill(pid, signal.SIGCONT)
    source.close()
    agent.close()


def test_an_agent_that_ends_as_a_rank_comes_is_followed_by_another(node: LoaderNode, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    def has_ended() -> bool:
        try:
            node.agent()
        except OSError:
            return True
        return False

    def kept_by_one_that_ends(cache: Sequence[str]) -> Kept:
        found = kept(cache)
        if not ended:
            ended.append(node.agent())
            os.kill(ended[0], signal.SIGKILL)
            wait_until(has_ended, "the agent to end", LONG_S)
        return found

    monkeypatch.setattr(module, "kept", kept_by_one_that_ends)
    agent = made()
    assert epochs(agent, node, 1) == 0
    assert agent.lost is None
    assert ended != [node.agent()]
    agent.close()


def test_a_process_that_is_forked_reads_for_itself(node: LoaderNode) -> None:
    agent = made()
    source = begun(agent, node)
    rank = agent.rank
    assert rank is not None
    request = source.request([5], 0)
    assert isinstance(request, AgentBatch)
    child = os.fork()
    if child == 0:
        is_right = False
        try:
            batch = rank.batch([6])
            told: list[object] = [batch.pass_on(0, 0, 1), request.native.wait(0, LONG_S), request.native.wait_all(LONG_S)]
            told += [request.native.views(0, 1), rank.figures(), rank.gone()]
            rank.begin_step(0, 3)
            request.native.release()
            is_right = told == [False, True, True, [None], None, []] and "forked" in (rank.lost() or "")
        finally:
            # Nothing of the tests is to run here.
            os._exit(not is_right)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bytes(request.read(0)) == node.content(5)
    assert (source.direct_reads, agent.lost) == (0, None)
    request.release()
    source.close()
    agent.close()


def test_a_rank_that_leaves_is_told_of_once(node: LoaderNode, capfd: pytest.CaptureFixture[str]) -> None:
    stays = left_alone(node)
    for _ in range(2):
        begun(stays, node).close()
    assert capfd.readouterr().err.count("rank 0 has left this loader") == 1
    stays.close()


def test_what_the_rank_has_read_itself_is_not_asked_for(node: LoaderNode) -> None:
    # The request ring is too small for all of it.
    agent = made(window=1)
    source = begun(agent, node)
    singly = Singly(source)
    for sample in range(SAMPLES):
        singly.request(sample, sample // BATCH)
    first = SAMPLES - 3
    for sample in (first, *(sample for sample in range(SAMPLES) if sample != first)):
        assert bytes(singly.read(sample)) == node.content(sample)
        singly.release(sample)
    assert source.direct_reads > 0
    assert agent.figures()["from_source"] + source.direct_reads == SAMPLES
    source.close()
    agent.close()


def test_a_file_that_has_vanished_is_the_source_s_own_error(node: LoaderNode) -> None:
    agent = made()
    node.path(7).unlink()
    source = begun(agent, node)
    request = source.request([7], 0)
    with pytest.raises(FileNotFoundError):
        request.read(0)
    request.release()
    epoch(source, node, [sample for sample in range(SAMPLES) if sample != 7])
    assert agent.figures()["refused_failed"] == 1
    agent.close()


def test_a_file_that_changes_its_size_is_read_as_it_is(node: LoaderNode) -> None:
    agent = made(policy="none")
    source = begun(agent, node)
    for iteration, size in enumerate((10, 5000, 3, 0, 10)):
        node.path(7).write_bytes(bytes([iteration]) * size)
        request = source.request([7], iteration)
        assert bytes(request.read(0)) == bytes([iteration]) * size
        request.release()
    assert source.direct_reads == 0
    source.close()
    agent.close()


def test_nothing_grows_from_one_epoch_to_the_next(node: LoaderNode) -> None:
    # Half of it fits.
    agent = made(("ram=64K",))

    def held() -> tuple[int, int]:
        return len(list(Path(f"/proc/{pid}/fd").iterdir())), agent.references

    def is_as_before() -> bool:
        files, views = held()
        return files <= before[0] and views <= before[1]

    epochs(agent, node, 1)
    # To be told which it is takes a connection, which is closed by the time that the next epoch has ended.
    pid = node.agent()
    epochs(agent, node, 1)
    before = held()
    assert epochs(agent, node, 18) == 0
    # The last read has been answered; its file may only just be closed.
    wait_until(is_as_before, "files to be closed", LONG_S)
    shared_kib = int(Path(f"/proc/{pid}/status").read_text().partition("RssShmem:")[2].split()[0])
    # Window, cache, and a little for the request ring.
    assert shared_kib << 10 <= SETTINGS.window_bytes + (64 << 10) + (1 << 20)
    agent.close()


def test_samples_that_share_an_extent_have_it_read_once(node: LoaderNode) -> None:
    agent = made()
    source = agent.source(DirectSource())
    source.register(None, lambda sample: Extent(str(node.path(50 + sample % 2)), 100, 200))
    request = source.request(list(range(10)), 0)
    for sample in range(10):
        assert bytes(request.read(sample)) == node.content(50 + sample % 2)[100:300]
    assert agent.figures()["from_source"] == 2
    request.release()
    agent.close()


def test_where_samples_lie_may_change_with_the_epoch(node: LoaderNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are located when they are requested; the rank reads those that the agent does not know.

    Paths may be relative.
    """
    monkeypatch.chdir(node.files)
    (node.files / "new").write_bytes(b"new")
    agent = made()
    begun(agent, node).close()
    source = agent.source(DirectSource())
    source.register(None, lambda sample: Extent("new" if sample == 3 else str((sample + 1) % SAMPLES)))
    request = source.request(list(range(10)), 0)
    for sample in range(10):
        assert bytes(request.read(sample)) == (b"new" if sample == 3 else node.content(sample + 1))
    request.release()
    assert agent.figures()["from_source"] == 9
    agent.close()


def test_who_waits_is_woken_when_it_is_closed(node: LoaderNode) -> None:
    agent = made()
    source = begun(agent, node)
    pid = node.agent()
    os.kill(pid, signal.SIGSTOP)
    request = source.request([5], 0)
    told: list[str] = []

    def ask() -> None:
        try:
            request.read(0)
        except LoaderError as error:
            told.append(str(error))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    source.close()
    asking.join(LONG_S)
    os.kill(pid, signal.SIGCONT)
    assert told == ["the source is closed"]
    with pytest.raises(LoaderError, match="the source is closed"):
        source.request([6], 0)


@pytest.mark.parametrize(("changed", "what"), [({"seed": 7}, "the seed: 0 and 7"), ({"batch": 6}, "the batch size: 5 and 6")])
def test_ranks_that_disagree_are_told_the_same(node: LoaderNode, changed: dict[str, Any], what: str) -> None:
    agents = two_ranks({}, changed)

    def refused(agent: AgentRank) -> str:
        with pytest.raises(LoaderError) as refusal:
            begun(agent, node)
        return str(refusal.value)

    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(refused, agents))
    first, second = told
    assert first == second
    # Whoever came first is named first.
    assert what in first or " and ".join(reversed(what.partition(": ")[2].split(" and "))) in first
    line = rf'\d+ WARN refused kind="invalid" pid={os.getpid()} why="{re.escape(first)}"'
    assert [re.fullmatch(line, logged) is not None for logged in node.refusals()] == [True, True]


def test_a_rank_that_is_alone_reads_for_itself(
    node: LoaderNode, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.0)
    monkeypatch.setattr(module, "GATHER_S", 0.0)
    agent = made(place=RankPlace("job", 0, 2, 0, 2))
    assert epochs(agent, node, 1) == SAMPLES
    assert agent.lost is not None
    waiting, ended = capfd.readouterr().err.splitlines()
    assert "waiting for the other rank of this node to begin an epoch of this loader, or for a disk of cache=; after 0 s" in waiting
    assert "not all 2 ranks of this node have begun an epoch" in ended


def test_settings_that_can_not_be_are_told_and_logged(node: LoaderNode, caplog: pytest.LogCaptureFixture) -> None:
    settings: list[tuple[dict[str, Any], str]] = [
        ({"window": 0}, "window = 0"),
        ({"policy": "best"}, "best"),
        ({"reads_max": 10_000}, "reads_max"),
    ]
    for changed, what in settings:
        agent = made(**changed)
        with pytest.raises(LoaderError, match=what) as refused:
            begun(agent, node)
        assert (caplog.messages[-1], caplog.records[-1].name) == (f"refused: {refused.value}", "forebay")
    # The rank itself refuses a policy that it does not know.
    assert [what in line for line, (_, what) in zip(node.refusals(), settings[::2], strict=True)] == [True, True]


@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("ram=much", "much"),
        ("/nowhere=1G", "/nowhere does not exist"),
        ("/", "SIZE"),
        ("ram=9999T", "are free; give a smaller ram=, or end what takes the rest"),
    ],
)
def test_a_cache_that_can_not_be_is_told(node: LoaderNode, word: str, what: str) -> None:
    with pytest.raises((ValueError, LoaderError), match=what):
        begun(made((word,)), node)


def test_without_an_agent_all_is_read_directly(
    node: LoaderNode, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FOREBAY_RUNTIME_DIR", "/proc/nowhere")
    agent = made()
    assert kept(RAM).directory is None
    epochs(agent, node, 1)
    assert agent.lost is not None
    assert capfd.readouterr().err.count("the loader agent does not serve rank 0") == 1


def test_where_a_process_is_on_its_node() -> None:
    torchrun = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "29500"}
    place = place_of(5, 8, torchrun)
    assert place is not None
    assert (place.rank, place.world, place.local_rank, place.local_ranks) == (5, 8, 1, 4)
    assert "29500" in place.job
    srun = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x3),4"}
    assert place_of(8, 10, srun | {"SLURM_NODEID": "3"}) == RankPlace("7-0", 8, 10, 2, 4)
    assert place_of(4, 10, srun | {"SLURM_NODEID": "2"}) is None, "there is no third one"
    assert place_of(4, 10, srun | {"SLURM_NODEID": "4"}) is None
    open_mpi = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-node0-28254@1"}
    assert place_of(3, 4, open_mpi) == RankPlace("prterun-node0-28254@1", 3, 4, 1, 2)
    mpich = {"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", "PMI_JOBID": "node0:44975"}
    assert place_of(2, 4, mpich) == RankPlace("node0:44975", 2, 4, 0, 2)
    ray = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.4", "MASTER_PORT": "41234"}
    assert place_of(3, 4, ray) == RankPlace("10.0.0.4-41234", 3, 4, 1, 2)
    assert place_of(5, 8, {}) is None
    assert place_of(0, 8, torchrun | {"LOCAL_RANK": "4"}) is None
    assert place_of(0, 1, {}) == RankPlace("process", 0, 1, 0, 1)


def test_a_process_that_was_forked_is_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, shared = RankPlace("process", 0, 1, 0, 1), RankPlace("7-0", 8, 10, 2, 4)
    own, before = os.getpid(), alone.name
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert (before, alone.name, shared.name) == (f"process-{own}", "process--1", "7-0")
