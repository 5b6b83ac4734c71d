"""One fork after the other of a job that trains: what each cost, how long it took, whether it is exact.

And what it is compared with.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.clone_jobs import ForkNode, LineRanks, Told
from bench.report import BenchReport, What
from bench.session import ProgramError

GIB = 1 << 30
# After the fork: the step that follows it, one in which a slow clone may still load, and three without a fork.
AFTER = 5
# A job that is not forked by then will not be.
FORKED_S = 300.0
# A fork may be dropped, since the next step came before its clone had read the state. So often for each that is wanted
# one is asked for.
TRIES_MAX = 2
# Several clones are to have one state: they get so many steps to be there.
AHEAD = 4
ASKED_S = 1.0
STALL_SHARE, STALL_S = 0.01, 0.002
CPU_S_A_GIB, ASIDE_S_A_GIB, AGENT_S_A_GIB = 0.01, 0.1, 0.1
MEMCPY_MAX, MEMCPY_OF_FOUR_MAX = 1.5, 1.3


@dataclass(frozen=True)
class CloneResults:
    """The clones of a fork. Times in seconds, of the rank that fared worst."""

    # Until the last rank of the last clone could go on: from the beginning of the step at whose end the state is taken,
    # since by then clones have to be there; and from that end.
    standby_s: float
    readiness_s: float
    memcpy_s: float
    # Entries that differ between source and clones at the fork, and entries and losses that do AFTER steps on.
    differing: int
    differing_later: int


@dataclass(frozen=True)
class Forked:
    """A fork, and what it cost the source. Times in seconds, of the rank that fared worst; bytes are a rank's."""

    # Bytes of the state, and of it those copied to the copy-on-write buffer.
    bytes: int
    aside_bytes: int
    # A step without a fork, in the same round.
    step_s: float
    # By how much the step that was forked and the next one were longer than two of these.
    overhead_s: float
    # What our calls and hooks took of the training thread, as measured around them and as the session says itself.
    stall_s: float
    told_stall_s: float
    # What they and our threads took of the processor.
    cpu_s: float
    # The fork agent.
    agent_s: float
    # None: it was dropped, since the next step came before its clones had read the state.
    clones: CloneResults | None


def fork(node: ForkNode, source: LineRanks, clones: LineRanks, ranks: int, *, digest: bool = True, further: bool = True) -> Forked:
    """Forks a source of `ranks` ranks once.

    Into one clone of as many, or, where `ranks` is 1, into as many clones as stand by.

    Gives it with a memcpy of as many bytes by all ranks of the clones at once, while the source trains. `digest`:
    states are compared; `further`: after more steps of both, too.
    """
    agent_before = node.agent_cpu_s()
    with contextlib.ExitStack() as stack:
        at = "next"
        count = len(clones)
        each = 1 if ranks > 1 else count
        if each > 1:
            at = str(source.ask(op="run", steps=1)[0]["steps"][0]["step"] + AHEAD)
        asked = [stack.enter_context(node.cloning(at)) for _ in range(each)]
        clones.tell_each([{"op": "become", "asked": asked[number % each], "digest": digest} for number in range(count)])
        if each > 1:
            time.sleep(ASKED_S)
        runs = source.ask(op="run", until_forked=True, after=AFTER, within=FORKED_S, digest=digest)
        became = clones.hear()
    agent_s = node.agent_cpu_s() - agent_before
    forked = [forked_at(run) for run in runs]
    if any("refused" in one for one in became):
        clones.ask(op="leave")
        return cost(runs, forked, agent_s, None)
    later = clones.ask(op="run", steps=AFTER, digest=digest) if further else []
    clones.ask(op="leave")
    memcpy_s = memcpy(source, clones, runs[0]["steps"][forked[0]]["fork"][0]["bytes"])
    return cost(runs, forked, agent_s, results(runs, forked, became, later, memcpy_s))


def wanted(count: int, one: Callable[[], Forked]) -> list[Forked]:
    """Forks until so many have clones, and those that were dropped.

    Raises:
        ProgramError: too many are dropped.
    """
    found: list[Forked] = []
    while len(there(found)) < count:
        if len(found) == TRIES_MAX * count:
            raise ProgramError(f"of {len(found)} forks {len(found) - len(there(found))} were dropped")
        found.append(one())
    return found


def there(found: Sequence[Forked]) -> list[CloneResults]:
    """The clones of those that were not dropped."""
    return [one.clones for one in found if one.clones is not None]


def memcpy(source: LineRanks, clones: LineRanks, length: int) -> float:
    """Seconds from the first one's beginning to the last one's end, begun at a step's end as clones begin to load."""
    clones.ask(op="memcpy", length=length)
    source.tell(op="run", steps=3, mark=1)
    source.hear_first()
    clones.tell(go=True)
    copied = clones.hear()
    source.hear()
    return float(max(one["ready"] for one in copied) - min(one["begun"] for one in copied))


def forked_at(run: Told) -> int:
    """Which of the steps that were told was forked.

    Raises:
        ValueError: none was.
    """
    for number, step in enumerate(run["steps"]):
        if step["fork"]:
            return number
    raise ValueError(f"the job was not forked in {len(run['steps'])} steps")


