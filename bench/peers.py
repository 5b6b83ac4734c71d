"""Alternatives to Forebay that people use: copy everything first, or mount the data through a cache."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.session import ProgramError, end_all_of
from bench.world import TieringBench
from testbed.testbed import is_mounted

MOUNTED_S = 60.0


def rsync(world: TieringBench, source: Path, target: Path, names: list[str] | None = None) -> float:
    """Copies all of it, or only these names below it, from cold caches; how long that took in seconds.

    The copy stays until all is measured, as tiers do.
    """
    world.drop_caches()
    begun = time.monotonic()
    only = ["--files-from=-"] if names is not None else []
    subprocess.run(["rsync", "-a", *only, f"{source}/", f"{target}/"], input="\n".join(names or ()).encode(), check=True)
    return time.monotonic() - begun


@contextlib.contextmanager
def rclone(directory: Path, source: Path, cache_bytes: int) -> Iterator[Path]:
    """`source` by another name: through an `rclone mount` with a full VFS cache, which it keeps to this size.

    It may take names and attributes for granted, as `immutable` allows Forebay. It looks every second whether the cache
    is too large: by default it looks once a minute, and would keep far more meanwhile. The cache is in `directory`, and
    stays until all is measured, as tiers do.
    """
    place = Path(tempfile.mkdtemp(prefix="rclone-", dir=directory))
    mount, log = place / "mount", place / "log"
    mount.mkdir()
    words = ["rclone", "mount", str(source), str(mount), "--config=/dev/null", "--read-only", "--no-checksum", "--vfs-fast-fingerprint"]
    words += ["--vfs-cache-mode=full", f"--vfs-cache-max-size={cache_bytes}B", "--vfs-cache-max-age=24h", "--vfs-cache-poll-interval=1s"]
    words += [f"--cache-dir={place / 'cache'}", "--dir-cache-time=24h", "--attr-timeout=24h", "--local-no-check-updated"]
    # What configures it otherwise stays away.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RCLONE_")}
    with log.open("wb") as out:
        running = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=clean, start_new_session=True)
    try:
        deadline = time.monotonic() + MOUNTED_S
        while not is_mounted(mount):
            if running.poll() is not None or time.monotonic() > deadline:
                raise ProgramError(f"rclone did not mount: {log.read_text(errors='replace').strip() or 'no answer'}")
            time.sleep(0.05)
        yield mount
    finally:
        # It unmounts by itself, and is given the time for it.
        running.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(timeout=10)
        end_all_of(running)
        if is_mounted(mount):
            subprocess.run(["umount", "-l", mount], check=True)
