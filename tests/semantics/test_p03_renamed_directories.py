"""P3: a renamed directory takes its own names along and no others.

What was changed through a preload library serves no later run.
"""

from pathlib import Path

from tests.support import Place, is_copy, read, settle, wait_until, warm


def two_directories(place: Place) -> tuple[Path, Path]:
    paths = (place.source / "one/file", place.source / "two/file")
    for path in paths:
        path.parent.mkdir()
        path.write_bytes(bytes(path.parent.name, "ascii") * 100)
    settle(*paths)
    return paths


def test_a_directory_renamed_elsewhere_leaves_copies_servable(place: Place) -> None:
    one, _ = two_directories(place)
    (place.source / "checkpoint.tmp").mkdir()
    with place.worker(freshness="immutable") as worker:
        warm(place, worker, one)
        handed_over = place.status()["handed_over"]
        worker.do("os.rename(old, new)", old=str(place.source / "checkpoint.tmp"), new=str(place.source / "checkpoint"))
        asked = 0

        def is_copy_again() -> bool:
            nonlocal asked
            asked += 1
            return is_copy(worker, one)

        wait_until(is_copy_again, "the copy again")
        # Valid again by the look at the directory, or by the opens that waited for it.
        assert place.status()["handed_over"] < handed_over + asked
        assert read(worker, one) == b"one" * 100


def test_a_directory_put_in_the_place_of_another_is_seen(place: Place) -> None:
    one, two = two_directories(place)
    with place.worker(freshness="immutable") as worker:
        warm(place, worker, one, two)
        worker.do("os.rename(old, away)\nos.rename(new, old)", old=str(one.parent), away=str(place.source / "away"), new=str(two.parent))
        assert read(worker, one) == b"two" * 100
        # After the agent has looked where the path leads.
        wait_until(lambda: is_copy(worker, one), "a copy of what is there now")
        assert read(worker, one) == b"two" * 100


def test_what_was_changed_by_a_covered_program_is_not_served_to_the_next_run(place: Place) -> None:
    one, two = two_directories(place)
    with place.worker(freshness="immutable") as worker:
        warm(place, worker, one, two)
        worker.do("Path(path).write_bytes(b'changed')", path=str(one))
    place.stop()
    with place.worker(freshness="immutable") as worker:
        assert read(worker, one) == b"changed"
        wait_until(lambda: is_copy(worker, two), "the copy that was not changed")
