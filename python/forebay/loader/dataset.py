"""The protocol of datasets whose samples are read ahead: a dataset locates a sample, and decodes bytes."""

from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

__all__ = ["Extent", "Located", "is_located"]


class Extent(NamedTuple):
    """The location of a sample's bytes: a file, an object of a store, or a range of either.

    Attributes:
        path: path of the file; or an address of an object, such as `s3://BUCKET/KEY` (also `gs://` and `az://`).
        offset: offset of the first byte.
        length: number of bytes; None for all from the offset to the file's end. A dataset need not know: a file's
            length is learned when it is read, and asking a slow file system for a million of them beforehand takes most
            of an hour.
        mark: number that stands for the version of an object: another version is refused. 0 for a file, and for an
            object in its current version.
    """

    path: str
    offset: int = 0
    length: int | None = None
    mark: int = 0


@runtime_checkable
class Located(Protocol):
    """A map-style dataset that locates and decodes its samples, so that their bytes can be fetched ahead.

    It may have a method `blocks()`, which says where each run of samples ends that lie together, such as those of a
    shard; `shuffle="blocks"` mixes some runs at a time.

    It may have an attribute `extents`: how many there are, where samples share them, as rows of a group do.

    It may have a method `set_epoch(epoch)`, called in each process before that epoch's samples are asked for; and an
    attribute `identity`, plain text: a state is good only where it is the same. Both may be of a dataset with
    `__getitem__` alone, too.

    It may have an attribute `keyed`. True, as if there were none: `decode` draws all its random numbers from `rng`, and
    may be called in several threads concurrently. False: `decode` uses the global generators of Python, NumPy or the
    framework; then it runs in worker processes, where these are seeded again for each sample.
    """

    def __len__(self) -> int:
        """Samples."""

    def locate(self, i: int, /) -> Extent:
        """Returns the location of sample `i`. It is called often, by several threads, and must not read anything."""

    def decode(self, data: memoryview, i: int, rng: Any, /) -> Any:  # noqa: ANN401  (the framework's generator; whatever a sample is)
        """Sample `i` from its bytes.

        Args:
            data: the extent's bytes, read-only. They stay until the sample's batch is put together: the sample may be a
                view of them, such as an array made by `numpy.frombuffer`, but what the dataset itself keeps has to be a
                copy.
            i: the sample's index.
            rng: a generator of the framework (`torch.Generator` for torch), seeded by (seed, epoch, i). It is this
                sample's until `decode` returns, and another's afterwards.
        """


def is_located(dataset: object) -> TypeGuard[Located]:
    """Returns true if a dataset has `locate` and `decode`."""
    return isinstance(dataset, Located)
