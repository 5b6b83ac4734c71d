"""Serialized description of a state: header, manifest, and an HMAC tag by the job's secret."""

import contextlib
import ctypes
import hmac
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from forebay.clone._capture import reserve
from forebay.clone._errors import DamagedError
from forebay.clone._inventory import StateSchema
from forebay.clone._manifest import MANIFEST_BYTES_MAX, CapturedSection, Manifest, held_of, lines_of

__all__ = ["StateHeader", "described", "described_schema", "read", "read_schema"]

FORMAT = b"forebay clone state 2"
OUTLINE = b"forebay clone outline 1"
HEADER_BYTES_MAX = 4096


@dataclass(frozen=True)
class StateHeader:
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
    """Yields a descriptor of sealed memory with lines: format, tag of the rest, header, manifest.

    Closes it after the block.

    Raises:
        CloneError: there is no memory for it.
    """
    with _sealed(FORMAT, secret, header, manifest.to_json()) as descriptor:
        yield descriptor


def read(secret: bytes, descriptor: int, known: Iterable[CapturedSection] = ()) -> tuple[StateHeader, Manifest]:
    """Reads the description that `described` has written.

    Args:
        secret: secret of the job.
        descriptor: descriptor of the memory; the caller keeps it.
        known: sections that `Manifest.from_json` may reuse.

    Raises:
        DamagedError: the description is invalid, or was written without the secret.
    """
    header, told = _opened(FORMAT, secret, descriptor)
    return header, Manifest.from_json(told, known)


@contextlib.contextmanager
def described_schema(secret: bytes, header: StateHeader, outline: StateSchema) -> Iterator[int]:
    """Yields a descriptor like that of `described`, with a schema.

    Three lines for each section, the last one with its values.

    Raises:
        CloneError: there is no memory for it.
    """
    lines = [line for held, text in outline for line in (*lines_of([held]), text)]
    with _sealed(OUTLINE, secret, header, b"\n".join(lines)) as descriptor:
        yield descriptor


def read_schema(secret: bytes, descriptor: int) -> tuple[StateHeader, StateSchema]:
    """Reads the schema that `described_schema` has written.

    Raises:
        DamagedError: the schema is invalid, or was written without the secret.
    """
    header, told = _opened(OUTLINE, secret, descriptor)
    lines = told.split(b"\n")
    try:
        held = held_of([line for number, line in enumerate(lines) if number % 3 < 2])
        return header, list(zip(held, lines[2::3], strict=True))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise DamagedError(f"not a schema of states: {error}") from error


@contextlib.contextmanager
def _sealed(form: bytes, secret: bytes, header: StateHeader, told: bytes) -> Iterator[int]:
    told = json.dumps(asdict(header)).encode() + b"\n" + told
    text = b"\n".join((form, _tag(secret, form, told), told))
    memory = reserve(len(text))
    ctypes.memmove(memory.address, text, len(text))
    descriptor = memory.seal(len(text))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _opened(form: bytes, secret: bytes, descriptor: int) -> tuple[StateHeader, bytes]:
    length = os.fstat(descriptor).st_size
    if length > MANIFEST_BYTES_MAX + HEADER_BYTES_MAX:
        raise DamagedError(f"the description of the state has {length:,} bytes; the most is {MANIFEST_BYTES_MAX + HEADER_BYTES_MAX:,}")
    text = os.pread(descriptor, length, 0)
    found, tag, told = (*text.split(b"\n", 2), b"", b"")[:3]
    if found != form:
        raise DamagedError(
            f"the description of the state is not of the format {form.decode()!r}: use the same version of Forebay on both sides"
        )
    if not hmac.compare_digest(_tag(secret, form, told), tag):
        raise DamagedError("the description of the state failed HMAC verification: it was not written by this job")
    try:
        head, rest = told.split(b"\n", 1)
        return StateHeader(**json.loads(head)), rest
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedError(f"not a state's header: {error}") from error


def _tag(secret: bytes, form: bytes, told: bytes) -> bytes:
    return hmac.digest(secret, form + b"\n" + told, "sha256").hex().encode()
