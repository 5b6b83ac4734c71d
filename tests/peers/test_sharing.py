"""Settings of nodes that share samples: what is invalid is said in one line, and nothing else happens."""

import os
from pathlib import Path

import pytest

from forebay.loader._place import RankPlace
from forebay.loader._sharing import NodeSharing, is_shared

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


def test_nodes_share_unless_they_are_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_shared(TWO_NODES)
    assert not is_shared(ONE_NODE)
    monkeypatch.setenv("FOREBAY_PEERS", "off")
    assert not is_shared(TWO_NODES)
    monkeypatch.setenv("FOREBAY_PEERS", "maybe")
    with pytest.raises(ValueError, match="FOREBAY_PEERS=maybe: give one of auto, off"):
        NodeSharing("0", ONE_NODE)


def test_a_launcher_that_contradicts_itself_is_named(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GROUP_RANK", "7")
    NodeSharing("0", TWO_NODES)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("forebay: samples are not shared with the other nodes: torchrun says GROUP_RANK=7: ")
    assert line.endswith("set FOREBAY_PEERS=off")


def test_without_a_directory_that_all_see_a_line_says_so(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HOME", "/no/such/home")
    NodeSharing("0", TWO_NODES)
    assert "set FOREBAY_PEERS_DIR to a directory that all nodes see" in capfd.readouterr().err


def test_ranks_that_are_not_the_first_of_their_node_do_nothing(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GROUP_RANK", "7")
    NodeSharing("0", RankPlace("job", 1, 4, 1, 2)).end()
    assert capfd.readouterr().err == ""
