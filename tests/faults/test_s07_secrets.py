"""S7: the user's secret stands in its file and in the memory of those that need it, and nowhere else.

The log names no files.
"""

import base64
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.faults.harness import CORPUS, SMALL
from tests.support import Place, settle, warm

NAME = "a-confidential-name"


def spellings(secret: bytes) -> list[bytes]:
    """How these bytes, or half of them, may be written down."""
    halves = [secret[:16], secret[16:]]
    numbers = [", ".join(map(str, half)).encode() for half in halves]
    encoded = [base64.b64encode(secret)[:20], base64.urlsafe_b64encode(secret)[:20]]
    return [*halves, *(half.hex().encode() for half in halves), *(half.hex().upper().encode() for half in halves), *numbers, *encoded]


def holds(text: bytes, secret: bytes) -> bool:
    return any(spelling in text for spelling in spellings(secret))


def of_processes(place: Place, first: int) -> Iterator[tuple[str, bytes]]:
    """Returns the system's view of the command, its program, and the agent."""
    children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    for pid in (first, *map(int, children), place.agent_pid()):
        for what in ("cmdline", "environ"):
            yield f"{what} of {pid}", Path(f"/proc/{pid}/{what}").read_bytes()


def of_commands(place: Place) -> Iterator[tuple[str, bytes]]:
    tier = f"{place.tier}={place.tier_size}"
    for words in (
        ["ls", "--json", "--tier", str(place.tier)],
        ["top", "--once"],
        ["config", "show"],
        ["doctor", "--json", "--source", str(place.source), "--tier", tier],
    ):
        done = subprocess.run([place.command, *words], env=place.environment(), cwd=place.root, capture_output=True, check=False)
        assert done.stdout, (words, done.stderr)
        yield " ".join(words), done.stdout + done.stderr


def of_files(place: Place) -> Iterator[tuple[str, bytes]]:
    for root in (place.runtime, place.tier, place.root / "state", place.root / "records"):
        for path in root.rglob("*"):
            # One that is replaced or removed meanwhile.
            with suppress(FileNotFoundError):
                if path.is_file() and path.name != "secret":
                    yield str(path), path.read_bytes()


def test_s07_the_secret_is_told_to_nobody(place: Place) -> None:
    (place.source / NAME).write_bytes(CORPUS[SMALL[0]])
    settle(place.source)
    with place.worker() as worker:
        warm(place, worker, *(place.source / name for name in (NAME, *SMALL)))
        secret = (place.root / "state/secret").read_bytes()
        assert len(secret) == 32
        told = [*of_processes(place, worker.process.pid), *of_commands(place), *of_files(place)]
        agent = place.agent_pid()
        limits = Path(f"/proc/{agent}/limits").read_text()
        assert Path(f"/proc/{agent}/cmdline").read_bytes().split(b"\0")[1:] == [b"agent", b""], "its settings come another way"
    ran = worker.end()
    # An agent that is just ending removes its files.
    place.stop()
    told += [("the summary", ran.err), ("the output", ran.out), *of_files(place)]
    assert [where for where, text in told if holds(text, secret)] == []
    assert {"agent.log", "catalogue", "control"} <= {Path(where).name for where, _ in told}
    assert [where for where, text in told if where.endswith("agent.log") and NAME.encode() in text] == []
    (core,) = [line.split()[-3:-1] for line in limits.splitlines() if line.startswith("Max core file size")]
    assert core == ["0", "0"], "it leaves no core file"


def test_s07_what_is_looked_for_would_be_found() -> None:
    secret = bytes(range(100, 132))
    for text in (secret, secret.hex().encode(), base64.b64encode(secret), str(list(secret)).encode(), b"x" + secret[16:]):
        assert holds(b"before " + text + b" after", secret)
    assert not holds(b"nothing of it", secret)
