"""Settings of nodes that share samples: what is invalid is said in one line, and nothing else happens."""

import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from forebay import _core
from forebay.loader._place import RankPlace
from forebay.loader._sharing import NodeSharing
from tests.support import LONG_S, wait_until

TWO_NODES = RankPlace("job", 0, 4, 0, 2)
ONE_NODE = RankPlace("job", 0, 2, 0, 2)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("FOREBAY_PEERS")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    for name, value in {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)


def test_an_invalid_setting_is_refused_with_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _core.NodeSettings.read({}).is_off
    assert _core.NodeSettings.read({"FOREBAY_PEERS": "off"}).is_off
    monkeypatch.setenv("FOREBAY_PEERS", "maybe")
    with pytest.raises(ValueError, match=r"\$FOREBAY_PEERS: invalid nodes 'maybe'; give auto, off, or the hosts of all nodes"):
        NodeSharing("0", ONE_NODE)


def test_a_launcher_that_contradicts_itself_is_named(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GROUP_RANK", "7")
    NodeSharing("0", TWO_NODES)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("forebay: samples are not shared with the other nodes: torchrun says GROUP_RANK=7: ")
    assert line.endswith("set FOREBAY_PEERS=off")


class StandIn:
    """A rank of an agent that nodes never come to share with."""

    def alone(self, why: str) -> None:
        assert why


def said_alone(capfd: pytest.CaptureFixture[str]) -> str:
    """Returns the reason that a node gives for staying alone, once it has looked for the others."""
    sharing = NodeSharing("0", TWO_NODES)
    rank: Any = StandIn()
    sharing.begin(rank)
    said = wait_until(lambda: capfd.readouterr().err, "a line on standard error")
    sharing.end()
    (line,) = said.splitlines()
    return str(line.removeprefix("forebay: samples are not shared with the other nodes: "))


@pytest.mark.parametrize(
    ("hosts", "line"),
    [
        ("198.51.100.1,no-such-host.invalid", r"the host no-such-host\.invalid can't be resolved \(.*\): correct its name"),
        ("198.51.100.1,198.51.100.2,198.51.100.1", r"the host 198\.51\.100\.1 is in the list of nodes twice: name each node once"),
        ("198.51.100.1,198.51.100.2", r"this host, .*, is not in the list of nodes 198\.51\.100\.1,198\.51\.100\.2: add it"),
    ],
)
def test_a_list_of_hosts_that_makes_no_sense_is_said(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], hosts: str, line: str
) -> None:
    monkeypatch.setenv("FOREBAY_PEERS", hosts)
    assert re.match(line, said_alone(capfd))


def test_a_way_that_does_not_leave_the_host_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    assert said_alone(capfd).startswith("the way to 127.0.0.1 is 127.0.0.1, which other hosts can't reach: set FOREBAY_PEERS_INTERFACE")


def test_s7_a_secret_file_that_others_can_read_is_said(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o644)
    monkeypatch.setenv("FOREBAY_PEERS_SECRET", str(secret))
    monkeypatch.setenv("FOREBAY_PEERS_DIR", str(tmp_path / "peers"))
    assert said_alone(capfd).startswith(f"the secret file {secret} can be read or changed by other users: chmod 600")


def test_nodes_of_different_versions_are_said(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setenv("FOREBAY_PEERS_DIR", str(tmp_path / "peers"))
    monkeypatch.setenv("FOREBAY_PEERS_INTERFACE", "lo")

    def announce() -> None:
        (meeting,) = wait_until(lambda: list(tmp_path.glob("peers/*")), "the first node")
        wait_until((meeting / "node.0").exists, "the first node")
        other = meeting / "part"
        other.touch(0o600)
        other.write_text(f"forebay peers 3\n{'ab' * 32} 11 2 2 127.0.0.1:7 other:1\n")
        other.rename(meeting / "node.1")

    announcing = threading.Thread(target=announce)
    announcing.start()
    said = said_alone(capfd)
    announcing.join()
    assert re.match(r"node other:1 speaks version 11 of Forebay's messages, this node \d+: install one version on all nodes", said)


@pytest.mark.parametrize("way", ["store", "file"])
def test_s7_nothing_is_left_in_a_store_once_all_nodes_have_read_it(tmp_path: Path, way: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o600)
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    before = server.num_keys()
    of_all = {"GROUP_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port), "FOREBAY_PEERS_INTERFACE": "lo"}
    way_of = {"FOREBAY_PEERS_SECRET": "store" if way == "store" else str(secret)}

    def join(number: int) -> tuple[_core.LoaderNodes, int]:
        settings = _core.NodeSettings.read({**of_all, **way_of, "GROUP_RANK": str(number)})
        nodes = _core.LoaderNodes.find(settings, "loader", "job", 2 * number, 2)
        assert nodes is not None
        assert nodes.store == ("127.0.0.1", server.port, way == "store")
        client = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
        return nodes, nodes.join(client, LONG_S)[1]

    with ThreadPoolExecutor(3) as pool:
        joined = list(pool.map(join, range(3)))
    assert [count for _, count in joined] == [3, 3, 3]
    assert server.num_keys() > before
    for nodes, _ in reversed(joined):
        nodes.leave()
    assert server.num_keys() == before


def test_a_store_that_there_is_not_is_said(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FOREBAY_PEERS_SECRET", "store")
    monkeypatch.delenv("MASTER_ADDR")
    assert said_alone(capfd).startswith("FOREBAY_PEERS_SECRET=store: MASTER_ADDR and MASTER_PORT name no store; set it to a file")


def test_without_a_directory_that_all_see_a_line_says_so(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HOME", "/no/such/home")
    monkeypatch.delenv("FOREBAY_STATE_DIR", raising=False)
    NodeSharing("0", TWO_NODES)
    assert "set FOREBAY_PEERS_DIR to a directory that all nodes see" in capfd.readouterr().err


def test_ranks_that_are_not_the_first_of_their_node_do_nothing(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GROUP_RANK", "7")
    NodeSharing("0", RankPlace("job", 1, 4, 1, 2)).end()
    assert capfd.readouterr().err == ""
