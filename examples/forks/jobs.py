"""Shared parts of the fork examples: they start jobs and clones, read their logs, and draw."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import forebay

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAIN, TRAIN_KERAS = Path(__file__).with_name("train.py"), Path(__file__).with_name("train_keras.py")
# What takes longer than this has gone wrong, however busy the machine is.
WAIT_S = 600.0
LOOK_EVERY_S = 0.05
# Steps of a job that is ended when it is not needed any more; should nobody end it, it does so by itself, minutes
# later.
ENDLESS = 100_000
END_S = 30.0


@dataclass(frozen=True)
class LogLine:
    """A job's log of one step.

    The mean loss since the line before, its learning rate, and accuracies by digit, from 0 to 1.
    """

    step: int
    loss: float
    lr: float
    accuracies: Sequence[float]

    @property
    def accuracy(self) -> float:
        """Mean over all digits."""
        return sum(self.accuracies) / len(self.accuracies)


@dataclass(frozen=True)
class Tested:
    """A job's scores of the test images, float32 [images, digits], and their labels, int64 [images]."""

    scores: Any
    labels: Any


class ForkedJob:
    """A job that was started, or a clone."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        # In a session of its own, so that Ctrl-C is ours alone and everything of it can be ended.
        self._process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)

    def begun(self) -> dict[str, Any]:
        """Where it began: `job`, its name; `parent`, `step` and `changes`, of a clone. Waits for it.

        Raises:
            SystemExit: it has ended before.
        """
        first: dict[str, Any] = self._wait(lambda: next(iter(self._told()), None), "its first line")
        return first

    def lines(self) -> list[LogLine]:
        """Returns the lines that the job has written by now."""
        return [LogLine(**told) for told in self._told()[1:]]

    def wait_until_asked(self) -> None:
        """Waits until the fork that is to become this clone has been asked for.

        Raises:
            SystemExit: it was refused.
        """
        self._wait(lambda: self._log.exists() or None, "its beginning")

    def wait_for(self, step: int) -> None:
        """Waits until it has come to a step.

        Raises:
            SystemExit: it has ended before.
        """
        self._wait(lambda: any(line.step >= step for line in self.lines()) or None, f"step {step}")

    def end(self) -> None:
        """Ends it, if it has not ended by itself."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=END_S)
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def finish(self) -> Tested:
        """Waits for its own end; gives what it made of the test images.

        Raises:
            SystemExit: it has failed.
        """
        import numpy as np

        if (code := self._process.wait(timeout=WAIT_S)) != 0:
            raise SystemExit(f"{self._log.stem} ended with exit code {code}; what it said stands above")
        with np.load(self._log.with_suffix(".npz")) as saved:
            return Tested(saved["scores"], saved["labels"])

    def _wait(self, look: Callable[[], Any], what: str) -> Any:  # noqa: ANN401  (what was looked for)
        deadline = time.monotonic() + WAIT_S
        while (found := look()) is None:
            if self._process.poll() is not None and look() is None:
                raise SystemExit(
                    f"{self._log.stem} ended with exit code {self._process.returncode} before {what}; what it said stands above"
                )
            if time.monotonic() > deadline:
                raise SystemExit(f"{self._log.stem} did not come to {what} in {WAIT_S:.0f} s")
            time.sleep(LOOK_EVERY_S)
        return found

    def _told(self) -> list[dict[str, Any]]:
        if not self._log.exists():
            return []
        # The last line may be half written.
        return [json.loads(line) for line in self._log.read_text().split("\n")[:-1]]


class Jobs:
    """All jobs of an example. They meet at a fork agent of their own, whatever else trains on the machine."""

    def __init__(self, place: Path, program: Path) -> None:
        self._place, self._program = place, program
        self._data = prepare(place)
        self._jobs: list[ForkedJob] = []
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY", "SLURM", "PBS", "LSB"))}
        own = {"FOREBAY_RUNTIME_DIR": str(place / "run"), "FOREBAY_STATE_DIR": str(place / "state")}
        self._environment = {**kept, **own, "OMP_NUM_THREADS": "1"}

    def train(self, name: str, *options: object) -> ForkedJob:
        """Starts a job of that name: `FOREBAY_JOB=NAME python train.py OPTIONS`."""
        log = self._log()
        return self._start(self._words(log, options), log, FOREBAY_JOB=name)

    @contextlib.contextmanager
    def holding(self, name: str, *options: object) -> Iterator[ForkedJob]:
        """A job that stands before its first step; at the block's end, when all clones have been asked for, it trains.

        So none is asked for too late, however slowly they begin.
        """
        hold = self._place / f"hold-{len(self._jobs)}"
        hold.touch()
        job = self.train(name, "--hold", hold, *options)
        job.begun()
        yield job
        for clone in self._jobs[self._jobs.index(job) + 1 :]:
            clone.wait_until_asked()
        hold.unlink()

    def clone(self, parent: str, *options: object, at: int | None = None, changes: Mapping[str, float] | None = None) -> ForkedJob:
        """Forks a job: `forebay clone PARENT --at STEP --set NAME=VALUE -- python train.py OPTIONS`."""
        log = self._log()
        words = [str(forebay.command()), "clone", parent, "--at", "next" if at is None else str(at)]
        for name, value in (changes or {}).items():
            words += ["--set", f"{name}={value:g}"]
        return self._start([*words, "--", *self._words(log, options)], log)

    def _words(self, log: Path, options: Sequence[object]) -> list[str]:
        return [sys.executable, str(self._program), str(self._data), "--log", str(log), *map(str, options)]

    def _log(self) -> Path:
        return self._place / f"job-{len(self._jobs)}.jsonl"

    def _start(self, words: Sequence[str], log: Path, **more: str) -> ForkedJob:
        job = ForkedJob(words, {**self._environment, **more}, log)
        self._jobs.append(job)
        return job

    def end(self) -> None:
        """Ends all that still train."""
        for job in self._jobs:
            job.end()


