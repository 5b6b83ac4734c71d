"""What describes a state on its way: whose it is, of which step, its manifest; and a tag that only who has the job's secret can make."""

import contextlib
import ctypes
import hmac
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from forebay.clone._capture import reserve
from forebay.clone._errors import DamagedError
from forebay.clone._manifest import MANIFEST_BYTES_MAX, Manifest

__all__ = ["Header", "described", "read"]

FORMAT = b"forebay clone state 1"
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
    """A descriptor of sealed memory with four lines: format, tag of what follows, header, manifest. It is closed with the block.

    Raises:
        CloneError: there is no memory for it.
    """
    told = json.dumps(asdict(header)).encode() + b"\n" + manifest.to_json()
    text = b"\n".join((FORMAT, _tag(secret, told), told))
    memory = reserve(len(text))
    ctypes.memmove(memory.address, text, len(text))
    descriptor = memory.seal(len(text))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read(secret: bytes, descriptor: int) -> tuple[Header, Manifest]:
    """Reads what `described` has written.

    Raises:
        DamagedError: it is not that, or was written without the secret.
    """
    text = os.pread(descriptor, MANIFEST_BYTES_MAX + HEADER_BYTES_MAX, 0)
    form, tag, told = (*text.split(b"\n", 2), b"", b"")[:3]
    if form != FORMAT:
        raise DamagedError(
            f"what describes the state is not of the format {FORMAT.decode()!r}: use the same version of Forebay on both sides"
        )
    if not hmac.compare_digest(_tag(secret, told), tag):
        raise DamagedError("what describes the state was not written by the job: its tag is wrong")
    try:
        head, manifest = told.split(b"\n", 1)
        header = Header(**json.loads(head))
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedError(f"not a state's header: {error}") from error
    return header, Manifest.from_json(manifest)


def _tag(secret: bytes, told: bytes) -> bytes:
    return hmac.digest(secret, told, "sha256").hex().encode()
