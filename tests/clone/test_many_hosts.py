"""Jobs whose ranks are on several hosts, and their clones on others: nodes with directories of their own."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests import support
from tests.clone.forks import CloneNode, node, told
from tests.clone.test_hosts import ServedTrunk, clone_from, cut_off, finished, port_of, serving

TRAIN = ["-m", "tests.clone.train"]
MORE = [pytest.param(2, 2, marks=pytest.mark.long), pytest.param(3, 1, marks=pytest.mark.long)]
"""Numbers of hosts, and of ranks on each, that take long."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def torchrun(hosts: int, each: int, number: int, port: int) -> list[str]:
    """Words before a program that start its ranks on one of several hosts."""
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={hosts}", f"--nproc-per-node={each}"]
    return [*launcher, f"--node-rank={number}", "--master-addr=127.0.0.1", f"--master-port={port}"]


def standalone(ranks: int) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]


@contextlib.contextmanager
def job_on(hosts: Sequence[CloneNode], each: int, *options: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Job `trunk` with as many ranks on each host, once it trains."""
    port = free_port()
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as stack:
        started = []
        for number, host in enumerate(hosts):
            words = [*torchrun(len(hosts), each, number, port), *TRAIN, *options]
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


@pytest.mark.parametrize(("hosts", "each"), [(2, 1), pytest.param(2, 2, marks=pytest.mark.long)])
def test_p14b_ranks_of_two_hosts_go_on_at_a_third_as_their_parents_do(hosts: int, each: int) -> None:
    ranks = hosts * each
    with contextlib.ExitStack() as stack:
        at = [stack.enter_context(node()) for _ in range(hosts)]
        there = stack.enter_context(node())
        parents = stack.enter_context(job_on(at, each, "--until-forked"))
        served = stack.enter_context(served_by(at))
        assert "and at 1 other host" in served[-1].line
        program = [*standalone(ranks), *TRAIN]
        # The first host's ticket does not name the second: its ranks are missed before anything runs.
        done = clone_from(there, served[0], program=program)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"rank {each} of its {ranks} ranks trains at none of the hosts" in done.stderr
        done = clone_from(there, served[-1], program=program)
        assert done.returncode == 0, done.stderr
        mine = finished_all(parents)
        other = told(done.stdout)
    assert [line["rank"] for line in mine] == [line["rank"] for line in other] == list(range(ranks))
    for parent, clone in zip(mine, other, strict=True):
        assert parent["forks"] == [clone["begun"]]
        assert len(clone["losses"]) == 5
        assert clone["losses"].items() <= parent["losses"].items()
        assert clone["digests"] == parent["digests"]
    # Each rank has data of its own.
    assert mine[0]["losses"] != mine[-1]["losses"]


def clones_of(there: Sequence[CloneNode], each: int, served: ServedTrunk, *options: str) -> list[subprocess.CompletedProcess[str]]:
    """Types the commands of one clone on several hosts, and waits for their ends."""
    port = free_port()

    def clone(number: int) -> subprocess.CompletedProcess[str]:
        program = [*torchrun(len(there), each, number, port), *TRAIN]
        return clone_from(there[number], served, "--group", "all", *options, program=program)

    with ThreadPoolExecutor() as threads:
        return list(threads.map(clone, range(len(there))))


@pytest.mark.parametrize(("hosts", "each"), [(2, 1), *MORE])
def test_p14b_ranks_of_several_hosts_go_on_at_as_many_others_as_their_parents_do(hosts: int, each: int) -> None:
    with contextlib.ExitStack() as stack:
        at = [stack.enter_context(node()) for _ in range(hosts)]
        there = [stack.enter_context(node()) for _ in range(hosts)]
        parents = stack.enter_context(job_on(at, each, "--until-forked"))
        served = stack.enter_context(served_by(at))
        clones = clones_of(there, each, served[-1])
        assert all(done.returncode == 0 for done in clones), [done.stderr for done in clones]
        mine = finished_all(parents)
        other = sorted((line for done in clones for line in told(done.stdout)), key=lambda line: int(line["rank"]))
    assert [line["rank"] for line in mine] == [line["rank"] for line in other] == list(range(hosts * each))
    for parent, clone in zip(mine, other, strict=True):
        assert parent["forks"] == [clone["begun"]]
        assert clone["losses"].items() <= parent["losses"].items()
        assert clone["digests"] == parent["digests"]


def test_f51_one_of_two_hosts_of_a_job_that_is_cut_off_costs_the_clone_and_not_the_job() -> None:
    with contextlib.ExitStack() as stack:
        at = [stack.enter_context(node()) for _ in range(2)]
        there = stack.enter_context(node())
        parents = stack.enter_context(job_on(at, 1, "--until-forked"))
        served = stack.enter_context(served_by(at))
        port, is_cut = stack.enter_context(cut_off(port_of(served[1], "127.0.0.2"), 100_000, "127.0.0.2"))
        hosts = f"127.0.0.1:{port_of(served[0])},127.0.0.1:{port}"
        done = clone_from(there, served[1], "--from", hosts, program=[*standalone(2), *TRAIN])
        assert is_cut.is_set()
        assert done.returncode != 0
        assert f"127.0.0.1:{port} has not answered for 10 s" in done.stderr
        mine = finished_all(parents)
        assert there.jobs() == []
        # As though nobody had asked.
        steps = ["--steps", str(len(mine[0]["losses"]))]
        alone = subprocess.run(
            [*standalone(2), *TRAIN, *steps], env=there.environment, cwd=support.ROOT, capture_output=True, text=True, check=True
        )
    assert not told(done.stdout)
    assert mine[0]["forks"] == mine[1]["forks"]
    assert len(mine[0]["forks"]) == 1
    assert [line["losses"] for line in mine] == [line["losses"] for line in told(alone.stdout)]
