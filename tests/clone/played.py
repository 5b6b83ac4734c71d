"""A rank of a clone, or of a job, that goes as far as it is told and no further.

What becomes of it then is the test's. Without torch.

Usage: python -m tests.clone.played clone STAGE   (FOREBAY_CLONE says which fork)
       python -m tests.clone.played source STAGE DIRECTORY   (of the fork agent)

Says STAGE on standard output when it has come so far, and waits for the end of its standard input.
"""

import ctypes
import os
import sys
import time

from forebay import _core
from forebay.clone import _description
from forebay.clone._manifest import DIGEST_BYTES, CapturedSection, EntryKind, Layout, Manifest, Placement, Section
from forebay.clone._read_lease import ParentTensors
from forebay.clone._resume import CloneRequest

LONG = 600.0
LENGTH = 1 << 20


def arrive(stage: str) -> None:
    """Here is the end if this is the stage."""
    if sys.argv[2] == stage:
        os.write(1, stage.encode() + b"\n")
        sys.stdin.read()
        sys.exit()


def clone() -> None:
    """As `resume` does it."""
    asked = CloneRequest.from_json(os.environ["FOREBAY_CLONE"])
    taking = _core.Taking(asked.directory, asked.fork, 0, 1)
    arrive("asked")
    state = taking.state(LONG)
    assert state
    _, reader, (text, _, *lying), _ = state
    arrive("state")
    secret = asked.secret.read_bytes()
    header, manifest = _description.read(secret, text)
    remote = ParentTensors(manifest, reader, lying, LONG)
    digests = {}
    for number, entry in enumerate(manifest.in_place):
        buffer = ctypes.create_string_buffer(entry.length)
        digests[entry.path] = remote.read([(number, ctypes.addressof(buffer))])
        arrive("part")
    arrive("read")
    remote.confirm(time.sleep)
    arrive("confirmed")
    whole = b"".join(digests[entry.path] if entry.place else bytes.fromhex(entry.digest) for entry in manifest.entries)
    with _description.described(secret, header, manifest.read(whole)) as described:
        taking.loaded(described)
    assert taking.exists(LONG)
    arrive("exists")


def source() -> None:
    """A job of one rank, one tensor, and as many steps as it takes to be forked."""
    rank = _core.Rank(sys.argv[3], "played", 0, 1, False, 0)
    arrive("registered")
    rank.measured(LENGTH)
    step = 0
    forks: list[tuple[int, int]] = []
    while not forks:
        step += 1
        time.sleep(0.001)
        forks, _, near = rank.due(step, step)
        if near is not None:
            arrive("near")
    arrive("due")
    memory, aside = _core.Shared(LENGTH), _core.Shared(LENGTH)
    window = _core.Window([(memory.address, LENGTH)], len(forks))
    copied = _core.Reserved(64).seal(64)
    kinds = (
        EntryKind.of_values(Placement.REPLICATED, b"{}"),
        EntryKind(Placement.REPLICATED, Layout("uint8", (LENGTH,), (1,), "cpu"), LENGTH),
    )
    held = CapturedSection(Section(("model/parameters", "model/parameters/w"), kinds), {1: (0, 0)})
    manifest = Manifest("none", 0, 1, (), (held,), b"\1" * DIGEST_BYTES + bytes(DIGEST_BYTES))
    with open(rank.secret, "rb") as secret:  # noqa: PTH123
        described = _description.described(secret.read(), _description.StateHeader("played", 0, 0, step), manifest)
    with described as text:
        state = [text, copied, window.descriptor, aside.descriptor, memory.descriptor]
        rank.offer([number for number, _ in forks], 0, step, state)
    arrive("offered")
    window.close(aside.address, aside.length, LONG)
    arrive("closed")


if __name__ == "__main__":
    {"clone": clone, "source": source}[sys.argv[1]]()
