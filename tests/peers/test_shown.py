"""Nodes that share samples, and one alone, in `forebay top`, in `forebay metrics` and in the agent's log."""

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from forebay.torch import DataLoader
from testbed.nodes import JobNode
from tests.cli.test_metrics import OF_LOADERS
from tests.loader.data import KeyedFiles
from tests.loader.node import a_node
from tests.peers.test_faults import lines_of
from tests.peers.test_samples import start, two_nodes
from tests.support import PROGRAM_S, command, wait_until

__all__ = ["two_nodes"]


def typed(environment: Mapping[str, str], *words: str) -> str:
    """Returns the output of a command."""
    return subprocess.run([str(command()), *words], env=environment, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def running(job: list[JobNode]) -> Iterator[None]:
    """A job that goes on after its second epoch, until the block has ended."""
    programs = start(job, str(job[0].shared / "data"), "ram=8M", "10000", "0.1")
    try:
        for program in programs:
            list(lines_of(program, 1))
        yield
    finally:
        for program in programs:
            program.terminate()
        for program in programs:
            program.communicate(timeout=PROGRAM_S)


def values(exposed: str) -> dict[str, float]:
    """Each sample by its name, and its own label if it has one."""
    found = {}
    for family in text_string_to_metric_families(exposed):
        for sample in family.samples:
            own = [value for name, value in sample.labels.items() if name in ("origin", "reason", "le")]
            found["/".join([sample.name, *own])] = sample.value
    return found


def test_nodes_that_share_samples_are_shown(two_nodes: list[JobNode]) -> None:
    one, other = two_nodes
    with running(two_nodes):
        here = os.environ | one.environment
        shown, exposed = typed(here, "top", "--once", "-n", "0.1"), values(typed(here, "metrics"))
        listed = typed(here, "ls")
        log = next((one.root / "run").rglob("loaders/agent.log")).read_text()
    assert re.search(r"^loader \S+: 1 rank, [\d.]+ MiB of shared memory$", shown, re.MULTILINE), shown
    assert re.search(r"^  from other nodes +[1-9]\d* ", shown, re.MULTILINE), shown
    assert re.search(r"^  to other nodes +[1-9]\d* ", shown, re.MULTILINE), shown
    assert re.search(r"^  other nodes: +samples are shared with 1 node; median [\d.]+ \w+, 99th percentile", shown, re.MULTILINE), shown
    assert re.search(rf"^ +{other.name}:1: [\d,]+ samples, [\d.]+ \w+; median", shown, re.MULTILINE), shown
    assert "samples are not shared" not in shown
    assert re.fullmatch(r" +[\d.]+ MiB +memory of loader \S+, shared with 1 other node\n", listed), listed
    assert exposed["forebay_loaders"] == exposed["forebay_peer_nodes"] == 1
    received = exposed["forebay_loader_samples_total/peer"]
    assert received > 0
    # Not every request of the last moment has ended.
    assert 0 < exposed["forebay_peer_request_duration_seconds_count"] <= received + 96
    assert exposed["forebay_peer_request_duration_seconds_sum"] > 0
    assert exposed["forebay_loader_read_bytes_total/peer"] > 0
    assert exposed["forebay_peer_sent_samples_total"] > 0
    assert exposed["forebay_peer_sent_bytes_total"] > 0
    assert exposed["forebay_peer_not_sent_requests_total/strangers"] == 0
    metrics = {re.sub(r"(_seconds)_(count|sum|bucket)$", r"\1", name.split("/")[0]) for name in exposed}
    assert metrics == OF_LOADERS | {"forebay_agents"}
    (line,) = re.findall(r"sharing samples with .*", log)
    interface = one.name if one.inside else "lo"
    address = re.escape(one.address)
    assert re.fullmatch(rf"sharing samples with 1 other nodes, as node 0 of 2, at {address}:\d+ on {interface}", line), line


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"FOREBAY_PEERS": "off"}, "FOREBAY_PEERS=off"),
        ({"FOREBAY_PEERS_INTERFACE": "lo"}, "the nodes have not all met yet"),
        ({"FOREBAY_PEERS_INTERFACE": "none0"}, "no interface of this host is 'none0': it has "),
    ],
)
def test_a_node_alone_says_why(variables: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of_torchrun = {"TORCHELASTIC_RUN_ID": "job", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2"}
    with a_node(monkeypatch) as node:
        for name, value in (of_torchrun | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"} | variables).items():
            monkeypatch.setenv(name, value)
        loader = DataLoader(
            KeyedFiles(node.root / "samples", 40), 4, rank=0, world_size=2, shuffle=True, seed=1, cache="ram=8M", report=False
        )
        assert sum(1 for _ in loader) == 5
        wait_until(lambda: f"  other nodes:    samples are not shared: {why}" in typed(os.environ, "top", "--once", "-n", "0.1"), why)


def test_counts_stay_when_a_loader_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def exposed() -> dict[str, float]:
        return values(typed(os.environ, "metrics"))

    with a_node(monkeypatch) as node:
        loaders = [DataLoader(KeyedFiles(node.root / f"samples{part}", 40), 4, cache="ram=8M", report=False) for part in range(2)]
        assert [sum(1 for _ in loader) for loader in loaders] == [10, 10]
        before = exposed()
        assert before["forebay_loaders"] == 2
        # On a slow machine some reads are made twice.
        assert before["forebay_loader_samples_total/source"] >= 80
        del loaders[0]
        wait_until(lambda: exposed()["forebay_loaders"] == 1, "the end of a loader")
        assert exposed()["forebay_loader_samples_total/source"] >= before["forebay_loader_samples_total/source"]
