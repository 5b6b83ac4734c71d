"""Programs that read a twentieth of each shard, whose files belong to somebody else.

The kernel then does not tell what is cached.
"""

from __future__ import annotations

from bench.epochs import FRESHNESS
from bench.report import BenchReport, What
from bench.session import PROGRAMS, ProgramError, run_once, tiered
from bench.whole import folder_bytes
from bench.world import TieringBench

SCENARIO = "part: programs that read 5 % of each shard"
NOBODY = 65534
HOWS = ("read", "seek", "pread", "mmap")
# Ours may lie where only root may look.
PYTHON = "/usr/bin/python3"


def part(world: TieringBench, report: BenchReport) -> None:
    """Each way of reading, in pairs."""
    program = world.place / "read_part.py"
    program.write_bytes((PROGRAMS / program.name).read_bytes())
    program.chmod(0o644)
    quota = 2 * folder_bytes(world.local_shards)
    for how in HOWS:
        words = [PYTHON, str(program), str(world.shards), "--how", how]
        shares: list[float] = []
        for number in range(world.size.runs):
            words_now = [*words, "--seed", str(number + 1)]
            said, untiered = run_once(world, as_nobody(words_now))
            with world.tier(NOBODY) as tier:
                again, mine = run_once(world, as_nobody(tiered(world, tier, quota, FRESHNESS[0], words_now)), tier)
            if said[0]["digest"] != again[0]["digest"]:
                raise ProgramError(f"{how} read other bytes under Forebay")
            shares.append(mine.bytes / untiered.bytes)
            report.note_load()
        report.count(What(SCENARIO, f"{how}: source bytes", "x its own", 1.05, "the program as it is"), shares)


def as_nobody(words: list[str]) -> list[str]:
    """As a user to whom nothing belongs."""
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *words]
