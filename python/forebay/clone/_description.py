"""Descriptions of a state, in sealed memory: header, manifest or schema, and an HMAC tag by the job's secret."""

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from forebay import _core
from forebay.clone._capture import reserve
from forebay.clone._errors import DamagedError
from forebay.clone._inventory import StateSchema
from forebay.clone._manifest import CapturedSection, Manifest

__all__ = ["StateHeader", "described", "described_schema", "read", "read_schema"]


class StateHeader(NamedTuple):
    """Origin of a state.

    Attributes:
        job: name of the parent.
        rank: rank of the parent.
        epoch: epoch as the parent counts.
        step: step after which the state was taken, as the parent counts.
    """

    job: str
    rank: int
    epoch: int
    step: int


@contextlib.contextmanager
def described(secret: bytes, header: StateHeader, manifest: Manifest) -> Iterator[int]:
    """Yields a descriptor of sealed memory with the description of a state, and closes it after the block.

    Raises:
        CloneError: there is no memory for it.
    """
    with _sealed(_core.write_state(secret, header, manifest.written)) as descriptor:
        yield descriptor


def read(secret: bytes, descriptor: int, known: Sequence[CapturedSection] = ()) -> tuple[StateHeader, Manifest]:
    """Reads the description that `described` has written.

    Args:
        secret: secret of the job.
        descriptor: descriptor of the memory; the caller keeps it.
        known: sections that `Manifest.from_json` may reuse.

    Raises:
        DamagedError: the description is invalid, or was written without the secret.
    """
    try:
        header, found = _core.read_state(secret, descriptor, [one.written for one in known])
    except ValueError as error:
        raise DamagedError(str(error)) from error
    return StateHeader(*header), Manifest.of(found, known)


@contextlib.contextmanager
def described_schema(secret: bytes, header: StateHeader, schema: StateSchema) -> Iterator[int]:
    """Yields a descriptor like that of `described`, with the schema of a coming state.

    Raises:
        CloneError: there is no memory for it.
    """
    with _sealed(_core.write_schema(secret, header, [(held.written, text) for held, text in schema])) as descriptor:
        yield descriptor


def read_schema(secret: bytes, descriptor: int) -> tuple[StateHeader, StateSchema]:
    """Reads the schema that `described_schema` has written.

    Raises:
        DamagedError: the schema is invalid, or was written without the secret.
    """
    try:
        header, expected = _core.read_schema(secret, descriptor)
    except ValueError as error:
        raise DamagedError(str(error)) from error
    return StateHeader(*header), [(CapturedSection.of(held), text) for held, text in expected]


@contextlib.contextmanager
def _sealed(text: bytes) -> Iterator[int]:
    memory = reserve(len(text))
    ctypes.memmove(memory.address, text, len(text))
    descriptor = memory.seal(len(text))
    try:
        yield descriptor
    finally:
        os.close(descriptor)
