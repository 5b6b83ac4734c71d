"""The lines of docs/fork.md about clones on other hosts, typed as they stand there."""

import contextlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import forebay
from tests import support
from tests.clone.forks import CloneNode, node, told, training
from tests.clone.test_hosts import RANKS, UNTIL_FORKED, finished
from tests.clone.test_many_hosts import free_port

GUIDE = support.ROOT / "docs/fork.md"
HEADING = "## Clones on other hosts"


def shown(begins: str) -> str:
    """The only line of the guide's part that begins so."""
    part = GUIDE.read_text().partition(f"\n{HEADING}\n")[2].partition("\n## ")[0]
    (line,) = re.findall(rf"^    ({re.escape(begins)}.*)$", part, re.MULTILINE)
    return str(line)


def typed(line: str, **instead: str) -> list[str]:
    """Words of a line. This host is in place of all that are named."""
    words = re.sub(r"\bnode\d\b", "127.0.0.1", line)
    for word, other in {"forebay": str(forebay.command()), "train.py": "-m tests.clone.train", **instead}.items():
        words = re.sub(rf"(?<!\S){re.escape(word)}(?!\S)", other, words)
    return shlex.split(words)


def run(there: CloneNode, home: CloneNode, words: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command on a host that shares its home directory, and so its tickets, with another one."""
    environment = {**there.environment, "FOREBAY_STATE_DIR": home.own["FOREBAY_STATE_DIR"]}
    return subprocess.run(words, env=environment, cwd=support.ROOT, capture_output=True, text=True, timeout=support.PROGRAM_S, check=False)


def like(line: str) -> str:
    """A pattern for a line of output, whose numbers and hosts differ."""
    pattern = re.sub(r"node\d", ".*", re.escape(line)).replace(re.escape("..."), ".*")
    return re.sub(r"\d+", r"\\d+", pattern)


@contextlib.contextmanager
def serving(here: CloneNode) -> Iterator[str]:
    """The guide's server, and its first line."""
    words = typed(shown("forebay clone serve trunk"))
    with subprocess.Popen(words, env=here.environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            yield server.stdout.readline().rstrip("\n")
        finally:
            server.terminate()


def test_the_lines_of_the_guide_fork_a_job_to_another_host() -> None:
    launcher = f"{sys.executable} -m torch.distributed.run --standalone"
    with node() as here, node() as there, training(here, [*RANKS, UNTIL_FORKED]) as parent, serving(here) as first:
        assert re.fullmatch(like(shown("serving trunk at")), first)
        done = run(there, here, typed(shown("forebay clone trunk --from node1 -- "), torchrun=launcher))
        assert done.returncode == 0, done.stderr
        assert re.search(like(shown("forebay: this is trunk.1")), done.stderr)
        parents, clones = told(finished(parent)), told(done.stdout)
    are_alike(parents, clones)


def test_the_line_of_the_guide_for_several_hosts_makes_one_clone() -> None:
    line = shown("forebay clone trunk --from node1 --group")
    instead = {"torchrun": f"{sys.executable} -m torch.distributed.run", "...": f"--master-port {free_port()} --nproc-per-node 1"}
    with node() as here, node() as there, node() as third, training(here, [*RANKS, UNTIL_FORKED]) as parent, serving(here):

        def clone(number: int, host: CloneNode) -> subprocess.CompletedProcess[str]:
            words = typed(line, **instead)
            words[words.index("--node-rank") + 1] = str(number)
            return run(host, here, words)

        with ThreadPoolExecutor() as threads:
            done = list(threads.map(clone, range(2), [there, third]))
        assert all(one.returncode == 0 for one in done), [one.stderr for one in done]
        parents, clones = told(finished(parent)), told("".join(one.stdout for one in done))
    are_alike(parents, clones)


def are_alike(parents: list[dict[str, Any]], clones: list[dict[str, Any]]) -> None:
    """Asserts that the ranks of a clone went on as their parents did."""
    assert [clone["rank"] for clone in clones] == [parent["rank"] for parent in parents]
    assert [clone["digests"] for clone in clones] == [parent["digests"] for parent in parents]
    assert all(clone["losses"].items() <= parent["losses"].items() for clone, parent in zip(clones, parents, strict=True))
