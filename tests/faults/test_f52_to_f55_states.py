"""F52 another job's state, F53 a damaged or hostile one, F54 one too large, F55 a forgotten kind.

Refused, and named.
"""

import contextlib
import copy
import dataclasses
import fcntl
import gc
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import forebay.clone as clone
from tests.clone import jobs
from tests.clone.jobs import StateJob, full, job
from tests.clone.manifests import Written, only


def wider(number: int) -> StateJob:
    model = jobs.StateNet(width=9)
    return StateJob(model, jobs.momentum(model))


def deeper(number: int) -> StateJob:
    made = job()
    made.model.add_module("more", nn.Linear(2, 2))
    return made


def doubled(number: int) -> StateJob:
    model = jobs.StateNet().double()
    return StateJob(model, jobs.momentum(model))


def frozen(number: int) -> StateJob:
    made = job()
    made.model.get_parameter("head.bias").requires_grad_(False)
    return made


def channels_last(number: int) -> StateJob:
    model = jobs.StateNet(width=2).to(memory_format=torch.channels_last)
    model.features.append(nn.Conv2d(2, 2, 2).to(memory_format=torch.channels_last))
    return StateJob(model, jobs.momentum(model))


def contiguous(number: int) -> StateJob:
    model = jobs.StateNet(width=2)
    model.features.append(nn.Conv2d(2, 2, 2))
    return StateJob(model, jobs.momentum(model))


def ungrouped(number: int) -> StateJob:
    model = jobs.StateNet()
    return StateJob(model, torch.optim.SGD([model.head.bias], lr=0.1, momentum=0.9, nesterov=True))


OTHERS: list[tuple[Callable[[int], StateJob], str]] = [
    (wider, r"model/parameters/features.0.weight differs: float32 \[8, 1, 3, 3\].* captured, float32 \[9, 1, 3, 3\].* here"),
    (deeper, r"model/parameters/more.weight differs: nothing where the state was captured, float32 \[2, 2\]"),
    (doubled, r"features.0.weight differs: float32 .* float64"),
    (frozen, r'model/trainable differs: \[.*"head.bias"\] where'),
    (ungrouped, r"optimizer/parameters differs"),
    (lambda _: job(jobs.adamw), r'optimizer/type differs: "torch.optim.sgd.SGD" .* "torch.optim.adamw.AdamW" here'),
    (full, r"^scheduler is absent where the state was captured, and given here"),
]


@pytest.mark.parametrize(("make", "message"), OTHERS)
def test_f52_another_job_s_state_is_refused_before_anything_changes(make: Callable[[int], StateJob], message: str) -> None:
    original, other = job(), make(0)
    original.step()
    state = other.inventory()
    before = state.manifest()
    with original.inventory().capture() as capture, pytest.raises(clone.DifferenceError, match=message):
        state.load(capture)
    assert state.manifest() == before


def test_f52_another_memory_format_is_refused() -> None:
    with contiguous(0).inventory().capture() as capture, pytest.raises(clone.DifferenceError, match=r"features.4.weight differs.*strides"):
        channels_last(0).inventory().load(capture)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"framework": "torch 1.0"}, r"framework differs: torch 1.0 where the state was captured, torch 2"),
        ({"ranks": 4}, r"number of ranks differs: 4 where the state was captured, 1 here"),
        ({"rank": 1, "ranks": 1}, r"rank differs: 1"),
    ],
)
def test_f52_another_world_is_refused(change: dict[str, Any], message: str) -> None:
    made = job()
    with made.inventory().capture() as capture:
        capture.manifest = dataclasses.replace(capture.manifest, **change)
        with pytest.raises(clone.DifferenceError, match=message):
            made.inventory().load(capture)


@pytest.mark.parametrize(
    "kind", ["optimizer", "scheduler", "scaler", "ema", "loader", "counters", "generators", "flags", "model/gradients"]
)
def test_f55_a_manifest_that_lacks_a_kind_is_refused(kind: str) -> None:
    """The sender left out a kind that the receiver knows, without saying so."""
    original, other = full(1), full(2)
    state = other.inventory()
    before = state.manifest()
    with original.inventory().capture() as whole:
        fewer = only(whole.manifest, lambda name: not f"{name}/".startswith(f"{kind}/"))
        with repacked(whole, fewer) as capture, pytest.raises(clone.DifferenceError, match=f"^the captured state lacks {kind}"):
            state.load(capture)
    assert state.manifest() == before


