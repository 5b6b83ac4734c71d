"""For how long a job stands still for a fork, in units of one memcpy of its state. About two minutes on two cores.

Usage: python -m bench.fork_stall [--forks N] [--width N]

A job of one rank trains two square layers with AdamW; the clone of each fork is a program that has just been started. The memcpy is made
by one thread of the job, into touched memory, after the forks. Prints a line for each way: medians, and each fork's stall.
"""

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from torch import nn

import forebay
import forebay.clone as clone

# What the session is told, and whether there are gradients at the point.
WAYS = {
    "copied at the point": ("never", False),
    "copied at the point, gradients too": ("never", True),
    "read where it lies": ("start", False),
    "read where it lies, gradients copied": ("start", True),
}
BATCH = 256
CLONE = "--clone"
MEMCPYS = 5


class Job:
    """Two layers and AdamW."""

    def __init__(self, width: int) -> None:
        self.model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.batch = torch.randn(BATCH, width)

    def session(self, prepare: str = "start") -> clone.Session:
        """Its session, or, in a clone, its parent's state."""
        model, optimizer = self.model, self.optimizer
        return clone.session(
            model=model, optimizer=optimizer, scheduler=None, scaler=None, ema=None, loader=None, job="trunk", prepare=prepare
        )

    def step(self, *, keeps_gradients: bool) -> None:
        """An update."""
        self.optimizer.zero_grad()
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()
        if not keeps_gradients:
            self.optimizer.zero_grad()


def measure(width: int, forks: int, prepare: str, *, keeps_gradients: bool) -> tuple[list[clone.Fork], float]:
    """The forks of a new job, and the seconds of a step without one."""
    job = Job(width)
    session = job.session(prepare)
    step, steps = 0, list[float]()
    for _ in range(forks):
        command = [str(forebay.command()), "clone", "trunk", "--", sys.executable, "-m", "bench.fork_stall", CLONE, "--width", str(width)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            while process.poll() is None:
                began = time.perf_counter()
                job.step(keeps_gradients=keeps_gradients)
                step += 1
                steps.append(time.perf_counter() - began)
                session.point(epoch=0, step=step)
            assert process.stderr
            if process.returncode != 0:
                raise SystemExit(f"no clone: {process.stderr.read()}")
    session.close()
    return session.forks, statistics.median(steps)


def memcpy_s(length: int) -> float:
    """The median of some."""
    source, target = (ctypes.create_string_buffer(length) for _ in range(2))
    taken = []
    for _ in range(1 + MEMCPYS):
        began = time.perf_counter()
        ctypes.memmove(target, source, length)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def mib(length: float) -> str:
    """Bytes as text."""
    return f"{length / (1 << 20):.0f}"


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forks", type=_count, default=5, help="of each way")
    parser.add_argument("--width", type=_count, default=4096, help="of the layers: at 4096 a state has 384 MiB, and 128 MiB of gradients")
    parser.add_argument(CLONE, action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.clone:
        Job(asked.width).session().close()
        return
    with tempfile.TemporaryDirectory(prefix="fb-", dir="/dev/shm") as root:
        os.environ.update(FOREBAY_RUNTIME_DIR=f"{root}/run", FOREBAY_STATE_DIR=f"{root}/state")
        for way, (prepare, keeps_gradients) in WAYS.items():
            forks, step_s = measure(asked.width, asked.forks, prepare, keeps_gradients=keeps_gradients)
            memcpy = memcpy_s(forks[0].length)
            stalls = [fork.stall_s for fork in forks]
            aside = statistics.median(fork.aside for fork in forks)
            print(
                f"{way}: stall {statistics.median(stalls) / memcpy:.2f} memcpys of {mib(forks[0].length)} MiB ({memcpy * 1e3:.0f} ms); "
                f"copied {mib(forks[0].copied)} MiB, aside {mib(aside)} MiB; a step {step_s * 1e3:.0f} ms; "
                f"stalls, ms: {' '.join(f'{stall * 1e3:.1f}' for stall in stalls)}"
            )


if __name__ == "__main__":
    main()
