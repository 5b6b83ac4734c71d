"""The order of samples and batches in each epoch, and the place where an epoch goes on."""

import hashlib
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol, cast

from forebay import _core
from forebay.loader._batches import SampleBatch
from forebay.loader._errors import StateError
from forebay.loader._given import EPOCHS_END
from forebay.loader.order import Order
from forebay.torch._draws import Draws

__all__ = ["BegunEpoch", "ComputedOrder", "EpochPlace", "OrderPlan", "SamplerOrder", "check_version"]

VERSION = 1


@dataclass(frozen=True)
class EpochPlace:
    """A place in an epoch.

    Attributes:
        epoch: number of the epoch.
        used: samples of the permutation that all ranks together have had, without padding; under a sampler of the
            user's own, batches that this rank has had.
        seed: seed of the order; None if it is yet to be drawn.
        chance: seed of the samples' own random numbers; None if it is yet to be drawn.
        digest: digest of the indices that this rank has had, under a sampler of the user's own.
        generator: state of the loader's `generator=` when the epoch's order was drawn from it; "" if it was not.
    """

    epoch: int = 0
    used: int = 0
    seed: int | None = None
    chance: int | None = None
    digest: str = ""
    generator: str = ""

    @property
    def is_begun(self) -> bool:
        """True if some sample of the epoch was handed out, or a number was drawn for the epoch."""
        return self.used > 0 or self.chance is not None or self.seed is not None


class BegunEpoch(Protocol):
    """An epoch, from a place on, of one rank."""

    @property
    def order(self) -> Order | None:
        """The order of all ranks; None if it is unknown. May draw the order's seed."""

    def batches(self) -> Iterator[SampleBatch]:
        """Yields the batches of this rank. The first may draw the order's seed, or whatever a sampler draws."""

    def place_after(self, batches: int) -> EpochPlace:
        """Returns the place where others can go on after this rank has had `batches` batches."""

    def place_before(self) -> EpochPlace:
        """Returns the place at which it begins, with the seed of its order, drawn or to be drawn. Draws nothing."""

    def padding_of(self, iteration: int) -> int:
        """Returns the samples at the end of a batch that are repeated, since some rank has one more."""


class OrderPlan(ABC):
    """The order of all epochs.

    Attributes:
        is_known: whether the order of all ranks is known.
        is_empty: whether an epoch has no batch.
        samples: samples of the dataset.
        batch: samples of a batch; 0 if a sampler makes the batches.
        rank: number of this rank.
        world: number of ranks.
        seed: seed of all epochs; None if each draws its own.
    """

    is_known: bool
    is_empty: bool

    def __init__(self, samples: int, batch: int, rank: int, world: int, seed: int | None) -> None:
        self.samples, self.batch, self.rank, self.world, self.seed = samples, batch, rank, world, seed

    @abstractmethod
    def __len__(self) -> int:
        """Returns the batches of a whole epoch of this rank."""

    @abstractmethod
    def left(self, place: EpochPlace) -> int:
        """Returns the batches of this rank from a place on; raises `TypeError` if a custom sampler has no length."""

    @abstractmethod
    def begin(self, place: EpochPlace, chance: int) -> BegunEpoch:
        """Begins an epoch at a place; `chance` seeds the samples' random numbers if the place has no seed for them."""

    def state(self, place: EpochPlace) -> dict[str, Any]:
        """Returns a place as plain values."""
        place = self._seeded(place)
        common = {"version": VERSION, "epoch": place.epoch, "chance": place.chance, "length": self.samples}
        return common | self._own_state(place)

    @abstractmethod
    def place(self, state: Mapping[str, Any]) -> EpochPlace:
        """Returns the place of a state; raises `StateError` if the state is of another order or dataset."""

    @abstractmethod
    def _own_state(self, place: EpochPlace) -> dict[str, Any]:
        """Returns the part of a place that is of this kind of order."""

    def _seeded(self, place: EpochPlace, chance: int | None = None) -> EpochPlace:
        """Returns a place with its epoch's seeds, as far as they are known.

        `chance` is used if neither the plan nor the place has one.
        """
        if self.seed is not None:
            return replace(place, seed=self.seed, chance=self.seed)
        return replace(place, chance=chance if place.chance is None else place.chance)