def repacked(capture: clone.Capture, manifest: clone.Manifest) -> clone.Capture:
    """The same bytes, of these entries alone."""
    at = {entry.path: offset for entry, offset in capture.manifest.offsets()}
    content = bytearray(manifest.length)
    for entry, offset in manifest.offsets():
        content[offset : offset + entry.length] = os.pread(capture.descriptor, entry.length, at[entry.path])
    return clone.Capture(manifest, sealed(bytes(content)))


def sealed(content: bytes, seals: int = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE) -> int:
    descriptor = os.memfd_create("state", os.MFD_ALLOW_SEALING)
    os.write(descriptor, content)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def test_f54_a_copy_that_there_is_no_memory_for_is_refused_with_its_size() -> None:
    made = job()
    made.ema = {"large": torch.zeros(1 << 20)}
    state = made.inventory()
    # What earlier tests have left.
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(clone.CloneError, match=r"^no memory for a copy of 4,\d{3},\d{3} bytes of state: File too large$"):
            state.capture()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    state.capture().close()


@pytest.mark.parametrize("kind", clone.KINDS)
def test_f55_a_kind_that_is_not_mentioned_is_refused_by_name(kind: str) -> None:
    given = full().given()
    del given[kind]
    with pytest.raises(clone.MissingError, match=rf"^{kind} not given: .* {kind}=None$"):
        clone.inventory(**given)


def test_f55_several_forgotten_kinds_are_named_together() -> None:
    made = job()
    with pytest.raises(clone.MissingError, match=r"^scheduler and scaler and ema and loader and counters not given"):
        clone.inventory(model=made.model, optimizer=made.optimizer)


def test_f55_a_scheduler_that_is_denied_is_found_out() -> None:
    with pytest.raises(clone.MissingError, match="scheduler=None, but a scheduler drives optimizer: pass it"):
        full().inventory(scheduler=None)
    with pytest.raises(clone.MissingError, match="without a model"):
        full().inventory(model=None)


class Stubborn(jobs.Position):
    """Takes only half of its state back."""

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


def test_f55_an_object_that_does_not_take_its_state_back_is_found_out() -> None:
    original, other = job(), job()
    original.loader, other.loader = Stubborn(), Stubborn()
    original.loader.consumed = 3
    with original.inventory().capture() as capture, pytest.raises(clone.DamagedError, match="after loading: loader/state"):
        other.inventory().load(capture)


class SlowWeights(torch.optim.SGD):
    """An optimizer with state that torch's own walk would not find."""

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"slow": 1}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": object()}, "model is a builtins.object; known are models of: torch"),
        ({"optimizer": object()}, "optimizer: a builtins.object is not an optimizer of torch"),
        ({"optimizer": torch.nn.Linear(1, 1)}, r"optimizer: a torch.nn.modules.linear.Linear is not an optimizer of torch"),
        ({"scheduler": torch.optim.SGD([torch.ones(1)])}, r"scheduler: a torch.optim.sgd.SGD is not a scheduler: give it as what it is"),
        ({"scaler": torch.nn.Linear(1, 1)}, r"scaler: a torch.nn.modules.linear.Linear is not a scaler: give it as what it is"),
        (
            {"loader": torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(1)))},
            r"loader: a torch.utils.data.dataloader.DataLoader has no state_dict .* \(loader=None\)",
        ),
        ({"ema": {"w": torch.ones(2).to_sparse()}}, r"ema/w: a torch.Tensor, torch.sparse_coo, on cpu"),
        ({"ema": {"w": torch.ones(2, device="meta")}}, r"ema/w: a torch.Tensor, torch.strided, on meta"),
        ({"ema": {"w": torch.ones(1).expand(3)}}, r"ema/w: an expanded tensor, whose elements share memory"),
        ({"counters": {"step": object()}}, r"counters/step: a builtins.object can't be described"),
        ({"generators": {"mine": object()}}, r"generators/named/mine: a builtins.object is not a generator"),
        ({"others": {"metric": 3}}, r"others/metric: a builtins.int has no state_dict"),
    ],
)
def test_f55_what_can_not_be_described_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(clone.UndescribableError, match=message):
        job().inventory(**given).manifest()


