"""A desk to type commands at: directories of its own, and nothing of the user's environment."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import support

# A run with the desk's source and tier.
RUN = ("run", "--source", "source", "--tier", "tier=64M")
PROGRESS = re.compile(r"forebay: \w+: \d+ % of ")


@dataclass
class Desk:
    """Where a command is typed.

    `source`, `tier` and the home directory are there; relative names mean what is in `root`.
    """

    root: Path
    runtime: Path

    # Put before every command line.
    prefix: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.source = self.root / "source"
        self.tier = self.root / "tier"
        self.home = self.root / "home"
        for directory in (self.source, self.tier, self.home):
            directory.mkdir()
        self.source.joinpath("file").write_bytes(b"content")

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
        return kept | {"HOME": str(self.home), "FOREBAY_RUNTIME_DIR": str(self.runtime), "USER": "tester"}

    def type(
        self, *words: str | Path, env: Mapping[str, str] | None = None, uid: int | None = None, typed: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Types a command line. Variables come on top of the desk's environment."""
        command = support.command() if uid is None else support.visible_command(self.root)
        return subprocess.run(
            [*self.prefix, *support.as_user(uid), str(command), *words],
            cwd=self.root,
            env={**self.environment, **(env or {})},
            input=typed,
            capture_output=True,
            text=True,
            timeout=support.PROGRAM_S,
            check=False,
        )

    def run(self, *words: str | Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """`forebay run` with the desk's source and tier, and these options and program."""
        return self.type(*RUN, *words, env=env)

    @contextmanager
    def lasting(self, script: str, *options: str, run: Sequence[str] = RUN) -> Iterator[list[bytes]]:
        """A run of a shell's script that goes on: it has said a line, and reads one at the end.

        Its further output is in the list afterwards.
        """
        words = [str(support.command()), *run, "-q", *options, "--", "sh", "-c", script]
        pipe, said = subprocess.PIPE, list[bytes]()
        with subprocess.Popen(words, cwd=self.root, env=self.environment, stdin=pipe, stdout=pipe) as process:
            try:
                assert process.stdout
                assert process.stdout.readline() == b"begun\n"
                yield said
            finally:
                said.append(process.communicate(b"\n", timeout=support.PROGRAM_S)[0])

    def refuse(self, *words: str | Path, status: int = 2, env: Mapping[str, str] | None = None) -> str:
        """Returns the message to a refused command line: one line, and nothing has run.

        On a slow machine lines of progress may come before it. The program, if any, is `touch ran`.
        """
        done = self.type(*words, env=env)
        assert (done.returncode, done.stdout) == (status, ""), done
        said = "".join(line for line in done.stderr.splitlines(keepends=True) if not PROGRESS.match(line))
        assert said.startswith("forebay: "), done.stderr
        assert said.endswith("\n"), done.stderr
        assert said.count("\n") == 1, done.stderr
        assert not (self.root / "ran").exists()
        return said.removeprefix("forebay: ").removesuffix("\n")

    def records(self) -> list[dict[str, Any]]:
        """The records in the state directory, oldest first."""
        return [json.loads(path.read_text()) for path in sorted(self.home.glob(".local/state/forebay/runs/*.json"))]


# In a mount namespace of its own: every file system is unmounted that a run would take for a source, but for the first
# word's.
APART = """
keep=$1
shift
mount --make-rprivate /
awk '$0 ~ / - (fuse|nfs|lustre|9p)/ {print $5}' /proc/self/mountinfo | while read -r point; do
  # It may go by itself meanwhile, with the test that it belongs to.
  [ "$point" = "$keep" ] || umount -l "$point" || true
done 2>/dev/null
"""


def apart(keep: Path | None = None, then: str = "") -> tuple[str, ...]:
    """A prefix for a machine on which only this file system is shared; shell commands may change more."""
    return ("unshare", "--mount", "bash", "-ec", APART + then + 'exec "$@"', "apart", str(keep or ""))


@pytest.fixture
def desk() -> Iterator[Desk]:
    """A desk that is gone afterwards. Its path is short, since sockets are in it, and open to every user."""
    with (
        tempfile.TemporaryDirectory(prefix="forebay-", dir="/var/tmp") as root,
        tempfile.TemporaryDirectory(prefix="fb-", dir="/tmp") as runtime,
    ):
        Path(root).chmod(0o755)
        made = Desk(Path(root).resolve(), Path(runtime))
        yield made
        made.type("clean", "--tier", made.tier)
