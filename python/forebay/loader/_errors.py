"""Errors of a loader. Each message names the thing, the cause and the mend."""

__all__ = ["LoaderError", "SampleError", "StateError"]


class LoaderError(RuntimeError):
    """Batches can't be made.

    The base of all errors of `forebay.loader` but those of arguments (`ValueError`, `TypeError`).
    """


class ColumnError(LoaderError):
    """A file lacks a column that the dataset asks for."""


class SampleError(LoaderError):
    """A sample could not be read or decoded.

    Attributes:
        index: index of the sample in the dataset; None if a whole batch failed.
        path: path of the sample's file; None if the dataset does not say.
    """

    def __init__(self, message: str, index: int | None = None, path: str | None = None) -> None:
        super().__init__(message)
        self.index = index
        self.path = path


class StateError(LoaderError):
    """A state can't be loaded here: it is of another dataset, seed, sampler or number of ranks. Nothing has changed."""
