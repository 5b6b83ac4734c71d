"""Files of tokens: those of the programs that write them, read as these read them; and what is not taken for tokens."""

import gzip
import io
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forebay.loader import LoaderError, TokenFile
from forebay.loader.source import read_sample
from forebay.torch import DataLoader

WINDOW = 4


def tokens(count: int, dtype: str = "uint16") -> Any:  # noqa: ANN401  (an array)
    return (np.arange(count) * 7 % 50257).astype(dtype)


def windows(array: Any) -> list[tuple[list[int], list[int]]]:  # noqa: ANN401
    starts = range(0, len(array) - WINDOW, WINDOW)
    return [(array[at : at + WINDOW].tolist(), array[at + 1 : at + 1 + WINDOW].tolist()) for at in starts]


def read(dataset: TokenFile) -> list[tuple[list[int], list[int]]]:
    """Reads as a loader does."""
    found = [dataset.decode(read_sample(dataset.locate, i), i, None) for i in range(len(dataset))]
    assert all(one.dtype.isnative for pair in found for one in pair)
    return [(one.tolist(), other.tolist()) for one, other in found]


def llmc(array: Any, magic: int, version: int) -> bytes:  # noqa: ANN401
    """Writes a file as `write_datafile` of llm.c does."""
    head = np.zeros(256, dtype=np.int32)
    head[:3] = magic, version, len(array)
    return bytes(head.tobytes() + array.tobytes())


def megatron(path: Path, documents: list[Any], code: int) -> Path:
    """Writes `.bin` and `.idx` as `IndexedDatasetBuilder` of Megatron does."""
    path.with_suffix(".bin").write_bytes(b"".join(one.tobytes() for one in documents))
    lengths = np.array([len(one) for one in documents], np.int32)
    pointers = np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64) * documents[0].itemsize]).astype(np.int64)
    parts = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(documents), len(documents) + 1)
    index = parts + lengths.tobytes() + pointers.tobytes() + np.arange(len(documents) + 1, dtype=np.int64).tobytes()
    path.with_suffix(".idx").write_bytes(index)
    return path.with_suffix(".bin")


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("dtype", ["uint16", "int32", ">u2", "uint8"])
def test_a_file_of_numpys_is_what_numpy_loads(version: tuple[int, int], dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens.npy"
    for shape in ((40,), (5, 8), (40, 1)):
        with path.open("wb") as file:
            np.lib.format.write_array(file, tokens(40, dtype).reshape(shape), version)
        assert read(TokenFile(path, WINDOW)) == windows(np.load(path).ravel())
        assert read(TokenFile(path, WINDOW, dtype)) == windows(np.load(path).ravel())
    with pytest.raises(ValueError, match=r"tokens.npy has tokens of .*, as its \.npy head says, and dtype=int64: leave dtype= out"):
        TokenFile(path, WINDOW, "int64")


def test_one_axis_in_fortrans_order_is_an_order_and_two_are_none(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.asfortranarray(tokens(40)))
    with (tmp_path / "column.npy").open("wb") as file:
        file.write(b"\x93NUMPY\x01\0v\0" + b"{'descr': '<u2', 'fortran_order': True, 'shape': (40, 1), }".ljust(117) + b"\n")
        file.write(tokens(40).tobytes())
    (tmp_path / "old.npy").write_bytes((tmp_path / "column.npy").read_bytes().replace(b"(40, 1), } ", b"(40L, 1L)} "))
    assert read(TokenFile(tmp_path / "old.npy", WINDOW)) == windows(tokens(40)), "as Python 2 wrote it"
    for name in ("one.npy", "column.npy"):
        assert read(TokenFile(tmp_path / name, WINDOW)) == windows(np.load(tmp_path / name).ravel())
    np.save(tmp_path / "two.npy", np.asfortranarray(tokens(40).reshape(5, 8)))
    with pytest.raises(ValueError, match=r"two.npy has an array of 2 axes in Fortran's order"):
        TokenFile(tmp_path / "two.npy", WINDOW)


@pytest.mark.parametrize(("magic", "version", "dtype"), [(20240520, 1, "uint16"), (20240801, 7, "uint32")])
def test_a_data_file_of_llmc_has_a_head(magic: int, version: int, dtype: str, tmp_path: Path) -> None:
    path, wanted = tmp_path / "train.bin", tokens(41, dtype)
    whole = llmc(wanted, magic, version)
    path.write_bytes(whole)
    assert read(TokenFile(path, WINDOW)) == read(TokenFile(path, WINDOW, dtype)) == windows(wanted)
    assert read(TokenFile(path, WINDOW, dtype, offset=1024)) == windows(wanted)
    # Who says so has them as they are.
    assert len(TokenFile(path, WINDOW, dtype, offset=0)) == (1024 // wanted.itemsize + 40) // WINDOW
    other = "uint32" if dtype == "uint16" else "uint16"
    with pytest.raises(ValueError, match=f"has tokens of {dtype}, as its head, of llm.c, says, and dtype={other}"):
        TokenFile(path, WINDOW, other)
    path.write_bytes(whole[:-2])
    with pytest.raises(LoaderError, match=f"ends at byte {len(whole) - 2}, and its 41 tokens at {len(whole)}, .*: it was cut"):
        TokenFile(path, WINDOW)
    path.write_bytes(whole + b"more")
    with pytest.raises(LoaderError, match="has 4 bytes more than its 41 tokens"):
        TokenFile(path, WINDOW)


@pytest.mark.parametrize(("code", "dtype"), [(8, "uint16"), (4, "int32"), (3, "int16")])
def test_megatrons_index_says_the_type(code: int, dtype: str, tmp_path: Path) -> None:
    documents = [tokens(count, dtype) for count in (9, 1, 31)]
    path = megatron(tmp_path / "corpus", documents, code)
    assert read(TokenFile(path, WINDOW)) == read(TokenFile(path, WINDOW, dtype)) == windows(np.concatenate(documents))
    with pytest.raises(ValueError, match=rf"corpus.bin has tokens of {dtype}, as .*corpus.idx says, and dtype=float32"):
        TokenFile(path, WINDOW, "float32")
    with pytest.raises(ValueError, match=r"corpus.idx begins as an index of Megatron's: give the .bin beside it"):
        TokenFile(path.with_suffix(".idx"), WINDOW)
    index = path.with_suffix(".idx").read_bytes()
    for cut in (20, 40):
        path.with_suffix(".idx").write_bytes(index[:cut])
        with pytest.raises(LoaderError, match=rf"corpus.idx ends at byte {cut}, .*: it was cut"):
            TokenFile(path, WINDOW)
    path.with_suffix(".idx").write_bytes(index)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(LoaderError, match=r"corpus.bin ends at byte .*, as .*corpus.idx says: it was cut"):
        TokenFile(path, WINDOW)
    # Another program's index says nothing.
    path.with_suffix(".idx").write_bytes(b"another's")
    assert len(TokenFile(path, WINDOW, dtype)) > 0


def zipped() -> bytes:
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(8)}, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (lambda: llmc(tokens(9), 20240522, 1), "an evaluation of llm.c's"),
        (lambda: llmc(tokens(9), 20240326, 3), "a checkpoint of llm.c's"),
        (lambda: b"LITPKDS" + bytes(33), "a chunk of a packed dataset of LitGPT's: give offset=24"),
        (lambda: gzip.compress(bytes(100), mtime=0), "compressed with gzip"),
        (zipped, "a zip archive"),
        (lambda: b"PAR1" + bytes(40), "a Parquet file: see ParquetRows"),
        (lambda: b"\x28\xb5\x2f\xfd" + bytes(40), "compressed with zstd"),
    ],
)
def test_what_is_no_file_of_tokens_is_refused_by_its_kind(content: Callable[[], bytes], kind: str, tmp_path: Path) -> None:
    data = content()
    path = tmp_path / "file"
    path.write_bytes(data + bytes(len(data) % 2))
    with pytest.raises(ValueError, match=rf"file begins as {re.escape(kind)}.*give offset=0"):
        TokenFile(path, WINDOW)
    assert len(TokenFile(path, WINDOW, offset=0)) > 0


