"""Reading ahead: pipes, which nobody can open before somebody reads them, show what is read when."""

import os
from pathlib import Path

import pytest
import torch

from forebay.loader import DirectSource, Extent
from forebay.torch import DataLoader
from tests.loader.data import KeyedFiles
from tests.support import wait_until


def test_as_many_reads_as_there_are_threads_are_under_way_at_once(tmp_path: Path) -> None:
    for sample in range(16):
        os.mkfifo(tmp_path / f"{sample}")
    source = DirectSource(threads=16)
    source.register(None, lambda sample: Extent(str(tmp_path / f"{sample}")))
    source.request(list(range(16)), 0)
    for sample in reversed(range(16)):
        # Waits for its reader, of which none has come to an end yet.
        os.close(os.open(tmp_path / f"{sample}", os.O_WRONLY))
    source.close()


class WaitingFiles(KeyedFiles):
    """Samples of the first batch are not decoded before one of the second is being read, from a pipe."""

    def __init__(self, folder: Path, *, keyed: bool) -> None:
        super().__init__(folder, 8)
        self.keyed = keyed
        self.pipe, self.opened = folder / "pipe", folder / "opened"
        os.mkfifo(self.pipe)

    def locate(self, i: int, /) -> Extent:
        return Extent(str(self.pipe)) if i == 5 else super().locate(i)

    def decode(self, data: memoryview, i: int, rng: torch.Generator, /) -> tuple[object, ...]:
        if i < 4:
            wait_until(self.opened.exists, "the second batch to be read")
        return super().decode(data, i, rng)


@pytest.mark.parametrize("keyed", [True, False], ids=["threads", "processes"])
def test_what_comes_next_is_read_while_this_is_decoded(keyed: bool, tmp_path: Path) -> None:
    dataset = WaitingFiles(tmp_path, keyed=keyed)
    batches = iter(DataLoader(dataset, 4, seed=0, num_workers=1, on_error="skip", report=False))
    os.close(os.open(dataset.pipe, os.O_WRONLY))
    dataset.opened.touch()
    # A pipe has no place to read from, so that sample is left out.
    assert [batch[0].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 6, 7]]
