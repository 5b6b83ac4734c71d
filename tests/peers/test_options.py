"""`--peers` and `--peers-interface`: the program starts once all nodes have met, or one line says why it does not."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from testbed.nodes import JobNode, can_isolate, nodes
from tests.support import PROGRAM_S, command, wait_until

READ = """
import os, sys, time
from pathlib import Path

began = time.monotonic()
read = sum(len(path.read_bytes()) for path in Path(sys.argv[1]).iterdir())
print(began, read, os.environ.get("FOREBAY_PEERS"), os.environ.get("FOREBAY_PEERS_INTERFACE"))
"""
FILES = 12
FILE_BYTES = 20_000
LATE_S = 2.0


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[list[JobNode]]:
    if not can_isolate():
        pytest.skip("needs root and network namespaces")
    with nodes(2) as made:
        made[0].data.mkdir()
        for number in range(FILES):
            (made[0].data / str(number)).write_bytes(bytes([number]) * FILE_BYTES)
            os.utime(made[0].data / str(number), (1e9, 1e9))
        for node in made:
            (node.root / "tier").mkdir()
        yield made


def start(node: JobNode, *options: str, **variables: str) -> "subprocess.Popen[str]":
    """Starts a run of a program that reads all files on a node."""
    places = ["--source", str(node.data), "--tier", f"{node.root / 'tier'}=50MB"]
    words = [str(command()), "run", *places, *options, "--", sys.executable, "-c", READ, str(node.data)]
    own = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_PEERS")}
    return node.start(words, {**own, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def launched(job: Sequence[JobNode], number: int) -> dict[str, str]:
    """Returns the variables of a launcher on a node."""
    of_all = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "PET_NNODES": str(len(job)), "MASTER_ADDR": job[0].address}
    return {**of_all, "PET_NODE_RANK": str(number)}


def ended(started: "subprocess.Popen[str]") -> tuple[int, str, str]:
    said, errors = started.communicate(timeout=PROGRAM_S)
    return started.returncode, said, errors


@pytest.mark.parametrize("how", ["auto", "list"])
def test_p13_a_run_with_peers_starts_once_all_nodes_have_met(two_nodes: list[JobNode], how: str) -> None:
    nodes = "auto" if how == "auto" else ",".join(node.name for node in two_nodes)
    launcher = [launched(two_nodes, number) if how == "auto" else {} for number in range(2)]
    options = ["--peers", nodes, "--peers-interface", "10.99.0.0/24"]
    first = start(two_nodes[0], *options, **launcher[0])
    time.sleep(LATE_S)
    second_began = time.monotonic()
    second = start(two_nodes[1], *options, **launcher[1])
    for code, said, errors in map(ended, (first, second)):
        assert code == 0, errors
        began, read, passed, interface = said.split()
        assert float(began) > second_began
        assert int(read) == FILES * FILE_BYTES
        # The loaders of the program go by them, too.
        assert (passed, interface) == (nodes, "10.99.0.0/24")
        assert "not shared" not in errors


def refused(started: "subprocess.Popen[str]", peers: str) -> str:
    """Returns the reason in the one line with which a run was refused, and nothing has run."""
    code, said, errors = ended(started)
    assert (code, said) == (2, ""), errors
    (line,) = errors.splitlines()
    head = f"forebay: --peers {peers}: "
    assert line.startswith(head), line
    return line.removeprefix(head)


def secret_for_all(directory: Path) -> Path:
    """Makes a secret file that other users can read."""
    secret = directory / "secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o644)
    return secret


def bad_lists(job: Sequence[JobNode]) -> list[tuple[str, str]]:
    """Returns lists of nodes, and what is said of them."""
    here, other = job[0].name, job[1].name
    return [
        (f"{here},nowhere.invalid", r"the host nowhere\.invalid can't be resolved \(.*\): correct its name"),
        (f"{here},{other},{here}", rf"the host {here} is in the list of nodes twice: name each node once"),
        (f"{here},{job[0].address}", rf"the hosts {here} and 10\.99\.0\.1 have one address, 10\.99\.0\.1: name each node once"),
        (f"{other},198.51.100.1", rf"this host, {here} \(10\.99\.0\.1.*\), is not in the list of nodes {other},198\.51\.100\.1: add it"),
    ]


@pytest.mark.parametrize("number", range(4))
def test_a_list_that_makes_no_sense_is_refused_with_peers_and_told_of_without(two_nodes: list[JobNode], number: int) -> None:
    hosts, why = bad_lists(two_nodes)[number]
    assert re.match(why, refused(start(two_nodes[0], "--peers", hosts), hosts))
    code, said, errors = ended(start(two_nodes[0], FOREBAY_PEERS=hosts))
    assert code == 0, errors
    assert said.split()[1] == str(FILES * FILE_BYTES)
    (line,) = [line for line in errors.splitlines() if "not shared" in line]
    assert re.match(f"forebay: files are not shared with the other nodes: {why}", line)


def test_s7_a_secret_that_others_can_read_is_refused_with_peers(two_nodes: list[JobNode]) -> None:
    secret = secret_for_all(two_nodes[0].shared)
    why = refused(start(two_nodes[0], "--peers", "auto", FOREBAY_PEERS_SECRET=str(secret), **launched(two_nodes, 0)), "auto")
    assert why.startswith(f"the secret file {secret} can be read or changed by other users: chmod 600")


def test_an_unknown_interface_and_a_missing_launcher_are_refused_with_peers(two_nodes: list[JobNode]) -> None:
    why = refused(start(two_nodes[0], "--peers", "auto", "--peers-interface", "none0", **launched(two_nodes, 0)), "auto")
    assert re.match(r"no interface of this host is 'none0': it has lo 127\.0\.0\.1, .*; set FOREBAY_PEERS_INTERFACE to one of these", why)
    why = refused(start(two_nodes[0], "--peers", "auto"), "auto")
    assert why.startswith("no launcher names the nodes here; start it behind srun, mpirun or in a pod, or give --peers node1,node2")


def test_ports_in_use_are_refused_with_peers(two_nodes: list[JobNode]) -> None:
    node = two_nodes[0]
    ports = "/proc/sys/net/ipv4/ip_local_port_range"
    # The network's own range, in which another program holds the only port.
    hold = f"""