class ComputedOrder(OrderPlan):
    """The order of `DistributedSampler`, or with a seed that is drawn each epoch that of `RandomSampler`.

    Args:
        samples, batch, rank, world, seed: see `OrderPlan`.
        shuffle: whether the dataset is permuted.
        blocks: ends of the dataset's blocks, and the number that are mixed at a time; None if it is permuted as a
            whole.
        draws: draws the seed of an epoch's order.
        drop_last: `drop_last` of the sampler, and of the loader.
        may_be_empty: whether an epoch may be without a batch.

    Raises:
        ValueError: the numbers fit no order.
    """

    is_known = True

    def __init__(
        self,
        samples: int,
        batch: int,
        rank: int,
        world: int,
        *,
        shuffle: bool,
        seed: int | None,
        draws: Draws,
        drop_last: tuple[bool, bool],
        blocks: tuple[list[int], int] | None = None,
        may_be_empty: bool = False,
    ) -> None:
        super().__init__(samples, batch, rank, world, seed)
        self.shuffle, self.draws, self.drop_last = shuffle, draws, drop_last
        self.is_empty = may_be_empty and samples < (batch * world if any(drop_last) else 1)
        self._blocks_digest = None if blocks is None else hashlib.blake2b(repr(blocks).encode(), digest_size=8).hexdigest()
        if self.is_empty:
            return
        self.deal = _core.DatasetDeal(samples, world, batch, *drop_last)
        self.blocks = None if blocks is None else _core.BlockOrder(self.deal, *blocks)

    def __len__(self) -> int:
        return 0 if self.is_empty else self.deal.iterations

    def left(self, place: EpochPlace) -> int:
        try:
            return _core.DatasetDeal(max(0, self.samples - place.used), self.world, self.batch, *self.drop_last).iterations
        except ValueError:
            # Too few for a batch of every rank.
            return 0

    def begin(self, place: EpochPlace, chance: int) -> "_ComputedEpoch":
        return _ComputedEpoch(self, self._seeded(place, chance))

    def _own_state(self, place: EpochPlace) -> dict[str, Any]:
        return {
            "samples": place.used,
            "seed": place.seed,
            "drawn": self.seed is None,
            "shuffle": self.shuffle,
            "blocks": self._blocks_digest,
        }

    def place(self, state: Mapping[str, Any]) -> EpochPlace:
        """See `OrderPlan.place`. A seed that was given once, and is not now, is taken from the state."""
        _check(state, "samples", "its sampler's; this loader has an order of its own: give it the same sampler")
        _same(state, "length", self.samples, "samples of the dataset")
        _same(state, "shuffle", self.shuffle, "shuffle")
        _same(state, "blocks", self._blocks_digest, "the dataset's blocks, and how many are mixed at once")
        seed = int(state["seed"]) if self.seed is None and not state["drawn"] else self.seed
        if seed is not None:
            if state["drawn"]:
                raise StateError(f"the state's order was drawn from torch's generator: go on with it on one rank, and without seed={seed}")
            _same(state, "seed", seed, "seed")
        # Padding is not counted, nor is what is dropped: no place is beyond the last sample.
        if (used := _counted(state, "samples")) > self.samples:
            raise ValueError(f"samples={used}, and an epoch has {self.samples}")
        place = EpochPlace(_counted(state, "epoch"), used, state["seed"], state["chance"])
        # Only now: a state that is refused changes nothing.
        self.seed = seed
        return place


