"""Keras, the real one, trains with the loader's batches: each sample once an epoch, in torch's order."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from torch.utils.data import BatchSampler, DistributedSampler

from forebay.loader import LoaderError
from forebay.torch import DataLoader
from tests.loader.data import Indices
from tests.support import PROGRAM_S, ROOT

NEEDED = ("keras", "tensorflow")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}: uv sync --group frameworks")


def order(epoch: int, batch: int = 3, samples: int = 11) -> list[list[int]]:
    """The loader's batches."""
    sampler: DistributedSampler[int] = DistributedSampler(Indices(samples), 1, 0, seed=5)
    sampler.set_epoch(epoch)
    return list(BatchSampler(sampler, batch, drop_last=False))


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_keras_has_the_loaders_epochs(backend: str) -> None:
    quiet = {"KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.loader.fits"],
        cwd=ROOT,
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        check=False,
        timeout=PROGRAM_S,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["whole"] == [order(0), order(1), order(2)]
    assert found["next"] == 3
    assert found["parts"] == [order(0)[:2], order(0)[2:], order(1)[:2], order(1)[2:]]
    assert found["two"] == [order(0, 6), order(1, 6)]
    ordered = [list(range(11))[start : start + 3] for start in range(0, 11, 3)]
    assert found["validated"] == [order(0), ordered, order(1), ordered]
    assert found["evaluated"] == [order(0)]
    assert found["predicted"] == [11, 1]
    assert found["rest"] == [order(0)[1:], order(1)]
    assert found["left"] == [order(0)[:3], order(0), order(0)[:1], order(7)]
    assert found["by hand"] == [order(8), order(9)]
    assert found["looked at by hand"] == [order(0)]
    assert found["derived"] == [order(0)]
    assert "sample 3: it is gone" in found["failed"]
    assert found["at once"] == [order(0, samples=60)]
    assert found["last"] == [order(1, samples=60)[:4]]
    told = [line.partition(" samples")[0] for line in done.stderr.splitlines() if line.startswith("forebay: epoch")]
    assert told == [f"forebay: epoch {epoch}: 11" for epoch in range(3)]


def test_what_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    from forebay.keras import PyDataset

    with pytest.raises(TypeError, match=r"takes a forebay.torch.DataLoader, and this is a list"):
        PyDataset([1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="give the loader's sampler a __len__"):
        PyDataset(DataLoader(Indices(11), sampler=iter([1])))
    data = PyDataset(DataLoader(Indices(11), 3))
    with pytest.raises(ValueError, match="workers=4: the loader reads ahead by itself"):
        data.workers = 4
    with pytest.raises(ValueError, match="use_multiprocessing=True: give "):
        data.use_multiprocessing = True


def test_what_another_one_took_is_not_passed_over_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    from forebay.keras import PyDataset

    data = PyDataset(DataLoader(Indices(11), 3, shuffle=True, seed=5, report=False))

    def asked() -> Iterator[list[int]]:
        # As Keras does it.
        for index in range(data.num_batches):
            yield data[index].tolist()

    stopped, after = asked(), asked()
    assert [next(stopped) for _ in range(3)] == order(0)[:3]
    had = [next(after)]
    next(stopped)
    had += [next(after), next(after)]
    with pytest.raises(LoaderError, match="all 4 batches of an epoch were asked for already: somebody else"):
        next(after)
    assert had == [order(0)[0], *order(0)[2:]]
    assert list(asked()) == order(0)


def test_a_process_that_goes_on_within_an_epoch_knows_its_later_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    from forebay.keras import PyDataset

    whole, rest = (PyDataset(DataLoader(Indices(11), 3, shuffle=True, seed=5, report=False)) for _ in range(2))
    assert whole.num_batches == 4
    had = [whole[index].tolist() for index in range(3)]
    rest.go_on(whole.state_after(1), 1)
    assert rest.num_batches == 3
    assert [rest[index].tolist() for index in range(2)] == had[1:]
    assert [str(rest.state_after(batches)) for batches in (2, 3)] == [str(whole.state_after(batches)) for batches in (2, 3)]
    assert str(rest.state_after(2)) != str(rest.state_after(3))