import socket, sys
open("{ports}", "w").write("40000 40000")
held = socket.socket()
held.bind(("0.0.0.0", 40000))
held.listen()
print("held", flush=True)
sys.stdin.read()
open("{ports}", "w").write("32768 60999")
"""
    holder = node.start([sys.executable, "-c", hold], os.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout
    assert holder.stdout.readline() == "held\n"
    try:
        why = refused(start(node, "--peers", "auto", **launched(two_nodes, 0)), "auto")
    finally:
        holder.communicate(timeout=PROGRAM_S)
    assert re.match(r"listen on 10\.99\.0\.1: Address already in use .*: all its ports are in use|listen on .*; all its ports", why), why


def test_another_version_is_refused_with_peers(two_nodes: list[JobNode], tmp_path: Path) -> None:
    def announce() -> None:
        (meeting,) = wait_until(lambda: list(tmp_path.glob("peers/*")), "the first node")
        wait_until((meeting / "node.0").exists, "the first node")
        other = meeting / "part"
        other.touch(0o600)
        other.write_text(f"forebay peers 3\n{'ab' * 32} 11 2 2 10.99.0.2:7 other:1\n")
        other.rename(meeting / "node.1")

    announcing = threading.Thread(target=announce)
    announcing.start()
    started = start(two_nodes[0], "--peers", "auto", FOREBAY_PEERS_DIR=str(tmp_path / "peers"), **launched(two_nodes, 0))
    why = refused(started, "auto")
    announcing.join()
    assert re.match(r"node other:1 speaks version 11 of Forebay's messages, this node \d+: install one version on all nodes", why)