def test_f55_an_optimizer_with_state_of_its_own_is_refused() -> None:
    made = job()
    made.optimizer = SlowWeights(made.model.parameters())
    with pytest.raises(clone.UndescribableError, match=r"optimizer: .*SlowWeights has a state_dict of its own"):
        made.inventory()
    made.optimizer = torch.optim.SGD(made.model.parameters())
    made.optimizer.state[torch.ones(1)]["x"] = 1
    with pytest.raises(clone.UndescribableError, match="optimizer: 1 entries of its state belong to no parameter"):
        made.inventory().manifest()


@pytest.fixture(scope="module")
def capture() -> Iterator[clone.Capture]:
    made = job()
    made.step()
    with made.inventory().capture() as capture:
        yield capture


@pytest.mark.parametrize("where", ["model/parameters/head.weight", "optimizer/groups", "counters", "optimizer/state/0.0/momentum_buffer"])
def test_f53_one_altered_byte_is_found(capture: clone.Capture, where: str) -> None:
    content = bytearray(os.pread(capture.descriptor, capture.manifest.length, 0))
    (at,) = (offset for entry, offset in capture.manifest.offsets() if entry.path == where)
    content[at + 3] ^= 1
    state = job().inventory()
    altered = clone.Capture(capture.manifest, sealed(bytes(content)))
    with altered, pytest.raises(clone.DamagedError, match=rf"^{where}: the bytes that arrived have the digest"):
        state.load(altered)


def test_f53_memory_that_could_change_or_is_too_short_is_refused(capture: clone.Capture) -> None:
    content = os.pread(capture.descriptor, capture.manifest.length, 0)
    for descriptor, message in [
        (sealed(content, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW), "is not sealed"),
        (sealed(content[:-1]), "bytes; its manifest says"),
        (os.open("/dev/null", os.O_RDONLY), "not of sealed memory"),
    ]:
        with pytest.raises(clone.DamagedError, match=message):
            clone.Capture(capture.manifest, descriptor)
        os.close(descriptor)
    with pytest.raises(OSError, match="Operation not permitted"):
        os.pwrite(capture.descriptor, b"x", 0)


def replaced(where: str, /, **change: Any) -> Callable[[Written], None]:
    def change_entry(written: Written) -> None:
        at = next(at for at, section in enumerate(written.sections) if where in section["paths"])
        section, places = written.sections[at], written.places[at]
        number = section["paths"].index(where)
        kind = dict(zip(KIND, section["kinds"][section["kind_of"][number]], strict=True))
        section["kind_of"][number] = len(section["kinds"])
        section["kinds"].append([change.get(key, value) for key, value in kind.items()])
        if "path" in change:
            section["paths"][number] = change["path"]
        if "place" in change:
            places.append([number, *change["place"]])
        if "digest" in change:
            first = sum(len(before["paths"]) for before in written.sections[:at])
            begin, digests = (first + number) * 32, written.head["digests"]
            written.head["digests"] = digests[:begin] + change["digest"] + digests[begin + 32 :]

    return change_entry


def parameters(written: Written) -> dict[str, Any]:
    found: dict[str, Any] = next(section for section in written.sections if section["paths"][0] == "model/parameters")
    return found


def swapped(section: dict[str, Any]) -> dict[str, Any]:
    """A small tensor and a large one change places, in all that the manifest says of them."""
    found = {}
    for name in ("paths", "kind_of"):
        first, second, third, *others = section[name]
        found[name] = [first, third, second, *others]
    return found


