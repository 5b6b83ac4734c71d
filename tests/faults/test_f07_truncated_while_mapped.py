"""F7: a source that is truncated while it is mapped.

The copy is not; a map of the source itself is as without Forebay.
"""

import os
import signal
import sys

import pytest

from tests import support
from tests.faults.harness import BIG, CORPUS
from tests.support import Place, Worker, is_copy, warm

MAP = "import mmap\nfile = open(path, 'rb')\nmapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\nlen(mapped)"


def test_f07_the_map_of_a_copy_survives(place: Place) -> None:
    path = place.source / BIG
    with place.worker() as worker:
        warm(place, worker, path)
        assert is_copy(worker, path)
        assert worker.do(MAP, path=str(path)) == len(CORPUS[BIG])
        os.truncate(path, 0)
        assert worker.do("bytes(mapped)") == CORPUS[BIG]
        # What is asked of the descriptor still agrees with what it leads to.
        assert worker.do("os.fstat(file.fileno()).st_size") == len(CORPUS[BIG])


def test_f07_without_a_copy_it_is_as_without_forebay(place: Place) -> None:
    path = place.source / BIG
    with Worker.started([sys.executable, "-E", support.WORKER]) as worker:
        assert worker.do(MAP, path=str(path)) == len(CORPUS[BIG])
        os.truncate(path, 0)
        with pytest.raises(AssertionError, match="has died"):
            worker.do("bytes(mapped)")
        assert worker.process.returncode == -signal.SIGBUS
        worker.ran = support.Ran(worker.process.returncode, b"", b"", {})
