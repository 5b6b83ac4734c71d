"""A Slurm cluster of this one machine.

Munged, slurmctld and slurmd of our own, on ports and in a directory of their own.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests import support

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo")
GROUPS = Path("/sys/fs/cgroup")

CONFIGURATION = """\
ClusterName=forebay
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.sock
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
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
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES OverSubscribe=FORCE:4 State=UP
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


def _ports() -> tuple[int, int]:
    """Two that are free."""
    with socket.socket() as one, socket.socket() as two:
        for probe in (one, two):
            probe.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


@contextmanager
def _daemon(root: Path, environment: dict[str, str], *words: str) -> Iterator[None]:
    """A daemon in the foreground, its words in a log."""
    with (root / f"{words[0]}.log").open("wb") as log:
        process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
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
def cluster() -> Iterator[dict[str, str]]:
    """A cluster that takes jobs; gives the environment in which Slurm's commands find it."""
    host = socket.gethostname().split(".")[0]
    before = set(_groups())
    root = Path(tempfile.mkdtemp(prefix="fb-slurm-", dir="/tmp"))
    root.chmod(0o755)
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", "SLURM_CONF": str(root / "slurm.conf")}
    for name in ("state", "spool"):
        (root / name).mkdir()
    (root / "munge.key").write_bytes(os.urandom(1024))
    (root / "munge.key").chmod(0o600)
    controller, daemon = _ports()
    text = CONFIGURATION.format(host=host, controller=controller, daemon=daemon, root=root, cpus=os.cpu_count())
    (root / "slurm.conf").write_text(text)
    version = "v2" if (GROUPS / "cgroup.controllers").exists() else "v1"
    (root / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/{version}\nConstrainCores=no\nConstrainRAMSpace=no\n")
    own = [f"--{what}={root}/munge.{end}" for what, end in (("key-file", "key"), ("socket", "sock"), ("pid-file", "pid"))]
    own += [f"--{what}={root}/munge.{end}" for what, end in (("log-file", "log"), ("seed-file", "seed"))]
    try:
        with ExitStack() as daemons:
            daemons.enter_context(_daemon(root, environment, "munged", "--force", "--foreground", *own))
            support.wait_until(lambda: (root / "munge.sock").exists(), "munged")
            daemons.enter_context(_daemon(root, environment, "slurmctld", "-D"))
            daemons.enter_context(_daemon(root, environment, "slurmd", "-D"))
            support.wait_until(lambda: _is_idle(environment), f"an idle node; {_said(root)}", support.PROGRAM_S)
            yield environment
    finally:
        # Steps that were still ending make files there.
        deadline = time.monotonic() + 20
        while root.exists() and time.monotonic() < deadline:
            shutil.rmtree(root, ignore_errors=True)
        for group in sorted(set(_groups()) - before, key=lambda path: -len(path.parts)):
            with suppress(OSError):
                group.rmdir()


def _is_idle(environment: dict[str, str]) -> bool:
    words = ["sinfo", "--noheader", "--format=%T"]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False).stdout.strip() == "idle"


def _said(root: Path) -> str:
    return "\n".join(f"{log.name}: {log.read_text()[-500:]}" for log in root.glob("*.log"))


def _groups() -> list[Path]:
    """Returns the control groups that Slurm makes, and does not always remove."""
    return [path for pattern in ("*/slurm*", "*/slurm*/**/") for path in GROUPS.glob(pattern) if path.is_dir()]
