"""Jobs beside each other, nodes that come late, and clocks that differ (F21, F45, F46)."""

from pathlib import Path

from testbed import epochs
from testbed.nodes import JobNode
from tests.peers.test_samples import TOTAL_BYTES, digests, ended, expected, figure, free_port, start, two_nodes
from tests.support import wait_until

__all__ = ["two_nodes"]


def runs_python(pid: int) -> bool:
    return b"torch.distributed.run" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:3]


def test_f21_two_jobs_of_one_user_share_nodes_and_no_samples(two_nodes: list[JobNode]) -> None:
    folder = str(two_nodes[0].shared / "data")
    first = start(two_nodes, folder, "ram=8M", "3", "0.2")
    # A node's programs see the same mounts.
    wait_until(lambda: all(runs_python(program.pid) for program in first), "the programs have their mounts")
    beside = {number: ("nsenter", "--target", str(program.pid), "--mount") for number, program in enumerate(first)}
    second = epochs.start(two_nodes, [folder, "ram=8M", "3", "0.2"], {}, before=beside)
    for lines, said in map(ended, (first, second)):
        assert digests(lines) == expected(folder, 3), said
        assert figure(lines, 2, "nodes") == 4, said
        assert figure(lines, 2, "from_peers") > 0
        # Each job reads everything once: nothing came from the other one, and nobody was asked without result.
        assert 0.98 * TOTAL_BYTES <= figure(lines, 2, "source_bytes") <= 1.02 * TOTAL_BYTES
    assert not list((two_nodes[0].shared / "peers").iterdir())


def test_f45_a_node_that_comes_late_joins_the_others(two_nodes: list[JobNode]) -> None:
    folder = str(two_nodes[0].shared / "data")
    lines, said = ended(start(two_nodes, folder, "ram=8M", "4", "0.1", "--late-s=8"))
    assert digests(lines) == expected(folder, 4), said
    alone, *_, last = (line for line in lines if line["rank"] == 0)
    assert alone["figures"]["from_peers"] == 0, "the first node's first epoch was over before the other came"
    assert last["figures"]["nodes"] == 2
    assert figure(lines, 3, "from_peers") > 0


def test_f46_nodes_whose_clocks_differ_share_samples(two_nodes: list[JobNode]) -> None:
    # No clock of a node is compared with another's, nor with one that an identity would run out by.
    ahead = ["unshare", "--time", "--monotonic", "86400", "--boottime", "86400"]
    folder = str(two_nodes[0].shared / "data")
    words = [folder, "ram=8M", "3", "0.1"]
    lines, said = ended(epochs.start(two_nodes, words, {}, free_port(two_nodes), before={1: ahead}))
    assert digests(lines) == expected(folder, 3), said
    assert figure(lines, 2, "nodes") == 4, said
    assert figure(lines, 2, "from_peers") > 0
    assert figure(lines, 2, "source_bytes") <= 1.02 * TOTAL_BYTES