class _ComputedEpoch:
    def __init__(self, plan: ComputedOrder, place: EpochPlace) -> None:
        self._plan = plan
        self._place = place
        self._order: Order | None = None
        # The seed is known, and will be drawn once more when the epoch begins: so the generator gives afterwards what
        # it gives without us.
        self._is_to_be_drawn = False

    @property
    def order(self) -> Order:
        if self._order is None:
            plan, place = self._plan, self._place
            if place.seed is None:
                self._place = place = replace(place, seed=plan.draws.draw() if plan.shuffle else 0)
            elif self._is_to_be_drawn:
                plan.draws.draw()
            # A seed that was drawn is one epoch's; one that was given is that of all.
            is_drawn = plan.seed is None
            seed = cast("int", place.seed) % 2**64
            number = 0 if is_drawn else place.epoch
            if plan.blocks is not None:
                epoch = plan.blocks.epoch(seed, number, place.used)
            else:
                epoch = _core.RestOfEpoch(plan.deal, plan.shuffle, seed, number, place.used)
            self._order = Order(
                world=plan.world, rank=plan.rank, batch_size=plan.batch, number=number, is_drawn=is_drawn, used=place.used, epoch=epoch
            )
        return self._order

    def batches(self) -> Iterator[SampleBatch]:
        order, chance = self.order, cast("int", self._place.chance) % 2**64
        for iteration in range(len(order)):
            yield SampleBatch(iteration, order.batch(iteration), chance, self._place.epoch)

    def place_after(self, batches: int) -> EpochPlace:
        # Asked for first: it may draw the seed that the place then has.
        used = self.order.epoch.used_after(batches)
        return replace(self._place, used=used)

    def place_before(self) -> EpochPlace:
        if self._place.seed is None:
            self._is_to_be_drawn = self._plan.shuffle
            self._place = replace(self._place, seed=self._plan.draws.peek() if self._plan.shuffle else 0)
        return self._place

    def padding_of(self, iteration: int) -> int:
        return self.order.epoch.padding_of(self._plan.rank, iteration)


class SamplerOrder(OrderPlan):
    """The order of a sampler of the user's own, which knows of its ranks itself.

    Args:
        sampler: sampler of indices, or of lists of them if `batch` is 0.
        samples, batch, rank, world, seed: see `OrderPlan`.
        drop_last: whether a last batch that is not full is left out.
        is_batching: False: the sampler's indices are asked for one by one, and those that are lists in one call each.
        generator: draws the sampler's order; None for a sampler of the user's own.
    """

    is_known = False
    is_empty = False

    def __init__(
        self,
        sampler: Iterable[Any],
        samples: int,
        batch: int,
        rank: int,
        world: int,
        *,
        seed: int | None,
        drop_last: bool,
        is_batching: bool = True,
        generator: Draws | None = None,
    ) -> None:
        super().__init__(samples, batch, rank, world, seed)
        self.sampler, self.drop_last, self.is_batching, self.generator = sampler, drop_last, is_batching, generator

    def __len__(self) -> int:
        # What has no length says so itself.
        length = len(cast("Sized", self.sampler))
        if self.batch == 0:
            return length
        return length // self.batch if self.drop_last else -(-length // self.batch)

    def left(self, place: EpochPlace) -> int:
        return max(0, len(self) - place.used)

    def begin(self, place: EpochPlace, chance: int) -> "_SamplerEpoch":
        return _SamplerEpoch(self, self._seeded(place, chance))

    def _own_state(self, place: EpochPlace) -> dict[str, Any]:
        return {"batches": place.used, "digest": place.digest, "generator": place.generator, "rank": self.rank, "world": self.world}

    def place(self, state: Mapping[str, Any]) -> EpochPlace:
        """See `OrderPlan.place`.

        Such a state is good for the same number of ranks only, since the sampler's order for others is unknown.
        """
        _check(state, "batches", "the loader's own; this loader has a sampler: leave sampler= and batch_sampler= out, as before")
        _same(state, "length", self.samples, "samples of the dataset")
        _same(state, "world", self.world, "ranks; a custom sampler's order can't be dealt to other ranks")
        _same(state, "rank", self.rank, "rank; with a custom sampler each rank has a state of its own")
        generator = str(state.get("generator", ""))
        if generator and self.generator is None:
            raise StateError("the state's order was drawn from a generator: give generator= to this loader, too")
        return EpochPlace(_counted(state, "epoch"), _counted(state, "batches"), None, state["chance"], str(state["digest"]), generator)


