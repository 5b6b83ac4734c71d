"""How a program becomes a clone: it gets the state of its rank, checks it, loads it, and goes on only when all ranks have done so."""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from forebay import _core
from forebay.clone import _offer
from forebay.clone._ahead import Ahead
from forebay.clone._capture import Capture
from forebay.clone._errors import CloneError, DamagedError
from forebay.clone._filling import Made
from forebay.clone._handlers import is_the_program_s
from forebay.clone._inventory import Inventory, Survey
from forebay.clone._later import uncollected
from forebay.clone._manifest import Held, Manifest
from forebay.clone._shared import Arena
from forebay.clone._source import REASON_MAX
from forebay.clone._told import Course
from forebay.clone._window import Remote

__all__ = ["Asked", "Lineage", "Resumed", "resume", "waited", "warm_up"]

# Interrupts are looked for so often.
SLICE_S = 0.5
WARM_PASSES = 2
"""In the first pass DDP notes in which order gradients come; before the second it rebuilds its buckets accordingly."""

T = TypeVar("T")


@dataclass(frozen=True)
class Lineage:
    """Where a clone comes from.

    Attributes:
        parent: the job that it was forked from.
        epoch: as the parent counts.
        step: after which, as the parent counts.
        digest: SHA-256 of the manifest of this rank's state, which has the digest of every entry.
        changes: what was changed afterwards.
        parent_ranks: how many ranks the parent had. Where the clone has another number, its state is exact, and what it computes from
            there is not its parent's to the last bit.
        verified: `digest`: every entry was as it was sent; `shadow:N`: and N steps later, by which this clone begins, as its parent's.
    """

    parent: str
    epoch: int
    step: int
    digest: str
    changes: Mapping[str, float]
    parent_ranks: int
    verified: str = "digest"


@dataclass(frozen=True)
class Asked:
    """What `forebay clone` has put into the environment of its program.

    Attributes:
        directory: of the fork agent.
        job: the parent's name.
        at: the step after which the parent is to be forked; None: the next one.
        fork: the fork's number.
        secret: where the parent's secret lies.
        changes: by name, in the order in which they were asked for.
        shadow: steps of probation; 0: none.
    """

    directory: str
    job: str
    at: int | None
    fork: int
    secret: Path
    changes: dict[str, float]
    shadow: int

    @classmethod
    def from_json(cls, text: str) -> "Asked":
        """Reads it.

        Raises:
            CloneError: it is not what the command writes.
        """
        try:
            fields = json.loads(text)
            directory, job, at, fork = (fields[name] for name in ("dir", "job", "at", "fork"))
            return cls(directory, job, at, fork, Path(fields["secret"]), dict(fields["set"]), int(fields["shadow"]))
        except (ValueError, TypeError, KeyError) as error:
            raise CloneError("FOREBAY_CLONE is set by `forebay clone` for its program, and by nobody else: unset it") from error


@dataclass(frozen=True)
class Resumed:
    """A clone, or on probation what may become one.

    Attributes:
        name: its own.
        lineage: where it comes from.
        course: when this rank came to what.
        taking: on probation, its connection to the fork agent, which is its lease.
        arenas: shared memory in which some of its tensors lie.
    """

    name: str
    lineage: Lineage
    course: Course
    taking: _core.Taking | None = None
    arenas: Sequence[Arena] = ()


@dataclass(frozen=True)
class _Loaded:
    header: _offer.Header
    manifest: Manifest
    remote: Remote | None


def warm_up(inventory: Inventory, warm: Callable[[], object] | None) -> None:
    """Makes the discarded passes, if there are to be any.

    The gradients are freed now, while nobody waits: of a large model that takes a good part of the time in which its state is loaded.
    """
    if warm is not None:
        with inventory.gradients_kept():
            for _ in range(WARM_PASSES):
                warm()


def resume(asked: Asked, inventory: Inventory, wait_s: float) -> Resumed:
    """Loads the parent's state, and makes the changes, unless there is a probation first.

    Raises:
        CloneError: this rank or another could not get its state or load it. There is no clone: end the process.
    """
    rank, ranks = inventory.rank
    asked_at = time.time()
    try:
        secret = _secret(asked)
        taking = _core.Taking(asked.directory, asked.fork, rank, ranks)
        with contextlib.closing(Ahead(taking, inventory.adapter, inventory.steady().values(), ranks)) as ahead:
            with uncollected():
                survey = inventory.survey()
                ready = _ready(asked, secret, inventory, survey, taking, ahead)
            taken = waited(taking.state, wait_s, _late(asked, wait_s))
            name, _, _, of_ranks = taken
            state_at = time.time()
            try:
                with uncollected():
                    loaded = _load(asked, secret, inventory, survey, ready, taken, wait_s, ahead)
                changes = {} if asked.shadow else asked.changes
                for changed, value in changes.items():
                    inventory.change(changed, value)
                loaded_at = time.time()
                if loaded.remote is not None:
                    # What is heard of the agent before this clone is loaded is that it will not be.
                    loaded.remote.confirm(taking.exists)
            except Exception as error:
                # The other ranks need not wait for this one.
                with contextlib.suppress(ConnectionError):
                    taking.failed(str(error)[:REASON_MAX])
                raise
            with _offer.described(secret, loaded.header, loaded.manifest) as text:
                taking.loaded(text)
            stands = taking.begins if asked.shadow else taking.exists
            waited(lambda seconds: stands(seconds) or None, wait_s, f"the clone's other ranks did not load their states in {wait_s:g} s")
            exists_at = time.time()
    except OSError as error:
        raise CloneError(f"no clone of {asked.job}: {error}") from error
    digest = hashlib.sha256(loaded.manifest.to_json()).hexdigest()
    lineage = Lineage(asked.job, loaded.header.epoch, loaded.header.step, digest, changes, of_ranks)
    course = Course(asked_at, state_at, loaded_at, exists_at, loaded.manifest.state_length)
    return Resumed(name, lineage, course, taking if asked.shadow else None, ahead.arenas)


