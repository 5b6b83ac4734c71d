"""Grain, the real one: its sources and its map-style datasets are datasets of the loader as they are."""

import importlib.util
from typing import Any

import pytest
from torch.utils.data import BatchSampler, DistributedSampler

from forebay.torch import DataLoader
from tests.loader.data import Indices

if importlib.util.find_spec("grain") is None:
    pytest.skip("needs grain: uv sync --group frameworks", allow_module_level=True)

import grain


@pytest.mark.parametrize("workers", [0, 2])
def test_sources_and_map_style_datasets_are_taken_as_they_are(workers: int) -> None:
    doubled = grain.MapDataset.range(0, 46, 2)
    mapped = grain.MapDataset.source(range(23)).map(lambda number: 2 * number)
    source = grain.sources.RangeDataSource(0, 46, 2)
    sampler: DistributedSampler[Any] = DistributedSampler(Indices(23), 2, 1, seed=4)
    wanted = [[2 * index for index in batch] for batch in BatchSampler(sampler, 3, drop_last=False)]
    for dataset in (doubled, mapped, source):
        loader = DataLoader(dataset, 3, shuffle=True, seed=4, rank=1, world_size=2, num_workers=workers, report=False)
        assert [batch.tolist() for batch in loader] == wanted