KIND = ("placement", "dtype", "shape", "strides", "device", "length")
NOUGHT = "0" * 32
WEIGHT = "optimizer/state/0.0/momentum_buffer"
HOSTILE: list[tuple[Callable[[Written], Any], str]] = [
    (replaced(WEIGHT, strides=[0, 0, 0, 0]), "gaps, or share"),
    (replaced(WEIGHT, shape=[1 << 40, 1, 3, 3], strides=[9, 1, 3, 1]), "288 bytes are no"),
    (replaced(WEIGHT, dtype="load"), "torch has no type 'load'"),
    (replaced(WEIGHT, dtype="value"), "changed places"),
    (replaced("counters", dtype="uint8"), "changed places"),
    (replaced(WEIGHT, path="model/parameters/x"), "no place here"),
    (replaced(WEIGHT, path="optimizer/state/0.0/other"), "not a value as it is sent"),
    (replaced(WEIGHT, digest="../../etc"), "not a manifest"),
    (replaced(WEIGHT, length=-1), "integer `-1`"),
    (replaced(WEIGHT, place=[0]), "invalid length 2"),
    (replaced(WEIGHT, place=[0, 0]), "the memory of a state has"),
    (replaced(WEIGHT, place=[0, -1], digest=NOUGHT), "integer `-1`"),
    (replaced(WEIGHT, place=["/etc", 0], digest=NOUGHT), "invalid type: string"),
    (replaced(WEIGHT, place=[1, 0], digest=NOUGHT), "bytes; its manifest says"),
    (replaced("counters", place=[0, 0], digest=NOUGHT), "is not the place"),
    (replaced(WEIGHT, digest=""), "not one digest for each entry"),
    (replaced(WEIGHT, placement="everywhere"), "not a manifest"),
    (replaced(WEIGHT, path="counters"), "occurs twice"),
    (lambda written: written.head.update(format="forebay clone manifest 1"), "not of the format"),
    (lambda written: written.head.update(code="x"), "unknown field `code`"),
    (lambda written: written.sections[0].update(code="x"), "unknown field `code`"),
    (lambda written: written.keep(0), "no sections"),
    (lambda written: parameters(written).update(paths=[], kind_of=[]), "has no entries"),
    (lambda written: parameters(written)["kind_of"].append(0), "not of one length"),
    (lambda written: parameters(written)["kind_of"].__setitem__(0, 1 << 40), "not a manifest"),
    (lambda written: written.places[0].append([1 << 40, 0, 0]), "is not the place"),
    (lambda written: parameters(written)["kinds"].clear(), "not a manifest"),
    (lambda written: written.keep(3), "not one digest"),
    (lambda written: parameters(written).update(swapped(parameters(written))), "in another order"),
]


@pytest.mark.parametrize(("change", "message"), HOSTILE)
def test_f53_a_manifest_that_lies_is_refused(capture: clone.Capture, change: Callable[[Written], Any], message: str) -> None:
    written = Written(capture.manifest.to_json())
    change(written)
    made = job()
    before = made.inventory().manifest()

    def load() -> None:
        manifest = clone.Manifest.from_json(written.text())
        with contextlib.closing(clone.Capture(manifest, os.dup(capture.descriptor))) as lying:
            made.inventory().load(lying)

    with pytest.raises(clone.CloneError, match=message):
        load()
    assert made.inventory().manifest() == before


def test_f53_a_state_that_two_components_claim_is_refused(capture: clone.Capture) -> None:
    """Each entry has another path, and both sections one name."""
    written = Written(capture.manifest.to_json())
    weights = parameters(written)
    weights["paths"][0] = "optimizer/state"
    with pytest.raises(clone.DamagedError, match="occurs twice"):
        clone.Manifest.from_json(written.text())


@given(st.data())
def test_f53_any_part_of_a_manifest_may_be_anything(capture: clone.Capture, data: st.DataObject) -> None:
    junk = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text()
        | st.lists(st.integers())
        | st.dictionaries(st.text(), st.text())
    )
    written = Written(capture.manifest.to_json())
    written.places[1].append([1, 0, 0])
    section = parameters(written)
    places = [written.head, written.sections, written.places, written.places[1], section, *section.values(), section["kinds"][0]]
    place = data.draw(st.sampled_from(places))
    place[data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))] = data.draw(junk)
    with contextlib.suppress(clone.DamagedError):
        assert clone.Manifest.from_json(written.text()).entries


def test_f53_what_is_written_is_read_back(capture: clone.Capture) -> None:
    assert clone.Manifest.from_json(capture.manifest.to_json()) == capture.manifest
    for text in (b"", b"null", b"[]", b"\x80\x04.", copy.copy(capture.manifest.to_json())[:-1]):
        with pytest.raises(clone.DamagedError, match="not a manifest"):
            clone.Manifest.from_json(text)
