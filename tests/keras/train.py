"""A Keras job that is forked by the command, and its clone: prints its record at the end.

Usage: train.py STOP

It ends with an epoch of at least the number in the file STOP, a clone one epoch after its first.
"""

import json
import sys
import time
from pathlib import Path

import keras

from forebay.keras import Fork
from tests.keras.fits import OPTIONS, Recorder, fit

EPOCHS_MAX = 100_000
OPTION = {"jax": "jit", "tensorflow": "dataset", "torch": "plain"}
"""By Keras' backend the options of the job."""


class Until(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends training, and makes its steps as long as those of a small model."""

    def __init__(self, fork: Fork, stop: Path) -> None:
        super().__init__()
        self._fork, self._stop = fork, stop

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        time.sleep(0.1)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if self._fork.lineage is not None:
            self.model.stop_training = epoch > self._fork.lineage.epoch
        elif self._stop.exists():
            self.model.stop_training = epoch >= int(self._stop.read_text())


def main() -> None:
    fork = Fork(stateless=[Recorder, Until])
    _, record = fit(OPTIONS[OPTION[keras.backend.backend()]], epochs=EPOCHS_MAX, fork=fork, more=[Until(fork, Path(sys.argv[1]))])
    lineage = fork.lineage
    origin = None if lineage is None else {"step": lineage.step, "parent": lineage.parent}
    print(json.dumps({"rank": 0, **record.told(), "lineage": origin}), flush=True)


if __name__ == "__main__":
    main()