def _secret(asked: Asked) -> bytes:
    """Returns the parent's secret, which goes with the parent."""
    try:
        return asked.secret.read_bytes()
    except FileNotFoundError as error:
        raise CloneError(
            f"no clone of {asked.job}: {asked.job}, or this fork of it, has ended before the clone was made: ask again, or start "
            f"{asked.job} again where forebay clone ls does not show it"
        ) from error


def _late(asked: Asked, wait_s: float) -> str:
    """What is said when the parent has not been forked in time."""
    if asked.at is None:
        return f"{asked.job} came to no point() in {wait_s:g} s: does it train, and call point() after each step?"
    return (
        f"{asked.job} did not come to step {asked.at} in {wait_s:g} s: ask for an earlier one (forebay clone ls shows where it is), "
        "or raise session(wait_s=...)"
    )


def _ready(
    asked: Asked, secret: bytes, inventory: Inventory, survey: Survey, taking: _core.Taking, ahead: Ahead
) -> tuple[Sequence[Held], dict[str, Made]]:
    """How the state will most likely be held, and what it is to be loaded to, while it is waited for; nothing where that is not known."""
    descriptor = taking.described_ahead()
    if descriptor is None:
        return (), {}
    try:
        header, outline = _offer.read_outline(secret, descriptor)
        if (header.job, header.rank) == (asked.job, inventory.rank[0]):
            return [held for held, _ in outline], inventory.get_ready(outline, survey, ahead.empty)
    except Exception as error:
        # What is wrong is said when the state has come, if it still is.
        if is_the_program_s(error):
            raise
    finally:
        os.close(descriptor)
    return (), {}


def _load(
    asked: Asked,
    secret: bytes,
    inventory: Inventory,
    survey: Survey,
    ready: tuple[Sequence[Held], dict[str, Made]],
    taken: tuple[str, int, list[int], int],
    wait_s: float,
    ahead: Ahead,
) -> _Loaded:
    """Loads the state behind the descriptors that `Taking.state` gave, and closes them.

    From as many ranks as the clone has it is the same rank's, and the descriptors are those of `Rank.offer`. Else it is rank 0's, all of it
    copied, and what describes the others' follows.
    """
    _, reader, descriptors, of_ranks = taken
    rank, ranks = inventory.rank
    with contextlib.ExitStack() as stack:
        for descriptor in descriptors[2:]:
            stack.callback(os.close, descriptor)
        if len(descriptors) < 2:
            raise DamagedError("the state's descriptors did not come along")
        text, state, *more = descriptors
        stack.callback(os.close, text)
        closing = stack.enter_context(contextlib.ExitStack())
        closing.callback(os.close, state)
        known, made = ready
        header, manifest = _offer.read(secret, text, known)
        if (header.job, header.rank) != (asked.job, rank if of_ranks == ranks else 0):
            raise DamagedError(f"the state is that of rank {header.rank} of {header.job}")
        others = [] if of_ranks == ranks else _others(secret, header, of_ranks, more)
        capture = Capture(manifest, state)
        closing.pop_all()
        stack.enter_context(capture)
        is_read_in_place = any(held.places for held in manifest.held)
        remote = Remote(manifest, reader, more, wait_s, ahead) if is_read_in_place else None
        is_seeded = "seed" in asked.changes
        manifest = inventory.load(capture, remote, survey, others, is_seeded=is_seeded, empty=ahead.empty, ready=made)
    return _Loaded(header, manifest, remote)


def _others(secret: bytes, first: _offer.Header, ranks: int, texts: list[int]) -> list[Manifest]:
    """The manifests of all ranks but the first, out of what describes their states.

    Raises:
        DamagedError: they are not that.
    """
    read = [_offer.read(secret, text) for text in texts]
    if [header for header, _ in read] != [replace(first, rank=rank) for rank in range(1, ranks)]:
        raise DamagedError(f"what describes the states of {first.job}'s other ranks did not come along")
    return [manifest for _, manifest in read]


def waited(ask: Callable[[float], T | None], wait_s: float, late: str) -> T:
    """Asks again and again, for some seconds each time, until there is an answer.

    Raises:
        CloneError: there was none in all of the time, with what `late` says.
    """
    deadline = time.monotonic() + wait_s
    while (left := deadline - time.monotonic()) > 0:
        if (answer := ask(min(left, SLICE_S))) is not None:
            return answer
    raise CloneError(late)
