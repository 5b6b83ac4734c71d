"""Figures of `make papers-lobster-nodes` from the lines of its ranks."""

from typing import Any

import pytest

from papers.lobster_nodes import EPOCHS, RANKS, STEP_MS, WarmEpochs

NODES = 2
TOTAL = 1000


def lines(waits_s: list[list[float]], source_bytes: list[list[int]]) -> list[dict[str, Any]]:
    """Returns the lines of all ranks: waits by rank, equal in each epoch, and bytes of the source by epoch and rank."""
    return [
        {"rank": rank, "epoch": epoch, "waits_s": waits_s[rank], "figures": {"source_bytes": source_bytes[epoch][rank]}}
        for rank in reversed(range(NODES * RANKS))
        for epoch in range(EPOCHS)
    ]


def test_a_warm_epoch_is_told_by_its_slowest_ranks_and_the_bytes_of_each_node_once() -> None:
    waits = [[0.0, 0.5, 0.0], [0.0, 0.0, 0.0], [0.0, 0.25, 0.0], [0.0, 0.0, 0.0]]
    told = [[600, 500, 390, 400], [700, 700, 500, 500], [790, 800, 600, 600]]
    found = WarmEpochs.of(lines(waits, told), NODES, TOTAL)
    assert found.seconds == pytest.approx(3 * STEP_MS / 1000 + 0.5)
    assert found.imbalanced == pytest.approx(1 / 3)
    # 400 of 2,000 bytes were read from the source in two epochs.
    assert found.hits == pytest.approx(0.8)


def test_a_rank_that_went_through_fewer_steps_is_refused() -> None:
    waits = [[0.0, 0.0], [0.0, 0.0], [0.0], [0.0, 0.0]]
    with pytest.raises(ValueError, match="zip"):
        WarmEpochs.of(lines(waits, [[0] * 4] * EPOCHS), NODES, TOTAL)
