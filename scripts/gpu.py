"""Runs the tests that need a GPU, those that prove most first, each with a time limit of its own.

Needs nothing but Python and torch.

    python3 scripts/gpu.py [--wheel forebay.whl] [--out gpu.jsonl] [--budget SECONDS]

Appends a line of JSON to the results for each step that has ended, and goes on after one that failed. A later call with
the same results, on the same commit and with the same wheel, runs what has not passed: first what was never run. With
`--wheel` the package is installed into a new virtual environment that sees this Python's packages, without any network.
Exit code 0: each step has passed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import signal
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TAIL_BYTES = 4_000
# A step that has less than this left of the budget is not begun.
LEAST_S = 5.0
INSTALL_S = 120.0
GRACE_S = 5.0

PASSED, FAILED, TIMED_OUT, SKIPPED = "passed", "failed", "timed out", "skipped"


class TestStep(NamedTuple):
    """A command to run, and its time limit in seconds.

    With `is_pytest` one test at least must pass, and none be skipped.
    """

    name: str
    words: tuple[str, ...]
    limit_s: float
    is_pytest: bool = False


def marked(name: str, limit_s: float, where: str, *, of: tuple[str, ...] = (), without: tuple[str, ...] = ()) -> TestStep:
    """Returns a step that runs tests with the mark `gpu`.

    Their names have one of the words in `of`, or none of those in `without`.
    """
    options = ("-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "--durations=5")
    chosen = ("-k", " or ".join(of)) if of else ("-k", f"not ({' or '.join(without)})") if without else ()
    return TestStep(name, (*options, where, *chosen), limit_s, is_pytest=True)


ENVIRONMENT = """
import sys, torch, forebay, forebay.torch, forebay.clone
print(sys.version, torch.__version__, forebay.__file__, forebay.command(), forebay.preload_library(), sep="\\n")
assert torch.cuda.is_available(), "torch sees no GPU"
print(torch.cuda.get_device_name())
"""
P14 = "tests/semantics/test_p14_clones.py"
CLONE, LOADER = "tests/clone/test_gpu.py", "tests/loader/test_gpu.py"
FORKED, STATES = ("forked",), ("equal_and_goes_on", "layout")
# In the order of what they prove: a fork of a whole job on a GPU, batches, states of each kind; then the same in other
# ways.
STEPS = (
    TestStep("environment", ("-c", ENVIRONMENT), 90),
    marked("fork-nccl", 150, f"{P14}::test_p14b_holds_on_a_gpu[digests-nccl]"),
    marked("fork-session", 90, CLONE, of=FORKED),
    marked("loader", 120, LOADER),
    marked("states", 150, CLONE, of=STATES),
    marked("fork-gloo", 150, f"{P14}::test_p14b_holds_on_a_gpu[digests-gloo]"),
    marked("clone-rest", 120, CLONE, without=FORKED + STATES),
    marked("fork-shadow", 150, f"{P14}::test_p14b_holds_on_a_gpu[shadow-nccl]"),
    marked("fork-shadow-gloo", 150, f"{P14}::test_p14b_holds_on_a_gpu[shadow-gloo]"),
)


class Results:
    """Lines of JSON in a file, of which those with this `key` count."""

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        self.key = key

    def known(self) -> dict[str, dict[str, Any]]:
        """Returns the last result of each step; a line that was cut does not count."""
        found: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(FileNotFoundError):
            for line in self.path.read_text().splitlines():
                with contextlib.suppress(ValueError, KeyError):
                    told = json.loads(line)
                    if told["key"] == self.key:
                        found[told["step"]] = told
        return found

    def add(self, **told: object) -> None:
        """Appends a line, and waits until it is on the disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps({"key": self.key, **told}) + "\n")
            file.flush()
            os.fsync(file.fileno())


def in_order(steps: Sequence[TestStep], known: Mapping[str, Mapping[str, Any]]) -> list[TestStep]:
    """Returns the steps that have not passed: those that were never run first, each in the given order."""
    left = [step for step in steps if known.get(step.name, {}).get("status") != PASSED]
    return sorted(left, key=lambda step: step.name in known)


def run(steps: Sequence[TestStep], results: Results, python: str, environment: Mapping[str, str], budget_s: float) -> bool:
    """Runs what has not passed, within `budget_s`; returns whether each step has passed by now."""
    deadline = time.monotonic() + budget_s
    for step in in_order(steps, results.known()):
        left_s = deadline - time.monotonic()
        if left_s < LEAST_S:
            print(f"{step.name}: not run, no time is left", flush=True)
            continue
        told = one(step, python, environment, min(step.limit_s, left_s))
        results.add(**told)
        print(f"{step.name}: {told['status']}, {told['seconds']:.0f} s", flush=True)
        if told["status"] != PASSED:
            print(told["tail"], flush=True)
    known = results.known()
    return all(known.get(step.name, {}).get("status") == PASSED for step in steps)


