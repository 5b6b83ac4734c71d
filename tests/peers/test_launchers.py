"""Ways to meet but torchrun with a shared directory: a list of hosts, torchrun's store, MPICH, Open MPI and Slurm."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from testbed.epochs import PROGRAM
from testbed.nodes import JobNode, remote_shell
from tests.guides import slurm
from tests.peers.test_samples import SAMPLES, digests, ended, expected, figure, free_port, start, two_nodes
from tests.support import ROOT

__all__ = ["two_nodes"]


def check_shared(job: Sequence[JobNode], programs: "list[subprocess.Popen[str]]") -> str:
    """Checks that batches are those of loaders without a cache, and that nodes have shared samples."""
    lines, said = ended(programs)
    assert digests(lines) == expected(str(job[0].shared / "data"), 3)
    assert figure(lines, 2, "nodes") == 4, said
    assert figure(lines, 1, "from_peers") > SAMPLES // 4
    return said


def secret_file(directory: Path) -> Path:
    """Makes the file with the secret that all nodes have."""
    path = directory / "secret"
    path.write_text("a secret that all nodes have\n")
    path.chmod(0o600)
    return path


def directories(job: Sequence[JobNode]) -> list[Path]:
    """Returns the directories in which the nodes can have met."""
    return [path for node in job for path in (node.root / "state/peers", node.shared / "peers")]


def test_p12_nodes_with_a_secret_file_meet_in_torchruns_store_without_a_shared_directory(two_nodes: list[JobNode]) -> None:
    for node in two_nodes:
        secret_file(node.root)
    # The default directory is one that each node has for itself here.
    said = check_shared(two_nodes, start(two_nodes, *words_of(two_nodes), FOREBAY_PEERS_DIR="", FOREBAY_PEERS_SECRET="ROOT/secret"))  # noqa: S106  (a path)
    assert "puts the secret" not in said
    assert not any(list(path.iterdir()) for path in directories(two_nodes) if path.exists())


def test_p12_a_secret_in_torchruns_store_is_told_of(two_nodes: list[JobNode]) -> None:
    said = check_shared(two_nodes, start(two_nodes, *words_of(two_nodes), FOREBAY_PEERS_DIR="", FOREBAY_PEERS_SECRET="store"))  # noqa: S106  (a way)
    lines = [line for line in said.splitlines() if "FOREBAY_PEERS_SECRET=store puts the secret" in line]
    assert len(lines) == 1
    assert f"whoever reaches {two_nodes[0].address}:" in lines[0]


def test_p12_nodes_of_a_list_of_hosts_meet(two_nodes: list[JobNode]) -> None:
    if two_nodes[0].inside:
        check_shared(two_nodes, start(two_nodes, *words_of(two_nodes), FOREBAY_PEERS=",".join(node.name for node in two_nodes)))
    else:
        # On one host a node's address can't be told from the other's.
        _, said = ended(start(two_nodes, *words_of(two_nodes), FOREBAY_PEERS="127.0.0.1,localhost"))
        assert "other nodes: this host, " in said


def own_variables(job: Sequence[JobNode], number: str, variables: Mapping[str, str]) -> list[str]:
    """Returns the words of the program for a launcher that gives all nodes the variables of one.

    Args:
        job: the nodes.
        number: variable of the launcher with a node's number.
        variables: further variables of all nodes.
    """
    for node in job:
        own = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in {**node.environment, **variables}.items())
        (job[0].shared / f"variables.{node.number}").write_text(own)
    return ["sh", "-c", f'. {job[0].shared}/variables.${number} && exec "$@"', "sh", sys.executable, str(PROGRAM)]


def start_on_first(job: Sequence[JobNode], command: Sequence[str], variables: Mapping[str, str]) -> "subprocess.Popen[str]":
    """Starts a launcher on the first node, with the variables of all ranks."""
    port = free_port(job)
    of_all = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MASTER_ADDR": job[0].address, "MASTER_PORT": port}
    return job[0].start(command, {**variables, **of_all}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def words_of(job: Sequence[JobNode]) -> list[str]:
    """Returns the arguments of the program."""
    return [str(job[0].shared / "data"), "ram=8M", "3", "0.1"]


@pytest.mark.parametrize("has_directory", [True, False])
def test_p12_nodes_of_mpich_meet_once_their_ranks_are_complete(two_nodes: list[JobNode], has_directory: bool) -> None:
    variables = {} if has_directory else {"FOREBAY_PEERS_DIR": "", "FOREBAY_PEERS_SECRET": str(secret_file(two_nodes[0].shared))}
    own = own_variables(two_nodes, "PMI_RANK", variables)
    hosts = ",".join(node.address for node in two_nodes) if two_nodes[0].inside else "127.0.0.1,localhost"
    mpiexec = [str(Path(sys.executable).with_name("mpiexec")), "-launcher", "ssh", "-launcher-exec", remote_shell(two_nodes)]
    command = [*mpiexec, "-hosts", hosts, "-ppn", "1", "-n", "2", *own, *words_of(two_nodes)]
    check_shared(two_nodes, [start_on_first(two_nodes, command, os.environ)])
    assert not any(list(path.iterdir()) for path in directories(two_nodes) if path.exists())


@pytest.mark.skipif(shutil.which("orterun") is None, reason="needs orterun: apt-get install openmpi-bin")
def test_p12_nodes_of_open_mpi_meet_once_their_ranks_are_complete(two_nodes: list[JobNode]) -> None:
    own = own_variables(two_nodes, "OMPI_COMM_WORLD_RANK", {})
    hosts = ",".join(f"{node.name}:1" for node in two_nodes)
    mpirun = ["orterun", "--allow-run-as-root", "--mca", "plm_rsh_agent", remote_shell(two_nodes), "--host", hosts, "-n", "2"]
    for name in ("PYTHONPATH", "OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT"):
        mpirun += ["-x", name]
    check_shared(two_nodes, [start_on_first(two_nodes, [*mpirun, *own, *words_of(two_nodes)], os.environ)])
    assert not any(list(path.iterdir()) for path in directories(two_nodes) if path.exists())


@pytest.mark.skipif(bool(slurm.why_not()), reason=slurm.why_not())
def test_p12_nodes_of_a_slurm_step_meet(two_nodes: list[JobNode]) -> None:
    own = own_variables(two_nodes, "SLURM_NODEID", {})
    with slurm.cluster(two_nodes) as environment:
        command = ["srun", "--nodes=2", "--ntasks-per-node=1", *own, *words_of(two_nodes)]
        check_shared(two_nodes, [start_on_first(two_nodes, command, environment)])
    assert not any(list(path.iterdir()) for path in directories(two_nodes) if path.exists())
