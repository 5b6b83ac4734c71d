"""Start of a clone: each rank receives its state, checks it, loads it, and continues once all ranks have done so."""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from forebay import _core
from forebay.clone import _description
from forebay.clone._ahead import PreparedMemory
from forebay.clone._capture import Capture
from forebay.clone._errors import CloneError, DamagedError
from forebay.clone._events import CloneTimes
from forebay.clone._filling import LoadPlan
from forebay.clone._handlers import is_the_program_s
from forebay.clone._inventory import Inventory, Survey
from forebay.clone._later import uncollected
from forebay.clone._manifest import CapturedSection, Manifest
from forebay.clone._read_lease import OwnerLostError, ParentTensors
from forebay.clone._shared import Arena
from forebay.clone._source import REASON_MAX

__all__ = ["CloneRequest", "Lineage", "Resumed", "resume", "waited", "warm_up"]

# Seconds between checks for interrupts.
SLICE_S = 0.5
REASON_S = 0.5
"""Longest wait for the reason of a fork that has failed, in seconds."""
WARM_PASSES = 2
"""In the first pass DDP notes in which order gradients come; before the second it rebuilds its buckets accordingly."""

T = TypeVar("T")


@dataclass(frozen=True)
class Lineage:
    """Origin of a clone.

    Attributes:
        parent: the job that it was forked from.
        epoch: epoch of the fork, as the parent counts.
        step: step after which it was forked, as the parent counts.
        digest: SHA-256 of the manifest of this rank's state, which has the digest of every entry.
        changes: changes that were made afterwards.
        parent_ranks: number of the parent's ranks. A clone with another number has the exact state, but its further
            results differ from its parent's in the last bits.
        verified: `digest`: every entry was as it was sent; `shadow:N`: and equalled the parent's N steps later, where
            this clone begins.
    """

    parent: str
    epoch: int
    step: int
    digest: str
    changes: Mapping[str, float]
    parent_ranks: int
    verified: str = "digest"


@dataclass(frozen=True)
class CloneRequest:
    """The request that `forebay clone` has put into the environment of its program.

    Attributes:
        directory: directory of the fork agent.
        job: name of the parent.
        at: step after which the parent is to be forked; None: the next one.
        fork: number of the fork.
        secret: path of the parent's secret.
        changes: values by name, in the order in which they were requested.
        shadow: steps of shadow verification; 0: none.
    """

    directory: str
    job: str
    at: int | None
    fork: int
    secret: Path
    changes: dict[str, float]
    shadow: int

    @classmethod
    def from_json(cls, text: str) -> "CloneRequest":
        """Reads a request.

        Raises:
            CloneError: the text is not in the form that the command writes.
        """
        try:
            fields = json.loads(text)
            directory, job, at, fork = (fields[name] for name in ("dir", "job", "at", "fork"))
            return cls(directory, job, at, fork, Path(fields["secret"]), dict(fields["set"]), int(fields["shadow"]))
        except (ValueError, TypeError, KeyError) as error:
            raise CloneError("invalid FOREBAY_CLONE: only `forebay clone` sets it, for its program: unset it") from error


@dataclass(frozen=True)
class Resumed:
    """A clone, which may still be under shadow verification.

    Attributes:
        name: name of the clone.
        lineage: its origin.
        course: times of its start.
        taking: under shadow verification, its connection to the fork agent, which is its lease.
        arenas: shared memory in which some of its tensors lie.
    """

    name: str
    lineage: Lineage
    course: CloneTimes
    taking: _core.Taking | None = None
    arenas: Sequence[Arena] = ()


@dataclass(frozen=True)
class _Loaded:
    header: _description.StateHeader
    manifest: Manifest
    remote: ParentTensors | None


def warm_up(inventory: Inventory, warm: Callable[[], object] | None) -> None:
    """Makes the discarded passes, if there are any.

    The gradients are freed now, while nobody waits: for a large model that takes a good part of the time of loading
    its state.
    """
    if warm is not None:
        with inventory.gradients_kept():
            for _ in range(WARM_PASSES):
                warm()


def resume(asked: CloneRequest, inventory: Inventory, wait_s: float) -> Resumed:
    """Loads the parent's state, and makes the changes, unless a shadow verification comes first.

    Raises:
        CloneError: this rank or another could not get its state or load it. There is no clone: end the process.
    """
    rank, ranks = inventory.rank
    asked_at = time.time()
    try:
        secret = _secret(asked)
        taking = _core.Taking(asked.directory, asked.fork, rank, ranks)
        with contextlib.closing(PreparedMemory(taking, inventory.adapter, inventory.steady().values(), inventory.ranks_here)) as ahead:
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
                    # The agent answers before this clone is reported as loaded only if the fork has failed.
                    loaded.remote.confirm(taking.exists)
            except Exception as error:
                if isinstance(error, OwnerLostError):
                    # If the fork had failed before, the agent has the reason.
                    taking.exists(REASON_S)
                # So that the other ranks need not wait for this one.
                with contextlib.suppress(ConnectionError):
                    taking.failed(str(error)[:REASON_MAX])
                raise
            with _description.described(secret, loaded.header, loaded.manifest) as text:
                taking.loaded(text)
            stands = taking.begins if asked.shadow else taking.exists
            waited(lambda seconds: stands(seconds) or None, wait_s, f"the clone's other ranks did not load their states in {wait_s:g} s")
            exists_at = time.time()
    except OSError as error:
        raise CloneError(f"no clone of {asked.job}: {error}") from error
    digest = hashlib.sha256(loaded.manifest.to_json()).hexdigest()
    lineage = Lineage(asked.job, loaded.header.epoch, loaded.header.step, digest, changes, of_ranks)
    course = CloneTimes(asked_at, state_at, loaded_at, exists_at, loaded.manifest.state_length)
    return Resumed(name, lineage, course, taking if asked.shadow else None, ahead.arenas)


