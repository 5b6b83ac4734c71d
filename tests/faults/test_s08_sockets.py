"""S8: nothing listens on a network; what listens at all, in a directory that is closed to others."""

import stat
from contextlib import suppress
from pathlib import Path

from tests.faults.harness import CORPUS, processes_of
from tests.support import Place, warm


def sockets_of(pid: int) -> set[str]:
    """Inodes of the sockets that a process has open."""
    links = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        # It may be closed by now.
        with suppress(FileNotFoundError):
            links.append(str(descriptor.readlink()))
    return {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")}


def inodes_in(table: str, column: int) -> set[str]:
    try:
        lines = Path("/proc/net", table).read_text().splitlines()[1:]
    except FileNotFoundError:
        return set()
    return {fields[column] for line in lines if len(fields := line.split()) > column}


def test_s08_only_unix_sockets_and_closed_directories(place: Place) -> None:
    with place.worker() as worker, place.worker() as other:
        warm(place, worker, *(place.source / name for name in CORPUS))
        warm(place, other, place.source / "a00")
        (agent,) = processes_of(place)
        everybody = [agent, worker.process.pid, worker.do("os.getpid()")]
        # Connections that hand something over live for an instant: what is there before and after the tables are read
        # is looked at.
        before = set().union(*map(sockets_of, everybody))
        network = set().union(*(inodes_in(table, 9) for table in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6", "udplite", "udplite6")))
        local = inodes_in("unix", 6)
        found = before & set().union(*map(sockets_of, everybody))
        assert not found & network
        assert found <= local
        # The two sockets that listen, and a connection for each run, at both its ends.
        assert len(found) >= 4
        # The program itself has none: nothing of ours stays open in it.
        assert sockets_of(worker.do("os.getpid()")) == set()
        bound = [path for path in place.runtime.rglob("*") if path.is_socket()]
        assert {path.name for path in bound} == {"control.sock", "door.sock"}
        for path in bound:
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        # Nor does it listen under a name without a path, which has no owner.
        assert not [line for line in Path("/proc/net/unix").read_text().splitlines() if "@" in line and "forebay" in line]
    assert worker.ran


def test_s08_the_program_finds_no_descriptor_of_ours(place: Place) -> None:
    ours = "import os, json\nprint(sorted(os.listdir('/proc/self/fd')))"
    plain = "[os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')]"
    with place.worker() as worker:
        before = len(worker.do(plain))
        warm(place, worker, *(place.source / name for name in CORPUS))
        assert len(worker.do(plain)) == before
    assert place.run(place.python, "-E", "-c", ours).out == place.run(place.python, "-E", "-c", ours, environment={"FOREBAY": "off"}).out
