"""Measures for `forebay profile --preprocess module:function` how fast a function prepares samples.

It is measured with several numbers of worker processes.

A question comes as JSON on standard input: `call`, `dirs`, `threads` (numbers of workers, a round each) and `seconds`
(of a round). Lines of JSON on standard output answer it: `{"found": "..."}` once the function is found, `{"round":
{...}}` for each round, and `{"refused": "..."}` with the reason for a refusal. Without `threads` nothing is measured.

The function is given the bytes of one file, and its result is thrown away. Files are read before the clock starts. Each
worker is to keep to one thread: environment variables say so to the usual libraries, unless they are set already.
"""

import importlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

# Memory of one worker for samples, and how many it holds at most.
_BYTES_MAX = 128 << 20
_SAMPLES_MAX = 1000
# Files that are looked at; the samples are chosen among them evenly.
_FILES_MAX = 100_000
# Number of classes of size that samples are counted in.
_CLASSES = 3
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Refused(Exception):
    """A refusal of the question, with the reason in one line."""


@dataclass(frozen=True)
class Worked:
    """One worker's part of a round, by class of size."""

    seconds: float
    cpu_seconds: float
    calls: list[int]
    call_bytes: list[int]
    call_seconds: list[float]


def find(call: str) -> Callable[[bytes], object]:
    """Returns the function that `module:function` names; `function` may have dots.

    Raises:
        Refused: there is no such function.
    """
    module_name, colon, name = call.partition(":")
    if not (module_name and colon and name):
        raise Refused("write module:function, such as train:decode")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise Refused(f"{module_name} can't be imported: {_line(error)}") from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise Refused(f"{module_name} has no {name}") from None
    if not callable(found):
        raise Refused(f"{name} of {module_name} can't be called")
    function: Callable[[bytes], object] = found
    return function


def choose(dirs: list[str]) -> list[tuple[int, str]]:
    """Returns sizes and paths of files chosen evenly from below these directories, smallest first, within bounds.

    Raises:
        Refused: there is no such file.
    """
    found = [path for number, path in zip(range(_FILES_MAX), _files(dirs), strict=False)]
    step = -(-len(found) // _SAMPLES_MAX) or 1
    chosen, held = [], 0
    for path in found[::step]:
        size = Path(path).stat().st_size
        if size and held + size <= _BYTES_MAX:
            chosen.append((size, path))
            held += size
    if not chosen:
        raise Refused(f"there is no sample of 1 byte to {_BYTES_MAX >> 20} MiB below {', '.join(dirs)}")
    return sorted(chosen)


def _files(dirs: list[str]) -> Iterator[str]:
    for top in dirs:
        for folder, subfolders, names in os.walk(top):
            subfolders.sort()
            yield from (os.path.join(folder, name) for name in sorted(names) if os.path.isfile(os.path.join(folder, name)))  # noqa: PTH113, PTH118


def work(call: str, files: list[tuple[int, str]], orders: Connection) -> None:
    """Runs a worker: reads the samples, then prepares them for the seconds of each order, until orders end."""
    try:
        function = find(call)
        samples = [Path(path).read_bytes() for _, path in files]
        _call(function, samples[0], files[0][1])
        orders.send("ready")
        while (seconds := orders.recv()) is not None:
            orders.send(_round(function, samples, files, seconds))
    except Refused as refused:
        orders.send(refused)
    except EOFError:
        # Nobody gives orders any more.
        return


def _call(function: Callable[[bytes], object], sample: bytes, path: str) -> None:
    try:
        function(sample)
    except Exception as error:
        raise Refused(f"it raised {_line(error)} on {path}") from error


def _round(function: Callable[[bytes], object], samples: list[bytes], files: list[tuple[int, str]], seconds: float) -> Worked:
    calls, call_bytes, call_seconds = [0] * _CLASSES, [0] * _CLASSES, [0.0] * _CLASSES
    begun, cpu = time.perf_counter(), time.process_time()
    # In strides, so that a short round sees all sizes.
    stride = next(step for step in (7, 11, 13, 17) if len(samples) % step)
    at, now = os.getpid() % len(samples), begun
    while now - begun < seconds:
        _call(function, samples[at], files[at][1])
        before, now = now, time.perf_counter()
        size_class = at * _CLASSES // len(samples)
        calls[size_class] += 1
        call_bytes[size_class] += len(samples[at])
        call_seconds[size_class] += now - before
        at = (at + stride) % len(samples)
    return Worked(now - begun, time.process_time() - cpu, calls, call_bytes, call_seconds)


def summary(threads: int, worked: list[Worked]) -> dict[str, Any]:
    """Returns a round of all workers, as the command reads it."""
    calls = sum(sum(each.calls) for each in worked)
    by_size = []
    for number in range(_CLASSES):
        count = sum(each.calls[number] for each in worked)
        if count:
            size = sum(each.call_bytes[number] for each in worked) / count
            by_size.append({"bytes": size, "seconds": sum(each.call_seconds[number] for each in worked) / count})
    return {
        "threads": threads,
        "samples_per_s": sum(sum(each.calls) / each.seconds for each in worked),
        "cpu_s": sum(each.cpu_seconds for each in worked) / calls,
        "by_size": by_size,
    }


def rounds(call: str, dirs: list[str], threads: list[int], seconds: float) -> Iterator[dict[str, Any]]:
    """Measures with each number of workers.

    Raises:
        Refused: the question is refused.
    """
    files = choose(dirs)
    # Not forked: what the function's module has started in this process would be half there in the workers.
    context = multiprocessing.get_context("spawn")
    team: list[tuple[SpawnProcess, Connection]] = []
    try:
        for _ in range(max(threads)):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(call, files, theirs), daemon=True)
            process.start()
            theirs.close()
            team.append((process, ours))
        for _, orders in team:
            _answer(orders)
        for number in threads:
            for _, orders in team[:number]:
                orders.send(seconds)
            yield summary(number, [_answer(orders) for _, orders in team[:number]])
    finally:
        for process, orders in team:
            orders.close()
            process.terminate()


def _answer(orders: Connection) -> Any:  # noqa: ANN401
    try:
        answer = orders.recv()
    except EOFError:
        raise Refused("a worker process died") from None
    if isinstance(answer, Refused):
        raise answer
    return answer


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def main() -> int:
    """Reads the question, prints the rounds, and returns the exit status."""
    question = json.load(sys.stdin)
    for name in _ONE_THREAD:
        os.environ.setdefault(name, "1")
    # What the function prints must not stand among our lines.
    told, sys.stdout = sys.stdout, sys.stderr
    try:
        find(question["call"])
        print(json.dumps({"found": question["call"]}), file=told, flush=True)
        for found in rounds(**question) if question["threads"] else ():
            print(json.dumps({"round": found}), file=told, flush=True)
    except Refused as refused:
        print(json.dumps({"refused": str(refused)}), file=told, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
