"""A store that accepts and never answers (F11).

Who waits for it can be interrupted, and closing ends what is being asked for.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.loader import DirectSource, Extent, LoaderError, TokenFile
from forebay.loader._paths import look_up, objects_below
from forebay.loader.source import read_sample
from forebay.torch import DataLoader
from tests.loader.test_interrupt import lives, processes, shared_memory
from tests.loader.test_objects import OPTIONS, ROOT, FilesAndObjects, Objects, both, read
from tests.support import LONG_S, wait_until
from tests.support import ROOT as REPOSITORY
from tests.views.conftest import bucket, moto
from tests.views.store import ReceivedRequest, StoreAnswer

__all__ = ["both", "bucket", "moto"]  # Fixtures of these tests, too.

# Until it would be given up hours pass.
PATIENCE = {"AWS_MAX_ATTEMPTS": "100"}
PROGRAM = textwrap.dedent("""
    import sys

    from forebay.loader import Extent, ParquetRows, RecordShards, TokenFile
    from forebay.torch import DataLoader, ImageFolder

    kind, root = sys.argv[1:]

    class Located:
        keyed = kind != "processes"

        def __len__(self):
            return 1000

        def locate(self, i):
            return Extent(f"{root}/silent" if i > 40 else f"{root}/file")

        def decode(self, data, i, rng):
            return i

    if kind == "object":
        TokenFile(f"{root}/silent", 1)
    if kind == "shards":
        RecordShards([f"{root}/silent"] * 3, bytes)
    if kind == "rows":
        ParquetRows([f"{root}/silent"] * 3, dict)
    if kind == "folder":
        ImageFolder(f"{root}/silent")
    cache = ("ram=1M",) if kind == "cache" else ()
    for batch in DataLoader(Located(), 4, seed=0, num_workers=0 if kind == "alone" else 2, cache=cache):
        pass
