"""Clones on other hosts: two nodes with directories of their own, joined by nothing but a ticket and a socket."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

import forebay
from tests import support
from tests.clone.forks import CloneNode, node, told, training

PROGRAM = [sys.executable, "-m", "tests.clone.train"]
RANKS = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "tests.clone.train"]
UNTIL_FORKED = "--until-forked"


@dataclass
class ServedTrunk:
    """`forebay clone serve` of a job on a node.

    Attributes:
        here: the node.
        process: the command.
        ticket: the file that it wrote.
        line: its standard output so far.
    """

    here: CloneNode
    process: subprocess.Popen[str]
    ticket: Path
    line: str


@contextlib.contextmanager
def serving(here: CloneNode, address: str = "127.0.0.1") -> Iterator[ServedTrunk]:
    """Serves job `trunk` of a node on an address of loopback until the block ends."""
    ticket = here.root / "ticket"
    command = [str(forebay.command()), "clone", "serve", "trunk", "--listen", address, "--ticket", str(ticket)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=here.environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout
            line = process.stdout.readline()
            assert line, process.communicate()
            yield ServedTrunk(here, process, ticket, line)
        finally:
            process.terminate()
            process.communicate(timeout=support.LONG_S)


@contextlib.contextmanager
def two_hosts(program: Sequence[str] = PROGRAM) -> Iterator[tuple[CloneNode, subprocess.Popen[str], ServedTrunk]]:
    """A host where job `trunk` trains and is served, and another one, which is given."""
    with node() as here, node() as there, training(here, [*program, UNTIL_FORKED]) as parent, serving(here) as served:
        yield there, parent, served


def clone_from(there: CloneNode, served: ServedTrunk, *options: str, program: Sequence[str] = PROGRAM) -> subprocess.CompletedProcess[str]:
    return there.type("clone", "trunk", "--ticket", str(served.ticket), *options, "--", *program)


def finished(parent: subprocess.Popen[str]) -> str:
    """Standard output of a job that ends well."""
    out, err = parent.communicate(timeout=support.PROGRAM_S)
    assert parent.returncode == 0, err
    return out


@contextlib.contextmanager
def cut_off(port: int, after: int, address: str = "127.0.0.1") -> Iterator[tuple[int, threading.Event]]:
    """A port of this host that leads to another one, until some bytes have come from there: then nothing moves.

    Gives the port, and an event that tells that nothing moves.
    """
    is_cut = threading.Event()
    came = 0
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def carry(source: socket.socket, target: socket.socket, *, counts: bool) -> None:
            nonlocal came
            with contextlib.suppress(OSError):
                while not is_cut.is_set() and (part := source.recv(1 << 14)):
                    target.sendall(part)
                    came += len(part) if counts else 0
                    if came > after:
                        is_cut.set()

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    asker, _ = listener.accept()
                    stack.enter_context(asker)
                    if is_cut.is_set():
                        continue
                    server = stack.enter_context(socket.create_connection((address, port)))
                    threading.Thread(target=carry, args=(asker, server), kwargs={"counts": False}, daemon=True).start()
                    threading.Thread(target=carry, args=(server, asker), kwargs={"counts": True}, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1], is_cut
        listener.shutdown(socket.SHUT_RDWR)


def step_of(served: ServedTrunk) -> int:
    """Step of the served job."""
    (trunk,) = served.here.jobs()
    step: int = trunk["step"]
    return step


def port_of(served: ServedTrunk, address: str = "127.0.0.1") -> int:
    return int(re.split("[; ]", served.line.partition(f"{address}:")[2])[0])


def alone(steps: int) -> dict[str, float]:
    """Losses of a job that nobody forks."""
    with node() as here:
        done = subprocess.run(
            [*PROGRAM, "--steps", str(steps)], env=here.environment, cwd=support.ROOT, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    losses: dict[str, float] = told(done.stdout)[0]["losses"]
    return losses


def test_p14b_a_clone_on_another_host_goes_on_as_its_parent_does() -> None:
    with two_hosts() as (there, parent, served):
        assert served.ticket.stat().st_mode & 0o777 == 0o600
        done = clone_from(there, served)
        assert done.returncode == 0, done.stderr
        assert "this is trunk.1, a clone of trunk after step" in done.stderr
        (mine,), (other,) = told(finished(parent)), told(done.stdout)
        assert there.jobs() == []
    assert mine["forks"] == [other["begun"]]
    assert len(other["losses"]) == 5
    assert other["losses"].items() <= mine["losses"].items()
    assert other["digests"] == mine["digests"]
    assert other["lineage"] == ["trunk", other["begun"], {}]
    # And the parent as though nobody had asked.
    assert mine["losses"] == alone(len(mine["losses"]))
    assert not served.ticket.exists()


def test_p14b_two_ranks_on_another_host_go_on_as_their_parents_do() -> None:
    with two_hosts(RANKS) as (there, parent, served):
        done = clone_from(there, served, "--set", "lr*=1", program=RANKS)
        assert done.returncode == 0, done.stderr
        parents, clones = told(finished(parent)), told(done.stdout)
    assert len(parents) == len(clones) == 2
    for mine, other in zip(parents, clones, strict=True):
        assert mine["forks"] == [other["begun"]]
        assert other["losses"].items() <= mine["losses"].items()
        assert other["digests"] == mine["digests"]
    assert parents[0]["losses"] != parents[1]["losses"]


@pytest.mark.long
def test_p14_a_sharded_state_is_whole_on_another_number_of_ranks_of_another_host() -> None:
    """Three ranks have two, two and none of the last layer's four rows."""

    def ranks(count: int) -> list[str]:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        return [*launcher, "-m", "tests.clone.train_ranks", "fsdp"]

    with two_hosts(ranks(2)) as (there, parent, served):
        done = clone_from(there, served, "--set", "seed=7", program=ranks(3))
        assert done.returncode == 0, done.stderr
        parents = told(finished(parent))
    clones = told(done.stdout)
    assert len(clones) == 3
    for clone in clones:
        step = str(clone["begun"])
        assert clone["wholes"][step] == parents[0]["wholes"][step]