class _SamplerEpoch:
    order = None

    def __init__(self, plan: SamplerOrder, place: EpochPlace) -> None:
        self._plan = plan
        self._place = place
        # By number of batches: for those under way, and for the last one that was handed out.
        self._digests: dict[int, str] = {0: place.digest}

    def batches(self) -> Iterator[SampleBatch]:
        digest = hashlib.blake2b(digest_size=16)
        if (generator := self._plan.generator) is not None:
            if self._place.generator:
                generator.restore(self._place.generator)
            self._place = replace(self._place, generator=generator.saved())
        place, batches = self._place, self._cut()
        for samples in islice(batches, place.used):
            _add(digest, samples)
        if place.used and digest.hexdigest() != place.digest:
            raise StateError(
                "the sampler gives another order than before the state was saved: have it draw from a generator that set_epoch seeds"
            )
        for iteration, samples in enumerate(batches):
            _add(digest, samples)
            self._digests[iteration + 1] = digest.hexdigest()
            yield SampleBatch(
                iteration, list(samples), cast("int", place.chance) % 2**64, place.epoch, is_one_call=isinstance(samples, tuple)
            )

    def place_after(self, batches: int) -> EpochPlace:
        # Asked for after each batch.
        self._digests.pop(batches - 1, None)
        return replace(self._place, used=self._place.used + batches, digest=self._digests[batches])

    def place_before(self) -> EpochPlace:
        if (generator := self._plan.generator) is not None and not self._place.generator:
            return replace(self._place, generator=generator.saved())
        return self._place

    def padding_of(self, iteration: int) -> int:
        """Returns 0: the padding of a user's own sampler is unknown."""
        del iteration
        return 0

    def _cut(self) -> Iterator[list[int] | tuple[int, ...]]:
        """Yields the indices of each batch: a list, or a tuple if the dataset is asked for all in one call."""
        plan = self._plan
        if not plan.is_batching:
            yield from map(_asked, plan.sampler)
            return
        if plan.batch == 0:
            yield from ([operator.index(index) for index in batch] for batch in plan.sampler)
            return
        samples = []
        for index in plan.sampler:
            samples.append(operator.index(index))
            if len(samples) == plan.batch:
                yield samples
                samples = []
        if samples and not plan.drop_last:
            yield samples


def _asked(index: Any) -> list[int] | tuple[int, ...]:  # noqa: ANN401  (a number, or several)
    """Returns the indices that a sampler without batches gives: `[index]`, or a tuple of the indices of a list."""
    try:
        return [operator.index(index)]
    except TypeError:
        return tuple(map(operator.index, index))


def _add(digest: "hashlib.blake2b", samples: Sequence[int]) -> None:
    digest.update(b"%d:" % len(samples) + b"".join(b"%d," % sample for sample in samples))


def check_version(state: Mapping[str, Any]) -> None:
    """Refuses states of another version, and values that are no states (`StateError`)."""
    if not isinstance(state, Mapping) or not {"version", "epoch"} <= state.keys():
        raise StateError("this is not a state of a forebay.torch.DataLoader: give what its state_dict() gave")
    if state["version"] != VERSION:
        raise StateError(f"the state has version {state['version']}; this is known: {VERSION}. Load it with the Forebay that saved it")


def _check(state: Mapping[str, Any], counted: str, other: str) -> None:
    if counted not in state:
        raise StateError(f"the state is of an order that is {other}")


def _same(state: Mapping[str, Any], key: str, here: object, what: str) -> None:
    if state.get(key) != here:
        raise StateError(f"the state has {key}={state.get(key)}, and this loader {here} ({what}): it is of another run")


def _counted(state: Mapping[str, Any], key: str) -> int:
    value = state[key]
    if not isinstance(value, int) or not 0 <= value < EPOCHS_END:
        raise ValueError(f"{key}={value!r}")
    return value