""")


@pytest.fixture
def silent(both: FilesAndObjects, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """A store that never answers for one of its objects. Gives a function that waits until it has been asked for it."""
    both.bucket.put_all({"p/file": b"1" * 100, "p/silent": b"2" * 100, "p/silent/a/1.png": b"3"})
    for name, value in PATIENCE.items():
        monkeypatch.setenv(name, value)
    asked, over = threading.Event(), threading.Event()

    def behave(one: ReceivedRequest, forward: Callable[[], StoreAnswer]) -> StoreAnswer | None:
        if one.key in (None, "p/silent"):
            asked.set()
            over.wait()
        return forward()

    both.bucket.behave = behave
    yield lambda: _wait_for(asked)
    over.set()


def _wait_for(asked: threading.Event) -> None:
    assert asked.wait(LONG_S), "the store was not asked"


def interrupted_once(asked: Callable[[], None], work: Callable[[], Any]) -> None:
    """Does this, which is to wait for the store, and sends Ctrl-C meanwhile."""
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        asked()
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        work()


@contextlib.contextmanager
def interrupted(kind: str, waits: Callable[[], object]) -> Iterator[None]:
    """A training that waits without end, and then is sent Ctrl-C.

    It has ended when this goes on, but for what was left in its session.
    """
    command = [sys.executable, "-c", PROGRAM, kind, ROOT]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as training:
        try:
            waits()
            yield
            os.killpg(training.pid, signal.SIGINT)
            _, err = training.communicate(timeout=LONG_S)
            assert training.returncode == -signal.SIGINT, err
            assert "KeyboardInterrupt" in err
            wait_until(lambda: processes(training.pid) == [], "its processes to end")
            assert shared_memory(training.pid) == []
        finally:
            training.kill()


KINDS = ["object", "shards", "rows", "folder", "alone", "threads", "processes", "cache"]


@pytest.mark.parametrize("kind", KINDS)
def test_f11_ctrl_c_ends_whoever_waits_for_a_silent_store(kind: str, both: FilesAndObjects, silent: Callable[[], None]) -> None:
    agent = None
    with interrupted(kind, silent):
        agent = both.node.agent() if kind == "cache" else None
    if agent is not None:
        wait_until(lambda: not lives(agent), "the agent to see that nobody is there")


@pytest.fixture
def deaf(both: FilesAndObjects, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], object]]:
    """An endpoint that takes no connection, as of a host that is gone.

    Gives what waits until somebody tries to make one.
    """
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        port = listening.getsockname()[1]
        # Its queue has room for one.
        with socket.create_connection(("127.0.0.1", port)):
            for name, value in {**PATIENCE, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}.items():
                monkeypatch.setenv(name, value)
            # In the kernel's table: whom it is to be with, and that it is being made.
            asked = f":{port:04X} 02 "
            yield lambda: wait_until(lambda: asked in Path("/proc/net/tcp").read_text(), "somebody to connect")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "cache"])
def test_f11_ctrl_c_ends_whoever_waits_for_a_store_that_is_gone(kind: str, deaf: Callable[[], object]) -> None:
    with interrupted(kind, deaf):
        pass


@pytest.mark.parametrize(
    "work",
    [
        lambda: look_up(f"{ROOT}/silent"),
        lambda: read_sample(lambda _: Extent(f"{ROOT}/silent"), 0),
        lambda: objects_below(f"{ROOT}/silent"),
    ],
    ids=["object", "sample", "listing"],
)
def test_f11_after_ctrl_c_the_same_process_asks_again(work: Callable[[], Any], both: FilesAndObjects, silent: Callable[[], None]) -> None:
    interrupted_once(silent, work)
    both.bucket.behave = None
    assert work()


def test_f11_a_signal_whose_handler_raises_nothing_ends_nothing(both: FilesAndObjects, silent: Callable[[], None]) -> None:
    heard = threading.Event()

    def hear(*_: object) -> None:
        both.bucket.behave = None
        heard.set()

    before = signal.signal(signal.SIGUSR1, hear)
    try:
        main = threading.main_thread().ident
        assert main is not None

        def send() -> None:
            silent()
            signal.pthread_kill(main, signal.SIGUSR1)
            assert heard.wait(LONG_S), "the handler runs while it is waited for"
            signal.pthread_kill(main, signal.SIGINT)

        threading.Thread(target=send).start()
        with pytest.raises(KeyboardInterrupt):
            TokenFile(f"{ROOT}/silent", 1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_f11_closing_a_source_ends_what_it_asks_for(both: FilesAndObjects, silent: Callable[[], None]) -> None:
    source = DirectSource()
    failed: list[Exception] = []

    def ask() -> None:
        try:
            read(source, [Extent(f"{ROOT}/silent", n) for n in range(4)])
        except LoaderError as error:
            failed.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    silent()
    source.close()
    asking.join(LONG_S)
    assert [str(error) for error in failed] == ["the source is closed"]
    wait_until(lambda: not any(thread.is_alive() for thread in source._threads), "its threads to end")
    # Another one is not concerned.
    assert read(DirectSource(), [Extent(f"{ROOT}/file")]) == [b"1" * 100]


def test_f11_the_agent_ends_what_it_asks_for_when_nobody_wants_it(both: FilesAndObjects, silent: Callable[[], None]) -> None:
    dataset = Objects([Extent(f"{ROOT}/{'file' if n < 8 else 'silent'}") for n in range(16)])
    options = OPTIONS | {"shuffle": False, "cache": f"{both.node.cache}=64M", "hedge_budget": 0.0}
    other = DataLoader(Objects([Extent(f"{ROOT}/file")] * 4), **options)
    # A whole epoch: none of its threads begins later.
    list(other)

    def threads() -> int:
        return len(list(Path(f"/proc/{both.node.agent()}/task").iterdir()))

    before = threads()
    loader = DataLoader(dataset, **options)
    next(batches := iter(loader))
    silent()
    wait_until(lambda: threads() > before, "its threads to read", 40)
    del batches, loader
    # Sooner than an attempt is given up.
    wait_until(lambda: threads() <= before, "its threads to end", 40)
    assert len(list(other)) == 1
