"""P2: an open descriptor never changes tier or version; a new placement is seen at the next open."""

from tests.semantics.tree import content
from tests.support import Place, hold_copy, is_copy, read, wait_until, warm


def test_a_descriptor_of_the_source_stays_one_after_the_copy_is_there(place: Place) -> None:
    path = str(place.source / "a")
    with place.worker() as worker:
        worker.do("early = open(path, 'rb', buffering=0); first = early.read(4000)", path=path)
        wait_until(lambda: (now := place.status())["tiers"][0]["files"] and not now["in_flight"], "its copy")
        before, after = worker.do(
            "os.readlink(f'/proc/self/fd/{early.fileno()}'), os.path.samestat(os.fstat(early.fileno()), os.stat(path))"
        )
        assert before == path
        assert after
        assert worker.do("first + early.read()") == content("a")
        assert is_copy(worker, path)


def test_a_descriptor_of_a_copy_keeps_its_version(place: Place) -> None:
    """Whatever becomes of the source and of the copy's name: replaced, removed, overwritten, swept, dropped."""
    names = ["a", "b", "hard"]
    with place.worker(freshness="ttl=1") as worker:
        warm(place, worker, *(place.source / name for name in names))
        for name in names:
            hold_copy(worker, place.source / name, f"fd_{name}")
        (place.source / "new").write_bytes(b"new")
        (place.source / "new").rename(place.source / "a")
        (place.source / "b").unlink()
        (place.source / "hard").write_bytes(b"overwritten")
        wait_until(lambda: not place.objects(), "the sweep that drops all three")
        for name in names:
            assert worker.do(f"os.pread(fd_{name}, 10**6, 0)") == content(name)
        assert read(worker, place.source / "a") == b"new"
        assert read(worker, place.source / "hard") == b"overwritten"


def test_a_descriptor_of_a_copy_outlives_the_agent(place: Place) -> None:
    with place.worker() as worker:
        warm(place, worker, place.source / "b")
        worker.do("late = open(path, 'rb', buffering=0); part = late.read(100)", path=str(place.source / "b"))
        place.end()
        assert worker.do("part + late.read()") == content("b")
        assert worker.do("os.path.samestat(os.fstat(late.fileno()), os.stat(path))")


def test_a_descriptor_of_a_copy_has_the_source_s_identity_after_the_copy_is_dropped(place: Place) -> None:
    path = str(place.source / "b")
    with place.worker(freshness="ttl=1") as worker:
        warm(place, worker, path)
        hold_copy(worker, path, "late")
        was = worker.do("os.fstat(late)")
        (place.source / "b").unlink()
        wait_until(lambda: not place.objects(), "the sweep that drops it")
        now = worker.do("os.fstat(late)")
        assert (now.st_dev, now.st_ino, now.st_mode, now.st_mtime_ns) == (was.st_dev, was.st_ino, was.st_mode, was.st_mtime_ns)
