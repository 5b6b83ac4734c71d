"""S10: what is left of killed runs is found and removed; and nothing outside of our own directories ever is."""

import os
import signal
import subprocess
from pathlib import Path

from tests import support
from tests.faults.harness import BIG, CORPUS, SMALL, begin_big, fill, needs_root, processes_of, read_all
from tests.support import LONG_S, Place, Worker, mounted, read, warm


def kill_all_in_the_middle(place: Place) -> None:
    """A run that is copying, killed as a whole: command, program and agent at once."""
    pipe = subprocess.PIPE
    words = place.words([place.python, "-E", support.WORKER], place.record_path())
    with subprocess.Popen(words, env=place.environment(), cwd=place.root, stdin=pipe, stdout=pipe, stderr=pipe) as run:
        worker = Worker(run)
        program = worker.do("os.getpid()")
        warm(place, worker, place.source / SMALL[0])
        begin_big(place, worker)
        for pid in (*processes_of(place), run.pid, program):
            os.kill(pid, signal.SIGKILL)
        run.communicate()
    place.stop()


def test_s10_the_next_run_reaps(place: Place) -> None:
    kill_all_in_the_middle(place)
    assert len(place.objects()) == 2
    partial = [copy for copy in place.objects() if copy.read_bytes() not in CORPUS.values()]
    assert len(partial) == 1
    with place.worker() as worker:
        place.idle()
        assert not partial[0].exists()
        assert len(place.objects()) == 1
        assert read(worker, place.source / BIG) == CORPUS[BIG]
        # Of the killed run's shared memory nothing is left either.
        (own,) = [path for path in place.runtime.iterdir() if path.is_dir()]
        assert len(list(own.glob("run.*"))) == 1
        assert len(list(own.glob("index.*"))) == 1
    place.stop()
    (own,) = [path for path in place.runtime.iterdir() if path.is_dir()]
    assert {path.name for path in own.iterdir()} <= {"lock", "agent.log", "agent.log.1", "agent.log.2"}


def clean(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [support.command(), "clean", "--tier", place.tier, *words],
        env=place.environment(),
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
        cwd="/",
    )
    assert "panicked" not in done.stderr
    return done


def test_s10_clean_returns_all_space(place: Place) -> None:
    kill_all_in_the_middle(place)
    assert clean(place).returncode == 0
    assert list(place.tier.iterdir()) == []
    # And the run after it starts afresh.
    assert read_all(place, *SMALL, rounds=2).ran.status == 0


def test_s10_clean_leaves_a_tier_that_is_used(place: Place) -> None:
    with place.worker() as worker:
        warm(place, worker, *(place.source / name for name in SMALL))
        copies = place.objects()
        done = clean(place)
        assert done.returncode != 0
        assert "in use" in done.stderr + done.stdout
        assert place.objects() == copies
        assert read(worker, place.source / SMALL[0]) == CORPUS[SMALL[0]]


def plant(root: Path, victim: Path) -> list[Path]:
    """Links that lead out of the tier, in every place where something of ours is looked for."""
    victim.mkdir()
    (victim / "0123456789abcd42").write_bytes(b"precious")
    (victim / "precious").write_bytes(b"precious")
    planted = [root / "objects/42", root / "objects/41/0123456789abcd41", root / "objects/40", root / "catalogue.new", root / "notes"]
    for link in planted:
        link.parent.mkdir(mode=0o700, exist_ok=True, parents=True)
    planted[0].symlink_to(victim)
    planted[1].symlink_to(victim / "precious")
    planted[2].symlink_to("..")
    planted[3].symlink_to(victim / "precious")
    planted[4].symlink_to(victim)
    return planted


def is_untouched(victim: Path) -> bool:
    found = {path.name: path.read_bytes() for path in victim.iterdir()}
    return found == {"0123456789abcd42": b"precious", "precious": b"precious"}


def test_s10_clean_follows_no_planted_link(place: Place) -> None:
    fill(place, *SMALL)
    (root,) = place.tier.iterdir()
    victim = place.root / "victim"
    plant(root, victim)
    source = sorted(path.name for path in place.source.iterdir())
    done = clean(place)
    assert is_untouched(victim)
    # What is not ours is left, and told of; so the root stays.
    assert root.is_dir()
    assert "left" in done.stdout + done.stderr
    assert not [copy for copy in place.objects() if not copy.is_symlink() and copy.read_bytes() in CORPUS.values()]
    assert sorted(path.name for path in place.source.iterdir()) == source


def test_s10_an_agent_that_reaps_follows_no_planted_link(place: Place) -> None:
    fill(place, *SMALL)
    (root,) = place.tier.iterdir()
    victim = place.root / "victim"
    plant(root, victim)
    for _ in range(2):
        reading = read_all(place, *SMALL, rounds=3)
        assert reading.ran.status == 0
        place.stop()
    assert is_untouched(victim)


@needs_root
def test_s10_clean_crosses_no_mount(place: Place) -> None:
    fill(place, *SMALL)
    (root,) = place.tier.iterdir()
    victim = place.root / "victim"
    victim.mkdir()
    (victim / "0123456789abcd42").write_bytes(b"precious")
    shard = root / "objects/42"
    shard.mkdir(mode=0o700)
    with mounted(shard, "--bind", str(victim)):
        clean(place)
        assert (victim / "0123456789abcd42").read_bytes() == b"precious"
        read_all(place, *SMALL, rounds=2)
        place.stop()
        assert (victim / "0123456789abcd42").read_bytes() == b"precious"


def test_s10_a_root_that_is_a_link_is_not_cleaned(place: Place) -> None:
    fill(place, *SMALL)
    (root,) = place.tier.iterdir()
    elsewhere = place.root / "elsewhere"
    root.rename(elsewhere)
    root.symlink_to(elsewhere)
    copies = list(elsewhere.glob("objects/*/*"))
    done = clean(place)
    assert done.returncode != 0
    assert list(elsewhere.glob("objects/*/*")) == copies
