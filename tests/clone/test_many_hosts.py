"""Jobs whose ranks are on several hosts, and their clones on others: nodes with directories of their own."""

import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import support
from tests.clone.forks import CloneNode, node, told
from tests.clone.test_hosts import PROGRAM, ServedTrunk, clone_from, cut_off, finished, port_of, serving

TRAIN = ["-m", "tests.clone.train"]
SHARDED = ["-m", "tests.clone.train_ranks", "fsdp"]
MORE = [pytest.param(2, 2, marks=pytest.mark.long), pytest.param(3, 1, marks=pytest.mark.long)]
"""Numbers of hosts, and of ranks on each, that take long."""
WIDER = "4096"
"""Width of a network whose state has several parts."""
STEPS_AHEAD = 300
"""Steps within which four clones are ready, about: a late one gets the same state."""
SENT_MAX = 1.2


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def launched(hosts: int, each: int, number: int, port: int) -> list[str]:
    """Words before a program that start its ranks on one of several hosts.

    A rank alone is started as torchrun would, without a process of torchrun's own, which takes as long to start.
    test_fork_guide.py and the long tests have real ones.
    """
    if each == 1:
        here = [f"RANK={number}", f"WORLD_SIZE={hosts}", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1"]
        return ["env", *here, "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={port}", sys.executable]
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={hosts}", f"--nproc-per-node={each}"]
    return [*launcher, f"--node-rank={number}", "--master-addr=127.0.0.1", f"--master-port={port}"]


def standalone(ranks: int) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]


@contextlib.contextmanager
def job_on(hosts: Sequence[CloneNode], each: int, *options: str, program: Sequence[str] = TRAIN) -> Iterator[list[subprocess.Popen[str]]]:
    """Job `trunk` with as many ranks on each host, once it trains."""
    port = free_port()
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as stack:
        started = []
        for number, host in enumerate(hosts):
            words = [*launched(len(hosts), each, number, port), *program, *options]
            environment = {**host.environment, "FOREBAY_JOB": "trunk"}
            process = subprocess.Popen(words, cwd=support.ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)
            stack.enter_context(process)
            stack.callback(process.terminate)
            started.append(process)

        def trains() -> bool:
            assert all(one.poll() is None for one in started), [one.communicate() for one in started if one.poll() is not None]
            found = [job for host in hosts for job in host.jobs()]
            return len(found) == len(hosts) and all(job["ranks_here"] == each and job["step"] for job in found)

        support.wait_until(trains, "the job to train", support.PROGRAM_S)
        yield started


