"""Offset, number and type of the tokens of a file, from its head or the index beside it."""

import ast
import math
import re
import struct
from dataclasses import dataclass
from typing import Any

from forebay.loader._errors import LoaderError
from forebay.loader._paths import PathStat, look_up

__all__ = ["Tokens", "npy_head", "tokens_of"]

NPY = b"\x93NUMPY"
NPY_HEAD_MAX = 1 << 16
"""Bytes of a .npy head that are read; that of an array of numbers has about a hundred."""
LLMC_HEAD_BYTES = 1024
LLMC = {20240520: "uint16", 20240801: "uint32"}
"""Types of the tokens of llm.c's data files, by the number with which such a file begins (GPT-2's and Llama 3's)."""
LLMC_OTHERS = {
    20240522: "an evaluation of llm.c's, whose examples are no stream of tokens",
    20240326: "a checkpoint of llm.c's",
    20240327: "a debug state of llm.c's",
    20240328: "a tokenizer of llm.c's",
    20240527: "a training state of llm.c's",
}
MEGATRON = b"MMIDIDX\0\0"
MEGATRON_HEAD = struct.Struct("<9sQBQQ")
MEGATRON_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
OTHERS = {
    MEGATRON: "an index of Megatron's: give the .bin beside it",
    b"TNTIDX\0\0": "an index of fairseq's: give the .bin beside it",
    b"LITPKDS": "a chunk of a packed dataset of LitGPT's: give offset=24 and its dtype",
    b"PK\x03\x04": "a zip archive, such as .npz or .pt",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"\xfd7zXZ\0": "compressed with xz",
    b"\x1f\x8b\x08\0\0\0\0\0": "compressed with gzip",
    b"\x1f\x8b\x08\x08": "compressed with gzip",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file",
    b"PAR1": "a Parquet file: see ParquetRows",
    b"ARROW1\0\0": "an Arrow file: see ArrowRows",
    b"GGUF": "a GGUF checkpoint",
}
"""Kinds of files by their first bytes."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of a file.

    Attributes:
        path: path of the file.
        mark: number that stands for the version of an object; 0 for a file.
        dtype: NumPy's type of a token.
        offset: bytes before the first token.
        tokens: number of tokens.
    """

    path: str
    mark: int
    dtype: Any
    offset: int
    tokens: int


def tokens_of(path: str, *, dtype: Any, unless_said: Any, offset: int | None) -> Tokens:  # noqa: ANN401  (NumPy's, which may be missing)
    """Returns the tokens of a file: their offset, number and type.

    Args:
        path: path of the file.
        dtype: type of its tokens; None if the user did not say.
        unless_said: type of its tokens if neither the user nor the file says one.
        offset: bytes before the first token; None to look at the file's head.

    Raises:
        OSError: the file can't be read.
        LoaderError: it is not what its head says.
        ValueError: it has another type than `dtype`, no whole number of tokens, or a head of another kind.
    """
    found = look_up(path)
    if offset is not None:
        return _plain(found, unless_said if dtype is None else dtype, offset)
    head = found.head(LLMC_HEAD_BYTES)
    if head.startswith(NPY) and (npy := npy_head(found)) is not None:
        return _npy(found, *npy, dtype)
    if len(head) >= 12 and (magic := int.from_bytes(head[:4], "little")) in LLMC | LLMC_OTHERS:
        return _llmc(found, head, magic, dtype)
    for first, kind in OTHERS.items():
        if head.startswith(first):
            raise ValueError(f"{path} begins as {kind}; if it is tokens all the same, give offset=0")
    if path.endswith(".bin") and (index := _index_beside(path)) is not None:
        return _megatron(found, *index, dtype)
    return _plain(found, unless_said if dtype is None else dtype, 0)


def _plain(found: PathStat, dtype: Any, offset: int) -> Tokens:  # noqa: ANN401
    tokens, left = divmod(max(0, found.size - offset), dtype.itemsize)
    if left:
        raise ValueError(f"{found.path} has {left} bytes more than {tokens} tokens of {dtype}: it was cut, or has another dtype")
    return Tokens(found.path, found.mark, dtype, offset, tokens)


def _said(found: PathStat, said: Any, wanted: Any, offset: int, tokens: int, by: str, *, is_end_open: bool = False) -> Tokens:  # noqa: ANN401
    """Returns the tokens that a file's head describes, compared with the user's type and the file's size."""
    if wanted is not None and said.newbyteorder("=") != wanted.newbyteorder("="):
        raise ValueError(f"{found.path} has tokens of {said}, as {by} says, and dtype={wanted}: leave dtype= out")
    end = offset + tokens * said.itemsize
    if end > found.size:
        raise LoaderError(f"{found.path} ends at byte {found.size}, and its {tokens} tokens at {end}, as {by} says: it was cut")
    if end < found.size and not is_end_open:
        raise LoaderError(
            f"{found.path} has {found.size - end} bytes more than its {tokens} tokens, as {by} says: it is damaged; "
            f"or, if it is tokens all the same, give offset={offset} and its dtype"
        )
    return Tokens(found.path, found.mark, said, offset, tokens)


