"""Iterable datasets: torch's own loader, with what else `forebay.torch.DataLoader` takes refused by name."""

from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader

from forebay.torch._keyed import tell_epoch

__all__ = ["IterableLoader"]

ONLY_FOR_MAPS = {
    "seed": "an IterableDataset draws its order itself, and torch seeds its workers: call torch.manual_seed",
    "rank": "an IterableDataset splits itself between ranks: do that in the dataset",
    "world_size": "an IterableDataset splits itself between ranks: do that in the dataset",
    "blocks_at_once": "a block shuffle needs a map-style dataset",
    "cache": "a cache needs to know which sample comes next: start the program with `forebay run`",
    "plan": "a cache needs to know which sample comes next",
    "policy": "a cache needs to know which sample comes next",
    "schedule": "a cache needs to know which sample comes next",
    "hedge_budget": "a cache needs to know which sample comes next",
    "thread_tau": "a cache needs to know which sample comes next",
    "thread_steps": "a cache needs to know which sample comes next",
    "background_fill": "a cache needs to know which sample comes next",
}
"""Options of `forebay.torch.DataLoader` that can't apply to an IterableDataset, with what to do instead."""

TORCHS = {
    "num_workers": 0,
    "pin_memory_device": "",
    "in_order": True,
}
"""Values that torch's loader takes for an option that was left at None."""


class IterableLoader(DataLoader[Any]):
    """Torch's loader over an `IterableDataset`, as `forebay.torch.DataLoader` returns it.

    It has torch's semantics and no others: torch's order, random numbers, workers and exceptions, no `state_dict`, and
    no line at an epoch's end, whatever `report` says. Only the preload library (`forebay run`) reads ahead for it.

    Args:
        dataset: an `IterableDataset`.
        options: the keyword arguments of `forebay.torch.DataLoader`.

    Raises:
        ValueError: an option that can't apply to an `IterableDataset`, or that torch refuses.
    """

    def __init__(self, dataset: Any, options: Mapping[str, Any]) -> None:  # noqa: ANN401  (torch says which ones)
        given = dict(options)
        if given.pop("on_error", "raise") != "raise":
            raise ValueError('on_error="skip": which sample of an IterableDataset failed is not known; skip it in the dataset')
        given.pop("report", None)
        for name, instead in ONLY_FOR_MAPS.items():
            value = given.pop(name, None)
            if value is not None and value is not False and value != ():
                raise ValueError(f"{name}={value!r}: {instead}")
        for name, value in TORCHS.items():
            if given.get(name) is None:
                given[name] = value
        super().__init__(dataset, **given)

    def set_epoch(self, epoch: int) -> None:
        """Calls the dataset's own `set_epoch`, if it has one, as those of Hugging Face `datasets` have."""
        tell_epoch(self.dataset, epoch)
