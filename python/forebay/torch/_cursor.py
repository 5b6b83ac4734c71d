"""The place of a loader in its epochs: where training is, and which epoch comes next."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import DistributedSampler

from forebay.loader._errors import LoaderError, StateError
from forebay.loader._given import check_epoch
from forebay.loader.dataset import Located
from forebay.torch._draws import Draws
from forebay.torch._order import BegunEpoch, EpochPlace, OrderPlan, check_version
from forebay.torch._plans import Ordering

__all__ = ["EpochCursor"]


class EpochCursor:
    """The place of a loader in its epochs.

    Methods take the generator that the order is drawn from; None for torch's global one.

    Attributes:
        ordering: the arguments that say in which order samples come.
        plan: the order of the epochs.
        place: the place of training, after the batch that was handed out last.
        is_length_fixed: whether the dataset has to keep its length.
    """

    def __init__(
        self,
        ordering: Ordering,
        dataset: Any,  # noqa: ANN401  (by what it has)
        located: Located | None,
        generator: torch.Generator | None,
    ) -> None:
        self.ordering = ordering
        self._dataset = dataset
        self._located = located
        self._identity: str | None = getattr(dataset, "identity", None)
        self.plan: OrderPlan = ordering.plan(dataset, located, generator)
        self.place = EpochPlace()
        self.is_length_fixed = False
        # The place where the next epoch goes on; None if it begins at its beginning.
        self._resume: EpochPlace | None = None
        # The epoch that was begun last, and the place where.
        self._begun: tuple[EpochPlace, BegunEpoch] | None = None

    def left(self, generator: torch.Generator | None) -> int:
        """Returns the batches of this rank that are left in the epoch, or that the next epoch has."""
        return (self.plan if self.place.is_begun else self.plan_now(generator)).left(self.place)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that comes next, and tells it to the samplers. Raises `ValueError` for any other number."""
        epoch = check_epoch(epoch)
        sampler, batches = self.ordering.sampler, self.ordering.batch_sampler
        for one in (sampler, batches, getattr(batches, "sampler", None)):
            if callable(set_epoch := getattr(one, "set_epoch", None)):
                set_epoch(epoch)
        if epoch != self.place.epoch or self._is_through():
            self.place, self._resume = EpochPlace(epoch), None

    def skip(self, batches: int, generator: torch.Generator | None) -> None:
        """Skips batches at the beginning of the next epoch.

        Raises `ValueError` if there are not as many, or a sampler of the user's own makes the order.
        """
        if not self.plan.is_known:
            raise ValueError("what a sampler of your own would give can't be left out: go on by load_state_dict")
        self._settle()
        if self._resume is None:
            self.plan = self.plan_now(generator)
        place = self.coming()
        if batches > (left := self.plan.left(place)):
            raise ValueError(f"batches={batches}: {left} are left of epoch {place.epoch}")
        # What an epoch draws when it begins is drawn now, if it was not before.
        draws = Draws(generator)
        chance = draws.draw() if self._resume is None else draws.peek()
        self.place = self._resume = self.plan.begin(place, chance).place_after(batches)

    def state(self, generator: torch.Generator | None) -> dict[str, Any]:
        """Returns the place of training as plain values."""
        begun = self._begun
        is_begun = begun is not None and begun[0] is self.place
        return self.state_of(begun[1].place_before() if begun is not None and is_begun else self.place, generator)

    def state_of(self, place: EpochPlace, generator: torch.Generator | None) -> dict[str, Any]:
        """Returns a place as plain values."""
        plan = self.plan if place.is_begun else self.plan_now(generator)
        return {**plan.state(place), "dataset": self._identity}

    def load(self, state: Mapping[str, Any], generator: torch.Generator | None) -> None:
        """Goes on from a state; raises `StateError`, and changes nothing, if it is of another dataset or order."""
        check_version(state)
        if state.get("dataset") != self._identity:
            raise StateError("the state is of another dataset than this one, or of one that was made in another way")
        plan = self.plan_now(generator)
        try:
            place = plan.place(state)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"the state is damaged: {type(error).__name__}: {error}") from None
        self.set_epoch(place.epoch)
        self.plan, self._begun = plan, None
        # An epoch for which nothing was drawn begins as any other.
        self.place, self._resume = place, place if place.is_begun else None

    def go_on(self, generator: torch.Generator | None) -> tuple[EpochPlace, bool]:
        """Moves on to the next epoch; returns its place, and whether it goes on from a state or a skip."""
        self._settle()
        resume, self._resume = self._resume, None
        self.place, self._begun = resume or EpochPlace(self.place.epoch), None
        if resume is None:
            self.plan = self.plan_now(generator)
        return self.place, resume is not None

    def has_begun(self, place: EpochPlace, begun: BegunEpoch) -> None:
        """Notes the epoch that was begun at a place."""
        self._begun = place, begun

    def coming(self) -> EpochPlace:
        """Returns the place where the next epoch begins."""
        return self._resume or EpochPlace(self.place.epoch + self._is_through())

    def plan_now(self, generator: torch.Generator | None) -> OrderPlan:
        """Returns the order of an epoch that begins now, over the dataset as long as it is now.

        Raises `LoaderError` if the dataset's length has changed, and has to stay.
        """
        if not self.ordering.has_stale_length(self.plan, self._dataset):
            return self.plan
        if self.is_length_fixed:
            raise LoaderError(
                f"the dataset has {len(self._dataset)} samples, and had {self.plan.samples} when the loader was made; a cache is for "
                "datasets whose length stays: make another loader, or leave out cache="
            )
        plan = self.ordering.plan(self._dataset, self._located, generator, may_be_empty=True)
        # A state may have brought it.
        plan.seed = self.plan.seed
        return plan

    def _is_through(self) -> bool:
        """Returns true if all batches of the epoch were handed out, and none was asked for after the last."""
        if self._resume is not None or self.place.used == 0:
            return False
        try:
            return self.plan.left(self.place) == 0
        except TypeError:
            return False

    def _settle(self) -> None:
        """Sets the epoch that comes next: the one after a finished epoch, or the one that torch's sampler was told."""
        if self._is_through():
            self.place = EpochPlace(self.place.epoch + 1)
        sampler = self.ordering.sampler
        if type(sampler) is DistributedSampler and sampler.epoch != self.place.epoch:
            self.set_epoch(sampler.epoch)
