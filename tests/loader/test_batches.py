"""Contents of a batch: keys of its samples, and parts of it that are decoded."""

from typing import Any

import pytest

from forebay.loader import Extent, Request
from forebay.loader._batches import FAILED, BatchPart, FetchedBatch, SampleBatch, decoded

SAMPLES = 70


class NumberDataset:
    """Samples are their bytes and their keys; some fail."""

    def __init__(self, *failing: int) -> None:
        self.failing = failing
        self.decoded: list[int] = []

    def __len__(self) -> int:
        return SAMPLES

    def locate(self, i: int, /) -> Extent:
        return Extent("/numbers", i, 1)

    def decode(self, data: memoryview, i: int, rng: int, /) -> tuple[int, int]:
        self.decoded.append(i)
        if i in self.failing:
            raise ValueError(f"{i} fails")
        return data[0], rng


class AtHand(Request):
    """A request of which every third sample has to be waited for."""

    def __init__(self, batch: SampleBatch, part: BatchPart) -> None:
        self.batch, self.part = batch, part
        self.waited: list[int] = []

    def at_hand(self, places: range) -> list[memoryview | None]:
        return [None if place % 3 == 0 else self._bytes(place) for place in places]

    def read(self, place: int) -> memoryview:
        assert self.part.is_waiting
        assert self.part.places[len(self.part.samples)] == place
        self.waited.append(place)
        return self._bytes(place)

    def release(self) -> None:
        """Nothing is held."""

    def _bytes(self, place: int) -> memoryview:
        return memoryview(bytes([self.batch.samples[place]]))


def batch_of(*samples: int) -> SampleBatch:
    return SampleBatch(0, list(samples), seed=2**64 - 1, epoch=3)


def gone_through(dataset: NumberDataset, part: BatchPart, *, skip: bool) -> tuple[list[Any], FetchedBatch, AtHand]:
    batch, fetched = batch_of(*reversed(range(SAMPLES))), FetchedBatch()
    request = AtHand(batch, part)
    decoded(dataset, request, batch, part, lambda key: key, fetched, are_bytes_kept=True, skip=skip)
    return part.samples, fetched, request


def test_keys_of_many_samples_are_those_of_each() -> None:
    batch = batch_of(5, 0, -1, 2**32 + 5, -(2**40), 2**70 + 7)
    keys = [batch.key(sample) for sample in batch.samples]
    assert keys[0] == keys[3]
    assert len(set(keys)) == 4
    assert batch.keys(range(6)) == keys
    assert batch.keys(range(1, 5)) == keys[1:5]
    assert batch.keys(range(2, 2)) == []


@pytest.mark.parametrize("places", [range(SAMPLES), range(5, 40), range(3, 3)])
def test_a_part_gets_its_samples_in_their_order(places: range) -> None:
    samples, fetched, request = gone_through(NumberDataset(), BatchPart(places), skip=False)
    assert samples == [(SAMPLES - 1 - place, request.batch.key(SAMPLES - 1 - place)) for place in places]
    assert request.waited == [place for place in places if place % 3 == 0]
    assert (fetched.read_bytes, fetched.failures) == (len(places), [])


def test_a_sample_that_fails_has_a_place_all_the_same() -> None:
    samples, fetched, _ = gone_through(NumberDataset(60, 3), BatchPart(range(SAMPLES)), skip=True)
    assert [place for place, sample in enumerate(samples) if sample is FAILED] == [SAMPLES - 61, SAMPLES - 4]
    assert [failed.index for failed in fetched.failures] == [60, 3]
    samples, fetched, _ = gone_through(NumberDataset(60, 3), BatchPart(range(SAMPLES)), skip=False)
    assert len(samples) == SAMPLES - 60
    assert [failed.index for failed in fetched.failures] == [60]


def test_a_part_that_is_over_is_gone_through_no_further() -> None:
    part = BatchPart(range(SAMPLES))

    class Closed(NumberDataset):
        """It is closed in the middle of a sample."""

        def decode(self, data: memoryview, i: int, rng: int, /) -> tuple[int, int]:
            assert not part.is_waiting
            part.is_over = len(part.samples) == 40
            return super().decode(data, i, rng)

    dataset = Closed()
    samples, _, _ = gone_through(dataset, part, skip=False)
    assert len(samples) == len(dataset.decoded) == 41