def finished_all(started: Sequence[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """Lines of all ranks of a job that ends well. No rank may wait for the reader of another's line."""
    with ThreadPoolExecutor() as threads:
        lines = [line for out in threads.map(finished, started) for line in told(out)]
    return sorted(lines, key=lambda line: int(line["rank"]))


@contextlib.contextmanager
def served_by(hosts: Sequence[CloneNode]) -> Iterator[list[ServedTrunk]]:
    """Serves job `trunk` at each of its hosts. The last one's ticket names all."""
    with contextlib.ExitStack() as stack:
        served: list[ServedTrunk] = []
        for number, host in enumerate(hosts, 1):
            ticket = host.root / "ticket"
            if served:
                # As by scp -p: hosts have nothing in common but what is copied.
                ticket.write_bytes(served[-1].ticket.read_bytes())
                ticket.chmod(0o600)
            served.append(stack.enter_context(serving(host, f"127.0.0.{number}")))
        yield served


@contextlib.contextmanager
def served_job(
    hosts: Sequence[CloneNode], each: int, *options: str
) -> Iterator[tuple[list[subprocess.Popen[str]], list[ServedTrunk], Path]]:
    """A job and its servers. It trains as long as there is a file, so that any number of forks may fail."""
    present = hosts[0].root / "trains"
    present.touch()
    with job_on(hosts, each, "--while", str(present), *options) as parents, served_by(hosts) as served:
        yield parents, served, present


def as_parents(mine: Sequence[dict[str, Any]], clones: Sequence[dict[str, Any]]) -> None:
    """Ranks of a clone went on as those of the job did, from one of its forks on."""
    assert [line["rank"] for line in mine] == [line["rank"] for line in clones]
    assert len({line["begun"] for line in clones}) == 1
    for parent, clone in zip(mine, clones, strict=True):
        assert clone["begun"] in parent["forks"]
        assert len(clone["losses"]) == 5
        assert clone["losses"].items() <= parent["losses"].items()
        assert clone["digests"] == parent["after"][str(clone["begun"] + 5)]


def ranks_of(clones: Sequence[subprocess.CompletedProcess[str]]) -> list[dict[str, Any]]:
    """Lines of all ranks of a clone that has ended well."""
    assert all(done.returncode == 0 for done in clones), [done.stderr for done in clones]
    return sorted((line for done in clones for line in told(done.stdout)), key=lambda line: int(line["rank"]))


def clones_of(
    there: Sequence[CloneNode], each: int, served: ServedTrunk, *options: str, program: Sequence[str] = TRAIN
) -> list[subprocess.CompletedProcess[str]]:
    """Types the commands of one clone on several hosts, and waits for their ends."""
    port = free_port()

    def clone(number: int) -> subprocess.CompletedProcess[str]:
        words = [*launched(len(there), each, number, port), *program]
        return clone_from(there[number], served, "--group", "all", *options, program=words)

    with ThreadPoolExecutor() as threads:
        return list(threads.map(clone, range(len(there))))


@pytest.mark.parametrize(("hosts", "each"), MORE)
def test_p14b_ranks_of_several_hosts_go_on_at_one_and_at_as_many_as_their_parents_do(hosts: int, each: int) -> None:
    with contextlib.ExitStack() as stack:
        at, there = ([stack.enter_context(node()) for _ in range(hosts)] for _ in range(2))
        parents, served, present = stack.enter_context(served_job(at, each))
        group = clones_of(there, each, served[-1])
        alone = clone_from(there[0], served[-1], program=[*standalone(hosts * each), *TRAIN])
        present.unlink()
        mine = finished_all(parents)
    as_parents(mine, ranks_of(group))
    as_parents(mine, ranks_of([alone]))


def test_p14b_f51_clones_of_two_hosts_go_on_as_their_parents_do_whatever_becomes_of_others() -> None:
    """One at a third host, one at two others, one that loses a host of the job, and one whose step is over."""
    with contextlib.ExitStack() as stack:
        at, there = [stack.enter_context(node()) for _ in range(2)], [stack.enter_context(node()) for _ in range(4)]
        parents, served, present = stack.enter_context(served_job(at, 1))
        assert "and at 1 other host" in served[-1].line
        program = [*standalone(2), *TRAIN]
        # The first host's ticket does not name the second: its ranks are missed before anything runs.
        done = clone_from(there[0], served[0], program=program)
        assert (done.returncode, done.stdout) == (2, "")
        assert "rank 1 of its 2 ranks trains at none of the hosts" in done.stderr
        port, is_cut = stack.enter_context(cut_off(port_of(served[1], "127.0.0.2"), 100_000, "127.0.0.2"))
        hosts = ["--from", f"127.0.0.1:{port_of(served[0])},127.0.0.1:{port}"]
        with ThreadPoolExecutor() as threads:
            lost = threads.submit(clone_from, there[3], served[1], *hosts, program=program)
            group = threads.submit(clones_of, there[1:3], 1, served[-1])
            third = clone_from(there[0], served[-1], program=program)
            late = clone_from(there[0], served[-1], "--at", "1", program=program)
        present.unlink()
        mine = finished_all(parents)
        assert there[3].jobs() == []
        # As though nobody had asked.
        steps = ["--steps", str(len(mine[0]["losses"]))]
        unforked = subprocess.run(
            [*program, *steps], env=there[0].environment, cwd=support.ROOT, capture_output=True, text=True, check=True
        )
    as_parents(mine, ranks_of([third]))
    as_parents(mine, ranks_of(group.result()))
    assert is_cut.is_set()
    assert lost.result().returncode != 0
    assert f"127.0.0.1:{port} has not answered for 10 s" in lost.result().stderr
    assert not told(lost.result().stdout)
    # Never a later step than the one that was named.
    assert late.returncode != 0
    assert "--at 1: trunk is at step" in late.stderr
    assert not told(late.stdout)
    assert mine[0]["forks"] == mine[1]["forks"]
    # Each rank has data of its own.
    assert mine[0]["losses"] != mine[1]["losses"]
    assert [line["losses"] for line in mine] == [line["losses"] for line in told(unforked.stdout)]


def test_p14_a_sharded_state_is_whole_on_more_hosts_than_its_job_has() -> None:
    """The three hosts of the clone pull the states of both ranks from the job in turn, and the rest from each other."""
    with contextlib.ExitStack() as stack:
        at, there = ([stack.enter_context(node()) for _ in range(hosts)] for hosts in (2, 3))
        present = at[0].root / "trains"
        present.touch()
        parents = stack.enter_context(job_on(at, 1, program=[*SHARDED, str(present)]))
        served = stack.enter_context(served_by(at))
        clones = ranks_of(clones_of(there, 1, served[-1], "--set", "seed=7", program=SHARDED))
        present.unlink()
        mine = finished_all(parents)
    assert [clone["rank"] for clone in clones] == [0, 1, 2]
    (begun,) = {clone["begun"] for clone in clones}
    assert begun in mine[0]["forks"]
    for clone in clones:
        assert clone["wholes"][str(begun)] == mine[0]["wholes"][str(begun)]


def test_p14b_clones_of_one_step_pull_the_state_from_its_host_once_and_else_from_each_other() -> None:
    """Four commands on four hosts name one step."""
    with contextlib.ExitStack() as stack:
        here = stack.enter_context(node())
        there = [stack.enter_context(node()) for _ in range(4)]
        parents, served, present = stack.enter_context(served_job([here], 1, "--width", WIDER))
        (trunk,) = here.jobs()
        at = ["--at", str(trunk["step"] + STEPS_AHEAD)]
        program = [*PROGRAM, "--width", WIDER]
        with ThreadPoolExecutor() as threads:
            clones = list(threads.map(lambda one: clone_from(one, served[0], *at, program=program), there))
        present.unlink()
        mine = finished_all(parents)
        served[0].process.terminate()
        said = served[0].process.communicate(timeout=support.LONG_S)[1]
    for clone in clones:
        as_parents(mine, ranks_of([clone]))
    assert len({line["begun"] for clone in clones for line in told(clone.stdout)}) == 1
    sent = re.search(r"(\d+) bytes of its state were sent", said)
    assert sent, said
    # Each clone gets manifests for itself. `make bench-clone-hosts` has the bar for a state that dwarfs them.
    assert int(sent[1]) <= SENT_MAX * trunk["bytes"], trunk
