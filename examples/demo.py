"""Trains on real images from a slow file system, without and with Forebay, and prints both side by side.

`train_imagefolder.py` is the program: it knows nothing of Forebay, nor of this file. The slow file system is the test
bed's: a FUSE mount that makes each operation wait as a busy shared server would, and counts on its own side what it was
asked for.
"""

import argparse
import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import forebay
from testbed.datasets import digits, fashion_mnist
from testbed.testbed import TestbedError, drop_caches, have_fuse, slowfs

EPOCHS = 3
TIER_SIZE = "256M"
# A file costs a lookup, an open and a read: about 2.5 ms, as on a shared file system that others use too.
MBPS, META_US, READ_US = 50, 1000, 500
TRAIN = Path(__file__).with_name("train_imagefolder.py")


@dataclass(frozen=True)
class Counts:
    """Requests that reached the source's server side."""

    bytes_read: int
    operations: int

    def __sub__(self, before: "Counts") -> "Counts":
        return Counts(self.bytes_read - before.bytes_read, self.operations - before.operations)

    @staticmethod
    def of(stats: Mapping[str, int]) -> "Counts":
        """All operations alike, whatever they cost."""
        return Counts(stats["bytes_read"], sum(count for name, count in stats.items() if not name.startswith("bytes_")))


@dataclass(frozen=True)
class DemoSource:
    """Where the images lie, and who counts there: nobody on a plain directory."""

    path: Path
    count: Callable[[], Counts] | None


@dataclass(frozen=True)
class DemoEpoch:
    """An epoch as the training script told it, or all that came before the first."""

    seconds: float
    learned: str
    source: Counts | None


def main() -> int:
    """Exit code 0: both runs trained, and learned the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000, help="how many of Fashion-MNIST's images to train on (default: %(default)s)")
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        with temporary("/var/tmp") as place, temporary("/dev/shm") as shared:  # noqa: S108
            return demonstrate(place, shared, args.images)
    except KeyboardInterrupt:
        print("\ninterrupted; what was made is removed", file=sys.stderr)
        return 130


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    # Once: clearing up takes seconds, and a second Ctrl-C would leave a mount behind.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextlib.contextmanager
def temporary(under: str) -> Iterator[Path]:
    """A directory that is gone afterwards, also when an agent is just clearing up in it."""
    place = Path(tempfile.mkdtemp(prefix="forebay-demo-", dir=under))
    try:
        yield place
    finally:
        deadline = time.monotonic() + 10
        while place.exists() and time.monotonic() < deadline:
            shutil.rmtree(place, ignore_errors=True)
            time.sleep(0.05)


def demonstrate(place: Path, shared: Path, images: int) -> int:
    """Everything that it makes on disk is under `place`, and the agent's shared memory under `shared`."""
    data = prepare(place, images)
    cold = can_drop_caches()
    with served_slowly(data, place) as source:
        explain(source, cold)
        train = [sys.executable, str(TRAIN), "--epochs", str(EPOCHS), str(source.path)]
        tier = place / "tier"
        tier.mkdir()
        with_forebay = [str(forebay.command()), "run", "--source", str(source.path), "--tier", f"{tier}={TIER_SIZE}", "--", *train]
        environment = {**os.environ, "XDG_STATE_HOME": str(place / "state"), "FOREBAY_RUNTIME_DIR": str(shared)}
        environment.pop("FOREBAY", None)
        print("\nwithout Forebay: python train_imagefolder.py")
        without, _ = run(train, environment, source, cold)
        print("\nwith Forebay: forebay run -- python train_imagefolder.py")
        tiered, said = run(with_forebay, environment, source, cold)
    print_table(without, tiered)
    print(f"\nwhat Forebay says of its run:\n{said.rstrip()}")
    return conclude(without, tiered)


def prepare(place: Path, images: int) -> Path:
    """Real images as PNG files, one directory a class."""
    data = place / "images"
    print(f"preparing {images:,} images of Fashion-MNIST as PNG files ...", flush=True)
    try:
        fashion_mnist(data, limit=images)
    except (OSError, TestbedError) as error:
        print(f"Fashion-MNIST cannot be had here ({error}); scikit-learn's digits instead")
        shutil.rmtree(data, ignore_errors=True)
        digits(data)
    return data


@contextlib.contextmanager
def served_slowly(data: Path, place: Path) -> Iterator[DemoSource]:
    """The data behind the slow file system, where FUSE is to be had."""
    if reason := have_fuse():
        print(f"no slow file system: {reason}")
        yield DemoSource(data, None)
        return
    mount = place / "mnt"
    mount.mkdir()
    with slowfs(data, mount, mbps=MBPS, meta_us=META_US, open_ms=META_US / 1000, read_us=READ_US) as fs:
        yield DemoSource(mount, lambda: Counts.of(fs.stats()))


def can_drop_caches() -> bool:
    """Root in a machine that lets it."""
    try:
        drop_caches()
    except OSError:
        return False
    return True


