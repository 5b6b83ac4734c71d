"""Other nodes that are killed, stopped, or strangers (F40, F42, S7, S8)."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator

import pytest

from testbed.nodes import JobNode
from tests.loader.node import agent_in
from tests.peers.test_samples import digests, ended, expected, start, two_nodes
from tests.support import LONG_S, wait_until

__all__ = ["two_nodes"]

WAIT_MAX_S = 8.0
"""P13: the longest that a sample waits for other nodes."""
SOURCE_S = 2.0
"""One read of the source, on a busy machine."""


def lines_of(program: "subprocess.Popen[str]", epoch: int) -> Iterator[str]:
    """Yields a program's lines up to the first of an epoch."""
    assert program.stdout is not None
    while line := program.stdout.readline():
        yield line
        if json.loads(line)["epoch"] == epoch:
            return


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_f40_a_peer_that_is_gone_or_stands_still_delays_no_sample_for_long(two_nodes: list[JobNode], how: signal.Signals) -> None:
    folder = str(two_nodes[0].shared / "data")
    programs = start(two_nodes, folder, "ram=3M", "4", "0.1")
    before = [line for program in programs for line in lines_of(program, 1)]
    victim = agent_in(two_nodes[1].root / "run")
    os.kill(victim, how)
    after, said = ended(programs)
    if how == signal.SIGSTOP:
        os.kill(victim, signal.SIGKILL)
    lines = sorted([*map(json.loads, before), *after], key=lambda line: (line["epoch"], line["rank"]))
    assert digests(lines) == expected(folder, 4), said
    # The victim's own rank waits for its agent as on one node; the other waits for the victim.
    of_other = [line["slowest_s"] for line in lines if line["rank"] == 0]
    assert max(of_other) < WAIT_MAX_S + SOURCE_S, of_other


def test_f42_s8_a_node_listens_on_its_interface_only_and_hangs_up_on_strangers(two_nodes: list[JobNode]) -> None:
    folder = str(two_nodes[0].shared / "data")
    programs = start(two_nodes, folder, "ram=8M", "3", "0.2")
    for program in programs:
        list(lines_of(program, 0))
    node = two_nodes[0]
    agent = agent_in(node.root / "run")
    table = node.shared / "peers"
    wait_until(lambda: list(table.glob("*/table")), "the nodes have met")
    inside = node.inside
    listening = subprocess.run([*inside, "ss", "-Hltnp"], check=True, capture_output=True, text=True).stdout
    own = [line.split()[3] for line in listening.splitlines() if f"pid={agent}," in line]
    assert len(own) == 1
    address, _, port = own[0].rpartition(":")
    assert address == node.address
    stranger = (
        f"import socket; s = socket.create_connection(({address!r}, {port})); s.sendall(b'GET /1/samples/00 HTTP/1.1\\r\\n\\r\\n');"
        "s.settimeout(60)\ntry: print(len(s.recv(100)) <= 7)\nexcept ConnectionError: print(True)"
    )
    said = subprocess.run([*inside, "python3", "-c", stranger], check=True, capture_output=True, text=True, timeout=LONG_S).stdout
    # A TLS alert of seven bytes at most: the request was not parsed.
    assert said.strip() == "True"
    secrets = {path.read_text().splitlines()[1] for path in table.glob("*/table")}
    lines, errors = ended(programs)
    assert lines[-1]["figures"]["from_peers"] > 0
    # S7: it is nowhere but in that file.
    places = [errors, *(path.read_text(errors="replace") for path in node.root.rglob("*.log*"))]
    assert all(re.fullmatch("[0-9a-f]{64}", secret) for secret in secrets)
    assert not any(secret in place for secret in secrets for place in places)
    assert not list(table.iterdir()), "the files by which nodes met are removed"
