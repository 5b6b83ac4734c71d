"""Memory over many epochs, of rank and agent: bounded by what was configured, and flat."""

from __future__ import annotations

import contextlib

from bench.loader_bounds import growth
from bench.loader_world import InMemory, LoaderBench, epochs, start
from bench.report import BenchReport, What

CACHED = 0.3
FLAT_MAX = 1.01
MIB = 1 << 20
# The window of a rank that reads for itself: forebay.loader.source.WINDOW_BYTES.
OWN_WINDOW_BYTES = 256 << 20
# What loader and agent may take beside the bytes of samples: code, stacks, tables, batches.
OWN_MIB = 48


def memory(world: LoaderBench, report: BenchReport) -> None:
    """By the agent, and by a rank that reads for itself."""
    agent = world.cache(CACHED)
    configured = {
        "the agent": (agent, agent["memory_bytes"] + world.window_bytes),
        "the rank itself": (None, min(OWN_WINDOW_BYTES, world.bytes)),
    }
    for who, (settings, limit) in configured.items():
        taken: list[float] = []
        of_agent: list[float] = []
        with contextlib.ExitStack() as stack:
            words = epochs("forebay", world.files, world.size, step_ms=0, agent=settings)
            running, here = start(stack, InMemory(), words)
            before = running.first["resident_mib"]
            for number in range(world.size.epochs_of_memory):
                said = running.step(epoch=number)
                of_agent.append(here.agent_mib())
                taken.append(said["resident_mib"] + of_agent[-1] - before)
                report.note_load()
            print(f"memory: read by {who}: done", flush=True)
        scenario = f"memory: {world.size.epochs_of_memory} epochs, read by {who}"
        bound = limit / MIB + OWN_MIB
        each_epoch = ", ".join(f"{each:.0f}" for each in taken)
        note = f"bound {bound:.0f}: {limit / MIB:.0f} are configured, {OWN_MIB} for all else; after each epoch: {each_epoch}"
        what = What(scenario, "memory beyond that before the first epoch, at most", "MiB", bound)
        report.once(what, max(taken), note)
        whole = [each + before for each in taken]
        note = "bound 1: the last quarter of the epochs over the second one, rank and agent together"
        report.once(What(scenario, "growth", "x", FLAT_MAX), growth(whole), note)
        if settings is not None:
            report.once(What(scenario, "of it the agent's", "MiB"), of_agent[-1])