def explain(source: DemoSource, cold: bool) -> None:
    """Says which measurement follows, and what it is worth."""
    files = sum(len(names) for _, _, names in os.walk(source.path))
    if source.count:
        print(f"{files:,} files on {source.path}; a name or an open takes {META_US / 1000:g} ms, a read {READ_US / 1000:g} ms")
    else:
        print(f"{files:,} files in {source.path}, a plain directory: as fast as a tier, so there is nothing to gain.")
        print("The figures below show what Forebay costs, and nobody counts at the source.")
    if cold:
        print("The kernel's caches are dropped before each run and after each epoch, in both runs alike: the data of a real job")
        print("does not fit in memory, and these few megabytes would.")
    elif source.count:
        print("Without root the kernel's caches are kept: from epoch 2 on, both runs may find bytes in memory, as a job whose data fits")
        print("in memory would. Names and opens still go to the source.")


def run(command: list[str], environment: Mapping[str, str], source: DemoSource, cold: bool) -> tuple[list[DemoEpoch], str]:
    """One training run: its stages, and what it wrote to standard error.

    Raises:
        SystemExit: it failed, with its own words.
    """
    if cold:
        drop_caches()
    with tempfile.TemporaryFile("w+") as errors:
        # A session of its own, so that everything that it starts can be ended together.
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
        try:
            stages = list(follow(process, source, cold))
            code = process.wait()
        finally:
            end(process)
        errors.seek(0)
        said = errors.read()
    if code != 0 or len(stages) != EPOCHS + 1:
        raise SystemExit(f"the training failed with exit code {code}:\n{said}")
    return stages, said


def follow(process: "subprocess.Popen[bytes]", source: DemoSource, cold: bool) -> Iterator[DemoEpoch]:
    """Cuts the run into stages at the lines that the script prints."""
    before, start = source.count and source.count(), time.monotonic()
    for line in lines(process, source, before):
        now = source.count and source.count()
        since = now - before if now and before else None
        print(f"  {line}", flush=True)
        if epoch := re.match(r"epoch \d+: ([\d.]+) s, .* images/s, (.*)", line):
            if cold:
                drop_caches()
            yield DemoEpoch(float(epoch[1]), epoch[2], since)
        else:
            yield DemoEpoch(time.monotonic() - start, line, since)
        before = now


def lines(process: "subprocess.Popen[bytes]", source: DemoSource, first: Counts | None) -> Iterator[str]:
    """Lines of standard output as they come; in between, on a terminal, how far the source has been read."""
    assert process.stdout
    rest = b""
    while True:
        if not select.select([process.stdout], [], [], 0.5)[0]:
            if source.count and first and sys.stdout.isatty():
                print(f"  ... {(source.count() - first).operations:,} operations at the source\r", end="", flush=True)
            continue
        piece = os.read(process.stdout.fileno(), 65536)
        if not piece:
            return
        *whole, rest = (rest + piece).split(b"\n")
        if sys.stdout.isatty():
            print("\x1b[K", end="")
        yield from (line.decode() for line in whole)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ends the run's whole session, if it was interrupted."""
    if process.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
            return


def print_table(without: list[DemoEpoch], tiered: list[DemoEpoch]) -> None:
    """Both runs, stage by stage."""
    print(f"\n{'':7} {'without Forebay':^38} | {'with Forebay':^38}".rstrip())
    heads = f"{'time':>8} {'source bytes':>14} {'operations':>12}"
    print(f"{'epoch':7} {heads:>38} | {heads:>38}")
    for number, stages in enumerate(zip(without, tiered, strict=True)):
        print(f"{number or 'start':<7} " + " | ".join(f"{cells(stage):>38}" for stage in stages))
    print("(start: from the command to the first epoch, with Python's own start and the listing of the directories)")


def cells(stage: DemoEpoch) -> str:
    """Time, bytes and operations; dashes where nobody counted."""
    bytes_read, operations = (f"{stage.source.bytes_read:,}", f"{stage.source.operations:,}") if stage.source else ("-", "-")
    return f"{stage.seconds:6.1f} s {bytes_read:>14} {operations:>12}"


def conclude(without: list[DemoEpoch], tiered: list[DemoEpoch]) -> int:
    """The sentence to take away."""
    if [stage.learned for stage in without] != [stage.learned for stage in tiered]:
        print("\nThe two runs did not learn the same: Forebay must not change what a program reads. Please report this.")
        return 1
    slow, fast = (sum(stage.seconds for stage in stages[2:]) for stages in (without, tiered))
    counts = [[stage.source.operations for stage in stages[2:] if stage.source] for stages in (without, tiered)]
    asked = f", with {sum(counts[1]):,} operations at the source instead of {sum(counts[0]):,}" if counts[0] else ""
    print(f"\nAfter the first epoch the same program took {fast:.1f} s instead of {slow:.1f} s ({slow / fast:.1f} times as fast){asked};")
    print("loss and accuracy are the same to the last digit in every epoch.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
