"""Slow shared file systems for tests, demonstrations and benchmarks.

    with slowfs(src, mnt, mbps=50, meta_us=2000) as fs:
        ...
        fs.stats()["bytes_read"]

    with gluster(directory, populate=src) as g:
        ... g.mnt ...; g.stats()

Each is unmounted and its processes reaped on leaving, whatever happened inside.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve().parent
GLUSTER_SH = HERE / "gluster.sh"
SLOWFS_VARIABLE = "FOREBAY_SLOWFS"

_START_S = 120.0
_ANSWER_S = 60.0
_STOP_S = 5.0
_GLUSTER_UP_S = 600.0
_GLUSTER_CALL_S = 180.0


class TestbedError(RuntimeError):
    """Something of the test bed could not be started, or did not answer."""

    __test__ = False  # not a test case, though pytest would take its name for one


def slowfs_binary() -> Path | None:
    """Returns the slowfs program: `$FOREBAY_SLOWFS`, else the newer of the release and the debug build."""
    if named := os.environ.get(SLOWFS_VARIABLE):
        return Path(named) if os.access(named, os.X_OK) else None
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target"))
    built = [path for kind in ("release", "debug") if os.access(path := target / kind / "slowfs", os.X_OK)]
    return max(built, key=lambda path: path.stat().st_mtime, default=None)


def have_fuse() -> str | None:
    """Why slowfs can't be mounted here; None where it can."""
    if slowfs_binary() is None:
        return f"slowfs is not built (cargo build --release -p slowfs, or name it in {SLOWFS_VARIABLE})"
    if not Path("/dev/fuse").exists():
        return "no /dev/fuse"
    if os.geteuid() != 0:
        if shutil.which("fusermount3") is None:
            return "without root, fusermount3 is needed (Debian: fuse3)"
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            return "/dev/fuse is closed to this user"
    return None


