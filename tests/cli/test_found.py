"""Without any option the command finds sources and tiers, and says what it chose, or that there is nothing to do."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.testbed import SlowFs, have_fuse, slowfs
from tests import support
from tests.cli.conftest import Desk, apart

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts of its own"),
    pytest.mark.skipif(have_fuse() is not None, reason=have_fuse() or ""),
]
PRELOADED = "import os; print('libforebay_preload' in os.environ.get('LD_PRELOAD', ''))"


@pytest.fixture
def shared(desk: Desk) -> Iterator[SlowFs]:
    """A network file system at `net`, the only one of the desk's machine."""
    (desk.root / "net").mkdir()
    support.settle(desk.source)
    with slowfs(desk.source, desk.root / "net", mbps=0, open_ms=0, meta_us=0, read_us=0) as fs:
        desk.prefix = apart(desk.root / "net")
        yield fs


@contextlib.contextmanager
def disk_of(length: int, at: Path, image: Path) -> Iterator[Path]:
    """An empty local disk of a given size."""
    at.mkdir(exist_ok=True)
    quick = ("-T", "largefile4", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", "-J", "size=4")
    with support.in_a_file(at, image, length, "mkfs.ext4", "-q", "-F", "-m0", *quick):
        yield at


@pytest.fixture
def scratch(desk: Desk) -> Iterator[Path]:
    """A disk with room: that on which the tests run may be nearly full."""
    with disk_of(8 << 30, desk.root / "scratch", desk.root / "image") as disk:
        yield disk


def test_where_nothing_is_shared_the_program_runs_untouched(desk: Desk) -> None:
    desk.prefix = apart()
    done = desk.type("run", "--", sys.executable, "-c", PRELOADED)
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert done.stderr.startswith("forebay: nothing to do: no network file system is mounted")
    assert done.stderr.count("\n") == 1
    assert "--source DIR" in done.stderr
    assert desk.type("run", "-q", "--", "true").stderr == ""
    assert not desk.records()


def test_network_file_systems_are_found_under_all_their_names(desk: Desk, shared: SlowFs) -> None:
    assert shared.pid
    (desk.root / "link").symlink_to("net")
    (desk.home / "data").symlink_to(desk.root / "net")
    elsewhere = desk.root / "a/b"
    elsewhere.mkdir(parents=True)
    (elsewhere / "deep").symlink_to("../../net")
    reader = support.WAIT_UNTIL_IDLE
    reader += "for n in range(2):\n    for a in sys.argv[1:]: open(a.split('=')[-1]).read()\n    wait_until_idle()"
    names = ["link/file", f"{desk.home}/data/file", f"--data={elsewhere}/deep/file"]
    done = desk.type("run", "--tier", "tier=64M", "--freshness", "immutable", "--", sys.executable, "-c", reader, *names)
    assert done.returncode == 0, done.stderr
    assert f"serving {desk.root}/net (fuse" in done.stderr
    (record,) = desk.records()
    assert record["settings"]["source"] == {"value": [], "origin": "default"}
    assert set(record["spellings"]) >= {f"{desk.root}/{name}" for name in ("net", "link", "home/data", "a/b/deep")}
    assert record["derived"]["source_opens"] == 6
    assert record["derived"]["tier_opens"] >= 3, "all of the second round, if not more"


def test_a_tier_on_the_network_is_refused(desk: Desk, shared: SlowFs) -> None:
    assert shared.pid
    for tier in ("net", "net/sub", "link"):
        (desk.source / "sub").mkdir(exist_ok=True)
        if tier == "link":
            (desk.root / "link").symlink_to("net/sub")
        line = desk.refuse("run", "--source", "source", "--tier", f"{tier}=1M", "--", "touch", "ran")
        assert "is on a network file system (fuse" in line
        assert "local disk" in line


def test_f11_a_shared_file_system_that_hangs_and_is_not_used_does_no_harm(desk: Desk, shared: SlowFs) -> None:
    shared.hang()
    try:
        done = desk.type("run", "--tier", "tier=64M", "--", "true")
        assert done.returncode == 0
        assert f"serving {desk.root}/net" in done.stderr
    finally:
        shared.resume()


def test_f11_doctor_answers_when_the_source_does_not(desk: Desk, shared: SlowFs) -> None:
    shared.hang()
    try:
        done = desk.type("doctor", "--tier", "tier=64M")
        assert done.returncode == 0
        assert "did not answer within" in done.stdout
    finally:
        shared.resume()


def test_what_an_open_takes_is_what_the_program_waited_for(desk: Desk, shared: SlowFs) -> None:
    shared.set(open_ms=200)
    done = desk.type("run", "-q", "--source", "net", "--tier", "tier=64M", "--", "cat", "net/file")
    assert (done.returncode, done.stdout) == (0, "content"), done.stderr
    derived = desk.records()[-1]["derived"]
    # At most a quarter off what the file system waits at each open.
    assert derived["source_open_median_s"] >= 0.15, derived
    assert desk.type("report").returncode == 0
    assert "to open a file at the source took: median " in (desk.root / "forebay-report.html").read_text()


def test_doctor_tells_the_gain(desk: Desk, shared: SlowFs) -> None:
    shared.set(open_ms=1000)

    def told() -> str:
        done = desk.type("doctor", "--tier", "tier=64M", "--", "cat", "net/file")
        assert done.returncode == 0
        assert f"{desk.root}/net (fuse" in done.stdout
        return done.stdout if "times as long as the tier" in done.stdout else ""

    # A tier that is busy may seem slow, but not each time.
    assert support.wait_until(told, "a gain")


@pytest.mark.parametrize("variable", ["SLURM_TMPDIR", "PBS_JOBFS", "LOCAL_SCRATCH"])
def test_the_schedulers_scratch_comes_first(desk: Desk, scratch: Path, variable: str) -> None:
    done = desk.type("run", "--source", "source", "--", "true", env={variable: str(scratch)})
    assert f"from {scratch} (up to " in done.stderr, done.stderr
    assert f"${variable}" in done.stderr
    (tier,) = desk.records()[-1]["tiers"]
    assert tier["dir"] == str(scratch)
    desk.type("clean")


def test_tmpdir_counts_only_under_a_scheduler(desk: Desk, scratch: Path) -> None:
    env = {"TMPDIR": str(scratch)}
    with_job = desk.type("run", "--source", "source", "--", "true", env=env | {"LSB_JOBID": "1"})
    assert f"from {scratch} (" in with_job.stderr
    assert "$TMPDIR" in with_job.stderr
    without = desk.type("run", "--source", "source", "--", "true", env=env)
    assert "$TMPDIR" not in without.stderr
    desk.type("clean")


def test_scratch_that_is_no_disk_is_passed_over(desk: Desk, scratch: Path, shared: SlowFs) -> None:
    assert shared.pid
    for other in (desk.root / "net", Path("/dev/shm"), desk.root / "nowhere", Path("/proc")):  # noqa: S108
        env = {"SLURM_TMPDIR": str(other), "LOCAL_SCRATCH": str(scratch)}
        assert f"from {scratch} (" in desk.type("run", "--", "true", env=env).stderr
    desk.type("clean")


def test_the_largest_disk_is_found_and_its_tier_does_not_shrink(desk: Desk) -> None:
    with disk_of(4 << 40, desk.root / "disk", desk.root / "image") as disk:
        desk.type("run", "-q", "--source", "source", "--", "cat", "source/file")
        (first,) = desk.records()[-1]["tiers"]
        assert first["dir"] == str(disk)
        assert first["why"].startswith("the largest local disk, ext4")
        assert 0.8 * 0.9 * (4 << 40) * 0.98 < first["quota_bytes"] < 0.8 * 0.9 * (4 << 40)
        # As if it were full of copies.
        with (disk / "filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, 1 << 40)
        desk.type("run", "-q", "--source", "source", "--", "cat", "source/file")
        assert desk.records()[-1]["tiers"][0]["quota_bytes"] == first["quota_bytes"]
        cleaned = desk.type("clean")
        assert f"{disk}/forebay-0: " in cleaned.stdout
        assert {path.name for path in disk.iterdir()} == {"lost+found", "filler"}
        desk.type("run", "-q", "--source", "source", "--", "cat", "source/file")
        assert desk.records()[-1]["tiers"][0]["quota_bytes"] < first["quota_bytes"]
        desk.type("clean")


# Every local disk but the root one is made read-only, and so is what of that is open to all.
READ_ONLY = r"""
mount --bind /tmp /tmp
mount --bind /var/tmp /var/tmp
awk '$5 != "/" && $0 ~ / - (ext|xfs|btrfs|zfs|f2fs|overlay)/ {print $5}' /proc/self/mountinfo | while read -r point; do
  mount -o remount,ro,bind "$point"
done
"""


@pytest.mark.parametrize("mode", ["follow", "idle"])
def test_where_no_disk_can_be_used_the_program_runs_untouched(desk: Desk, mode: str) -> None:
    desk.prefix = apart(then=READ_ONLY)
    words = ["run", "--source", "source", "--prefetch", mode, "--", sys.executable, "-c", PRELOADED]
    done = desk.type(*words, env={"HOME": "/nonexistent"})
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
    assert "nothing to do: no local disk was found" in done.stderr
    assert "--tier DIR=SIZE" in done.stderr


def test_where_no_disk_can_be_used_files_are_read_ahead_only(desk: Desk) -> None:
    desk.prefix = apart(then=READ_ONLY)
    words = ["run", "--source", "source", "--", sys.executable, "-c", PRELOADED]
    done = desk.type(*words, env={"HOME": "/nonexistent"})
    assert (done.returncode, done.stdout) == (0, "False\n"), "nothing of its own can be written: untouched"
    assert "nothing to do: no local disk was found" in done.stderr
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        places = {"HOME": "/nonexistent", "FOREBAY_STATE_DIR": f"{memory}/state", "FOREBAY_RUNTIME_DIR": f"{memory}/runtime"}
        done = desk.type(*words, env=places)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert "large files are read ahead into the page cache, nothing is copied" in done.stderr
    assert "no local disk was found" in done.stderr
    assert "--tier DIR=SIZE" in done.stderr
    refused = desk.type("warm", "--source", "source", "source", env={"HOME": "/nonexistent"})
    assert refused.returncode != 0
    assert "no local disk was found" in refused.stderr
