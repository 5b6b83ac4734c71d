"""Every block of commands and settings in docs/guides.md runs and is served from copies."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import support
from tests.guides import slurm
from tests.support import Place

GUIDES = support.ROOT / "docs/guides.md"
FILES = 20
# Reads everything twice, as epochs do; a rank of its own number says what it saw.
TRAIN = """
import hashlib, os
from pathlib import Path

for epoch in range(2):
    files = sorted(Path({source!r}).rglob("*.jpg"))
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
# In one write: ranks share a pipe, and an unbuffered print makes one of each word.
os.write(1, f"{{len(files)}} {{digest}}\\n".encode())
"""


def blocks(heading: str, language: str = "sh") -> list[str]:
    """The fenced blocks below a heading."""
    text = GUIDES.read_text()
    (part,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```", part, re.MULTILINE | re.DOTALL)
    return found


SHELL = ["One node", "torchrun", "PBS"]
RANKS = {"One node": 1, "torchrun": 2, "PBS": 1}


@pytest.fixture
def place() -> Iterator[Place]:
    """A place with a data set and a program."""
    with support.place() as made:
        for number in range(FILES):
            (made.source / f"{number}.jpg").write_bytes(bytes([number]) * 20_000)
        (made.root / "train.py").write_text(TRAIN.format(source=str(made.source)))
        support.settle(made.source)
        yield made


def here(place: Place, block: str) -> str:
    """A block with this place's data and tier."""
    return block.replace("/lustre/imagenet", str(place.source)).replace("/tmp=10G", f"{place.tier}=1G")  # noqa: S108


def environment(place: Place) -> dict[str, str]:
    """As a user has it: the command and this Python on the PATH."""
    path = f"{place.command.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"PATH": path, "PBS_O_WORKDIR": str(place.root), "FOREBAY_TIER": f"{place.tier}=1G"}
    # On a slow machine a minute may pass between two steps of a job.
    return {**place.environment(), **own, "FOREBAY_FRESHNESS": "immutable"}


def records(place: Place) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((place.root / "state/runs").glob("*.json"))]


def test_every_block_is_tested() -> None:
    # What a command prints is fenced without a language.
    written = re.findall(r"^```\w+$", GUIDES.read_text(), re.MULTILINE)
    assert len(written) == len(SHELL) + len(blocks("Slurm")) + len(blocks("For a whole site", "toml"))


@pytest.mark.parametrize("heading", SHELL)
def test_blocks_that_a_shell_runs(place: Place, heading: str) -> None:
    (block,) = blocks(heading)
    words, limit = ["bash", "-c", here(place, block)], support.PROGRAM_S
    done = subprocess.run(words, cwd=place.root, env=environment(place), capture_output=True, text=True, timeout=limit, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == RANKS[heading]
    assert len(set(lines)) == 1
    assert lines[0].startswith(f"{FILES} ")
    (record,) = records(place)
    assert record["counters"]["source_opens"] == 2 * FILES * RANKS[heading]
    assert record["counters"]["handed_over"] >= 1


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    if why := slurm.why_not():
        pytest.skip(why)
    with slurm.cluster() as environment:
        yield environment


@pytest.mark.parametrize("number", range(len(blocks("Slurm"))))
def test_jobs_that_slurm_runs(place: Place, cluster: dict[str, str], number: int) -> None:
    script, out = place.root / "job.sh", place.root / "out"
    script.write_text(here(place, blocks("Slurm")[number]))
    own = {**cluster, **environment(place), "SLURM_CONF": cluster["SLURM_CONF"]}
    words = ["sbatch", "--wait", f"--output={out}", str(script)]
    done = subprocess.run(words, cwd=place.root, env=own, capture_output=True, text=True, timeout=support.PROGRAM_S, check=False)
    said = out.read_text() if out.exists() else ""
    assert done.returncode == 0, done.stderr + said
    # Two ranks, and what the first of them says of its run.
    lines = [line for line in said.splitlines() if re.fullmatch(rf"{FILES} [0-9a-f]{{64}}", line)]
    assert len(lines) == 2
    assert len(set(lines)) == 1
    runs = records(place)
    opens = sum(run["counters"]["source_opens"] for run in runs)
    served = sum(tier["opens"] for run in runs for tier in run["tiers"])
    if "warm" in script.read_text():
        assert (opens - served, served) == (FILES, 4 * FILES), "ranks open copies only"
    else:
        assert opens == 4 * FILES
    place.stop()


def test_a_sites_file_is_read(place: Place, tmp_path: Path) -> None:
    (block,) = blocks("For a whole site", "toml")
    site = tmp_path / "site.toml"
    site.write_text(block.replace("/lustre", str(place.source)).replace("/nvme/scratch=500G", f"{place.tier}=1G"))
    own = {**place.environment(), "FOREBAY_SITE_CONFIG": str(site)}
    done = subprocess.run([str(place.command), "config", "show"], env=own, capture_output=True, text=True, check=True)
    assert f'source = ["{place.source}"]' in done.stdout
    assert f"tier in {site}" in done.stdout