def have_gluster() -> str | None:
    """Why GlusterFS can't be had here; None where it can."""
    if os.geteuid() != 0:
        return "GlusterFS needs root"
    missing = [tool for tool in ("glusterd", "glusterfs", "gluster", "ip", "tc", "nsenter", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"missing: {', '.join(missing)} (Debian: glusterfs-server, iproute2)"
    return None if Path("/dev/fuse").exists() else "no /dev/fuse"


def drop_caches() -> None:
    """Writes everything back and drops the machine's caches. Needs root."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def is_mounted(path: Path) -> bool:
    """Returns True if something is mounted on exactly this directory.

    Asks the kernel's table, never the file system, which may hang.
    """
    escaped = os.path.realpath(path.parent) + "/" + path.name
    for char in "\\ \t\n":
        escaped = escaped.replace(char, f"\\{ord(char):03o}")
    return any(line.split(" ")[4] == escaped for line in Path("/proc/self/mountinfo").read_text().splitlines())


class SlowFs:
    """A mounted slowfs; see `slowfs --help` for the settings, which `set` changes while it runs."""

    def __init__(self, src: Path, mnt: Path, *, allow_other: bool | None = None, readdirplus: bool = True, **settings: float) -> None:
        self.src = src
        self.mnt = mnt
        self._allow_other = os.geteuid() == 0 if allow_other is None else allow_other
        self._readdirplus = readdirplus
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._socket: socket.socket | None = None
        self._answers = b""

    def __enter__(self) -> SlowFs:
        if reason := have_fuse():
            raise TestbedError(reason)
        if is_mounted(self.mnt):
            raise TestbedError(f"{self.mnt}: something is mounted there already")
        self._directory = tempfile.TemporaryDirectory(prefix="slowfs-")
        try:
            self._start(Path(self._directory.name))
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def _start(self, directory: Path) -> None:
        control, log = directory / "control", directory / "log"
        arguments = [str(slowfs_binary()), str(self.src), str(self.mnt), "--control", str(control)]
        for key, value in self._settings.items():
            arguments += [f"--{key.replace('_', '-')}", str(value)]
        if self._allow_other:
            arguments.append("--allow-other")
        if not self._readdirplus:
            arguments.append("--no-readdirplus")
        # A preload of whoever tests must not reach the server; a signal to a test's group must not end it before the
        # test is over.
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True
            )
        deadline = time.monotonic() + _START_S
        # slowfs listens once it is mounted.
        while not self._connect(control):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise TestbedError(f"slowfs did not start: {log.read_text(errors='replace').strip() or 'no answer'}")
            time.sleep(0.01)

    def _connect(self, control: Path) -> bool:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_ANSWER_S)
        try:
            connection.connect(os.fspath(control))
        except OSError:
            connection.close()
            return False
        self._socket = connection
        return True

    def _stop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            if self._process.poll() is None:
                self._process.terminate()
                try:
                    self._process.wait(_STOP_S)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
            self._process = None
        if is_mounted(self.mnt):
            _detach(self.mnt)
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    @property
    def pid(self) -> int:
        """The server's process."""
        if self._process is None:
            raise TestbedError("slowfs is not running")
        return self._process.pid

    def ask(self, line: str) -> str:
        """Sends one line to the server and returns its answer."""
        if self._socket is None:
            raise TestbedError("slowfs is not running")
        self._socket.sendall(line.encode() + b"\n")
        while b"\n" not in self._answers:
            received = self._socket.recv(65536)
            if not received:
                raise TestbedError("slowfs has gone away")
            self._answers += received
        answer, _, self._answers = self._answers.partition(b"\n")
        text = answer.decode()
        if text.startswith("error: "):
            raise TestbedError(text.removeprefix("error: "))
        return text

    def stats(self) -> dict[str, int]:
        """Returns the server's counts: one for each operation, `bytes_read` and `bytes_written`."""
        counts: dict[str, int] = json.loads(self.ask("stats"))
        return counts

    def reset(self) -> None:
        """Sets all counts to zero."""
        self.ask("reset")

    def hang(self) -> None:
        """Answers nothing until `resume`."""
        self.ask("hang")

    def resume(self) -> None:
        """Ends a hang; what waited goes on."""
        self.ask("resume")

    def fail(self, errno_name: str, operation: str | None = None) -> None:
        """Fails every operation, or every one of a kind, until `ok`; for instance `fail("EIO", "read")`."""
        self.ask(f"fail {errno_name} {operation or ''}")

    def ok(self) -> None:
        """Ends all failures."""
        self.ask("ok")

    def set(self, **settings: float) -> None:
        """Changes settings: `mbps`, `open_ms`, `meta_us`, `read_us`, `slots`, `attr_ttl_ms`, `tail`."""
        for key, value in settings.items():
            self.ask(f"set {key} {value}")


def slowfs(src: str | Path, mnt: str | Path, *, allow_other: bool | None = None, readdirplus: bool = True, **settings: float) -> SlowFs:
    """`src` as a slow shared file system on `mnt` (an empty directory), for the length of a `with` block.

    Args:
        src: the directory to show.
        mnt: where to mount it.
        allow_other: let other users in; by default, as root only.
        readdirplus: whether listings carry attributes.
        settings: `mbps`, `open_ms`, `meta_us`, `read_us`, `slots`, `attr_ttl_ms`, `tail`, `threads`.
    """
    return SlowFs(Path(src), Path(mnt), allow_other=allow_other, readdirplus=readdirplus, **settings)


@dataclass(frozen=True)
class Gluster:
    """A GlusterFS that is up; its volume is mounted on `mnt`, and for each further client on one of `mounts`."""

    directory: Path
    clients: int = 1

    @property
    def mnt(self) -> Path:
        """Where the volume is mounted."""
        return self.directory / "mnt"

    @property
    def mounts(self) -> list[Path]:
        """Where the volume is mounted, by client."""
        return [self.mnt, *(self.directory / f"mnt{number}" for number in range(2, self.clients + 1))]

    def stats(self) -> dict[str, Any]:
        """Returns the bricks' counts since they started.

        `sent_bytes` and `received_bytes` are those on the bricks' links, with all headers; `operations` counts the
        bricks' file operations by name; `bricks` holds the same for each brick.
        """
        counts: dict[str, Any] = json.loads(_gluster_sh("stats", self.directory, timeout_s=_GLUSTER_CALL_S))
        return counts

    def drop_caches(self) -> None:
        """Drops the caches of client and bricks, which share this machine's kernel."""
        drop_caches()


@contextlib.contextmanager
def gluster(
    directory: str | Path,
    *,
    bricks: int = 2,
    rate: str = "400mbit",
    delay_us: int = 1000,
    populate: str | Path | None = None,
    keep_data: bool = False,
    clients: int = 1,
) -> Iterator[Gluster]:
    """A GlusterFS in `directory`, for the length of a `with` block.

    Args:
        directory: where bricks, logs and the mount lie; made if need be, and gone afterwards unless `keep_data`.
        bricks: how many bricks.
        rate: what each brick's link carries in each direction, as `tc` writes it; "none" for no limit.
        delay_us: what a brick waits before an open, lookup, read, readdirp or opendir.
        populate: copy this directory into the volume before rate and delay apply.
        keep_data: leave the volume's data in `directory`, for another `gluster` there to find.
        clients: how many clients, each with a mount and caches of its own.
    """
    if reason := have_gluster():
        raise TestbedError(reason)
    options = ["--bricks", str(bricks), "--rate", rate, "--delay-us", str(delay_us), "--clients", str(clients)]
    if populate is not None:
        options += ["--populate", os.fspath(populate)]
    where = Path(directory).absolute()
    # A refusal leaves nothing behind, and may be due to somebody else's testbed in that directory; an interruption does
    # leave things.
    try:
        _gluster_sh("up", where, *options, timeout_s=_GLUSTER_UP_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        _gluster_sh("down", where, timeout_s=_GLUSTER_CALL_S)
        raise
    try:
        yield Gluster(where, clients)
    finally:
        _gluster_sh("down", where, *(["--keep-data"] if keep_data else []), timeout_s=_GLUSTER_CALL_S)


def _gluster_sh(command: str, directory: Path, *options: str, timeout_s: float) -> str:
    # glusterd and its kin outlive the script and would hold a pipe open: its output goes to files.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        ended = subprocess.run(
            [GLUSTER_SH, command, directory, *options], stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=timeout_s, check=False
        )
        out.seek(0)
        err.seek(0)
        if ended.returncode != 0:
            raise TestbedError(err.read().decode(errors="replace").strip() or f"gluster.sh {command} exited {ended.returncode}")
        return out.read().decode()


def _detach(mnt: Path) -> None:
    for command in (["umount", "-l"], ["fusermount3", "-u", "-z"]):
        with contextlib.suppress(FileNotFoundError):
            if subprocess.run([*command, mnt], capture_output=True, check=False).returncode == 0:
                return
    print(f"testbed: {mnt} is still mounted", file=sys.stderr)
