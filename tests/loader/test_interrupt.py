"""Ctrl-C, and a rank that is killed.

The program ends, and leaves no process and no shared memory, even if its source hangs.
"""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.loader.node import a_node
from tests.support import LONG_S, PROGRAM_S, ROOT, wait_until

PROGRAM = textwrap.dedent("""
    import sys
    import time

    from torch.utils.data import Dataset

    from forebay.loader import Extent
    from forebay.torch import DataLoader

    kind, folder = sys.argv[1:]

    class Plain(Dataset):
        def __len__(self):
            return 1000

        def __getitem__(self, index):
            # The first batches come, then it stalls.
            time.sleep(1000 if index > 40 else 0)
            return index

    class Located:
        keyed = "processes" not in kind

        def __len__(self):
            return 1000

        def locate(self, i):
            # Nobody writes to the pipe: a file system that hangs.
            return Extent(f"{folder}/pipe" if i > 40 else f"{folder}/file")

        def decode(self, data, i, rng):
            return i

    dataset, cache = Plain() if kind == "plain" else Located(), ("ram=1M",) if "cache" in kind else ()
    for batch in DataLoader(dataset, 4, seed=0, num_workers=2, cache=cache):
        print(batch[-1].item(), flush=True)
        while kind == "training":
            time.sleep(0.01)
""")


@contextlib.contextmanager
def program(kind: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A training that has had its first batch, in a session of its own."""
    (folder / "file").write_bytes(b"x")
    os.mkfifo(folder / "pipe")
    command = [sys.executable, "-c", PROGRAM, kind, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as training:
        assert training.stdout is not None
        try:
            assert training.stdout.readline() == "3\n"
            yield training
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(training.pid, signal.SIGKILL)


def processes(session: int) -> list[str]:
    """Returns the living processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            text = stat.read_text()
            state, _, _, its_session = text.rpartition(")")[2].split()[:4]
            if int(its_session) == session and state not in "ZX":
                found.append(text)
    return found


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def shared_memory(pid: int) -> list[Path]:
    """Returns torch's name for it, by the process that made it."""
    return list(Path("/dev/shm").glob(f"torch_{pid}_*"))  # noqa: S108


@pytest.mark.parametrize("kind", ["plain", "threads", "processes", "training"])
def test_ctrl_c_ends_all_of_it(kind: str, tmp_path: Path) -> None:
    with program(kind, tmp_path) as training:
        # The terminal sends it to all processes of the foreground.
        os.killpg(training.pid, signal.SIGINT)
        _, err = training.communicate(timeout=PROGRAM_S)
        assert training.returncode == -signal.SIGINT, err
        assert "KeyboardInterrupt" in err
        wait_until(lambda: processes(training.pid) == [], "its processes to end", LONG_S)
        assert shared_memory(training.pid) == []


@pytest.mark.parametrize("kind", ["cache", "cache for processes"])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_with_a_cache_the_agent_ends_too_though_its_source_hangs(
    sent: signal.Signals, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_node(monkeypatch) as node, program(kind, tmp_path) as training:
        agent = node.agent()
        os.killpg(training.pid, sent)
        _, err = training.communicate(timeout=PROGRAM_S)
        assert training.returncode == -sent, err
        wait_until(lambda: processes(training.pid) == [], "its processes to end", LONG_S)
        wait_until(lambda: not lives(agent), "the agent to see that nobody is there", LONG_S)
        assert shared_memory(training.pid) == []


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_rank_that_is_killed_leaves_nothing(kind: str, tmp_path: Path) -> None:
    with program(kind, tmp_path) as training:
        training.kill()
        training.communicate(timeout=PROGRAM_S)
        wait_until(lambda: processes(training.pid) == [], "its processes to see that they are orphans", LONG_S)
        assert shared_memory(training.pid) == []