def test_f51_a_source_that_is_cut_off_half_way_costs_the_clone_and_not_the_parent() -> None:
    with two_hosts() as (there, parent, served), cut_off(port_of(served), 300_000) as (port, is_cut):
        done = clone_from(there, served, "--from", f"127.0.0.1:{port}")
        assert is_cut.is_set()
        assert done.returncode != 0
        assert f"rank 0 of trunk could not take its state: 127.0.0.1:{port} has not answered for 10 s" in done.stderr
        (mine,) = told(finished(parent))
        assert there.jobs() == []
    assert not told(done.stdout)
    assert len(mine["forks"]) == 1
    assert mine["losses"] == alone(len(mine["losses"]))


def test_f51_of_two_clones_of_one_point_one_is_cut_off_from_the_job_and_the_other_is_exact() -> None:
    with (
        two_hosts() as (there, parent, served),
        node() as third,
        cut_off(port_of(served), 300_000) as (port, _),
    ):
        at = ["--at", str(step_of(served) + 40)]
        lost = ["--from", f"127.0.0.1:{port}", *at]
        with ThreadPoolExecutor() as threads:
            going, gone = threads.submit(clone_from, there, served, *at), threads.submit(clone_from, third, served, *lost)
        done, failed = going.result(), gone.result()
        assert done.returncode == 0, done.stderr
        (mine,), clones = told(finished(parent)), told(done.stdout)
    # What the job can no longer give, the clone that is cut off pulls from the other one, if that has it.
    if failed.returncode == 0:
        clones += told(failed.stdout)
    else:
        assert "has not answered for 10 s" in failed.stderr
    for other in clones:
        assert other["losses"].items() <= mine["losses"].items()
        assert other["digests"] == mine["digests"]
    assert mine["losses"] == alone(len(mine["losses"]))


