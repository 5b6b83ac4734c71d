"""Throughput of decoding by number of threads: photographs in memory, decoded, or by timed waits.

One JSON line: samples a second with each number of threads, and the processor's seconds for a sample.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
import time
from pathlib import Path

import torch
from photographs import Photographs
from steps import say


def main() -> int:
    """Returns exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root")
    parser.add_argument("--threads", type=int, nargs="+", required=True)
    parser.add_argument("--seconds", type=float, required=True, help="of each number of threads")
    parser.add_argument("--wait-us-a-kb", type=float, help="decoding as a timed wait (default: decode)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dataset = Photographs(args.root, None if args.wait_us_a_kb is None else args.wait_us_a_kb * 1e-9)
    samples = [memoryview(Path(dataset.locate(i).path).read_bytes()) for i in range(min(len(dataset), 200))]
    # The first one loads what decoding needs.
    rate(dataset, samples, 1, 0.0)
    begun_cpu_s, decoded, rates = time.process_time(), 0, []
    for threads in args.threads:
        count, seconds = rate(dataset, samples, threads, args.seconds)
        decoded += count
        rates.append(count / seconds)
    say(threads=args.threads, rates=rates, cpu_s=(time.process_time() - begun_cpu_s) / decoded)
    return 0


def rate(dataset: Photographs, samples: list[memoryview], threads: int, seconds: float) -> tuple[int, float]:
    """Returns the samples that some threads decode, and the seconds that it took."""
    counts = [0] * threads
    begun = time.monotonic()

    def decode(which: int) -> None:
        for sample in itertools.cycle(samples):
            if time.monotonic() - begun > seconds:
                return
            dataset.decode(sample, 0, None)
            counts[which] += 1

    running = [threading.Thread(target=decode, args=(which,)) for which in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return sum(counts), time.monotonic() - begun


if __name__ == "__main__":
    sys.exit(main())
