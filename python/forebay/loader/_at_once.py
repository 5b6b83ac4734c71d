"""Looks through files and objects, several concurrently."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TypeVar

from forebay._say import say
from forebay.loader._errors import LoaderError
from forebay.loader._paths import end_look_ups
from forebay.loader.source import Helper

__all__ = ["at_once", "look_through"]

Item = TypeVar("Item")
Made = TypeVar("Made")


FILES_AT_ONCE = 16
"""Shards that are looked through concurrently: on a network file system most of that time is waiting."""
NAMED = 200
"""Shards that one error names."""
# Errors of a damaged shard. Other errors of a file system or a store may be gone the next time, or be seen by one rank
# only, whose dataset would then differ from that of the others.
_DAMAGE = (LoaderError, FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, EOFError, ValueError)


def look_through(work: Callable[[str], Made], paths: list[str], on_error: str) -> tuple[list[Made], dict[str, str]]:
    """Looks through shards, several concurrently.

    Returns the results in order of the paths, and the reason by path for each shard that was left out: with
    `on_error="skip"` those that are damaged, missing or not to be read, which one line says.

    Raises:
        LoaderError: shards are damaged; all of them are named. One alone, and several that fail alike, raise their own
            kind of error.
        OSError: the same of shards that can't be read.
        ValueError: the same of paths that lead to no file; or another `on_error`.
    """
    if on_error not in ("raise", "skip"):
        raise ValueError(f'on_error={on_error!r}: give "raise" or "skip"')

    def looked(path: str) -> Made | Exception:
        try:
            return work(path)
        except (OSError, *_DAMAGE) as error:
            return error

    found = at_once("forebay-index", FILES_AT_ONCE, looked, paths)
    failed = {path: one for path, one in zip(paths, found, strict=True) if isinstance(one, Exception)}
    good = [one for one in found if not isinstance(one, Exception)]
    if not failed:
        return good, {}
    reasons = {path: _reason(path, error) for path, error in failed.items()}
    named = "; ".join(list(reasons.values())[:NAMED]) + (f"; and {len(reasons) - NAMED} more" if len(reasons) > NAMED else "")
    if on_error == "skip" and good and all(isinstance(error, _DAMAGE) for error in failed.values()):
        say(f'on_error="skip": {len(failed)} of {len(found)} shards are left out: {named}')
        return good, reasons
    first = next(iter(failed.values()))
    if len(failed) == 1:
        raise first
    kind = type(first) if {type(error) for error in failed.values()} == {type(first)} else LoaderError
    mend = '; on_error="skip" leaves damaged shards out' if on_error == "raise" and good else ""
    told = f"{len(failed)} of {len(found)} shards can't be used: {named}{mend}"
    raise kind(first.errno, told) if isinstance(first, OSError) and issubclass(kind, OSError) else kind(told)


def _reason(path: str, error: Exception) -> str:
    told = " ".join(str(error).split())
    return told if path in told else f"{path}: {told}"


def at_once(name: str, threads: int, work: Callable[[Item], Made], items: Iterable[Item]) -> list[Made]:
    """Returns the results of items that several threads of that name work on, in order.

    Ctrl-C does not wait for the work: requests to a store are ended, and other work is left behind. What the work
    raises first, in the order of items, is raised.
    """
    tasks: list[tuple[Item, Future[Made]]] = [(item, Future()) for item in items]
    left, lock = iter(tasks), threading.Lock()
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            with lock:
                task = next(left, None)
            if task is None:
                return
            try:
                task[1].set_result(work(task[0]))
            except BaseException as error:
                task[1].set_exception(error)

    try:
        for number in range(min(threads, len(tasks))):
            Helper(name, number, run)
        return [done.result() for _, done in tasks]
    except BaseException as error:
        if not isinstance(error, Exception):
            end_look_ups()
        raise
    finally:
        over.set()
