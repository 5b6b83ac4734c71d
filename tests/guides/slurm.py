"""A Slurm cluster of this one machine, of one node or of several that have a network and a host name of their own.

Munged, slurmctld and slurmd of our own, on ports and in a directory of their own.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from testbed.nodes import JobNode
from tests import support

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo")
GROUPS = Path("/sys/fs/cgroup")

CONFIGURATION = """\
ClusterName=forebay
SlurmctldHost={host}({address})
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.sock
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
MessageTimeout=100
BatchStartTimeout=600
UnkillableStepTimeout=600
SlurmdTimeout=600
SlurmctldTimeout=600
ReturnToService=2
{nodes}PartitionName=all Nodes=ALL Default=YES OverSubscribe=FORCE:4 State=UP
"""


def why_not() -> str:
    """Why there can be no cluster here; empty if there can."""
    if os.geteuid() != 0:
        return "Slurm needs root"
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    lacking = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if lacking:
        return f"needs {', '.join(lacking)}: apt-get install slurmctld slurmd slurm-client munge"
    return "" if (GROUPS / "freezer").is_dir() or (GROUPS / "cgroup.controllers").exists() else "Slurm needs control groups"


def _ports(count: int) -> list[int]:
    """Returns ports that are free."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


@contextmanager
def _daemon(root: Path, environment: dict[str, str], *words: str, node: JobNode | None = None) -> Iterator[None]:
    """Runs a daemon in the foreground, on a node if one is given, with what it says in a log."""
    with (root / f"{words[0]}.{node.number if node else 0}.log").open("wb") as log:
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
        process = node.start(words, environment, **options) if node else subprocess.Popen(words, env=environment, **options)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(20)
                    break


@contextmanager
def cluster(nodes: Sequence[JobNode] = ()) -> Iterator[dict[str, str]]:
    """Runs a cluster that takes jobs: of this host, or of nodes, the first of which has the controller.

    Yields the environment in which Slurm's commands find it.
    """
    host = nodes[0].name if nodes else socket.gethostname().split(".")[0]
    address = nodes[0].address if nodes else "127.0.0.1"
    before = set(_groups())
    root = Path(tempfile.mkdtemp(prefix="fb-slurm-", dir="/tmp"))
    root.chmod(0o755)
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", "SLURM_CONF": str(root / "slurm.conf")}
    for name in ("state", "spool"):
        (root / name).mkdir()
    (root / "munge.key").write_bytes(os.urandom(1024))
    (root / "munge.key").chmod(0o600)
    controller, *ports = _ports(1 + max(1, len(nodes)))
    places = [(node.name, node.address) for node in nodes] or [(host, address)]
    lines = [
        f"NodeName={name} NodeAddr={at} Port={port} CPUs={os.cpu_count()} State=UNKNOWN\n"
        for (name, at), port in zip(places, ports, strict=True)
    ]
    text = CONFIGURATION.format(host=host, address=address, controller=controller, root=root, nodes="".join(lines))
    (root / "slurm.conf").write_text(text)
    version = "v2" if (GROUPS / "cgroup.controllers").exists() else "v1"
    (root / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/{version}\nConstrainCores=no\nConstrainRAMSpace=no\n")
    own = [f"--{what}={root}/munge.{end}" for what, end in (("key-file", "key"), ("socket", "sock"), ("pid-file", "pid"))]
    own += [f"--{what}={root}/munge.{end}" for what, end in (("log-file", "log"), ("seed-file", "seed"))]
    try:
        with ExitStack() as daemons:
            daemons.enter_context(_daemon(root, environment, "munged", "--force", "--foreground", *own))
            support.wait_until(lambda: (root / "munge.sock").exists(), "munged")
            daemons.enter_context(_daemon(root, environment, "slurmctld", "-D", node=nodes[0] if nodes else None))
            for node in nodes or (None,):
                daemons.enter_context(_daemon(root, environment, "slurmd", "-D", node=node))
            support.wait_until(lambda: _is_idle(environment, nodes), f"idle nodes; {_said(root)}", support.PROGRAM_S)
            yield environment
    finally:
        # Steps that were still ending make files there.
        deadline = time.monotonic() + 20
        while root.exists() and time.monotonic() < deadline:
            shutil.rmtree(root, ignore_errors=True)
        for group in sorted(set(_groups()) - before, key=lambda path: -len(path.parts)):
            with suppress(OSError):
                group.rmdir()


def _is_idle(environment: dict[str, str], nodes: Sequence[JobNode]) -> bool:
    words = ["sinfo", "--noheader", "--format=%T %D"]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    asking = nodes[0].start(words, environment, **options) if nodes else subprocess.Popen(words, env=environment, text=True, **options)
    return asking.communicate()[0].split() == ["idle", str(max(1, len(nodes)))]


def _said(root: Path) -> str:
    return "\n".join(f"{log.name}: {log.read_text()[-500:]}" for log in root.glob("*.log"))


def _groups() -> list[Path]:
    """Returns the control groups that Slurm makes, and does not always remove."""
    return [path for pattern in ("*/slurm*", "*/slurm*/**/") for path in GROUPS.glob(pattern) if path.is_dir()]
