"""Libraries that read data sets give the same arrays, and by the second epoch get them from copies."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import support
from tests.support import Place, Word

HERE = Path(__file__).parent
NEEDED = ("h5py", "numpy", "PIL", "pyarrow", "safetensors", "torch", "torchvision")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}: uv sync --group programs --group examples")
IMAGES = 40
# HDF5 locks each file that it opens, and what is locked is the source's (see test_shared_live.py).
NO_LOCKS = {"HDF5_USE_FILE_LOCKING": "FALSE"}
# Between two epochs.
COPIES_MADE = [sys.executable, "-E", str(support.IDLE)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, HERE / "make_data.py", made], check=True)
    return made


@pytest.fixture(scope="module")
def shared(data: Path) -> Iterator[Place]:
    """The data, at the source of a place that all tests of single files use."""
    with support.place() as made:
        subprocess.run(["cp", "-a", f"{data}/.", made.source], check=True)
        support.settle(made.source)
        yield made


def digests(words: list[str]) -> list[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture(scope="module")
def expected(data: Path) -> list[str]:
    return digests([str(HERE / "reads.py"), str(data), "all", "1"])


def test_each_library_reads_the_same_with_copies_and_without(shared: Place, expected: list[str]) -> None:
    """One process, two epochs; what is only mapped is not copied ahead, but another reader of the file saw to that."""
    words: list[Word] = [sys.executable, HERE / "reads.py", shared.source, "all", "2", *COPIES_MADE]
    ran = shared.run(*words, freshness="ttl=600", environment=NO_LOCKS)
    lines = ran.out.decode().splitlines()
    assert lines == expected + [line.replace("0", "1", 1) for line in expected]
    assert ran.record["agent"]["files_copied"] == 9
    # In the second epoch each of them opens at least one copy.
    assert ran.hits >= len(expected)


LIBRARIES = [
    "numpy.load",
    "numpy.fromfile",
    "numpy.memmap",
    "Pillow, png",
    "h5py",
    "pyarrow, parquet",
    "pyarrow, ipc mapped",
    "safetensors",
]


@pytest.mark.parametrize("library", LIBRARIES)
def test_each_library_is_served_in_a_later_run(shared: Place, expected: list[str], library: str) -> None:
    """After one that read everything: every open of the file is answered by its copy."""
    with shared.adopted():
        ran = shared.run(sys.executable, HERE / "reads.py", shared.source, library, "1", freshness="immutable", environment=NO_LOCKS)
    assert ran.out.decode().splitlines() == [
        line for line in expected if line.startswith(f"0 {library} ") and line.count(" ") == library.count(" ") + 2
    ]
    assert ran.hits == ran.counters["source_opens"] > 0


# What finds classes and files by listing, once an epoch; what is behind the root is run in between.
FOLDER = """
import subprocess, sys
from torchvision.datasets import ImageFolder
for epoch in range(2):
    print(ImageFolder(sys.argv[1]).samples)
    if sys.argv[2:] and not epoch:
        subprocess.run(sys.argv[2:], check=True)
"""


def test_an_image_folder_is_listed_on_the_node(shared: Place) -> None:
    root = str(shared.source / "images")
    ran = shared.run(sys.executable, "-c", FOLDER, root, *COPIES_MADE, freshness="immutable")
    assert ran.out.decode().splitlines() == digests(["-c", FOLDER, root])
    listings = ran.counters["source_listings"]
    # The root, for its classes, and each of them; the first time by the source.
    assert listings >= 2 * 5
    assert ran.counters["listings_saved"] >= listings // 2


@pytest.fixture(scope="module")
def images(data: Path) -> Iterator[tuple[list[Place], list[str]]]:
    """Places whose sources hold the images, one for each start method; and what each epoch gives without us."""
    with ExitStack() as stack:
        places = [stack.enter_context(support.place()) for _ in METHODS]
        for place in places:
            subprocess.run(["cp", "-a", f"{data / 'images'}/.", place.source], check=True)
        expected = digests([str(HERE / "loads.py"), str(data / "images"), "none"])
        support.settle(*(place.source for place in places))
        yield places, expected


METHODS = ["none", "fork", "forkserver", "spawn"]


@pytest.mark.parametrize("method", METHODS)
def test_data_loaders(images: tuple[list[Place], list[str]], method: str) -> None:
    """However its workers are started."""
    places, expected = images
    place = places.pop()
    ran = place.run(sys.executable, HERE / "loads.py", place.source, method, *COPIES_MADE, str(IMAGES), freshness="ttl=600")
    assert ran.out.decode().splitlines() == expected
    assert len(set(expected)) == 2
    assert ran.record["agent"]["files_copied"] == IMAGES
    # All of the second epoch, and nothing of the first.
    assert ran.hits == IMAGES
    assert ran.counters["source_opens"] == 2 * IMAGES
