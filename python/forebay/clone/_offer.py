"""What describes a state on its way: whose it is, of which step, its manifest; and a tag that only who has the job's secret can make."""

import contextlib
import ctypes
import hmac
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from forebay.clone._capture import reserve
from forebay.clone._errors import DamagedError
from forebay.clone._inventory import Outline
from forebay.clone._manifest import MANIFEST_BYTES_MAX, Held, Manifest, held_of, lines_of

__all__ = ["Header", "described", "outlined", "read", "read_outline"]

FORMAT = b"forebay clone state 2"
OUTLINE = b"forebay clone outline 1"
HEADER_BYTES_MAX = 4096


@dataclass(frozen=True)
class Header:
    """Whose state it is.

    Attributes:
        job: the parent's name.
        rank: whose state it is.
        epoch: as the parent counts.
        step: after which it was taken, as the parent counts.
    """

    job: str
    rank: int
    epoch: int
    step: int


@contextlib.contextmanager
def described(secret: bytes, header: Header, manifest: Manifest) -> Iterator[int]:
    """A descriptor of sealed memory with lines: format, tag of what follows, header, manifest. It is closed with the block.

    Raises:
        CloneError: there is no memory for it.
    """
    with _sealed(FORMAT, secret, header, manifest.to_json()) as descriptor:
        yield descriptor


def read(secret: bytes, descriptor: int, known: Iterable[Held] = ()) -> tuple[Header, Manifest]:
    """Reads what `described` has written.

    Args:
        secret: the job's.
        descriptor: of that memory; it stays the caller's.
        known: see `Manifest.from_json`.

    Raises:
        DamagedError: it is not that, or was written without the secret.
    """
    header, told = _opened(FORMAT, secret, descriptor)
    return header, Manifest.from_json(told, known)


@contextlib.contextmanager
def outlined(secret: bytes, header: Header, outline: Outline) -> Iterator[int]:
    """As `described`, of how states of a rank will be held: three lines for each section, of which the last is its values.

    Raises:
        CloneError: there is no memory for it.
    """
    lines = [line for held, text in outline for line in (*lines_of([held]), text)]
    with _sealed(OUTLINE, secret, header, b"\n".join(lines)) as descriptor:
        yield descriptor


def read_outline(secret: bytes, descriptor: int) -> tuple[Header, Outline]:
    """Reads what `outlined` has written.

    Raises:
        DamagedError: it is not that, or was written without the secret.
    """
    header, told = _opened(OUTLINE, secret, descriptor)
    lines = told.split(b"\n")
    try:
        held = held_of([line for number, line in enumerate(lines) if number % 3 < 2])
        return header, list(zip(held, lines[2::3], strict=True))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise DamagedError(f"not an outline: {error}") from error


@contextlib.contextmanager
def _sealed(form: bytes, secret: bytes, header: Header, told: bytes) -> Iterator[int]:
    told = json.dumps(asdict(header)).encode() + b"\n" + told
    text = b"\n".join((form, _tag(secret, form, told), told))
    memory = reserve(len(text))
    ctypes.memmove(memory.address, text, len(text))
    descriptor = memory.seal(len(text))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _opened(form: bytes, secret: bytes, descriptor: int) -> tuple[Header, bytes]:
    length = os.fstat(descriptor).st_size
    if length > MANIFEST_BYTES_MAX + HEADER_BYTES_MAX:
        raise DamagedError(f"what describes the state has {length:,} bytes; the most is {MANIFEST_BYTES_MAX + HEADER_BYTES_MAX:,}")
    text = os.pread(descriptor, length, 0)
    found, tag, told = (*text.split(b"\n", 2), b"", b"")[:3]
    if found != form:
        raise DamagedError(
            f"what describes the state is not of the format {form.decode()!r}: use the same version of Forebay on both sides"
        )
    if not hmac.compare_digest(_tag(secret, form, told), tag):
        raise DamagedError("what describes the state was not written by the job: its tag is wrong")
    try:
        head, rest = told.split(b"\n", 1)
        return Header(**json.loads(head)), rest
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedError(f"not a state's header: {error}") from error


def _tag(secret: bytes, form: bytes, told: bytes) -> bytes:
    return hmac.digest(secret, form + b"\n" + told, "sha256").hex().encode()