def _secret(asked: CloneRequest) -> bytes:
    """Returns the parent's secret, which is removed at the parent's end."""
    try:
        return asked.secret.read_bytes()
    except FileNotFoundError as error:
        raise CloneError(
            f"no clone of {asked.job}: {asked.job}, or this fork of it, has ended before the clone was made: ask again, or start "
            f"{asked.job} again where forebay clone ls does not show it"
        ) from error


def _late(asked: CloneRequest, wait_s: float) -> str:
    """Returns the message for a parent that was not forked in time."""
    if asked.at is None:
        return f"{asked.job} came to no point() in {wait_s:g} s: does it train, and call point() after each step?"
    return (
        f"{asked.job} did not come to step {asked.at} in {wait_s:g} s: ask for an earlier one (forebay clone ls shows where it is), "
        "or raise session(wait_s=...)"
    )


def _ready(
    asked: CloneRequest, secret: bytes, inventory: Inventory, survey: Survey, taking: _core.Taking, ahead: PreparedMemory
) -> tuple[Sequence[CapturedSection], dict[str, LoadPlan]]:
    """Returns the expected sections of the state and their load plans, made while the clone waits.

    Nothing if the schema is unknown.
    """
    descriptor = taking.described_ahead()
    if descriptor is None:
        return (), {}
    try:
        header, outline = _description.read_schema(secret, descriptor)
        if (header.job, header.rank) == (asked.job, inventory.rank[0]):
            return [held for held, _ in outline], inventory.get_ready(outline, survey, ahead.empty)
    except Exception as error:
        # An error is reported when the state has come, if it persists.
        if is_the_program_s(error):
            raise
    finally:
        os.close(descriptor)
    return (), {}


def _load(
    asked: CloneRequest,
    secret: bytes,
    inventory: Inventory,
    survey: Survey,
    ready: tuple[Sequence[CapturedSection], dict[str, LoadPlan]],
    taken: tuple[str, int, list[int], int],
    wait_s: float,
    ahead: PreparedMemory,
) -> _Loaded:
    """Loads the state behind the descriptors that `Taking.state` returned, and closes them.

    If the parent has as many ranks as the clone, it is the state of the same rank, and the descriptors are those of
    `Rank.offer`. Else they are the states of all ranks, rank 0's first, each its description and all of it copied.
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
        header, manifest = _description.read(secret, text, known)
        if (header.job, header.rank) != (asked.job, rank if of_ranks == ranks else 0):
            raise DamagedError(f"the state is that of rank {header.rank} of {header.job}")
        others = [] if of_ranks == ranks else _others(secret, header, of_ranks, more)
        capture = Capture(manifest, state)
        closing.pop_all()
        stack.enter_context(capture)
        is_read_in_place = any(held.places for held in manifest.held)
        remote = ParentTensors(manifest, reader, more, wait_s, ahead) if is_read_in_place else None
        is_seeded = "seed" in asked.changes
        manifest = inventory.load(capture, remote, survey, others, is_seeded=is_seeded, empty=ahead.empty, ready=made)
    return _Loaded(header, manifest, remote)


def _others(secret: bytes, first: _description.StateHeader, ranks: int, descriptors: list[int]) -> list[Capture]:
    """Returns the states of all ranks but the first. Their descriptors stay the caller's.

    Raises:
        DamagedError: the descriptors are not those of the other ranks.
    """
    texts, states = descriptors[::2], descriptors[1::2]
    read = [_description.read(secret, text) for text in texts]
    is_whole = len(texts) == len(states) == ranks - 1
    if not is_whole or [header for header, _ in read] != [first._replace(rank=rank) for rank in range(1, ranks)]:
        raise DamagedError(f"the states of {first.job}'s other ranks are missing")
    return [Capture(manifest, state) for (_, manifest), state in zip(read, states, strict=True)]


def waited(ask: Callable[[float], T | None], wait_s: float, late: str) -> T:
    """Calls `ask` again and again, for some seconds each time, until it returns an answer.

    Raises:
        CloneError: there was none in all of the time; `late` is the message.
    """
    deadline = time.monotonic() + wait_s
    while (left := deadline - time.monotonic()) > 0:
        if (answer := ask(min(left, SLICE_S))) is not None:
            return answer
    raise CloneError(late)
