"""Other nodes that are killed, stopped, or cut off (F40)."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from testbed.nodes import JobNode
from tests.loader.node import agent_in
from tests.peers.test_samples import digests, ended, expected, figure, start, two_nodes

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
    programs = start(two_nodes, folder, "ram=3M", "5", "0.1")
    before = [line for program in programs for line in lines_of(program, 1)]
    victim = agent_in(two_nodes[1].root / "run")
    os.kill(victim, how)
    after, said = ended(programs)
    if how == signal.SIGSTOP:
        os.kill(victim, signal.SIGKILL)
    lines = sorted([*map(json.loads, before), *after], key=lambda line: (line["epoch"], line["rank"]))
    assert digests(lines) == expected(folder, 5), said
    # The victim's own rank waits for its agent as on one node; the other waits for the victim, and that once.
    of_other = [line["slowest_s"] for line in lines if line["rank"] == 0]
    assert max(of_other) < WAIT_MAX_S + SOURCE_S, of_other
    assert of_other[4] < SOURCE_S, of_other


CUT_OFF = "10.98.0"
"""Network for samples alone: the ranks meet on another one, which stays whole."""


@pytest.mark.parametrize("deaf", [0, 1])
def test_f40_a_peer_cut_off_one_way_delays_no_sample_for_long(two_nodes: list[JobNode], deaf: int) -> None:
    if not two_nodes[0].inside:
        pytest.skip("needs network namespaces")
    folder = str(two_nodes[0].shared / "data")
    own = [f"{CUT_OFF}.{node.number + 1}" for node in two_nodes]
    link = {node.name: ("ip", "-n", node.name) for node in two_nodes}
    for node, address in zip(two_nodes, own, strict=True):
        subprocess.run([*link[node.name], "address", "add", f"{address}/24", "dev", node.name], check=True)
    sender = two_nodes[1 - deaf]
    towards_deaf = [own[deaf], "lladdr", "02:00:00:00:00:99", "dev", sender.name, "nud", "permanent"]
    try:
        programs = start(two_nodes, folder, "ram=3M", "5", "0.1", FOREBAY_PEERS_INTERFACE=f"{CUT_OFF}.0/24")
        before = [line for program in programs for line in lines_of(program, 1)]
        # Frames for the deaf node go to a host that is not there, without a word to their sender.
        subprocess.run([*link[sender.name], "neighbour", "replace", *towards_deaf], check=True)
        after, said = ended(programs)
    finally:
        subprocess.run([*link[sender.name], "neighbour", "delete", own[deaf], "dev", sender.name], check=False)
        for node, address in zip(two_nodes, own, strict=True):
            subprocess.run([*link[node.name], "address", "delete", f"{address}/24", "dev", node.name], check=True)
    lines = sorted([*map(json.loads, before), *after], key=lambda line: (line["epoch"], line["rank"]))
    assert digests(lines) == expected(folder, 5), said
    assert figure(lines, 1, "from_peers") > 0, said
    slowest_s = [max(line["slowest_s"] for line in lines if line["epoch"] == epoch) for epoch in range(5)]
    assert max(slowest_s) < WAIT_MAX_S + SOURCE_S, slowest_s
    # The lost node is waited for in one epoch. In the last one, requests for it are decided at once.
    assert slowest_s[4] < SOURCE_S, slowest_s