@pytest.mark.parametrize("descr", ["'O'", "[('a', '<u2')]", "'<U3'"])
def test_arrays_of_no_numbers_are_refused(descr: str, tmp_path: Path) -> None:
    head = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (4,), }}".ljust(117) + "\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\0v\0" + head.encode() + bytes(64))
    with pytest.raises(ValueError, match=r"a.npy has no tokens, but an array of "):
        TokenFile(tmp_path / "a.npy", WINDOW)


@pytest.mark.parametrize("cut", [7, 9, 40])
def test_a_head_that_was_cut_is_told(cut: int, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", tokens(40))
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:cut])
    with pytest.raises((LoaderError, ValueError), match=r"a.npy (has the head of|is) a .npy file"):
        TokenFile(tmp_path / "a.npy", WINDOW)


def test_several_files_are_one_dataset(tmp_path: Path) -> None:
    arrays = [tokens(count, "uint16") + number for number, count in enumerate((41, 3, 22))]
    for number, array in enumerate(arrays):
        array.tofile(tmp_path / f"{number}.bin")
    np.save(tmp_path / "3.npy", tokens(17))
    paths = sorted(tmp_path.iterdir())
    dataset: Any = TokenFile(paths, WINDOW)
    wanted = [window for array in (*arrays, tokens(17)) for window in windows(array)]
    assert read(dataset) == wanted
    assert [(one.tolist(), other.tolist()) for one, other in dataset] == wanted
    assert dataset.blocks() == [10, 15, 19]
    loader = DataLoader(dataset, 4, "blocks", seed=1, num_workers=2, report=False)
    found = [(one.tolist(), other.tolist()) for these, following in loader for one, other in zip(these, following, strict=True)]
    assert sorted(found) == sorted(wanted)
    tokens(20, "uint32").tofile(tmp_path / "wide")
    np.save(tmp_path / "wide.npy", tokens(20, "uint32"))
    with pytest.raises(ValueError, match=r"files of one dataset have tokens of one type, and .*npy has uint32"):
        TokenFile([*paths, tmp_path / "wide.npy"], WINDOW)


def test_tokens_begin_where_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_bytes(b"head!!" + tokens(40).tobytes())
    assert read(TokenFile(tmp_path / "tokens", WINDOW, offset=6)) == windows(tokens(40))
    wrong: Any
    for wrong in (-1, "6", 1.5):
        with pytest.raises(ValueError, match=f"offset={wrong!r}: give a whole number"):
            TokenFile(tmp_path / "tokens", WINDOW, offset=wrong)
    with pytest.raises(ValueError, match="has 0 tokens: a window of 4 needs 5"):
        TokenFile(tmp_path / "tokens", WINDOW, offset=1000)
