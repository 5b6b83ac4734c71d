"""Windows of files of tokens: plain ones, NumPy's, llm.c's and Megatron's."""

from collections.abc import Iterable
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from forebay.loader._at_once import look_through
from forebay.loader._given import check_whole, paths_of
from forebay.loader._samples import IndexedSamples, part_of
from forebay.loader._tokens import Tokens, tokens_of
from forebay.loader.dataset import Extent

__all__ = ["TokenFile"]

AUTO = "auto"
DTYPE = "uint16"


class TokenFile(IndexedSamples):
    """Windows of files of tokens: the tokens and the one after each, as training predicts them.

    Window `i` of a file begins at its token `i * window`; what is left at a file's end is left out, and no window spans
    two files. Samples are pairs of NumPy arrays of `window` tokens; those of a loader are read-only.

    A file is tokens from its first byte to its last, as `numpy.ndarray.tofile` writes them, or has a head that is
    known: a `.npy` file, a data file of llm.c, or a `.bin` of Megatron's, whose `.idx` beside it says its type. Their
    heads are compared with `dtype` and with the file's size. Files that can't be tokens by their first bytes (archives,
    compressed files, checkpoints) are refused.

    Args:
        path: path of the file, or an address such as `s3://BUCKET/KEY`, or several, whose windows are numbered through.
        window: tokens of a window.
        dtype: type of a token, as NumPy names it; or `"auto"`: as the file's head or its `.idx` says, else uint16.
        offset: bytes before the first token. Then the file's head is not looked at. None: as the head says.
        on_error: `"raise"`, or `"skip"`: files that are damaged or missing are left out, which one line says.

    Attributes:
        skipped_shards: the reason by path for each file that was left out.

    Raises:
        OSError: a file can't be read.
        LoaderError: a file is not what its head says, such as one that was cut; or several files can't be used.
        ValueError: it is not a regular file, has no whole number of tokens, another type than `dtype`, or a head of
            another kind; there are not enough tokens for one window; or window, offset or dtype are invalid.
    """

    draws = False

    def __init__(
        self, path: str | Path | Iterable[str | Path], window: int, dtype: str = AUTO, *, offset: int | None = None, on_error: str = "raise"
    ) -> None:
        window = check_whole("window", window, 1)
        wanted = None if isinstance(dtype, str) and dtype == AUTO else _token_type(dtype)
        if offset is not None:
            offset = check_whole("offset", offset, 0)
        work = partial(tokens_of, dtype=wanted, unless_said=_token_type(DTYPE), offset=offset)
        self._files, self.skipped_shards = look_through(work, paths_of(path), on_error)
        if len(types := {str(file.dtype): file.path for file in self._files}) > 1:
            told = ", ".join(f"{path} has {kind}" for kind, path in types.items())
            raise ValueError(f"files of one dataset have tokens of one type, and {told}: make a dataset of each")
        self._dtype = self._files[0].dtype
        # Torch has tokens of this machine's byte order only.
        self._native = None if self._dtype.isnative else self._dtype.newbyteorder("=")
        self._step, self._bytes = window * self._dtype.itemsize, (window + 1) * self._dtype.itemsize
        # The last file's windows are found without a search, and so are those of a file alone.
        self._last = self._files[-1]
        self._ends = list(accumulate(max(0, (file.tokens - 1) // window) for file in self._files))
        if self._ends[-1] < 1:
            tokens = max(file.tokens for file in self._files)
            raise ValueError(f"{self._files[0].path} has {tokens} tokens: a window of {window} needs {window + 1}")
        self._length = self._ends[-1]
        self._before = self._ends[-2] if len(self._ends) > 1 else 0

    def __len__(self) -> int:
        return self._length

    def blocks(self) -> list[int]:
        """Returns the end of each file that has a window, as a number of windows."""
        return list(dict.fromkeys(end for end in self._ends if end))

    def locate(self, i: int, /) -> Extent:
        """See `Located.locate`."""
        if not 0 <= i < self._length:
            raise IndexError(f"window {i}: there are {self._length}")
        file, number = (self._last, i - self._before) if i >= self._before else self._find(i)
        return Extent(file.path, file.offset + number * self._step, self._bytes, file.mark)

    def decode(self, data: memoryview, i: int, rng: Any, /) -> Any:  # noqa: ANN401  (see `Located`)
        """See `Located.decode`."""
        del i, rng
        import numpy as np

        tokens = np.frombuffer(data, self._dtype)
        if self._native is not None:
            tokens = tokens.astype(self._native)
        return tokens[:-1], tokens[1:]

    def _find(self, i: int) -> tuple[Tokens, int]:
        """Returns the file of a window, and the window's number in the file."""
        which, number = part_of(self._ends, i, "window")
        return self._files[which], number


def _token_type(dtype: object) -> Any:  # noqa: ANN401  (NumPy's, which may be missing)
    import numpy as np

    wrong = f"dtype={dtype!r}: give a token's type as NumPy names it, such as uint16"
    try:
        found = np.dtype(dtype)  # type: ignore[call-overload]
    except TypeError:
        raise ValueError(wrong) from None
    # NumPy takes None for float64.
    if dtype is None or found.kind not in "biuf":
        raise ValueError(wrong)
    return found