def cost(runs: Sequence[Told], at: Sequence[int], agent_s: float, clones: CloneResults | None) -> Forked:
    """Collects the source ranks' reports on a fork, each of which was forked at its step number `at`."""
    forks = [run["steps"][number] for run, number in zip(runs, at, strict=True)]
    plain = [statistics.median(step["seconds"] for step in run["steps"][number + 3 :]) for run, number in zip(runs, at, strict=True)]
    two = [sum(step["seconds"] for step in run["steps"][number : number + 2]) for run, number in zip(runs, at, strict=True)]
    return Forked(
        bytes=max(fork["fork"][0]["bytes"] for fork in forks),
        aside_bytes=max(fork["fork"][0]["aside_bytes"] for fork in forks),
        step_s=max(plain),
        overhead_s=max(both - 2 * one for both, one in zip(two, plain, strict=True)),
        stall_s=max(grown(run, number, "own_wall_s") for run, number in zip(runs, at, strict=True)),
        told_stall_s=max(fork["fork"][0]["stall_s"] for fork in forks),
        cpu_s=max(grown(run, number, "own_cpu_s") for run, number in zip(runs, at, strict=True)),
        agent_s=agent_s,
        clones=clones,
    )


def results(runs: Sequence[Told], at: Sequence[int], became: Sequence[Told], later: Sequence[Told], memcpy_s: float) -> CloneResults:
    """Collects the results of the clone's ranks, or of all clones, beside the source's."""
    forks = [run["steps"][number] for run, number in zip(runs, at, strict=True)]
    ready = max(one["ready"] for one in became)
    # What clones of one rank each are compared with is the source's only rank.
    of_source = [number % len(runs) for number in range(len(became))]
    return CloneResults(
        standby_s=ready - min(fork["begin"] for fork in forks),
        readiness_s=ready - max(fork["point"] for fork in forks),
        memcpy_s=memcpy_s,
        differing=sum(differing(forks[number]["digests"], one["digests"]) for number, one in zip(of_source, became, strict=True)),
        differing_later=sum(
            differing(runs[number]["digests"], one["digests"]) + losses_apart(runs[number], at[number], one)
            for number, one in zip(of_source, later, strict=bool(later))
        ),
    )


def grown(run: Told, at: int, what: str) -> float:
    """Returns the growth of a sum from the fork's announcement, a point before it, to the end of the step after it."""
    costs: list[Any] = [run["before"], *run["steps"]]
    return float(costs[at + 2][what] - costs[max(at - 1, 0)][what])


def differing(one: dict[str, str], other: dict[str, str]) -> int:
    """Entries that only one has, or that are not the same."""
    return sum(one.get(path) != other.get(path) for path in {**one, **other})


def losses_apart(run: Told, at: int, clone: Told) -> int:
    """Returns the steps after the fork whose losses differ in any bit."""
    mine = [step["loss"] for step in run["steps"][at + 1 :]]
    others = [step["loss"] for step in clone["steps"]]
    return sum(one != other for one, other in zip(mine, others, strict=True))


def stall(scenario: str) -> What:
    """The figure of how long training stood still for a fork, and its bar."""
    return What(scenario, "stall over the larger of 1 % of a step and 2 ms", "x", 1.0)


def of_stall_bar(stall_s: float, step_s: float) -> float:
    """Returns the stall of a fork over what it may be for steps of this length."""
    return stall_s / max(STALL_SHARE * step_s, STALL_S)


def add(report: BenchReport, scenario: str, found: Sequence[Forked]) -> None:
    """Rows about a job's forks: exactness, the source's cost, readiness."""
    clones = there(found)
    note = f"{found[0].bytes / (1 << 20):,.0f} MiB a rank; a step takes {statistics.median(one.step_s for one in found) * 1e3:,.0f} ms"
    report.count(What(scenario, "entries that differ at the fork", "entries", 0), [one.differing for one in clones], note)
    report.count(
        What(scenario, f"entries and losses that differ {AFTER} steps on", "entries and losses", 0), [one.differing_later for one in clones]
    )
    stalls = [of_stall_bar(one.stall_s, one.step_s) for one in found]
    note = f"stall, ms: {listed([one.stall_s for one in found])}; as the session says: {listed([one.told_stall_s for one in found])}"
    report.time(stall(scenario), stalls, note)
    cpu = [(one.cpu_s - ASIDE_S_A_GIB * one.aside_bytes / GIB) * GIB / one.bytes for one in found]
    aside = " ".join(f"{one.aside_bytes / one.bytes:.0%}" for one in found)
    note = f"all of it, ms: {listed([one.cpu_s for one in found])}; copied aside: {aside}"
    report.time(What(scenario, "the training process's CPU, less 0.1 s a GiB copied aside", "s/GiB", CPU_S_A_GIB), cpu, note)
    agent = [one.agent_s * GIB / one.bytes for one in found]
    report.time(What(scenario, "the agent's CPU", "s/GiB", AGENT_S_A_GIB), agent)
    ready(report, scenario, found, MEMCPY_MAX)
    report.time(What(scenario, "overhead of the two steps", "s"), [one.overhead_s for one in found])
    report.time(What(scenario, "standby", "s"), [one.standby_s for one in clones])


def ready(report: BenchReport, scenario: str, found: Sequence[Forked], bar: float) -> None:
    """Rows about readiness."""
    clones = there(found)
    dropped(report, scenario, len(found) - len(clones), len(found))
    ratios = [one.readiness_s / one.memcpy_s for one in clones]
    note = f"ms: {listed([one.readiness_s for one in clones])}; memcpy, ms: {listed([one.memcpy_s for one in clones])}"
    baseline = "memcpy into touched memory, by as many processes, while the source trains"
    report.time(What(scenario, "readiness, verification included, over a memcpy", "x", bar, baseline), ratios, note)
    report.time(What(scenario, "readiness", "s"), [one.readiness_s for one in clones])


def dropped(report: BenchReport, scenario: str, count: int, of: int) -> None:
    """A row about forks that were dropped."""
    what = What(scenario, "forks dropped, since the next step came before the state was read", "forks", 0)
    report.once(what, count, f"of {of}")


def listed(seconds: Sequence[float]) -> str:
    """In milliseconds."""
    return " ".join(f"{each * 1e3:.1f}" for each in seconds)
