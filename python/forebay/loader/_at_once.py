"""Files and objects that are looked through, several at once."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TypeVar

from forebay.loader._paths import end_look_ups
from forebay.loader.source import Helper

__all__ = ["at_once"]

Item = TypeVar("Item")
Made = TypeVar("Made")


def at_once(name: str, threads: int, work: Callable[[Item], Made], items: Iterable[Item]) -> list[Made]:
    """What becomes of each, in order. Ctrl-C is not held up by what is under way: that is ended if it asks a store, and else left behind.

    Args:
        name: of the threads.
        threads: that work.
        work: what is done with an item.
        items: these.

    Raises:
        Exception: what the work raises for the first item that it raises anything for.
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