def niceness(process: int) -> dict[str, set[int]]:
    """Niceness of the threads of a process, by their names."""
    found: dict[str, set[int]] = {}
    for thread in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.setdefault((thread / "comm").read_text().strip(), set()).add(os.getpriority(os.PRIO_PROCESS, int(thread.name)))
    return found


def test_f51_a_clone_that_is_killed_does_not_hinder_the_next_one() -> None:
    with two_hosts() as (there, parent, served):
        words = [str(forebay.command()), "clone", "trunk", "--ticket", str(served.ticket), "--", "sleep", "600"]
        with subprocess.Popen(words, env=there.environment) as killed:
            support.wait_until(there.forks.exists, "the forks role of the clone's host")
            support.wait_until(lambda: "fork" in niceness(served.process.pid), "the thread of the fork")
            threads = niceness(served.process.pid)
            killed.kill()
        # Sending yields to the job; taking a state does not, for it has to be done before the job's next step.
        usual = os.getpriority(os.PRIO_PROCESS, served.process.pid)
        assert threads["fork"] == {usual}
        assert min(threads["serve-forks"]) > usual
        done = clone_from(there, served)
        assert done.returncode == 0, done.stderr
        (mine,), (other,) = told(finished(parent)), told(done.stdout)
    assert mine["forks"] == [other["begun"]]
    assert other["digests"] == mine["digests"]


def test_f51_a_ticket_goes_with_its_server() -> None:
    with two_hosts() as (there, parent, served):
        served.process.terminate()
        served.process.communicate(timeout=support.LONG_S)
        assert not served.ticket.exists()
        done = clone_from(there, served)
        assert (done.returncode, done.stdout) == (2, "")
        assert "`forebay clone serve JOB` writes it on the job's host" in done.stderr
        assert parent.poll() is None


def test_f42_bad_input_is_refused_by_one_line_that_names_thing_cause_and_mend() -> None:
    with two_hosts() as (there, parent, served):
        open_ticket = there.root / "open"
        shutil.copy(served.ticket, open_ticket)
        open_ticket.chmod(0o644)
        other = there.root / "other"
        other.write_text(served.ticket.read_text().replace('"trunk"', '"twig"'))
        other.chmod(0o600)
        wrong = there.root / "wrong"
        text = served.ticket.read_text()
        secret = text.rpartition('"secret":"')[2][:64]
        wrong.write_text(text.replace(secret, "ab" * 32))
        wrong.chmod(0o600)
        for job, options, why in [
            ("trunk", ["--ticket", str(open_ticket)], "can be read or changed by other users, and whoever has it can read the job's state"),
            ("trunk", ["--ticket", str(other)], "is of job twig, not of trunk: name that of trunk by --ticket FILE"),
            ("twig", ["--ticket", str(other)], "the host serves the state of trunk, not of twig: use the ticket of twig"),
            ("trunk", ["--ticket", str(wrong)], "does not accept the ticket: it is of an earlier `forebay clone serve`"),
            ("trunk", ["--from", "host.invalid", "--ticket", str(served.ticket)], "--from host.invalid: the name does not resolve"),
            ("trunk", ["--from", "127.0.0.1:1", "--ticket", str(served.ticket)], "nobody takes a connection at port 1"),
            ("trunk", ["--from", "a:b:c", "--ticket", str(served.ticket)], "expected a host, and perhaps a port, such as node7:7000"),
            ("trunk", ["--verify", "shadow:3", "--ticket", str(served.ticket)], "use --verify digest"),
            ("trunk", ["--from", "127.0.0.1"], "`forebay clone serve JOB` writes it on the job's host, and --ticket FILE names it"),
        ]:
            done = there.type("clone", job, *options, "--", *PROGRAM)
            assert (done.returncode, done.stdout) == (2, ""), done.stderr
            assert why in done.stderr
            assert done.stderr.count("\n") == 1
        none = there.type("clone", "serve", "trunk")
        assert none.returncode == 2
        assert "no job 'trunk' that can be forked trains on this node" in none.stderr
        # The clone has come to nothing, and training goes on.
        assert parent.poll() is None