@contextlib.contextmanager
def jobs(program: Path = TRAIN) -> Iterator[Jobs]:
    """Jobs of a program until the block ends."""
    # A socket's name is short, so they meet where names are.
    place = Path(tempfile.mkdtemp(prefix="fb-", dir="/dev/shm"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        made = Jobs(place, program)
        stack.callback(made.end)
        yield made


def prepare(place: Path) -> Path:
    """scikit-learn's digits, as train.py wants them: read once, for all jobs."""
    import numpy as np
    from sklearn.datasets import load_digits

    loaded: Any = load_digits()
    file = place / "digits.npz"
    np.savez(file, images=(loaded.images / 16).astype("float32"), labels=loaded.target.astype("int64"))
    return file


def run(example: Callable[[], int]) -> int:
    """An example's exit code; 130 if it was interrupted, or told to end.

    Either way nothing that it has started is left.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return example()
    except KeyboardInterrupt:
        print("\ninterrupted; what was started has been ended", file=sys.stderr)
        return 130


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def parser(description: str | None, output: str) -> argparse.ArgumentParser:
    """The options that every example has."""
    parsing = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parsing.add_argument("--output", type=Path, default=Path(output), help="where the plot goes (default: %(default)s)")
    return parsing


def takes_keras(parsing: argparse.ArgumentParser) -> None:
    """Adds the option by which an example's jobs are those of Keras."""
    words = "fork a Keras fit (train_keras.py) instead of a loop of PyTorch"
    parsing.add_argument("--keras", dest="program", action="store_const", const=TRAIN_KERAS, default=TRAIN, help=words)


def checked(parsing: argparse.ArgumentParser) -> argparse.Namespace:
    """The options, if a plot can be drawn."""
    args = parsing.parse_args()
    if importlib.util.find_spec("matplotlib") is None:
        parsing.error("matplotlib is missing, which draws the plot: uv sync --inexact --group plots")
    if getattr(args, "program", TRAIN) == TRAIN_KERAS and importlib.util.find_spec("tensorflow") is None:
        parsing.error("--keras: TensorFlow is missing: uv sync --inexact --group frameworks")
    if not args.output.parent.is_dir():
        parsing.error(f"--output {args.output}: there is no directory {args.output.parent}")
    return args


def at_least(least: int) -> Callable[[str], int]:
    """A type of options: whole numbers, not below this."""

    def read(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return number

    # argparse names it where the text is not a number at all.
    read.__name__ = "whole number"
    return read


def sheet(rows: int, columns: int, height: float) -> tuple[Figure, Sequence[Sequence[Axes]]]:
    """An empty drawing with as many panels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * columns, height), layout="constrained")
    panels: Sequence[Sequence[Axes]] = figure.subplots(rows, columns, squeeze=False)
    return figure, panels


def show_errors(panel: Axes) -> None:
    """A panel's vertical axis: percent, in plain numbers on a logarithmic scale."""
    from matplotlib.ticker import LogFormatter

    panel.set(ylabel="test error, %", yscale="log")
    panel.yaxis.set_major_formatter(LogFormatter())
    panel.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))


def save(figure: Figure, output: Path) -> None:
    """Writes the drawing, and says where."""
    figure.savefig(output)
    print(f"drawn: {output}")


def errors(lines: Sequence[LogLine]) -> list[float]:
    """Shares of images that are told wrongly, in percent."""
    return [100 * (1 - line.accuracy) for line in lines]


def until(lines: Sequence[LogLine], step: float) -> list[LogLine]:
    """Those up to a step."""
    return [line for line in lines if line.step <= step]
