"""Strangers, secrets and sockets between nodes (F42, S7, S8)."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from testbed.nodes import JobNode
from tests.faults.test_s07_secrets import holds
from tests.loader.node import agent_in
from tests.peers.test_faults import lines_of
from tests.peers.test_samples import ended, start, two_nodes
from tests.support import LONG_S, PROGRAM_S, wait_until

__all__ = ["two_nodes"]

STRANGER = """
import socket, sys
answers = []
for words in (b"", b"GET /1/samples/00 HTTP/1.1\\r\\n\\r\\n"):
    stranger = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    stranger.settimeout(2 if not words else 60)
    stranger.sendall(words)
    try:
        answers.append(len(stranger.recv(100)))
    except ConnectionError:
        answers.append(0)
    except TimeoutError:
        answers.append(-1)
print(*answers)
"""


def processes_of(job: list[JobNode]) -> Iterator[tuple[str, bytes]]:
    """Yields arguments and variables of all processes of the job, as the system shows them."""
    for process in Path("/proc").glob("[0-9]*"):
        # One may end meanwhile.
        with suppress(OSError):
            environment = (process / "environ").read_bytes()
            if any(str(node.root).encode() in environment for node in job):
                yield f"environ of {process.name}", environment
                yield f"cmdline of {process.name}", (process / "cmdline").read_bytes()


def files_of(job: list[JobNode]) -> Iterator[tuple[str, bytes]]:
    for path in (path for node in job for root in (node.root, node.shared / "peers") for path in root.rglob("*")):
        with suppress(OSError):
            if path.is_file():
                yield str(path), path.read_bytes()


def test_s7_the_secret_of_a_job_is_told_to_nobody(two_nodes: list[JobNode]) -> None:
    folder = str(two_nodes[0].shared / "data")
    table = two_nodes[0].shared / "peers"
    programs = start(two_nodes, folder, "ram=8M", "3", "0.2")
    # It stays for a second at least, and goes once all nodes have read it.
    wait_until(lambda: list(table.glob("*/table")), "the nodes have met", PROGRAM_S)
    secrets = {path.read_text().splitlines()[1].split()[1] for path in table.glob("*/table")}
    wait_until(lambda: not list(table.iterdir()), "the files by which nodes met are removed")
    (secret,) = map(bytes.fromhex, secrets)
    assert len(secret) == 32
    for program in programs:
        list(lines_of(program, 0))
    told = [*processes_of(two_nodes), *files_of(two_nodes)]
    agents = [agent_in(node.root / "run") for node in two_nodes]
    cores = [Path(f"/proc/{agent}/limits").read_text() for agent in agents]
    lines, errors = ended(programs)
    assert lines[-1]["figures"]["from_peers"] > 0
    told += [("the output", repr(lines).encode()), ("the errors", errors.encode()), *files_of(two_nodes)]
    assert [where for where, text in told if holds(text, secret)] == []
    assert {f"cmdline of {agent}" for agent in agents} < {where for where, _ in told}
    assert any(where.endswith("agent.log") for where, _ in told)
    for limits in cores:
        (core,) = [line.split()[-3:-1] for line in limits.splitlines() if line.startswith("Max core file size")]
        assert core == ["0", "0"], "it leaves no core file"


def test_f42_s8_a_node_listens_on_its_interface_only_and_hangs_up_on_strangers(two_nodes: list[JobNode]) -> None:
    folder = str(two_nodes[0].shared / "data")
    node, other = two_nodes
    # It trains on until the strangers have gone.
    programs = start(two_nodes, folder, "ram=8M", "1000", "0.2")
    lines = [json.loads(line) for program in programs for line in lines_of(program, 1)]
    assert sum(line["figures"]["from_peers"] for line in lines) > 0
    agent = agent_in(node.root / "run")
    words = [*node.inside, "ss", "-Hnatup"]
    sockets = [line.split() for line in subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()]
    own = [fields for fields in sockets if f"pid={agent}," in fields[-1]]
    assert {fields[0] for fields in own} == {"tcp"}
    assert {fields[4].rpartition(":")[0] for fields in own} == {node.address}, "connections to other nodes count, too"
    (port,) = [fields[4].rpartition(":")[2] for fields in own if fields[1] == "LISTEN"]
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert first <= int(port) <= last
    words = [*other.inside, sys.executable, "-c", STRANGER, node.address, port]
    said = subprocess.run(words, check=True, capture_output=True, text=True, timeout=LONG_S).stdout
    silent, plain = map(int, said.split())
    assert silent == -1, "it speaks to who says nothing"
    assert plain <= 7, "a TLS alert at most: the request was not parsed"
    for program in programs:
        assert program.poll() is None
        program.terminate()
        program.communicate(timeout=LONG_S)