def npy_head(found: PathStat) -> tuple[int, dict[str, Any]] | None:
    """Returns the offset of the numbers of a .npy file, and the facts of its head; None for any other file.

    Raises:
        OSError: the file can't be read.
        LoaderError: the head is damaged.
        ValueError: it is of another version than 1 to 3.
    """
    head = found.head(NPY_HEAD_MAX)
    if not head.startswith(NPY):
        return None
    path, version, size = found.path, head[6:8], struct.Struct("<H" if head[6:7] == b"\x01" else "<I")
    if version not in (b"\x01\0", b"\x02\0", b"\x03\0"):
        raise ValueError(f"{path} is a .npy file of version {'.'.join(map(str, version))}, and 1.0, 2.0 and 3.0 are known")
    encoding = "utf-8" if version == b"\x03\0" else "latin-1"
    try:
        (length,) = size.unpack_from(head, 8)
        offset = 8 + size.size + length
        if offset > len(head):
            raise ValueError("it ends too early")
        # Python 2 wrote long integers with an L.
        said = ast.literal_eval(re.sub(r"(?<=\d)L\b", "", head[8 + size.size : offset].decode(encoding).strip()))
        return offset, {"descr": said["descr"], "shape": tuple(map(int, said["shape"])), "fortran_order": said["fortran_order"]}
    except (struct.error, ValueError, SyntaxError, LookupError, TypeError) as error:
        raise LoaderError(f"{path} has the head of a .npy file, which can't be read ({error}): it was cut, or is damaged") from None


def _npy(found: PathStat, offset: int, said: dict[str, Any], wanted: Any) -> Tokens:  # noqa: ANN401
    """Returns the tokens of a file in NumPy's format, versions 1 to 3."""
    import numpy as np

    path, dtype, shape = found.path, said["descr"], said["shape"]
    try:
        found_type = np.dtype(dtype)
    except TypeError:
        found_type = np.dtype(object)
    if found_type.kind not in "biuf":
        raise ValueError(f"{path} has no tokens, but an array of {dtype!r}: give an array of numbers")
    if said["fortran_order"] and sum(axis > 1 for axis in shape) > 1:
        raise ValueError(f"{path} has an array of {len(shape)} axes in Fortran's order: its tokens do not lie one after the other")
    # NumPy itself reads one array, whatever follows it.
    return _said(found, found_type, wanted, offset, math.prod(shape), "its .npy head", is_end_open=True)


def _llmc(found: PathStat, head: bytes, magic: int, wanted: Any) -> Tokens:  # noqa: ANN401
    import numpy as np

    if magic in LLMC_OTHERS:
        raise ValueError(f"{found.path} begins as {LLMC_OTHERS[magic]}; if it is tokens all the same, give offset=0")
    tokens = int.from_bytes(head[8:12], "little")
    return _said(found, np.dtype(LLMC[magic]).newbyteorder("<"), wanted, LLMC_HEAD_BYTES, tokens, "its head, of llm.c,")


def _index_beside(path: str) -> tuple[PathStat, bytes] | None:
    """Returns the index of Megatron's beside a `.bin`, with its first bytes; None if there is no such file."""
    try:
        found = look_up(path.removesuffix(".bin") + ".idx")
        head = found.head(MEGATRON_HEAD.size)
    except (FileNotFoundError, PermissionError, ValueError):
        # A store that may not be listed refuses what is not there.
        return None
    return (found, head) if head.startswith(MEGATRON) else None


def _megatron(found: PathStat, index: PathStat, head: bytes, wanted: Any) -> Tokens:  # noqa: ANN401
    import numpy as np

    if len(head) < MEGATRON_HEAD.size:
        raise LoaderError(f"{index.path} ends at byte {index.size}, within its head: it was cut")
    _, version, code, sequences, _ = MEGATRON_HEAD.unpack(head)
    if version != 1 or code not in MEGATRON_TYPES:
        raise ValueError(f"{index.path} is of version {version} and type {code}, which is not known of Megatron's")
    end = MEGATRON_HEAD.size + 4 * sequences
    if end > index.size:
        raise LoaderError(f"{index.path} ends at byte {index.size}, and the lengths of its {sequences} sequences at {end}: it was cut")
    with index.open() as file:
        file.seek(MEGATRON_HEAD.size)
        tokens, left = 0, 4 * sequences
        while left:
            lengths = file.read(min(left, 1 << 20))
            if not lengths:
                raise LoaderError(f"{index.path} ends at byte {file.tell()}, within the lengths of its sequences: it was cut meanwhile")
            tokens += int(np.frombuffer(lengths, "<i4").sum(dtype=np.int64))
            left -= len(lengths)
    return _said(found, np.dtype(MEGATRON_TYPES[code]).newbyteorder("<"), wanted, 0, tokens, f"{index.path}")