def one(step: TestStep, python: str, environment: Mapping[str, str], limit_s: float) -> dict[str, Any]:
    """Runs a step, and ends it with all that it has started when its time is over; returns what is written about it."""
    begun = time.monotonic()
    with tempfile.TemporaryFile() as out:
        words = [python, *step.words]
        running = subprocess.Popen(
            words, cwd=ROOT, env=dict(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        try:
            code: int | None = running.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(running)
        out.seek(0, os.SEEK_END)
        out.seek(max(0, out.tell() - TAIL_BYTES))
        tail = out.read().decode(errors="replace")
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", tail.splitlines()[-1] if tail else "")}
    return {
        "step": step.name,
        "status": status(step, code, counts),
        "code": code,
        "seconds": round(time.monotonic() - begun, 1),
        "limit_s": round(limit_s, 1),
        "counts": counts,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "tail": tail,
    }


def status(step: TestStep, code: int | None, counts: Mapping[str, int]) -> str:
    """Returns how a step came out. Tests that are skipped prove nothing."""
    if code is None:
        return TIMED_OUT
    if code != 0:
        return FAILED
    return SKIPPED if step.is_pytest and (counts.get("skipped") or not counts.get("passed")) else PASSED


def end(running: subprocess.Popen[bytes]) -> None:
    """Ends what is left of a step's process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(timeout=GRACE_S)
            if number == signal.SIGKILL:
                return


@contextlib.contextmanager
def installed(wheel: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Installs a wheel into a virtual environment that sees this Python's packages.

    Gives its Python, and the environment for tests.

    Raises:
        SystemExit: it can't be installed; with what pip said.
    """
    with tempfile.TemporaryDirectory(prefix="forebay-gpu-") as place:
        venv = Path(place) / "venv"
        python = venv / "bin/python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=INSTALL_S)
        (packages,) = venv.glob("lib/python3*/site-packages")
        # This Python may be a virtual environment itself, whose packages are no system's.
        (packages / "others.pth").write_text("\n".join([*site.getsitepackages(), site.getusersitepackages()]) + "\n")
        words = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps", str(wheel)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        if done.returncode != 0:
            sys.exit(f"gpu.py: {wheel} can't be installed: {done.stderr.strip()}")
        # Where tests look for what cargo has built.
        target = Path(place) / "target"
        for name, built in (
            ("release/forebay", venv / "bin/forebay"),
            ("preload/libforebay_preload.so", venv / "lib/forebay/libforebay_preload.so"),
            ("preload/libforebay_audit.so", venv / "lib/forebay/libforebay_audit.so"),
        ):
            (target / name).parent.mkdir(parents=True)
            (target / name).symlink_to(built)
        own = {
            "CARGO_TARGET_DIR": str(target),
            "PATH": os.pathsep.join([str(venv / "bin"), os.environ.get("PATH", "")]),
            # Before another installation of the same package.
            "PYTHONPATH": os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")])),
            "PYTHONUNBUFFERED": "1",
        }
        yield str(python), {**os.environ, **own}


def key_of(wheel: Path | None) -> str:
    """Returns what the results depend on: the commit, and the wheel's checksum."""
    done = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    commit = done.stdout.strip() or "no commit"
    return f"{commit} {hashlib.sha256(wheel.read_bytes()).hexdigest()[:12] if wheel else 'as installed'}"


def main() -> int:
    """Runs the steps, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, help="install and test this wheel (default: the package that this Python finds)")
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu.jsonl", help="the results (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=3600, metavar="SECONDS", help="time for all of it (default: %(default).0f)")
    args = parser.parse_args()
    begun = time.monotonic()
    if args.wheel and not args.wheel.is_file():
        parser.error(f"{args.wheel}: there is no such wheel; `make build` leaves one in dist/")
    results = Results(args.out, key_of(args.wheel))
    with contextlib.ExitStack() as stack:
        python, environment = sys.executable, dict(os.environ)
        if args.wheel:
            python, environment = stack.enter_context(installed(args.wheel.resolve()))
        passed = run(STEPS, results, python, environment, args.budget - (time.monotonic() - begun))
    print(f"results: {args.out}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
